//! Traffic that one end allows and the other end denies.

use std::collections::HashSet;

use super::cohorts::Cohorts;
use super::context::{LintContext, PolicyRule};
use super::groups::{GroupId, PodGroup};
use super::words;
use weir_analysis::world::{DeniedRule, RulePlace};
use weir_model::{Direction, NamespaceId, Peer, Policy, PolicyId, PortRule, Rule, rule_path};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::k8s::{PortMatch, Protocol};

pub(super) static CODE: Code = Code::lint("one-sided-allow", Severity::Warning, include_str!("one_sided_allow.diff"))
    .what("A rule allows traffic that policies at the other end deny.")
    .why(
        "A connection needs both ends: the egress of the pod that opens it, and the ingress of the pod that it \
         goes to. Every pod of the input that this rule applies to is isolated at the other end, and no rule \
         there allows the traffic, so the rule has no effect. If the input has no pods, but the policies \
         of the other end deny the traffic for every pod that could exist, this is a note. The lint ignores rules with \
         address blocks or without peers, because they may be meant for others.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let mut reported = HashSet::new();
    let cohorts = context.cohorts();
    if cohorts.are_known(context) {
        for PolicyRule { policy, direction, index, rule } in context.rules() {
            let question = OneSidedCheck { context, cohorts, policy, direction, rule };
            if let Some(pair) = question.denied_pair() {
                found.push(question.describe(index, pair));
                reported.insert((policy.object, direction, index));
            }
        }
    }
    for denied in context.coverage().map_or(&[][..], |it| &it.denied) {
        let RulePlace { direction, rule } = denied.rule;
        let policy = context.cluster.policy(rule.policy);
        if !reported.contains(&(policy.object, direction, rule.rule as usize)) && !opens(context, &denied.by, direction)
        {
            found.push(describe_possible(context, denied));
        }
    }
}

/// Whether the Admin tier may accept what these policies deny at the other end.
fn opens(context: &LintContext<'_>, denying: &[PolicyId], direction: Direction) -> bool {
    let other = words::opposite(direction);
    denying.iter().any(|id| context.may_be_accepted(context.cluster.policy(*id), other, |_| true))
}

/// A rule that the other end denies for every pod that could exist.
fn describe_possible(context: &LintContext<'_>, denied: &DeniedRule) -> Diagnostic {
    let cluster = context.cluster;
    let RulePlace { direction, rule } = denied.rule;
    let (policy, other) = (cluster.policy(rule.policy), words::opposite(direction));
    let end = if direction == Direction::Ingress { "senders" } else { "receivers" };
    let path = rule_path(direction, rule.rule as usize);
    let message = format!(
        "{path} of policy {} has no effect: policies of the {end} deny them {}",
        words::policy(cluster, policy),
        other.name()
    );
    let mut diagnostic = Diagnostic::at(&CODE, policy.rule_origin(direction, rule.rule as usize), message)
        .label("denied at the other end for every possible pod");
    for id in denied.by.iter().take(3) {
        let text = format!("isolates the {end} for {}", other.name());
        diagnostic = diagnostic.also(words::direction_origin(cluster.policy(*id), other), text);
    }
    // The policies that allow it may be in another repository.
    diagnostic.severity = Severity::Note;
    diagnostic.help(format!("allow the {end} this traffic for {}, or remove the rule", other.name()))
}

/// One rule, to decide whether everything that it allows is denied at the far end.
struct OneSidedCheck<'q, 'c> {
    context: &'q LintContext<'c>,
    cohorts: &'q Cohorts,
    policy: &'q Policy,
    direction: Direction,
    rule: &'q Rule,
}

/// A pod that the policy selects, and one that the rule's peers match.
struct PodPair {
    near: GroupId,
    far: GroupId,
}

impl OneSidedCheck<'_, '_> {
    /// A pair of pods, if every pair is denied at the far end.
    fn denied_pair(&self) -> Option<PodPair> {
        let (context, own) = (self.context, self.policy.namespace);
        let shown = |peer: &Peer| context.shows_pods(own, peer);
        if self.rule.peers.is_empty() || !self.rule.peers.iter().all(shown) {
            return None;
        }
        let near = context.subjects(self.policy);
        let far: Vec<_> = self.rule.peers.iter().map(|peer| context.peer_groups(own, peer)).collect();
        let mut asked = HashSet::new();
        let mut example = None;
        for group in far.iter().flat_map(|groups| groups.iter().copied()) {
            context.spend(1);
            let cohort = self.cohorts.id_of(group);
            // At the far end of an ingress rule only the senders' policies matter, so one group of a cohort is enough.
            // At the far end of an egress rule the named ports of each receiver matter too.
            if self.direction == Direction::Ingress && !asked.insert(cohort) && example.is_some() {
                continue;
            }
            let policies = self.cohorts.of(group).isolating(words::opposite(self.direction));
            if policies.is_empty()
                || context.is_spent(self.policy.object)
                || opens(context, policies, self.direction)
                || self.lets_any_pass(policies, group, &near)
            {
                return None;
            }
            example = example.or_else(|| self.pair(group, &near));
        }
        example
    }

