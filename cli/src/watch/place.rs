//! Which interface each local pod has, remembered and looked for again.
//!
//! Strategy: what was found is believed as long as that interface is there; only for pods that are not remembered the result cache is
//! read, and only for those that are not in it every namespace. Invariant: a pod is its UID and its addresses, never its name
//! alone: names come back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use weir_compiler::index::Key;

use super::discover::{Cached, Depth, Found, Inventory, NotFound, Wanted};

/// Waits between searches.
const FIRST_WAIT: Duration = Duration::from_millis(100);
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

    fn wanted(&self) -> Wanted<'_> {
        let Self { namespace, name, uid, addresses } = self;
        Wanted { uid: uid.as_deref(), namespace, name, addresses }
    }
}

/// Looks at the host.
pub(crate) type Look = dyn FnMut(Depth) -> Inventory + Send;

/// What is known of the local pods' interfaces.
pub(crate) struct Places {
    look: Box<Look>,
    /// What the CNI plug-in has said, as if the result cache had it already.
    told: Vec<Cached>,
    found: BTreeMap<Pod, Found>,
    missing: BTreeMap<Pod, NotFound>,
    /// When those were attached to their networks that were found since they were asked for.
    fresh: Vec<SystemTime>,
    /// When to look for those again, and how long to wait after that.
    again: Option<(Instant, Duration)>,
}

impl Places {
    pub(crate) fn new(look: Box<Look>) -> Self {
        Self {
            look,
            told: Vec::new(),
            found: BTreeMap::new(),
            missing: BTreeMap::new(),
            fresh: Vec::new(),
            again: None,
        }
    }

    /// The CNI plug-in has attached a pod to its network.
    pub(crate) fn tell(&mut self, attached: Cached) {
        self.told.retain(|it| (&it.namespace, &it.name) != (&attached.namespace, &attached.name));
        self.told.push(attached);
    }

    fn look(&mut self, depth: Depth) -> Inventory {
        let mut inventory = (self.look)(depth);
        let is_there = |name: &String| inventory.interfaces.iter().any(|it| it.name == *name);
        self.told.retain(|told| told.host_interfaces.iter().any(is_there));
        inventory.cached.splice(..0, self.told.iter().cloned());
        inventory
    }

    /// Finds the interfaces of these pods, and forgets all others. Says whether anything is otherwise than before.
    pub(crate) fn find(&mut self, pods: &BTreeSet<Pod>, now: Instant) -> bool {
        let mut inventory = self.look(Depth::Interfaces);
        let mut depth = Depth::Interfaces;
        let (mut found, mut missing) = (BTreeMap::new(), BTreeMap::new());
        for pod in pods {
            if let Some(known) = self.found.get(pod).filter(|known| inventory.has(known)) {
                found.insert(pod.clone(), known.clone());
                continue;
            }
            let result = loop {
                match inventory.find(pod.wanted()) {
                    Err(_) if depth < Depth::Everything => {
                        depth = if depth == Depth::Interfaces { Depth::Cache } else { Depth::Everything };
                        inventory = self.look(depth);
                    }
                    result => break result,
                }
            };
            match result {
                Ok(it) => _ = found.insert(pod.clone(), it),
                Err(error) => _ = missing.insert(pod.clone(), error),
            }
        }
        let new = found.iter().filter(|(pod, found)| self.found.get(*pod) != Some(*found));
        self.fresh.extend(new.filter_map(|(_, found)| found.made));
        let changed = found != self.found || missing != self.missing;
        self.again = self.next_search(&missing, now);
        (self.found, self.missing) = (found, missing);
        changed
    }

    /// Soon if somebody is newly missing, else later each time.
    fn next_search(&self, missing: &BTreeMap<Pod, NotFound>, now: Instant) -> Option<(Instant, Duration)> {
        if missing.is_empty() {
            return None;
        }
        let is_new = missing.keys().any(|pod| !self.missing.contains_key(pod));
        let wait = self.again.filter(|_| !is_new).map_or(FIRST_WAIT, |(_, wait)| wait);
        Some((now + wait, (wait * 2).min(LONGEST_WAIT)))
    }

    /// Of these pods the ones that the result cache knows by their UIDs, at interfaces that are there, with their addresses.
    pub(crate) fn attached(&mut self, pods: Vec<(Key, Option<String>)>) -> Vec<(Key, Option<String>, Vec<IpAddr>)> {
        let inventory = self.look(Depth::Cache);
        let addresses = |(key, uid): (Key, Option<String>)| {
            let addresses = inventory.attached_as(uid.as_deref()?)?.to_vec();
            Some((key, uid, addresses))
        };
        pods.into_iter().filter_map(addresses).collect()
    }

    /// See there.
    pub(crate) fn take_fresh(&mut self) -> Vec<SystemTime> {
        std::mem::take(&mut self.fresh)
    }

    /// The interface of a pod of this name, if it has one now.
    pub(crate) fn interface_of(&mut self, namespace: &str, name: &str) -> Option<Found> {
        let mut found = self.found.iter().filter(|(pod, _)| pod.namespace == namespace && pod.name == name);
        let (_, found) = found.next()?;
        let found = found.clone();
        self.look(Depth::Interfaces).has(&found).then_some(found)
    }

    /// The host's interfaces; and whether one of those that were found is no longer among them.
    pub(crate) fn check(&mut self) -> (Inventory, bool) {
        let now = self.look(Depth::Interfaces);
        let lost = self.found.values().any(|found| !now.has(found));
        (now, lost)
    }

    /// When to look again, if somebody is missing.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.again.map(|(at, _)| at)
    }

    pub(crate) fn found(&self) -> &BTreeMap<Pod, Found> {
        &self.found
    }

    pub(crate) fn missing(&self) -> &BTreeMap<Pod, NotFound> {
        &self.missing
    }
}
