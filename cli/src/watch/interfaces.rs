//! The interface of each local pod: the results of earlier searches, and when to search again.
//!
//! Strategy: an interface that was found counts as long as it exists. The result cache is read only for pods without a
//! remembered interface, and the network namespaces only for pods that the cache does not name either.
//! Invariant: a pod is identified by its UID, never by its name or its address alone, because both are reused.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_classes::index::Key;
use weir_objects::k8s::{Body, Object};
use weir_runtime::sys::links::Interfaces;

use super::backoff::{Backoff, BackoffLimits};
use super::discover::{Assignment, Attachment, Claimant, Depth, FoundInterface, Inventory, NotFound, SearchedPod};
use super::pod_uids::PodUids;

/// The waits between two searches.
const SEARCHES: BackoffLimits = BackoffLimits { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// Searches that notifications start are at least this far apart: a pod can cause notifications without end.
const BETWEEN_HURRIES: Duration = Duration::from_millis(50);

/// A local pod. Its parts are shared by copies, because each search copies all pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LocalPod {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) uid: Option<Arc<str>>,
    pub(crate) addresses: Arc<[IpAddr]>,
    /// The UID of the static pod whose mirror it is.
    pub(crate) static_uid: Option<Arc<str>>,
}

impl LocalPod {
    pub(crate) fn new(namespace: &str, name: &str, uid: Option<&str>, addresses: impl Into<Arc<[IpAddr]>>) -> Self {
        let (uid, addresses) = (uid.map(Arc::from), addresses.into());
        Self { namespace: namespace.into(), name: name.into(), uid, addresses, static_uid: None }
    }

    /// A pod of the API.
    pub(crate) fn of(object: &Object) -> Self {
        let addresses = match &object.body {
            Body::Pod(pod) => pod.addresses.as_slice(),
            _ => &[],
        };
        let (meta, uids) = (&object.meta, PodUids::of(object));
        let static_uid = uids.of_static_pod.map(Arc::from);
        Self { static_uid, ..Self::new(&meta.namespace, &meta.name, uids.of_object, addresses) }
    }

    /// The UIDs by which the API server and the container runtime know the pod.
    pub(crate) fn uids(&self) -> PodUids<'_> {
        PodUids { of_object: self.uid.as_deref(), of_static_pod: self.static_uid.as_deref() }
    }

    pub(crate) fn key(&self) -> Key {
        Key { kind: "Pod".to_owned(), namespace: self.namespace.to_string(), name: self.name.to_string() }
    }

    /// `namespace/name`
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Identifies the pod independently of its addresses.
    fn identity(&self) -> PodIdentity {
        PodIdentity { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }

    fn searched(&self) -> SearchedPod<'_> {
        let Self { namespace, name, addresses, .. } = self;
        SearchedPod { uids: self.uids(), namespace, name, addresses }
    }
}

/// A pod, independently of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodIdentity {
    namespace: Arc<str>,
    name: Arc<str>,
    uid: Option<Arc<str>>,
}

/// A pod, and the addresses that the result cache has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedAddresses {
    pub(crate) pod: LocalPod,
    pub(crate) addresses: Vec<IpAddr>,
}

/// An interface that a CNI result assigns to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceOfPod {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) attachment: Arc<Attachment>,
}

/// The interfaces that CNI results assign to pods, and how much of the host could be read.
#[derive(Clone, Debug)]
pub(crate) struct AttachedInterfaces {
    pub(crate) of_pods: Vec<InterfaceOfPod>,
    /// All interfaces of the host; `None` if they could not be read.
    pub(crate) present: Option<BTreeSet<u32>>,
    /// Whether all CNI results could be read, too.
    pub(crate) is_complete: bool,
    /// When the read began.
    pub(crate) begun: SystemTime,
}

/// A result that the CNI plug-in has reported.
#[derive(Clone, Debug)]
struct ReportedAttachment {
    attachment: Arc<Attachment>,
    /// The numbers of its interfaces at that time, because another interface may get the same name later.
    ifindexes: BTreeSet<u32>,
}

/// The result of a search, as far as a generation depends on it: it does not matter why a pod is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchResult {
    found: BTreeMap<LocalPod, FoundInterface>,
    contested: BTreeMap<String, String>,
    /// The pods that may be at a contested interface.
    contested_pods: BTreeSet<LocalPod>,
}

