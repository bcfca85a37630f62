//! The wording of lints, and the places that they point to.

use weir_model::{CidrList, Cluster, Direction, EndpointId, Policy, PortRule, rule_path};
use weir_objects::address::Prefix;
use weir_objects::k8s::{LabelSelector, ListEntry, Operator, PortMatch, Protocol, Requirement};
use weir_objects::origin::{FieldOrigin, FieldPath};

/// `1 pod`, `2 pods`.
pub(super) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// `1 policy`, `2 policies`
pub(super) fn policies(number: usize) -> String {
    if number == 1 { "1 policy".to_owned() } else { format!("{number} policies") }
}

/// `pod shop/api-1`, `Deployment shop/api`.
pub(super) fn endpoint(cluster: &Cluster, id: EndpointId) -> String {
    let kind = cluster.endpoints[id.index()].kind.as_ref();
    format!("{} {}", if kind == "Pod" { "pod" } else { kind }, cluster.endpoint_name(id))
}

/// `shop/api`
pub(super) fn policy(cluster: &Cluster, policy: &Policy) -> String {
    format!("{}/{}", cluster.namespaces[policy.namespace.index()].name, policy.name)
}

/// `TCP`, `UDP`, `SCTP`
pub(super) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

/// `80/TCP, http/TCP`, or `all ports`
pub(super) fn ports(ports: &[PortRule]) -> String {
    if ports.is_empty() {
        return "all ports".to_owned();
    }
    let one = |rule: &PortRule| match &rule.port {
        PortMatch::Any => format!("every port/{}", protocol(rule.protocol)),
        PortMatch::Range(first, last) if first == last => format!("{first}/{}", protocol(rule.protocol)),
        PortMatch::Range(first, last) => format!("{first}-{last}/{}", protocol(rule.protocol)),
        PortMatch::Named(name) => format!("{name}/{}", protocol(rule.protocol)),
    };
    some(ports.iter().map(one), 3)
}

/// The first few items, and the number of the others: `a, b, c and 4 more`.
pub(super) fn some(items: impl Iterator<Item = String>, most: usize) -> String {
    let items: Vec<String> = items.collect();
    let rest = items.len().saturating_sub(most);
    let shown = items.into_iter().take(most).collect::<Vec<_>>().join(", ");
    if rest == 0 { shown } else { format!("{shown} and {rest} more") }
}

/// `app=api, tier in (web, db), !legacy`; `{}` if empty.
pub(super) fn selector(selector: &LabelSelector) -> String {
    let pairs = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let text = pairs.chain(selector.match_expressions.iter().map(requirement)).collect::<Vec<_>>().join(", ");
    if text.is_empty() { "{}".to_owned() } else { text }
}

fn requirement(it: &Requirement) -> String {
    match it.operator {
        Operator::In => format!("{} in ({})", it.key, it.values.join(", ")),
        Operator::NotIn => format!("{} notin ({})", it.key, it.values.join(", ")),
        Operator::Exists => it.key.clone(),
        Operator::DoesNotExist => format!("!{}", it.key),
    }
}

/// `from` or `to`.
pub(super) fn peers_field(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    }
}

/// The other direction.
pub(super) fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Ingress => Direction::Egress,
        Direction::Egress => Direction::Ingress,
    }
}

/// `spec.ingress[0].from[1]`
pub(super) fn peer_path(direction: Direction, rule: usize, peer: usize) -> FieldPath {
    rule_path(direction, rule).field(peers_field(direction)).index(peer)
}

/// `spec.ingress[0].ports[1]`
pub(super) fn port_path(direction: Direction, rule: usize, port: usize) -> FieldPath {
    rule_path(direction, rule).field("ports").index(port)
}

/// The place of a policy's rules for a direction; its policyTypes if it isolates without rules.
pub(super) fn direction_origin(policy: &Policy, direction: Direction) -> FieldOrigin {
    let has_rules = policy.rules(direction).is_some_and(|rules| !rules.is_empty());
    let field = if has_rules { direction.name() } else { "policyTypes" };
    FieldOrigin::new(policy.object, FieldPath::root().field("spec").field(field))
}

/// The place of a policy's name.
pub(super) fn name_origin(policy: &Policy) -> FieldOrigin {
    FieldOrigin::new(policy.object, FieldPath::root().field("metadata").field("name"))
}

/// `app=a, app notin (a)`
pub(super) fn requirements(all: &[Requirement]) -> String {
    let one = |it: &Requirement| match (it.operator, &it.values[..]) {
        (Operator::In, [value]) => format!("{}={value}", it.key),
        _ => requirement(it),
    };
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The place of an entry of a list.
pub(super) fn entry_origin(list: &CidrList, position: u32) -> FieldOrigin {
    FieldOrigin::new(list.object, FieldPath::root().field("spec").field("cidrs").index(position as usize))
}

/// `192.0.2.0/24`, `192.0.2.7`, `192.0.2.7-192.0.2.9`
pub(super) fn entry(entry: &ListEntry) -> String {
    if entry.first == entry.last {
        return entry.first.to_string();
    }
    match Prefix::exactly(entry.first, entry.last) {
        Some(prefix) => prefix.to_string(),
        None => format!("{}-{}", entry.first, entry.last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_reads_like_a_kubectl_option() {
        let in_two = Requirement {
            key: "tier".to_owned(),
            operator: Operator::In,
            values: vec!["web".to_owned(), "db".to_owned()],
        };
        let without = Requirement { key: "legacy".to_owned(), operator: Operator::DoesNotExist, values: Vec::new() };
        let both = LabelSelector {
            match_labels: [("app".to_owned(), "api".to_owned())].into(),
            match_expressions: vec![in_two, without],
        };
        assert_eq!(selector(&both), "app=api, tier in (web, db), !legacy");
        assert_eq!(selector(&LabelSelector::default()), "{}");
    }
}
