//! The sets that rules match against: created on first use, written in the order of their names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use super::super::ipset::DEFAULT_MAX_ELEMENTS;
use super::Renderer;
use weir_model::{EndpointId, ListId, NamespaceId, NodeId, Protocol, SelectorId, Standing};
use weir_objects::address::{Family, Prefix};

/// Sets by name.
#[derive(Debug, Default)]
pub(super) struct SetTexts {
    sets: BTreeMap<String, SetText>,
}

#[derive(Debug)]
struct SetText {
    kind: &'static str,
    family: Family,
    elements: Vec<String>,
}

impl SetTexts {
    fn has(&self, name: &str) -> bool {
        self.sets.contains_key(name)
    }

    fn insert(&mut self, name: &str, kind: &'static str, family: Family, elements: Vec<String>) {
        self.sets.insert(name.to_owned(), SetText { kind, family, elements });
    }

    /// `ipset save` text.
    pub(super) fn write(&self) -> String {
        let mut text = String::new();
        for (name, set) in &self.sets {
            let family = if set.family == Family::V4 { "inet" } else { "inet6" };
            let most = set.elements.len().max(DEFAULT_MAX_ELEMENTS);
            let _ = writeln!(text, "create {name} {} family {family} maxelem {most}", set.kind);
            for element in &set.elements {
                let _ = writeln!(text, "add {name} {element}");
            }
        }
        text
    }
}

impl Renderer<'_> {
    /// The addresses of the pods that a peer selects.
    pub(super) fn peer_set(&mut self, family: Family, scope: NamespaceScope, pods: SelectorId) -> String {
        let labels = &self.facts.cluster.labels;
        let scope_key = match scope {
            NamespaceScope::Own(namespace) => self.facts.cluster.namespaces[namespace.index()].name.clone(),
            NamespaceScope::Selected(selector) => format!("{:?}", labels.selector(selector)),
        };
        let name = self.set_name("peer", family, &format!("{scope_key} {:?}", labels.selector(pods)));
        if !self.sets.has(&name) {
            let owned: Vec<_> = self.facts.owned(family).collect();
            let mut selected = |id: EndpointId| {
                let endpoint = self.facts.endpoint(id);
                let in_scope = match scope {
                    NamespaceScope::Own(namespace) => endpoint.namespace == namespace,
                    NamespaceScope::Selected(selector) => self.facts.selects_namespace(selector, endpoint.namespace),
                };
                in_scope && self.facts.selects(pods, endpoint.labels)
            };
            let addresses = owned.into_iter().filter(|(_, id)| selected(*id)).map(|(address, _)| address.to_string());
            let addresses = addresses.collect();
            self.sets.insert(&name, "hash:ip", family, addresses);
        }
        name
    }

    /// The addresses of all pods.
    pub(super) fn pod_set(&mut self, family: Family) -> String {
        let name = self.set_name("pods", family, "");
        if !self.sets.has(&name) {
            let addresses = self.facts.owned(family).map(|(address, _)| address.to_string()).collect();
            self.sets.insert(&name, "hash:ip", family, addresses);
        }
        name
    }

    /// The number of a named port on every pod. It is always matched against the destination, because the name refers
    /// to the destination's port.
    pub(super) fn port_set(&mut self, family: Family, protocol: Protocol, port: &str) -> String {
        let name = self.set_name("port", family, &format!("{} {port}", protocol_name(protocol)));
        if !self.sets.has(&name) {
            let mut elements = Vec::new();
            for (address, id) in self.facts.owned(family) {
                let ports = self.facts.endpoint(id).named_ports.iter();
                let named = ports.filter(|it| it.name == port && it.protocol == protocol);
                let numbers: BTreeSet<u16> = named.map(|it| it.number).collect();
                let protocol = protocol_name(protocol);
                elements.extend(numbers.iter().map(|number| format!("{address},{protocol}:{number}")));
            }
            self.sets.insert(&name, "hash:ip,port", family, elements);
        }
        name
    }

    /// The addresses of a node that no pod has.
    pub(super) fn node_set(&mut self, family: Family, node: NodeId) -> String {
        let cluster = self.facts.cluster;
        let name = self.set_name("node", family, &cluster.nodes[node.index()].name);
        if !self.sets.has(&name) {
            let host = cluster.endpoints.iter().filter(|it| it.standing == Standing::HostNetwork);
            // A hostNetwork pod has the node's addresses, even those that the Node object does not list.
            let host = host.filter(|it| it.node == Some(node)).flat_map(|it| &it.addresses);
            let all: BTreeSet<IpAddr> = cluster.nodes[node.index()].addresses.iter().chain(host).copied().collect();
            let of_family = |it: &&IpAddr| Family::of(**it) == family && self.facts.owner(**it).is_none();
            let addresses = all.iter().filter(of_family).map(IpAddr::to_string).collect();
            self.sets.insert(&name, "hash:ip", family, addresses);
        }
        name
    }

    /// The addresses of the nodes that a selector selects, without those of pods.
    pub(super) fn selected_nodes_set(&mut self, family: Family, selector: SelectorId) -> String {
        let cluster = self.facts.cluster;
        let name = self.set_name("nodes", family, &format!("{:?}", cluster.labels.selector(selector)));
        if !self.sets.has(&name) {
            let mut all: BTreeSet<IpAddr> = BTreeSet::new();
            for (id, node) in (0..).map(NodeId).zip(&cluster.nodes) {
                if self.facts.selects(selector, node.labels) {
                    let host = cluster.endpoints.iter().filter(|it| it.standing == Standing::HostNetwork);
                    all.extend(host.filter(|it| it.node == Some(id)).flat_map(|it| &it.addresses));
                    all.extend(&node.addresses);
                }
            }
            let of_family = |it: &&IpAddr| Family::of(**it) == family && self.facts.owner(**it).is_none();
            let addresses = all.iter().filter(of_family).map(IpAddr::to_string).collect();
            self.sets.insert(&name, "hash:ip", family, addresses);
        }
        name
    }

    /// The addresses of a list.
    pub(super) fn list_set(&mut self, family: Family, id: ListId) -> String {
        let list = &self.facts.cluster.lists[id.index()];
        let name = self.set_name("list", family, &format!("{} {}", id.0, list.name));
        if !self.sets.has(&name) {
            let of_family = list.entries.iter().filter(|entry| Family::of(entry.first) == family);
            let prefixes: BTreeSet<Prefix> = of_family.flat_map(|it| nets(it.first, it.last)).collect();
            let elements = prefixes.iter().map(Prefix::to_string).collect();
            self.sets.insert(&name, "hash:net", family, elements);
        }
        name
    }

    /// The exceptions of one block.
    pub(super) fn except_set(&mut self, family: Family, except: &[Prefix]) -> String {
        let prefixes: BTreeSet<Prefix> = except.iter().flat_map(|it| nets(it.address(), it.last())).collect();
        let elements: Vec<String> = prefixes.iter().map(Prefix::to_string).collect();
        let name = self.set_name("except", family, &elements.join(","));
        if !self.sets.has(&name) {
            self.sets.insert(&name, "hash:net", family, elements);
        }
        name
    }

    fn set_name(&mut self, kind: &str, family: Family, key: &str) -> String {
        let digit = if family == Family::V4 { 4 } else { 6 };
        self.names.hashed(&format!("weir{digit}-{kind}-"), key)
    }
}

