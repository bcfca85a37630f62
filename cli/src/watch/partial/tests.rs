use weir_objects::decode::{self, Input, InputKind};
use weir_objects::k8s::{
    Body, CidrList, ClusterPeer, ClusterPolicy, ClusterRule, ListAction, Mode, NetworkPolicy, PolicyType, RuleAction,
};

use super::*;

fn strictly(value: &Value) -> Option<Object> {
    decoded(value, false)
}

fn from_server(value: &Value) -> Option<Object> {
    decoded(value, true)
}

fn decoded(value: &Value, is_from_server: bool) -> Option<Object> {
    let input = Input { name: "test".to_owned(), bytes: value.to_string().into_bytes(), kind: InputKind::Manifest };
    let (decoded, found) =
        decode::decode(vec![input], &decode::DecodeOptions { default_namespace: String::new(), is_from_server });
    decoded.objects.into_iter().next().filter(|_| !found.has_errors())
}

#[track_caller]
fn policy_of(mode: Value, spec: Value) -> NetworkPolicy {
    let meta = json!({"name": "p", "namespace": "shop", "uid": "u", "annotations": {MODE: mode}});
    let written =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec});
    assert!(strictly(&written).is_none(), "it is not valid");
    match readable_parts("NetworkPolicy", &written, &strictly).expect("some parts are readable").body {
        Body::NetworkPolicy(policy) => policy,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn list_of(spec: Value) -> CidrList {
    let meta = json!({"name": "l", "uid": "u"});
    let written = json!({"apiVersion": "weir.dev/v1alpha1", "kind": "CidrList", "metadata": meta, "spec": spec});
    assert!(strictly(&written).is_none(), "it is not valid");
    match readable_parts("CidrList", &written, &strictly).expect("some parts are readable").body {
        Body::CidrList(list) => *list,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn cluster_policy_of(spec: Value) -> ClusterPolicy {
    let written = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "p", "uid": "u"},
        "spec": spec,
    });
    assert!(strictly(&written).is_none(), "it is not valid");
    match readable_parts("ClusterNetworkPolicy", &written, &from_server).expect("some parts are readable").body {
        Body::ClusterPolicy(policy) => *policy,
        other => panic!("{other:?}"),
    }
}

fn effect(rule: &ClusterRule) -> (RuleAction, bool) {
    (rule.action, rule.peers.iter().any(|peer| matches!(peer, ClusterPeer::Unknown)))
}

#[test]
fn unreadable_rule_of_a_cluster_policy_fails_closed() {
    let all = json!([{"namespaces": {}}]);
    let policy = cluster_policy_of(json!({
        "tier": "Admin", "priority": 7, "subject": {"namespaces": {"matchLabels": {"a": "b"}}},
        "ingress": [
            {"action": "Accept", "from": all, "hours": "9-17"},
            {"action": "Pass", "from": all, "hours": "9-17"},
            {"action": "Accept", "from": all},
        ],
    }));
    let effects: Vec<_> = policy.ingress.iter().map(effect).collect();
    assert_eq!(effects, [(RuleAction::Accept, true), (RuleAction::Deny, true), (RuleAction::Accept, false)]);
    assert_eq!(policy.priority, 7);
}

#[test]
fn cluster_policy_with_an_unreadable_subject_accepts_nothing() {
    let all = json!([{"namespaces": {}}]);
    let policy = cluster_policy_of(json!({
        "tier": "Admin", "priority": 7, "subject": {"everything": {}},
        "egress": [{"action": "Accept", "to": all}, {"action": "Pass", "to": all}, {"action": "Deny", "to": all}],
    }));
    let effects: Vec<_> = policy.egress.iter().map(effect).collect();
    assert_eq!(effects, [(RuleAction::Accept, true), (RuleAction::Accept, true), (RuleAction::Deny, false)]);
}

#[test]
fn policy_in_an_unknown_mode_is_enforced_as_written() {
    let policy = policy_of(json!("Audit"), json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{}]}));
    assert_eq!((policy.mode, policy.ingress.len()), (Mode::Enforce, 1));
    assert_eq!(policy.pod_selector.match_labels.len(), 1);
}

