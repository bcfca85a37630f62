//! Makes small changes to a cluster, as a pull request would.

use std::fmt;
use std::sync::Arc;

use weir_objects::k8s::{Body, Labels, Object, PolicyType};

use super::cluster::{self, ClusterCase};
use super::manifest::yaml;
use super::{Generated, Random};

/// A cluster and the objects that it is compared with.
#[derive(Clone)]
pub struct ChangeCase {
    /// The cluster before the change.
    pub base: ClusterCase,
    /// The objects after it.
    pub head: Vec<Object>,
}

impl fmt::Debug for ChangeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "# base\n{:?}\n# head\n{}", self.base, yaml(&self.head))
    }
}

/// Clusters and what `head` makes of their objects.
pub fn changes(head: fn(&[Object], &mut Random) -> Vec<Object>) -> Generated<ChangeCase> {
    cluster::enforceable().then(move |base, random| {
        let head = head(&base.objects, random);
        ChangeCase { base, head }
    })
}

/// A few changes: mostly of policies, sometimes of pods, namespaces and services.
pub fn changed(objects: &[Object], random: &mut Random) -> Vec<Object> {
    let mut changed = objects.to_vec();
    random.list(1..=3, |number, random| change(&mut changed, number, random));
    cluster::number(&mut changed);
    changed
}

fn change(objects: &mut Vec<Object>, number: usize, random: &mut Random) {
    let is_policy = |it: &Object| matches!(it.body, Body::NetworkPolicy(_));
    let policies: Vec<usize> = (0..objects.len()).filter(|index| is_policy(&objects[*index])).collect();
    if random.once_in(4) {
        return change_tiers(objects, number, random);
    }
    match (random.below(8), policies.is_empty()) {
        (0, _) | (_, true) => objects.push(cluster::policy(100 + number, random)),
        (1, _) => _ = objects.remove(random.pick(&policies)),
        (2..=5, _) => change_policy(&mut objects[random.pick(&policies)], random),
        (6, _) => {
            let index = random.below(objects.len());
            relabel(&mut objects[index], random);
        }
        _ => {
            let index = random.below(objects.len());
            // Slices are removed with their service.
            if !matches!(objects[index].body, Body::Service(_)) {
                objects.remove(index);
            }
        }
    }
}

fn change_tiers(objects: &mut Vec<Object>, number: usize, random: &mut Random) {
    let is_tier = |it: &Object| matches!(it.body, Body::ClusterPolicy(_));
    let tiers: Vec<usize> = (0..objects.len()).filter(|index| is_tier(&objects[*index])).collect();
    match (random.below(3), tiers.is_empty()) {
        (0, _) | (_, true) => objects.push(cluster::cluster_policy(100 + number, random)),
        (1, _) => _ = objects.remove(random.pick(&tiers)),
        _ => {
            let Body::ClusterPolicy(policy) = &mut objects[random.pick(&tiers)].body else { return };
            let (kind, is_egress) = (policy.kind, random.once_in(2));
            let rules = if is_egress { &mut policy.egress } else { &mut policy.ingress };
            match random.below(3) {
                0 => rules.insert(0, cluster::cluster_rule(kind, is_egress, random)),
                1 => _ = rules.pop(),
                _ => policy.priority = random.below(3) as u16,
            }
        }
    }
}

fn change_policy(object: &mut Object, random: &mut Random) {
    let Body::NetworkPolicy(policy) = &mut object.body else { return };
    let egress = random.once_in(2);
    let rules = if egress { &mut policy.egress } else { &mut policy.ingress };
    match random.below(5) {
        0 => rules.push(cluster::rule(random)),
        1 => _ = rules.pop(),
        2 => _ = rules.first_mut().map(|rule| rule.ports = cluster::rule(random).ports),
        3 => _ = rules.first_mut().map(|rule| rule.peers = cluster::rule(random).peers),
        _ => {
            policy.policy_types = random.pick(&[
                vec![PolicyType::Ingress],
                vec![PolicyType::Egress],
                vec![PolicyType::Ingress, PolicyType::Egress],
            ]);
        }
    }
}

fn relabel(object: &mut Object, random: &mut Random) {
    match &mut object.body {
        Body::Workload(workload) => workload.pod_labels = Labels::new(),
        Body::Pod(_) | Body::Namespace => {
            let key = random.pick(&["app", "tier", "zone"]).to_owned();
            Arc::make_mut(&mut object.meta.labels).insert(key, random.pick(&["x", "y"]));
        }
        _ => {}
    }
}
