//! Kinds that are followed only while a policy needs them: services for egress, all nodes for `nodes` peers.

use super::super::scopes::LINGER;
use super::*;
use crate::watch::scope::WatchScope;

/// Longer than the agent waits for a list.
const LONG: Duration = Duration::from_secs(1);

const EGRESS: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: e, namespace: shop},
  spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}}";

const SERVICE: &str = "{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop},
  spec: {clusterIP: 10.96.0.1, selector: {app: db}, ports: [{port: 80, targetPort: 8080}]}}";

const NODES: &str =
    "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: by-nodes},
  spec: {tier: Admin, priority: 1, subject: {namespaces: {}},
    ingress: [{action: Deny, from: [{namespaces: {matchLabels: {a: b}}}]}],
    egress: [{action: Deny, to: [{nodes: {matchLabels: {a: b}}}]}]}}";

/// An agent with the cluster in force, that follows as little as possible.
fn least() -> Rig {
    let mut rig = Rig::new();
    rig.agent.scopes = WatchScopes::default();
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.orders(), NONE);
    rig
}

impl Rig {
    /// The orders since the last call, as text.
    fn orders(&mut self) -> Vec<String> {
        let orders = std::mem::take(&mut *self.orders.lock().expect("no test panics while it holds it"));
        orders.iter().map(|(kind, order)| format!("{kind} {:?} {}", order.scope, order.number)).collect()
    }

    /// The server sends these objects of a kind, and the end of their list.
    fn listed(&mut self, kind: &'static str, order: u32, text: &str) {
        let objects = if text.is_empty() { Vec::new() } else { objects(text) };
        let keys: Vec<Key> = objects.iter().map(Key::of).collect();
        objects.into_iter().for_each(|object| self.agent.handle_event(ApiEvent::Applied(object), self.now));
        self.agent.handle_event(ApiEvent::Listed { kind, names: keys.iter().collect(), order }, self.now);
    }

    fn knows(&self, kind: &str, name: &str) -> bool {
        self.agent.objects.index().get(&key(kind, name)).is_some()
    }
}

const ALL: [&str; 3] = ["Service All 1", "EndpointSlice All 1", "Node All 1"];

#[test]
fn policy_for_ingress_needs_neither_services_nor_other_nodes() {
    let mut rig = least();
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.orders(), NONE);
}

#[test]
fn policy_for_egress_waits_for_the_lists_of_services_and_slices() {
    let mut rig = least();
    rig.apply(EGRESS);
    assert_eq!(rig.after(10 * GATHER), NONE);
    assert_eq!(rig.orders(), ALL);
    rig.listed("Service", 1, SERVICE);
    assert_eq!(rig.after(10 * GATHER), NONE, "the slices are missing");
    rig.listed("EndpointSlice", 1, "");
    // The nodes are not waited for.
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.metrics.unready(), None);
    assert_eq!(rig.orders(), NONE, "the kinds are ordered once");
    let vip = IpAddr::from([10, 96, 0, 1]);
    let class = rig.agent.objects.index().peer_at(vip);
    assert_ne!(class, rig.agent.objects.index().peer_at(IpAddr::from([10, 96, 0, 2])), "the service has its own class");
}

#[test]
fn isolation_does_not_wait_longer_than_its_limit_for_lists() {
    let mut rig = least();
    rig.apply(EGRESS);
    assert_eq!(rig.after(LONG), ["install shop/web@veth7 isolated"]);
    // The agent denies more than the policy, and says so.
    let unready = rig.metrics.unready().expect("it is not ready");
    assert!(unready.contains("the Service and EndpointSlice objects are not listed yet"), "{unready}");
    assert_eq!(rig.after(LONG), NONE);
    rig.listed("Service", 1, SERVICE);
    rig.listed("EndpointSlice", 1, "");
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.metrics.unready(), None);
}

#[test]
fn first_generation_waits_for_the_lists_without_a_limit() {
    let mut rig = Rig::new();
    rig.agent.scopes = WatchScopes::default();
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(&[CLUSTER, EGRESS].join("---\n"));
    assert_eq!(rig.after(60 * LONG), NONE, "the generation of the previous agent is in force");
    assert_eq!(rig.orders(), ALL);
    assert!(rig.metrics.unready().is_some());
    rig.listed("Service", 1, SERVICE);
    rig.listed("EndpointSlice", 1, "");
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
}

