//! Decides whether a local pod can come or leave without a compile.
//!
//! Problem: a pod of this node is a subject as well as a peer, so a compile seems to be needed for each one. But most
//! new pods are copies of pods that are here: a step of a rolling update, or one more replica.
//! Strategy: the generation in force gives the new pod the subject class of a pod that is *alike*: the same policies and
//! lists select both now, and rules name the same ports of both. A compile from scratch would give both the same class,
//! because a subject class consists of these facts, the node, and the services and hostPorts that lead to the pod.
//!
//! A compile answers if one of these conditions does not hold:
//! * the generation has all changes so far, and no other one is being made. Otherwise a policy that is known but not in
//!   force yet would apply to the new pod later than the pod starts;
//! * a local pod of the generation is alike, and no service and no hostPort leads to it;
//! * the peer class of each address exists ([`super::pods`]);
//! * no service and no hostPort leads to the new pod, and no node, service or other pod has its address;
//! * the pod names no address as its node's that its Node object does not have;
//! * the programs know its address families, and it has one address of each.
//!
//! A pod leaves without a compile if the generation has all changes so far and no other one is being made, the class that
//! its addresses get without it exists, no service and no hostPort leads to the pod, no other object has its addresses, and
//! its node has the address that it names. Its subject class then stays in the tables, where no packet finds it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use super::baseline::Baseline;
use super::effect::CLUSTER_POLICY_KINDS;
use super::pods::{addresses, as_pod, is_behind};
use super::store::KeyRef;
use super::{Changes, Dirty, Generation, Index, Key};
use crate::{PeerId, SubjectClass, SubjectId};
use weir_model::labels::matches;
use weir_model::resolve::{named_ports, namespace_labels, standing};
use weir_model::{NamedPort, Standing};
use weir_objects::address::Family;
use weir_objects::k8s::{Body, Labels, Object, Pod};
use weir_objects::name::Name;

/// A local pod that comes or leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalChange {
    /// A pod comes.
    Came(LocalArrival),
    /// A pod leaves.
    Left {
        /// The pod's key.
        pod: Key,
        /// Its UID.
        uid: Option<Name>,
    },
}

/// A new local pod, and a pod of the generation that has the same subject class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalArrival {
    /// The new pod's key.
    pub pod: Key,
    /// Its UID.
    pub uid: Option<Name>,
    /// Its addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// `namespace/name` of the other pod.
    pub like: String,
    /// The subject class of both.
    pub subject: SubjectId,
    labels: Arc<Labels>,
}

/// The local pods of a generation, and the changes since then.
#[derive(Debug)]
pub(super) struct LocalPods {
    /// One pod for each subject class to which no service and no hostPort leads.
    examples: Vec<ExamplePod>,
    /// The examples by the facts that a new pod must share with them. They are found when the first pod comes. Later
    /// changes cannot make them wrong: a change of the policies that select a local pod needs a compile.
    by_facts: OnceLock<HashMap<SubjectFacts, usize>>,
    has_v4: bool,
    has_v6: bool,
    came: BTreeMap<Key, AddedPod>,
    /// Addresses that pods of the generation had.
    left: BTreeSet<IpAddr>,
}

#[derive(Debug)]
struct ExamplePod {
    namespace: String,
    name: String,
    labels: Labels,
    ports: Vec<NamedPort>,
    subject: SubjectId,
}

#[derive(Debug)]
struct AddedPod {
    labels: Arc<Labels>,
    addresses: Vec<IpAddr>,
}

/// The facts about a local pod that define its subject class, if no service and no hostPort leads to it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SubjectFacts {
    /// The policies and lists that apply to it.
    rules: Vec<Key>,
    /// Its ports that ingress rules name.
    named: Vec<(u32, u16)>,
}