    /// Two different pods for which the rule allows any port.
    fn pair(&self, far: GroupId, near: &[GroupId]) -> Option<PodPair> {
        let is_pair = |near: &GroupId| {
            self.context.spend(1);
            let distinct = *near != far || self.context.group(far).second.is_some();
            distinct && meet(&self.rule.ports, &self.rule.ports, self.destination(far, *near))
        };
        near.iter().copied().find(is_pair).map(|near| PodPair { near, far })
    }

    fn destination(&self, far: GroupId, near: GroupId) -> &PodGroup {
        self.context.group(if self.direction == Direction::Ingress { near } else { far })
    }

    /// Whether these policies of the far end allow any of the rule's traffic, as far as the input shows.
    fn lets_any_pass(&self, policies: &[PolicyId], far: GroupId, near: &[GroupId]) -> bool {
        policies.iter().any(|id| {
            let policy = &self.context.cluster.policies[id.index()];
            let rules = policy.rules(words::opposite(self.direction)).unwrap_or_default();
            rules.iter().any(|rule| self.rule_lets_pass(policy.namespace, rule, far, near))
        })
    }

    fn rule_lets_pass(&self, own: NamespaceId, rule: &Rule, far: GroupId, near: &[GroupId]) -> bool {
        let ports_meet = |near: &GroupId| {
            self.context.spend(1 + rule.ports.len() * self.rule.ports.len());
            meet(&self.rule.ports, &rule.ports, self.destination(far, *near))
        };
        if rule.peers.is_empty() {
            return near.iter().any(ports_meet);
        }
        rule.peers.iter().any(|peer| match peer {
            Peer::Block { .. } => {
                self.context.spend(near.len());
                near.iter().any(|near| self.context.may_be_in_block(*near, peer) && ports_meet(near))
            }
            Peer::Pods { .. } => {
                let matched = self.context.peer_groups(own, peer);
                let (few, many) = if near.len() < matched.len() { (near, &*matched) } else { (&*matched, near) };
                self.context.spend(few.len());
                few.iter().any(|id| many.binary_search(id).is_ok() && ports_meet(id))
            }
        })
    }

    fn describe(&self, index: usize, pair: PodPair) -> Diagnostic {
        let cluster = self.context.cluster;
        let (near, far) = (self.context.group(pair.near), self.context.group(pair.far));
        let far_pod = if pair.near == pair.far { far.second.unwrap_or(far.first) } else { far.first };
        let (near_name, far_name) = (words::endpoint(cluster, near.first), words::endpoint(cluster, far_pod));
        let (other, path) = (words::opposite(self.direction), rule_path(self.direction, index));
        let name = words::policy(cluster, self.policy);
        let (end, way) = match self.direction {
            Direction::Ingress => ("the senders", format!("{far_name} to {near_name}")),
            Direction::Egress => ("the receivers", format!("{near_name} to {far_name}")),
        };
        let message =
            format!("{path} of policy {name} has no effect: {end} are denied {} by their own policies", other.name());
        let mut diagnostic = Diagnostic::at(&CODE, self.policy.rule_origin(self.direction, index), message)
            .label(format!("allows {}, which is denied at the other end", words::ports(&self.rule.ports)));
        let isolating = self.cohorts.of(pair.far).isolating(other);
        for id in isolating.iter().take(3) {
            let text = format!("isolates {far_name} for {}", other.name());
            diagnostic = diagnostic.also(words::direction_origin(&cluster.policies[id.index()], other), text);
        }
        let ports = words::ports(&self.rule.ports);
        diagnostic
            .note(format!("for example, from {way}: no rule of {} allows it", words::policies(isolating.len())))
            .help(match self.direction {
                Direction::Ingress => format!("allow {far_name} egress to {near_name} on {ports}, or remove the rule"),
                Direction::Egress => {
                    format!("allow {far_name} ingress from {near_name} on {ports}, or remove the rule")
                }
            })
    }
}

/// Whether two lists of ports have one in common on this destination.
fn meet(a: &[PortRule], b: &[PortRule], destination: &PodGroup) -> bool {
    let (a, b) = (numbers(a, destination), numbers(b, destination));
    match (a, b) {
        (None, None) => true,
        (None, Some(some)) | (Some(some), None) => !some.is_empty(),
        (Some(a), Some(b)) => {
            a.iter().any(|one| b.iter().any(|other| one.0 == other.0 && one.1 <= other.2 && other.1 <= one.2))
        }
    }
}

/// The port numbers that rules mean on this destination; `None` means all traffic.
fn numbers(ports: &[PortRule], destination: &PodGroup) -> Option<Vec<(Protocol, u16, u16)>> {
    let mut numbers = Vec::new();
    for rule in ports {
        match &rule.port {
            PortMatch::Any => numbers.push((rule.protocol, 0, u16::MAX)),
            PortMatch::Range(first, last) => numbers.push((rule.protocol, *first, *last)),
            PortMatch::Named(name) => {
                let named = destination.ports.iter().filter(|it| it.name == *name && it.protocol == rule.protocol);
                numbers.extend(named.map(|it| (it.protocol, it.number, it.number)));
            }
        }
    }
    (!ports.is_empty()).then_some(numbers)
}
