//! What the manifest says of a cluster and its classes.

use std::collections::BTreeMap;

use super::{Description, NamedEndpoint, RowProvenance};
use crate::classify::{AtomId, Classes, PeerId, SubjectId};
use crate::ebpf::target::Target;
use crate::image::EndpointEntry;
use crate::model::eval::RuleId;
use crate::model::{
    Cluster, Direction, Established, HostNetworkPods, Icmp, IpBlockPods, NamedPortTwice, ServiceAddress,
};

/// Everything but the inputs, the node and the structures, which the caller adds.
pub fn describe(cluster: &Cluster, classes: &Classes, target: Target) -> Description {
    let mut rules = Rules { cluster, names: Vec::new(), numbers: BTreeMap::new() };
    let provenance = provenance(classes, &mut rules);
    Description {
        inputs: Vec::new(),
        target,
        node: None,
        counts: counts(cluster, classes),
        structures: Vec::new(),
        assumptions: assumptions(cluster),
        rules: rules.names,
        provenance,
    }
}

impl NamedEndpoint {
    /// A local endpoint with its names.
    pub fn new(cluster: &Cluster, entry: &EndpointEntry) -> Self {
        let endpoint = &cluster.endpoints[entry.endpoint.index()];
        let namespace = cluster.namespaces[endpoint.namespace.index()].name.clone();
        Self { namespace, name: endpoint.name.clone(), value: entry.value.clone() }
    }
}

fn counts(cluster: &Cluster, classes: &Classes) -> Vec<(String, u64)> {
    let entries = |rows: &[crate::classify::Row]| rows.iter().map(|row| row.entries.len()).sum::<usize>();
    let counts = [
        ("policies", cluster.policies.len()),
        ("lists", cluster.lists.len()),
        ("endpoints", cluster.endpoints.len()),
        ("local_endpoints", classes.subject_of.len()),
        ("subject_classes", classes.subjects.len()),
        ("peer_classes", classes.peers.len()),
        ("port_atoms", classes.atoms.count()),
        ("atom_sets", classes.atom_sets.len()),
        ("ingress_entries", entries(&classes.ingress)),
        ("egress_entries", entries(&classes.egress)),
    ];
    counts.map(|(name, count)| (name.to_owned(), count as u64)).to_vec()
}

fn assumptions(cluster: &Cluster) -> Vec<(String, String)> {
    let assume = &cluster.assume;
    let pairs = [
        (IpBlockPods::KEY, IpBlockPods::VALUES[assume.ipblock_pods as usize]),
        (HostNetworkPods::KEY, HostNetworkPods::VALUES[assume.hostnetwork_pods as usize]),
        (Icmp::KEY, Icmp::VALUES[assume.icmp as usize]),
        (NamedPortTwice::KEY, NamedPortTwice::VALUES[assume.named_port_twice as usize]),
        (ServiceAddress::KEY, ServiceAddress::VALUES[assume.service_address as usize]),
        (Established::KEY, Established::VALUES[assume.established as usize]),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
}

/// Rules by name, each once, in the order in which they are met.
struct Rules<'a> {
    cluster: &'a Cluster,
    names: Vec<String>,
    numbers: BTreeMap<(Direction, RuleId), u32>,
}

impl Rules<'_> {
    fn number(&mut self, direction: Direction, id: RuleId) -> u32 {
        let Self { cluster, names, numbers } = self;
        *numbers.entry((direction, id)).or_insert_with(|| {
            let policy = &cluster.policies[id.policy.index()];
            let namespace = &cluster.namespaces[policy.namespace.index()].name;
            names.push(format!("{namespace}/{} spec.{}[{}]", policy.name, direction.name(), id.rule));
            names.len() as u32 - 1
        })
    }
}

/// Of every entry, and of every row's peer class 0. What no rule allows is left out.
fn provenance(classes: &Classes, rules: &mut Rules<'_>) -> Vec<RowProvenance> {
    let mut found = Vec::new();
    for direction in Direction::ALL {
        for subject in 0..classes.subjects.len() as u32 {
            let row = classes.row(direction, SubjectId(subject));
            let mut peers: Vec<PeerId> = row.entries.iter().map(|(peer, _)| *peer).collect();
            peers.insert(0, PeerId(0));
            peers.dedup();
            for peer in peers {
                let atoms = stretches(classes, rules, direction, SubjectId(subject), peer);
                if !atoms.is_empty() {
                    found.push(RowProvenance { direction, subject, peer: peer.0, atoms });
                }
            }
        }
    }
    found
}

/// Atoms in order, neighbours with the same rules together.
fn stretches(
    classes: &Classes,
    rules: &mut Rules<'_>,
    direction: Direction,
    subject: SubjectId,
    peer: PeerId,
) -> Vec<(u32, u32, Vec<u32>)> {
    let allowed = classes.allowed(direction, subject, peer);
    let mut stretches: Vec<(u32, u32, Vec<u32>)> = Vec::new();
    for atom in (0..classes.atoms.count() as u32).filter(|atom| allowed.contains(AtomId(*atom))) {
        let because = classes.provenance(direction, subject, peer, AtomId(atom));
        let because: Vec<u32> = because.into_iter().map(|rule| rules.number(direction, rule)).collect();
        match stretches.last_mut() {
            Some((_, last, same)) if *last + 1 == atom && *same == because => *last = atom,
            _ if because.is_empty() => {}
            _ => stretches.push((atom, atom, because)),
        }
    }
    stretches
}
