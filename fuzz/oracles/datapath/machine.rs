//! The machines that run the programs: the VM here, the kernel in the tests of `weir-runtime`.

use std::collections::BTreeMap;

use weir_artifact::layout::{MapName, OUTCOMES, Outcome, buckets, config, direction_number};
use weir_artifact::map_image::with_few_flows;
use weir_ebpf::vm::{ANY, MapId, MapKind, ProgramId, Skb, Vm, VmInputs};
use weir_model::Direction;

use super::bytes;
use super::packet::{Arrival, Body, Packet};
use super::worlds::World;

/// The pod's interface: the only one that every kernel has.
pub const INTERFACE: u32 = 1;
/// Another interface.
pub const UPLINK: u32 = 2;
/// Room for flows: far more than a sequence has, so that no bucket is ever full.
pub const MOST_FLOWS: u32 = 2_048;

/// The step between the seeds of two turns: 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Ticks of the image's clock in a second.
const TICKS: u64 = 250;
/// TCX_NEXT and TC_ACT_UNSPEC.
const PASS: i32 = -1;
/// TC_ACT_SHOT.
const DROP: i32 = 2;

/// The observed outcome of a packet: whether it passed, and the counters that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether the packet passed.
    pub passes: bool,
    /// The names of the outcomes that were counted.
    pub counted: Vec<&'static str>,
}

/// Runs the programs of several generations over one flow table.
pub trait Machine {
    /// Removes all flows and fragments. Each turn uses other hash seeds.
    fn reset(&mut self, turn: u64);
    /// Puts a generation in force, under this number.
    fn switch(&mut self, world: usize, generation: u32);
    /// Puts the pod with this number behind the interface, or none.
    fn plug(&mut self, pod: Option<usize>);
    /// Lets time pass.
    fn advance(&mut self, seconds: u64);
    /// Sends a packet through its hook.
    fn send(&mut self, packet: &Packet) -> Result<Seen, String>;
}

/// Whether a map belongs to one generation. The other maps hold the state that packets create; all generations share
/// them.
pub fn is_of_one_generation(name: MapName) -> bool {
    use MapName::{
        Config, Defaults, Endpoints, Exact4, Exact6, Listed4, Listed6, Nodes4, Nodes6, Ports, Prefixes4, Prefixes6,
        Rows,
    };
    matches!(
        name,
        Config
            | Defaults
            | Endpoints
            | Exact4
            | Exact6
            | Listed4
            | Listed6
            | Nodes4
            | Nodes6
            | Ports
            | Prefixes4
            | Prefixes6
            | Rows
    )
}

/// The value of `config` for a generation with this number, with other hash seeds in each turn.
pub fn config_of(world: &World, generation: u32, turn: u64) -> Vec<u8> {
    let image = world.maps.iter().find(|it| it.name == MapName::Config);
    let mut value = image.map_or_else(Vec::new, |it| it.entries.entry(0).1.to_vec());
    value[config::EPOCH as usize..][..4].copy_from_slice(&generation.to_le_bytes());
    let seeds = &mut value[config::SEEDS as usize..][..8 * buckets::SEEDS];
    for seed in seeds.as_chunks_mut::<8>().0 {
        *seed = u64::from_le_bytes(*seed).wrapping_add(turn.wrapping_mul(STEP)).to_le_bytes();
    }
    value
}

/// The number of the interface that a packet came in through.
pub fn ingress_ifindex(packet: &Packet) -> u32 {
    match packet.arrival {
        Arrival::None => 0,
        Arrival::Own => INTERFACE,
        Arrival::Other => UPLINK,
    }
}

/// Computes the observed outcome from the verdict and the counters before and after.
pub fn seen(verdict: i32, before: &[u64], after: &[u64]) -> Result<Seen, String> {
    let passes = match verdict {
        PASS => true,
        DROP => false,
        other => return Err(format!("{other} is no verdict")),
    };
    let mut counted = Vec::new();
    for (outcome, (before, after)) in Outcome::ALL.into_iter().zip(before.iter().zip(after)) {
        counted.extend((*before..*after).map(|_| outcome.name()));
    }
    Ok(Seen { passes, counted })
}

/// The keys of a hook's counters, one for each outcome.
pub fn counter_keys(hook: Direction) -> Vec<[u8; 4]> {
    let key = |outcome: Outcome| (direction_number(hook) * OUTCOMES + outcome as u32).to_le_bytes();
    Outcome::ALL.into_iter().map(key).collect()
}

