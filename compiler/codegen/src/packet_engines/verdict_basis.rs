//! The reason for a verdict, from the compiled classes.

use super::PacketQuestion;
use super::world::{CompiledWorld, transport};
use weir_classes::{Atoms, TierDecision};
use weir_model::eval::{Basis, EndVerdict, FlowProtocol, RuleId, Verdict};
use weir_model::{
    Cluster, Direction, Endpoint, ListId, PolicyId, PortMatch, RuleAction, Tier, TierPolicyId, TierRuleId,
};

/// A verdict with its reasons.
pub(super) fn explained(world: &CompiledWorld<'_>, question: &PacketQuestion, verdict: Verdict) -> EndVerdict {
    let beyond = beyond_tiers(world, question);
    if let Some(basis) = beyond.clone().filter(|_| verdict == Verdict::Allow) {
        return EndVerdict::new(verdict, basis);
    }
    if let Some(list) = denying_list(world, question).filter(|_| verdict == Verdict::Deny) {
        return EndVerdict::new(verdict, Basis::List(list));
    }
    let TierDecision { decided, passed } = tier_decision(world, question);
    let of_verdict = |action| (action == RuleAction::Deny) == (verdict == Verdict::Deny);
    let basis = match decided {
        Some((rule, action)) if of_verdict(action) => Basis::Tier(rule),
        _ => basis(world, question, verdict),
    };
    EndVerdict::new(verdict, basis).after(passed)
}

/// The verdict on a packet that the node sends back to its own pod: cluster-wide policies decide, in both directions.
pub(super) fn hairpin(world: &CompiledWorld<'_>, question: &PacketQuestion) -> EndVerdict {
    let judged = |direction| {
        let TierDecision { decided, passed } = tier_decision(world, &PacketQuestion { direction, ..*question });
        let (verdict, basis) = match decided {
            Some((rule, RuleAction::Deny)) => (Verdict::Deny, Basis::Tier(rule)),
            Some((rule, _)) => (Verdict::Allow, Basis::Tier(rule)),
            None => (Verdict::Allow, Basis::Itself),
        };
        EndVerdict::new(verdict, basis).after(passed)
    };
    let leaving = judged(Direction::Egress);
    if leaving.verdict == Verdict::Deny {
        return leaving;
    }
    let arriving = judged(Direction::Ingress);
    if arriving.verdict == Verdict::Deny { arriving } else { leaving }
}

fn tier_decision(world: &CompiledWorld<'_>, question: &PacketQuestion) -> TierDecision {
    let classes = &world.compiled.classes;
    let peer = classes.peer_at(question.remote);
    let atom = transport(question.protocol).map_or(Atoms::REST, |it| classes.atoms.find(it, question.port));
    classes.tier_decision(&world.cluster, question.direction, question.subject, peer, atom)
}

/// The reason why no policy at all can forbid the traffic, if there is one.
fn beyond_tiers(world: &CompiledWorld<'_>, question: &PacketQuestion) -> Option<Basis> {
    match () {
        () if is_itself(world, question) => Some(Basis::Itself),
        // The programs let the own node's packets in by other evidence than its address.
        () if question.own_node && question.direction == Direction::Ingress => Some(Basis::OwnNode),
        () => None,
    }
}

pub(super) fn is_itself(world: &CompiledWorld<'_>, question: &PacketQuestion) -> bool {
    let endpoint = world.endpoint(question.place).and_then(|id| world.cluster.endpoints.get(id.index()));
    // All addresses of the pod, because packets between two of them are packets to itself as well.
    let is_own = |it: &Endpoint| match it.is_several {
        true => question.own == question.remote,
        false => it.addresses.contains(&question.remote),
    };
    endpoint.is_some_and(is_own)
}

/// The basis of a verdict that no list and no cluster-wide policy gave.
fn basis(world: &CompiledWorld<'_>, question: &PacketQuestion, verdict: Verdict) -> Basis {
    let classes = &world.compiled.classes;
    let peer = classes.peer_at(question.remote);
    // A denied packet cannot have passed as the own node's or to itself.
    if verdict == Verdict::Deny {
        return Basis::Isolated(isolating(world, question));
    }
    if question.own_node {
        return Basis::OwnNode;
    }
    if isolating(world, question).is_empty() {
        return Basis::NotIsolated;
    }
    // Protocols without ports have one atom together, which only rules without `ports` allow.
    let atom = transport(question.protocol).map_or(Atoms::REST, |it| classes.atoms.find(it, question.port));
    Basis::Rules(classes.provenance(question.direction, question.subject, peer, atom))
}

