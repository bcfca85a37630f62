//! The comparison of two clusters, checked against the reference oracle's answers for both.
//!
//! Strategy: take every endpoint and every address at which a range begins or ends, as source and as destination, over
//! the ports at which a range begins or ends; the reference oracle judges each flow on both sides, and the flow must
//! differ exactly if a row contains it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_analysis::diff::{Decides, Diff, DiffRow, EndReason, EndState, Presence, RowEnd, VerdictChange, compare};
use weir_model::directory::Directory;
use weir_model::eval::{Basis, EndVerdict, Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::{Cluster, Direction, EndpointId, Peer, Policy, Protocol, ServiceAddress, Standing};
use weir_objects::address::{Family, to_address, to_number};

use crate::generators::Random;
use crate::generators::cluster::PORTS;

/// How many flows were asked about, and how many of them differed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Flows.
    pub flows: usize,
    /// Those of them that differ.
    pub differing: usize,
    /// Rows.
    pub rows: usize,
}

/// The number of addresses of a family that are tested, chosen at random.
const ADDRESSES: usize = 24;

/// An end, as both sides know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Endpoint(u32, [Option<FlowEnd>; 2]),
    Address(IpAddr),
}

/// Whether the rows contain exactly the flows that differ.
pub fn agree(base: &Cluster, head: &Cluster, random: &mut Random) -> Result<Asked, String> {
    let diff = compare(base, head).map_err(|error| error.to_string())?;
    let mut judge = Judge {
        clusters: [base, head],
        directories: [Directory::new(base), Directory::new(head)],
        oracles: [Oracle::new(base), Oracle::new(head)],
        diff: &diff,
        asked: Asked { rows: diff.rows.len(), ..Asked::default() },
    };
    for family in [Family::V4, Family::V6] {
        judge.family(family, random)?;
    }
    judge.isolation()?;
    Ok(judge.asked)
}

