//! Rows about possible pods agree with the reference oracle, for pods that are added to both sides.
//!
//! Each case makes two sides of a few policies, lists and namespaces with few keys, so that selectors overlap often.
//! Possible pods then become real pods of both sides, and a flow between them must change if and only if a row contains
//! it. Rows are read as a user would read the JSON: by the selectors, ranges and port names that they state.

#[path = "world/asked.rs"]
mod asked;
#[path = "world/cases.rs"]
mod cases;
#[path = "world/conflicts.rs"]
mod conflicts;
#[path = "world/coverage.rs"]
mod coverage;
#[path = "world/exposed.rs"]
mod exposed;
#[path = "world/mixed.rs"]
mod mixed;

use std::fmt::Write as _;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use weir_analysis::diff::{AddressRange, VerdictChange};
use weir_analysis::world::{EndSet, FlowProduct, PodSet, WorldError, WorldRow, compare};
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::labels::matches;
use weir_model::{Cluster, Direction, EndpointId, Protocol};
use weir_testing::yaml::cluster;

use cases::{Case, With, case, numbers, numbers_with_tiers};

const ADDRESSES: [&str; 4] = ["10.0.0.5", "10.0.1.5", "10.9.0.1", "203.0.113.9"];

/// An end of a flow: a pod that was added, or an address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Pod(EndpointId),
    Address(IpAddr),
}

fn in_ranges(ranges: &[AddressRange], address: IpAddr) -> bool {
    ranges.iter().any(|it| it.contains(address))
}

fn in_set(sides: &[Cluster; 2], set: &EndSet, end: End) -> bool {
    let in_pods = |pods: &PodSet, id: EndpointId| {
        let answers = [0, 1].map(|side| {
            let cluster = &sides[side];
            let pod = &cluster.endpoints[id.index()];
            let namespace = cluster.labels.labels(cluster.namespaces[pod.namespace.index()].labels);
            matches(&pods.namespaces, namespace)
                && matches(&pods.pods, cluster.labels.labels(pod.labels))
                && pods.addresses.as_ref().is_none_or(|ranges| pod.addresses.iter().any(|it| in_ranges(ranges, *it)))
        });
        // In the first cluster the names of disputed namespaces decide, so both sides agree.
        assert!(answers[0] == answers[1], "a group means something else on each side: {pods:?}");
        answers[0]
    };
    match end {
        End::Pod(id) => set.pods.iter().any(|pods| in_pods(pods, id)),
        End::Address(address) => in_ranges(&set.ranges, address),
    }
}

fn in_product(sides: &[Cluster; 2], product: &FlowProduct, ends: [End; 2], protocol: FlowProtocol, port: u16) -> bool {
    let named = |name: &str, protocol: Protocol| match ends[1] {
        End::Pod(id) => {
            let ports = &sides[0].endpoints[id.index()].named_ports;
            ports.iter().any(|it| it.name == name && it.protocol == protocol && it.number == port)
        }
        End::Address(_) => false,
    };
    let traffic = match protocol {
        FlowProtocol::Icmp => product.traffic.portless,
        FlowProtocol::Transport(protocol) => product.traffic.ports.iter().any(|it| {
            it.protocol == protocol
                && (it.first..=it.last).contains(&port)
                && it.names.iter().all(|name| named(name, protocol))
        }),
    };
    traffic && in_set(sides, &product.source, ends[0]) && in_set(sides, &product.destination, ends[1])
}

fn in_row(
    sides: &[Cluster; 2],
    row: &WorldRow,
    judgements: &[Judgement; 2],
    ends: [End; 2],
    protocol: FlowProtocol,
    port: u16,
) -> bool {
    let allowing = &judgements[usize::from(row.change == VerdictChange::Added)];
    let given = match row.given {
        None => true,
        Some(Direction::Ingress) => allowing.ingress.verdict == Verdict::Allow,
        Some(Direction::Egress) => allowing.egress.verdict == Verdict::Allow,
    };
    let inside = |product: &FlowProduct| in_product(sides, product, ends, protocol, port);
    given && inside(&row.flows) && !row.except.iter().any(inside)
}