/// What searches have changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InterfaceChanges {
    /// Nothing that a generation depends on.
    None,
    /// These pods had an interface and have none any more. Nothing else has changed, and no interface is contested.
    Lost(Vec<LocalPod>),
    Others,
}

/// Reads the state of the host.
pub(crate) type ReadHost = dyn FnMut(Depth) -> Inventory + Send;

/// The interfaces of the local pods, as far as they are known.
pub(crate) struct PodInterfaces {
    read_host: Box<ReadHost>,
    /// Results that the CNI plug-in has reported, which the result cache may not contain yet.
    reported: Vec<ReportedAttachment>,
    found: BTreeMap<LocalPod, FoundInterface>,
    missing: BTreeMap<LocalPod, NotFound>,
    /// Interfaces that may belong to several pods, each with one of these pods as `namespace/name`.
    contested: BTreeMap<String, String>,
    /// Pods whose interface is gone.
    lost: BTreeMap<PodIdentity, LostInterface>,
    /// The times at which pods were attached to their networks, for pods found since the last
    /// [`PodInterfaces::take_new`].
    new: Vec<SystemTime>,
    /// When to search for missing pods again.
    next_search: Option<Backoff>,
    /// The last search that a notification started.
    hurried: Option<Instant>,
    /// The numbers of the interfaces that the last search saw.
    listed: BTreeSet<u32>,
    /// The input of the last search, if it found all pods.
    settled: Option<Settled>,
}

/// An interface that a pod had.
#[derive(Debug)]
struct LostInterface {
    ifindex: u32,
    /// When a search noted that it is gone.
    at: Instant,
    /// The addresses that the pod had there.
    addresses: Arc<[IpAddr]>,
    /// The numbers of all interfaces that the search before had seen.
    listed: BTreeSet<u32>,
}

/// The pods and the host's interfaces of a search that found all pods, each at an interface of its own. With the same
/// ones, another search has the same result: pods that were found before keep their interfaces.
#[derive(Debug)]
struct Settled {
    pods: BTreeSet<LocalPod>,
    interfaces: Interfaces,
}

impl PodInterfaces {
    pub(crate) fn new(read_host: Box<ReadHost>) -> Self {
        Self {
            read_host,
            reported: Vec::new(),
            found: BTreeMap::new(),
            missing: BTreeMap::new(),
            contested: BTreeMap::new(),
            lost: BTreeMap::new(),
            new: Vec::new(),
            next_search: None,
            hurried: None,
            listed: BTreeSet::new(),
            settled: None,
        }
    }

    /// Takes the result that the CNI plug-in reports for a pod that it has attached to its network.
    pub(crate) fn add_attachment(&mut self, attachment: Attachment) {
        self.settled = None;
        let is_other = |it: &Attachment| (&it.namespace, &it.name) != (&attachment.namespace, &attachment.name);
        self.reported.retain(|it| is_other(&it.attachment));
        let host = (self.read_host)(Depth::Interfaces);
        let named = attachment.host_interfaces.iter().filter_map(|name| host.interfaces.named(name));
        let ifindexes = named.map(|it| it.ifindex).collect();
        self.reported.push(ReportedAttachment { attachment: Arc::new(attachment), ifindexes });
    }

    /// Reads the state of the host, and adds the reported results to those of the cache.
    fn inventory(&mut self, depth: Depth) -> Inventory {
        let mut inventory = (self.read_host)(depth);
        let exists = |reported: &ReportedAttachment| {
            let ReportedAttachment { attachment, ifindexes } = reported;
            let mut named = attachment.host_interfaces.iter().filter_map(|name| inventory.interfaces.named(name));
            inventory.is_blind || named.any(|it| ifindexes.contains(&it.ifindex))
        };
        self.reported.retain(exists);
        inventory.cached.splice(..0, self.reported.iter().map(|it| Arc::clone(&it.attachment)));
        inventory
    }

    /// Adds the pods that the previous agent left in the kernel's record.
    pub(crate) fn remember(&mut self, attached: impl IntoIterator<Item = (LocalPod, FoundInterface)>) {
        self.settled = None;
        self.found.extend(attached);
    }

