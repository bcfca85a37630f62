//! Endpoints → parties: grouped by workload, and by the classes that policies and lists distinguish.
//!
//! A pod is assigned to the workload behind its controller ([`weir_model::controllers`]). Pods without a controller are
//! grouped by their labels.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::{LeftOut, Party};
use weir_classes::{Classes, PeerId, SubjectId};
use weir_model::controllers::{ControllerName, VOLATILE_LABELS, controller_of};
use weir_model::directory::Directory;
use weir_model::{Cluster, Endpoint, EndpointId, NamespaceId, Standing};
use weir_objects::address::Family;
use weir_objects::k8s::Labels;

/// The properties that endpoints of one party share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartyKey {
    namespace: NamespaceId,
    workload: WorkloadName,
    subject: SubjectId,
    peers: [Option<PeerId>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkloadName {
    /// Name and kind.
    Named(String, String),
    /// Pods without a controller.
    Labelled(Labels),
}

pub(super) fn parties(cluster: &Cluster, classes: &Classes) -> (Vec<Party>, LeftOut) {
    let subjects: HashMap<EndpointId, SubjectId> = classes.subject_of.iter().copied().collect();
    let directory = Directory::new(cluster);
    let mut left_out = LeftOut::default();
    let mut found: BTreeMap<PartyKey, Vec<EndpointId>> = BTreeMap::new();
    for (index, endpoint) in cluster.endpoints.iter().enumerate() {
        let id = EndpointId(index as u32);
        // An address that another pod has now is not this pod's, even if its status still lists it.
        let own = |at: &&IpAddr| directory.endpoint_at(**at) == Some(id);
        let peer = |family| {
            let mut own = endpoint.addresses.iter().filter(own);
            own.find(|at| Family::of(**at) == family).map(|at| classes.peer_at(*at))
        };
        let peers = [Family::V4, Family::V6].map(peer);
        match (endpoint.standing, subjects.get(&id)) {
            // Classes are part of the key: pods of one workload can differ, for instance during a rollout that changes
            // labels.
            (Standing::Member, Some(subject)) if peers != [None; 2] => {
                let workload = workload(cluster, endpoint);
                let key = PartyKey { namespace: endpoint.namespace, workload, subject: *subject, peers };
                found.entry(key).or_default().push(id);
            }
            (Standing::HostNetwork, _) => left_out.host_network += 1,
            _ => left_out.absent += 1,
        }
    }
    let mut parties: Vec<Party> = found.into_iter().map(|(key, members)| party(cluster, key, members)).collect();
    distinguish(cluster, &mut parties);
    parties.sort_by(|a, b| (a.namespace, &a.name, &a.members).cmp(&(b.namespace, &b.name, &b.members)));
    (parties, left_out)
}

/// The kind and name of the workload that controls a pod, as far as names show it; `None` without a controller.
pub fn workload_of(cluster: &Cluster, endpoint: &Endpoint) -> Option<(String, String)> {
    match workload(cluster, endpoint) {
        WorkloadName::Named(name, kind) if endpoint.owner.is_some() => Some((kind, name)),
        _ => None,
    }
}

fn workload(cluster: &Cluster, endpoint: &Endpoint) -> WorkloadName {
    let labels = cluster.labels.labels(endpoint.labels);
    match (endpoint.kind.as_ref(), controller_of(cluster, endpoint)) {
        (_, Some(ControllerName { kind, name })) => WorkloadName::Named(name.to_owned(), kind.to_owned()),
        ("Pod", None) => {
            // Labels that differ from pod to pod would make each pod a party of its own.
            let kept: Labels = labels.iter().filter(|(key, _)| !VOLATILE_LABELS.contains(key)).collect();
            match kept.is_empty() {
                true => WorkloadName::Named(endpoint.name.clone(), endpoint.kind.to_string()),
                false => WorkloadName::Labelled(kept),
            }
        }
        (kind, None) => WorkloadName::Named(endpoint.name.clone(), kind.to_owned()),
    }
}

fn party(cluster: &Cluster, key: PartyKey, members: Vec<EndpointId>) -> Party {
    let (name, kind) = match key.workload {
        WorkloadName::Named(name, kind) => (name, kind),
        WorkloadName::Labelled(labels) => (name_of_several(cluster, &members, &labels), "Pod".to_owned()),
    };
    Party { namespace: key.namespace, name, kind, members, subject: key.subject, peers: key.peers }
}

/// The name of one pod; for several pods the common prefix of their names, or else a label that describes them.
fn name_of_several(cluster: &Cluster, members: &[EndpointId], labels: &Labels) -> String {
    let names: Vec<&str> = members.iter().map(|id| cluster.endpoints[id.index()].name.as_str()).collect();
    let [first, others @ ..] = names.as_slice() else { return String::new() };
    if others.is_empty() {
        return (*first).to_owned();
    }
    const TELLING: [&str; 5] = ["app.kubernetes.io/name", "app", "k8s-app", "name", "component"];
    // Labels that name the application, the recommended one first; otherwise any label is better than none.
    let telling = TELLING.iter().find_map(|key| Some((*key, labels.get(key)?))).or(labels.first());
    let common = others.iter().fold(*first, |common, name| common_stem(common, name));
    match (common.is_empty(), telling) {
        (true, Some((key, value))) => format!("{key}={value}"),
        _ => format!("{common}-*"),
    }
}

/// The common prefix of both names, in whole words.
fn common_stem<'n>(a: &'n str, b: &str) -> &'n str {
    // Whole words: `web-10` and `web-12` share `web`, and not `web-1`, which would look like a third pod.
    let words = a.split('-').zip(b.split('-')).take_while(|(a, b)| a == b);
    let length: usize = words.map(|(word, _)| word.len() + 1).sum();
    a.get(..length.saturating_sub(1)).unwrap_or(a)
}

/// Adds the kind to parties that share a name, or their first member if they share the kind as well.
fn distinguish(cluster: &Cluster, parties: &mut [Party]) {
    let count = |parties: &[Party]| {
        let mut count: HashMap<(NamespaceId, String), (usize, Vec<String>)> = HashMap::new();
        for party in parties {
            let of_name = count.entry((party.namespace, party.name.clone())).or_default();
            of_name.0 += 1;
            of_name.1.push(party.kind.clone());
        }
        count
    };
    let of_name = count(parties);
    for party in parties.iter_mut() {
        let (number, kinds) = &of_name[&(party.namespace, party.name.clone())];
        // A unique name stays as it is: the suffix only helps where two parties would read the same.
        if *number < 2 {
            continue;
        }
        let first = &cluster.endpoints[party.members[0].index()];
        party.name = match kinds.iter().filter(|kind| **kind == party.kind).count() {
            1 => format!("{} ({})", party.name, party.kind),
            _ if first.kind == "Pod" && party.members.len() == 1 => format!("{} ({})", party.name, first.name),
            _ if first.kind == "Pod" => {
                format!("{} ({} and {} more)", party.name, first.name, party.members.len() - 1)
            }
            _ => format!("{} (template)", party.name),
        };
    }
}
