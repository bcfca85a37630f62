//! One flow of a row, and the reference oracle's verdicts on it for both sides.
//!
//! Every row is checked this way: if the oracle judges the flow otherwise than the row says, that is a bug in Weir and
//! is reported as one.

use std::net::IpAddr;

use super::cells::CellPart;
use super::cluster_side::{ClusterSide, PeerView};
use super::rows::RowContext;
use super::{AddressRange, DiffError, FlowWitness, Presence, RowEnd, RowTraffic, VerdictChange};
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{EndpointId, Standing};
use weir_objects::address::{Family, to_address, to_number};

type Oracles<'c> = [Option<Oracle<'c>>; 2];

/// An end to try.
#[derive(Clone, Copy)]
enum Try {
    Endpoint(u32),
    Range(AddressRange),
    Service(u32),
}

/// An example flow of the row; `None` if all of its flows are excluded from the comparison.
pub(super) fn find(
    context: &RowContext<'_, '_>,
    oracles: &mut Oracles<'_>,
    part: &CellPart,
    traffic: &RowTraffic,
    source: &RowEnd,
    destination: &RowEnd,
    family: Option<Family>,
) -> Result<Option<FlowWitness>, DiffError> {
    let families: &[Family] = match &family {
        Some(one) => std::slice::from_ref(one),
        None => &[Family::V4, Family::V6],
    };
    // A pair is skipped only if the comparison excludes it or the ends share no family, so one of the first pairs ends
    // the search. To ask the oracle about all pairs would make a row cost the product of its parties.
    for family in families {
        for from in ends(source) {
            for to in ends(destination) {
                if let Some(pair) = pair(context, part, *family, from, to) {
                    return make_witness(context, oracles, part, traffic, pair).map(Some);
                }
            }
        }
    }
    Ok(None)
}

fn ends(party: &RowEnd) -> impl Iterator<Item = Try> {
    let endpoints = party.endpoints.iter().map(|it| Try::Endpoint(*it));
    let services = party.services.iter().map(|it| Try::Service(*it));
    // Endpoints first: a flow between names is easier to read than one with an address.
    endpoints.chain(services).chain(party.ranges.iter().map(|it| Try::Range(*it)))
}

/// Both ends on both sides: endpoint and address.
struct EndPair {
    names: [Option<u32>; 2],
    ends: [[Option<FlowEnd>; 2]; 2],
}

/// Two ends with addresses of one family whose traffic is part of the comparison.
fn pair(context: &RowContext<'_, '_>, part: &CellPart, family: Family, from: Try, to: Try) -> Option<EndPair> {
    // The side that allows the flow: the head for added traffic, the base for removed traffic.
    let having = if part.change == VerdictChange::Added { 1 } else { 0 };
    let sender = match from {
        Try::Endpoint(id) => Some(id),
        _ => None,
    };
    let receiver = match to {
        Try::Endpoint(id) => Some(id),
        _ => None,
    };
    // A pod always reaches itself; two pods of one workload need not. Two outside addresses end here too (`None` on both sides): no policy judges their
    // traffic.
    if sender == receiver && sender.is_none_or(|it| !context.is_several(it)) {
        return None;
    }
    let named = |id: u32| {
        // The address as it is compared in this family, which is not always the first one in the pod's status.
        let views = context.frames[family as usize].views[id as usize];
        let end = |which: usize| {
            let view = Some(views[which]).filter(|it| *it != PeerView::Gone)?;
            Some(FlowEnd { endpoint: context.endpoints[id as usize].ids[which], address: view.address() })
        };
        let ends = [end(0), end(1)];
        // On the side that allows the flow the end must exist. On the other side it may be missing, which counts as
        // denied.
        ends[having].is_some().then_some(ends)
    };
    let end = |it: Try, as_source: bool, other: Option<u32>| match it {
        Try::Endpoint(id) => named(id),
        Try::Service(id) => {
            let address = context.services[id as usize].address;
            // The classes know no nodes (see [`ClusterSide::new`]), so a row may contain pairs that the comparison
            // excludes. Such a pair must not be the example, because the oracle knows nodes and would contradict the
            // row.
            let back = is_own_node(context, other?, address) || leads_back(context, [Some(address); 2], other?);
            let fits = Family::of(address) == family && !back;
            fits.then_some([Some(FlowEnd { endpoint: None, address: Some(address) }); 2])
        }
        Try::Range(range) => {
            let address = outside(context, family, range, as_source, other?)?;
            Some([Some(FlowEnd { endpoint: None, address: Some(address) }); 2])
        }
    };
    let (source, destination) = (end(from, true, receiver)?, end(to, false, sender)?);
    // A service can claim a port of an endpoint's own address, so `leads_back` is asked for endpoints as well.
    if let (Some(sender), Some(receiver)) = (sender, receiver)
        && (are_of_one_node(context, sender, receiver)
            || leads_back(context, destination.map(|end| end.and_then(|it| it.address)), sender))
    {
        return None;
    }
    // The same maximum as in `boxes::relate`. Without the test, a row about new endpoints could show a flow between old
    // ones.
    let presence = presence(&source).max(presence(&destination));
    (presence == part.presence).then_some(EndPair { names: [sender, receiver], ends: [source, destination] })
}

/// In one family an endpoint may exist on one side only, and in the other family on both.
fn presence(ends: &[Option<FlowEnd>; 2]) -> Presence {
    match ends {
        [None, _] => Presence::Appeared,
        [_, None] => Presence::Disappeared,
        _ => Presence::Kept,
    }
}

