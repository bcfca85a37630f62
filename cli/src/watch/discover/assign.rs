//! Assigns interfaces to pods, for all pods of the host at once.
//!
//! Problem: a pod's address is weak evidence. A pod with CAP_NET_ADMIN can give its interface any address, and CNI
//! plug-ins may give an address to a new pod while the pod that had it before is still known.
//! Strategy: a pod is identified by its UID. Evidence by UID comes first: this agent found the pod at the interface
//! before, or a CNI result names the pod. Such an interface is never assigned to another pod. Only the remaining pods
//! are searched by address, and only an unambiguous match counts: one interface for the pod, and one pod for the
//! interface.
//! Invariants: no interface has two pods, and no pod has two interfaces. If a match is ambiguous, the pods get no
//! interface, the interfaces are contested (the caller closes them), and other pods are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weir_runtime::sys::links::NamespaceInterface;

use super::{
    Attachment, FoundInterface, HostRoute, InterfaceSource, Inventory, MountedNamespace, NotFound, SearchedPod,
    describe, found, is_veth, list,
};

/// A pod whose interface is searched.
#[derive(Clone, Debug)]
pub(crate) struct Claimant<'p> {
    pub(crate) pod: SearchedPod<'p>,
    /// The interface where the pod was found before, if that interface still exists.
    pub(crate) known: Option<FoundInterface>,
    /// The pod was found before with this address, at an interface that is gone. Only a CNI result can assign a new
    /// interface to it: the address may belong to another pod that the API has not reported yet.
    pub(crate) has_lost: bool,
}

/// The result for all pods: the interface of each, and the contested interfaces.
#[derive(Debug, Default)]
pub(crate) struct Assignment {
    /// The result for each claimant, in the order of the claimants.
    pub(crate) outcomes: Vec<Result<FoundInterface, NotFound>>,
    /// Interfaces that may belong to several pods, each with the index of one of these claimants.
    pub(crate) contested: BTreeMap<String, usize>,
}

/// The CNI results of each pod, by namespace and name: a later pod can have the name of an earlier one.
type CachedByName<'c> = BTreeMap<(&'c str, &'c str), Vec<&'c Attachment>>;

/// The claimants that have an interface, by interface number.
type InterfaceHolders = BTreeMap<u32, InterfaceHolder>;

/// The claimant that has an interface, and the evidence for it.
#[derive(Debug)]
struct InterfaceHolder {
    /// The index of the claimant.
    claimant: usize,
    found: FoundInterface,
}

/// Why a pod does not get an interface that its CNI result names.
fn claimed_by_another(found: &FoundInterface) -> String {
    format!("another pod's CNI result, which is as new or newer, also names {}", found.name)
}