struct Judge<'a> {
    clusters: [&'a Cluster; 2],
    directories: [Directory<'a>; 2],
    oracles: [Oracle<'a>; 2],
    diff: &'a Diff,
    asked: Asked,
}

impl Judge<'_> {
    fn family(&mut self, family: Family, random: &mut Random) -> Result<(), String> {
        let endpoints: Vec<Who> =
            (0..self.diff.endpoints.len() as u32).filter_map(|it| self.endpoint(it, family)).collect();
        let mut addresses = self.addresses(family);
        random.shuffle(&mut addresses);
        addresses.truncate(ADDRESSES);
        let addresses: Vec<Who> = addresses.into_iter().map(Who::Address).collect();
        let ports = ports(random);
        for one in &endpoints {
            for other in endpoints.iter().chain(&addresses) {
                self.pair(family, *one, *other, &ports)?;
                if matches!(other, Who::Address(_)) {
                    self.pair(family, *other, *one, &ports)?;
                }
            }
        }
        Ok(())
    }

    /// The endpoint as it takes part in a family: with its first address that is its own.
    fn endpoint(&self, index: u32, family: Family) -> Option<Who> {
        let ids = self.diff.endpoints[index as usize].ids;
        let end = |which: usize, id: EndpointId| {
            let it = &self.clusters[which].endpoints[id.index()];
            let directory = &self.directories[which];
            let own = |at: &&IpAddr| match it.standing {
                Standing::Member => directory.endpoint_at(**at) == Some(id),
                _ => directory.endpoint_at(**at).is_none() && !self.is_service(which, **at),
            };
            let address = it.addresses.iter().filter(own).find(|at| Family::of(**at) == family).copied();
            (it.addresses.is_empty() || address.is_some()).then_some(FlowEnd { endpoint: Some(id), address })
        };
        let mut ends = [ids[0].and_then(|id| end(0, id)), ids[1].and_then(|id| end(1, id))];
        // An endpoint without an address on only one side is compared in the families of the other side.
        for (this, other) in [(0, 1), (1, 0)] {
            if ends[this].is_some_and(|it| it.address.is_none()) && ends[other].is_none() && ids[other].is_some() {
                ends = [None, None];
            }
        }
        ends.iter().any(Option::is_some).then_some(Who::Endpoint(index, ends))
    }

    fn is_service(&self, which: usize, address: IpAddr) -> bool {
        self.clusters[which].assume.service_address == ServiceAddress::Backends
            && !self.directories[which].services_at(address).is_empty()
    }

    /// Every address in the input, its neighbours, and the ends of every block, without addresses of endpoints.
    fn addresses(&self, family: Family) -> Vec<IpAddr> {
        let mut found: BTreeSet<IpAddr> = BTreeSet::new();
        for cluster in self.clusters {
            found.extend(cluster.frontends.iter().map(|it| it.address));
            found.extend(cluster.nodes.iter().flat_map(|it| &it.addresses));
            found.extend(cluster.endpoints.iter().flat_map(|it| &it.addresses));
            found.extend(cluster.lists.iter().flat_map(|it| &it.entries).flat_map(|it| [it.first, it.last]));
            found.extend(cluster.policies.iter().flat_map(blocks));
        }
        let near = |at: &IpAddr| {
            let (family, number) = to_number(*at);
            [number.checked_sub(1), Some(number), number.checked_add(1)]
                .into_iter()
                .flatten()
                .map(move |it| to_address(family, it))
        };
        let near: BTreeSet<IpAddr> = found.iter().flat_map(near).collect();
        let is_free =
            |at: &IpAddr| Family::of(*at) == family && self.directories.iter().all(|it| it.endpoint_at(*at).is_none());
        near.into_iter().filter(is_free).collect()
    }

    fn pair(&mut self, family: Family, from: Who, to: Who, ports: &[(FlowProtocol, u16)]) -> Result<(), String> {
        if !self.is_meant(from, to) {
            return Ok(());
        }
        for (protocol, port) in ports {
            let flow = |which: usize| {
                let (source, destination) = (end(from, which)?, end(to, which)?);
                Some(Flow { source, destination, protocol: *protocol, port: *port })
            };
            let judgements = [0, 1].map(|which| flow(which).map(|it| self.oracles[which].judge(&it)));
            if judgements.iter().all(Option::is_none) {
                continue;
            }
            let allowed = |which: usize| judgements[which].as_ref().is_some_and(|it| it.verdict() == Verdict::Allow);
            let expected = match (allowed(0), allowed(1)) {
                (false, true) => Some(VerdictChange::Added),
                (true, false) => Some(VerdictChange::Removed),
                _ => None,
            };
            let rows: Vec<&DiffRow> = self
                .diff
                .rows
                .iter()
                .filter(|row| covers(self.diff, row, family, from, to, *protocol, *port))
                .collect();
            self.asked.flows += 1;
            self.asked.differing += usize::from(expected.is_some());
            let found: Vec<VerdictChange> = rows.iter().map(|row| row.change).collect();
            if found != expected.into_iter().collect::<Vec<_>>() {
                return Err(format!(
                    "{family} {} → {}, {protocol:?} {port}: {expected:?} by the oracle, rows say {found:?}\n{judgements:?}\n{rows:?}",
                    self.shown(from),
                    self.shown(to)
                ));
            }
            for row in rows {
                check_reasons(row, &judgements).map_err(|text| {
                    format!(
                        "{family} {} → {}, {protocol:?} {port}: {text}\n{judgements:?}\n{row:?}",
                        self.shown(from),
                        self.shown(to)
                    )
                })?;
            }
        }
        Ok(())
    }

    fn shown(&self, who: Who) -> String {
        match who {
            Who::Endpoint(id, ends) => format!("{:?} {ends:?}", self.diff.endpoints[id as usize]),
            Who::Address(address) => address.to_string(),
        }
    }

    /// Whether a flow is part of the comparison: not if nothing can forbid it, and not if both ends are outside
    /// addresses.
    fn is_meant(&self, from: Who, to: Who) -> bool {
        match (from, to) {
            (Who::Endpoint(one, _), Who::Endpoint(other, ends)) => {
                let mut claimed = ends.into_iter().flatten().filter_map(|end| end.address);
                one != other && !self.of_one_node(one, other) && !claimed.any(|at| self.leads_back(at, one))
            }
            (Who::Endpoint(id, _), Who::Address(at)) => !self.own_node(id, at) && !self.leads_back(at, id),
            (Who::Address(at), Who::Endpoint(id, _)) => !self.own_node(id, at),
            (Who::Address(_), Who::Address(_)) => false,
        }
    }

    fn on_each(&self, id: u32, holds: impl Fn(usize, EndpointId) -> bool) -> bool {
        let ids = self.diff.endpoints[id as usize].ids;
        (0..2).any(|which| ids[which].is_some_and(|id| holds(which, id)))
    }

    fn own_node(&self, id: u32, at: IpAddr) -> bool {
        self.on_each(id, |which, id| self.is_own_node(which, id, at))
    }

    fn is_own_node(&self, which: usize, id: EndpointId, at: IpAddr) -> bool {
        let cluster = self.clusters[which];
        let node = cluster.endpoints[id.index()].node;
        node.is_some_and(|node| cluster.is_of_node(node, at))
    }

    fn of_one_node(&self, one: u32, other: u32) -> bool {
        self.on_each(one, |which, one| {
            let other = self.diff.endpoints[other as usize].ids[which];
            other.is_some_and(|other| self.is_host(which, one, other) || self.is_host(which, other, one))
        })
    }

    fn is_host(&self, which: usize, host: EndpointId, guest: EndpointId) -> bool {
        let it = &self.clusters[which].endpoints[host.index()];
        let node = self.clusters[which].endpoints[guest.index()].node;
        it.standing == Standing::HostNetwork
            && (it.node.is_some() && it.node == node
                || it.addresses.iter().any(|at| self.is_own_node(which, guest, *at)))
    }

    fn leads_back(&self, at: IpAddr, id: u32) -> bool {
        self.on_each(id, |which, id| {
            let cluster = self.clusters[which];
            let services = self.directories[which].services_at(at).iter().map(|it| &cluster.services[it.index()]);
            let own = &cluster.endpoints[id.index()].addresses;
            let mut backends = services.flat_map(|it| &it.ports).flat_map(|it| &it.backends);
            backends.any(|it| {
                it.endpoint == Some(id)
                    || it.address.is_some_and(|at| own.contains(&at) || self.is_own_node(which, id, at))
                    || it.endpoint.is_some_and(|other| self.is_host(which, other, id) || self.is_host(which, id, other))
            })
        })
    }

    fn isolation(&self) -> Result<(), String> {
        let mut told: BTreeMap<(u32, Direction), bool> = BTreeMap::new();
        for change in &self.diff.isolation {
            told.extend(change.endpoints.iter().map(|id| ((*id, change.direction), change.begins)));
        }
        let mut expected = BTreeMap::new();
        for (index, endpoint) in self.diff.endpoints.iter().enumerate() {
            let [Some(base), Some(head)] = endpoint.ids else { continue };
            for direction in Direction::ALL {
                let (was, is) = (self.is_isolated(0, base, direction), self.is_isolated(1, head, direction));
                if was != is {
                    expected.insert((index as u32, direction), is);
                }
            }
        }
        if told == expected { Ok(()) } else { Err(format!("isolation: told {told:?}, is {expected:?}")) }
    }

    fn is_isolated(&self, which: usize, id: EndpointId, direction: Direction) -> bool {
        let cluster = self.clusters[which];
        let endpoint = &cluster.endpoints[id.index()];
        let labels = cluster.labels.labels(endpoint.labels);
        let selects = |it: &&Policy| {
            let selector = cluster.labels.selector(it.subjects);
            it.namespace == endpoint.namespace && weir_model::labels::matches(selector, labels)
        };
        endpoint.standing == Standing::Member
            && cluster.policies.iter().filter(selects).any(|it| it.rules(direction).is_some())
    }
}

fn end(who: Who, which: usize) -> Option<FlowEnd> {
    match who {
        Who::Endpoint(_, ends) => ends[which],
        Who::Address(address) => Some(FlowEnd { endpoint: None, address: Some(address) }),
    }
}

fn blocks(policy: &Policy) -> Vec<IpAddr> {
    let rules = Direction::ALL.into_iter().flat_map(|it| policy.rules(it).unwrap_or_default());
    let mut found = Vec::new();
    for peer in rules.flat_map(|it| &it.peers) {
        if let Peer::Block { cidr, except } = peer {
            found.extend([cidr.address(), cidr.last()]);
            found.extend(except.iter().flat_map(|it| [it.address(), it.last()]));
        }
    }
    found
}

fn ports(random: &mut Random) -> Vec<(FlowProtocol, u16)> {
    let mut ports = vec![(FlowProtocol::Icmp, 0)];
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let some = (0..4).map(|_| random.pick(&PORTS)).flat_map(|it| [it, it.saturating_add(1)]);
        let some: BTreeSet<u16> = some.collect();
        ports.extend(some.into_iter().map(|port| (FlowProtocol::Transport(protocol), port)));
    }
    ports
}

