//! Verification: what was emitted, asked again, without the way that led there.
//!
//! Problem: classes, tables, passes and code may be wrong together, and look right.
//! Strategy: from the cluster alone, find what the oracle can tell apart ([`space`]): endpoints, addresses, ports. Of all that
//! is the same to the oracle *and* falls into one class of the emitted maps, one representative is enough; for each
//! (direction, endpoint, remote address, port) of representatives, a witness packet runs through the emitted programs over
//! the emitted maps, and the oracle is asked the same. Where that product is too large it goes by parts: every (endpoint,
//! address) by at least one packet, and every distinct set of atoms of every endpoint by every port. The report says which.
//! Invariants: uses nothing of classify, lower, passes and emit; a trap or an unreadable map is a difference, never a pass.

mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::address::Family;
use crate::artifact::Artifact;
use crate::engine::machine::Loaded;
use crate::engine::{Broken, packet};
use crate::layout::{self, MapName, endpoint};
use crate::model::eval::{End, Flow, FlowProtocol, Oracle, Verdict};
use crate::model::{Cluster, Direction, EndpointId, Protocol, Standing};
use space::{Port, Space};

/// Up to so many packets, every combination is run.
pub const MOST_PACKETS: u64 = 200_000;
/// So many differences are told in full.
const MOST_TOLD: usize = 20;

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Packets that were run.
    pub asked: u64,
    /// Of those, the ones with the oracle's verdict.
    pub agreed: u64,
    /// Whether every combination was run; else it went by parts.
    pub exhaustive: bool,
    /// The first differences.
    pub differences: Vec<Difference>,
}

impl Report {
    /// Whether nothing differs.
    pub fn is_verified(&self) -> bool {
        self.differences.is_empty() && self.asked == self.agreed
    }
}

/// Something that is not as the cluster says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// A witness.
    #[error(
        "{direction} of {endpoint}: {own} and {remote}, {protocol} port {port}: the programs {emitted:?}, the policies {expected:?}",
        direction = direction.name(), protocol = protocol.map_or("no protocol with ports,".to_owned(), |it| format!("{it:?}"))
    )]
    Verdict {
        /// At which hook.
        direction: Direction,
        /// Of whom.
        endpoint: String,
        /// Its address.
        own: IpAddr,
        /// The other end's.
        remote: IpAddr,
        /// Over what.
        protocol: Option<Protocol>,
        /// The destination port.
        port: u16,
        /// What the programs say.
        emitted: Verdict,
        /// What the oracle says.
        expected: Verdict,
        /// The packet.
        packet: Vec<u8>,
    },
    /// The programs or maps do not work.
    #[error("{0}")]
    Broken(#[from] Broken),
    /// An endpoint that the cluster does not have.
    #[error("endpoint {0} is not in the input, or has no address there")]
    Endpoint(String),
    /// A value in `endpoints` with addresses that are not the endpoint's.
    #[error("endpoint {0} has other addresses in the input")]
    Addresses(String),
}

/// Checks an artifact against the cluster that it should enforce.
pub fn verify(artifact: &Artifact, cluster: &Cluster) -> Report {
    let mut report = Report::default();
    if let Err(difference) = Verifier::new(artifact, cluster).and_then(|mut verifier| verifier.run(&mut report)) {
        report.differences.push(difference);
    }
    report
}

/// An endpoint that stands for all that are the same.
struct Subject {
    place: usize,
    id: EndpointId,
    number: u32,
}

