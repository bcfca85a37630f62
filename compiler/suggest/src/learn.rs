//! Recorded flows → policies that allow them and as little else as possible.
//!
//! Problem: a cluster without policies runs, and its owner does not know which connections it needs.
//! Strategy: group pods by the labels of their workload ([`groups`]), and give each group that was seen one policy for
//! both directions, with a rule for each set of ports; a policy for each of their namespaces denies the rest. The
//! policies are judged alone, by the reference: every recorded flow is asked again.
//! Invariants: a flow between two groups allows these two groups and this port, and nothing else; an address becomes a
//! block that is no larger than asked for. No learned policy replaces a policy of the input ([`names`]). A flow that the
//! policies would deny is reported, never dropped.

mod extent;
mod groups;
mod names;
mod rules;

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_model::eval::{Basis, Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Direction, EndpointId, Protocol};
use weir_objects::address::{Family, Prefix};
use weir_objects::k8s::{Body, LabelSelector, Mode, NetworkPolicy, Object, PolicyRule, PolicyType, PortMatch};

use crate::allow::is_selectable;
use crate::change::plain_flows;
use crate::edit::NewPolicy;
use crate::tree::{self, Tree};
pub use extent::{Allowed, allowed};
use groups::{GroupId, Groups};
use names::PolicyNames;
use rules::{LearnedPort, LearnedRule, PeerKey, Traffic};

/// The port of DNS.
const DNS: u16 = 53;

/// A flow and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The flow.
    pub flow: Flow,
    /// How often.
    pub times: u64,
}

/// Choices of learning.
#[derive(Clone, Copy, Debug)]
pub struct LearnOptions {
    /// The longest prefixes of blocks, for IPv4 and IPv6: addresses are widened to them.
    pub longest: [u8; 2],
}

/// The policies that were learned.
#[derive(Clone, Debug)]
pub struct Learned {
    /// The policies, by namespace and name.
    pub policies: Vec<LearnedPolicy>,
    /// For each pair of workloads and port: one flow, and how often it was seen.
    pub pairs: Vec<Observation>,
    /// Flows that the policies would deny, with the reason.
    pub denied: Vec<(Flow, String)>,
    /// The number of observations that the policies allow.
    pub allowed: usize,
    /// The objects with the new policies, enforced, in place of the NetworkPolicies that there were.
    pub enforced: Vec<Object>,
}

/// A policy with comments.
#[derive(Clone, Debug)]
pub struct LearnedPolicy {
    /// The policy.
    pub policy: NewPolicy,
    /// The policy as a YAML document, with comments.
    pub yaml: String,
}

/// Learns policies from observations.
pub fn learn(objects: &[Object], assume: Assumptions, observations: &[Observation], options: LearnOptions) -> Learned {
    let (cluster, _) = resolve(objects, assume);
    let groups = Groups::of(&cluster, PolicyNames::of(objects));
    let mut learner = Learner { cluster: &cluster, groups: &groups, options, traffic: BTreeMap::new() };
    let mut pairs = Vec::new();
    for observation in observations {
        // A flow to a service is one to each of its backends.
        let Ok(flows) = plain_flows(&cluster, std::slice::from_ref(&observation.flow)) else { continue };
        for flow in flows {
            if learner.add(&flow, observation.times) {
                pairs.push(Observation { flow, times: observation.times });
            }
        }
    }
    let policies = learner.policies();
    let enforced = enforced(objects, &policies);
    let (after, _) = resolve(&enforced, assume);
    let denied = denied(&after, observations);
    Learned { pairs, allowed: observations.len() - denied.len(), policies, denied, enforced }
}

/// The objects with the policies in force, and no other NetworkPolicies.
fn enforced(objects: &[Object], policies: &[LearnedPolicy]) -> Vec<Object> {
    let mut enforced: Vec<Object> =
        objects.iter().filter(|it| !matches!(it.body, Body::NetworkPolicy(_))).cloned().collect();
    let first = objects.iter().map(|it| it.id.0 + 1).max().unwrap_or(0);
    for (policy, id) in policies.iter().zip(first..) {
        let spec = NetworkPolicy { mode: Mode::Enforce, ..policy.policy.policy.clone() };
        let policy = NewPolicy { policy: spec, ..policy.policy.clone() };
        enforced.push(policy.object(weir_objects::origin::ObjectId(id)));
    }
    enforced
}

