//! The state that packets create, with names: flows and counters.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use weir_artifact::layout::buckets::{self, Slot};
use weir_artifact::layout::{FlowState, MapName, OUTCOMES, Origin, Outcome, config};
use weir_objects::address::Family;
use weir_objects::k8s::Direction;

use crate::error::{Doing as _, Error};
use crate::generation::LoadedGeneration;
use crate::names::{ArtifactNames, protocol};
use crate::record::EnforcementRecord;
use crate::runtime::Runtime;
use crate::system::TypedPerCpu;

/// A flow that the datapath knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObservedFlow {
    /// The pod; `None` if its endpoint is gone.
    pub pod: Option<String>,
    /// The number of its interface.
    pub ifindex: u32,
    /// `TCP`, `UDP`, …, or the number.
    pub protocol: String,
    /// The pod's side.
    pub local: FlowEnd,
    /// The other side.
    pub remote: FlowEnd,
    /// The direction in which it began.
    pub direction: &'static str,
    /// `fresh`, `open`, `closing`, or `cut`: policy no longer allows it, and its packets are dropped.
    pub state: &'static str,
    /// Whether the other side has answered.
    pub answered: bool,
    /// Whether the pod's own node began it.
    pub own_node: bool,
    /// Whether its first packet here was in the middle of a connection, so that both directions have to be allowed.
    pub mid_stream: bool,
    /// Seconds since its last packet.
    pub age: u64,
    /// Seconds until it expires without packets.
    pub remaining: u64,
    /// The generation that judged it last.
    pub generation: u32,
}

/// One side of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowEnd {
    /// Its address.
    pub ip: IpAddr,
    /// Its pod, if the artifact knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its port; of ICMP, the identifier (local) or nothing (remote).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Number of packets and bytes with one outcome in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// `ingress` or `egress`, as the pod sees it.
    pub direction: &'static str,
    /// The reason why they passed or were dropped.
    pub outcome: &'static str,
    /// Whether they were dropped.
    pub dropped: bool,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The generation in force with its names.
pub(crate) struct GenerationInForce {
    pub(crate) record: Arc<EnforcementRecord>,
    pub(crate) loaded: LoadedGeneration,
    pub(crate) names: ArtifactNames,
}

/// Times of the flow tables.
pub(crate) struct FlowTiming {
    pub(crate) ticks_per_second: u32,
    /// In ticks, by the state of a flow.
    pub(crate) timeouts: Vec<u32>,
}

pub(crate) const BUCKETS: [(MapName, Family); 2] =
    [(MapName::FlowBuckets4, Family::V4), (MapName::FlowBuckets6, Family::V6)];