impl Inventory {
    /// Finds the interface of each of these pods.
    pub(crate) fn assign(&self, claimants: &[Claimant<'_>]) -> Assignment {
        let mut reasons: Vec<Vec<String>> = vec![Vec::new(); claimants.len()];
        let mut contested = BTreeMap::new();
        let holders = self.by_uid(claimants, &mut reasons, &mut contested);
        let holders = self.by_address(claimants, holders, &mut reasons, &mut contested);
        let mut found: BTreeMap<usize, FoundInterface> =
            holders.into_values().map(|it| (it.claimant, it.found)).collect();
        let outcomes = reasons.into_iter().enumerate().map(|(index, mut reasons)| {
            found.remove(&index).ok_or_else(|| {
                reasons.extend(self.unread.iter().map(|unread| format!("cannot read {unread}")));
                NotFound { reasons, is_contested: contested.values().any(|it: &BTreeSet<usize>| it.contains(&index)) }
            })
        });
        let outcomes = outcomes.collect();
        let first = |(name, pods): (String, BTreeSet<usize>)| Some((name, pods.first().copied()?));
        Assignment { outcomes, contested: contested.into_iter().filter_map(first).collect() }
    }

    /// Assigns interfaces by UID. If two pods claim the same interface, the later CNI result wins: a new interface may
    /// get the name of one that is gone while the old result still exists.
    fn by_uid(
        &self,
        claimants: &[Claimant<'_>],
        reasons: &mut [Vec<String>],
        contested: &mut BTreeMap<String, BTreeSet<usize>>,
    ) -> InterfaceHolders {
        let mut holders = InterfaceHolders::new();
        let mut ties: BTreeSet<u32> = BTreeSet::new();
        let mut cached = CachedByName::new();
        for it in &self.cached {
            cached.entry((&it.namespace, &it.name)).or_default().push(it);
        }
        for (index, claimant) in claimants.iter().enumerate() {
            let found = match self.known_or_cached(claimant, &cached) {
                Ok(found) => found,
                Err(reason) => {
                    reasons[index].push(reason);
                    continue;
                }
            };
            let Some(holder) = holders.get(&found.ifindex) else {
                holders.insert(found.ifindex, InterfaceHolder { claimant: index, found });
                continue;
            };
            let loser = match found.attached_at.cmp(&holder.found.attached_at) {
                std::cmp::Ordering::Less => index,
                std::cmp::Ordering::Greater => holder.claimant,
                std::cmp::Ordering::Equal => {
                    contested.entry(found.name.to_string()).or_default().extend([index, holder.claimant]);
                    ties.insert(found.ifindex);
                    index
                }
            };
            reasons[loser].push(claimed_by_another(&found));
            if loser != index {
                holders.insert(found.ifindex, InterfaceHolder { claimant: index, found });
            }
        }
        for (_, tied) in holders.extract_if(.., |ifindex, _| ties.contains(ifindex)) {
            reasons[tied.claimant].push(claimed_by_another(&tied.found));
        }
        holders
    }

    /// The interface that was found before, unless a later CNI result names another one: a pod's network may be
    /// recreated.
    fn known_or_cached(&self, claimant: &Claimant<'_>, cached: &CachedByName<'_>) -> Result<FoundInterface, String> {
        let cached = self.by_cache(claimant.pod, cached);
        match (&claimant.known, cached) {
            (Some(known), Ok(cached)) if cached.ifindex != known.ifindex && cached.attached_at > known.attached_at => {
                Ok(cached)
            }
            (Some(known), _) => Ok(known.clone()),
            (None, cached) => cached,
        }
    }

    /// Assigns interfaces by address to the pods that have none yet.
    fn by_address(
        &self,
        claimants: &[Claimant<'_>],
        mut holders: InterfaceHolders,
        reasons: &mut [Vec<String>],
        contested: &mut BTreeMap<String, BTreeSet<usize>>,
    ) -> InterfaceHolders {
        let held: BTreeSet<usize> = holders.values().map(|it| it.claimant).collect();
        let refused: BTreeSet<usize> = contested.values().flatten().copied().collect();
        let mut candidates: BTreeMap<usize, BTreeMap<u32, FoundInterface>> = BTreeMap::new();
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
                    holders.insert(*ifindex, InterfaceHolder { claimant: index, found: found.clone() });
                }
                Some(_) => {
                    let names: Vec<&str> = own.values().map(|it| &*it.name).collect();
                    reasons[index].push(format!("{} may be the pod's interface or another pod's", names.join(", ")));
                    names.iter().for_each(|name| _ = contested.entry((*name).to_owned()).or_default().insert(index));
                }
                None if has_lost => reasons[index].push("the pod's previous interface is gone".to_owned()),
                None if reasons[index].len() < 2 => {
                    reasons[index].push("the interface with its address belongs to another pod".to_owned())
                }
                None => {}
            }
        }
        holders
    }

