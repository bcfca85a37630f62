//! Policies and rules that are reported as adding nothing can be removed, and all others cannot.
//!
//! The comparison of possible pods and the reference oracle judge a cluster with and without the reported policies and
//! rules.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use weir_analysis::world::{Coverage, CoverageScope, RulePlace, compare, coverage};
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, RuleId};
use weir_model::{Cluster, Direction, EndpointId, Peer, Policy, PolicyId, Protocol, Rule};
use weir_testing::yaml::cluster;

use crate::cases::{Choices, NAMESPACES, numbers};

const STEPS: u64 = 10_000_000;

fn judge(cluster: &Cluster, judged: &BTreeSet<PolicyId>, steps: u64) -> Coverage {
    coverage(cluster, CoverageScope { judged, with_denied: true }, steps)
}

/// A few policies of two namespaces. Some are copies of earlier ones, with or without another rule.
fn policies(it: &mut Choices<'_>) -> String {
    let mut all: Vec<String> = Vec::new();
    for index in 0..2 + it.below(4) {
        let policy = match all.get(it.below(3 * all.len().max(1))) {
            Some(earlier) => earlier.clone(),
            None => it.policy(index).replace("namespace: dev", "namespace: shop"),
        };
        let name = policy.split("name: ").nth(1).and_then(|it| it.split(',').next()).unwrap().to_owned();
        let mut policy = policy.replace(&format!("name: {name},"), &format!("name: p{index},"));
        if it.below(3) == 0 {
            let rule = it.rule("from");
            policy = policy.replace(", ingress: [", &format!(", ingress: [{rule}, ")).replace(", ]", "]");
        }
        all.push(policy);
    }
    all.concat()
}

/// The policies of a case, and pods and namespaces to add.
fn case(numbers: &[u32]) -> [String; 2] {
    let mut it = Choices { numbers: numbers.iter() };
    let mut text = String::new();
    let mut added = String::new();
    for name in NAMESPACES {
        let namespace = it.namespace(name);
        [&mut text, &mut added][it.below(2)].push_str(&namespace);
    }
    text.push_str(&policies(&mut it));
    for index in 0..4 {
        added.push_str(&it.pod(index, &NAMESPACES));
    }
    [text, added]
}

fn rules_mut(policy: &mut Policy, direction: Direction) -> Option<&mut Vec<Rule>> {
    match direction {
        Direction::Ingress => policy.ingress.as_mut(),
        Direction::Egress => policy.egress.as_mut(),
    }
}

/// The cluster with only the rules and policies to keep. A policy without rules still isolates; its numbers stay.
fn only(cluster: &Cluster, keep: impl Fn(RulePlace) -> bool, stays: impl Fn(PolicyId) -> bool) -> Cluster {
    let mut changed = cluster.clone();
    for (policy, id) in changed.policies.iter_mut().zip((0..).map(PolicyId)) {
        for direction in Direction::ALL {
            let mut index = 0..;
            if let Some(rules) = rules_mut(policy, direction) {
                rules.retain(|_| {
                    keep(RulePlace { direction, rule: RuleId { policy: id, rule: index.next().unwrap() } })
                });
            }
        }
        if !stays(id) {
            (policy.ingress, policy.egress) = (None, None);
        }
    }
    changed
}

fn places(cluster: &Cluster) -> Vec<RulePlace> {
    let mut all = Vec::new();
    for (policy, id) in cluster.policies.iter().zip((0..).map(PolicyId)) {
        for direction in Direction::ALL {
            let rules = policy.rules(direction).unwrap_or_default().len() as u32;
            all.extend((0..rules).map(|rule| RulePlace { direction, rule: RuleId { policy: id, rule } }));
        }
    }
    all
}

/// Whether a flow of one direction changes, and whether both ends together show it.
#[derive(Debug, PartialEq)]
enum Difference {
    Nothing,
    Unseen,
    Seen,
}

fn difference(one: &Cluster, other: &Cluster) -> Difference {
    let diff = compare(one, other).unwrap();
    match (diff.rows.is_empty(), diff.without_effect.is_empty()) {
        (false, _) => Difference::Seen,
        (true, false) => Difference::Unseen,
        (true, true) => Difference::Nothing,
    }
}

