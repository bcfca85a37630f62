//! Groups of pods that no selector distinguishes.
//!
//! A group is all pods (and workloads) of one namespace whose labels agree in every key that any selector mentions: the
//! 300 pods of a StatefulSet are one group, whatever their pod names.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Range;

use super::lookup::MentionedLabels;
use weir_model::{Cluster, Endpoint, EndpointId, HostNetworkPods, LabelSetId, NamespaceId, Standing};
use weir_objects::address::{Family, Prefix};
use weir_objects::k8s::{NamedPort, Protocol};

/// A group, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GroupId(pub(super) u32);

impl GroupId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Pods of one namespace that no selector distinguishes.
#[derive(Debug)]
pub(super) struct PodGroup {
    /// Their namespace.
    pub(super) namespace: NamespaceId,
    /// The labels of the first pod. The others have the same labels as far as any selector can see.
    pub(super) labels: LabelSetId,
    /// The first by name.
    pub(super) first: EndpointId,
    /// Another pod, if there is one.
    pub(super) second: Option<EndpointId>,
    /// The number of pods.
    pub(super) pods: usize,
    /// The named ports that any of them has.
    pub(super) ports: BTreeSet<NamedPort>,
    reach: AddressSpan,
}

impl PodGroup {
    fn new(id: EndpointId, endpoint: &Endpoint) -> Self {
        let (namespace, labels) = (endpoint.namespace, endpoint.labels);
        Self {
            namespace,
            labels,
            first: id,
            second: None,
            pods: 0,
            ports: BTreeSet::new(),
            reach: AddressSpan::default(),
        }
    }

    fn add(&mut self, id: EndpointId, endpoint: &Endpoint) {
        self.pods += 1;
        if id != self.first && self.second.is_none() {
            self.second = Some(id);
        }
        for port in endpoint.named_ports.iter() {
            if !self.ports.contains(port) {
                self.ports.insert(port.clone());
            }
        }
        self.reach.add(&endpoint.addresses);
    }

    /// Whether one of them has a port of this name and protocol.
    pub(super) fn has_port(&self, name: &str, protocol: Protocol) -> bool {
        self.ports.iter().any(|port| port.name == name && port.protocol == protocol)
    }

    /// False if certainly none of them has an address in the block.
    pub(super) fn may_be_in(&self, cidr: Prefix, except: &[Prefix]) -> bool {
        self.reach.unaddressed || self.reach.meets(cidr, except)
    }
}

/// The address ranges from the lowest to the highest address of a group's pods.
#[derive(Debug, Default)]
struct AddressSpan {
    v4: Option<(IpAddr, IpAddr)>,
    v6: Option<(IpAddr, IpAddr)>,
    /// Whether one of the pods has no address yet: it may get any address.
    unaddressed: bool,
}

impl AddressSpan {
    fn add(&mut self, addresses: &[IpAddr]) {
        self.unaddressed |= addresses.is_empty();
        for address in addresses {
            let range = match Family::of(*address) {
                Family::V4 => &mut self.v4,
                Family::V6 => &mut self.v6,
            };
            let (first, last) = range.unwrap_or((*address, *address));
            *range = Some((first.min(*address), last.max(*address)));
        }
    }

    fn meets(&self, cidr: Prefix, except: &[Prefix]) -> bool {
        let range = match cidr.family() {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        };
        range.is_some_and(|(first, last)| {
            let overlaps = cidr.contains(first) || (first <= cidr.address() && cidr.address() <= last);
            overlaps && !except.iter().any(|hole| hole.contains(first) && hole.contains(last))
        })
    }
}

/// All groups, and the range of groups of each namespace.
#[derive(Debug)]
pub(super) struct PodGroups {
    /// Invariant: sorted by namespace, then by the first of their pods.
    pub(super) all: Vec<PodGroup>,
    ranges: Vec<Range<u32>>,
    /// Pods with hostNetwork: policies ignore them.
    pub(super) on_host: Vec<EndpointId>,
    /// The group of each endpoint; `None` for pods with hostNetwork.
    pub(super) of_endpoint: Vec<Option<GroupId>>,
}

impl PodGroups {
    /// The groups of every endpoint that policies could select, now or when it runs. Finished pods are included,
    /// because pods like them may run again.
    pub(super) fn new(cluster: &Cluster, wanted: &MentionedLabels<'_>) -> Self {
        let mut all: Vec<PodGroup> = Vec::new();
        let mut on_host = Vec::new();
        let mut of_endpoint = vec![None; cluster.endpoints.len()];
        let mut kinds = Kinds::default();
        let mut known: HashMap<(NamespaceId, u32), usize> = HashMap::new();
        for (index, endpoint) in cluster.endpoints.iter().enumerate() {
            let id = EndpointId(index as u32);
            if is_on_host(cluster, endpoint) {
                on_host.push(id);
                continue;
            }
            let kind = kinds.of(cluster, wanted, endpoint.labels);
            let group = *known.entry((endpoint.namespace, kind)).or_insert_with(|| {
                all.push(PodGroup::new(id, endpoint));
                all.len() - 1
            });
            all[group].add(id, endpoint);
            of_endpoint[index] = Some(GroupId(group as u32));
        }
        let ranges = (0..cluster.namespaces.len() as u32).map(|namespace| {
            let start = all.partition_point(|group| group.namespace.0 < namespace) as u32;
            start..all.partition_point(|group| group.namespace.0 <= namespace) as u32
        });
        let ranges = ranges.collect();
        Self { all, ranges, on_host, of_endpoint }
    }

    /// The numbers of the groups of a namespace.
    pub(super) fn range(&self, namespace: NamespaceId) -> Range<u32> {
        self.ranges.get(namespace.index()).cloned().unwrap_or_default()
    }
}

/// Whether policies ignore an endpoint because it uses its node's network.
pub(super) fn is_on_host(cluster: &Cluster, endpoint: &Endpoint) -> bool {
    endpoint.standing == Standing::HostNetwork && cluster.assume.hostnetwork_pods == HostNetworkPods::Node
}

/// Numbers for label sets; sets that no selector distinguishes get the same number.
#[derive(Default)]
struct Kinds<'c> {
    by_set: HashMap<LabelSetId, u32>,
    by_visible: HashMap<Vec<(&'c str, &'c str)>, u32>,
}

impl<'c> Kinds<'c> {
    fn of(&mut self, cluster: &'c Cluster, wanted: &MentionedLabels<'_>, labels: LabelSetId) -> u32 {
        let Self { by_set, by_visible } = self;
        *by_set.entry(labels).or_insert_with(|| {
            let next = by_visible.len() as u32;
            *by_visible.entry(wanted.visible(cluster.labels.labels(labels))).or_insert(next)
        })
    }
}
