//! The manifest's description of a cluster and its classes.

pub mod lines;
pub mod provenance;

use crate::map_images::EndpointEntry;
use provenance::Positions;
use weir_artifact::{Description, NamedEndpoint};
use weir_classes::Classes;
use weir_ebpf::target::Target;
use weir_model::{Audit, Cluster, Established, HostNetworkPods, Icmp, IpBlockPods, NamedPortTwice, ServiceAddress};

/// Describes all but the inputs, the objects, the node and the structures, which the caller adds.
pub fn describe(cluster: &Cluster, classes: &Classes, target: Target, positions: &mut Positions<'_>) -> Description {
    Description {
        inputs: Vec::new(),
        objects: String::new(),
        target,
        node: None,
        counts: counts(cluster, classes),
        structures: Vec::new(),
        assumptions: assumptions(cluster),
        left_out: Vec::new(),
        provenance: provenance::provenance(cluster, classes, positions),
    }
}

/// A local endpoint with its names.
pub fn named_endpoint(cluster: &Cluster, entry: &EndpointEntry) -> NamedEndpoint {
    let endpoint = &cluster.endpoints[entry.endpoint.index()];
    let namespace = cluster.namespaces[endpoint.namespace.index()].name.clone();
    NamedEndpoint { namespace, name: endpoint.name.clone(), value: entry.value }
}

fn counts(cluster: &Cluster, classes: &Classes) -> Vec<(String, u64)> {
    let entries = |rows: &[weir_classes::Row]| rows.iter().map(|row| row.entries.len()).sum::<usize>();
    let counts = [
        ("policies", cluster.policies.len() + cluster.left_out.policies),
        ("audit_policies", cluster.audit.len() + cluster.left_out.audit),
        ("lists", cluster.lists.len()),
        ("endpoints", cluster.endpoints.len() + cluster.left_out.endpoints),
        ("local_endpoints", classes.subject_of.len()),
        ("subject_classes", classes.subjects.len()),
        ("peer_classes", classes.peers.len()),
        ("port_atoms", classes.atoms.count()),
        ("atom_sets", classes.rows.atom_sets.len()),
        ("ingress_entries", entries(&classes.rows.ingress)),
        ("egress_entries", entries(&classes.rows.egress)),
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
        (Audit::KEY, Audit::VALUES[assume.audit as usize]),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
}