/// Checks a coverage, and returns the numbers of duplicates, redundant policies, covered rules, covered rules that need
/// several others, denied rules, and unreported rules.
fn check([text, added]: &[String; 2]) -> [usize; 6] {
    let cluster_of = cluster(text);
    let all = &cluster_of;
    let ids = || (0..all.policies.len() as u32).map(PolicyId);
    let found = judge(all, &ids().collect(), STEPS);
    let context = || format!("{found:#?}\n{text}");
    assert_eq!(found.unfinished, []);
    let gone: BTreeSet<PolicyId> =
        found.duplicates.iter().map(|it| it.policy).chain(found.redundant.iter().map(|it| it.policy)).collect();
    let covered: BTreeSet<RulePlace> = found.covered.iter().map(|it| it.rule).collect();
    let stays = |policy| !gone.contains(&policy);
    let is_kept = |place: RulePlace| !covered.contains(&place);
    let kept = only(all, is_kept, stays);
    assert_eq!(difference(all, &kept), Difference::Nothing, "{}", context());
    check_with_pods(&format!("{text}{added}"), &found);
    for it in &found.duplicates {
        let [one, other] = [it.policy, it.original].map(|id| only(all, |_| true, |policy| policy == id));
        assert_eq!(difference(&one, &other), Difference::Nothing, "{it:?} {}", context());
        assert!(stays(it.original) || found.redundant.iter().any(|other| other.policy == it.original));
    }
    for it in &found.redundant {
        assert!(it.by.iter().all(|by| stays(*by)) && !it.by.is_empty());
        let adds = |others: &[PolicyId]| adds_to(all, it.policy, others);
        assert!(!adds(&it.by), "{it:?} {}", context());
        for index in 0..it.by.len() {
            let fewer = [&it.by[..index], &it.by[index + 1..]].concat();
            assert!(adds(&fewer), "{it:?} needs less: {}", context());
        }
        // The rules cover the policy's rules.
        let [with, without] = [true, false].map(|with| {
            let is_own = |place: RulePlace| place.rule.policy == it.policy;
            only(all, |place| is_own(place) && with || it.rules.contains(&place), |_| true)
        });
        assert_eq!(difference(&with, &without), Difference::Nothing, "{it:?} {}", context());
        assert!(it.rules.iter().all(|rule| it.by.contains(&rule.rule.policy)));
    }
    for it in &found.covered {
        assert!(it.by.iter().all(|by| is_kept(*by) && stays(by.rule.policy)) && !it.by.is_empty());
        let adds = |others: &[RulePlace]| {
            let [with, without] = [true, false]
                .map(|with| only(all, |place| place == it.rule && with || others.contains(&place), |_| true));
            difference(&with, &without) != Difference::Nothing
        };
        assert!(!adds(&it.by), "{it:?} {}", context());
        for index in 0..it.by.len() {
            let fewer = [&it.by[..index], &it.by[index + 1..]].concat();
            assert!(adds(&fewer), "{it:?} needs less: {}", context());
        }
    }
    check_others(all, &found, &kept, stays, &context);
    let several = found.covered.iter().filter(|it| it.by.len() > 1).count();
    let unreported = places(&kept).len();
    [found.duplicates.len(), found.redundant.len(), found.covered.len(), several, found.denied.len(), unreported]
}

/// Whether a policy isolates pods that the others do not, or allows traffic that they do not.
fn adds_to(all: &Cluster, policy: PolicyId, others: &[PolicyId]) -> bool {
    let without =
        |keep_rules: bool, own: bool| only(all, |_| keep_rules, |it| others.contains(&it) || own && it == policy);
    difference(&without(true, true), &without(true, false)) != Difference::Nothing
        || difference(&without(false, true), &without(false, false)) != Difference::Nothing
}