fn covers(diff: &Diff, row: &DiffRow, family: Family, from: Who, to: Who, protocol: FlowProtocol, port: u16) -> bool {
    let both_named = matches!((from, to), (Who::Endpoint(..), Who::Endpoint(..)));
    let of_traffic = match protocol {
        FlowProtocol::Icmp => row.traffic.portless,
        FlowProtocol::Transport(of) => {
            row.traffic.ranges.iter().any(|it| it.protocol == of && (it.first..=it.last).contains(&port))
        }
    };
    // A row about endpoints that exist on one side only is about those alone.
    let presence = [from, to].into_iter().map(presence).max().unwrap_or(Presence::Kept);
    of_traffic
        && presence == row.presence
        && (!both_named || row.family.is_none_or(|it| it == family))
        && is_in(diff, &row.source, from, true)
        && is_in(diff, &row.destination, to, false)
}

fn presence(who: Who) -> Presence {
    match who {
        Who::Endpoint(_, [None, Some(_)]) => Presence::Appeared,
        Who::Endpoint(_, [Some(_), None]) => Presence::Disappeared,
        _ => Presence::Kept,
    }
}

fn is_in(diff: &Diff, party: &RowEnd, who: Who, as_source: bool) -> bool {
    match who {
        Who::Endpoint(id, _) => party.endpoints.binary_search(&id).is_ok(),
        Who::Address(at) => match diff.services.iter().position(|it| it.address == at).filter(|_| !as_source) {
            Some(service) => party.services.contains(&(service as u32)),
            None => party.ranges.iter().any(|it| it.contains(at)),
        },
    }
}