/// The namespaces in which a peer looks for pods.
#[derive(Clone, Copy)]
pub(super) enum NamespaceScope {
    Own(NamespaceId),
    Selected(SelectorId),
}

/// The protocol's name in iptables and ipset.
pub(super) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// A range in the form that `hash:net` accepts: the fewest prefixes, none of them of length 0.
fn nets(first: IpAddr, last: IpAddr) -> impl Iterator<Item = Prefix> {
    Prefix::of_range(first, last, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(first: &str, last: &str, expected: &[&str]) {
        let nets: Vec<String> = nets(first.parse().unwrap(), last.parse().unwrap()).map(|it| it.to_string()).collect();
        assert_eq!(nets, expected);
    }

    #[test]
    fn a_range_is_the_fewest_prefixes() {
        check("10.0.0.1", "10.0.0.1", &["10.0.0.1/32"]);
        check("10.0.0.0", "10.0.0.255", &["10.0.0.0/24"]);
        check("10.0.0.1", "10.0.0.6", &["10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6/32"]);
        check("0.0.0.0", "255.255.255.255", &["0.0.0.0/1", "128.0.0.0/1"]);
        check("255.255.255.254", "255.255.255.255", &["255.255.255.254/31"]);
        check("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &["::/1", "8000::/1"]);
        check("fffe::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &["fffe::/15"]);
        check("2001:db8::", "2001:db8::2", &["2001:db8::/127", "2001:db8::2/128"]);
    }
}