/// All ends; of many ends, a few for each source.
fn destinations(ends: &[End], source: usize) -> Vec<&End> {
    let count = ends.len();
    match count > 16 {
        true => [7 * source + 1, 13 * source + 5, 3 * source].map(|index| &ends[index % count]).into(),
        false => ends.iter().collect(),
    }
}

/// Compares the sides without pods, then asks about flows between pods that are added to both. Returns the numbers of
/// flows that are newly allowed, no longer allowed, and unchanged.
fn check(case: &Case) -> [usize; 3] {
    let [base, head] = case.sides.each_ref().map(|text| cluster(text));
    let diff = compare(&base, &head);
    let diff = diff.unwrap_or_else(|error| panic!("{error}\n{}\n==== head\n{}", case.sides[0], case.sides[1]));
    // Both sides declare each namespace that one of them declares.
    let mut missing = [String::new(), String::new()];
    for (own, other) in [(0, 1), (1, 0)] {
        for document in case.sides[other].split("---\n").filter(|it| it.contains("kind: Namespace")) {
            let name = document.split("name: ").nth(1).unwrap().split(',').next().unwrap();
            if !case.sides[own].contains(&format!("kind: Namespace\nmetadata: {{name: {name},")) {
                write!(missing[own], "---\n{document}").unwrap();
            }
        }
    }
    let sides = [0, 1].map(|side| cluster(&format!("{}{}{}", case.sides[side], missing[side], case.added)));
    let mut oracles = sides.each_ref().map(Oracle::new);
    let pods = (0..sides[0].endpoints.len() as u32).map(|it| End::Pod(EndpointId(it)));
    let taken: Vec<IpAddr> = sides[0].endpoints.iter().flat_map(|it| it.addresses.clone()).collect();
    let outside = ADDRESSES.iter().map(|it| it.parse().unwrap()).filter(|it| !taken.contains(it)).map(End::Address);
    let ends: Vec<End> = pods.chain(outside).collect();
    let tcp = |port| (FlowProtocol::Transport(Protocol::Tcp), port);
    let questions =
        [tcp(80), tcp(5432), tcp(7000), (FlowProtocol::Transport(Protocol::Udp), 53), (FlowProtocol::Icmp, 0)];
    let mut counts = [0; 3];
    for (index, source) in ends.iter().enumerate() {
        for destination in destinations(&ends, index) {
            let is_outside = |end: &End| matches!(end, End::Address(_));
            if source == destination || is_outside(source) && is_outside(destination) {
                continue;
            }
            for (protocol, port) in questions {
                let end = |end: &End| match end {
                    End::Pod(id) => FlowEnd {
                        endpoint: Some(*id),
                        address: sides[0].endpoints[id.index()].addresses.first().copied(),
                    },
                    End::Address(address) => FlowEnd { endpoint: None, address: Some(*address) },
                };
                let flow = Flow { source: end(source), destination: end(destination), protocol, port };
                let judgements = oracles.each_mut().map(|oracle| oracle.judge(&flow));
                let verdicts = judgements.each_ref().map(Judgement::verdict);
                for (change, expected) in [
                    (VerdictChange::Added, verdicts == [Verdict::Deny, Verdict::Allow]),
                    (VerdictChange::Removed, verdicts == [Verdict::Allow, Verdict::Deny]),
                ] {
                    let rows = diff.rows.iter().filter(|row| row.change == change);
                    let ends = [*source, *destination];
                    let containing: Vec<&WorldRow> =
                        rows.filter(|row| in_row(&sides, row, &judgements, ends, protocol, port)).collect();
                    assert_eq!(
                        !containing.is_empty(),
                        expected,
                        "{change:?} {flow:?}\nverdicts {verdicts:?}\nrows {containing:#?}\nof {}\n{}\n==== head\n{}\n==== \
                         added\n{}",
                        diff.rows.len(),
                        case.sides[0],
                        case.sides[1],
                        case.added
                    );
                }
                counts[match verdicts {
                    [Verdict::Deny, Verdict::Allow] => 0,
                    [Verdict::Allow, Verdict::Deny] => 1,
                    _ => 2,
                }] += 1;
            }
        }
    }
    counts
}