fn denied(cluster: &Cluster, observations: &[Observation]) -> Vec<(Flow, String)> {
    let mut oracle = Oracle::new(cluster);
    let mut denied = Vec::new();
    for observation in observations {
        let judged = oracle.judge(&observation.flow);
        if judged.verdict() == Verdict::Allow {
            continue;
        }
        let side = if judged.egress.verdict == Verdict::Deny { &judged.egress } else { &judged.ingress };
        let reason = match (&side.basis, plain_flows(cluster, std::slice::from_ref(&observation.flow))) {
            (Basis::List(id), _) => format!("CidrList {} denies it", cluster.lists[id.index()].name),
            (Basis::Tier(rule), _) => format!("{} denies it", cluster.tier_policy_name(rule.policy)),
            (_, Err(error)) => error.to_string(),
            (_, Ok(_)) if observation.flow.protocol == FlowProtocol::Icmp => {
                "a rule cannot allow ICMP without allowing every port".to_owned()
            }
            (_, Ok(_)) => "no rule was learned from it".to_owned(),
        };
        denied.push((observation.flow.clone(), reason));
    }
    denied
}

struct Learner<'c> {
    cluster: &'c Cluster,
    groups: &'c Groups,
    options: LearnOptions,
    /// By group and direction.
    traffic: BTreeMap<GroupId, [Traffic; 2]>,
}

impl Learner<'_> {
    /// Adds a flow at both of its ends. Returns whether it is the first one of its groups and port.
    fn add(&mut self, flow: &Flow, times: u64) -> bool {
        let FlowProtocol::Transport(protocol) = flow.protocol else { return false };
        let ends =
            [(Direction::Ingress, flow.destination, flow.source), (Direction::Egress, flow.source, flow.destination)];
        let mut is_new = false;
        for (direction, subject, remote) in ends {
            let Some(group) = subject.endpoint.and_then(|id| self.groups.group(id)) else { continue };
            if is_exempt(self.cluster, subject, remote) {
                continue;
            }
            let Some(peer) = self.peer(remote) else { continue };
            let port = LearnedPort { protocol, port: self.port(flow, protocol) };
            let traffic = self.traffic.entry(group).or_default();
            is_new |= traffic[direction as usize].add(peer, port, times);
        }
        is_new
    }

    fn peer(&self, remote: FlowEnd) -> Option<PeerKey> {
        let pod = remote.endpoint.filter(|id| is_selectable(self.cluster, *id));
        match pod.and_then(|id| self.groups.group(id)) {
            Some(group) => Some(PeerKey::Group(group)),
            None => remote.address.map(|it| PeerKey::Block(self.block(it))),
        }
    }

    fn block(&self, address: IpAddr) -> Prefix {
        let longest = match Family::of(address) {
            Family::V4 => self.options.longest[0],
            Family::V6 => self.options.longest[1],
        };
        Prefix::new(address, longest)
    }

    /// The name of the port, if every pod of the destination's group gives it to this port and to no other.
    fn port(&self, flow: &Flow, protocol: Protocol) -> PortMatch {
        let number = PortMatch::Range(flow.port, flow.port);
        let Some(id) = flow.destination.endpoint.filter(|id| is_selectable(self.cluster, *id)) else { return number };
        let ports = |id: EndpointId| self.cluster.endpoints[id.index()].named_ports.iter();
        let is_it = |it: &&weir_model::NamedPort| it.protocol == protocol && it.number == flow.port;
        let Some(name) = ports(id).find(is_it).map(|it| it.name.clone()) else { return number };
        let members = self.groups.group(id).map_or(&[][..], |group| self.groups.members(group));
        let is_everywhere = members.iter().all(|member| {
            let mut named = ports(*member).filter(|it| it.name == name && it.protocol == protocol).peekable();
            named.peek().is_some() && named.all(|it| it.number == flow.port)
        });
        if is_everywhere { PortMatch::Named(name) } else { number }
    }

    fn policies(&self) -> Vec<LearnedPolicy> {
        let mut found = Vec::new();
        let mut namespaces: Vec<&str> = self.traffic.keys().map(|it| self.groups.namespace(*it)).collect();
        namespaces.dedup();
        for namespace in namespaces {
            let of_namespace = self.traffic.iter().filter(|(group, _)| self.groups.namespace(**group) == namespace);
            found.extend(of_namespace.map(|(group, traffic)| self.policy(*group, traffic)));
            // `kubectl apply` goes from the first to the last. If this came first, it would cut open connections.
            found.push(default_deny(namespace, self.groups.default_deny_name(namespace)));
        }
        found
    }

    fn policy(&self, group: GroupId, traffic: &[Traffic; 2]) -> LearnedPolicy {
        let rules = Direction::ALL.map(|it| traffic[it as usize].rules(self.groups, group));
        let [ingress, egress] = rules.each_ref().map(|rules| rules.iter().map(|it| it.rule.clone()).collect());
        let policy = new_policy(self.groups.namespace(group), self.groups.name(group), self.groups.selector(group));
        let policy = NewPolicy { policy: NetworkPolicy { ingress, egress, ..policy.policy }, ..policy };
        let comments = rules.map(|rules| rules.into_iter().map(|it| it.comment).collect());
        let comments: [Vec<String>; 2] = comments;
        LearnedPolicy { yaml: document(&policy, comments), policy }
    }
}