#[test]
fn unreadable_rule_allows_nothing_and_other_rules_stay() {
    let good = json!({"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]});
    // Without the unknown peer, the rule would allow everything.
    let bad = json!({"from": [{"podSelektor": {}}]});
    let policy = policy_of(json!("audit"), json!({"podSelector": {}, "ingress": [bad, good], "egress": [bad]}));
    assert_eq!((policy.ingress.len(), policy.ingress[0].peers.len(), policy.egress.len()), (1, 1, 0));
    assert_eq!(policy.policy_types, [PolicyType::Ingress, PolicyType::Egress]);
    assert_eq!(policy.mode, Mode::Audit, "a known mode stays");
}

#[test]
fn policy_with_an_unknown_field_isolates_in_both_directions() {
    let policy = policy_of(json!("enforce"), json!({"podSelector": {}, "ingress": [{}], "egres": [{}]}));
    assert_eq!(policy.policy_types, [PolicyType::Ingress, PolicyType::Egress]);
    assert!(policy.ingress.is_empty() && policy.egress.is_empty());
}

#[test]
fn unreadable_selector_isolates_every_pod_of_the_namespace() {
    let odd = json!({"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]});
    let policy = policy_of(json!("enforce"), json!({"podSelector": odd, "policyTypes": ["Egress"]}));
    assert!(policy.pod_selector.match_labels.is_empty() && policy.pod_selector.match_expressions.is_empty());
    assert_eq!(policy.policy_types, [PolicyType::Egress]);
}

#[test]
fn unreadable_policy_types_count_as_both() {
    let policy = policy_of(json!("enforce"), json!({"podSelector": {}, "policyTypes": ["ingress"]}));
    assert_eq!(policy.policy_types, [PolicyType::Ingress, PolicyType::Egress]);
}

#[test]
fn unreadable_list_entry_is_left_out_and_other_entries_stay() {
    for action in ["Deny", "Allow"] {
        let mut cidrs: Vec<String> = (0..250).map(|last| format!("203.0.113.{last}")).collect();
        cidrs.extend((0..250).map(|odd| format!("203.0.113.{odd}/33")));
        assert_eq!(list_of(json!({"action": action, "cidrs": cidrs})).entries.len(), 250);
    }
}

#[test]
fn list_with_an_unreadable_field_denies_everywhere_or_allows_nothing() {
    let spec = |action: &str| json!({"action": action, "cidrs": ["203.0.113.1"], "directions": ["ingress"]});
    let deny = list_of(spec("Deny"));
    assert_eq!((deny.entries.len(), deny.ingress, deny.egress), (1, true, true));
    assert_eq!(list_of(spec("Allow")).entries.len(), 0);
    let odd = list_of(spec("deny"));
    assert_eq!((odd.action, odd.entries.len()), (ListAction::Deny, 1));
}

#[test]
fn slice_keeps_its_other_ports_if_one_is_out_of_range() {
    let port = |name: &str, number: u32| json!({"name": name, "port": number, "protocol": "TCP"});
    let written = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "s-1", "namespace": "shop", "uid": "u", "labels": {"kubernetes.io/service-name": "s"}},
        "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [port("web", 443), port("odd", 70_000)]});
    assert!(strictly(&written).is_none(), "it is not valid");
    let read = readable_parts("EndpointSlice", &written, &strictly).expect("some parts are readable");
    let Body::EndpointSlice(slice) = read.body else { panic!("{:?}", read.body) };
    assert_eq!((slice.ports.len(), slice.ports[0].number, slice.endpoints.len()), (1, Some(443), 1));
    assert_eq!(slice.service.as_deref(), Some("s"));
}

#[test]
fn pod_with_an_unreadable_port_is_known() {
    let ports =
        json!([{"containerPort": 80, "hostPort": 8080, "hostIP": "x"}, {"containerPort": 70_000, "name": "odd"}]);
    let written = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "shop", "uid": "u", "labels": {"app": "p"}},
        "spec": {"nodeName": "near", "containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": "Running", "podIP": "10.0.0.5"}});
    assert!(strictly(&written).is_none(), "it is not valid");
    let read = readable_parts("Pod", &written, &strictly).expect("some parts are readable");
    assert_eq!(read.meta.labels.len(), 1);
    let Body::Pod(pod) = read.body else { panic!("{:?}", read.body) };
    assert_eq!((pod.addresses.len(), pod.host_ports.len(), pod.host_ports[0].address), (1, 1, None));
}
