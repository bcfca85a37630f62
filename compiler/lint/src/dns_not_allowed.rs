//! Pods that are isolated for egress and may not reach any name server.

use std::collections::{BTreeMap, BTreeSet};

use super::context::LintContext;
use super::{cover, words};
use weir_model::{Direction, NamespaceId, Peer, Policy, PolicyId, PortRule, Rule, SelectorId};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::k8s::{PortMatch, Protocol};

pub(super) static CODE: Code = Code::lint("dns-not-allowed", Severity::Warning, include_str!("dns_not_allowed.diff"))
    .what("A policy isolates pods for egress, and no policy allows them DNS.")
    .why(
        "A pod that is isolated for egress can only reach what a rule allows, and this includes name servers. If \
         no policy of the pod allows port 53, every DNS query times out, and rules for destinations that have \
         names are never used. A separate policy that allows DNS for the same pods is enough.",
    );

/// The port for DNS queries, and the target port of OpenShift's name servers behind it.
const DNS_PORTS: [u16; 2] = [53, 5353];

/// The namespaces where name servers run. Peers without a namespaceSelector reach them only from these.
const DNS_NAMESPACES: [&str; 2] = ["kube-system", "openshift-dns"];

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let cohorts = context.cohorts();
    if !cohorts.are_known(context) {
        return;
    }
    let allows: Vec<bool> = context.cluster.policies.iter().map(|policy| allows_dns(context, policy)).collect();
    let mut reported = BTreeSet::new();
    for cohort in cohorts.all() {
        context.spend(1 + cohort.egress.len());
        if cohort.egress.is_empty() || cohort.egress.iter().any(|id| allows[id.index()]) {
            continue;
        }
        let fresh: Vec<PolicyId> = cohort.egress.iter().copied().filter(|id| reported.insert(*id)).collect();
        let Some(first) = fresh.first() else { continue };
        if context.is_spent(context.cluster.policies[first.index()].object) {
            return;
        }
        let example = cohort.groups.first().map(|id| words::endpoint(context.cluster, context.group(*id).first));
        found.push(describe(context, *first, &cohort.egress, example));
    }
    check_unpopulated(context, &allows, found);
}

/// Namespaces without pods in the input: the policies are compared by the labels that pods could have.
fn check_unpopulated(context: &LintContext<'_>, allows: &[bool], found: &mut Diagnostics) {
    let policies = &context.cluster.policies;
    let mut namespaces: BTreeMap<NamespaceId, BTreeMap<SelectorId, Vec<PolicyId>>> = BTreeMap::new();
    for (index, policy) in policies.iter().enumerate() {
        if policy.egress.is_some() && !context.has_pods(policy.namespace) {
            let selectors = namespaces.entry(policy.namespace).or_default();
            selectors.entry(policy.subjects).or_default().push(PolicyId(index as u32));
        }
    }
    for selectors in namespaces.values() {
        let open: Vec<SelectorId> = selectors
            .iter()
            .filter(|(_, ids)| ids.iter().any(|id| allows[id.index()]))
            .map(|(selector, _)| *selector)
            .collect();
        for (selector, ids) in selectors {
            let Some(first) = ids.first() else { continue };
            if context.is_spent(policies[first.index()].object) {
                return;
            }
            context.spend(open.len() + 1);
            let subjects = context.selector(*selector);
            if !open.iter().any(|other| cover::may_meet(subjects, context.selector(*other))) {
                found.push(describe(context, *first, ids, None));
            }
        }
    }
}

fn allows_dns(context: &LintContext<'_>, policy: &Policy) -> bool {
    let namespace = &context.cluster.namespaces[policy.namespace.index()].name;
    let beside = DNS_NAMESPACES.contains(&namespace.as_str());
    policy.rules(Direction::Egress).unwrap_or_default().iter().any(|rule| rule_allows_dns(rule, beside))
        || context
            .may_be_accepted(policy, Direction::Egress, |ports| ports.is_empty() || ports.iter().any(contains_dns))
}

/// A rule that names port 53 allows DNS, whatever its peers are. A rule for every port allows it only if its peers may
/// be name servers; pods of the policy's own namespace are not.
fn rule_allows_dns(rule: &Rule, beside: bool) -> bool {
    let elsewhere = |peer: &Peer| !matches!(peer, Peer::Pods { namespaces: None, .. });
    let may_be_server = rule.peers.is_empty() || beside || rule.peers.iter().any(elsewhere);
    rule.ports.iter().any(names_dns)
        || (may_be_server && (rule.ports.is_empty() || rule.ports.iter().any(contains_dns)))
}

fn names_dns(port: &PortRule) -> bool {
    match &port.port {
        PortMatch::Range(first, last) => first == last && contains_dns(port),
        PortMatch::Named(name) => name.contains("dns") || name.contains("domain"),
        PortMatch::Any => false,
    }
}

fn contains_dns(port: &PortRule) -> bool {
    let range = match &port.port {
        PortMatch::Any => 0..=u16::MAX,
        PortMatch::Range(first, last) => *first..=*last,
        PortMatch::Named(_) => return false,
    };
    port.protocol != Protocol::Sctp && DNS_PORTS.iter().any(|dns| range.contains(dns))
}

fn describe(context: &LintContext<'_>, first: PolicyId, isolating: &[PolicyId], example: Option<String>) -> Diagnostic {
    let cluster = context.cluster;
    let policy = &cluster.policies[first.index()];
    let name = words::policy(cluster, policy);
    let message = format!("policy {name} isolates pods for egress, and no policy allows them DNS");
    let mut diagnostic = Diagnostic::at(&CODE, words::direction_origin(policy, Direction::Egress), message)
        .label("no rule allows port 53");
    let others = isolating.iter().filter(|id| **id != first);
    for id in others.clone().take(3) {
        let other = &cluster.policies[id.index()];
        diagnostic = diagnostic.also(words::direction_origin(other, Direction::Egress), "nor does this policy");
    }
    if let Some(example) = example {
        let with = match others.count() {
            0 => "this policy alone".to_owned(),
            more => format!("this policy and {more} more"),
        };
        diagnostic = diagnostic.note(format!("for example, {example} is selected for egress by {with}"));
    }
    let denies_all = |id: &PolicyId| cluster.policies[id.index()].egress.as_ref().is_some_and(Vec::is_empty);
    let help = match isolating.iter().all(denies_all) {
        true => {
            "if these pods need no network, turn the lint off; otherwise allow UDP and TCP port 53 \
                 to the cluster's name servers"
        }
        false => {
            "allow UDP and TCP port 53 to the cluster's name servers (namespace kube-system, pods k8s-app=kube-dns)"
        }
    };
    diagnostic.help(help)
}
