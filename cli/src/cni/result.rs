//! Results of CNI plug-ins: the `interfaces` and `ips` that they created for a pod.

use std::net::IpAddr;

use serde::Deserialize;

/// The parts of a result that describe the path to the pod.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CniResult {
    #[serde(default)]
    interfaces: Vec<CniInterface>,
    #[serde(default)]
    ips: Vec<CniAddress>,
}

#[derive(Debug, Deserialize)]
struct CniInterface {
    name: String,
    /// The network namespace of the interface; empty on the host's side.
    #[serde(default)]
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct CniAddress {
    /// An address with its prefix length.
    address: String,
}

impl CniResult {
    /// Interfaces on the host's side, the last created first: a bridge comes before its port.
    ///
    /// `inside` is the name of the pod's own interface. Azure's plug-in lists it without its sandbox. The node can have an
    /// interface of this name too, which is its uplink (in a kind cluster, a veth), and never the pod's.
    pub(crate) fn host_interfaces(&self, inside: &str) -> Vec<String> {
        let on_host = self.interfaces.iter().rev().filter(|it| it.sandbox.is_empty() && it.name != inside);
        on_host.map(|interface| interface.name.clone()).collect()
    }

    /// The pod's addresses.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let address = |it: &CniAddress| it.address.split('/').next().and_then(|address| address.parse().ok());
        self.ips.iter().filter_map(address).collect()
    }
}
