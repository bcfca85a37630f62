//! Subjects and peers of cluster-wide policies.

use super::{Spelling, count, exactly_one, only};
use crate::address::{Prefix, Quirk, parse_address, parse_cidr};
use crate::decode::report::ObjectFindings;
use crate::decode::schema::ValueType;
use crate::decode::trail::Trail;
use crate::decode::view::ValueView;
use crate::decode::{codes, quirks, selector};
use crate::k8s::{ClusterPeer, ClusterPolicyKind, LabelSelector, RuleAction};
use crate::syntax::SyntaxValue;

/// The most networks or domain names of a peer.
const MOST_ADDRESSES: usize = 25;
/// The most characters of a network.
const LONGEST_NETWORK: usize = 43;

impl Spelling {
    pub(super) fn peer(
        &self,
        peer: ValueView<'_, '_>,
        is_egress: bool,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) -> Option<ClusterPeer> {
        let fields: &'static [&'static str] = match (is_egress, self.has_domain_names) {
            (false, _) => &["namespaces", "pods"],
            (true, false) => &["namespaces", "pods", "nodes", "networks"],
            (true, true) => &["namespaces", "pods", "nodes", "networks", "domainNames"],
        };
        if !fields.iter().any(|name| peer.get(name).is_there()) && report.is_from_server() {
            return Some(ClusterPeer::Unknown);
        }
        only(peer, fields, at, report);
        exactly_one(peer, fields, at, report);
        if peer.get("nodes").is_there() && is_egress {
            return Some(ClusterPeer::Nodes(selector(peer.get("nodes"), &at.field("nodes"), report)));
        }
        if peer.get("networks").is_there() && is_egress {
            return Some(ClusterPeer::Networks(networks(peer.get("networks"), &at.field("networks"), report)));
        }
        if peer.get("domainNames").is_there() && is_egress {
            return Some(ClusterPeer::DomainNames(names(peer.get("domainNames"), &at.field("domainNames"), report)));
        }
        let (namespaces, pods) = self.namespaces_or_pods(peer, at, report)?;
        Some(ClusterPeer::Pods { namespaces, pods })
    }

    /// Refuses a port name in an egress rule whose peers have no port names.
    pub(super) fn refuse_names(
        &self,
        rule: ValueView<'_, '_>,
        peers: ValueView<'_, '_>,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) {
        let by_address = ["networks", "nodes", "domainNames"];
        let has_addresses = peers.items().any(|peer| by_address.iter().any(|name| peer.get(name).is_there()));
        let mut ports = rule.get(self.kind.ports_field()).items();
        if has_addresses && ports.any(|port| self.port_name(port).is_there()) {
            report.error(at, codes::named_port_without_pods::at);
        }
    }

    /// The selectors of `namespaces` or `pods`.
    pub(super) fn namespaces_or_pods(
        &self,
        of: ValueView<'_, '_>,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) -> Option<(LabelSelector, LabelSelector)> {
        let (namespaces, pods) = (of.get("namespaces"), of.get("pods"));
        let by_pods = pods.is_there().then(|| self.pods(pods, &at.field("pods"), report));
        match namespaces.is_there() {
            true => Some((selector(namespaces, &at.field("namespaces"), report), LabelSelector::default())),
            false => by_pods,
        }
    }

    fn pods(
        &self,
        pods: ValueView<'_, '_>,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) -> (LabelSelector, LabelSelector) {
        let mut one = |name| {
            let at = at.field(name);
            // Only v1alpha2 has a default, for namespaces: all of them.
            let has_default = name == "namespaceSelector" && self.kind == ClusterPolicyKind::ClusterNetworkPolicy;
            if !has_default && !pods.get(name).is_there() {
                report.missing(&at, |origin| codes::missing_field::at(origin, name));
            }
            selector(pods.get(name), &at, report)
        };
        (one("namespaceSelector"), one("podSelector"))
    }
}

