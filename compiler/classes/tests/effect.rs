//! Only changes that deny nothing may wait: see `weir_classes::index::ChangeEffect`.

use std::sync::Arc;

use weir_classes::index::ChangeEffect::{Allowing, Isolating};
use weir_classes::index::{ChangeEffect, Index, Key};
use weir_model::{Assumptions, Audit};
use weir_objects::k8s::{Labels, Object};
use weir_testing::yaml::{NEAR_AND_FAR, objects};

const CLUSTER: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u1, labels: {app: web}},
  spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.5}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, uid: u2, labels: {app: db}},
  spec: {nodeName: far}, status: {phase: Running, podIP: 10.0.1.5}}
";

fn policy(spec: &str) -> Object {
    object(&format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: shop}}, spec: {spec}}}"
    ))
}

fn object(text: &str) -> Object {
    objects(text).remove(0)
}

fn index(more: Option<Object>) -> Index {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    objects(&[NEAR_AND_FAR, CLUSTER].join("---\n")).into_iter().chain(more).for_each(|object| _ = index.apply(object));
    index.compile().expect("it compiles");
    index
}

fn change(before: &str, after: &str) -> ChangeEffect {
    index(Some(policy(before))).effect_of(&policy(after))
}

const ONE_RULE: &str = "{podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}";

#[test]
fn policy_with_more_rules_or_wider_rules_may_wait() {
    for after in [
        ONE_RULE,
        "{podSelector: {}, ingress: [{ports: [{port: 443}]}, {from: [{podSelector: {}}], ports: [{port: 80}]}]}",
        "{podSelector: {}, ingress: [{from: [{podSelector: {}}, {namespaceSelector: {}}], ports: [{port: 81}, {port: 80}]}]}",
        "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}",
        "{podSelector: {}, ingress: [{}]}",
    ] {
        assert_eq!(change(ONE_RULE, after), Allowing, "{after}");
    }
}

#[test]
fn policy_that_may_deny_more_does_not_wait() {
    for after in [
        "{podSelector: {}}",
        "{podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 81}]}]}",
        "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 80}]}]}",
        "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}]}",
        "{podSelector: {}, policyTypes: [Egress], ingress: [{}]}",
        "{podSelector: {}, ingress: [{}], egress: [{}]}",
        "{podSelector: {matchLabels: {app: web}}, ingress: [{}]}",
    ] {
        assert_eq!(change(ONE_RULE, after), Isolating, "{after}");
    }
    assert_eq!(change("{podSelector: {}, ingress: [{}]}", ONE_RULE), Isolating, "a rule for everything gets narrower");
    assert_eq!(index(None).effect_of(&policy(ONE_RULE)), Isolating, "a new policy");
}

#[test]
fn deleted_policy_may_wait_only_without_rules() {
    let key = Key::of(&policy(ONE_RULE));
    assert_eq!(index(Some(policy(ONE_RULE))).effect_of_deletion(&key), Isolating);
    assert_eq!(index(Some(policy("{podSelector: {}}"))).effect_of_deletion(&key), Allowing);
}

#[test]
fn policy_in_audit_mode_may_wait_until_it_is_enforced() {
    let audit = |spec: &str| {
        object(&format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy,
              metadata: {{name: p, namespace: shop, annotations: {{weir.dev/mode: audit}}}}, spec: {spec}}}"
        ))
    };
    assert_eq!(index(None).effect_of(&audit(ONE_RULE)), Allowing);
    let of_audit = index(Some(audit("{podSelector: {}, ingress: [{}]}")));
    assert_eq!(of_audit.effect_of(&audit(ONE_RULE)), Allowing);
    assert_eq!(of_audit.effect_of(&policy("{podSelector: {}, ingress: [{}]}")), Isolating);
    assert_eq!(index(Some(policy(ONE_RULE))).effect_of(&audit(ONE_RULE)), Isolating);
    let assume = Assumptions { audit: Audit::Enforce, ..Assumptions::default() };
    let mut enforced = Index::new(Some("near".to_owned()), assume);
    assert_eq!(enforced.effect_of(&audit(ONE_RULE)), Isolating, "by assumption, it is enforced");
    _ = enforced.apply(audit("{podSelector: {}, ingress: [{}]}"));
    assert_eq!(enforced.effect_of(&audit(ONE_RULE)), Isolating, "by assumption, it is enforced");
    assert_eq!(enforced.effect_of_deletion(&Key::of(&policy(ONE_RULE))), Isolating, "by assumption, it is enforced");
}

fn pod(name: &str, app: &str, node: &str, address: &str) -> Object {
    object(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {name}, labels: {{app: {app}}}}},
          spec: {{nodeName: {node}}}, status: {{phase: Running, podIP: {address}}}}}"
    ))
}

#[test]
fn only_a_new_pod_of_another_node_at_an_unused_address_may_wait() {
    let index = index(Some(policy(ONE_RULE)));
    assert_eq!(index.effect_of(&pod("new", "cron", "far", "10.0.1.6")), Allowing);
    assert_eq!(index.effect_of(&pod("new", "cron", "near", "10.0.0.6")), Isolating, "a local pod");
    assert_eq!(index.effect_of(&pod("new", "cron", "far", "10.0.1.5")), Isolating, "another pod's address");
    assert_eq!(index.effect_of(&pod("new", "cron", "far", "10.0.0.5")), Isolating, "a local pod's address");
    assert_eq!(index.effect_of(&pod("db", "cron", "far", "10.0.1.5")), Isolating, "other labels");
    assert_eq!(index.effect_of_deletion(&Key::of(&pod("db", "db", "far", "10.0.1.5"))), Isolating);
}