    /// The host ends of veths whose pod ends have one of the pod's addresses. If no veth has one, the veths that routes
    /// to these addresses name.
    fn at_addresses(&self, pod: SearchedPod<'_>, reasons: &mut Vec<String>) -> BTreeMap<u32, FoundInterface> {
        let (mut all, mut reason) = (BTreeMap::new(), "no network namespace has the pod's address".to_owned());
        for MountedNamespace { name, content } in &self.namespaces {
            let own = content.addresses.iter().filter(|(_, address)| pod.addresses.contains(address));
            for inside in own.filter_map(|(at, _)| content.interfaces.iter().find(|it| it.ifindex == *at)) {
                match self.host_end(inside) {
                    Some(host) => _ = all.insert(host.ifindex, found(host, InterfaceSource::Namespace)),
                    None => reason = format!("in network namespace {name} the pod's interface is {}", describe(inside)),
                }
            }
        }
        if !all.is_empty() {
            return all;
        }
        reasons.push(reason);
        let mut routes = self.routes.iter().filter(|it| pod.addresses.contains(&it.address)).peekable();
        if routes.peek().is_none() {
            reasons.push("no route leads to its address alone".to_owned());
        }
        for HostRoute { address, interface } in routes {
            match self.interfaces.named(interface).filter(|it| is_veth(it)) {
                Some(host) => _ = all.insert(host.ifindex, found(host, InterfaceSource::Route)),
                None => reasons.push(format!("the route to {address} leads to {interface}, which is not a veth")),
            }
        }
        all
    }

    /// The host end of a pod's veth. Both ends must name each other, because a pod chooses the numbers of its own
    /// interfaces.
    fn host_end(&self, inside: &NamespaceInterface) -> Option<&NamespaceInterface> {
        let names_it =
            |host: &&NamespaceInterface| Some(host.ifindex) == inside.peer && host.peer == Some(inside.ifindex);
        self.interfaces.iter().find(|it| is_veth(it) && names_it(it)).filter(|_| is_veth(inside))
    }

    /// The interface that the pod's CNI results name. There are several results if the sandbox was recreated. The
    /// latest one counts whose interface exists and whose addresses match the pod's.
    fn by_cache(&self, pod: SearchedPod<'_>, cached: &CachedByName<'_>) -> Result<FoundInterface, String> {
        let mut reason = "the CNI result cache has no result for the pod".to_owned();
        let mut latest: Option<FoundInterface> = None;
        let of_this_name = cached.get(&(pod.namespace, pod.name)).into_iter().flatten();
        for cached in of_this_name.filter(|cached| cached.is_of(pod)) {
            if !cached.could_have(pod.addresses) {
                reason = format!("its CNI result has other addresses ({})", list(&cached.addresses));
                continue;
            }
            match self.veths_of(cached).as_slice() {
                &[interface] => {
                    let it =
                        FoundInterface { attached_at: cached.attached_at, ..found(interface, InterfaceSource::Cache) };
                    if latest.as_ref().is_none_or(|latest| latest.attached_at < it.attached_at) {
                        latest = Some(it);
                    }
                }
                [] if cached.host_interfaces.is_empty() => {
                    reason = "its CNI result names no interface of the host".to_owned();
                }
                [] => {
                    let named = cached.host_interfaces.join(", ");
                    reason = format!("its CNI result names no veth that exists ({named})");
                }
                // Amazon's plug-in can give a pod several interfaces in one call. The result does not say which veth
                // leads to the main one, so the pod's network namespace has to.
                several => {
                    let named = several.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
                    reason = format!("its CNI result names several veths ({named})");
                }
            }
        }
        latest.ok_or(reason)
    }

    /// Whether a CNI result says that the interface belongs to another pod.
    pub(crate) fn is_cached_for_another(&self, name: &str, pod: SearchedPod<'_>) -> bool {
        let names_it = |cached: &&Arc<Attachment>| self.veths_of(cached).iter().any(|it| it.name == name);
        self.cached.iter().filter(names_it).any(|cached| !cached.is_of(pod))
    }
}
