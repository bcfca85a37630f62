//! Sends questions as packets through the emitted programs in the userspace machine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_artifact::layout::{MapName, OUTCOMES, Outcome, config, direction_number};
use weir_artifact::map_image::with_few_flows;
use weir_codegen::ir::protocol_number;
use weir_codegen::map_images;
use weir_ebpf::limits;
use weir_ebpf::vm::{MapId, ProgramId, Skb, Vm, VmInputs};
use weir_model::eval::Verdict;
use weir_model::{Direction, Protocol};

use super::engines::{Compiled, FIRST_INTERFACE, index, interface};
use super::questions::Question;

/// TCX_NEXT and TC_ACT_UNSPEC.
const PASS: i32 = -1;
/// TC_ACT_SHOT.
const DROP: i32 = 2;

/// Room for flows; there is never more than one.
const MOST_FLOWS: u32 = 64;

/// Both programs with all their maps.
pub struct Machine<'a> {
    compiled: &'a Compiled<'a>,
    vm: Vm,
    host: VmInputs,
    programs: [ProgramId; 2],
    flows: Vec<MapId>,
    config: MapId,
    counters: MapId,
}

impl<'a> Machine<'a> {
    /// Emits, checks the limits, fills the maps, loads.
    pub fn new(compiled: &'a Compiled<'a>) -> Result<Self, String> {
        let mut vm = Vm::new(1);
        let mut maps: BTreeMap<u32, MapId> = BTreeMap::new();
        for map in compiled.maps() {
            let map = with_few_flows(&map, MOST_FLOWS);
            let id = vm.create_map(map.spec).map_err(|error| format!("{:?}: {error:?}", map.name))?;
            for (key, value) in map.entries.iter() {
                vm.map_update(id, key, value, 0).map_err(|error| format!("{:?}: {error:?}", map.name))?;
            }
            maps.insert(map.name as u32, id);
        }
        let endpoints = map_images::endpoints(compiled.cluster, &compiled.classes, &compiled.tables);
        for (number, entry) in endpoints.iter().enumerate() {
            let key = (FIRST_INTERFACE + number as u32).to_le_bytes();
            let id = maps[&(MapName::Endpoints as u32)];
            vm.map_update(id, &key, &entry.value, 0).map_err(|error| format!("endpoints: {error:?}"))?;
        }
        let mut loaded = Vec::new();
        for program in compiled.programs()? {
            let insns = program.link(|map| maps[&map.0].0 as i32);
            let report = limits::check(&insns);
            if !report.violations.is_empty() {
                return Err(format!("beyond the limits: {:?}", report.violations));
            }
            loaded.push(vm.load(&insns).map_err(|error| error.to_string())?);
        }
        let names = [MapName::FlowBuckets4, MapName::FlowBuckets6];
        let flows = names.iter().filter_map(|name| maps.get(&(*name as u32)).copied()).collect();
        let host = VmInputs { jiffies: 1_000_000, ..VmInputs::default() };
        let [config, counters] = [MapName::Config, MapName::Counters].map(|name| maps[&(name as u32)]);
        Ok(Self { compiled, vm, host, programs: [loaded[0], loaded[1]], flows, config, counters })
    }

    /// Decides by the audit policies from now on, or by the enforced ones again.
    pub fn decide_by_audit(&mut self, decides: bool) -> Result<(), String> {
        let key = [0; 4];
        let mut value = self.vm.map_lookup(self.config, &key).map_err(|error| format!("config: {error:?}"))?;
        value[config::AUDIT as usize] = decides.into();
        self.vm.map_update(self.config, &key, &value, 0).map_err(|error| format!("config: {error:?}"))
    }

    /// Number of packets that this direction's program reported as judged differently if audit policies were enforced.
    pub fn told(&mut self, direction: Direction) -> u64 {
        let of = |outcome: Outcome| direction_number(direction) * OUTCOMES + outcome as u32;
        let keys = [Outcome::WouldDeny, Outcome::WouldAllow].map(|outcome| of(outcome).to_le_bytes());
        let values = keys.iter().filter_map(|key| self.vm.map_lookup(self.counters, key).ok());
        values.filter_map(|value| value.first_chunk().copied()).map(u64::from_le_bytes).sum()
    }

    /// The verdict for the first packet of a flow.
    pub fn ask(&mut self, question: &Question) -> Result<Verdict, String> {
        self.forget_flows();
        let (source, destination) = match question.direction {
            Direction::Ingress => (question.remote, question.own),
            Direction::Egress => (question.own, question.remote),
        };
        let mut skb = Skb::new(packet(source, destination, question.protocol, question.port));
        skb.ifindex = interface(self.compiled, question.endpoint).ok_or("the endpoint is not local")?;
        skb.ingress_ifindex = match question.direction {
            Direction::Egress => skb.ifindex,
            Direction::Ingress if self.compiled.is_from_own_node(question) => {
                skb.has_socket = true;
                0
            }
            // Only the pod itself can send with its own address.
            Direction::Ingress if question.remote == question.own => skb.ifindex,
            Direction::Ingress => 5,
        };
        let program = self.programs[index(question.direction)];
        let outcome = self.vm.run(program, &mut skb, &mut self.host).map_err(|trap| trap.to_string())?;
        match outcome.verdict() {
            PASS => Ok(Verdict::Allow),
            DROP => Ok(Verdict::Deny),
            other => Err(format!("{other} is no verdict")),
        }
    }

    fn forget_flows(&mut self) {
        for map in &self.flows {
            let bytes = self.vm.map_spec(*map).map_or(0, |spec| spec.value_size);
            let _ = self.vm.map_update(*map, &[0; 4], &vec![0; bytes as usize], 0);
        }
    }
}

/// The first packet of a flow, on Ethernet. Both addresses are of one family.
pub fn packet(source: IpAddr, destination: IpAddr, protocol: Option<Protocol>, port: u16) -> Vec<u8> {
    let payload = transport(source, protocol, port);
    let number = protocol.map_or(if source.is_ipv4() { 1 } else { 58 }, protocol_number);
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([8, 0, 0x45, 0]);
            packet.extend((20 + payload.len() as u16).to_be_bytes());
            packet.extend([0, 1, 0x40, 0, 64, number, 0, 0]);
            packet.extend(source.octets().iter().chain(&destination.octets()));
        }
        (source, destination) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend((payload.len() as u16).to_be_bytes());
            packet.extend([number, 64]);
            packet.extend([source, destination].into_iter().flat_map(sixteen));
        }
    }
    packet.extend(payload);
    packet
}

fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn transport(source: IpAddr, protocol: Option<Protocol>, port: u16) -> Vec<u8> {
    let mut header = match protocol {
        // The first packet is a SYN, an INIT or an echo request; UDP has no such mark.
        Some(Protocol::Tcp) => [&[0; 12][..], &[0x50, 2], &[0; 6]].concat(),
        Some(Protocol::Udp) => vec![0; 8],
        Some(Protocol::Sctp) => [&[0; 12][..], &[1, 0, 0, 20], &[0; 16]].concat(),
        None => vec![if source.is_ipv4() { 8 } else { 128 }, 0, 0, 0, 0, 7, 0, 0],
    };
    if protocol.is_some() {
        header[..2].copy_from_slice(&40_000_u16.to_be_bytes());
        header[2..4].copy_from_slice(&port.to_be_bytes());
    }
    header
}
