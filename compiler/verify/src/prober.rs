//! Questions to the emitted programs about single steps of their decision.
//!
//! Problem: a program's result does not show which class it finds for an address and which set for a class, and
//! verification must not depend on how the program stores them.
//! Strategy: stop a run where the program reads the endpoint's subject class. At that point the parts of its state that
//! the rest of the program reads *are* the class of the other end, however the program found it. Continue from there
//! with each subject class, and note which set is read. The rest of the program runs with all other parts of the state
//! removed. It cannot depend on them unnoticed, because reading a removed part is a trap.
//! Invariants: knows the layout of an endpoint's value and the names of maps, and nothing about tables.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::errors::{self, ICMP_ERROR};
use super::slots::SlotPort;
use weir_artifact::layout::buckets::Tuple;
use weir_artifact::layout::{self, FILTERS_EGRESS, FILTERS_INGRESS, MapName, endpoint};
use weir_artifact::{Artifact, packet};
use weir_ebpf::bytes::put;
use weir_ebpf::vm::{MapByte, MapId, RunPart, Skb, Stop, StoppedRun};
use weir_machine::{Broken, Inside, LoadedPrograms, arrived, interface, verdict};
use weir_model::eval::{FlowProtocol, Verdict};
use weir_model::{Direction, Protocol};

/// How far the program processed a packet.
#[derive(Clone, Debug)]
pub(super) enum ProbeStop {
    /// The program is about to look up the row.
    Row(Box<StoppedRun>),
    /// The program decided before the look-up of a row.
    Settled(Verdict),
}

/// A class as a program knows it: the parts of its state that the rest of the program reads.
pub(super) type ClassKey = Vec<u64>;

pub(super) struct Prober {
    pub(super) loaded: LoadedPrograms,
    endpoints: MapId,
    rows: [Option<MapId>; 2],
    ports: Option<MapId>,
    /// The index of the probe endpoint: one past the endpoints of the artifact.
    probe_endpoint: usize,
    own: [IpAddr; 2],
    subject: u32,
    skb: Skb,
    /// The parts of the state that the look-up of a row reads, by direction and family.
    needed: [BTreeSet<RunPart>; 4],
}

/// A direction and a family: the programs have separate code for each combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Instance {
    pub(super) direction: Direction,
    pub(super) is_v4: bool,
}

impl Instance {
    fn index(self) -> usize {
        2 * layout::direction_number(self.direction) as usize + usize::from(self.is_v4)
    }
}

fn broken(what: impl std::fmt::Display) -> Broken {
    Broken(what.to_string())
}

impl Prober {
    /// `own` are the addresses of the probe endpoint. No other endpoint may have them.
    pub(super) fn new(artifact: &Artifact, own: [IpAddr; 2]) -> Result<Self, Broken> {
        // Probes run at an endpoint of their own instead of a real one. Its subject class can be changed between two
        // runs, it always filters both directions, and it has no addresses that a policy mentions.
        let probe_endpoint = artifact.endpoints.len();
        let subject = 0;
        let value = value(subject, own);
        let mut endpoints: Vec<&[u8]> = artifact.endpoints.iter().map(|it| it.value.as_slice()).collect();
        endpoints.push(&value);
        let programs = artifact.programs.each_ref().map(|program| &program.code);
        let loaded = LoadedPrograms::new(programs, &artifact.maps, &endpoints)?;
        let endpoints = loaded.map(MapName::Endpoints).ok_or_else(|| broken("there is no map endpoints"))?;
        // Absent maps are no error here: a compiled row table contains the defaults, and an artifact without policies
        // has no rows.
        let rows = [MapName::Rows, MapName::Defaults].map(|name| loaded.map(name));
        let ports = loaded.map(MapName::Ports);
        let skb = Skb::new(Vec::with_capacity(80));
        Ok(Self { loaded, endpoints, rows, ports, probe_endpoint, own, subject, skb, needed: Default::default() })
    }

    fn set_value(&mut self, own: [IpAddr; 2]) -> Result<(), Broken> {
        let (key, value) = (interface(self.probe_endpoint).to_le_bytes(), value(self.subject, own));
        let Inside { vm, .. } = self.loaded.inside();
        vm.map_update(self.endpoints, &key, &value, 0).map_err(|errno| broken(format!("map endpoints: {errno:?}")))
    }

