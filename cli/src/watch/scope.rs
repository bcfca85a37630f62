//! Which objects of a kind are followed, and the orders that change this.
//!
//! Problem: services, EndpointSlices and nodes are needed only by some policies, and every agent of a large cluster that
//! follows them costs the API server bandwidth. Strategy: the agent decides which of them its policies need and sends an
//! order to the follower of each kind. Orders are numbered, and a complete list carries the number of the order that it
//! belongs to, so a list of an earlier order cannot be taken for a later one's.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// The objects of a kind that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchScope {
    /// All objects.
    All,
    /// Only the object of the agent's node.
    OwnNode,
    /// No objects.
    Nothing,
}

impl WatchScope {
    /// The scope of a kind before any policy is known.
    pub(crate) fn initial(kind: &str) -> Self {
        match kind {
            "Service" | "EndpointSlice" => Self::Nothing,
            "Node" => Self::OwnNode,
            _ => Self::All,
        }
    }

    /// The objects of a kind that the server should send; all if it is `None`.
    pub(crate) fn field_selector(self, kind: &str, node: &str) -> Option<String> {
        match (kind, self) {
            // No rule can mean pods that have ended.
            ("Pod", _) => Some("status.phase!=Succeeded,status.phase!=Failed".to_owned()),
            (_, Self::OwnNode) => Some(format!("metadata.name={node}")),
            _ => None,
        }
    }
}

/// An order to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowOrder {
    pub(crate) scope: WatchScope,
    /// Grows with each order for the kind.
    pub(crate) number: u32,
}

impl FollowOrder {
    pub(crate) fn initial(kind: &str) -> Self {
        Self { scope: WatchScope::initial(kind), number: 0 }
    }
}

/// The channels for orders, one for each kind.
#[derive(Debug)]
pub(crate) struct FollowOrders {
    kinds: BTreeMap<&'static str, watch::Sender<FollowOrder>>,
}

impl FollowOrders {
    pub(crate) fn new(kinds: impl Iterator<Item = &'static str>) -> Self {
        Self { kinds: kinds.map(|kind| (kind, watch::Sender::new(FollowOrder::initial(kind)))).collect() }
    }

    /// The channel on which a follower receives its orders.
    pub(crate) fn receiver(&self, kind: &str) -> Option<watch::Receiver<FollowOrder>> {
        self.kinds.get(kind).map(watch::Sender::subscribe)
    }

    pub(crate) fn send(&self, kind: &str, order: FollowOrder) {
        if let Some(sender) = self.kinds.get(kind) {
            sender.send_replace(order);
        }
    }
}