impl LocalPods {
    pub(super) fn new(generation: &Generation) -> Self {
        let Generation { cluster, classes, .. } = generation;
        let mut examples: BTreeMap<SubjectId, ExamplePod> = BTreeMap::new();
        let (mut has_v4, mut has_v6) = (false, false);
        for (id, subject) in &classes.subject_of {
            let endpoint = &cluster.endpoints[id.index()];
            has_v4 |= endpoint.addresses.iter().any(IpAddr::is_ipv4);
            has_v6 |= endpoint.addresses.iter().any(IpAddr::is_ipv6);
            if leads_nothing_to(&classes.subjects[subject.index()]) {
                examples.entry(*subject).or_insert_with(|| ExamplePod {
                    namespace: cluster.namespaces[endpoint.namespace.index()].name.clone(),
                    name: endpoint.name.clone(),
                    labels: cluster.labels.labels(endpoint.labels).clone(),
                    ports: endpoint.named_ports.to_vec(),
                    subject: *subject,
                });
            }
        }
        let examples = examples.into_values().collect();
        let (came, left) = (BTreeMap::new(), BTreeSet::new());
        Self { examples, by_facts: OnceLock::new(), has_v4, has_v6, came, left }
    }

    /// Whether a pod that came has this address; `Some(false)` if a pod of the generation has left it.
    pub(super) fn has(&self, address: IpAddr) -> Option<bool> {
        if self.came.values().any(|it| it.addresses.contains(&address)) {
            return Some(true);
        }
        self.left.contains(&address).then_some(false)
    }

    /// Pods that came: their namespaces and labels.
    pub(super) fn came(&self) -> impl Iterator<Item = (&str, &Labels)> {
        self.came.iter().map(|(key, it)| (key.namespace.as_str(), &*it.labels))
    }

    /// Whether the programs can judge packets with these addresses as a pod's own.
    fn takes(&self, addresses: &[IpAddr]) -> bool {
        let of = |family| addresses.iter().filter(move |it| Family::of(**it) == family).count();
        of(Family::V4) <= usize::from(self.has_v4) && of(Family::V6) <= usize::from(self.has_v6)
    }

    /// Records a change as made.
    pub(super) fn note(&mut self, change: &LocalChange, had: &[IpAddr]) {
        match change {
            LocalChange::Came(LocalArrival { pod, labels, addresses, .. }) => {
                addresses.iter().for_each(|address| _ = self.left.remove(address));
                let added = AddedPod { labels: Arc::clone(labels), addresses: addresses.clone() };
                self.came.insert(pod.clone(), added);
            }
            LocalChange::Left { pod, .. } => {
                self.came.remove(pod);
                self.left.extend(had);
            }
        }
    }
}

/// Whether no service port and no hostPort that leads to the pods of a class changes its verdicts.
fn leads_nothing_to(subject: &SubjectClass) -> bool {
    let audit = subject.audit.as_ref();
    subject.own_services.is_empty()
        && subject.own_host_ports.is_empty()
        && audit.is_none_or(|it| it.own_services.is_empty() && it.own_host_ports.is_empty())
}

impl Index {
    /// A pod of this node comes or leaves; `None` if the change is another one, or needs a compile.
    pub(super) fn local_pod_changes(
        &self,
        baseline: &Baseline,
        before: Option<&Object>,
        after: Option<&Object>,
    ) -> Option<Dirty> {
        if self.node.is_none() || self.is_outdated || self.since.is_some() {
            return None;
        }
        let [old, new] = [before, after].map(|it| it.and_then(as_pod));
        match (old, new) {
            (old, Some((object, pod))) if old.is_none_or(|(object, pod)| self.has_no_part(baseline, object, pod)) => {
                self.local_pod_comes(baseline, object, pod)
            }
            (Some((object, pod)), None) => self.local_pod_leaves(baseline, object, pod),
            _ => None,
        }
    }

    fn local_pod_comes(&self, baseline: &Baseline, object: &Object, pod: &Pod) -> Option<Dirty> {
        let addresses = addresses(pod);
        let is_used = |address: &IpAddr| self.is_taken(baseline, *address) || self.holders.get(address) != Some(&1);
        if !self.is_plain(baseline, object, pod)
            || object.meta.deleting
            || !baseline.local_pods.takes(addresses)
            || addresses.iter().any(is_used)
        {
            return None;
        }
        let ports = named_ports(&pod.ports, self.assume);
        let classes = addresses.iter().map(|at| Some((*at, baseline.class_of(object, &ports, *at)?)));
        let classes: BTreeMap<IpAddr, PeerId> = classes.collect::<Option<_>>()?;
        let example = self.example_of(baseline, object, &ports)?;
        let arrival = LocalArrival {
            pod: Key::of(object),
            uid: object.meta.uid.clone(),
            addresses: addresses.to_vec(),
            like: format!("{}/{}", example.namespace, example.name),
            subject: example.subject,
            labels: Arc::clone(&object.meta.labels),
        };
        let changes = baseline.changes(classes, false);
        Some(Dirty::Addresses(with_local(changes, LocalChange::Came(arrival))))
    }

