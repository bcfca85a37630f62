//! Nodes with pods, joined by a network, and an outside.
//!
//! ```text
//!  pod ─ pod0 ┐                                ┌ pod0 ─ pod
//!  pod ─ pod1 ┤ node ─ wan ─ n0 ┐    ┌ n1 ─ wan ─ node ┤
//!             │                fabric                   …
//!                               └ ext ── eth0 ─ outside
//! ```
//!
//! Routed: every pod has one host route, and proxy ARP answers for its gateway's address. Bridge: the pods' host sides
//! are ports of `br0`, which has the gateway's address. The links between routers have link-local addresses or
//! addresses from 169.254/16, which no policy names.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::namespace::{Error, Namespace};

/// How pods are connected to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Routed,
    Bridge,
}

/// What to build.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) nodes: Vec<NodePlan>,
    /// Addresses of the outside.
    pub(crate) outside: Vec<IpAddr>,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodePlan {
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// The bridge's own addresses with their prefix lengths, if it has any; the host then sends to pods from there.
    pub(crate) bridge: Vec<(IpAddr, u8)>,
    pub(crate) pods: Vec<PodPlan>,
}

/// A pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodPlan {
    /// `namespace/name`
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The network that was built; dropping it removes everything in it.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) layout: Layout,
    pub(crate) nodes: Vec<Node>,
    pub(crate) fabric: Namespace,
    pub(crate) outside: Namespace,
    plan: Plan,
}

/// A node with its pods.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) space: Namespace,
    pub(crate) pods: Vec<Pod>,
}

/// A pod.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) space: Namespace,
    /// The host's end of its interface.
    pub(crate) interface: String,
    pub(crate) addresses: Vec<IpAddr>,
}

const GATEWAY: &str = "169.254.1.1";
const FABRIC: &str = "169.254.2.1";

impl Net {
    pub(crate) fn new(layout: Layout, plan: Plan) -> Result<Self, Error> {
        let (fabric, outside) = (Namespace::new()?, Namespace::new()?);
        let mut net = Self { layout, nodes: Vec::new(), fabric, outside, plan };
        net.join_outside()?;
        for index in 0..net.plan.nodes.len() {
            let node = net.node(index)?;
            net.nodes.push(node);
            net.join(index)?;
        }
        Ok(net)
    }

    fn join_outside(&self) -> Result<(), Error> {
        let mut fabric = format!(
            "link add ext type veth peer name eth0 netns {}\nlink set ext up\naddr add {FABRIC}/32 dev ext scope link
addr add fe80::1/64 dev ext nodad\naddr add 100.126.0.1/32 dev lo\naddr add fd7e::1/128 dev lo nodad
route add default via {GATEWAY} dev ext onlink\nroute add default via fe80::2 dev ext\n",
            self.outside.path()
        );
        let mut outside = format!(
            "link set eth0 up\naddr add {GATEWAY}/32 dev eth0 scope link\naddr add fe80::2/64 dev eth0 nodad
route add default via {FABRIC} dev eth0 onlink\nroute add default via fe80::1 dev eth0\n"
        );
        for address in &self.plan.outside {
            writeln!(outside, "addr add {address} dev lo{}", nodad(address))?;
            writeln!(fabric, "route add {address} {}", hop(address, "fe80::2", "ext"))?;
        }
        self.fabric.ip(&fabric)?;
        self.outside.ip(&outside)
    }

    /// A node and its pods, without connections to other nodes.
    fn node(&self, index: usize) -> Result<Node, Error> {
        let plan = &self.plan.nodes[index];
        let space = Namespace::new()?;
        if self.layout == Layout::Bridge {
            let mut lines = format!(
                "link add br0 type bridge\nlink set br0 up\naddr add {GATEWAY}/32 dev br0 scope link
addr add fe80::1/64 dev br0 nodad\n"
            );
            for (address, length) in &plan.bridge {
                writeln!(lines, "addr add {address}/{length} dev br0{}", nodad(address))?;
            }
            space.ip(&lines)?;
        }
        let mut node = Node { name: plan.name.clone(), space, pods: Vec::new() };
        for pod in &plan.pods {
            self.pod(&mut node, plan, pod)?;
        }
        self.neighbours(&node)?;
        Ok(node)
    }