#[test]
fn services_are_forgotten_some_time_after_the_last_policy_that_needed_them() {
    let mut rig = least();
    rig.apply(EGRESS);
    rig.after(GATHER);
    rig.listed("Service", 1, SERVICE);
    rig.listed("EndpointSlice", 1, "");
    rig.listed("Node", 1, "");
    rig.after(LONG);
    rig.orders();
    rig.delete("NetworkPolicy", "e");
    rig.after(LINGER / 2);
    assert_eq!(rig.orders(), NONE);
    assert!(rig.knows("Service", "db"));
    // The policy comes back and goes again: the time begins anew.
    rig.apply(EGRESS);
    rig.after(LONG);
    rig.delete("NetworkPolicy", "e");
    rig.after(LINGER - LONG);
    assert_eq!(rig.orders(), NONE);
    rig.after(2 * LONG);
    assert_eq!(rig.orders(), ["Service Nothing 2", "EndpointSlice Nothing 2", "Node OwnNode 2"]);
    assert!(!rig.knows("Service", "db"));
    // A late event of the earlier order is not taken for knowledge.
    rig.apply(SERVICE);
    assert!(!rig.knows("Service", "db"));
    rig.apply(EGRESS);
    assert_eq!(rig.after(10 * GATHER), NONE);
    assert_eq!(rig.orders(), ["Service All 3", "EndpointSlice All 3", "Node All 3"]);
    for kind in ["Service", "EndpointSlice"] {
        rig.listed(kind, 1, "");
    }
    assert_eq!(rig.after(10 * GATHER), NONE, "lists of an earlier order do not count");
    for kind in ["Service", "EndpointSlice"] {
        rig.listed(kind, 3, "");
    }
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
}

#[test]
fn peers_by_nodes_wait_for_the_list_of_all_nodes() {
    let mut rig = least();
    rig.apply(NODES);
    assert_eq!(rig.after(10 * GATHER), NONE);
    assert_eq!(rig.orders(), ALL);
    for kind in ["Service", "EndpointSlice"] {
        rig.listed(kind, 1, "");
    }
    assert_eq!(rig.after(10 * GATHER), NONE);
    rig.listed("Node", 1, CLUSTER.split("---").nth(1).expect("it is the node"));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
}

/// The policy applies to no local pod, so only other generations follow it.
#[test]
fn nodes_are_followed_and_forgotten_by_generations_that_are_made_from_changes() {
    let mut rig = least();
    rig.apply(&NODES.replace("subject: {namespaces: {}}", "subject: {namespaces: {matchLabels: {no: one}}}"));
    assert_eq!(rig.after(GATHER), NONE);
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.orders(), ["Node All 1"]);
    rig.listed("Node", 1, CLUSTER.split("---").nth(1).expect("it is the node"));
    rig.delete("ClusterNetworkPolicy", "by-nodes");
    rig.delete("NetworkPolicy", "p");
    rig.after(GATHER);
    rig.after(LINGER + LONG);
    assert_eq!(rig.orders(), ["Node OwnNode 2"]);
}

#[test]
fn changes_of_a_kind_during_its_list_need_no_generations() {
    let mut rig = least();
    rig.apply(EGRESS);
    assert_eq!(rig.after(LONG), ["install shop/web@veth7 isolated"]);
    for _ in 0..20 {
        rig.apply(SERVICE);
        rig.apply(&SERVICE.replace("port: 80,", "port: 81,"));
        assert_eq!(rig.after(GATHER), NONE);
    }
}

#[test]
fn number_of_objects_of_a_kind_that_is_not_followed_is_not_reported_as_0() {
    let mut rig = least();
    rig.after(Duration::from_secs(31));
    let text = rig.metrics.text();
    assert!(text.contains("weir_objects{kind=\"Pod\"} 2\n"), "{text}");
    assert!(!text.contains("weir_objects{kind=\"Service\"}"), "{text}");
}

#[test]
fn scopes_of_the_kinds_are_field_selectors() {
    assert_eq!(WatchScope::initial("Node").field_selector("Node", "near").as_deref(), Some("metadata.name=near"));
    assert_eq!(WatchScope::All.field_selector("Node", "near"), None);
    assert_eq!(WatchScope::initial("EndpointSlice"), WatchScope::Nothing);
}
