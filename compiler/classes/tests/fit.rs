//! A cluster that does not fit its limits loses only rules: it allows no more than before, and its cost is within the
//! limits.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::prelude::*;
use weir_classes::fit::{Fit, estimate, fit};
use weir_classes::{ClassifyError, Limits, Scope, classify, classify_within};
use weir_fuzz::generators::cluster::clusters;
use weir_fuzz::generators::hostile::{self, NAMESPACE, NODE, Shape};
use weir_fuzz::generators::{Random, flows};
use weir_model::eval::{Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, NamespaceId};
use weir_objects::k8s::{Body, CidrList, ListAction, ListEntry, Meta, Object};
use weir_objects::origin::ObjectId;

fn cluster_of(objects: &[Object]) -> Cluster {
    resolve(objects, Assumptions::default()).0
}

fn namespace(cluster: &Cluster, name: &str) -> NamespaceId {
    let index = cluster.namespaces.iter().position(|it| it.name == name).expect("it is there");
    NamespaceId(index as u32)
}

/// The cluster at every level, from the one that holds no policies to the one that holds all of them.
fn fits(cluster: &Cluster) -> Vec<(Cluster, Fit)> {
    let scope = Scope::everything(cluster);
    let mut made = Vec::new();
    for level in [None, Some(64), Some(32), Some(16), Some(8), Some(4), Some(2), Some(1), Some(0)] {
        let mut held = cluster.clone();
        let fit = fit(&mut held, &scope, Limits::NONE, level);
        made.push((held, fit));
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The oracle, which does not depend on budgets, compares the held cluster with the full one.
    #[test]
    fn held_policies_allow_nothing_that_the_full_policies_deny(case in clusters()) {
        let full = cluster_of(&case.objects);
        let questions = flows::flows(&full, 200, &mut case.random());
        for (held, fit) in fits(&full) {
            let (mut before, mut after) = (Oracle::new(&full), Oracle::new(&held));
            let touched: Vec<NamespaceId> = fit.held.iter().map(|it| full.policy(it.policy).namespace).collect();
            for flow in &questions {
                let (before, after) = (before.judge(flow), after.judge(flow));
                for (full_side, held_side) in [(&before.ingress, &after.ingress), (&before.egress, &after.egress)] {
                    prop_assert!(
                        held_side.verdict == Verdict::Deny || full_side.verdict == Verdict::Allow,
                        "level {:?} allows {flow:?}", fit.level
                    );
                }
            }
            if fit.level.is_none() {
                prop_assert!(touched.is_empty());
            }
        }
    }
}

#[test]
fn only_the_heavy_namespace_is_held() {
    for shape in Shape::ALL.into_iter().filter(|shape| *shape != Shape::Services) {
        let full = cluster_of(&hostile::cluster(shape, 3, 4, &mut Random::new(1)));
        let scope = Scope::node(&full, NODE).expect("it is there");
        let calm = cluster_of(&hostile::cluster(shape, 0, 4, &mut Random::new(1)));
        let needed = estimate(&calm, &Scope::node(&calm, NODE).expect("it is there"));
        let limits = Limits { bytes: 2 * needed.bytes, steps: u64::MAX };
        let mut held = full.clone();
        let fit = fit(&mut held, &scope, limits, None);
        let hostile = namespace(&full, NAMESPACE);
        assert!(!fit.held.is_empty(), "{shape:?}");
        assert!(fit.held.iter().all(|it| full.policy(it.policy).namespace == hostile), "{shape:?}: {fit:?}");
        for policy in fit.held.iter().map(|it| held.policy(it.policy)) {
            let is_empty = |rules: &Option<Vec<_>>| rules.as_ref().is_none_or(Vec::is_empty);
            assert!(is_empty(&policy.ingress) && is_empty(&policy.egress), "{shape:?}: {}", policy.name);
        }
        for (before, after) in full.policies.iter().zip(&held.policies) {
            assert_eq!(before.ingress.is_some(), after.ingress.is_some(), "it isolates as before");
            assert_eq!(before.egress.is_some(), after.egress.is_some(), "it isolates as before");
            assert!(before.namespace == hostile || before == after, "{shape:?}: {}", before.name);
        }
    }
}

/// If a namespace is already over the level, further objects of this namespace do not change the level.
#[test]
fn policies_of_a_held_namespace_lower_no_other_level() {
    let limits = Limits { bytes: 1 << 20, steps: u64::MAX };
    let mut levels = BTreeSet::new();
    for size in [4, 8, 16, 32] {
        let mut made = cluster_of(&hostile::cluster(Shape::Scattered, size, 4, &mut Random::new(1)));
        let scope = Scope::node(&made, NODE).expect("it is there");
        let fit = fit(&mut made, &scope, limits, None);
        assert!(fit.level.is_some(), "size {size}");
        levels.insert(fit.level);
    }
    assert_eq!(levels.len(), 1, "{levels:?}");
}

/// Hundreds of ordinary tenants fit the default budget of an agent with 512 MiB.
#[test]
fn ordinary_tenants_are_not_held() {
    let mut made = cluster_of(&hostile::cluster(Shape::Scattered, 0, 400, &mut Random::new(1)));
    let scope = Scope::node(&made, NODE).expect("it is there");
    let fit = fit(&mut made, &scope, Limits { bytes: 128 << 20, steps: 1_000_000_000 }, None);
    assert_eq!(fit.level, None, "{:?}", fit.estimate);
    let spent = classify(&made, &scope).expect("there is no limit").spent;
    assert!(fit.estimate.bytes < 20 * spent.bytes.max(1 << 20), "{:?} of {spent:?}", fit.estimate);
}

/// Classification stops at the limit in every shape. No excess is noticed only at the end.
#[test]
fn classification_stops_at_its_limits() {
    for shape in Shape::ALL.into_iter().filter(|shape| *shape != Shape::Services) {
        let made = cluster_of(&hostile::cluster(shape, 3, 2, &mut Random::new(1)));
        let scope = Scope::node(&made, NODE).expect("it is there");
        let spent = classify(&made, &scope).expect("there is no limit").spent;
        assert!(spent.bytes > 0 && spent.steps > 0, "{shape:?}");
        for part in 1..8 {
            for limits in [
                Limits { bytes: spent.bytes * part / 8, steps: u64::MAX },
                Limits { bytes: u64::MAX, steps: spent.steps * part / 8 },
            ] {
                let refused = classify_within(&made, &scope, limits);
                assert!(matches!(refused, Err(ClassifyError::Exceeded(_))), "{shape:?} {limits:?}");
            }
        }
        let enough = Limits { bytes: spent.bytes, steps: spent.steps };
        assert!(classify_within(&made, &scope, enough).is_ok(), "{shape:?}");
    }
}

/// Lists belong to the administrator. Each address of a list inside a tenant's block cuts the block once more. These
/// ranges are not charged to the tenant's policies.
#[test]
fn the_length_of_lists_costs_policies_nothing() {
    let address = |index: u8| IpAddr::from([192, 0, 2, 2 * index]);
    let spent = |addresses: u8| {
        let mut objects = hostile::cluster(Shape::Scattered, 0, 4, &mut Random::new(1));
        let entries =
            (0..addresses).map(|it| ListEntry { first: address(it), last: address(it), position: u32::from(it) });
        let body = CidrList {
            action: ListAction::Deny,
            order: 1,
            ingress: true,
            egress: true,
            namespaces: None,
            pods: None,
            entries: entries.collect(),
        };
        let meta = Meta { name: "listed".to_owned(), ..Meta::default() };
        objects.push(Object { id: ObjectId(objects.len() as u32), meta, body: Body::CidrList(body.into()) });
        let cluster = cluster_of(&objects);
        classify(&cluster, &Scope::node(&cluster, NODE).expect("it is there")).expect("there is no limit").spent.bytes
    };
    assert_eq!(spent(1), spent(120));
}

/// Of the policies of a heavy namespace, the light ones stay.
#[test]
fn a_light_policy_of_a_heavy_namespace_keeps_its_rules() {
    let mut objects = hostile::cluster(Shape::Scattered, 3, 1, &mut Random::new(1));
    let of_hostile = objects.iter_mut().filter(|it| it.meta.namespace == NAMESPACE);
    let mut policies = of_hostile.filter_map(|it| match &mut it.body {
        Body::NetworkPolicy(policy) => Some((it.meta.name.clone(), policy)),
        _ => None,
    });
    let (light, policy) = policies.next().expect("there are three");
    policy.ingress.truncate(5);
    policy.egress.truncate(5);
    let mut cluster = cluster_of(&objects);
    let scope = Scope::node(&cluster, NODE).expect("it is there");
    let fit = fit(&mut cluster, &scope, Limits::NONE, Some(128));
    let held: Vec<&str> = fit.held.iter().map(|it| cluster.policy(it.policy).name.as_str()).collect();
    assert!(held.len() == 2 && !held.contains(&light.as_str()), "{held:?}, and {light} is light");
}