/// Reads a selector. In a custom resource, a list cannot have null items.
fn selector(of: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> LabelSelector {
    let expressions = at.field("matchExpressions");
    for (index, expression) in of.get("matchExpressions").items().enumerate() {
        let at = expressions.index(index);
        if !expression.is_there() {
            report.blemish(&at, |origin| codes::wrong_type::structure(origin, &SyntaxValue::Null));
        }
        let at = at.field("values");
        for (index, _) in expression.get("values").items().enumerate().filter(|(_, value)| !value.is_there()) {
            report
                .blemish(&at.index(index), |origin| codes::wrong_type::at(origin, &ValueType::Str, &SyntaxValue::Null));
        }
    }
    selector::read(of, at, report)
}

// Spec: the CRD's rule `isCIDR(self)`, which takes what Go's netip.ParsePrefix takes, without IPv4-mapped addresses.
fn networks(networks: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Vec<Prefix> {
    count(networks.items().len(), MOST_ADDRESSES, at, report);
    repeated(networks, at, report);
    let mut read = Vec::new();
    for (index, network) in networks.items().enumerate() {
        let (text, at) = (network.str().unwrap_or_default(), at.index(index));
        if text.len() > LONGEST_NETWORK {
            report.error(&at, |origin| codes::bad_value::too_long(origin, LONGEST_NETWORK));
            continue;
        }
        let address = text.split_once('/').and_then(|(address, _)| parse_address(address));
        let is_mapped = address.is_some_and(|it| it.quirk == Some(Quirk::Ipv4Mapped));
        match parse_cidr(text) {
            Some(parsed) if !is_mapped && matches!(parsed.quirk, None | Some(Quirk::HostBits)) => {
                quirks::warn(text, parsed.value, parsed.quirk, &at, report);
                read.push(parsed.value);
            }
            _ => report.error(&at, |origin| codes::bad_cidr::at(origin, text)),
        }
    }
    read
}

fn names(names: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Vec<String> {
    count(names.items().len(), MOST_ADDRESSES, at, report);
    repeated(names, at, report);
    let mut read = Vec::new();
    for (index, name) in names.items().enumerate() {
        let text = name.str().unwrap_or_default();
        match is_domain_name(text) {
            true => read.push(text.to_owned()),
            false => report.error(&at.index(index), |origin| codes::bad_value::domain_name(origin, text)),
        }
    }
    read
}

/// Reports the items of a set that occurred before: each once, as the server does.
fn repeated(items: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) {
    let texts: Vec<&str> = items.items().map(|item| item.str().unwrap_or_default()).collect();
    for (index, text) in texts.iter().enumerate() {
        if texts.iter().take(index).filter(|it| *it == text).count() != 1 {
            continue;
        }
        report.error(&at.index(index), |origin| codes::repeated_item::at(origin, text));
    }
}

// Spec: the CRD's pattern
// `^(\*\.)?([a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$`.
fn is_domain_name(text: &str) -> bool {
    let text = text.strip_prefix("*.").unwrap_or(text);
    let labels: Vec<&str> = text.strip_suffix('.').unwrap_or(text).split('.').collect();
    labels.len() >= 2 && labels.iter().all(|label| is_domain_label(label.as_bytes()))
}

fn is_domain_label(label: &[u8]) -> bool {
    // `A-z` of the pattern contains the characters between `Z` and `a`, too.
    let is_first = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'z').contains(&byte);
    match label {
        [] => false,
        [first] => is_first(*first),
        [first, inner @ .., last] => {
            let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            is_first(*first) && inner.iter().all(is_inner) && last.is_ascii_alphanumeric()
        }
    }
}

/// Warns about peers that Weir cannot enforce.
pub(super) fn warn_unsupported(peers: &[ClusterPeer], action: RuleAction, at: &Trail<'_>, report: &mut ObjectFindings) {
    for (index, peer) in peers.iter().enumerate() {
        let what = match peer {
            ClusterPeer::DomainNames(_) => "`domainNames` are not enforced yet",
            ClusterPeer::Unknown => "this peer has no field that Weir knows",
            ClusterPeer::Pods { .. } | ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) => continue,
        };
        report.warn(&at.index(index), |origin| codes::unsupported_peer::at(origin, what, action));
    }
}