    /// Whether a search for these pods would have the result of the last one.
    pub(crate) fn are_settled(&mut self, pods: &BTreeSet<LocalPod>) -> bool {
        if self.settled.as_ref().is_none_or(|settled| settled.pods != *pods) {
            return false;
        }
        let host = (self.read_host)(Depth::Interfaces);
        !host.is_blind && self.settled.as_ref().is_some_and(|settled| settled.interfaces == host.interfaces)
    }

    /// Finds the interfaces of these pods, and forgets all other pods. Returns whether the result differs from the
    /// last one.
    pub(crate) fn find(&mut self, pods: &BTreeSet<LocalPod>, now: Instant) -> bool {
        self.settled = None;
        let (mut assigned, mut listed) = (Assignment::default(), BTreeSet::new());
        // Only the result cache or more can name the interface of a pod that had none before.
        let is_any_new = pods.iter().any(|pod| self.remembered(pod).is_none());
        let depths = [Depth::Interfaces, Depth::Cache, Depth::Everything];
        for depth in depths.into_iter().skip(usize::from(is_any_new)) {
            let inventory = self.inventory(depth);
            self.note_lost(pods, &inventory, now);
            let claimants: Vec<Claimant<'_>> = pods.iter().map(|pod| self.claimant(pod, &inventory)).collect();
            assigned = inventory.assign(&claimants);
            listed = inventory.interfaces.iter().map(|it| it.ifindex).collect();
            if assigned.outcomes.iter().all(Result::is_ok) {
                let is_settled = !inventory.is_blind && assigned.contested.is_empty();
                let Inventory { interfaces, .. } = inventory;
                self.settled = is_settled.then(|| Settled { pods: pods.clone(), interfaces });
                break;
            }
            if depth == Depth::Cache && self.have_just_lost_theirs(pods, &assigned, &inventory, now) {
                break;
            }
        }
        self.listed = listed;
        let (mut found, mut missing) = (BTreeMap::new(), BTreeMap::new());
        let paths: Vec<String> = pods.iter().map(LocalPod::path).collect();
        for (pod, outcome) in pods.iter().zip(assigned.outcomes) {
            match outcome {
                Ok(it) => _ = found.insert(pod.clone(), it),
                Err(error) => _ = missing.insert(pod.clone(), error),
            }
        }
        let contested = assigned.contested.into_iter();
        let contested = contested.filter_map(|(name, pod)| Some((name, paths.get(pod)?.clone()))).collect();
        let new = found.iter().filter(|(pod, found)| self.remembered(pod).is_none_or(|(_, it)| it != *found));
        let attached_at: Vec<SystemTime> = new.filter_map(|(_, found)| found.attached_at).collect();
        self.new.extend(attached_at);
        let changed = (&found, &missing, &contested) != (&self.found, &self.missing, &self.contested);
        self.next_search = self.search_after(&missing, now);
        found.keys().for_each(|pod| _ = self.lost.remove(&pod.identity()));
        (self.found, self.missing, self.contested) = (found, missing, contested);
        changed
    }

    /// Whether all pods without an interface had one until just now, and no interface has come since then but those of
    /// other pods. Nearly always, such a pod has ended, and the API server says so soon. If not, a later search reads
    /// every network namespace of this host.
    fn have_just_lost_theirs(
        &self,
        pods: &BTreeSet<LocalPod>,
        assigned: &Assignment,
        inventory: &Inventory,
        now: Instant,
    ) -> bool {
        // The interface of a record may have gone long before the first search.
        let is_recent = |lost: &LostInterface| {
            lost.listed.contains(&lost.ifindex) && now.saturating_duration_since(lost.at) < SEARCHES.first
        };
        let assigned_ones = assigned.outcomes.iter().flatten().map(|found| found.ifindex).collect::<BTreeSet<u32>>();
        let interfaces = inventory.interfaces.iter().map(|it| it.ifindex);
        let others: BTreeSet<u32> = interfaces.filter(|it| !assigned_ones.contains(it)).collect();
        let has_any_come = |lost: &LostInterface| !others.is_subset(&lost.listed);
        let has_just_lost_its = |pod: &LocalPod| {
            let lost = self.lost.get(&pod.identity());
            lost.is_some_and(|lost| is_recent(lost) && lost.addresses == pod.addresses && !has_any_come(lost))
        };
        let mut missing = pods.iter().zip(&assigned.outcomes).filter(|(_, outcome)| outcome.is_err());
        missing.all(|(pod, _)| has_just_lost_its(pod))
    }

