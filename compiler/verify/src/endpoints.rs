//! Compares the endpoints of an artifact with those of the cluster: none is missing, none is extra, and each value
//! agrees with the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::Difference;
use weir_artifact::entries::EntryRef;
use weir_artifact::layout::{self, MapName, config, endpoint};
use weir_artifact::{Artifact, NamedEndpoint};
use weir_model::{Cluster, Endpoint, EndpointId, Established, Standing};
use weir_objects::address::Family;
use weir_objects::syntax::{Span, SyntaxValue, json};

/// An endpoint of the artifact, with its id in the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArtifactEndpoint {
    /// Its index among the artifact's endpoints.
    pub(super) place: usize,
    pub(super) id: EndpointId,
    pub(super) subject: u32,
    pub(super) flags: u32,
}

/// The number at an offset of a value.
fn number(value: &[u8], at: i16) -> u32 {
    // A value that is too short: `u32::MAX` is no class and no node, so the comparison fails. 0 would be a valid class.
    value.get(at as usize..).and_then(|it| it.first_chunk()).map_or(u32::MAX, |it| u32::from_le_bytes(*it))
}

/// All pods with an address on the node that the manifest names; pods of all nodes if it names none.
pub(super) fn scope(artifact: &Artifact, cluster: &Cluster) -> Result<Vec<EndpointId>, Difference> {
    let manifest = &artifact.manifest;
    // Only the top level is split up. The manifest of a large cluster is long, and one field of it is needed.
    let fields = json::shallow(manifest, Span::of(manifest));
    let node = fields.entries.iter().find(|entry| entry.key == "node").map(|entry| json::parse(manifest, entry.value));
    let node = match node {
        // Without the field, the artifact is for all nodes. A manifest that cannot be read to its end may have lost the
        // field, and must not be taken for that.
        None if fields.error.is_none() => None,
        Some(Ok(weir_objects::syntax::SyntaxNode { value: SyntaxValue::Str(name), .. })) => Some(name.into_owned()),
        _ => return Err(Difference::Manifest),
    };
    let is_local = |it: &Endpoint| {
        let on = it.node.and_then(|id| cluster.nodes.get(id.index())).map(|node| node.name.as_str());
        // Pods on the host's network and finished pods have no interface of their own where a program could be
        // attached.
        it.standing == Standing::Member
            && !it.addresses.is_empty()
            && node.as_deref().is_none_or(|node| on == Some(node))
    };
    let local = cluster.endpoints.iter().enumerate().filter(|(_, it)| is_local(it));
    Ok(local.map(|(index, _)| EndpointId(index as u32)).collect())
}

/// Matches endpoints by name and compares their values. Appends each difference to the report, and returns the
/// endpoints that agree.
pub(super) fn check(
    artifact: &Artifact,
    cluster: &Cluster,
    scope: &[EndpointId],
    told: &mut Vec<Difference>,
) -> Vec<ArtifactEndpoint> {
    let name = |id: &EndpointId| {
        let it = &cluster.endpoints[id.index()];
        (cluster.namespaces[it.namespace.index()].name.as_str(), it.name.as_str())
    };
    let mut missing: HashMap<(&str, &str), EndpointId> = scope.iter().map(|id| (name(id), *id)).collect();
    let nodes = nodes(artifact);
    let mut locals = Vec::new();
    for (place, local) in artifact.endpoints.iter().enumerate() {
        // Removed when found: a second endpoint of the same name then finds no pod and is reported too. Only one of the
        // two could be right.
        match missing.remove(&(local.namespace.as_str(), local.name.as_str())) {
            None => told.push(Difference::Endpoint(full_name(local))),
            // An endpoint that fails is left out of the packets: they would all repeat this difference under another
            // name.
            Some(id) if !has_its_addresses(&cluster.endpoints[id.index()], &local.value) => {
                told.push(Difference::Addresses(full_name(local)));
            }
            Some(id) if !has_its_node(artifact, cluster, &nodes, id, &local.value) => {
                told.push(Difference::Node(full_name(local)));
            }
            Some(id) => {
                let [subject, flags] = [endpoint::SUBJECT, endpoint::FLAGS].map(|at| number(&local.value, at));
                locals.push(ArtifactEndpoint { place, id, subject, flags });
            }
        }
    }
    // Sorted: the order of a hash map must not reach a report.
    let missing: BTreeSet<(&str, &str)> = missing.into_keys().collect();
    told.extend(missing.into_iter().map(|(namespace, name)| Difference::Missing(format!("{namespace}/{name}"))));
    if !keeps_as_assumed(artifact, cluster) {
        told.push(Difference::Established);
    }
    locals
}

