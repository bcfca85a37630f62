//! How often a change of a cluster leaves the programs as they are. Then the agent exchanges tables under the programs,
//! and the kernel verifies nothing.

use weir_artifact::Digest;
use weir_classes::index::{Generation, Index, Key};
use weir_codegen::compile::{CompileOptions, compile_classes};
use weir_model::Assumptions;
use weir_objects::k8s::{Body, Object};
use weir_testing::yaml::objects;
use xtask::generate::{ClusterSize, snapshot};

const SIZE: ClusterSize = ClusterSize { pods: 1_000, policies: 1_000, namespaces: 20, tiers: 0 };
const NODE: &str = "node-5";
/// Changes of each kind that have an effect on this node.
const CHANGES: usize = 5;
/// Changes of each kind that are tried, with and without an effect.
const MOST: usize = 60;

/// The digests of the programs, and of everything that is enforced.
fn digests(index: &mut Index) -> [Digest; 2] {
    let Generation { cluster, scope, classes, .. } = index.compile().expect("it compiles");
    let options = CompileOptions::for_changes(CompileOptions::default().target);
    let compiled = compile_classes(&cluster, &scope, classes, &options).expect("it compiles");
    let artifact = compiled.artifact(&cluster, &options, |_| ()).expect("an artifact");
    [artifact.code_digest(), artifact.generation().expect("an artifact")]
}

fn parsed(json: &str) -> Object {
    objects(json).remove(0)
}

/// A new policy in one of the namespaces, with this rule.
fn policy(name: &str, turn: usize, rule: &str) -> Object {
    parsed(&format!(
        r#"{{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{{"name":"{name}","namespace":"team-{}"}},"spec":{{"podSelector":{{}},"ingress":[{rule}]}}}}"#,
        turn % SIZE.namespaces
    ))
}

/// The change number `turn` of a kind.
type Change = fn(&mut Index, &[Object], usize);

fn rules_of_another(index: &mut Index, policies: &[Object], turn: usize) {
    let mut changed = policies[turn].clone();
    changed.body = policies[turn + 100].body.clone();
    drop(index.apply(changed));
}

fn another_rule(index: &mut Index, policies: &[Object], turn: usize) {
    let mut changed = policies[200 + turn].clone();
    let (Body::NetworkPolicy(body), Body::NetworkPolicy(other)) = (&mut changed.body, &policies[300 + turn].body)
    else {
        return;
    };
    body.ingress.extend(other.ingress.clone());
    drop(index.apply(changed));
}

fn a_new_port(index: &mut Index, _: &[Object], turn: usize) {
    let rule = format!(r#"{{"from":[{{"podSelector":{{}}}}],"ports":[{{"port":{}}}]}}"#, 20_000 + 10 * turn);
    drop(index.apply(policy(&format!("port-{turn}"), turn, &rule)));
}

fn a_new_policy(index: &mut Index, _: &[Object], turn: usize) {
    let rule = r#"{"from":[{"podSelector":{"matchLabels":{"tier":"web"}}}],"ports":[{"port":8080}]}"#;
    drop(index.apply(policy(&format!("new-{turn}"), turn, rule)));
}

fn a_policy_less(index: &mut Index, policies: &[Object], turn: usize) {
    drop(index.delete(&Key::of(&policies[400 + turn])));
}

fn a_namespace_selector(index: &mut Index, _: &[Object], turn: usize) {
    let rule = format!(
        r#"{{"from":[{{"namespaceSelector":{{"matchLabels":{{"team":"t{}"}}}},"podSelector":{{"matchLabels":{{"app":"app-{turn}"}}}}}}]}}"#,
        turn % 10
    );
    drop(index.apply(policy(&format!("selector-{turn}"), turn, &rule)));
}

fn a_block_of_addresses(index: &mut Index, _: &[Object], turn: usize) {
    let rule = format!(r#"{{"from":[{{"ipBlock":{{"cidr":"198.51.{turn}.0/24"}}}}]}}"#);
    drop(index.apply(policy(&format!("block-{turn}"), turn, &rule)));
}

fn a_local_pod_of_a_new_class(index: &mut Index, _: &[Object], turn: usize) {
    drop(index.apply(parsed(&format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"new-{turn}","namespace":"team-{}","labels":{{"app":"app-{}","tier":"web"}}}},"spec":{{"nodeName":"{NODE}","containers":[{{"name":"c","image":"i"}}]}},"status":{{"phase":"Running","podIP":"10.77.0.{turn}","podIPs":[{{"ip":"10.77.0.{turn}"}}]}}}}"#,
        turn % SIZE.namespaces,
        turn % 40,
    ))));
}

const KINDS: [(&str, Change); 8] = [
    ("the rules of another policy", rules_of_another),
    ("one more rule", another_rule),
    ("a new port", a_new_port),
    ("a new policy", a_new_policy),
    ("a policy less", a_policy_less),
    ("a new namespace selector", a_namespace_selector),
    ("a new block of addresses", a_block_of_addresses),
    ("a local pod of a new class", a_local_pod_of_a_new_class),
];

#[test]
fn most_changes_of_a_large_cluster_leave_the_programs_as_they_are() {
    let all = objects(&snapshot(SIZE));
    let policies: Vec<Object> = all.iter().filter(|it| matches!(it.body, Body::NetworkPolicy(_))).cloned().collect();
    let mut index = Index::new(Some(NODE.to_owned()), Assumptions::default());
    all.into_iter().for_each(|object| drop(index.apply(object)));
    let mut before = digests(&mut index);
    let mut same = 0;
    for (kind, change) in KINDS {
        let (mut of_kind, mut effective) = (0, 0);
        // Most policies select no pod of this node. A change of such a policy is not counted.
        for turn in 0..MOST {
            if effective == CHANGES {
                break;
            }
            change(&mut index, &policies, turn);
            let after = digests(&mut index);
            effective += usize::from(after[1] != before[1]);
            of_kind += usize::from(after[1] != before[1] && after[0] == before[0]);
            before = after;
        }
        assert_eq!(effective, CHANGES, "{kind}");
        eprintln!("{kind}: {of_kind} of {CHANGES} changes leave the programs as they are");
        same += of_kind;
    }
    let count = KINDS.len() * CHANGES;
    assert!(same * 4 >= count * 3, "{same} of {count}");
}
