//! Translates service addresses as kube-proxy's iptables mode does.
//!
//! There is a chain for each backend, chosen at random; a pod that reaches itself (hairpin) is masqueraded. Connections
//! to node ports keep their source unless masquerading is asked for: the corpus describes policy before sources are
//! rewritten.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use weir_model::{Cluster, Protocol, ServicePort};

use crate::namespace::Error;
use crate::topology::Node;

/// An address and port, and the backends behind it.
#[derive(Clone, Debug)]
pub(crate) struct Frontend {
    pub(crate) at: SocketAddr,
    pub(crate) protocol: &'static str,
    pub(crate) backends: Vec<SocketAddr>,
    pub(crate) masquerade: bool,
}

/// The addresses that a node translates: service addresses on all nodes, node ports and hostPorts on the node's own
/// addresses. `index` is the node's index in the cluster.
pub(crate) fn frontends(cluster: &Cluster, index: usize, node: &[IpAddr]) -> Vec<Frontend> {
    let mut all = Vec::new();
    for service in &cluster.services {
        for port in &service.ports {
            let at = service.addresses.iter().map(|address| SocketAddr::new(*address, port.port));
            let on_node =
                port.node_port.into_iter().flat_map(|it| node.iter().map(move |node| SocketAddr::new(*node, it)));
            all.extend(at.chain(on_node).map(|at| frontend(port, at)));
        }
    }
    all.extend(host_ports(cluster, index, node));
    all.retain(|it| !it.backends.is_empty());
    all
}

/// The addresses that the `portmap` plug-in translates: only those that the node has.
fn host_ports(cluster: &Cluster, index: usize, node: &[IpAddr]) -> Vec<Frontend> {
    let mut found: Vec<Frontend> = Vec::new();
    for claim in cluster.host_ports.iter().filter(|it| it.node.index() == index) {
        let protocol = protocol(claim.protocol);
        for address in claim.addresses(cluster).filter(|it| node.contains(it)) {
            let at = SocketAddr::new(address, claim.port);
            let behind = claim.backend.address.map(|it| SocketAddr::new(it, claim.backend.port));
            match found.iter_mut().find(|it| it.at == at && it.protocol == protocol) {
                Some(known) => known.backends.extend(behind),
                None => {
                    found.push(Frontend { at, protocol, backends: behind.into_iter().collect(), masquerade: false })
                }
            }
        }
    }
    found
}

fn frontend(port: &ServicePort, at: SocketAddr) -> Frontend {
    let protocol = protocol(port.protocol);
    let backends = port.backends.iter().filter_map(|it| Some(SocketAddr::new(it.address?, it.port)));
    let backends = backends.filter(|it| it.is_ipv6() == at.is_ipv6()).collect();
    Frontend { at, protocol, backends, masquerade: false }
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// Makes a node translate the frontends.
pub(crate) fn translate(node: &Node, frontends: &[Frontend]) -> Result<(), Error> {
    for (program, v6) in [("iptables-restore", false), ("ip6tables-restore", true)] {
        let of_family: Vec<&Frontend> = frontends.iter().filter(|it| it.at.is_ipv6() == v6).collect();
        if !of_family.is_empty() {
            node.space.run(program, &["-w", "10", "--noflush"], &rules(&of_family)?)?;
        }
    }
    Ok(())
}

fn rules(frontends: &[&Frontend]) -> Result<String, Error> {
    let mut text = "*nat\n:SERVICES - [0:0]\n:MARK-MASQ - [0:0]\n".to_owned();
    let mut rules = "-A PREROUTING -j SERVICES\n-A OUTPUT -j SERVICES\n-A MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE\n"
        .to_owned();
    for (index, it) in frontends.iter().enumerate() {
        let (address, port, protocol) = (it.at.ip(), it.at.port(), it.protocol);
        writeln!(text, ":SVC-{index} - [0:0]")?;
        writeln!(rules, "-A SERVICES -d {address} -p {protocol} -m {protocol} --dport {port} -j SVC-{index}")?;
        if it.masquerade {
            writeln!(rules, "-A SVC-{index} -j MARK-MASQ")?;
        }
        for (number, backend) in it.backends.iter().enumerate() {
            let left = it.backends.len() - number;
            writeln!(text, ":SEP-{index}-{number} - [0:0]")?;
            let chance = format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64);
            let chance = if left > 1 { chance } else { String::new() };
            writeln!(rules, "-A SVC-{index} {chance}-j SEP-{index}-{number}")?;
            writeln!(rules, "-A SEP-{index}-{number} -s {} -j MARK-MASQ", backend.ip())?;
            writeln!(rules, "-A SEP-{index}-{number} -p {protocol} -m {protocol} -j DNAT --to-destination {backend}")?;
        }
    }
    Ok(format!("{text}{rules}COMMIT\n"))
}