proptest! {
    #[test]
    fn rows_agree_with_the_oracle_about_added_pods(numbers in numbers()) {
        check(&case(&numbers, With { lists: false, tiers: false }));
    }

    #[test]
    fn rows_about_lists_agree_with_the_oracle(numbers in numbers()) {
        check(&case(&numbers, With { lists: true, tiers: false }));
    }

    #[test]
    fn rows_about_tiers_agree_with_the_oracle(numbers in numbers_with_tiers()) {
        check(&case(&numbers, With { lists: false, tiers: true }));
    }

    #[test]
    fn rows_about_tiers_and_lists_agree_with_the_oracle(numbers in numbers_with_tiers()) {
        check(&case(&numbers, With { lists: true, tiers: true }));
    }
}

/// The random cases contain each kind of answer; otherwise they would prove nothing.
#[test]
fn random_cases_change_flows_in_both_ways() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut sums = [0; 3];
    for _ in 0..60 {
        let numbers = numbers().new_tree(&mut runner).unwrap().current();
        let counts = check(&case(&numbers, With { lists: true, tiers: false }));
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sums.iter().all(|sum| *sum > 200), "{sums:?}");
}

const REDIS: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: redis, namespace: shop}
spec:
  podSelector: {matchLabels: {app: redis}}
  ingress: [{from: [{podSelector: {matchLabels: {redis-client: 'true'}}}], ports: [{port: 6379}]}]
";

#[test]
fn a_changed_port_changes_traffic_of_pods_that_are_not_in_the_input() {
    let diff = compare(&cluster(REDIS), &cluster(&REDIS.replace("6379", "6380"))).unwrap();
    let changes: Vec<_> = diff.rows.iter().map(|row| (row.change, row.flows.traffic.ports[0].first)).collect();
    assert_eq!(changes, [(VerdictChange::Added, 6380), (VerdictChange::Removed, 6379)]);
    assert!(diff.rows.iter().all(|row| row.except.is_empty() && row.given.is_none()));
}

#[test]
fn moved_and_renamed_policies_change_nothing() {
    let two = format!("{REDIS}---{}", REDIS.replace("name: redis, ", "name: other, ").replace("6379", "6380"));
    let joined = REDIS.replace("ports: [{port: 6379}]", "ports: [{port: 6379}, {port: 6380}]");
    for (base, head) in [(REDIS, &*REDIS.replace("name: redis, ", "name: cache, ")), (&two, &joined), (&joined, &two)] {
        assert_eq!(compare(&cluster(base), &cluster(head)).unwrap().rows, []);
    }
}

#[test]
fn a_rule_that_the_other_end_denies_everywhere_is_without_effect() {
    let closed = "
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {}, policyTypes: [Egress]}
";
    let base = format!("{REDIS}{closed}");
    let diff = compare(&cluster(&base), &cluster(&base.replace("6379", "6380"))).unwrap();
    assert_eq!(diff.rows, []);
    assert_eq!(diff.without_effect.len(), 2);
}

#[test]
fn a_comparison_beyond_its_budget_is_an_error() {
    // 2 to the power of 26 combinations: every policy has label keys of its own at both ends, on one port.
    let policies = |port: u16| {
        (0..26).fold(String::new(), |text, index| {
            format!(
                "{text}---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p{index}, namespace: \
                 ns1}}\nspec: {{podSelector: {{matchLabels: {{k{index}: v}}}}, ingress: [{{from: [{{podSelector: \
                 {{matchLabels: {{q{index}: v}}}}}}], ports: [{{port: {port}}}]}}]}}\n"
            )
        })
    };
    let head = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: all, namespace: ns1}\nspec: \
                {podSelector: {}, ingress: [{ports: [{port: 80}]}]}\n";
    match compare(&cluster(&policies(80)), &cluster(&format!("{}{head}", policies(80)))) {
        Err(WorldError::TooLarge { policies }) => assert_eq!(policies, ["ns1/all"]),
        other => panic!("{other:?}"),
    }
}
