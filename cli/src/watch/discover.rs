//! Pod → interface: which of the host's interfaces leads to a pod.
//!
//! Problem: no API reports this, and CNI plug-ins differ.
//! Strategy: three sources, the best one first: the result that the container runtime stored when it made the
//! interface (libcni's result cache), the pod's own network namespace (its veth names the other end), and the host's
//! route to the pod's address. A source counts only if the interface that it names is a veth that exists. The
//! first source has the pod's UID, the other two have only an address; [`assign`] combines them.
//! Invariants: the result is a function of an [`Inventory`], which is read in one pass; a pod that is not found gets
//! every reason.

mod assign;
mod cache;
mod routes;

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use weir_runtime::sys::links::{self, InterfaceList, Interfaces, NamespaceInterface, NetworkNamespace};

pub(crate) use assign::{Assignment, Claimant};
pub(crate) use cache::Attachment;
use cache::{CacheRead, ResultCache};

use super::pod_uids::PodUids;

/// The pod to search for. It has a network of its own: a pod on the host's network has no interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchedPod<'p> {
    pub(crate) uids: PodUids<'p>,
    pub(crate) namespace: &'p str,
    pub(crate) name: &'p str,
    pub(crate) addresses: &'p [IpAddr],
}

/// The host's end of a pod's veth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundInterface {
    pub(crate) ifindex: u32,
    pub(crate) name: Arc<str>,
    pub(crate) by: InterfaceSource,
    /// When the pod was attached to its network, if the source has this time.
    pub(crate) attached_at: Option<SystemTime>,
}

/// The source that named the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceSource {
    /// The kernel's record, which the previous agent wrote.
    Record,
    Cache,
    Namespace,
    Route,
}

/// Why no interface was found: the answer of each source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotFound {
    pub(super) reasons: Vec<String>,
    /// There are interfaces that may belong to this pod or to other pods.
    pub(crate) is_contested: bool,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no interface found: {}", self.reasons.join("; "))
    }
}

/// The paths to read.
#[derive(Clone, Debug)]
pub(crate) struct HostPaths {
    /// libcni's result cache.
    pub(crate) cache: PathBuf,
    /// The directory where network namespaces are mounted.
    pub(crate) namespaces: PathBuf,
    /// The kernel's routes, IPv4 and IPv6.
    pub(crate) routes: [PathBuf; 2],
}

impl Default for HostPaths {
    fn default() -> Self {
        Self {
            cache: "/var/lib/cni/results".into(),
            namespaces: "/run/netns".into(),
            routes: ["/proc/net/route", "/proc/net/ipv6_route"].map(PathBuf::from),
        }
    }
}

/// The state of the host, as all sources give it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) interfaces: Interfaces,
    pub(crate) cached: Vec<Arc<Attachment>>,
    pub(crate) namespaces: Vec<MountedNamespace>,
    pub(crate) routes: Vec<HostRoute>,
    /// Whether not even the host's interfaces could be read. Then no interface counts as gone.
    pub(crate) is_blind: bool,
    /// Sources that could not be read, each with the error.
    pub(crate) unread: Vec<String>,
}

/// A network namespace.
#[derive(Clone, Debug)]
pub(crate) struct MountedNamespace {
    /// The name under which it is mounted.
    pub(crate) name: String,
    pub(crate) content: NetworkNamespace,
}

/// A route to a single address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRoute {
    pub(crate) address: IpAddr,
    pub(crate) interface: String,
}

/// How much of the host to read. Each level costs more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// The host's interfaces.
    Interfaces,
    /// The interfaces and the result cache.
    Cache,
    /// Also every network namespace and route.
    Everything,
}

/// Reads the state of the host, and keeps the parts that have not changed.
#[derive(Debug, Default)]
pub(crate) struct HostReader {
    paths: HostPaths,
    interfaces: InterfaceList,
    results: ResultCache,
}

impl HostReader {
    pub(crate) fn new(paths: HostPaths) -> Self {
        Self { paths, ..Self::default() }
    }

    /// Reads the present state of the host.
    pub(crate) fn read(&mut self, depth: Depth) -> Inventory {
        let Self { paths, interfaces, results } = self;
        let mut inventory = Inventory::default();
        let listed = if depth < Depth::Everything { interfaces.read() } else { interfaces.read_again() };
        match listed {
            Ok(interfaces) => inventory.interfaces = interfaces,
            Err(error) => {
                inventory.is_blind = true;
                inventory.unread.push(format!("the host's interfaces: {error}"));
            }
        }
        if depth >= Depth::Cache {
            let CacheRead { attachments, unread } = results.read(&paths.cache);
            inventory.cached = attachments;
            inventory.unread.extend(unread);
        }
        if depth >= Depth::Everything {
            inventory.read_namespaces(&paths.namespaces);
            let [v4, v6] = &paths.routes;
            inventory.routes.extend(routes::v4(&fs::read_to_string(v4).unwrap_or_default()));
            inventory.routes.extend(routes::v6(&fs::read_to_string(v6).unwrap_or_default()));
        }
        inventory
    }
}

impl Inventory {
    fn read_namespaces(&mut self, directory: &Path) {
        let names = names(directory).unwrap_or_else(|error| {
            self.unread.push(format!("{}: {error}", directory.display()));
            Vec::new()
        });
        for name in names {
            match links::inside(&directory.join(&name)) {
                Ok(content) => self.namespaces.push(MountedNamespace { name, content }),
                // The namespace may have been deleted since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.unread.push(format!("network namespace {name}: {error}")),
            }
        }
    }

    /// The addresses that the pod has at an interface that is there, from a CNI result with its UID.
    pub(crate) fn addresses_of(&self, pod: SearchedPod<'_>) -> Option<&[IpAddr]> {
        let has_uids = |cached: &Attachment| cached.uid.is_some() && pod.uids.of_object.is_some();
        let mut cached = self.cached.iter().filter(|cached| has_uids(cached) && cached.is_of(pod));
        let there = cached.find(|cached| !self.veths_of(cached).is_empty())?;
        Some(there.addresses.as_slice()).filter(|addresses| !addresses.is_empty())
    }

    /// The veths on the host that a CNI result names.
    pub(crate) fn veths_of(&self, cached: &Attachment) -> Vec<&NamespaceInterface> {
        let names = cached.host_interfaces.iter();
        names.filter_map(|name| self.interfaces.named(name).filter(|it| is_veth(it))).collect()
    }

    /// Whether an interface that was found is still there.
    pub(crate) fn has(&self, found: &FoundInterface) -> bool {
        self.is_blind || self.interfaces.numbered(found.ifindex).is_some_and(|it| *it.name == *found.name)
    }
}

/// The names in a directory. A directory that does not exist has none.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
impl Inventory {
    pub(crate) fn change_interfaces(&mut self, change: impl FnOnce(&mut Vec<NamespaceInterface>)) {
        let mut all = self.interfaces.iter().cloned().collect();
        change(&mut all);
        self.interfaces = all.into_iter().collect();
    }
}

fn found(interface: &NamespaceInterface, by: InterfaceSource) -> FoundInterface {
    FoundInterface { ifindex: interface.ifindex, name: interface.name.as_str().into(), by, attached_at: None }
}

fn is_veth(interface: &NamespaceInterface) -> bool {
    interface.kind == "veth"
}

fn describe(interface: &NamespaceInterface) -> String {
    match interface.kind.as_str() {
        "veth" => format!("the veth {}, whose other end is not on the host's network", interface.name),
        "" => format!("{}, which is not a veth", interface.name),
        kind => format!("{}, which is a {kind} and not a veth", interface.name),
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