    /// Sets the probe endpoint's subject class.
    pub(super) fn set_subject(&mut self, subject: u32) -> Result<(), Broken> {
        // Callers set the class before each probe. Most probes in a row have the same class, and then the map needs no
        // update.
        if std::mem::replace(&mut self.subject, subject) == subject {
            return Ok(());
        }
        self.set_value(self.own)
    }

    /// Expires the flows that earlier packets have left in the flow table, and makes the packet to be run.
    fn pack(
        &mut self,
        instance: Instance,
        own: IpAddr,
        remote: IpAddr,
        (protocol, port): SlotPort,
    ) -> Result<(), Broken> {
        // The previous probe left a flow. It would let this packet pass on the fast path, before any class is looked
        // up.
        self.loaded.expire_flows();
        // Taken from the previous packet, so that a probe needs no allocation.
        let mut bytes = std::mem::take(&mut self.skb.packet);
        let (source, destination) = match instance.direction {
            Direction::Egress => (own, remote),
            Direction::Ingress => (remote, own),
        };
        if (protocol, port) == ICMP_ERROR {
            let interface = interface(self.probe_endpoint);
            errors::write(&mut self.loaded, &mut bytes, instance.direction, interface, [own, remote])?;
        } else {
            write(&mut bytes, source, destination, (protocol, port));
        }
        self.skb = arrived(instance.direction, self.probe_endpoint, bytes, false);
        Ok(())
    }

    /// Runs `act` with the probe endpoint's address, or with another one if the remote end has the same address.
    fn with_own<T>(
        &mut self,
        remote: IpAddr,
        mut act: impl FnMut(&mut Self, IpAddr) -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        let family = usize::from(!remote.is_ipv4());
        // "A Pod cannot block access to itself": a packet from an address to itself passes before policy. So the probe
        // endpoint moves to another address while its own one is the question.
        if self.own[family] != remote {
            return act(self, self.own[family]);
        }
        let mut others = self.own;
        others[family] = other_than(remote);
        self.set_value(others)?;
        // Its result is looked at only after the address is restored: with `?` here, an error would leave the wrong
        // address for all later probes.
        let done = act(self, others[family]);
        self.set_value(self.own)?;
        done
    }

    /// Runs a packet up to the look-up of its row, and adds every read of the map `note` to `noted`.
    pub(super) fn reach(
        &mut self,
        instance: Instance,
        remote: IpAddr,
        port: SlotPort,
        note: Option<MapId>,
        noted: &mut Vec<MapByte>,
    ) -> Result<ProbeStop, Broken> {
        self.with_own(remote, |this, own| {
            this.pack(instance, own, remote, port)?;
            let program = this.loaded.program(instance.direction);
            let Inside { vm, host } = this.loaded.inside_now();
            // Every program reads the subject class where it begins to look up the row, whatever structures the tables
            // have. This is the only place inside a decision that verification knows. The class of the remote end could
            // not be stopped at: each structure yields it at another place.
            let place = (this.endpoints, endpoint::SUBJECT as u64);
            match vm.run_to(program, &mut this.skb, host, place, (note, noted)).map_err(broken)? {
                Stop::Before(state) => Ok(ProbeStop::Row(state)),
                // A program may decide about an address without a row. That is an answer too, and a class of its own.
                Stop::Ended(outcome) => verdict(instance.direction, outcome).map(ProbeStop::Settled),
            }
        })
    }

    /// The verdict of the whole program on a packet of the probe endpoint.
    pub(super) fn verdict(&mut self, instance: Instance, remote: IpAddr, port: SlotPort) -> Result<Verdict, Broken> {
        self.with_own(remote, |this, own| {
            this.pack(instance, own, remote, port)?;
            this.loaded.run_now(instance.direction, &mut this.skb)
        })
    }

    /// The verdict on the answer to such a packet if an older generation allowed the flow.
    pub(super) fn again(&mut self, instance: Instance, remote: IpAddr, port: SlotPort) -> Result<Verdict, Broken> {
        self.with_own(remote, |this, own| this.again_from(instance, own, remote, port))
    }

