//! Edits of NetworkPolicies: a list of rules, peers, ports or exceptions gains, loses or exchanges an item.
//!
//! Every edit has two forms that mean the same: [`Edit::apply`] changes the objects, and [`crate::rewrite`] changes the
//! text that they were read from.

use std::fmt;
use std::sync::Arc;

use weir_objects::address::Prefix;
use weir_objects::k8s::{
    Body, Direction, Labels, Meta, Mode, NetworkPolicy, Object, PolicyPeer, PolicyPort, PolicyRule, PolicyType,
};
use weir_objects::origin::{FieldPath, ObjectId};

use crate::tree;

/// A new policy is a larger change than an edit of the same number of lines.
const NEW_POLICY_SIZE: usize = 8;

/// One edit.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Appends an item to a list of a policy.
    Append {
        /// The policy.
        object: ObjectId,
        /// The list.
        list: ListPath,
        /// The new item.
        item: Item,
    },
    /// Removes an item.
    Remove {
        /// The policy.
        object: ObjectId,
        /// The list.
        list: ListPath,
        /// The position of the item.
        index: usize,
    },
    /// Writes other items in place of one; never empty.
    Replace {
        /// The policy.
        object: ObjectId,
        /// The list.
        list: ListPath,
        /// The position of the item.
        index: usize,
        /// The new items.
        items: Vec<Item>,
    },
    /// Adds a policy.
    Create(NewPolicy),
}

/// A policy that does not exist yet.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPolicy {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `spec`, and the mode.
    pub policy: NetworkPolicy,
}

/// A list of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPath {
    /// `spec.ingress` or `spec.egress`
    Rules(Direction),
    /// `from` or `to` of a rule.
    Peers(Direction, usize),
    /// `ports` of a rule.
    Ports(Direction, usize),
    /// `ipBlock.except` of a peer of a rule.
    Except(Direction, usize, usize),
}

/// An item of a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A rule.
    Rule(PolicyRule),
    /// A peer.
    Peer(PolicyPeer),
    /// A port.
    Port(PolicyPort),
    /// An exception of a block.
    Except(Prefix),
}

impl ListPath {
    /// The direction of the rules.
    pub fn direction(self) -> Direction {
        match self {
            Self::Rules(it) | Self::Peers(it, _) | Self::Ports(it, _) | Self::Except(it, ..) => it,
        }
    }

    /// The path of the list in its object.
    pub fn path(self) -> FieldPath {
        let rules = FieldPath::root().field("spec").field(self.direction().name());
        let peers = peers_field(self.direction());
        match self {
            Self::Rules(_) => rules,
            Self::Peers(_, rule) => rules.index(rule).field(peers),
            Self::Ports(_, rule) => rules.index(rule).field("ports"),
            Self::Except(_, rule, peer) => rules.index(rule).field(peers).index(peer).field("ipBlock").field("except"),
        }
    }
}

/// `from` or `to`.
pub(crate) fn peers_field(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    }
}

/// The rules of a direction.
pub(crate) fn rules(policy: &NetworkPolicy, direction: Direction) -> &[PolicyRule] {
    match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    }
}

fn rules_mut(policy: &mut NetworkPolicy, direction: Direction) -> &mut Vec<PolicyRule> {
    match direction {
        Direction::Ingress => &mut policy.ingress,
        Direction::Egress => &mut policy.egress,
    }
}

impl Edit {
    /// The policy that is changed; `None` for a new one.
    pub fn object(&self) -> Option<ObjectId> {
        match self {
            Self::Append { object, .. } | Self::Remove { object, .. } | Self::Replace { object, .. } => Some(*object),
            Self::Create(_) => None,
        }
    }

    /// The direction of the rules that are changed. A new policy isolates in one direction.
    pub fn direction(&self) -> Direction {
        match self {
            Self::Append { list, .. } | Self::Remove { list, .. } | Self::Replace { list, .. } => list.direction(),
            Self::Create(new) if new.policy.policy_types == [PolicyType::Egress] => Direction::Egress,
            Self::Create(_) => Direction::Ingress,
        }
    }

    /// The objects with the edit. An edit of an object that is no NetworkPolicy, or of an item that does not exist,
    /// changes nothing.
    #[must_use]
    pub fn apply(&self, objects: &[Object]) -> Vec<Object> {
        let mut objects = objects.to_vec();
        match self {
            Self::Create(new) => {
                let id = ObjectId(objects.iter().map(|it| it.id.0 + 1).max().unwrap_or(0));
                objects.push(new.object(id));
            }
            Self::Append { object, .. } | Self::Remove { object, .. } | Self::Replace { object, .. } => {
                let found = objects.iter_mut().find(|it| it.id == *object).map(|it| &mut it.body);
                if let Some(Body::NetworkPolicy(policy)) = found {
                    self.change(policy);
                }
            }
        }
        objects
    }