/// The VM with every generation loaded.
pub struct InVm<'w> {
    worlds: &'w [World],
    vm: Vm,
    host: VmInputs,
    shared: BTreeMap<MapName, MapId>,
    own: Vec<BTreeMap<MapName, MapId>>,
    programs: Vec<[ProgramId; 2]>,
    world: usize,
    pod: Option<usize>,
    turn: u64,
}

impl<'w> InVm<'w> {
    /// Loads all of them.
    pub fn new(worlds: &'w [World]) -> Result<Self, String> {
        let (mut vm, mut shared, mut own, mut programs) = (Vm::new(1), BTreeMap::new(), Vec::new(), Vec::new());
        for world in worlds {
            let mut of_world = BTreeMap::new();
            for image in &world.maps {
                if shared.contains_key(&image.name) {
                    continue;
                }
                let image = with_few_flows(image, MOST_FLOWS);
                let failed = |error| format!("{:?}: {error:?}", image.name);
                let id = vm.create_map(image.spec).map_err(failed)?;
                for (key, value) in image.entries.iter() {
                    vm.map_update(id, key, value, ANY).map_err(failed)?;
                }
                let maps = if is_of_one_generation(image.name) { &mut of_world } else { &mut shared };
                maps.insert(image.name, id);
            }
            let numbers: BTreeMap<u32, i32> =
                shared.iter().chain(&of_world).map(|(name, id)| (*name as u32, id.0 as i32)).collect();
            let mut loaded = Vec::new();
            for program in &world.programs {
                loaded.push(vm.load(&program.link(|map| numbers[&map.0])).map_err(|error| error.to_string())?);
            }
            programs.push([loaded[0], loaded[1]]);
            own.push(of_world);
        }
        let host = VmInputs { jiffies: 1_000_000, ..VmInputs::default() };
        Ok(Self { worlds, vm, host, shared, own, programs, world: 0, pod: None, turn: 0 })
    }

    fn write(&mut self, map: MapName, key: &[u8], value: &[u8]) {
        let id = self.own[self.world][&map];
        let _ = self.vm.map_update(id, key, value, ANY);
    }

    fn counters(&self, hook: Direction) -> Vec<u64> {
        let id = self.shared[&MapName::Counters];
        let read = |key: &[u8; 4]| {
            let value = self.vm.map_lookup(id, key).unwrap_or_default();
            value.first_chunk().copied().map_or(0, u64::from_le_bytes)
        };
        counter_keys(hook).iter().map(read).collect()
    }
}

impl Machine for InVm<'_> {
    fn reset(&mut self, turn: u64) {
        self.turn = turn;
        for (name, id) in &self.shared {
            let Some(spec) = self.vm.map_spec(*id) else { continue };
            match spec.kind {
                MapKind::Hash => {
                    for key in self.vm.map_keys(*id) {
                        let _ = self.vm.map_delete(*id, &key);
                    }
                }
                MapKind::Array if *name != MapName::FlowShape => {
                    for key in self.vm.map_keys(*id) {
                        let _ = self.vm.map_update(*id, &key, &vec![0; spec.value_size as usize], ANY);
                    }
                }
                _ => {}
            }
        }
    }

    fn switch(&mut self, world: usize, generation: u32) {
        self.world = world;
        let value = config_of(&self.worlds[world], generation, self.turn);
        self.write(MapName::Config, &[0; 4], &value);
        self.plug(self.pod);
    }

    fn plug(&mut self, pod: Option<usize>) {
        self.pod = pod;
        match pod {
            Some(pod) => {
                let value = &self.worlds[self.world].values[pod];
                self.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), value);
            }
            None => {
                let id = self.own[self.world][&MapName::Endpoints];
                let _ = self.vm.map_delete(id, &INTERFACE.to_le_bytes());
            }
        }
    }

    fn advance(&mut self, seconds: u64) {
        self.host.jiffies += seconds * TICKS;
    }

    fn send(&mut self, packet: &Packet) -> Result<Seen, String> {
        let mut skb = Skb::new(bytes::frame(packet));
        (skb.ifindex, skb.ingress_ifindex, skb.tc_index) = (INTERFACE, ingress_ifindex(packet), packet.stamp);
        skb.has_socket = packet.has_socket;
        if matches!(packet.body, Body::Vlan(_)) {
            skb.vlan_tci = Some(5);
        }
        let before = self.counters(packet.hook);
        let program = self.programs[self.world][usize::from(packet.hook == Direction::Egress)];
        let run = self.vm.run(program, &mut skb, &mut self.host).map_err(|trap| trap.to_string())?;
        seen(run.verdict(), &before, &self.counters(packet.hook))
    }
}
