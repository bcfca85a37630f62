//! NetworkPolicy: the checks of the API server's own validation, and the object that passes them.

use crate::address::{self, Prefix};
use crate::k8s::{Mode, NetworkPolicy, PolicyPeer, PolicyPort, PolicyRule, PolicyType, PortMatch};

use super::codes;
use super::metadata;
use super::names;
use super::ports;
use super::quirks;
use super::report::ObjectFindings;
use super::selector;
use super::trail::Trail;
use super::view::ValueView;

/// Reads a policy whose shape has been checked. The result may be used only if the report has no errors.
// Spec: ValidateNetworkPolicy of k8s.io/kubernetes/pkg/apis/networking/validation, 1.35.
pub(super) fn read(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> NetworkPolicy {
    metadata::validate(object, metadata::Of::NetworkPolicy, report);
    let (spec, at) = (object.get("spec"), Trail::ROOT.field("spec"));
    let pod_selector_written = spec.get("podSelector").is_there();
    let selector_at = at.field("podSelector");
    if !pod_selector_written {
        report.warn(&selector_at, codes::pod_selector_absent::at);
    }
    NetworkPolicy {
        pod_selector: selector::read(spec.get("podSelector"), &selector_at, report),
        pod_selector_written,
        ingress: rules(spec.get("ingress"), "from", &at.field("ingress"), report),
        egress: rules(spec.get("egress"), "to", &at.field("egress"), report),
        policy_types: policy_types(spec.get("policyTypes"), &at.field("policyTypes"), report),
        mode: mode(object, report),
    }
}

/// The mode of a policy, cluster-wide or not.
pub(super) fn mode(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> Mode {
    match metadata::mode(object) {
        None | Some("enforce") => Mode::Enforce,
        Some("audit") => Mode::Audit,
        Some(other) => {
            metadata::at_mode(|at| report.error(at, |origin| codes::bad_mode::at(origin, other)));
            Mode::Enforce
        }
    }
}

fn rules(rules: ValueView<'_, '_>, peers: &str, at: &Trail<'_>, report: &mut ObjectFindings) -> Vec<PolicyRule> {
    let mut read = Vec::with_capacity(rules.items().len());
    for (index, rule) in rules.items().enumerate() {
        let at = at.index(index);
        if !rule.is_there() {
            report.warn(&at, |origin| codes::null_rule::rule(origin, peers));
        }
        let (ports_at, peers_at) = (at.field("ports"), at.field(peers));
        let ports = rule.get("ports").items().enumerate();
        let ports = ports.filter_map(|(index, entry)| port(entry, &ports_at.index(index), report)).collect();
        let peers = rule.get(peers).items().enumerate();
        let peers = peers.filter_map(|(index, entry)| peer(entry, &peers_at.index(index), report)).collect();
        read.push(PolicyRule { peers, ports });
    }
    read
}

// Spec: ValidateNetworkPolicyPort.
fn port(entry: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<PolicyPort> {
    if !entry.is_there() {
        report.warn(at, codes::null_rule::port);
    }
    let protocol = ports::protocol(entry.get("protocol"), &at.field("protocol"), report);
    let (port, end) = (entry.get("port"), entry.get("endPort"));
    let (port_at, end_at) = (at.field("port"), at.field("endPort"));
    let port = match (port.int(), port.str()) {
        (Some(first), _) => range(first, end.int(), &port_at, &end_at, report),
        (None, Some(name)) => {
            if end.is_there() {
                report.error(&end_at, |origin| codes::end_port_with_named_port::at(origin, name));
            }
            named(name, &port_at, report)
        }
        (None, None) => {
            if end.is_there() {
                report.error(&end_at, codes::end_port_without_port::at);
            }
            Some(PortMatch::Any)
        }
    };
    Some(PolicyPort { protocol: protocol?, port: port? })
}

fn range(
    first: i64,
    end: Option<i64>,
    port_at: &Trail<'_>,
    end_at: &Trail<'_>,
    report: &mut ObjectFindings,
) -> Option<PortMatch> {
    let last = end.unwrap_or(first);
    if last < first {
        report.error(end_at, |origin| codes::end_port_before_port::at(origin, first, last));
    }
    let first = ports::number(first, port_at, report);
    let last = if end.is_some() { ports::number(last, end_at, report) } else { first };
    Some(PortMatch::Range(first?, last?))
}

fn named(name: &str, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<PortMatch> {
    if let Err(why) = names::port_name(name) {
        report.error(at, |origin| codes::bad_port_name::at(origin, name, why));
        return None;
    }
    Some(PortMatch::Named(name.to_owned()))
}

// Spec: ValidateNetworkPolicyPeer.
fn peer(entry: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<PolicyPeer> {
    let [pods, namespaces] = ["podSelector", "namespaceSelector"].map(|name| {
        let found = entry.get(name);
        found.is_there().then(|| selector::read(found, &at.field(name), report))
    });
    let block = entry.get("ipBlock");
    let has_selector = pods.is_some() || namespaces.is_some();
    if block.is_there() {
        let block = ip_block(block, &at.field("ipBlock"), report);
        if has_selector {
            report.error(at, codes::ip_block_with_selector::at);
        }
        return block;
    }
    if !has_selector {
        report.error(at, codes::empty_peer::at);
    }
    Some(PolicyPeer::Pods { pods, namespaces })
}

// Spec: ValidateIPBlock.
fn ip_block(block: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<PolicyPeer> {
    let cidr_at = at.field("cidr");
    let text = block.get("cidr").str().unwrap_or_default();
    if text.is_empty() {
        report.missing(&cidr_at, codes::missing_cidr::at);
        return None;
    }
    let cidr = WrittenCidr::read(text, &cidr_at, report)?;
    let at = at.field("except");
    let mut except = Vec::new();
    for (index, hole) in block.get("except").items().enumerate() {
        let (at, text) = (at.index(index), hole.str().unwrap_or_default());
        let Some(hole) = WrittenCidr::read(text, &at, report) else { continue };
        if !cidr.has_strictly_inside(hole) {
            let whole = report.origin(&cidr_at);
            report.error(&at, |origin| codes::except_not_inside::at(origin, text, whole, cidr.prefix, hole.prefix));
        }
        except.push(hole.prefix);
    }
    Some(PolicyPeer::Block { cidr: cidr.prefix, except })
}

/// A CIDR with its length as written. The server compares the written lengths, even if one of the two is an IPv4-mapped
/// prefix, whose length is larger by 96.
#[derive(Clone, Copy)]
struct WrittenCidr {
    prefix: Prefix,
    written_len: u32,
}

impl WrittenCidr {
    fn read(text: &str, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<Self> {
        let Some(parsed) = address::parse_cidr(text) else {
            report.error(at, |origin| codes::bad_cidr::at(origin, text));
            return None;
        };
        quirks::warn(text, parsed.value, parsed.quirk, at, report);
        let written = text.rsplit_once('/').and_then(|(_, len)| len.parse().ok());
        Some(Self { prefix: parsed.value, written_len: written.unwrap_or_else(|| u32::from(parsed.value.len())) })
    }

    fn has_strictly_inside(self, hole: Self) -> bool {
        self.prefix.contains(hole.prefix.address()) && self.written_len < hole.written_len
    }
}

fn policy_types(types: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Vec<PolicyType> {
    let mut read = Vec::new();
    let count = types.items().len();
    if count > 2 {
        report.error(at, |origin| codes::too_many_policy_types::at(origin, count));
        return read;
    }
    for (index, entry) in types.items().enumerate() {
        let (name, at) = (entry.str().unwrap_or_default(), at.index(index));
        let policy_type = match name {
            "Ingress" => PolicyType::Ingress,
            "Egress" => PolicyType::Egress,
            _ => {
                report.error(&at, |origin| codes::bad_policy_type::at(origin, name));
                continue;
            }
        };
        if read.contains(&policy_type) {
            report.warn(&at, |origin| codes::repeated_policy_type::at(origin, name));
        }
        read.push(policy_type);
    }
    read
}
