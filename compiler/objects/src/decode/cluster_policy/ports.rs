//! Protocols and ports of cluster-wide policies.

use super::{Found, Spelling, exactly_one};
use crate::decode::codes;
use crate::decode::ports as common;
use crate::decode::report::ObjectFindings;
use crate::decode::trail::Trail;
use crate::decode::view::ValueView;
use crate::k8s::{ClusterPolicyKind, ClusterPort, PolicyPort, PortMatch, Protocol};

const PROTOCOLS: [(&str, Protocol); 3] = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("sctp", Protocol::Sctp)];

impl Spelling {
    /// The field with the name of a port.
    pub(super) fn port_name<'n, 't>(&self, port: ValueView<'n, 't>) -> ValueView<'n, 't> {
        match self.kind {
            ClusterPolicyKind::ClusterNetworkPolicy => port.get("destinationNamedPort"),
            ClusterPolicyKind::AdminNetworkPolicy | ClusterPolicyKind::BaselineAdminNetworkPolicy => {
                port.get("namedPort")
            }
        }
    }

    pub(super) fn port(
        &self,
        port: ValueView<'_, '_>,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) -> Option<ClusterPort> {
        match self.kind {
            ClusterPolicyKind::ClusterNetworkPolicy => v1alpha2(port, at, report),
            ClusterPolicyKind::AdminNetworkPolicy | ClusterPolicyKind::BaselineAdminNetworkPolicy => {
                v1alpha1(port, at, report)
            }
        }
    }
}

fn v1alpha2(port: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<ClusterPort> {
    if exactly_one(port, &["tcp", "udp", "sctp", "destinationNamedPort"], at, report) == Found::None {
        return None;
    }
    if let Some(name) = port.get("destinationNamedPort").string() {
        return Some(ClusterPort::Named(name));
    }
    let (field, protocol) = PROTOCOLS.into_iter().find(|(name, _)| port.get(name).is_there())?;
    let at = at.field(field);
    // Spec: `minProperties: 1`, and `destinationPort` is the only property: `tcp: {}` does not mean every port.
    exactly_one(port.get(field), &["destinationPort"], &at, report);
    let (port, at) = (port.get(field).get("destinationPort"), at.field("destinationPort"));
    if !port.is_there() {
        return None;
    }
    if exactly_one(port, &["number", "range"], &at, report) == Found::None {
        return None;
    }
    let matched = match port.get("range").is_there() {
        true => range(port.get("range"), true, &at.field("range"), report),
        false => number(port.get("number"), &at.field("number"), report).map(|it| PortMatch::Range(it, it)),
    };
    Some(ClusterPort::Transport(PolicyPort { protocol, port: matched? }))
}

fn v1alpha1(port: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<ClusterPort> {
    if exactly_one(port, &["portNumber", "portRange", "namedPort"], at, report) == Found::None {
        return None;
    }
    if let Some(name) = port.get("namedPort").string() {
        return Some(ClusterPort::Named(name));
    }
    let (one, several) = (port.get("portNumber"), port.get("portRange"));
    let (found, at) = match one.is_there() {
        true => (one, at.field("portNumber")),
        false => (several, at.field("portRange")),
    };
    let protocol = common::protocol(found.get("protocol"), &at.field("protocol"), report);
    let matched = match one.is_there() {
        true => number(found.get("port"), &at.field("port"), report).map(|it| PortMatch::Range(it, it)),
        false => range(found, false, &at, report),
    };
    Some(ClusterPort::Transport(PolicyPort { protocol: protocol?, port: matched? }))
}

fn number(written: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<u16> {
    match written.int() {
        Some(number) => common::number(number, at, report),
        None => {
            report.missing(at, |origin| codes::missing_field::at(origin, "port"));
            None
        }
    }
}

// Spec: the rule `self.start < self.end` of v1alpha2. v1alpha1 has none, and a range of one port is taken. A reversed
// range is refused there as well: no port is in it, and a rule without ports would apply to all of them.
fn range(range: ValueView<'_, '_>, needs_two: bool, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<PortMatch> {
    let [start, end] = ["start", "end"].map(|name| {
        let at = at.field(name);
        match range.get(name).int() {
            Some(written) => common::number(written, &at, report),
            None => {
                report.missing(&at, |origin| codes::missing_field::at(origin, name));
                None
            }
        }
    });
    let (start, end) = (start?, end?);
    if start > end || needs_two && start == end {
        report.error(at, |origin| codes::empty_port_range::at(origin, start, end));
    }
    Some(PortMatch::Range(start, end))
}
