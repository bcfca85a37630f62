//! Selectors that can match nothing, against all labels that a small world can have.

use proptest::prelude::*;
use weir_analysis::world::{SelectorConflicts, block_is_empty};
use weir_model::labels::matches;
use weir_model::{Cluster, SelectorId};
use weir_objects::address::parse_cidr;
use weir_objects::k8s::{LabelSelector, Labels, NAMESPACE_NAME_LABEL, Operator, Requirement};
use weir_testing::yaml::cluster;

const DECLARED: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: ops}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: dev}
spec: {podSelector: {}}
";
/// Each key's values: the last one is in no selector.
const KEYS: [(&str, [&str; 5]); 3] = [
    ("team", ["a", "b", "", "c", "unlisted"]),
    ("app", ["a", "b", "", "c", "unlisted"]),
    (NAMESPACE_NAME_LABEL, ["shop", "ops", "dev", "No-Namespace", "unlisted"]),
];

fn requirement() -> impl Strategy<Value = Requirement> {
    (0..3_usize, 0..4_usize, prop::collection::btree_set(0..4_usize, 1..3)).prop_map(|(key, operator, values)| {
        let operator = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist][operator];
        let (key, known) = KEYS[key];
        let is_list = matches!(operator, Operator::In | Operator::NotIn);
        let values = values.into_iter().filter(|_| is_list).map(|it| known[it].to_owned()).collect();
        Requirement { key: key.to_owned(), operator, values }
    })
}

/// Whether some labels match; of namespaces, only labels that a namespace can have.
fn is_possible(selector: &LabelSelector, of_namespaces: bool) -> bool {
    let options = |key: usize| (0..6).map(move |it| KEYS[key].1.get(it).map(|value| (KEYS[key].0, *value)));
    options(0).any(|team| {
        options(1).any(|app| {
            options(2).any(|name| {
                let labels: Labels = [team, app, name]
                    .into_iter()
                    .flatten()
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect();
                let can_exist = match name {
                    _ if !of_namespaces => true,
                    Some((_, "shop")) => team == Some(("team", "a")) && app.is_none(),
                    Some((_, "ops")) => team.is_none() && app.is_none(),
                    Some((_, "No-Namespace")) | None => false,
                    Some(_) => true,
                };
                can_exist && matches(selector, &labels)
            })
        })
    })
}

fn intern(cluster: &mut Cluster, requirements: &[Requirement]) -> (LabelSelector, SelectorId) {
    let selector = LabelSelector { match_expressions: requirements.to_vec(), ..LabelSelector::default() };
    let id = cluster.labels.intern_selector(&selector);
    (selector, id)
}

proptest! {
    #[test]
    fn a_selector_conflicts_if_and_only_if_no_labels_match(
        requirements in prop::collection::vec(requirement(), 0..5),
        of_namespaces: bool,
    ) {
        let mut cluster = cluster(DECLARED);
        let (selector, id) = intern(&mut cluster, &requirements);
        let conflicts = SelectorConflicts::new(&cluster);
        let found = if of_namespaces { conflicts.of_namespaces(id) } else { conflicts.of_pods(id) };
        prop_assert_eq!(found.is_none(), is_possible(&selector, of_namespaces));
        for index in 0..found.as_ref().map_or(0, |it| it.requirements.len()) {
            let mut fewer = found.as_ref().unwrap().requirements.clone();
            fewer.remove(index);
            let fewer = LabelSelector { match_expressions: fewer, ..LabelSelector::default() };
            prop_assert!(is_possible(&fewer, of_namespaces), "the conflict needs less");
        }
    }
}

#[test]
fn a_declared_namespace_that_contradicts_is_named() {
    let mut cluster = cluster(DECLARED);
    let is = |key: &str, value: &str| Requirement {
        key: key.to_owned(),
        operator: Operator::In,
        values: vec![value.to_owned()],
    };
    let named = |cluster: &mut Cluster, requirements: &[Requirement]| {
        let (_, id) = intern(cluster, requirements);
        let found = SelectorConflicts::new(cluster).of_namespaces(id)?;
        Some(found.namespace.map(|id| cluster.namespaces[id.index()].name.clone()))
    };
    let own = is(NAMESPACE_NAME_LABEL, "shop");
    assert_eq!(named(&mut cluster, &[own.clone(), is("team", "x")]), Some(Some("shop".to_owned())));
    assert_eq!(named(&mut cluster, &[own, is("team", "a")]), None);
    assert_eq!(named(&mut cluster, &[is(NAMESPACE_NAME_LABEL, "dev"), is("team", "x")]), None, "dev is not declared");
    assert_eq!(named(&mut cluster, &[is(NAMESPACE_NAME_LABEL, "Shop")]), Some(None));
}

#[test]
fn exceptions_that_cover_a_block_leave_nothing() {
    let parse = |text: &str| parse_cidr(text).expect(text).value;
    let is_empty = |cidr: &str, except: &[&str]| {
        block_is_empty(parse(cidr), &except.iter().map(|it| parse(it)).collect::<Vec<_>>())
    };
    assert!(is_empty("10.0.0.0/8", &["10.128.0.0/9", "10.0.0.0/9"]));
    assert!(!is_empty("10.0.0.0/8", &["10.128.0.0/9", "10.0.0.0/10"]));
    assert!(!is_empty("10.0.0.0/8", &[]));
    assert!(is_empty("::/0", &["::/1", "8000::/1"]));
}