/// Whether policies cannot forbid the traffic: a pod with itself or with its node.
fn is_exempt(cluster: &Cluster, subject: FlowEnd, remote: FlowEnd) -> bool {
    let Some(id) = subject.endpoint else { return true };
    let endpoint = &cluster.endpoints[id.index()];
    let is_itself = remote.endpoint == Some(id) && !endpoint.is_several;
    let node = endpoint.node.map(|it| &cluster.nodes[it.index()].addresses);
    let is_pod = remote.endpoint.is_some_and(|id| is_selectable(cluster, id));
    let is_node = !is_pod && node.zip(remote.address).is_some_and(|(node, at)| node.contains(&at));
    is_itself || is_node
}

fn new_policy(namespace: &str, name: &str, pod_selector: LabelSelector) -> NewPolicy {
    let policy = NetworkPolicy {
        pod_selector,
        pod_selector_written: true,
        policy_types: vec![PolicyType::Ingress, PolicyType::Egress],
        ingress: Vec::new(),
        egress: Vec::<PolicyRule>::new(),
        mode: Mode::Audit,
    };
    NewPolicy { namespace: namespace.to_owned(), name: name.to_owned(), policy }
}

fn default_deny(namespace: &str, name: &str) -> LearnedPolicy {
    let policy = new_policy(namespace, name, LabelSelector::default());
    let yaml = format!("# Pods of which no flow was recorded.\n{}", policy.yaml());
    LearnedPolicy { policy, yaml }
}

/// The document, with a comment above each rule.
fn document(new: &NewPolicy, comments: [Vec<String>; 2]) -> String {
    let mut document = tree::policy(&new.namespace, &new.name, &new.policy);
    if let Tree::Map(fields) = &mut document
        && let Some((_, Tree::Map(spec))) = fields.iter_mut().find(|(key, _)| key == "spec")
    {
        for (direction, comments) in Direction::ALL.into_iter().zip(comments) {
            if let Some((_, Tree::List(rules))) = spec.iter_mut().find(|(key, _)| key == direction.name()) {
                for (rule, comment) in rules.iter_mut().zip(comments) {
                    *rule = Tree::Commented(comment, Box::new(rule.clone()));
                }
            }
        }
    }
    document.block(0)
}

/// Whether a port is that of DNS.
fn is_dns(port: &LearnedPort) -> bool {
    let names = ["dns", "dns-tcp"];
    port.protocol != Protocol::Sctp
        && match &port.port {
            PortMatch::Range(first, last) => (*first, *last) == (DNS, DNS),
            PortMatch::Named(name) => names.contains(&name.as_str()),
            PortMatch::Any => false,
        }
}

/// A learned rule's comment: `DNS, seen 12 times`.
fn comment(is_dns: bool, times: u64) -> String {
    let seen = if times == 1 { "seen only once".to_owned() } else { format!("seen {times} times") };
    if is_dns { format!("DNS, {seen}") } else { seen }
}

impl LearnedRule {
    fn new(rule: PolicyRule, is_dns: bool, times: u64) -> Self {
        Self { rule, comment: comment(is_dns, times) }
    }
}