struct Verifier<'a> {
    artifact: &'a Artifact,
    cluster: &'a Cluster,
    oracle: Oracle<'a>,
    loaded: Loaded,
    rows: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Verifier<'a> {
    fn new(artifact: &'a Artifact, cluster: &'a Cluster) -> Result<Self, Difference> {
        let endpoints: Vec<&[u8]> = artifact.endpoints.iter().map(|it| it.value.as_slice()).collect();
        let programs = artifact.programs.each_ref().map(|program| &program.code);
        let loaded = Loaded::new(programs, &artifact.maps, &endpoints)?;
        let rows = artifact.map(MapName::Rows).map_or(&[][..], |map| &map.entries);
        let rows = rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        Ok(Self { artifact, cluster, oracle: Oracle::new(cluster), loaded, rows })
    }

    fn run(&mut self, report: &mut Report) -> Result<(), Difference> {
        let space = Space::new(self.cluster);
        let subjects = self.subjects()?;
        let remotes = self.remotes(&space);
        let ports: Vec<Port> = space.ports.iter().copied().collect();
        let product = 2 * subjects.len() as u64 * remotes.len() as u64 * ports.len() as u64;
        report.exhaustive = product <= MOST_PACKETS;
        let mut turn = 0;
        for subject in &subjects {
            for direction in Direction::ALL {
                let mut seen = BTreeSet::new();
                for (remote, class) in &remotes {
                    let new = report.exhaustive || seen.insert(self.set(direction, subject.number, *class));
                    let few = std::slice::from_ref(&ports[turn % ports.len()]);
                    turn += 1;
                    for port in if new { &ports[..] } else { few } {
                        self.ask(report, subject, direction, *remote, *port)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One endpoint of each sort that either side can see.
    fn subjects(&self) -> Result<Vec<Subject>, Difference> {
        let mut seen = BTreeSet::new();
        let mut subjects = Vec::new();
        let behind = self.behind();
        for (place, local) in self.artifact.endpoints.iter().enumerate() {
            let name = || format!("{}/{}", local.namespace, local.name);
            let known = self.oracle.directory().endpoints_named(&local.namespace, &local.name).iter().copied();
            let is_there = |id: &EndpointId| {
                let it = &self.cluster.endpoints[id.index()];
                it.standing == Standing::Member && !it.addresses.is_empty()
            };
            let id = known.into_iter().find(is_there).ok_or_else(|| Difference::Endpoint(name()))?;
            if !self.has_its_addresses(id, &local.value) {
                return Err(Difference::Addresses(name()));
            }
            let at = endpoint::SUBJECT as usize;
            let number =
                local.value.get(at..).and_then(|it| it.first_chunk()).map_or(u32::MAX, |it| u32::from_le_bytes(*it));
            // Flags and node as well: everything but the addresses.
            let rest = local.value.get(..endpoint::V4 as usize).unwrap_or_default();
            if seen.insert((rest, space::kind(self.cluster, id), behind.get(&id))) {
                subjects.push(Subject { place, id, number });
            }
        }
        Ok(subjects)
    }

    /// The service ports that lead to an endpoint: a pod always reaches itself.
    fn behind(&self) -> BTreeMap<EndpointId, Vec<(usize, usize)>> {
        let mut behind: BTreeMap<EndpointId, Vec<(usize, usize)>> = BTreeMap::new();
        for (service, of_service) in self.cluster.services.iter().enumerate() {
            for (port, of_port) in of_service.ports.iter().enumerate() {
                for id in of_port.backends.iter().filter_map(|backend| backend.endpoint) {
                    behind.entry(id).or_default().push((service, port));
                }
            }
        }
        behind
    }

    fn has_its_addresses(&self, id: EndpointId, value: &[u8]) -> bool {
        self.cluster.endpoints[id.index()].addresses.iter().all(|address| {
            let at = if address.is_ipv4() { endpoint::V4 } else { endpoint::V6 } as usize;
            let bytes = layout::address_bytes(*address);
            value.get(at..at + bytes.len()) == Some(&bytes)
        })
    }

    /// Addresses of every sort that either side can see, each with its class in the maps; two of a sort where there are two, so
    /// that one of them is not the endpoint itself.
    fn remotes(&self, space: &Space) -> Vec<(IpAddr, u32)> {
        let classes = Classes::read(self.artifact);
        let directory = self.oracle.directory();
        let mut seen = BTreeMap::new();
        let mut remotes = Vec::new();
        for address in space.addresses.iter().copied().chain(classes.addresses()) {
            let class = classes.find(address);
            let times: &mut u32 =
                seen.entry((Family::of(address), class, space.nature(self.cluster, directory, address))).or_default();
            *times += 1;
            if *times <= 2 {
                remotes.push((address, class));
            }
        }
        remotes
    }

    /// The set of atoms that the maps have for a subject and a class; nothing for the default.
    fn set(&self, direction: Direction, subject: u32, class: u32) -> Option<&'a [u8]> {
        self.rows.get(layout::row_key(direction, subject, class).as_slice()).copied()
    }

    fn ask(
        &mut self,
        report: &mut Report,
        subject: &Subject,
        direction: Direction,
        remote: IpAddr,
        (protocol, port): Port,
    ) -> Result<(), Difference> {
        let of = &self.cluster.endpoints[subject.id.index()];
        // An address that is another's by now is asked about at its owner.
        let directory = self.oracle.directory();
        let is_own =
            |own: &&IpAddr| own.is_ipv4() == remote.is_ipv4() && directory.endpoint_at(**own) == Some(subject.id);
        let Some(own) = of.addresses.iter().find(is_own).copied() else { return Ok(()) };
        let flow_protocol = protocol.map_or(FlowProtocol::Icmp, FlowProtocol::Transport);
        let me = End { endpoint: Some(subject.id), address: Some(own) };
        let other = End { endpoint: None, address: Some(remote) };
        let (source, destination) = if direction == Direction::Egress { (me, other) } else { (other, me) };
        let ends = [source, destination].map(|end| end.address.unwrap_or(own));
        let Some(packet) = packet::build(ends[0], ends[1], flow_protocol, port) else { return Ok(()) };
        let node = of.node.and_then(|node| self.cluster.nodes.get(node.index()));
        let is_pod = self.oracle.directory().endpoint_at(remote).is_some();
        let began_here = !is_pod && node.is_some_and(|node| node.addresses.contains(&remote));
        let emitted = self.loaded.run(direction, subject.place, packet.clone(), began_here)?;
        let expected = self.oracle.judge(&Flow { source, destination, protocol: flow_protocol, port });
        let expected = expected.side(direction).verdict;
        report.asked += 1;
        if emitted == expected {
            report.agreed += 1;
        } else if report.differences.len() < MOST_TOLD {
            let endpoint = self.cluster.endpoint_name(subject.id);
            report.differences.push(Difference::Verdict {
                direction,
                endpoint,
                own,
                remote,
                protocol,
                port,
                emitted,
                expected,
                packet,
            });
        }
        Ok(())
    }
}

/// What the emitted maps say of addresses.
struct Classes {
    exact: BTreeMap<IpAddr, u32>,
    prefixes: BTreeMap<crate::address::Prefix, u32>,
    lengths: [BTreeSet<u8>; 2],
}

impl Classes {
    fn read(artifact: &Artifact) -> Self {
        let mut it = Self { exact: BTreeMap::new(), prefixes: BTreeMap::new(), lengths: Default::default() };
        let number = |value: &[u8]| value.first_chunk().map_or(u32::MAX, |it| u32::from_le_bytes(*it));
        for name in [MapName::Exact4, MapName::Exact6] {
            let entries = artifact.map(name).map_or(&[][..], |map| &map.entries);
            it.exact.extend(entries.iter().filter_map(|(key, value)| Some((address(key)?, number(value)))));
        }
        for name in [MapName::Prefixes4, MapName::Prefixes6] {
            for (key, value) in artifact.map(name).map_or(&[][..], |map| &map.entries) {
                let Some((len, of)) = key.split_first_chunk().and_then(|(len, rest)| Some((len, address(rest)?)))
                else {
                    continue;
                };
                let len = u32::from_le_bytes(*len).min(128) as u8;
                it.prefixes.insert(crate::address::Prefix::new(of, len), number(value));
                it.lengths[Family::of(of) as usize].insert(len);
            }
        }
        it
    }

    /// Every key: a stray entry is asked about too.
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let ends = self.prefixes.keys().flat_map(|prefix| [prefix.address(), prefix.last()]);
        self.exact.keys().copied().chain(ends)
    }

    /// The exact table, then the longest prefix.
    fn find(&self, address: IpAddr) -> u32 {
        let prefix = || {
            let lengths = self.lengths[Family::of(address) as usize].iter().rev();
            lengths.filter_map(|len| self.prefixes.get(&crate::address::Prefix::new(address, *len))).next()
        };
        self.exact.get(&address).or_else(prefix).copied().unwrap_or(0)
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|it| IpAddr::from(*it)),
        _ => bytes.first_chunk::<16>().map(|it| IpAddr::from(*it)),
    }
}
