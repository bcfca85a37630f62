//! Follows only the kinds of objects that the policies in force need.
//!
//! Problem: a policy that filters egress needs services, and a `nodes` peer needs all nodes. While they are not known,
//! such a policy must be neither weaker nor stricter than it is with them.
//! Strategy: before a generation is compiled, its draft names its needs ([`weir_classes::index::Needs`]). If a kind
//! is not followed yet, the agent orders its list and waits for it. The generation in force stays in force meanwhile.
//! Isolation does not wait longer than [`LONGEST_LISTING`]: then the generation is compiled without the rules that could
//! allow a packet because an object is not known, until the lists are complete. Before the first generation there is no
//! such limit, because the generation of the previous agent is in force.
//! Nodes are also followed where services are needed, because a ClusterIP that is a node's address is judged
//! differently. No generation waits for that: without the nodes, such an address only denies more.
//! Invariants: a kind that is not followed is never taken for one without objects: no generation is compiled that needs
//! it. A kind counts as known only after a complete list of the present order. A kind that no policy needs any more is
//! followed for another [`LINGER`], so that a policy that comes and goes does not cost a list each time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weir_classes::index::{Draft, Needs};

use super::{NodeAgent, Value};
use crate::watch::enforce::Enforce;
use crate::watch::scope::{FollowOrder, WatchScope};

/// How long a generation waits for lists that it needs.
const LONGEST_LISTING: Duration = Duration::from_millis(750);
/// Before the first generation, the time between two drafts that wait for lists.
const FIRST_RECHECK: Duration = Duration::from_secs(5);
/// How long a kind that is not needed any more is still followed.
pub(super) const LINGER: Duration = Duration::from_secs(600);

const SERVICES: [&str; 2] = ["Service", "EndpointSlice"];
const NODES: [&str; 1] = ["Node"];

/// Kinds that are followed on demand.
#[derive(Debug)]
struct Demand {
    kinds: &'static [&'static str],
    /// The number of the last order.
    number: u32,
    state: DemandState,
}

#[derive(Debug, PartialEq, Eq)]
enum DemandState {
    /// The kinds have their initial scope.
    Idle,
    /// All objects are ordered. The lists of these kinds are not complete.
    Listing { missing: BTreeSet<&'static str>, since: Instant },
    /// All objects are known. No policy has needed them since this time, if there is one.
    Known { unneeded_since: Option<Instant> },
}

impl Demand {
    fn new(kinds: &'static [&'static str], state: DemandState) -> Self {
        Self { kinds, number: 0, state }
    }

    fn is_known(&self) -> bool {
        matches!(self.state, DemandState::Known { .. })
    }

    /// Notes whether the kinds are needed. Returns whether they must be ordered.
    fn need(&mut self, is_needed: bool, now: Instant) -> bool {
        match (&mut self.state, is_needed) {
            (DemandState::Idle, true) => {
                self.state = DemandState::Listing { missing: self.kinds.iter().copied().collect(), since: now };
                self.number += 1;
                return true;
            }
            (DemandState::Known { unneeded_since }, true) => *unneeded_since = None,
            (DemandState::Known { unneeded_since }, false) => _ = unneeded_since.get_or_insert(now),
            (DemandState::Idle, false) | (DemandState::Listing { .. }, _) => {}
        }
        false
    }

    /// Notes that the list of a kind is complete. Returns whether it was the last one that was missing.
    fn listed(&mut self, kind: &str) -> bool {
        let DemandState::Listing { missing, .. } = &mut self.state else { return false };
        missing.remove(kind);
        let is_last = missing.is_empty();
        if is_last {
            self.state = DemandState::Known { unneeded_since: None };
        }
        is_last
    }

    /// Goes back to the initial scope.
    fn release(&mut self) {
        self.state = DemandState::Idle;
        self.number += 1;
    }

    /// When the kinds need not be followed any more.
    fn idle_at(&self) -> Option<Instant> {
        match self.state {
            DemandState::Known { unneeded_since } => unneeded_since.map(|since| since + LINGER),
            _ => None,
        }
    }
}

/// The kinds that are followed on demand, and their states.
#[derive(Debug)]
pub(super) struct WatchScopes {
    services: Demand,
    nodes: Demand,
    /// The kinds that the generation in force needs and that are not known, so that it denies more than the policies.
    closed: Vec<&'static str>,
}

impl Default for WatchScopes {
    fn default() -> Self {
        let demand = |kinds| Demand::new(kinds, DemandState::Idle);
        Self { services: demand(&SERVICES), nodes: demand(&NODES), closed: Vec::new() }
    }
}

impl WatchScopes {
    /// For tests without followers, in which every object counts as listed.
    #[cfg(test)]
    pub(super) fn everything() -> Self {
        let demand = |kinds| Demand::new(kinds, DemandState::Known { unneeded_since: None });
        Self { services: demand(&SERVICES), nodes: demand(&NODES), closed: Vec::new() }
    }

    fn demands(&self) -> [&Demand; 2] {
        [&self.services, &self.nodes]
    }

    fn of(&self, kind: &str) -> Option<&Demand> {
        self.demands().into_iter().find(|it| it.kinds.contains(&kind))
    }

    /// Whether objects of the kind are followed.
    pub(super) fn is_followed(&self, kind: &str) -> bool {
        WatchScope::initial(kind) != WatchScope::Nothing || self.of(kind).is_none_or(|it| it.state != DemandState::Idle)
    }