    /// Finds the interface of one more pod. `None` if it is not found, or if the interfaces of other pods have changed.
    pub(crate) fn find_also(&mut self, pod: &LocalPod, now: Instant) -> Option<FoundInterface> {
        let before = (self.found.clone(), self.missing.clone(), self.contested.clone());
        let pods = self.found.keys().chain(self.missing.keys()).chain([pod]).cloned().collect();
        self.find(&pods, now);
        let found = self.found.get(pod)?;
        let mut others = self.found.clone();
        others.remove(pod);
        (before == (others, self.missing.clone(), self.contested.clone())).then(|| found.clone())
    }

    /// Forgets a pod that is gone.
    pub(crate) fn forget(&mut self, pod: &LocalPod) {
        self.settled = None;
        let is_other = |it: &LocalPod| it.identity() != pod.identity();
        self.found.retain(|it, _| is_other(it));
        self.missing.retain(|it, _| is_other(it));
        self.lost.remove(&pod.identity());
    }

    /// The result of the last search.
    pub(crate) fn result(&self) -> SearchResult {
        let contested_pods = self.missing.iter().filter(|(_, why)| why.is_contested).map(|(pod, _)| pod.clone());
        SearchResult {
            found: self.found.clone(),
            contested: self.contested.clone(),
            contested_pods: contested_pods.collect(),
        }
    }

    /// What later searches have changed.
    pub(crate) fn changes_since(&self, before: &SearchResult) -> InterfaceChanges {
        let result = self.result();
        if result == *before {
            return InterfaceChanges::None;
        }
        let SearchResult { found, .. } = &result;
        let lost: Vec<LocalPod> = before.found.keys().filter(|pod| !found.contains_key(pod)).cloned().collect();
        let are_others_same = found.iter().all(|(pod, at)| before.found.get(pod) == Some(at));
        let is_any_contested = !result.contested.is_empty() || result.contested_pods != before.contested_pods;
        let are_missing = lost.iter().all(|pod| self.missing.contains_key(pod));
        match are_others_same && are_missing && !is_any_contested && !lost.is_empty() {
            true => InterfaceChanges::Lost(lost),
            false => InterfaceChanges::Others,
        }
    }

    fn remembered(&self, pod: &LocalPod) -> Option<(&LocalPod, &FoundInterface)> {
        let first = LocalPod { addresses: Arc::default(), static_uid: None, ..pod.clone() };
        let (known, found) = self.found.range(first..).next()?;
        let is_same = (&known.namespace, &known.name, &known.uid) == (&pod.namespace, &pod.name, &pod.uid);
        is_same.then_some((known, found))
    }

    /// Notes the pods that had an interface until now and have none any more.
    fn note_lost(&mut self, pods: &BTreeSet<LocalPod>, inventory: &Inventory, now: Instant) {
        let mut gone = self.found.iter().filter(|(_, found)| !inventory.has(found)).peekable();
        if gone.peek().is_none() && self.lost.is_empty() {
            return;
        }
        let identities: BTreeSet<PodIdentity> = pods.iter().map(LocalPod::identity).collect();
        for (pod, found) in gone.filter(|(pod, _)| identities.contains(&pod.identity())) {
            self.lost.entry(pod.identity()).or_insert_with(|| LostInterface {
                ifindex: found.ifindex,
                at: now,
                addresses: pod.addresses.clone(),
                listed: self.listed.clone(),
            });
        }
        self.lost.retain(|identity, _| identities.contains(identity));
    }