/// Checks that every other policy and rule adds something.
fn check_others(
    all: &Cluster,
    found: &Coverage,
    kept: &Cluster,
    stays: impl Fn(PolicyId) -> bool,
    context: &dyn Fn() -> String,
) {
    let kept_places: Vec<RulePlace> = {
        let covered: BTreeSet<RulePlace> = found.covered.iter().map(|it| it.rule).collect();
        places(all).into_iter().filter(|it| stays(it.rule.policy) && !covered.contains(it)).collect()
    };
    let is_possible = |place: RulePlace| {
        let [with, without] = [true, false].map(|with| only(all, |it| with && it == place, |_| true));
        difference(&with, &without) != Difference::Nothing
    };
    for place in &kept_places {
        let without = only(all, |it| it != *place && kept_places.contains(&it), &stays);
        let rule = &all.policy(place.rule.policy).rules(place.direction).unwrap()[place.rule.rule as usize];
        let is_denied = found.denied.iter().any(|it| it.rule == *place);
        if difference(kept, &without) == Difference::Nothing {
            assert!(!is_possible(*place), "{place:?} is covered: {}", context());
        }
        // Alone in its direction, because another rule may allow a part of it that the other end does not deny.
        let [with, without] =
            [true, false].map(|with| only(all, |it| it.direction != place.direction || with && it == *place, |_| true));
        assert_eq!(is_denied, difference(&with, &without) == Difference::Unseen, "{place:?} {}", context());
        if is_denied {
            assert!(rule.peers.iter().all(|it| matches!(it, Peer::Pods { .. })));
        }
    }
    let policies: Vec<PolicyId> = (0..all.policies.len() as u32).map(PolicyId).filter(|it| stays(*it)).collect();
    for policy in &policies {
        let own: Vec<RulePlace> = places(all).into_iter().filter(|it| it.rule.policy == *policy).collect();
        let others: Vec<PolicyId> = policies.iter().copied().filter(|it| it != policy).collect();
        let has_rules = own.iter().any(|it| is_possible(*it));
        assert!(!has_rules || adds_to(all, *policy, &others), "{policy:?} adds nothing: {}", context());
        for other in others.iter().filter(|it| *it < policy) {
            let [one, another] = [policy, other].map(|id| all.policy(*id));
            let is_empty =
                |policy: &Policy| Direction::ALL.iter().all(|at| policy.rules(*at).is_none_or(<[_]>::is_empty));
            let selects = |id: &PolicyId| {
                difference(all, &only(all, |_| false, |_| false)) == Difference::Seen
                    && adds_to(&only(all, |_| false, |_| true), *id, &[])
            };
            if one.namespace == another.namespace && is_empty(one) && is_empty(another) && selects(policy) {
                let [one, another] = [policy, other].map(|id| only(all, |_| false, |it| it == *id));
                assert_ne!(difference(&one, &another), Difference::Nothing, "{policy:?} {other:?} {}", context());
            }
        }
    }
}

/// Removes everything that is reported, and compares the verdicts for pods that were not in the input.
fn check_with_pods(text: &str, found: &Coverage) {
    let before = cluster(text);
    let is_kept = |place: RulePlace| found.covered.iter().all(|it| it.rule != place);
    let reported = |policy| {
        found.duplicates.iter().any(|it| it.policy == policy) || found.redundant.iter().any(|it| it.policy == policy)
    };
    let after = only(&before, is_kept, |policy| !reported(policy));
    let mut oracles = [&before, &after].map(Oracle::new);
    let outside = ["10.0.0.77", "203.0.113.77"].map(|it| it.parse().unwrap());
    let pods = (0..before.endpoints.len() as u32).map(EndpointId);
    let pods =
        pods.map(|id| FlowEnd { endpoint: Some(id), address: before.endpoints[id.index()].addresses.first().copied() });
    let ends: Vec<FlowEnd> =
        pods.chain(outside.map(|address| FlowEnd { endpoint: None, address: Some(address) })).collect();
    let transport = |protocol, port| (FlowProtocol::Transport(protocol), port);
    let questions = [
        transport(Protocol::Tcp, 80),
        transport(Protocol::Tcp, 5432),
        transport(Protocol::Tcp, 7000),
        transport(Protocol::Udp, 53),
        (FlowProtocol::Icmp, 0),
    ];
    for source in &ends {
        for destination in &ends {
            if source.endpoint.is_none() && destination.endpoint.is_none() {
                continue;
            }
            for (protocol, port) in questions {
                let flow = Flow { source: *source, destination: *destination, protocol, port };
                let [old, new] = oracles.each_mut().map(|oracle| oracle.judge(&flow).verdict());
                assert_eq!(old, new, "{flow:?}\n{found:#?}\n{text}");
            }
        }
    }
}

