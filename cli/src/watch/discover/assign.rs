//! Interfaces → pods, for all pods of the host at once.
//!
//! Problem: a pod's address says little. A pod with CAP_NET_ADMIN gives its interface any address, and CNI plug-ins give an address to a
//! new pod while the pod that had it before is still known. Strategy: a pod is its UID. What is known by UID (this agent has found the
//! pod there, or a CNI result says so) comes first, and such an interface is never another pod's. Only pods that are left over are
//! looked for by address, and only where the answer is unambiguous: one interface for the pod, and one pod for the interface.
//! Invariants: no interface has two pods, no pod two interfaces. Where it cannot be told, the pods have no interface, the interfaces
//! are contested (the caller closes them), and the other pods are not concerned.

use std::collections::{BTreeMap, BTreeSet};

use weir_runtime::sys::links::Interface;

use super::{Cached, Found, Inventory, NotFound, Wanted, Witness, describe, found, is_veth, list};
/// A pod that wants its interface.
#[derive(Clone, Debug)]
pub(crate) struct Claimant<'p> {
    pub(crate) pod: Wanted<'p>,
    /// Where it was found before, if that interface is there.
    pub(crate) known: Option<Found>,
    /// It was found before with this address, at an interface that has gone. Only a CNI result says where it is now: the address may
    /// be another pod's, which the API has not told of yet.
    pub(crate) has_lost: bool,
}

/// Who has which interface.
#[derive(Debug, Default)]
pub(crate) struct Assignment {
    /// In the order of the claimants.
    pub(crate) outcomes: Vec<Result<Found, NotFound>>,
    /// Interfaces that may be of several pods, and one of these.
    pub(crate) contested: BTreeMap<String, usize>,
}

/// By whom an interface is held: the claimant, and what says so.
type Holders = BTreeMap<u32, (usize, Found)>;

