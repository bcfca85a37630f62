//! Witnesses as `weir query` takes them, and in words.

use std::net::IpAddr;

use weir_analysis::diff::{self, Diff, DiffEndpoint, DiffRow};
use weir_analysis::world::{PossibleEnd, PossibleFlow};
use weir_model::Protocol;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Verdict};
use weir_policy::answers::{FlowDescription, FlowSide, NamedEnd, PodDescription};
use weir_policy::endpoint_lookup;

use super::Comparison;

/// An endpoint's name as `weir query` takes it: `shop/web`, or `deployment/shop/web`.
pub(super) fn reference(diff: &Diff, endpoint: u32) -> String {
    let DiffEndpoint { namespace, name, kind, .. } = &diff.endpoints[endpoint as usize];
    endpoint_lookup::reference(kind, &format!("{namespace}/{name}"))
}

/// Ends by name, with an address where that is the same on both sides or is needed.
pub(super) fn flows(compared: &Comparison, row: &DiffRow) -> [Option<FlowDescription>; 2] {
    let of = |which: usize| row.witness.flows[which].as_ref();
    let address = |pick: fn(&Flow) -> FlowEnd, which: usize| {
        let [base, head] = [of(0).map(pick), of(1).map(pick)];
        let own = if which == 0 { base } else { head }?;
        let other = if which == 0 { head } else { base };
        let same = other.is_none_or(|it| it.address == own.address);
        own.address.filter(|_| same || own.endpoint.is_none() || is_second(compared, which, own))
    };
    let end = |name: Option<u32>, ip: Option<IpAddr>| {
        FlowSide::Named(NamedEnd { pod: name.map(|it| reference(&compared.diff, it)), ip })
    };
    if let Some(possible) = &row.witness.possible {
        return [Some(described(possible)), Some(described(possible))];
    }
    [0, 1].map(|which| {
        let FlowTarget { protocol, port } = target(of(which)?);
        Some(FlowDescription {
            src: end(row.witness.source, address(|it| it.source, which)),
            dst: end(row.witness.destination, address(|it| it.destination, which)),
            proto: protocol.to_owned(),
            port,
        })
    })
}

/// A flow with a possible pod as an end, as `weir query` takes it.
fn described(flow: &PossibleFlow) -> FlowDescription {
    let end = |end: &PossibleEnd| match end {
        PossibleEnd::Address(address) => FlowSide::Named(NamedEnd { pod: None, ip: Some(*address) }),
        PossibleEnd::Pod(pod) => FlowSide::Described(PodDescription::of(pod)),
    };
    let (proto, port) = match flow.protocol {
        FlowProtocol::Transport(it) => (protocol(it), Some(flow.port)),
        FlowProtocol::Icmp => ("ICMP", None),
    };
    FlowDescription { src: end(&flow.source), dst: end(&flow.destination), proto: proto.to_owned(), port }
}

/// Whether the address is not the first of its endpoint's: then it has to be named.
fn is_second(compared: &Comparison, which: usize, end: FlowEnd) -> bool {
    let Some(id) = end.endpoint else { return false };
    let addresses = &compared.sides[which].cluster.endpoints[id.index()].addresses;
    addresses.len() > 1 && addresses.first().copied() != end.address
}

/// A protocol's name, and the destination port if the protocol has ports.
struct FlowTarget {
    protocol: &'static str,
    port: Option<u16>,
}

fn target(flow: &Flow) -> FlowTarget {
    match flow.protocol {
        FlowProtocol::Transport(it) => FlowTarget { protocol: protocol(it), port: Some(flow.port) },
        FlowProtocol::Icmp => FlowTarget { protocol: "ICMP", port: None },
    }
}

/// The witness in words: `shop/web → shop/db TCP 5432: denied before, allowed now`.
pub(super) fn sentence(compared: &Comparison, row: &DiffRow) -> String {
    let witness = &row.witness;
    if let Some(possible) = &witness.possible {
        let [before, now] = witness.verdicts.map(|it| if it == Verdict::Allow { "allowed" } else { "denied" });
        return format!("{}: {before} before, {now} now", diff::possible_words(possible));
    }
    let Some(flow) = witness.flows.iter().flatten().next_back() else { return String::new() };
    let end = |name: Option<u32>, end: FlowEnd| match (name, end.address) {
        (Some(id), _) => reference(&compared.diff, id),
        (None, Some(address)) => address.to_string(),
        (None, None) => String::new(),
    };
    let FlowTarget { protocol, port } = target(flow);
    let port = port.map(|it| format!(" {it}")).unwrap_or_default();
    let verdicts = [0, 1].map(|which| match (&witness.flows[which], witness.verdicts[which]) {
        (None, _) => "absent",
        (_, Verdict::Allow) => "allowed",
        (_, Verdict::Deny) => "denied",
    });
    format!(
        "{} → {} {protocol}{port}: {} before, {} now",
        end(witness.source, flow.source),
        end(witness.destination, flow.destination),
        verdicts[0],
        verdicts[1]
    )
}

pub(super) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}