#[test]
fn new_pod_does_not_wait_where_a_cluster_wide_policy_can_deny_it() {
    let deny = object(
        "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: c},
          spec: {tier: Admin, priority: 1, subject: {namespaces: {}},
            ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: cron}}}}]}]}}",
    );
    assert_eq!(index(Some(deny.clone())).effect_of(&pod("new", "cron", "far", "10.0.1.6")), Isolating);
    assert_eq!(index(None).effect_of(&deny), Isolating);
}

/// An EndpointSlice of the service `s` with these endpoints: address, and whether it is ready. The others are ending.
fn slice(endpoints: &[(&str, bool)]) -> Object {
    let endpoints: Vec<String> = endpoints
        .iter()
        .map(|(address, ready)| {
            format!(
                "{{addresses: [{address}], conditions: {{ready: {ready}, serving: true, terminating: {}}}}}",
                !ready
            )
        })
        .collect();
    object(&format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{{port: 80}}],
          metadata: {{name: s-1, namespace: shop, labels: {{kubernetes.io/service-name: s}}}}, endpoints: [{}]}}",
        endpoints.join(", ")
    ))
}

fn service(spec: &str) -> Object {
    object(&format!("{{apiVersion: v1, kind: Service, metadata: {{name: s, namespace: shop}}, spec: {spec}}}"))
}

#[test]
fn services_do_not_wait_unless_they_only_lose_backends() {
    let (one, two) = (("10.0.1.5", true), ("10.0.1.6", true));
    let both = index(Some(slice(&[one, two])));
    assert_eq!(both.effect_of(&slice(&[one])), Allowing);
    assert_eq!(both.effect_of(&slice(&[])), Isolating, "no backend: the address is an ordinary one again");
    assert_eq!(both.effect_of(&slice(&[one, two, ("10.0.1.7", true)])), Isolating, "policy can deny the new backend");
    assert_eq!(both.effect_of(&slice(&[one, ("10.0.1.7", true)])), Isolating, "a replaced backend");
    assert_eq!(both.effect_of_deletion(&Key::of(&slice(&[one]))), Isolating);
    assert_eq!(index(None).effect_of(&slice(&[one])), Isolating, "a new slice");
    let ending = ("10.0.1.6", false);
    let three = index(Some(slice(&[one, two, ending])));
    let why = "the service can be one that prefers its node, and fall back there";
    assert_eq!(three.effect_of(&slice(&[one, ending])), Isolating, "{why}");
    assert_eq!(three.effect_of(&slice(&[one])), Allowing, "nothing is left to fall back to");
    let mut beside = index(Some(slice(&[one, two])));
    let mut other = slice(&[ending]);
    other.meta.name = "s-2".into();
    _ = beside.apply(other);
    assert_eq!(beside.effect_of(&slice(&[one])), Isolating, "the backend that ends is in another slice");
    let mut unread = slice(&[one, two]);
    let headless = [("kubernetes.io/service-name", "s"), ("service.kubernetes.io/headless", "")];
    unread.meta.labels = Arc::new(Labels::from(headless));
    assert_eq!(index(Some(unread)).effect_of(&slice(&[one])), Isolating, "the service had no backends of this slice");
    let with_ending = index(Some(slice(&[one, ending])));
    assert_eq!(with_ending.effect_of(&slice(&[ending])), Isolating, "the service falls back to the backend that ends");
    // A service gives an address outside of the cluster the verdict of its backends, as long as it exists.
    let claim = service("{clusterIP: 10.96.0.1, externalIPs: [203.0.113.7], ports: [{port: 443, targetPort: 80}]}");
    assert_eq!(index(None).effect_of(&claim), Isolating);
    assert_eq!(index(Some(claim.clone())).effect_of_deletion(&Key::of(&claim)), Isolating);
}

#[test]
fn new_pod_behind_a_service_without_slices_does_not_wait() {
    let of_cron = service("{clusterIP: 10.96.0.1, selector: {app: cron}, ports: [{port: 80}]}");
    let index = index(Some(of_cron));
    assert_eq!(index.effect_of(&pod("new", "cron", "far", "10.0.1.6")), Isolating);
    assert_eq!(index.effect_of(&pod("new", "job", "far", "10.0.1.6")), Allowing);
}

#[test]
fn new_pod_does_not_wait_where_blocks_do_not_contain_pods() {
    let assume = Assumptions { ipblock_pods: weir_model::IpBlockPods::Ignore, ..Assumptions::default() };
    let mut index = Index::new(Some("near".to_owned()), assume);
    objects(&[NEAR_AND_FAR, CLUSTER].join("---\n")).into_iter().for_each(|object| _ = index.apply(object));
    index.compile().expect("it compiles");
    assert_eq!(index.effect_of(&pod("new", "cron", "far", "10.0.1.6")), Isolating);
}