    fn pod(&self, node: &mut Node, at: &NodePlan, plan: &PodPlan) -> Result<(), Error> {
        let (space, interface) = (Namespace::new()?, format!("pod{}", node.pods.len()));
        let mut host =
            format!("link add {interface} type veth peer name eth0 netns {}\nlink set {interface} up\n", space.path());
        let via = match self.layout {
            Layout::Routed => {
                writeln!(host, "addr add fe80::1/64 dev {interface} nodad")?;
                interface.clone()
            }
            Layout::Bridge => {
                // A service may translate a pod's packet to the pod itself (hairpin).
                writeln!(host, "link set {interface} master br0\nlink set {interface} type bridge_slave hairpin on")?;
                "br0".to_owned()
            }
        };
        let mut inside = format!("link set eth0 up\nroute add {GATEWAY} dev eth0\n");
        for address in &plan.addresses {
            let own = at.addresses.iter().find(|it| v6(it) == v6(address)).filter(|_| at.bridge.is_empty());
            let source = own.map(|own| format!(" src {own}")).unwrap_or_default();
            writeln!(host, "route add {address} dev {via}{source}")?;
            writeln!(inside, "addr add {address} dev eth0{}", nodad(address))?;
            writeln!(inside, "route add default {}", hop(address, "fe80::1", "eth0"))?;
        }
        // The source of a route must be an existing address.
        let addresses = at
            .addresses
            .iter()
            .map(|address| format!("addr replace {address} dev lo{}\n", nodad(address)))
            .collect::<String>();
        node.space.ip(&(addresses + &host))?;
        if self.layout == Layout::Routed {
            node.space.set(&format!("ipv4/conf/{interface}/proxy_arp"), "1")?;
            node.space.set(&format!("ipv4/neigh/{interface}/proxy_delay"), "0")?;
        }
        space.ip(&inside)?;
        node.pods.push(Pod { name: plan.name.clone(), space, interface, addresses: plan.addresses.clone() });
        Ok(())
    }

    /// On a bridge the pods of a node are on one link.
    fn neighbours(&self, node: &Node) -> Result<(), Error> {
        if self.layout == Layout::Routed {
            return Ok(());
        }
        for pod in &node.pods {
            let others = node.pods.iter().filter(|other| other.name != pod.name);
            let same = others.flat_map(|other| &other.addresses);
            let same = same.filter(|address| pod.addresses.iter().any(|own| v6(own) == v6(address)));
            pod.space.ip(&same.map(|address| format!("route add {address} dev eth0\n")).collect::<String>())?;
        }
        Ok(())
    }

    /// Joins a node to the fabric.
    fn join(&self, index: usize) -> Result<(), Error> {
        let (node, plan) = (&self.nodes[index], &self.plan.nodes[index]);
        let port = format!("169.254.2.{}", index + 2);
        let mut lines = format!(
            "link set wan up\naddr add {port}/32 dev wan scope link\naddr add fe80::2/64 dev wan nodad
route add default via {FABRIC} dev wan onlink\nroute add default via fe80::1 dev wan\n"
        );
        for address in &plan.addresses {
            writeln!(lines, "addr replace {address} dev lo{}", nodad(address))?;
        }
        let mut fabric = format!(
            "link add n{index} type veth peer name wan netns {}\nlink set n{index} up
addr add {FABRIC}/32 dev n{index} scope link\naddr add fe80::1/64 dev n{index} nodad\n",
            node.space.path()
        );
        for address in plan.addresses.iter().chain(plan.pods.iter().flat_map(|pod| &pod.addresses)) {
            let via = if v6(address) { "fe80::2" } else { &port };
            writeln!(fabric, "route add {address} via {via} dev n{index}{}", onlink(address))?;
        }
        self.fabric.ip(&fabric)?;
        node.space.ip(&lines)
    }

    /// The pod of this name.
    pub(crate) fn pod_named(&self, name: &str) -> &Pod {
        let mut pods = self.nodes.iter().flat_map(|node| &node.pods);
        pods.find(|pod| pod.name == name).unwrap_or_else(|| panic!("no pod {name}"))
    }

    /// The namespace that has an address.
    pub(crate) fn holder(&self, address: IpAddr) -> Option<&Namespace> {
        let pods = self.nodes.iter().flat_map(|node| &node.pods);
        let pod = pods.filter(|pod| pod.addresses.contains(&address)).map(|pod| &pod.space).next();
        let nodes = self.nodes.iter().zip(&self.plan.nodes);
        let node = nodes.filter(|(_, plan)| plan.has(address)).map(|(node, _)| &node.space).next();
        pod.or(node).or_else(|| self.plan.outside.contains(&address).then_some(&self.outside))
    }

    /// The node that has an address, or a pod with it.
    pub(crate) fn node_of(&self, address: IpAddr) -> Option<usize> {
        let at = |plan: &NodePlan| plan.has(address) || plan.pods.iter().any(|pod| pod.addresses.contains(&address));
        self.plan.nodes.iter().position(at)
    }
}

impl NodePlan {
    fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.bridge.iter().any(|(it, _)| *it == address)
    }
}

fn v6(address: &IpAddr) -> bool {
    address.is_ipv6()
}

/// An IPv6 address cannot be used until duplicate address detection ends; `nodad` skips the detection.
fn nodad(address: &IpAddr) -> &'static str {
    if v6(address) { " nodad" } else { "" }
}

fn onlink(address: &IpAddr) -> &'static str {
    if v6(address) { "" } else { " onlink" }
}

/// The next hop for the family of an address.
fn hop(address: &IpAddr, gateway6: &str, device: &str) -> String {
    let gateway = if v6(address) { gateway6 } else { GATEWAY };
    format!("via {gateway} dev {device}{}", onlink(address))
}
