//! The interfaces of an attach: those that the user names are checked, and the others can be discovered.
//!
//! An interface with the wrong pod's policy is worse than one without: allowed packets are dropped, and forbidden ones
//! pass. So a named interface must be a veth, and everything that this host knows about its other end (the CNI result
//! cache, addresses, routes) must agree with the pod. Where the host knows nothing, the name that the user gave is
//! trusted. Discovery has the same sources as the agent, and takes only interfaces that are unambiguous.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::Result;
use weir_artifact::layout::endpoint;
use weir_artifact::{Artifact, NamedEndpoint};
use weir_objects::k8s::{Body, Object};
use weir_runtime::sys::links;

use super::departed::objects_of;
use crate::watch::discover::{
    Claimant, Depth, FoundInterface, HostPaths, HostReader, InterfaceSource, Inventory, SearchedPod,
};
use crate::watch::pod_uids::PodUids;

/// A local endpoint of the artifact.
struct LocalPod<'a> {
    namespace: &'a str,
    name: &'a str,
    /// The pod's object, if the artifact has it.
    object: Option<Object>,
    addresses: Vec<IpAddr>,
}

impl LocalPod<'_> {
    fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn searched(&self) -> SearchedPod<'_> {
        let uids = self.object.as_ref().map(PodUids::of).unwrap_or_default();
        SearchedPod { uids, namespace: self.namespace, name: self.name, addresses: &self.addresses }
    }
}

/// The interfaces of this host, and the local endpoints of an artifact.
pub(super) struct HostInterfaces<'a> {
    inventory: Inventory,
    pods: Vec<LocalPod<'a>>,
    /// The addresses of the pod ends of veths, as far as the kernel shows them.
    behind: BTreeMap<String, Vec<IpAddr>>,
}

/// The result of a search for the interfaces of pods.
#[derive(Default)]
pub(super) struct Discovered {
    /// Pods (`namespace/name`) and their interfaces.
    pub(super) found: Vec<(String, String)>,
    /// Pods without an interface, each with the reasons.
    pub(super) missing: BTreeMap<String, String>,
}

impl<'a> HostInterfaces<'a> {
    /// Reads the present state of this host, with the pod ends of the named interfaces.
    pub(super) fn read(artifact: &'a Artifact, cni_results: &Path, named: &[(String, String)]) -> Result<Self> {
        let paths = HostPaths { cache: cni_results.to_owned(), ..HostPaths::default() };
        let mut objects = pod_objects(artifact)?;
        let pod = |it: &'a NamedEndpoint| LocalPod {
            namespace: &it.namespace,
            name: &it.name,
            object: objects.remove(&(it.namespace.clone(), it.name.clone())),
            addresses: addresses(it),
        };
        let pods = artifact.endpoints.iter().map(pod).collect();
        let behind = named.iter().filter_map(|(_, name)| Some((name.clone(), links::behind(name).ok()?))).collect();
        let inventory = HostReader::new(paths).read(Depth::Everything);
        Ok(Self { inventory, pods, behind })
    }

    /// Finds the interfaces of the pods that have none in `known`, which has pods (`namespace/name`) with their
    /// interfaces.
    pub(super) fn discover(&self, known: &[(String, String)]) -> Discovered {
        let at = |pod: &LocalPod<'_>| {
            let path = pod.path();
            let (_, name) = known.iter().find(|(pod, _)| *pod == path)?;
            let interface = self.inventory.interfaces.named(name)?;
            let (ifindex, name) = (interface.ifindex, name.as_str().into());
            Some(FoundInterface { ifindex, name, by: InterfaceSource::Record, attached_at: None })
        };
        let claimant = |pod| Claimant { pod: LocalPod::searched(pod), known: at(pod), has_lost: false };
        let claimants: Vec<Claimant<'_>> = self.pods.iter().map(claimant).collect();
        let mut discovered = Discovered::default();
        for (claimant, outcome) in claimants.iter().zip(self.inventory.assign(&claimants).outcomes) {
            let path = format!("{}/{}", claimant.pod.namespace, claimant.pod.name);
            match outcome {
                Ok(_) if claimant.known.is_some() => {}
                Ok(it) => discovered.found.push((path, it.name.to_string())),
                Err(error) => _ = discovered.missing.insert(path, error.to_string()),
            }
        }
        discovered
    }

    /// Whether the interface of this name has this number.
    pub(super) fn is_at(&self, name: &str, ifindex: u32) -> bool {
        self.inventory.interfaces.named(name).is_some_and(|it| it.ifindex == ifindex)
    }

    /// The reason why an interface cannot be the pod's, if there is one.
    pub(super) fn objection(&self, pod: &str, name: &str) -> Option<String> {
        // The runtime reports interfaces and pods that do not exist.
        let interface = self.inventory.interfaces.named(name)?;
        let pod = self.pods.iter().find(|it| it.path() == pod)?;
        match interface.kind.as_str() {
            "veth" => {}
            "bridge" => {
                return Some(format!("{name} is a bridge: all pods behind it would get the policy of {}", pod.path()));
            }
            "" => return Some(format!("{name} is not a veth, so it does not lead to a pod")),
            kind => return Some(format!("{name} is a {kind} and not a veth, so it does not lead to a pod")),
        }
        if self.inventory.is_cached_for_another(name, pod.searched()) {
            return Some(format!("a CNI result says that {name} belongs to another pod than {}", pod.path()));
        }
        let found = self.answering(name);
        let other = found.iter().find(|it| !pod.addresses.contains(it))?;
        let is_its_own = pod.addresses.is_empty() || found.iter().any(|it| pod.addresses.contains(it));
        (!is_its_own).then(|| format!("{other} answers behind {name}, and {} has {}", pod.path(), list(&pod.addresses)))
    }

    /// The addresses behind an interface, as far as the host knows them: those of its other end, and those of the
    /// artifact's pods to which a route leads.
    fn answering(&self, name: &str) -> BTreeSet<IpAddr> {
        let other_end = self.behind.get(name).into_iter().flatten();
        let mut found: BTreeSet<IpAddr> = other_end.filter(|it| is_global(**it)).copied().collect();
        let routed = self.inventory.routes.iter().filter(|it| it.interface == name).map(|it| it.address);
        found.extend(routed.filter(|address| self.pods.iter().any(|pod| pod.addresses.contains(address))));
        found
    }
}

fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(it) => !it.is_loopback() && !it.is_link_local(),
        IpAddr::V6(it) => !it.is_loopback() && !it.is_unicast_link_local(),
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The endpoint's addresses, as its map entry has them.
fn addresses(endpoint: &NamedEndpoint) -> Vec<IpAddr> {
    let bytes = |at: i16| endpoint.value.get(at as usize..);
    let v4 = bytes(endpoint::V4).and_then(|it| it.first_chunk::<4>()).map(|it| Ipv4Addr::from(*it));
    let v6 = bytes(endpoint::V6).and_then(|it| it.first_chunk::<16>()).map(|it| Ipv6Addr::from(*it));
    let given = [v4.map(IpAddr::V4), v6.map(IpAddr::V6)].into_iter().flatten();
    given.filter(|it| !it.is_unspecified()).collect()
}

/// The objects of the artifact's pods, by namespace and name, as far as the artifact has them.
fn pod_objects(artifact: &Artifact) -> Result<BTreeMap<(String, String), Object>> {
    if artifact.objects.is_empty() {
        return Ok(BTreeMap::new());
    }
    let pods = objects_of(artifact)?.into_iter().filter(|it| matches!(it.body, Body::Pod(_)));
    Ok(pods.map(|it| ((it.meta.namespace.to_string(), it.meta.name.clone()), it)).collect())
}

#[cfg(test)]
mod tests {
    use weir_runtime::sys::links::NamespaceInterface;

    use super::*;

    fn interface(ifindex: u32, name: &str, kind: &str, peer: Option<u32>) -> NamespaceInterface {
        NamespaceInterface { ifindex, name: name.to_owned(), kind: kind.to_owned(), peer }
    }

    /// A host whose `veth7` leads to an interface with these addresses.
    fn host(inside: &[&str]) -> HostInterfaces<'static> {
        let behind = inside.iter().map(|it| it.parse().expect("an address")).collect();
        let inventory = Inventory {
            interfaces: [interface(3, "br0", "bridge", None), interface(7, "veth7", "veth", Some(2))]
                .into_iter()
                .collect(),
            ..Inventory::default()
        };
        let addresses = vec!["10.0.0.5".parse().expect("an address")];
        let pods = vec![LocalPod { namespace: "shop", name: "web", object: None, addresses }];
        HostInterfaces { inventory, pods, behind: BTreeMap::from([("veth7".to_owned(), behind)]) }
    }

    #[test]
    fn another_address_behind_the_interface_is_an_objection() {
        let objection = |inside: &[&str], name: &str| host(inside).objection("shop/web", name);
        let other = objection(&["10.0.0.6", "fe80::1"], "veth7");
        assert_eq!(other.as_deref(), Some("10.0.0.6 answers behind veth7, and shop/web has 10.0.0.5"));
        assert_eq!(objection(&["10.0.0.6", "10.0.0.5"], "veth7"), None, "a pod may have more addresses");
        assert_eq!(objection(&["fe80::1"], "veth7"), None, "a link-local address says nothing");
        assert!(objection(&[], "br0").is_some_and(|it| it.contains("is a bridge")));
        assert_eq!(objection(&[], "veth9"), None, "the runtime reports an interface that does not exist");
    }
}
