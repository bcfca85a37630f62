//! Which interface each local pod has, remembered and looked for again.
//!
//! Strategy: an interface that was found counts as long as it exists. The result cache is read only for pods without a
//! remembered interface, and the network namespaces only for pods that the cache does not name either.
//! Invariant: a pod is identified by its UID, never by its name or its address alone, because both are reused.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use weir_classes::index::Key;
use weir_runtime::sys::links::NamespaceInterface;

use super::discover::{Assignment, Cached, Claimant, Depth, Found, Inventory, NotFound, Wanted};

/// The first wait between two searches.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Searches that notifications start are at least this far apart: a pod can cause notifications without end.
const BETWEEN_HURRIES: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A local pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Pod {
    /// `namespace/name`
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Identifies the pod independently of its addresses.
    fn identity(&self) -> Identity {
        (self.namespace.clone(), self.name.clone(), self.uid.clone())
    }

    fn wanted(&self) -> Wanted<'_> {
        let Self { namespace, name, uid, addresses } = self;
        Wanted { uid: uid.as_deref(), namespace, name, addresses }
    }
}

/// Namespace, name, UID.
type Identity = (String, String, Option<String>);

/// Reads the state of the host.
pub(crate) type Look = dyn FnMut(Depth) -> Inventory + Send;

/// The interfaces of the local pods, as far as they are known.
pub(crate) struct Places {
    look: Box<Look>,
    /// Results that the CNI plug-in has reported, which the result cache may not contain yet. With the numbers of their
    /// interfaces at that time, because another interface may get the same name later.
    told: Vec<(Cached, BTreeSet<u32>)>,
    found: BTreeMap<Pod, Found>,
    missing: BTreeMap<Pod, NotFound>,
    /// Interfaces that may belong to several pods, each with one of these pods as `namespace/name`.
    contested: BTreeMap<String, String>,
    /// Pods whose interface is gone, and the addresses that they had there.
    lost: BTreeMap<Identity, Vec<IpAddr>>,
    /// The times at which pods were attached to their networks, for pods found since the last [`Places::take_fresh`].
    fresh: Vec<SystemTime>,
    /// When to search for missing pods again, and how long to wait after that.
    again: Option<(Instant, Duration)>,
    /// The last search that a notification started.
    hurried: Option<Instant>,
}

impl Places {
    pub(crate) fn new(look: Box<Look>) -> Self {
        Self {
            look,
            told: Vec::new(),
            found: BTreeMap::new(),
            missing: BTreeMap::new(),
            contested: BTreeMap::new(),
            lost: BTreeMap::new(),
            fresh: Vec::new(),
            again: None,
            hurried: None,
        }
    }

    /// Takes the result that the CNI plug-in reports for a pod that it has attached to its network.
    pub(crate) fn tell(&mut self, attached: Cached) {
        self.told.retain(|(it, _)| (&it.namespace, &it.name) != (&attached.namespace, &attached.name));
        let now = (self.look)(Depth::Interfaces);
        let named = now.interfaces.iter().filter(|it| attached.host_interfaces.contains(&it.name));
        let numbers = named.map(|it| it.ifindex).collect();
        self.told.push((attached, numbers));
    }

    fn look(&mut self, depth: Depth) -> Inventory {
        let mut inventory = (self.look)(depth);
        let is_there = |(told, numbers): &(Cached, BTreeSet<u32>)| {
            let is_it =
                |it: &NamespaceInterface| told.host_interfaces.contains(&it.name) && numbers.contains(&it.ifindex);
            inventory.is_blind || inventory.interfaces.iter().any(is_it)
        };
        self.told.retain(is_there);
        inventory.cached.splice(..0, self.told.iter().map(|(told, _)| told.clone()));
        inventory
    }

    /// Adds the pods that the previous agent left in the kernel's record.
    pub(crate) fn remember(&mut self, attached: impl IntoIterator<Item = (Pod, Found)>) {
        self.found.extend(attached);
    }

    /// Finds the interfaces of these pods, and forgets all other pods. Returns whether the result differs from the
    /// last one.
    pub(crate) fn find(&mut self, pods: &BTreeSet<Pod>, now: Instant) -> bool {
        let mut assigned = Assignment::default();
        for depth in [Depth::Interfaces, Depth::Cache, Depth::Everything] {
            let inventory = self.look(depth);
            self.note_lost(pods, &inventory);
            let claimants: Vec<Claimant<'_>> = pods.iter().map(|pod| self.claimant(pod, &inventory)).collect();
            assigned = inventory.assign(&claimants);
            if assigned.outcomes.iter().all(Result::is_ok) {
                break;
            }
        }
        let (mut found, mut missing) = (BTreeMap::new(), BTreeMap::new());
        let paths: Vec<String> = pods.iter().map(Pod::path).collect();
        for (pod, outcome) in pods.iter().zip(assigned.outcomes) {
            match outcome {
                Ok(it) => _ = found.insert(pod.clone(), it),
                Err(error) => _ = missing.insert(pod.clone(), error),
            }
        }
        let contested = assigned.contested.into_iter();
        let contested = contested.filter_map(|(name, pod)| Some((name, paths.get(pod)?.clone()))).collect();
        let new = found.iter().filter(|(pod, found)| self.remembered(pod).is_none_or(|(_, it)| it != *found));
        let fresh: Vec<SystemTime> = new.filter_map(|(_, found)| found.made).collect();
        self.fresh.extend(fresh);
        let changed = (&found, &missing, &contested) != (&self.found, &self.missing, &self.contested);
        self.again = self.next_search(&missing, now);
        found.keys().for_each(|pod| _ = self.lost.remove(&pod.identity()));
        (self.found, self.missing, self.contested) = (found, missing, contested);
        changed
    }