/// The first list that contains the remote address, if it denies. Lists are not asked about a pod's own node.
fn denying_list(world: &CompiledWorld<'_>, question: &PacketQuestion) -> Option<ListId> {
    let classes = &world.compiled.classes;
    let peer = classes.peer_at(question.remote);
    let node = classes.subjects.get(question.subject.index()).and_then(|subject| subject.node);
    let of_peer = classes.peers.get(peer.index()).map_or(&[][..], |peer| &peer.nodes);
    // Traffic with the own node is allowed before lists, as in the programs. Otherwise the reason would name a list
    // that never decided.
    if node.is_some_and(|node| of_peer.contains(&node)) {
        return None;
    }
    classes.denying_list(&world.cluster, question.direction, question.subject, peer)
}

fn isolating(world: &CompiledWorld<'_>, question: &PacketQuestion) -> Vec<PolicyId> {
    let subject = world.compiled.classes.subjects.get(question.subject.index());
    let policies = subject.map_or(&[][..], |subject| &subject.policies);
    let isolates = |id: &&PolicyId| world.cluster.policies[id.index()].rules(question.direction).is_some();
    policies.iter().filter(isolates).copied().collect()
}

/// The verdict on a service port without backends, with its reasons: any `Deny` rule may be about a backend to come.
pub(super) fn without_backends(world: &CompiledWorld<'_>, question: &PacketQuestion, verdict: Verdict) -> EndVerdict {
    let is_isolated = !isolating(world, question).is_empty();
    if verdict == Verdict::Deny
        && let Some(rule) = any_denial(world, question, is_isolated)
    {
        return EndVerdict::new(verdict, Basis::Tier(rule));
    }
    let without_tiers = EndVerdict::new(verdict, basis(world, question, verdict));
    without_peers(world, without_tiers, question.protocol, true)
}

fn any_denial(world: &CompiledWorld<'_>, question: &PacketQuestion, is_isolated: bool) -> Option<TierRuleId> {
    let subject = world.compiled.classes.subjects.get(question.subject.index())?;
    // They are numbered in the order of evaluation: the Admin tier first.
    let asked = |id: &&TierPolicyId| !is_isolated || world.cluster.tier_policy(**id).tier == Tier::Admin;
    subject.tiers.iter().filter(asked).find_map(|policy| {
        let rules = &world.cluster.tier_policy(*policy).egress;
        let rule = rules.iter().position(|rule| rule.action == RuleAction::Deny)? as u32;
        Some(TierRuleId { policy: *policy, direction: Direction::Egress, rule })
    })
}

/// The verdict for an address without a pod or service behind it: only rules without peers match it. For a service port,
/// only those of them that allow every port.
pub(super) fn without_peers(
    world: &CompiledWorld<'_>,
    judged: EndVerdict,
    protocol: FlowProtocol,
    is_service_port: bool,
) -> EndVerdict {
    let Basis::Rules(mut rules) = judged.basis else { return judged };
    rules.retain(|id| reaches(&world.cluster, *id, protocol, is_service_port));
    EndVerdict { basis: Basis::Rules(rules), ..judged }
}

fn reaches(cluster: &Cluster, id: RuleId, protocol: FlowProtocol, is_service_port: bool) -> bool {
    let rules = cluster.policies.get(id.policy.index()).and_then(|policy| policy.rules(Direction::Egress));
    let Some(rule) = rules.and_then(|rules| rules.get(id.rule as usize)) else { return false };
    // While a service has no backends, its target ports are unknown, so only a rule that allows every port can have
    // allowed it. Port 0 does not exist in the API, so a range from 1 is complete.
    let is_all = |port: &weir_model::PortRule| {
        let every = matches!(port.port, PortMatch::Any | PortMatch::Range(0..=1, u16::MAX));
        every && FlowProtocol::Transport(port.protocol) == protocol
    };
    rule.peers.is_empty() && (!is_service_port || rule.ports.is_empty() || rule.ports.iter().any(is_all))
}