    fn again_from(
        &mut self,
        instance: Instance,
        own: IpAddr,
        remote: IpAddr,
        port: SlotPort,
    ) -> Result<Verdict, Broken> {
        let hook = match instance.direction {
            Direction::Ingress => Direction::Egress,
            Direction::Egress => Direction::Ingress,
        };
        // The answer travels in the other direction, so the other program judges the flow again, with its own copy of
        // the decision. Only such a packet runs that copy.
        let ends = if hook == Direction::Egress { [own, remote] } else { [remote, own] };
        let mut bytes = std::mem::take(&mut self.skb.packet);
        write_answer(&mut bytes, ends, port);
        self.skb = arrived(hook, self.probe_endpoint, bytes, false);
        self.loaded.expire_flows();
        let tuple = tuple(interface(self.probe_endpoint), instance.direction, [own, remote], port);
        // One generation old. A flow of the current generation passes without being judged, and the check would compare
        // nothing.
        self.loaded.begin_flow(tuple, instance.direction, 1)?;
        self.loaded.run_now(hook, &mut self.skb)
    }

    /// The place where the program reads the set, if it continues from `state` with the probe endpoint's subject class.
    pub(super) fn set(&mut self, state: &StoppedRun) -> Result<Option<MapByte>, Broken> {
        self.follow(state).map_err(broken)
    }

    fn follow(&mut self, state: &StoppedRun) -> Result<Option<MapByte>, Box<weir_ebpf::vm::Trap>> {
        let Inside { vm, host } = self.loaded.inside();
        vm.follow(state, &mut self.skb, host, self.rows, [Some(self.endpoints), self.ports])
    }

    /// Learns from one more state which parts the look-up of a row reads: those whose removal changes the result.
    pub(super) fn learn(&mut self, instance: Instance, state: &StoppedRun) -> Result<(), Broken> {
        let whole = self.set(state)?;
        // Each candidate costs a run, so parts that are already known are not tried again.
        let known = self.needed[instance.index()].clone();
        for part in RunPart::all().filter(|part| !known.contains(part) && state.part(*part).is_some()) {
            let mut without = state.clone();
            // Removed, not changed: another value may lead to the same set by chance, whereas a removed stack word
            // traps at its first read and a removed register is a poison that points nowhere.
            without.forget(part);
            // A trap counts as a change: the run needed the part.
            if self.follow(&without).ok() != Some(whole) {
                self.needed[instance.index()].insert(part);
            }
        }
        Ok(())
    }

    /// The class in a state: the parts that are known to be read.
    pub(super) fn class(&self, instance: Instance, state: &StoppedRun) -> ClassKey {
        let needed = self.needed[instance.index()].iter();
        // A stack word that this path never wrote is a value of its own. `u64::MAX` cannot be confused with a written
        // one, which has 32 bits.
        needed.map(|part| state.part(*part).unwrap_or(u64::MAX)).collect()
    }

    /// A copy of the state without the parts that do not belong to the class.
    pub(super) fn cut_down(&self, instance: Instance, state: &StoppedRun) -> StoppedRun {
        let mut state = state.clone();
        let needed = &self.needed[instance.index()];
        // Not to save memory: if the row look-up reads a part that `learn` missed, it must trap. With the part kept, it
        // would silently use the value of the one address from which the state was taken, for all addresses of the
        // class.
        RunPart::all().filter(|part| !needed.contains(part)).for_each(|part| state.forget(part));
        state
    }

    /// The bytes of the map value that a program read.
    pub(super) fn bytes(&mut self, spot: MapByte) -> &[u8] {
        self.loaded.inside().vm.value_at(spot.map, spot.element)
    }

    /// Overwrites the bytes that a program read.
    pub(super) fn poke(&mut self, spot: MapByte, bytes: &[u8]) -> Result<(), Broken> {
        self.loaded.inside().vm.poke(spot, bytes).map_err(|errno| broken(format!("a set cannot be written: {errno:?}")))
    }

    /// Whether a map is a single value: a table in itself.
    pub(super) fn is_table(&mut self, map: MapId) -> bool {
        // By the shape of the map and not by its name, so that a new structure needs no change here.
        self.loaded.inside().vm.map_spec(map).is_some_and(|spec| spec.max_entries == 1)
    }
}

