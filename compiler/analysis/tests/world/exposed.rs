//! Groups of exposed pods agree with the reference oracle: a flow from outside or from another namespace is allowed if
//! and only if a group contains it and nothing that the group names cuts it: a list, cluster-wide policies, or the
//! policies of its source.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use weir_analysis::diff::AddressSet;
use weir_analysis::world::{EndSet, ExposedBy, ExposedGroup, FlowProduct, exposed};
use weir_model::eval::{Basis, Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, EndpointId, Protocol};
use weir_testing::yaml::cluster;

use crate::cases::{Choices, NAMESPACES, numbers, numbers_with_tiers};
use crate::{ADDRESSES, End, in_product, in_set};

fn contains(sides: &[Cluster; 2], group: &ExposedGroup, ends: [End; 2], protocol: FlowProtocol, port: u16) -> bool {
    let (source, destination) =
        (group.source.clone(), EndSet { pods: vec![group.pods.clone()], ranges: AddressSet::default() });
    let product = FlowProduct { source, destination, traffic: group.traffic.clone() };
    let except = EndSet { pods: group.except.clone(), ranges: AddressSet::default() };
    in_product(sides, &product, ends, protocol, port) && !in_set(sides, &except, ends[1])
}

/// Asks about every flow from elsewhere. Returns how many are allowed by rules, without a policy, denied, and allowed by
/// the Admin tier.
fn check(numbers: &[u32], with_tiers: bool) -> [usize; 4] {
    let mut it = Choices { numbers: numbers.iter() };
    let (mut text, mut added) = (String::new(), String::new());
    for name in NAMESPACES {
        let namespace = it.namespace(name);
        if it.below(2) == 0 { text.push_str(&namespace) } else { added.push_str(&namespace) }
    }
    for index in 0..1 + it.below(4) {
        text.push_str(&it.policy(index));
    }
    for index in 0..it.below(3) {
        text.push_str(&it.list(index));
    }
    for index in 0..(1 + it.below(3)) * usize::from(with_tiers) {
        text.push_str(&it.cluster_policy(index));
    }
    for index in 0..4 {
        added.push_str(&it.pod(index, &["shop", "ops", "dev", "unknown", "elsewhere"]));
    }
    let groups = exposed(&cluster(&text)).unwrap();
    let with_pods = cluster(&format!("{text}{added}"));
    let sides = [with_pods.clone(), with_pods.clone()];
    let mut oracle = Oracle::new(&with_pods);
    let pods: Vec<End> = (0..with_pods.endpoints.len() as u32).map(|it| End::Pod(EndpointId(it))).collect();
    let taken: Vec<_> = with_pods.endpoints.iter().flat_map(|it| it.addresses.clone()).collect();
    let outside = ADDRESSES.iter().map(|it| it.parse().unwrap()).filter(|it| !taken.contains(it)).map(End::Address);
    let sources: Vec<End> = pods.iter().copied().chain(outside).collect();
    let tcp = |port| (FlowProtocol::Transport(Protocol::Tcp), port);
    let asked = [tcp(80), tcp(5432), tcp(7000), (FlowProtocol::Transport(Protocol::Udp), 53), (FlowProtocol::Icmp, 0)];
    let namespace = |end: End| match end {
        End::Pod(id) => Some(with_pods.endpoints[id.index()].namespace),
        End::Address(_) => None,
    };
    let mut counts = [0; 4];
    for source in sources {
        for destination in pods.iter().copied().filter(|it| namespace(*it) != namespace(source)) {
            for (protocol, port) in asked {
                let end = |end: End| match end {
                    End::Pod(id) => FlowEnd {
                        endpoint: Some(id),
                        address: with_pods.endpoints[id.index()].addresses.first().copied(),
                    },
                    End::Address(address) => FlowEnd { endpoint: None, address: Some(address) },
                };
                let flow = Flow { source: end(source), destination: end(destination), protocol, port };
                let judged = oracle.judge(&flow);
                let ends = [source, destination];
                let found: Vec<&ExposedGroup> =
                    groups.iter().filter(|it| contains(&sides, it, ends, protocol, port)).collect();
                let is_listed = matches!(judged.ingress.basis, Basis::List(_));
                let is_sent = judged.egress.verdict == Verdict::Allow;
                // Also where an earlier rule leaves the flow to policies that deny it.
                let is_kept_out = !is_listed && judged.ingress.verdict == Verdict::Deny;
                assert!(!is_kept_out || found.iter().all(|it| it.is_cut_by_tiers), "{flow:?}\n{found:#?}\n{text}");
                let is_exposed = !found.is_empty() && !is_listed && !is_kept_out && is_sent;
                let is_allowed = judged.verdict() == Verdict::Allow;
                assert_eq!(is_allowed, is_exposed, "{flow:?}\n{judged:?}\n{found:#?}\n{text}\n{added}");
                assert!(!found.iter().any(|it| is_listed && !it.is_cut_by_lists), "{flow:?}\n{found:#?}\n{text}");
                assert!(
                    !found.iter().any(|it| !is_sent && !is_listed && !is_kept_out && !it.is_cut_by_egress),
                    "{flow:?}\n{found:#?}\n{text}"
                );
                let has = |is: fn(ExposedBy) -> bool| found.iter().any(|it| is(it.by));
                counts[match is_allowed {
                    true if has(|by| matches!(by, ExposedBy::Tier(_))) => 3,
                    true if has(|by| matches!(by, ExposedBy::Rule(_))) => 0,
                    true => 1,
                    false => 2,
                }] += 1;
            }
        }
    }
    counts
}

proptest! {
    #[test]
    fn exposed_groups_agree_with_the_oracle(numbers in numbers()) {
        check(&numbers, false);
    }

    #[test]
    fn groups_exposed_by_tiers_agree_with_the_oracle(numbers in numbers_with_tiers()) {
        check(&numbers, true);
    }
}

/// The random cases contain each kind of answer; otherwise they would prove nothing.
#[test]
fn random_policies_expose_pods_in_each_way() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut sums = [0; 4];
    for _ in 0..120 {
        let counts = check(&numbers_with_tiers().new_tree(&mut runner).unwrap().current(), true);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sums.iter().all(|sum| *sum > 80), "{sums:?}");
}