    fn change(&self, policy: &mut NetworkPolicy) {
        match self {
            Self::Append { list, item, .. } => splice(policy, *list, None, vec![item.clone()]),
            Self::Remove { list, index, .. } => splice(policy, *list, Some(*index), Vec::new()),
            Self::Replace { list, index, items, .. } => splice(policy, *list, Some(*index), items.clone()),
            Self::Create(_) => return,
        }
        if self.needs_policy_types(policy) {
            policy.policy_types = vec![PolicyType::Ingress, PolicyType::Egress];
        }
    }

    /// Whether the policy, with this edit, needs `policyTypes` to keep isolating for egress.
    // Spec: "policies that contain an egress section are assumed to affect egress".
    pub(crate) fn needs_policy_types(&self, edited: &NetworkPolicy) -> bool {
        let is_removal = matches!(self, Self::Remove { list: ListPath::Rules(Direction::Egress), .. });
        is_removal && edited.egress.is_empty() && edited.policy_types.is_empty()
    }

    /// The size of the edit: the lines that it writes, or 1 for a removal.
    pub fn size(&self) -> usize {
        let lines = |item: &Item, direction| tree::item(item, direction).block(0).lines().count();
        match self {
            Self::Append { list, item, .. } => lines(item, list.direction()),
            Self::Remove { .. } => 1,
            Self::Replace { list, items, .. } => 1 + items.iter().map(|it| lines(it, list.direction())).sum::<usize>(),
            Self::Create(new) => NEW_POLICY_SIZE + new.yaml().lines().count(),
        }
    }
}

/// Replaces the item at `index`, or appends.
fn splice(policy: &mut NetworkPolicy, list: ListPath, index: Option<usize>, items: Vec<Item>) {
    let rules = rules_mut(policy, list.direction());
    match list {
        ListPath::Rules(_) => put(rules, index, items.into_iter().filter_map(Item::rule)),
        ListPath::Peers(_, rule) => {
            let Some(rule) = rules.get_mut(rule) else { return };
            put(&mut rule.peers, index, items.into_iter().filter_map(Item::peer));
        }
        ListPath::Ports(_, rule) => {
            let Some(rule) = rules.get_mut(rule) else { return };
            put(&mut rule.ports, index, items.into_iter().filter_map(Item::port));
        }
        ListPath::Except(_, rule, peer) => {
            let peer = rules.get_mut(rule).and_then(|it| it.peers.get_mut(peer));
            let Some(PolicyPeer::Block { except, .. }) = peer else { return };
            put(except, index, items.into_iter().filter_map(Item::except));
        }
    }
}

fn put<T>(list: &mut Vec<T>, index: Option<usize>, items: impl Iterator<Item = T>) {
    match index {
        None => list.extend(items),
        Some(index) if index < list.len() => _ = list.splice(index..=index, items),
        Some(_) => {}
    }
}

impl Item {
    fn rule(self) -> Option<PolicyRule> {
        if let Self::Rule(it) = self { Some(it) } else { None }
    }

    fn peer(self) -> Option<PolicyPeer> {
        if let Self::Peer(it) = self { Some(it) } else { None }
    }

    fn port(self) -> Option<PolicyPort> {
        if let Self::Port(it) = self { Some(it) } else { None }
    }

    fn except(self) -> Option<Prefix> {
        if let Self::Except(it) = self { Some(it) } else { None }
    }
}

impl NewPolicy {
    /// The policy as an object.
    pub fn object(&self, id: ObjectId) -> Object {
        let meta = Meta {
            name: self.name.clone(),
            namespace: self.namespace.as_str().into(),
            labels: Arc::new(Labels::new()),
            ..Meta::default()
        };
        Object { id, meta, body: Body::NetworkPolicy(self.policy.clone()) }
    }

    /// The policy as a YAML document.
    pub fn yaml(&self) -> String {
        tree::policy(&self.namespace, &self.name, &self.policy).block(0)
    }

    /// Whether the policy is only reported.
    pub fn is_audit(&self) -> bool {
        self.policy.mode == Mode::Audit
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append { list, .. } => write!(f, "append to {}", list.path()),
            Self::Remove { list, index, .. } => write!(f, "remove {}", list.path().index(*index)),
            Self::Replace { list, index, .. } => write!(f, "narrow {}", list.path().index(*index)),
            Self::Create(new) => write!(f, "add NetworkPolicy {}/{}", new.namespace, new.name),
        }
    }
}