    /// Whether the list of the kind's present order is not complete.
    pub(super) fn is_listing(&self, kind: &str) -> bool {
        self.of(kind).is_some_and(|it| matches!(&it.state, DemandState::Listing { missing, .. } if !missing.is_empty()))
    }

    /// Whether a list belongs to the present order for its kind.
    pub(super) fn is_current(&self, kind: &str, number: u32) -> bool {
        self.of(kind).is_none_or(|it| it.number == number)
    }

    /// Notes that a list is complete. Returns whether more is known now than a generation in force may have needed.
    pub(super) fn listed(&mut self, kind: &str) -> bool {
        self.services.listed(kind) || self.nodes.listed(kind)
    }

    pub(super) fn knows_services(&self) -> bool {
        self.services.is_known()
    }

    /// When a kind is not needed any more.
    pub(super) fn due(&self) -> Option<Instant> {
        self.demands().into_iter().filter_map(Demand::idle_at).min()
    }

    /// The missing kinds, as a reason why the agent is not ready.
    pub(super) fn unready(&self) -> Option<String> {
        let kinds = self.closed.join(" and ");
        let so = "rules that need them allow nothing until they are";
        (!self.closed.is_empty()).then(|| format!("the {kinds} objects are not listed yet; {so}"))
    }

    /// The demands that a draft needs and whose lists are not complete.
    fn missing(&self, needs: Needs) -> impl Iterator<Item = (&Demand, Instant)> {
        let needed = [(needs.services, &self.services), (needs.nodes, &self.nodes)];
        needed.into_iter().filter(|(is_needed, _)| *is_needed).filter_map(|(_, demand)| match demand.state {
            DemandState::Listing { since, .. } => Some((demand, since)),
            _ => None,
        })
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// Whether a draft would have to wait for lists. Asked before a draft is begun, because a draft of a large cluster
    /// is expensive, and lists arrive one after the other. Orders the kinds that it needs.
    pub(super) fn must_wait_for_lists(&mut self, now: Instant) -> bool {
        if self.scopes.demands().into_iter().all(Demand::is_known) {
            return false;
        }
        let needs = self.objects.index().likely_needs();
        self.order_needed(needs, now);
        self.wait_for_lists(needs, now)
    }

    /// Orders the kinds that a generation needs.
    pub(super) fn order_needed(&mut self, needs: Needs, now: Instant) {
        if self.scopes.services.need(needs.services, now) {
            self.order(&SERVICES, WatchScope::All, self.scopes.services.number);
        }
        if self.scopes.nodes.need(needs.nodes || needs.services, now) {
            self.order(&NODES, WatchScope::All, self.scopes.nodes.number);
        }
    }

    /// Whether lists are missing, and there is still time to wait for them.
    fn wait_for_lists(&mut self, needs: Needs, now: Instant) -> bool {
        let since = self.scopes.missing(needs).map(|(_, since)| since).min();
        let until = since.map(|since| match self.enforcement.is_any() {
            true => since + LONGEST_LISTING,
            // Later drafts may need less.
            false => now + FIRST_RECHECK,
        });
        let until = until.filter(|until| now < *until);
        until.into_iter().for_each(|until| self.pending.wait_for_lists(until));
        until.is_some()
    }

    /// Orders the kinds that a draft needs. Returns the draft if it can be compiled now: as it is, or without the rules
    /// that need missing objects, if it has waited for too long. `None` if it must wait.
    pub(super) fn meet_needs(&mut self, mut draft: Draft, now: Instant) -> Option<Draft> {
        let needs = draft.needs();
        self.order_needed(needs, now);
        if self.wait_for_lists(needs, now) {
            return None;
        }
        let closed: Vec<&str> = self.scopes.missing(needs).flat_map(|(demand, _)| demand.kinds).copied().collect();
        if closed.contains(&SERVICES[0]) {
            draft.close_egress();
        }
        if closed.contains(&NODES[0]) {
            draft.close_node_rules();
        }
        self.scopes.closed = closed;
        let unready = self.scopes.unready().map(Value::from);
        unready.into_iter().for_each(|why| self.reports.log.warn("a list takes long", &[("why", why)]));
        Some(draft)
    }

    /// Stops following kinds that no policy has needed for a while.
    pub(super) fn forget_unneeded(&mut self, now: Instant) {
        let is_idle = |demand: &Demand| demand.idle_at().is_some_and(|at| at <= now);
        if is_idle(&self.scopes.services) {
            // If a later generation failed, the one in force may still need the services.
            if self.objects.index().judges_services() {
                self.scopes.services.state = DemandState::Known { unneeded_since: Some(now) };
            } else {
                self.scopes.services.release();
                self.order(&SERVICES, WatchScope::Nothing, self.scopes.services.number);
                SERVICES.iter().for_each(|kind| self.objects.forget_kind(kind));
            }
        }
        if is_idle(&self.scopes.nodes) {
            self.scopes.nodes.release();
            // The list of this order has only the own node, so the others are deleted from the index then.
            self.order(&NODES, WatchScope::OwnNode, self.scopes.nodes.number);
        }
    }

    fn order(&self, kinds: &[&'static str], scope: WatchScope, number: u32) {
        for kind in kinds {
            let followed = match scope {
                WatchScope::All => "all objects",
                WatchScope::OwnNode => "the own node",
                WatchScope::Nothing => "no objects",
            };
            let fields = [("kind", Value::from(*kind)), ("follows", Value::from(followed))];
            self.reports.log.info("the policies in force need other objects", &fields);
            (self.send_order)(kind, FollowOrder { scope, number });
        }
    }
}