/// `call jiffies64; exit`: returns the lower half of the time.
const CLOCK: [u8; 16] = [0x85, 0, 0, 0, 118, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

impl Runtime {
    /// The flows that the datapath knows and that have not expired, sorted.
    pub fn flows(&self) -> Result<Vec<ObservedFlow>, Error> {
        let GenerationInForce { record, loaded, names } = self.in_force()?;
        let now = self.ticks()?;
        let timing = self.timing(&loaded)?;
        let mut flows = Vec::new();
        let epoch = loaded.generation.epoch;
        for (name, family) in BUCKETS {
            let Some(map) = loaded.map(name) else { continue };
            let slots = self.system.slots(map, family).doing(format!("read the map {}", name.name()))?;
            flows.extend(slots.iter().filter_map(Slot::flow).filter_map(|flow| read_flow(&flow, now, epoch, &timing)));
        }
        for flow in &mut flows {
            flow.pod = record.endpoints.iter().find(|it| it.ifindex == flow.ifindex).map(|it| it.pod.clone());
            flow.local.pod.clone_from(&flow.pod);
            flow.remote.pod = names.pod_at(flow.remote.ip).map(str::to_owned);
        }
        flows.sort_by(|a, b| {
            let key =
                |it: &ObservedFlow| (it.ifindex, it.protocol.clone(), it.remote.ip, it.remote.port, it.local.port);
            key(a).cmp(&key(b))
        });
        Ok(flows)
    }

    /// The counters since the first generation was attached.
    pub fn counters(&self) -> Result<Vec<Counter>, Error> {
        let loaded = self.loaded_here(&*self.record_here()?)?;
        let Some(map) = loaded.map(MapName::Counters) else { return Ok(Vec::new()) };
        let reading = "read the map counters";
        let map = self.system.typed(map).doing(reading)?;
        let mut counters = Vec::new();
        for (hook, direction) in [(0, "ingress"), (1, "egress")] {
            for outcome in Outcome::ALL {
                let [packets, bytes] = self.sum(&map, hook * OUTCOMES + outcome as u32, reading)?;
                counters.push(Counter { direction, outcome: outcome.name(), dropped: outcome.drops(), packets, bytes });
            }
        }
        if let Some(map) = loaded.map(MapName::EdgeDrops) {
            let reading = "read the map edge_drops";
            let [packets, bytes] = self.sum(&self.system.typed(map).doing(reading)?, 0, reading)?;
            counters.push(Counter { direction: "ingress", outcome: "xdp", dropped: true, packets, bytes });
        }
        Ok(counters)
    }

    /// The packets and bytes of one counter, over all CPUs.
    fn sum(&self, map: &TypedPerCpu<[u64; 2]>, index: u32, reading: &str) -> Result<[u64; 2], Error> {
        let of_cpus = self.system.of_cpus(map, index).doing(reading)?;
        Ok([0, 1].map(|at| of_cpus.iter().map(|cpu| cpu[at]).sum()))
    }

    /// The generation in force with its names.
    pub(crate) fn in_force(&self) -> Result<GenerationInForce, Error> {
        let nothing = || Error::Nothing(self.pins.root().to_owned());
        let (record, loaded, artifact) = self.read_in_force()?.ok_or_else(nothing)?;
        self.check_namespace(&record)?;
        let names = ArtifactNames::new(&artifact);
        Ok(GenerationInForce { record, loaded, names })
    }

    /// The generation in force, which must exist.
    fn loaded_here(&self, record: &EnforcementRecord) -> Result<LoadedGeneration, Error> {
        self.current(record)?.ok_or_else(|| Error::Nothing(self.pins.root().to_owned()))
    }

    /// The kernel's time in ticks, its lower half.
    pub(crate) fn ticks(&self) -> Result<u32, Error> {
        let refused = |error| Error::Refused { program: "weir_clock", error };
        let program = self.system.load("weir_clock", &CLOCK, None).map_err(refused)?;
        Ok(self.system.test_run(&program, &[0; 64]).doing("ask for the kernel's time")?.verdict)
    }

    /// The times in the generation's configuration.
    pub(crate) fn timing(&self, loaded: &LoadedGeneration) -> Result<FlowTiming, Error> {
        let reading = "read the map config";
        let map = loaded.map(MapName::Config).map(|map| self.system.typed(map)).transpose().doing(reading)?;
        let value = map.map(|map| self.system.load_cell(&map)).transpose().doing(reading)?;
        let value: config::Value = value.unwrap_or([0; _]);
        let [first, ticks] = [config::TIMEOUTS, config::TICKS].map(|at| at as usize / 4);
        Ok(FlowTiming { ticks_per_second: value[ticks].max(1), timeouts: value[first..ticks].to_vec() })
    }
}

/// The number with these lower bits that is nearest to a number read a moment ago. A flow can be newer than that.
pub(crate) fn whole(lower: u32, epoch: u32) -> u32 {
    let unused = u32::BITS - buckets::EPOCH_BITS;
    let difference = ((lower.wrapping_sub(epoch) << unused) as i32) >> unused;
    epoch.wrapping_add_signed(difference)
}

/// Reads a flow without names; `None` if it has expired.
fn read_flow(flow: &buckets::StoredFlow, now: u32, epoch: u32, timing: &FlowTiming) -> Option<ObservedFlow> {
    let ticks = timing.ticks_per_second;
    let tuple = &flow.tuple;
    let idle = now.wrapping_sub(flow.last as u32);
    let at_most = timing.timeouts.get(flow.state as usize).copied().unwrap_or(0);
    let has_ports = matches!(tuple.protocol, 6 | 17 | 132);
    let has_identifier = matches!(tuple.protocol, 1 | 58);
    (idle <= at_most).then_some(())?;
    Some(ObservedFlow {
        pod: None,
        ifindex: tuple.ifindex,
        protocol: protocol(tuple.protocol),
        local: FlowEnd { ip: tuple.local, pod: None, port: (has_ports || has_identifier).then_some(tuple.local_port) },
        remote: FlowEnd { ip: tuple.remote, pod: None, port: has_ports.then_some(tuple.remote_port) },
        direction: if flow.begun == Direction::Egress { "egress" } else { "ingress" },
        state: state_name(flow),
        answered: flow.answered,
        own_node: flow.origin == Origin::Host,
        mid_stream: flow.origin == Origin::MidStream,
        age: u64::from(idle / ticks),
        remaining: u64::from((at_most - idle) / ticks),
        generation: whole(flow.epoch, epoch),
    })
}

fn state_name(flow: &buckets::StoredFlow) -> &'static str {
    match flow.state {
        _ if flow.is_cut => "cut",
        FlowState::TcpClosing => "closing",
        state if state.is_confirmed() => "open",
        _ => "fresh",
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u32::from_le_bytes(*it))
}

pub(crate) fn port(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|it| u16::from_be_bytes(*it))
}