    fn local_pod_leaves(&self, baseline: &Baseline, object: &Object, pod: &Pod) -> Option<Dirty> {
        let addresses = addresses(pod);
        // The deleted pod is not counted any more.
        let is_used = |address: &IpAddr| {
            !baseline.is_local(*address) || self.is_fixed(baseline, *address) || self.holders.contains_key(address)
        };
        if !self.is_plain(baseline, object, pod) || addresses.iter().any(is_used) {
            return None;
        }
        let classes = addresses.iter().map(|at| Some((*at, baseline.class_without_pod(*at)?)));
        let classes: BTreeMap<IpAddr, PeerId> = classes.collect::<Option<_>>()?;
        let left = LocalChange::Left { pod: Key::of(object), uid: object.meta.uid.clone() };
        Some(Dirty::Addresses(with_local(baseline.changes(classes, true), left)))
    }

    /// Whether the object is a pod of this node that has an address of its own, and to which nothing else leads.
    fn is_plain(&self, baseline: &Baseline, object: &Object, pod: &Pod) -> bool {
        pod.node == self.node
            && standing(pod) == Standing::Member
            && pod.host_ports.is_empty()
            && !addresses(pod).is_empty()
            && self.is_at_a_declared_node(pod)
            && baseline.selecting(object).next().is_none()
            && !addresses(pod).iter().any(|address| is_behind(baseline, *address))
    }

    /// A local pod of the generation that would have the same subject class.
    fn example_of<'b>(&self, baseline: &'b Baseline, object: &Object, ports: &[NamedPort]) -> Option<&'b ExamplePod> {
        let pods = &baseline.local_pods;
        let by_facts = pods.by_facts.get_or_init(|| {
            let facts = |it: &ExamplePod| self.subject_facts(baseline, &it.namespace, &it.labels, &it.ports);
            pods.examples.iter().enumerate().map(|(index, it)| (facts(it), index)).collect()
        });
        let facts = self.subject_facts(baseline, &object.meta.namespace, &object.meta.labels, ports);
        pods.examples.get(*by_facts.get(&facts)?)
    }

    /// The policies and lists are those of now, not those of the generation: a policy that selected no local pod is not
    /// in the generation, and may select the new one.
    fn subject_facts(
        &self,
        baseline: &Baseline,
        namespace: &str,
        labels: &Labels,
        ports: &[NamedPort],
    ) -> SubjectFacts {
        let of_namespace = self.objects.of_namespace("NetworkPolicy", namespace);
        let of_cluster = CLUSTER_POLICY_KINDS.into_iter().chain(["CidrList"]).flat_map(|kind| self.of_kind(kind));
        let all = of_namespace.chain(of_cluster);
        let declared = self.objects.get(&KeyRef { kind: "Namespace", namespace: "", name: namespace });
        let namespace_labels = namespace_labels(namespace, declared);
        let rules = all.filter(|object| selects(object, &namespace_labels, labels)).map(Key::of).collect();
        SubjectFacts { rules, named: baseline.named_in_ingress(ports) }
    }
}

/// Whether a policy of the pod's namespace, a cluster-wide policy or a list applies to a pod.
pub(super) fn selects(object: &Object, namespace: &Labels, pod: &Labels) -> bool {
    match &object.body {
        Body::NetworkPolicy(policy) => matches(&policy.pod_selector, pod),
        Body::ClusterPolicy(policy) => {
            matches(&policy.subject_namespaces, namespace) && matches(&policy.subject_pods, pod)
        }
        Body::CidrList(list) => {
            list.namespaces.as_ref().is_none_or(|it| matches(it, namespace))
                && list.pods.as_ref().is_none_or(|it| matches(it, pod))
        }
        _ => false,
    }
}

/// Adds a change of a local pod to changes of addresses.
fn with_local(dirty: Dirty, local: LocalChange) -> Changes {
    let changes = match dirty {
        Dirty::Addresses(changes) => changes,
        Dirty::Nothing | Dirty::Everything => Changes::default(),
    };
    Changes { locals: vec![local], ..changes }
}