impl Inventory {
    /// The interface of each of these pods.
    pub(crate) fn assign(&self, claimants: &[Claimant<'_>]) -> Assignment {
        let mut reasons: Vec<Vec<String>> = vec![Vec::new(); claimants.len()];
        let mut contested = BTreeMap::new();
        let holders = self.by_uid(claimants, &mut reasons, &mut contested);
        let holders = self.by_address(claimants, holders, &mut reasons, &mut contested);
        let mut found: BTreeMap<usize, Found> = holders.into_values().collect();
        let outcomes = reasons.into_iter().enumerate().map(|(index, mut reasons)| {
            found.remove(&index).ok_or_else(|| {
                reasons.extend(self.unread.iter().map(|unread| format!("not read: {unread}")));
                NotFound { reasons, is_contested: contested.values().any(|it: &BTreeSet<usize>| it.contains(&index)) }
            })
        });
        let outcomes = outcomes.collect();
        let first = |(name, pods): (String, BTreeSet<usize>)| Some((name, pods.first().copied()?));
        Assignment { outcomes, contested: contested.into_iter().filter_map(first).collect() }
    }

    /// Pods whose UID says where they are. Of two that say the same the later CNI result is right: the name of an interface that is
    /// gone comes back, and the result that spoke of it may still be there.
    fn by_uid(
        &self,
        claimants: &[Claimant<'_>],
        reasons: &mut [Vec<String>],
        contested: &mut BTreeMap<String, BTreeSet<usize>>,
    ) -> Holders {
        let mut holders = Holders::new();
        let mut ties: BTreeSet<u32> = BTreeSet::new();
        for (index, claimant) in claimants.iter().enumerate() {
            let found = match self.known_or_cached(claimant) {
                Ok(found) => found,
                Err(reason) => {
                    reasons[index].push(reason);
                    continue;
                }
            };
            let Some((other, held)) = holders.get(&found.ifindex) else {
                holders.insert(found.ifindex, (index, found));
                continue;
            };
            let loser = match found.made.cmp(&held.made) {
                std::cmp::Ordering::Less => index,
                std::cmp::Ordering::Greater => *other,
                std::cmp::Ordering::Equal => {
                    contested.entry(found.name.clone()).or_default().extend([index, *other]);
                    ties.insert(found.ifindex);
                    index
                }
            };
            reasons[loser].push(format!("{} is also another pod's, whose CNI result is no older", found.name));
            if loser != index {
                holders.insert(found.ifindex, (index, found));
            }
        }
        for (_, (index, found)) in holders.extract_if(.., |ifindex, _| ties.contains(ifindex)) {
            reasons[index].push(format!("{} is also another pod's, whose CNI result is no older", found.name));
        }
        holders
    }

    /// What was found before, unless a CNI result since then says otherwise: a pod's network may be made anew.
    fn known_or_cached(&self, claimant: &Claimant<'_>) -> Result<Found, String> {
        let cached = self.by_cache(claimant.pod);
        match (&claimant.known, cached) {
            (Some(known), Ok(cached)) if cached.ifindex != known.ifindex && cached.made > known.made => Ok(cached),
            (Some(known), _) => Ok(known.clone()),
            (None, cached) => cached,
        }
    }

    /// Pods that only their addresses can tell of.
    fn by_address(
        &self,
        claimants: &[Claimant<'_>],
        mut holders: Holders,
        reasons: &mut [Vec<String>],
        contested: &mut BTreeMap<String, BTreeSet<usize>>,
    ) -> Holders {
        let held: BTreeSet<usize> = holders.values().map(|(index, _)| *index).collect();
        let refused: BTreeSet<usize> = contested.values().flatten().copied().collect();
        let mut candidates: BTreeMap<usize, BTreeMap<u32, Found>> = BTreeMap::new();
        let mut wanted_by: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
        for (index, claimant) in claimants.iter().enumerate() {
            if held.contains(&index) || refused.contains(&index) {
                continue;
            }
            let mut own = self.at_addresses(claimant.pod, &mut reasons[index]);
            own.retain(|ifindex, it| {
                !holders.contains_key(ifindex) && !self.is_cached_for_another(&it.name, claimant.pod)
            });
            if !claimant.has_lost {
                own.keys().for_each(|ifindex| _ = wanted_by.entry(*ifindex).or_default().insert(index));
            }
            candidates.insert(index, own);
        }
        for (index, mut own) in candidates {
            let has_lost = claimants[index].has_lost;
            if has_lost {
                own.retain(|ifindex, _| !wanted_by.contains_key(ifindex));
            }
            let is_alone = own.keys().all(|ifindex| wanted_by.get(ifindex).is_none_or(|pods| pods.len() == 1));
            match own.iter().next() {
                Some((ifindex, found)) if own.len() == 1 && is_alone && !has_lost => {
                    holders.insert(*ifindex, (index, found.clone()));
                }
                Some(_) => {
                    let names: Vec<&str> = own.values().map(|it| it.name.as_str()).collect();
                    reasons[index].push(format!("whether {} is its interface cannot be told", names.join(", ")));
                    names.iter().for_each(|name| _ = contested.entry((*name).to_owned()).or_default().insert(index));
                }
                None if has_lost => reasons[index].push("the interface that it had is gone".to_owned()),
                None if reasons[index].len() < 2 => reasons[index].push("its address is another pod's".to_owned()),
                None => {}
            }
        }
        holders
    }

    /// The host's ends of veths that have one of the pod's addresses; if there are none, those that a route to it names.
    fn at_addresses(&self, pod: Wanted<'_>, reasons: &mut Vec<String>) -> BTreeMap<u32, Found> {
        let (mut all, mut reason) = (BTreeMap::new(), "no network namespace has its address".to_owned());
        for (name, namespace) in &self.namespaces {
            let own = namespace.addresses.iter().filter(|(_, address)| pod.addresses.contains(address));
            for inside in own.filter_map(|(at, _)| namespace.interfaces.iter().find(|it| it.ifindex == *at)) {
                match self.host_end(inside) {
                    Some(host) => _ = all.insert(host.ifindex, found(host, Witness::Namespace)),
                    None => reason = format!("in network namespace {name} it has {}", describe(inside)),
                }
            }
        }
        if !all.is_empty() {
            return all;
        }
        reasons.push(reason);
        let mut routes = self.routes.iter().filter(|(address, _)| pod.addresses.contains(address)).peekable();
        if routes.peek().is_none() {
            reasons.push("no route is its own".to_owned());
        }
        for (address, name) in routes {
            match self.interfaces.iter().find(|it| it.name == *name && is_veth(it)) {
                Some(host) => _ = all.insert(host.ifindex, found(host, Witness::Route)),
                None => reasons.push(format!("the route to {address} leads to {name}, which is no veth")),
            }
        }
        all
    }

    /// Both ends have to name each other: a pod chooses the numbers of its own interfaces.
    fn host_end(&self, inside: &Interface) -> Option<&Interface> {
        let names_it = |host: &&Interface| Some(host.ifindex) == inside.peer && host.peer == Some(inside.ifindex);
        self.interfaces.iter().find(|it| is_veth(it) && names_it(it)).filter(|_| is_veth(inside))
    }

    /// Of several results (a sandbox was made anew) the latest one whose interface is there, and that has the pod's addresses.
    fn by_cache(&self, pod: Wanted<'_>) -> Result<Found, String> {
        let mut reason = "the CNI result cache does not know the pod".to_owned();
        let mut latest: Option<Found> = None;
        for cached in self.cached.iter().filter(|cached| cached.is_of(pod)) {
            if !cached.could_have(pod.addresses) {
                reason = format!("its CNI result is of other addresses ({})", list(&cached.addresses));
                continue;
            }
            match self.interface_of(cached) {
                Some(interface) => {
                    let it = Found { made: cached.made, ..found(interface, Witness::Cache) };
                    if latest.as_ref().is_none_or(|latest| latest.made < it.made) {
                        latest = Some(it);
                    }
                }
                None => {
                    let named = cached.host_interfaces.join(", ");
                    reason = format!("its CNI result names no veth that is there ({named})");
                }
            }
        }
        latest.ok_or(reason)
    }

    /// Whether a CNI result says that the interface is another pod's.
    fn is_cached_for_another(&self, name: &str, pod: Wanted<'_>) -> bool {
        let names_it = |cached: &&Cached| self.interface_of(cached).is_some_and(|it| it.name == name);
        self.cached.iter().filter(names_it).any(|cached| !cached.is_of(pod))
    }

    fn interface_of(&self, cached: &Cached) -> Option<&Interface> {
        let mut names = cached.host_interfaces.iter();
        names.find_map(|name| self.interfaces.iter().find(|it| it.name == *name && is_veth(it)))
    }
}