/// Checks that the reasons of the row apply to this flow.
fn check_reasons(row: &DiffRow, judgements: &[Option<Judgement>; 2]) -> Result<(), String> {
    let (lacking, having) = if row.change == VerdictChange::Added { (0, 1) } else { (1, 0) };
    let Some(before) = &judgements[lacking] else { return Ok(()) };
    let denied = |direction| before.side(direction).verdict == Verdict::Deny;
    let decides = match (denied(Direction::Egress), denied(Direction::Ingress)) {
        (true, true) => Decides::Both,
        (true, false) => Decides::Egress,
        _ => Decides::Ingress,
    };
    if decides != row.decides {
        return Err(format!("{decides:?} decides"));
    }
    let Some(after) = &judgements[having] else { return Err("not there on the side that allows it".to_owned()) };
    for direction in Direction::ALL {
        let Some(accounts) = row.accounts(direction) else { continue };
        holds(&accounts[having], after.side(direction))?;
        holds(&accounts[lacking], before.side(direction))?;
    }
    Ok(())
}

fn holds(account: &EndReason, side: &EndVerdict) -> Result<(), String> {
    let fits = match (account.state, &side.basis) {
        (EndState::Service, _) | (_, Basis::Service(_) | Basis::Claims(_)) => true,
        (_, Basis::Tier(rule)) => account.tiers.contains(rule),
        (EndState::Open, Basis::NotIsolated) => true,
        (EndState::Free, Basis::NotSubject) => true,
        (EndState::List(list), Basis::List(by)) => list == *by,
        (EndState::Isolated, Basis::Rules(rules)) => rules.iter().any(|it| account.rules.contains(it)),
        (EndState::Isolated, Basis::Isolated(policies)) => policies.iter().any(|it| account.isolating.contains(it)),
        _ => false,
    };
    if fits { Ok(()) } else { Err(format!("{account:?} does not fit {side:?}")) }
}