proptest! {
    #[test]
    fn what_adds_nothing_can_be_removed_and_nothing_else_can(numbers in numbers()) {
        check(&case(&numbers));
    }
}

/// The random cases contain each kind of answer; otherwise they would prove nothing.
#[test]
fn random_policies_give_each_kind_of_finding() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut sums = [0; 6];
    for _ in 0..150 {
        let counts = check(&case(&numbers().new_tree(&mut runner).unwrap().current()));
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sums.iter().all(|sum| *sum >= 3), "{sums:?}");
}

const CROSSED: &str = "podSelector: {matchLabels: {kN: v}}, ingress: [{from: [{podSelector: {matchLabels: {qN: v}}}], \
                       ports: [{port: 80}]}]";

fn policy(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: \
         {namespace}}}\nspec: {{{spec}}}\n"
    )
}

#[test]
fn a_namespace_beyond_its_budget_is_named_and_the_others_are_judged() {
    let mut text = (0..26).fold(String::new(), |text, index| {
        text + &policy("crossed", &format!("p{index}"), &CROSSED.replace('N', &index.to_string()))
    });
    text += &policy(
        "crossed",
        "all",
        "podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {x: v}}}], ports: [{port: 80}]}]",
    );
    text += &policy("crossed", "some", "podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 81}]}]");
    text += &policy("shop", "twice", "podSelector: {}, ingress: [{}, {}]");
    let cluster = cluster(&text);
    let ids: BTreeSet<PolicyId> = (0..cluster.policies.len() as u32).map(PolicyId).collect();
    let found = judge(&cluster, &ids, 20_000);
    assert_eq!(found.covered.len(), 1);
    assert_eq!(cluster.policy_name(found.covered[0].rule.rule.policy), "shop/twice");
    let unfinished: BTreeSet<String> = found.unfinished.iter().map(|it| cluster.policy_name(*it)).collect();
    assert_eq!(unfinished.len(), 28);
    assert!(unfinished.iter().all(|it| it.starts_with("crossed/")));
}

#[test]
fn pairs_within_a_namespace_are_judged_in_both_directions() {
    let web = "podSelector: {matchLabels: {app: web}}";
    let text = policy("shop", "closed", "podSelector: {}, policyTypes: [Ingress, Egress]")
        + &policy("shop", "in", &format!("{web}, ingress: [{{from: [{{podSelector: {{}}}}], ports: [{{port: 81}}]}}]"))
        + &policy("shop", "out", &format!("{web}, egress: [{{to: [{{podSelector: {{}}}}], ports: [{{port: 80}}]}}]"));
    let cluster = cluster(&text);
    let found = judge(&cluster, &(0..3).map(PolicyId).collect(), STEPS);
    let denied: Vec<(Direction, u32)> =
        found.denied.iter().map(|it| (it.rule.direction, it.rule.rule.policy.0)).collect();
    assert_eq!(denied, [(Direction::Ingress, 1), (Direction::Egress, 2)]);
}

#[test]
fn policies_that_are_not_judged_cover_others_and_are_never_reported() {
    let open = "podSelector: {}, ingress: [{}]";
    let cluster = cluster(&(policy("shop", "a", open) + &policy("shop", "b", open)));
    for (judged, original) in [(0, 1), (1, 0)] {
        let found = judge(&cluster, &BTreeSet::from([PolicyId(judged)]), STEPS);
        let named: Vec<_> = found.duplicates.iter().map(|it| (it.policy.0, it.original.0)).collect();
        assert_eq!(named, [(judged, original)]);
    }
}