    fn remembered(&self, pod: &Pod) -> Option<(&Pod, &Found)> {
        let first = Pod { addresses: Vec::new(), ..pod.clone() };
        let (known, found) = self.found.range(first..).next()?;
        let is_same = (&known.namespace, &known.name, &known.uid) == (&pod.namespace, &pod.name, &pod.uid);
        is_same.then_some((known, found))
    }

    /// Notes the pods that had an interface until now and have none any more.
    fn note_lost(&mut self, pods: &BTreeSet<Pod>, inventory: &Inventory) {
        let identities: BTreeSet<Identity> = pods.iter().map(Pod::identity).collect();
        let gone =
            self.found.iter().filter(|(pod, found)| !inventory.has(found) && identities.contains(&pod.identity()));
        self.lost.extend(gone.map(|(pod, _)| (pod.identity(), pod.addresses.clone())));
        self.lost.retain(|identity, _| identities.contains(identity));
    }

    /// A pod with other addresses than before is searched again, because its network may have been recreated.
    fn claimant<'p>(&self, pod: &'p Pod, inventory: &Inventory) -> Claimant<'p> {
        let shares = |had: &[IpAddr]| {
            had.is_empty() || pod.addresses.is_empty() || had.iter().any(|address| pod.addresses.contains(address))
        };
        let remembered = self.remembered(pod).filter(|(known, found)| shares(&known.addresses) && inventory.has(found));
        let known = remembered.map(|(_, found)| found.clone());
        let has_lost = self.lost.get(&pod.identity()).is_some_and(|had| shares(had));
        Claimant { pod: pod.wanted(), known, has_lost }
    }

    /// The time of the next search for missing pods: soon if a pod is newly missing, else later each time.
    fn next_search(&self, missing: &BTreeMap<Pod, NotFound>, now: Instant) -> Option<(Instant, Duration)> {
        if missing.is_empty() {
            return None;
        }
        let is_new = missing.keys().any(|pod| !self.missing.contains_key(pod));
        let wait = self.again.filter(|_| !is_new).map_or(FIRST_WAIT, |(_, wait)| wait);
        Some((now + wait, (wait * 2).min(LONGEST_WAIT)))
    }

    /// The addresses of those pods that the result cache knows by their UIDs, and whose interfaces exist.
    pub(crate) fn attached(&mut self, pods: Vec<(Key, Option<String>)>) -> Vec<(Key, Option<String>, Vec<IpAddr>)> {
        let inventory = self.look(Depth::Cache);
        let addresses = |(key, uid): (Key, Option<String>)| {
            let addresses = inventory.attached_as(uid.as_deref()?)?.to_vec();
            Some((key, uid, addresses))
        };
        pods.into_iter().filter_map(addresses).collect()
    }

    /// The interfaces that CNI results assign to pods: number, name, result.
    pub(crate) fn attachments(&mut self) -> Vec<(u32, String, Cached)> {
        let Inventory { interfaces, cached, .. } = self.look(Depth::Cache);
        let at = |cached: Cached| {
            let mut names = cached.host_interfaces.iter();
            let found = names.find_map(|name| interfaces.iter().find(|it| it.kind == "veth" && it.name == *name))?;
            Some((found.ifindex, found.name.clone(), cached))
        };
        cached.into_iter().filter_map(at).collect()
    }

    /// Makes the next search due: after a change on the host, missing interfaces may exist.
    pub(crate) fn hurry(&mut self, now: Instant) {
        let Some((at, _)) = self.again else { return };
        let soonest = self.hurried.map_or(now, |last| now.max(last + BETWEEN_HURRIES));
        if soonest < at {
            self.hurried = Some(soonest);
        }
        self.again = Some((at.min(soonest), FIRST_WAIT));
    }

    /// Returns the times at which newly found pods were attached to their networks, once for each pod.
    pub(crate) fn take_fresh(&mut self) -> Vec<SystemTime> {
        std::mem::take(&mut self.fresh)
    }

    /// The interface of a pod, if it has one now.
    pub(crate) fn interface_of(&mut self, pod: &Pod) -> Option<Found> {
        let (_, found) = self.remembered(pod)?;
        let found = found.clone();
        self.look(Depth::Interfaces).has(&found).then_some(found)
    }

    /// Whether the pod was found at this interface.
    pub(crate) fn is_at(&self, pod: &Pod, found: &Found) -> bool {
        self.remembered(pod).is_some_and(|(_, it)| it.ifindex == found.ifindex)
    }

    /// The host's interfaces, and whether the interface of a pod is no longer among them.
    pub(crate) fn check(&mut self) -> (Inventory, bool) {
        let now = self.look(Depth::Interfaces);
        let lost = self.found.values().any(|found| !now.has(found));
        (now, lost)
    }

    /// When to search again, if a pod is missing.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.again.map(|(at, _)| at)
    }

    pub(crate) fn found(&self) -> &BTreeMap<Pod, Found> {
        &self.found
    }

    /// Interfaces that may belong to several pods, each with one of these pods as `namespace/name`.
    pub(crate) fn contested(&self) -> &BTreeMap<String, String> {
        &self.contested
    }

    pub(crate) fn missing(&self) -> &BTreeMap<Pod, NotFound> {
        &self.missing
    }
}