fn full_name(local: &NamedEndpoint) -> String {
    format!("{}/{}", local.namespace, local.name)
}

/// Whether the value holds one of the endpoint's addresses in each family, and zeros if it has none.
fn has_its_addresses(endpoint: &Endpoint, value: &[u8]) -> bool {
    let places = [(Family::V4, endpoint::V4, 4), (Family::V6, endpoint::V6, 16)];
    places.into_iter().all(|(family, at, bytes)| {
        let stands = value.get(at as usize..at as usize + bytes).unwrap_or_default();
        let mut own = endpoint.addresses.iter().filter(|it| Family::of(**it) == family).peekable();
        match own.peek() {
            // Zeros, not anything: programs drop packets whose source is not the pod's address, and a stray address
            // here would let the pod send from it.
            None => stands.iter().all(|byte| *byte == 0),
            // The API allows several addresses, a value has room for one of each family. Any of them is right.
            Some(_) => own.any(|it| layout::address_bytes(*it)[..] == *stands),
        }
    })
}

/// The addresses in the `nodes…` maps, by node number.
fn nodes(artifact: &Artifact) -> BTreeMap<u32, BTreeSet<IpAddr>> {
    let mut nodes: BTreeMap<u32, BTreeSet<IpAddr>> = BTreeMap::new();
    for (key, _) in [MapName::Nodes4, MapName::Nodes6].into_iter().flat_map(|name| entries(artifact, name)) {
        // A key of another length can match no packet. It is not counted as an address of any node, so it cannot hide
        // that one is missing.
        if let Some((node, address)) = key.split_first_chunk().and_then(|(node, rest)| Some((node, address(rest)?))) {
            nodes.entry(u32::from_le_bytes(*node)).or_default().insert(address);
        }
    }
    nodes
}

fn has_its_node(
    artifact: &Artifact,
    cluster: &Cluster,
    nodes: &BTreeMap<u32, BTreeSet<IpAddr>>,
    id: EndpointId,
    value: &[u8],
) -> bool {
    let node = cluster.endpoints[id.index()].node.and_then(|node| cluster.nodes.get(node.index()));
    let is_there = |address: &&IpAddr| {
        let name = if address.is_ipv4() { MapName::Nodes4 } else { MapName::Nodes6 };
        // An artifact without local addresses of a family has no map for the node's addresses in that family, so there
        // is nothing to compare.
        artifact.map(name).is_some()
    };
    let expected: BTreeSet<IpAddr> =
        node.map_or(&[][..], |it| &it.addresses).iter().filter(is_there).copied().collect();
    // Compared by addresses and not by number: the numbers of nodes are the compiler's own choice, and the cluster says
    // nothing about them.
    nodes.get(&number(value, endpoint::NODE)).map_or(expected.is_empty(), |found| *found == expected)
}

fn keeps_as_assumed(artifact: &Artifact, cluster: &Cluster) -> bool {
    let value = entries(artifact, MapName::Config).next().map(|(_, value)| value);
    let keeps = value.map(|value| number(value, config::KEEP_ESTABLISHED as i16));
    // Without a configuration the comparison is with `None`, so a missing word is a difference and not "cut".
    keeps == Some(u32::from(cluster.assume.established == Established::Keep))
}

/// The entries that an artifact puts into a map.
pub(super) fn entries(artifact: &Artifact, name: MapName) -> impl Iterator<Item = EntryRef<'_>> {
    artifact.map(name).into_iter().flat_map(|map| map.entries.iter())
}

/// An address from four or sixteen bytes in network byte order.
pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|it| IpAddr::from(*it)),
        16 => bytes.first_chunk::<16>().map(|it| IpAddr::from(*it)),
        _ => None,
    }
}
