//! A named port that none of the pods in question has.

use std::collections::BTreeMap;

use super::context::{LintContext, PolicyRule};
use super::groups::GroupId;
use super::words;
use weir_model::{Direction, IpBlockPods, Peer, Policy, Rule, rule_path};
use weir_objects::decode::nearest;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::k8s::{PortMatch, Protocol};
use weir_objects::origin::FieldOrigin;

pub(super) static CODE: Code =
    Code::lint("named-port-unknown", Severity::Warning, include_str!("named_port_unknown.diff"))
        .what("A rule names a port that none of its destination pods has.")
        .why(
            "A named port is looked up on the destination: the selected pods for ingress, the peers for egress. The \
          rule does not apply to a pod whose containers have no port with this name and protocol. Addresses \
          outside the cluster have no named ports.",
        );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    context.rules().for_each(|at| check_rule(context, at, found));
}

fn check_rule(context: &LintContext<'_>, at: PolicyRule<'_>, found: &mut Diagnostics) {
    let PolicyRule { policy, direction, index, rule } = at;
    let named = rule.ports.iter().enumerate().filter_map(|(position, port)| match &port.port {
        PortMatch::Named(name) => Some((position, name.as_str(), port.protocol)),
        _ => None,
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() {
        return;
    }
    let Some(destinations) = destinations(context, policy, direction, rule) else { return };
    for (position, name, protocol) in named {
        let has_it = destinations.iter().any(|id| {
            context.spend(1);
            context.group(*id).has_port(name, protocol)
        });
        if !has_it {
            let origin = FieldOrigin::new(policy.object, words::port_path(direction, index, position).field("port"));
            let message = format!(
                "no destination of {} of policy {} has a port `{name}`",
                rule_path(direction, index),
                words::policy(context.cluster, policy)
            );
            found.push(describe(context, Diagnostic::at(&CODE, origin, message), &destinations, name, protocol));
        }
    }
}

/// The pods at the destination of a rule; `None` if the input does not show all of them.
fn destinations(context: &LintContext<'_>, policy: &Policy, direction: Direction, rule: &Rule) -> Option<Vec<GroupId>> {
    let all = || (0..context.groups().len() as u32).map(GroupId);
    let mut destinations: Vec<GroupId> = match direction {
        Direction::Ingress => context.subjects(policy).to_vec(),
        Direction::Egress if rule.peers.is_empty() => context.whole.then(|| all().collect())?,
        Direction::Egress => {
            let mut reached = Vec::new();
            for peer in &rule.peers {
                match peer {
                    // A block does not suppress the finding: addresses outside of the cluster have no named ports.
                    Peer::Block { .. } => {
                        context.spend(context.groups().len());
                        reached.extend(all().filter(|id| context.may_be_in_block(*id, peer)));
                    }
                    Peer::Pods { .. } if context.shows_pods(policy.namespace, peer) => {
                        reached.extend_from_slice(&context.peer_groups(policy.namespace, peer));
                    }
                    Peer::Pods { .. } => return None,
                }
            }
            reached
        }
    };
    context.spend(destinations.len());
    destinations.sort_unstable();
    destinations.dedup();
    let only_blocks =
        direction == Direction::Egress && rule.peers.iter().all(|peer| matches!(peer, Peer::Block { .. }));
    // Blocks that ignore pods contain only addresses outside, whatever pods there are.
    let never_pods = || context.is_open() && context.cluster.assume.ipblock_pods == IpBlockPods::Ignore;
    let no_pod_has_it = only_blocks && (!context.groups().is_empty() || never_pods());
    (!destinations.is_empty() || no_pod_has_it).then_some(destinations)
}

fn describe(
    context: &LintContext<'_>,
    diagnostic: Diagnostic,
    destinations: &[GroupId],
    name: &str,
    protocol: Protocol,
) -> Diagnostic {
    let protocol_name = words::protocol(protocol);
    let Some(first) = destinations.first().map(|id| context.group(*id)) else {
        return diagnostic
            .label("an address outside the cluster has no named ports")
            .help("write the number of the port");
    };
    let mut known: BTreeMap<&str, (u16, Protocol)> = BTreeMap::new();
    for port in destinations.iter().take(1000).flat_map(|id| &context.group(*id).ports) {
        known.entry(&port.name).or_insert((port.number, port.protocol));
    }
    let pods: usize = destinations.iter().map(|id| context.group(*id).pods).sum();
    let label = format!("none of {} has it", words::count(pods, "pod"));
    let diagnostic = diagnostic.label(if pods == 1 { "the pod does not have it".to_owned() } else { label });
    let example = words::endpoint(context.cluster, first.first);
    if let Some((number, other)) = known.get(name) {
        return diagnostic
            .note(format!("`{name}` is port {number}/{} there, the rule says {protocol_name}", words::protocol(*other)))
            .help(format!("write `protocol: {}`", words::protocol(*other)));
    }
    match nearest(name, known.keys().copied()) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None if known.is_empty() => diagnostic
            .note(format!("{example} has no named ports at all"))
            .help(format!("name the container's port `{name}`, or write its number here")),
        None => diagnostic
            .note(format!("they have: {}", words::some(known.keys().map(|it| format!("`{it}`")), 5)))
            .help("name one of these, or write the number of the port"),
    }
}
