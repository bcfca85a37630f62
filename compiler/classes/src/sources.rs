//! The objects behind the parts of tables that become instructions: cuts between ports, and single addresses.
//!
//! If several objects have the same effect, the first policy (in the order of namespaces and names) is named, so that
//! the result does not depend on the order of the input.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::PeerClass;
use super::addresses::SingleAddress;
use super::peers::Peers;
use super::ports::{PortSpecs, SpecUse};
use super::predicates::{Predicate, RulePredicates, TermOrigins};
use super::vips::ServiceVip;
use weir_model::{Cluster, Direction, NamespaceId, Policy, TierPolicy, TierRule, id, rule_path};
use weir_objects::address::Family;
use weir_objects::origin::{FieldOrigin, FieldPath, ObjectId};

id!(/// An object field that instructions can come from. Prints as `s3`.
    SourceId, "s");

/// The most single addresses of a family that can become compares; larger tables have no instructions.
pub const MOST_COMPARES: usize = 16;

/// The origins of the parts of tables that can become instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The position in the input for each [`SourceId`].
    pub origins: Vec<FieldOrigin>,
    /// Ports at which a range begins or after which one ends, by protocol number and port.
    pub cuts: BTreeMap<(u8, u32), SourceId>,
    /// Single addresses, of families with at most [`MOST_COMPARES`] of them.
    pub addresses: BTreeMap<IpAddr, SourceId>,
}

/// Origins, numbered; each is stored once.
#[derive(Default)]
struct Numbers(HashMap<FieldOrigin, SourceId>);

impl Numbers {
    fn add(&mut self, origins: &mut Vec<FieldOrigin>, origin: FieldOrigin) -> SourceId {
        *self.0.entry(origin).or_insert_with_key(|origin| {
            origins.push(origin.clone());
            SourceId(origins.len() as u32 - 1)
        })
    }
}

/// A rule, with the origins of its peers and ports.
#[derive(Clone, Copy)]
pub(super) struct RulePlace<'a> {
    object: ObjectId,
    /// The namespace of the policy; `None` if it is cluster-wide.
    pub(super) namespace: Option<NamespaceId>,
    pub(super) direction: Direction,
    rule: usize,
    /// The field of the rule that has its ports.
    ports: &'static str,
    /// For each port, the index of its field; empty if it is the index of the port.
    port_fields: &'a [u32],
}

impl<'a> RulePlace<'a> {
    pub(super) fn of_policy(policy: &Policy, direction: Direction, rule: usize) -> Self {
        let namespace = Some(policy.namespace);
        Self { object: policy.object, namespace, direction, rule, ports: "ports", port_fields: &[] }
    }

    pub(super) fn of_tier(policy: &TierPolicy, direction: Direction, rule: usize, of_rule: &'a TierRule) -> Self {
        let (ports, port_fields) = (policy.kind.ports_field(), &of_rule.port_fields[..]);
        Self { object: policy.object, namespace: None, direction, rule, ports, port_fields }
    }

    /// `spec.ingress[0].from[2]`
    pub(super) fn peer(self, index: usize) -> FieldOrigin {
        let field = if self.direction == Direction::Ingress { "from" } else { "to" };
        FieldOrigin::new(self.object, rule_path(self.direction, self.rule).field(field).index(index))
    }

    /// `spec.ingress[0].ports[2]`
    pub(super) fn port(self, index: usize) -> FieldOrigin {
        let field = self.port_fields.get(index).map_or(index, |field| *field as usize);
        FieldOrigin::new(self.object, rule_path(self.direction, self.rule).field(self.ports).index(field))
    }
}

pub(super) fn of(
    cluster: &Cluster,
    rules: &RulePredicates,
    origins: &TermOrigins,
    ports: &PortSpecs,
    peers: &Peers,
) -> Sources {
    let (mut sources, mut numbers) = (Sources::default(), Numbers::default());
    // Ports are in the order of ranges. For each cut, the first range that begins or ends there gives the origin.
    for (spec, SpecUse { origin, .. }) in ports {
        let protocol = spec.protocol.number();
        let mut source = None;
        for port in [u32::from(spec.first), u32::from(spec.last) + 1] {
            if let Entry::Vacant(place) = sources.cuts.entry((protocol, port)) {
                let source = *source.get_or_insert_with(|| numbers.add(&mut sources.origins, origin.clone()));
                place.insert(source);
            }
        }
    }
    let finder = SourceFinder { cluster, rules, origins, vips: &peers.vips };
    for family in [Family::V4, Family::V6] {
        let of_family = peers.addresses.singles(family);
        // Larger tables do not become instructions, so nothing asks for their origins. For a list of a million
        // addresses that would be a million paths.
        if of_family.len() > MOST_COMPARES {
            continue;
        }
        for SingleAddress { address, peer, .. } in of_family.iter().copied() {
            if let Some(origin) = finder.address(address, &peers.list[peer.index()]) {
                let source = numbers.add(&mut sources.origins, origin);
                sources.addresses.insert(address, source);
            }
        }
    }
    sources
}

struct SourceFinder<'a> {
    cluster: &'a Cluster,
    rules: &'a RulePredicates,
    origins: &'a TermOrigins,
    vips: &'a [ServiceVip],
}

impl SourceFinder<'_> {
    /// The origin of a single address: a rule or list that mentions it; otherwise the service or node that has the
    /// address, or the pod that names it as `hostIP`.
    fn address(&self, address: IpAddr, peer: &PeerClass) -> Option<FieldOrigin> {
        let vip = peer.vip.and_then(|vip| self.vips.get(vip as usize)?.ports.first());
        let spoken = || peer.predicates.first().map(|id| self.predicate(id.index(), address));
        let named = || peer.named.first().map(|(name, _)| self.origins.egress_names[*name as usize].clone());
        let service = || vip.map(|it| FieldOrigin::new(self.cluster.services[it.service.index()].object, root()));
        let node = || peer.nodes.first().and_then(|id| self.cluster.nodes[id.index()].object);
        let host_port = peer.host_ports.first().and_then(|index| self.cluster.host_ports.get(*index as usize));
        let pod = || host_port.map(|it| self.cluster.endpoints[it.pod.index()].object);
        // The rule or list first: the author of a policy can change that line. A service or a node at the address is
        // only the reason why the address has a class of its own.
        spoken()
            .or_else(named)
            .or_else(service)
            .or_else(|| node().or_else(pod).map(|object| FieldOrigin::new(object, root())))
    }

    fn predicate(&self, index: usize, address: IpAddr) -> FieldOrigin {
        let origin = &self.origins.predicates[index];
        // A list may have a million entries, so its origin alone would not help. The entry with the address does.
        let Predicate::List(list) = self.rules.predicates[index] else { return origin.clone() };
        let entry = self.cluster.list_entry(list, address).map(|at| self.cluster.lists[list.index()].entries[at]);
        let path = |position: u32| origin.path.field("spec").field("cidrs").index(position as usize);
        entry.map_or_else(|| origin.clone(), |entry| FieldOrigin::new(origin.object, path(entry.position)))
    }
}

fn root() -> FieldPath {
    FieldPath::root()
}