    /// A pod with other addresses than before is searched again, because its network may have been recreated.
    fn claimant<'p>(&self, pod: &'p LocalPod, inventory: &Inventory) -> Claimant<'p> {
        let shares = |had: &[IpAddr]| {
            had.is_empty() || pod.addresses.is_empty() || had.iter().any(|address| pod.addresses.contains(address))
        };
        let remembered = self.remembered(pod).filter(|(known, found)| shares(&known.addresses) && inventory.has(found));
        let known = remembered.map(|(_, found)| found.clone());
        let has_lost = self.lost.get(&pod.identity()).is_some_and(|lost| shares(&lost.addresses));
        Claimant { pod: pod.searched(), known, has_lost }
    }

    /// The time of the next search for missing pods: soon if a pod is newly missing, else later each time.
    fn search_after(&self, missing: &BTreeMap<LocalPod, NotFound>, now: Instant) -> Option<Backoff> {
        if missing.is_empty() {
            return None;
        }
        let is_new = missing.keys().any(|pod| !self.missing.contains_key(pod));
        Some(Backoff::after(self.next_search.filter(|_| !is_new), now, SEARCHES))
    }

    /// The addresses of those pods that the result cache knows by their UIDs, and whose interfaces exist.
    pub(crate) fn cached_addresses(&mut self, pods: Vec<LocalPod>) -> Vec<CachedAddresses> {
        let inventory = self.inventory(Depth::Cache);
        let addresses = |pod: LocalPod| {
            let addresses = inventory.addresses_of(pod.searched())?.to_vec();
            Some(CachedAddresses { pod, addresses })
        };
        pods.into_iter().filter_map(addresses).collect()
    }

    /// The interfaces that CNI results assign to pods. Results with several veths are left out: they do not say which one
    /// leads to the pod's main interface.
    pub(crate) fn attached_interfaces(&mut self) -> AttachedInterfaces {
        let begun = SystemTime::now();
        let mut inventory = self.inventory(Depth::Cache);
        let present = (!inventory.is_blind).then(|| inventory.interfaces.iter().map(|it| it.ifindex).collect());
        let is_complete = inventory.unread.is_empty();
        let cached = std::mem::take(&mut inventory.cached);
        let at = |attachment: Arc<Attachment>| {
            let &[found] = inventory.veths_of(&attachment).as_slice() else { return None };
            Some(InterfaceOfPod { ifindex: found.ifindex, name: found.name.clone(), attachment })
        };
        AttachedInterfaces { of_pods: cached.into_iter().filter_map(at).collect(), present, is_complete, begun }
    }

    /// Makes the next search due: after a change on the host, missing interfaces may exist.
    pub(crate) fn hurry(&mut self, now: Instant) {
        let Some(due) = self.due() else { return };
        let soonest = self.hurried.map_or(now, |last| now.max(last + BETWEEN_HURRIES));
        if soonest < due {
            self.hurried = Some(soonest);
        }
        self.next_search = Some(Backoff::at(due.min(soonest), SEARCHES));
    }

    /// Returns the times at which newly found pods were attached to their networks, once for each pod.
    pub(crate) fn take_new(&mut self) -> Vec<SystemTime> {
        std::mem::take(&mut self.new)
    }

    /// The interface of a pod, if it has one now.
    pub(crate) fn interface_of(&mut self, pod: &LocalPod) -> Option<FoundInterface> {
        let (_, found) = self.remembered(pod)?;
        let found = found.clone();
        self.inventory(Depth::Interfaces).has(&found).then_some(found)
    }

    /// Whether the pod was found at this interface.
    pub(crate) fn is_at(&self, pod: &LocalPod, found: &FoundInterface) -> bool {
        self.remembered(pod).is_some_and(|(_, it)| it.ifindex == found.ifindex)
    }

    /// Reads the host's interfaces.
    pub(crate) fn host(&mut self) -> Inventory {
        self.inventory(Depth::Interfaces)
    }

    /// Whether the interface of a pod is not among those of the host any more.
    pub(crate) fn is_any_lost(&self, host: &Inventory) -> bool {
        self.found.values().any(|found| !host.has(found))
    }

    /// When to search again, if a pod is missing.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next_search.map(|search| search.due())
    }

    pub(crate) fn found(&self) -> &BTreeMap<LocalPod, FoundInterface> {
        &self.found
    }

    /// Interfaces that may belong to several pods, each with one of these pods as `namespace/name`.
    pub(crate) fn contested(&self) -> &BTreeMap<String, String> {
        &self.contested
    }

    pub(crate) fn missing(&self) -> &BTreeMap<LocalPod, NotFound> {
        &self.missing
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use weir_runtime::sys::links::NamespaceInterface;

    use super::*;
    use crate::watch::discover::InterfaceSource;

    fn veth(ifindex: u32) -> NamespaceInterface {
        NamespaceInterface { ifindex, name: format!("veth{ifindex}"), kind: "veth".to_owned(), peer: Some(2) }
    }

    fn pod(name: &str) -> LocalPod {
        LocalPod::new("shop", name, Some(name), [IpAddr::from([10, 0, 0, 1])])
    }

    fn at(ifindex: u32) -> FoundInterface {
        let (name, by) = (veth(ifindex).name.into(), InterfaceSource::Record);
        FoundInterface { ifindex, name, by, attached_at: None }
    }

    #[test]
    fn a_search_is_left_out_only_if_nothing_has_changed_that_it_depends_on() {
        let host = Arc::new(Mutex::new(Inventory {
            interfaces: [veth(3), veth(4)].into_iter().collect(),
            ..Inventory::default()
        }));
        let shown = Arc::clone(&host);
        let mut interfaces = PodInterfaces::new(Box::new(move |_| shown.lock().unwrap().clone()));
        interfaces.remember([(pod("web"), at(3))]);
        let (now, web) = (Instant::now(), BTreeSet::from([pod("web")]));
        assert!(!interfaces.are_settled(&web), "there was no search");
        let search = |interfaces: &mut PodInterfaces, pods: &BTreeSet<LocalPod>| {
            interfaces.find(pods, now);
            interfaces.are_settled(pods)
        };
        assert!(search(&mut interfaces, &web));
        assert!(!interfaces.are_settled(&BTreeSet::new()), "other pods");
        let moved = LocalPod { addresses: [IpAddr::from([10, 0, 0, 2])].into(), ..pod("web") };
        assert!(!interfaces.are_settled(&BTreeSet::from([moved])), "another address");
        host.lock().unwrap().interfaces = (3..=5).map(veth).collect();
        assert!(!interfaces.are_settled(&web), "another interface");
        assert!(search(&mut interfaces, &web));
        host.lock().unwrap().is_blind = true;
        assert!(!interfaces.are_settled(&web), "the host cannot be read");
        assert!(!search(&mut interfaces, &web), "nor could it for the last search");
        host.lock().unwrap().is_blind = false;
        assert!(search(&mut interfaces, &web));
        interfaces.remember([(pod("db"), at(4))]);
        assert!(!interfaces.are_settled(&web), "another pod is known");
        assert!(search(&mut interfaces, &web));
        interfaces.forget(&pod("web"));
        assert!(!interfaces.are_settled(&web), "the pod was forgotten");
        assert!(!search(&mut interfaces, &web), "a pod without an interface is searched for again");
    }

    /// Searches on hosts with these interfaces, one after the other, with a pause before each. Returns how deep each
    /// search was, and the missing pods.
    fn searches(left: &[&[u32]], pauses: &[Duration], pods: &[&[LocalPod]]) -> Vec<(Depth, Vec<String>)> {
        let host = Arc::new(Mutex::new((Vec::new(), Depth::Interfaces)));
        let shown = Arc::clone(&host);
        let mut interfaces = PodInterfaces::new(Box::new(move |depth| {
            let (interfaces, last) = &mut *shown.lock().unwrap();
            *last = depth;
            Inventory { interfaces: interfaces.iter().cloned().collect(), ..Inventory::default() }
        }));
        interfaces.remember([(pod("web"), at(3)), (pod("db"), at(4))]);
        let mut now = Instant::now();
        let search = |((left, pause), pods): ((&&[u32], &Duration), &&[LocalPod])| {
            host.lock().unwrap().0 = left.iter().copied().map(veth).collect();
            now += *pause;
            interfaces.find(&pods.iter().cloned().collect(), now);
            (host.lock().unwrap().1, interfaces.missing().keys().map(|it| it.name.to_string()).collect())
        };
        left.iter().zip(pauses).zip(pods).map(search).collect()
    }

    #[test]
    fn a_pod_that_has_just_lost_its_interface_is_not_yet_searched_everywhere() {
        let (both, moved) = (&[pod("db"), pod("web")][..], LocalPod { addresses: Arc::default(), ..pod("web") });
        let searches = |left: &[&[u32]], pause: Duration, last: &[LocalPod]| {
            let pods: Vec<&[LocalPod]> =
                (0..left.len()).map(|at| if at + 1 < left.len() { both } else { last }).collect();
            searches(left, &vec![pause; left.len()], &pods).pop().expect("a search")
        };
        let missing = |depth, names: &[&str]| (depth, names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        let (soon, later) = (SEARCHES.first / 4, SEARCHES.first);
        assert_eq!(searches(&[&[3, 4]], soon, both), missing(Depth::Interfaces, &[]));
        assert_eq!(searches(&[&[3, 4], &[4]], soon, both), missing(Depth::Cache, &["web"]));
        assert_eq!(searches(&[&[3, 4], &[4]], later, both), missing(Depth::Cache, &["web"]), "it may just have gone");
        assert_eq!(searches(&[&[3, 4], &[4], &[4]], soon, both), missing(Depth::Cache, &["web"]));
        assert_eq!(searches(&[&[3, 4], &[4], &[4]], later, both), missing(Depth::Everything, &["web"]));
        assert_eq!(searches(&[&[3, 4], &[4], &[4], &[4], &[4], &[4]], soon, both).0, Depth::Everything, "in the end");
        assert_eq!(searches(&[&[3, 4], &[4], &[]], soon, both), missing(Depth::Cache, &["db", "web"]));
        assert_eq!(searches(&[&[4], &[4]], soon, both), missing(Depth::Everything, &["web"]), "of a record");
        // One pod has just lost its interface, the other one has been missing for longer.
        assert_eq!(searches(&[&[3, 4], &[4], &[]], later, both), missing(Depth::Everything, &["db", "web"]));
        for pause in [soon, later] {
            let it = searches(&[&[3, 4], &[4, 5]], pause, both);
            assert_eq!(it, missing(Depth::Everything, &["web"]), "it may be the pod's");
            for left in [&[4, 5][..], &[4]] {
                let it = searches(&[&[3, 4], left, &[4, 5]], pause, both);
                assert_eq!(it, missing(Depth::Everything, &["web"]), "it may be the pod's, now or later");
            }
            let it = searches(&[&[3, 4], &[4]], pause, &[pod("db"), moved.clone()]);
            assert_eq!(it, missing(Depth::Everything, &["web"]), "moved");
        }
        // The interface of a record may have left long ago: there was no search before.
        assert_eq!(searches(&[&[4]], soon, both), missing(Depth::Everything, &["web"]));
    }

    #[test]
    fn a_generation_depends_on_found_and_contested_interfaces_alone() {
        let why = |reason: &str, is_contested| NotFound { reasons: vec![reason.to_owned()], is_contested };
        let with = |change: &dyn Fn(&mut PodInterfaces)| {
            let mut interfaces = PodInterfaces::new(Box::new(|_| Inventory::default()));
            interfaces.found = BTreeMap::from([(pod("db"), at(4)), (pod("web"), at(3))]);
            interfaces.missing = BTreeMap::from([(pod("cron"), why("none", false))]);
            let before = interfaces.result();
            change(&mut interfaces);
            interfaces.changes_since(&before)
        };
        let lose = |it: &mut PodInterfaces, name: &str, is_contested| {
            it.found.remove(&pod(name));
            it.missing.insert(pod(name), why("gone", is_contested));
        };
        let contest = |it: &mut PodInterfaces| _ = it.contested.insert("veth9".to_owned(), "shop/cron".to_owned());
        let lost = |names: &[&str]| InterfaceChanges::Lost(names.iter().map(|name| pod(name)).collect());
        assert_eq!(with(&|_| {}), InterfaceChanges::None);
        assert_eq!(with(&|it| _ = it.missing.insert(pod("cron"), why("other", false))), InterfaceChanges::None);
        assert_eq!(with(&|it| lose(it, "web", false)), lost(&["web"]));
        assert_eq!(with(&|it| ["db", "web"].iter().for_each(|name| lose(it, name, false))), lost(&["db", "web"]));
        let others: [&dyn Fn(&mut PodInterfaces); 8] = [
            &|it| _ = it.found.insert(pod("cron"), at(5)),
            &|it| _ = it.found.insert(pod("web"), at(5)),
            &|it| _ = it.found.remove(&pod("web")),
            &|it| lose(it, "web", true),
            &|it| _ = it.missing.insert(pod("cron"), why("none", true)),
            &contest,
            &|it| {
                lose(it, "web", false);
                contest(it);
            },
            &|it| {
                lose(it, "web", false);
                _ = it.found.insert(pod("cron"), at(5));
            },
        ];
        for change in others {
            assert_eq!(with(change), InterfaceChanges::Others);
        }
    }
}