/// An address of the range that belongs to no endpoint, and not to the other end's node.
fn outside(
    context: &RowContext<'_, '_>,
    family: Family,
    range: AddressRange,
    as_source: bool,
    other: u32,
) -> Option<IpAddr> {
    if Family::of(range.first) != family {
        return None;
    }
    let frame = &context.frames[family as usize];
    // The range is only a description: addresses of endpoints and services lie inside it and belong to other rows.
    let fits = |address: &IpAddr| frame.is_outside(*address, as_source) && !is_own_node(context, other, *address);
    // Prefers addresses that are reserved for documentation, because addresses at the very ends of a range mislead.
    let familiar = match family {
        Family::V4 => IpAddr::from([192, 0, 2, 1]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    };
    let (first, last) = (to_number(range.first).1, to_number(range.last).1);
    // The first address of a block is the network's own, which looks like a mistake in an example.
    let second = first.checked_add(1).filter(|it| *it < last).map(|it| to_address(family, it));
    let handy = [Some(familiar).filter(|it| range.contains(*it)), second];
    let found = handy.into_iter().flatten().find(fits);
    // The search ends soon: it only skips addresses that endpoints, services and the other end's node have.
    found.or_else(|| (first..=last).map(|it| to_address(family, it)).find(fits))
}

/// Whether an address belongs to the endpoint's node, on either side.
fn is_own_node(context: &RowContext<'_, '_>, endpoint: u32, address: IpAddr) -> bool {
    let ids = context.endpoints[endpoint as usize].ids;
    let on = |(side, id): (&Option<ClusterSide<'_>>, Option<EndpointId>)| {
        side.as_ref().zip(id).is_some_and(|(side, id)| side.is_own_node(id, address))
    };
    // On either side: there such a flow is always allowed, so the comparison leaves it out.
    context.sides.iter().zip(ids).any(on)
}

/// Whether services at an address, given for each side, lead to the endpoint itself or to its node.
fn leads_back(context: &RowContext<'_, '_>, addresses: [Option<IpAddr>; 2], endpoint: u32) -> bool {
    let on = |which: usize| {
        let (Some(side), Some(id)) = (&context.sides[which], context.endpoints[endpoint as usize].ids[which]) else {
            return false;
        };
        let Some(address) = addresses[which] else { return false };
        // All services at the address are checked, and not only the port of the flow: if one port of a service leads
        // back to the pod, the comparison leaves out the whole service.
        let services = side.services_at(address).iter();
        let mut backends = services.flat_map(|it| &side.cluster.services[it.index()].ports).flat_map(|it| &it.backends);
        let own = &side.cluster.endpoints[id.index()];
        backends.any(|it| {
            // Any backend, not all: the proxy may choose the endpoint itself, and then the packet is its own.
            it.endpoint == Some(id) && !own.is_several
                || it.address.is_some_and(|at| own.addresses.contains(&at) || side.is_own_node(id, at))
                || it.endpoint.is_some_and(|other| is_host_of(side, other, id) || is_host_of(side, id, other))
        })
    };
    on(0) || on(1)
}

fn are_of_one_node(context: &RowContext<'_, '_>, one: u32, other: u32) -> bool {
    let on = |which: usize| {
        let ids = [one, other].map(|it| context.endpoints[it as usize].ids[which]);
        let (Some(side), [Some(one), Some(other)]) = (&context.sides[which], ids) else { return false };
        is_host_of(side, one, other) || is_host_of(side, other, one)
    };
    on(0) || on(1)
}

/// Whether the first endpoint is on the host's network of the node that the second runs on.
fn is_host_of(side: &ClusterSide<'_>, host: EndpointId, guest: EndpointId) -> bool {
    let [host, of_guest] = [host, guest].map(|it| &side.cluster.endpoints[it.index()]);
    // By address too: a host-network pod whose node is not named can still have an address of the guest's node.
    host.standing == Standing::HostNetwork
        && (host.node.is_some() && host.node == of_guest.node
            || host.addresses.iter().any(|at| side.is_own_node(guest, *at)))
}

fn make_witness(
    context: &RowContext<'_, '_>,
    oracles: &mut Oracles<'_>,
    part: &CellPart,
    traffic: &RowTraffic,
    pair: EndPair,
) -> Result<FlowWitness, DiffError> {
    let (protocol, port) = match traffic.ranges.first() {
        // Any port of the row would do, because all of them differ in the same way. ICMP stands for traffic without
        // ports.
        Some(spec) => (FlowProtocol::Transport(spec.protocol), spec.first),
        None => (FlowProtocol::Icmp, 0),
    };
    let flow = |which: usize| {
        let (source, destination) = (pair.ends[0][which]?, pair.ends[1][which]?);
        Some(Flow { source, destination, protocol, port })
    };
    let flows = [flow(0), flow(1)];
    let mut verdict = |which: usize| match (&flows[which], &mut oracles[which]) {
        // The oracle shares no code with the class tables, so it also finds errors in classification.
        (Some(flow), Some(oracle)) => oracle.judge(flow).verdict(),
        _ => Verdict::Deny,
    };
    let verdicts = [verdict(0), verdict(1)];
    let expected = match part.change {
        VerdictChange::Added => [Verdict::Deny, Verdict::Allow],
        VerdictChange::Removed => [Verdict::Allow, Verdict::Deny],
    };
    // An error instead of an assertion: releases check this too, because a wrong row is worse than no answer.
    if verdicts != expected {
        let name = |it: Option<u32>| it.map(|id| context.endpoints[id as usize].name.as_str());
        let names = pair.names.map(name);
        return Err(DiffError::Witness(format!("{names:?} {flows:?}: {verdicts:?}, not {expected:?}")));
    }
    Ok(FlowWitness { source: pair.names[0], destination: pair.names[1], flows, verdicts, possible: None })
}