/// Writes a packet to a port. A packet without a transport protocol is ICMP, or of the IP protocol whose number is
/// given as the port.
pub(super) fn write(bytes: &mut Vec<u8>, source: IpAddr, destination: IpAddr, (protocol, port): SlotPort) -> bool {
    const PLACES: [usize; 2] = [14 + 9, 14 + 6];
    // Other IP protocols are written as ICMP, and then only their number is replaced: programs read nothing behind the
    // IP header of a protocol that they do not know.
    let flow = protocol.map_or(FlowProtocol::Icmp, FlowProtocol::Transport);
    let written = packet::write(bytes, source, destination, flow, port);
    let number = bytes.get_mut(PLACES[usize::from(!source.is_ipv4())]);
    // Port 0 stays ICMP, whose number differs between the families (1 and 58).
    if let Some(number) = number.filter(|_| protocol.is_none() && port != 0) {
        *number = port as u8;
    }
    written
}

/// The answer to a packet to a port: from that port, and neither a SYN nor an SCTP INIT, which would begin a flow of
/// its own in the other direction.
fn write_answer(bytes: &mut Vec<u8>, [source, destination]: [IpAddr; 2], (protocol, port): SlotPort) {
    /// The offset of TCP's flags or of SCTP's first chunk type, and its value in an answer: SYN and ACK, INIT ACK.
    const TCP_ANSWER: (usize, u8) = (13, 0x12);
    const SCTP_ANSWER: (usize, u8) = (12, 2);
    // The answer goes to the client's port and comes from the server's. `packet::write` always writes the client's port
    // as the source, so the source port is overwritten below.
    let to = if protocol.is_some() { packet::CLIENT_PORT } else { port };
    write(bytes, source, destination, (protocol, to));
    let transport = if source.is_ipv4() { 14 + 20 } else { 14 + 40 };
    if protocol.is_some() {
        put(bytes, transport, &port.to_be_bytes());
    }
    // A SYN or an INIT from the server would begin a flow in the other direction. The program would then judge that new
    // flow, and the comparison would be about the wrong rules.
    let answer = match protocol {
        Some(Protocol::Tcp) => Some(TCP_ANSWER),
        Some(Protocol::Sctp) => Some(SCTP_ANSWER),
        _ => None,
    };
    if let Some((at, value)) = answer
        && let Some(byte) = bytes.get_mut(transport + at)
    {
        *byte = value;
    }
}

/// The key of a flow to a port: `own` is the pod's end.
fn tuple(interface: u32, begun: Direction, [own, remote]: [IpAddr; 2], (protocol, port): SlotPort) -> Tuple {
    // The key of a flow without ports has zeros, as the programs write it.
    let [client, server] = if protocol.is_some() { [packet::CLIENT_PORT, port] } else { [0, 0] };
    let [remote_port, local_port] = if begun == Direction::Ingress { [client, server] } else { [server, client] };
    let number = match protocol {
        Some(Protocol::Tcp) => 6,
        Some(Protocol::Udp) => 17,
        Some(Protocol::Sctp) => 132,
        None => port as u8,
    };
    Tuple { ifindex: interface, protocol: number, remote, local: own, remote_port, local_port }
}

/// The value of the probe endpoint: filtered in both directions, on no node.
fn value(subject: u32, own: [IpAddr; 2]) -> Vec<u8> {
    let mut value = vec![0; endpoint::BYTES as usize];
    let numbers =
        // No node has this number. With a real one, packets of its addresses could pass as the own node's, before
        // policy.
        [(endpoint::SUBJECT, subject), (endpoint::FLAGS, FILTERS_INGRESS | FILTERS_EGRESS), (endpoint::NODE, u32::MAX)];
    let numbers = numbers.map(|(at, number)| (at, number.to_le_bytes().to_vec()));
    let addresses =
        own.map(|it| (if it.is_ipv4() { endpoint::V4 } else { endpoint::V6 }, layout::address_bytes(it).to_vec()));
    for (at, bytes) in numbers.into_iter().chain(addresses) {
        put(&mut value, at as usize, &bytes);
    }
    value
}

/// Another address of the family.
pub(super) fn other_than(address: IpAddr) -> IpAddr {
    match address {
        // The neighbour in the last bit: always of the same family, never the address itself, and without overflow at
        // either end.
        IpAddr::V4(it) => IpAddr::V4((it.to_bits() ^ 1).into()),
        IpAddr::V6(it) => IpAddr::V6((it.to_bits() ^ 1).into()),
    }
}
