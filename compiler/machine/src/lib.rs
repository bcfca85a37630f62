//! Runs the emitted programs over the emitted map images, in the userspace machine. The engine `vm` and the
//! verification use it.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod edge_program;

use weir_artifact::layout::buckets::{self, StoredFlow, Tuple};
use weir_artifact::layout::{MapName, Outcome, config, direction_number};
use weir_artifact::map_image::{MapImage, with_few_flows};
use weir_ebpf::asm::Assembled;
use weir_ebpf::vm::{MapByte, MapId, ProgramId, Skb, Vm, VmInputs};
use weir_model::Direction;
use weir_model::eval::Verdict;
use weir_objects::address::Family;

use weir_artifact::packet;

/// An engine failed: a bug in Weir, or the kernel refused an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

// `TCX_NEXT` and `TC_ACT_UNSPEC` are both -1, so one program serves both ways of attaching:
// https://github.com/torvalds/linux/blob/v6.6/include/uapi/linux/bpf.h,
// https://github.com/torvalds/linux/blob/v6.6/include/uapi/linux/pkt_cls.h
/// tc's result "next": other programs on the hook still run.
pub const NEXT: i32 = -1;
/// tc's result "drop".
pub const DROP: i32 = 2;
// Also far below 2^64: the clock is advanced by this for each packet and must not wrap within any run.
/// A time in ticks that is longer than the lifetime of any flow.
const LONG: u64 = 1 << 32;

/// Both loaded programs, and every map with its entries.
#[derive(Debug)]
pub struct LoadedPrograms {
    vm: Vm,
    programs: [ProgramId; 2],
    maps: [Option<MapId>; MapName::ALL.len()],
    host: VmInputs,
}

/// The parts of a [`LoadedPrograms`], for callers that access the machine directly.
#[derive(Debug)]
pub struct Inside<'a> {
    /// The machine.
    pub vm: &'a mut Vm,
    /// Its surroundings.
    pub host: &'a mut VmInputs,
}

/// The size of the flow table. There is never more than one flow in it.
const MOST_FLOWS: u32 = 64;

impl LoadedPrograms {
    /// Loads `to_pod` and `from_pod`. The endpoint at index `n` is behind interface `n + 1`.
    pub fn new(programs: [&Assembled; 2], maps: &[MapImage], endpoints: &[&[u8]]) -> Result<Self, Broken> {
        // One CPU: per-CPU counters then have one value, and nothing here depends on which CPU counts.
        let mut vm = Vm::new(1);
        let mut ids = [None; MapName::ALL.len()];
        for map in maps {
            // The real flow table has megabytes, which every clone of the machine and every start would have to zero.
            // The programs read its size from a map and not from their code.
            let map = with_few_flows(map, MOST_FLOWS);
            let refused = |errno| Broken(format!("map {} is refused: {errno:?}", map.name.name()));
            let id = vm.create_map(map.spec).map_err(refused)?;
            for (key, value) in map.entries.iter() {
                vm.map_update(id, key, value, 0).map_err(refused)?;
            }
            // The image of this map is empty: the runtime writes it, by the interfaces that it finds. Here interfaces
            // are numbered by place.
            if map.name == MapName::Endpoints {
                for (place, value) in endpoints.iter().enumerate() {
                    vm.map_update(id, &interface(place).to_le_bytes(), value, 0).map_err(refused)?;
                }
            }
            ids[map.name as usize] = Some(id);
        }
        let id = |name: weir_ebpf::asm::MapRef| {
            // A map that the image lacks: -1 is no map of the machine, so the program does not load.
            ids.get(name.0 as usize).copied().flatten().map_or(-1, |id: MapId| id.0 as i32)
        };
        let mut load = |program: &Assembled| {
            vm.load(&program.link(id)).map_err(|error| Broken(format!("a program cannot be loaded: {error}")))
        };
        let programs = [load(programs[0])?, load(programs[1])?];
        Ok(Self { vm, programs, maps: ids, host: VmInputs::default() })
    }

    /// Direct access to the machine, after all flows have expired.
    pub fn inside(&mut self) -> Inside<'_> {
        self.expire_flows();
        self.inside_now()
    }

    /// Advances the clock so far that all flows expire.
    pub fn expire_flows(&mut self) {
        // By the clock and not by clearing the table: programs must treat an expired flow as absent, and this makes
        // each probe a test of that.
        self.host.jiffies += LONG;
    }

    /// Direct access to the machine, with its live flows.
    pub fn inside_now(&mut self) -> Inside<'_> {
        Inside { vm: &mut self.vm, host: &mut self.host }
    }

    /// Puts a new flow into the flow table, judged `age` generations before the current one.
    pub fn begin_flow(&mut self, tuple: Tuple, begun: Direction, age: u32) -> Result<(), Broken> {
        let config = self.map(MapName::Config);
        let epoch = config.and_then(|map| self.vm.value_at(map, config::EPOCH as u64).first_chunk().copied());
        // Epochs are compared for equality only, so the one before 0 may be the largest number.
        let epoch = epoch.map_or(0, u32::from_le_bytes).wrapping_sub(age);
        self.put_flow(&tuple.begun(begun, epoch, self.host.jiffies))
    }

    /// Writes a flow into its home slot of the flow table.
    fn put_flow(&mut self, flow: &StoredFlow) -> Result<(), Broken> {
        let family = Family::of(flow.tuple.remote);
        let name = if family == Family::V4 { MapName::FlowBuckets4 } else { MapName::FlowBuckets6 };
        let (table, config) = self.map(name).zip(self.map(MapName::Config)).ok_or(Broken("no flow table".into()))?;
        let seeds = buckets::seeds(self.vm.value_at(config, 0));
        let mask = buckets::mask(family, self.vm.value_at(table, 0).len() as u32);
        // Into the home slot, where a program looks first. Others of the bucket hold only expired flows.
        let slot = flow.slot(0);
        let bytes: Vec<u8> = slot.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        let spot = MapByte { map: table, element: 0, offset: slot.home(&seeds, mask) };
        // Past the update interface: it would replace the whole table, which is one value.
        self.vm.poke(spot, &bytes).map_err(|errno| Broken(format!("a flow is refused: {errno:?}")))
    }

    /// The program of a hook.
    pub fn program(&self, hook: Direction) -> ProgramId {
        self.programs[direction_number(hook) as usize]
    }

    /// A map by name.
    pub fn map(&self, name: MapName) -> Option<MapId> {
        self.maps.get(name as usize).copied().flatten()
    }

    /// The verdict on a packet at an endpoint, with no live flows.
    pub fn run(&mut self, hook: Direction, place: usize, packet: Vec<u8>, began_here: bool) -> Result<Verdict, Broken> {
        let mut skb = arrived(hook, place, packet, began_here);
        self.run_on(hook, &mut skb)
    }

    /// Like [`LoadedPrograms::run`], on a packet that the caller keeps.
    pub(crate) fn run_on(&mut self, hook: Direction, skb: &mut Skb) -> Result<Verdict, Broken> {
        self.expire_flows();
        self.run_now(hook, skb)
    }

    /// Like [`LoadedPrograms::run_on`], with the live flows.
    pub fn run_now(&mut self, hook: Direction, skb: &mut Skb) -> Result<Verdict, Broken> {
        let program = self.program(hook);
        let Inside { vm, host } = self.inside_now();
        // A trap is an error of the engine and never a denial: the kernel would not have loaded the program at all.
        let outcome = vm.run(program, skb, host).map_err(|trap| Broken(trap.to_string()))?;
        verdict(hook, outcome)
    }

    /// The number of packets that were counted with this outcome.
    pub fn count(&self, hook: Direction, outcome: Outcome) -> u64 {
        let key = direction_number(hook) * weir_artifact::layout::OUTCOMES + outcome as u32;
        let value = self.map(MapName::Counters).and_then(|map| self.vm.map_lookup(map, &key.to_le_bytes()).ok());
        value.as_deref().and_then(|it| it.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it))
    }
}

/// A packet as the program of a hook gets it, at the endpoint with index `place`.
pub fn arrived(hook: Direction, place: usize, packet: Vec<u8>, began_here: bool) -> Skb {
    let mut skb = Skb::new(packet);
    skb.ifindex = interface(place);
    skb.has_socket = began_here;
    skb.ingress_ifindex = match hook {
        // A packet of the pod arrived through the pod's own interface.
        Direction::Egress => skb.ifindex,
        // A packet that this host sent has no interface of arrival. Programs ask for that and for a socket, since
        // absence alone proves nothing.
        Direction::Ingress if began_here => 0,
        // A packet of the pod to itself comes back through the interface that it left by. From another interface it
        // would only claim the pod's address, and programs do not take it for the pod.
        Direction::Ingress if packet::is_to_itself(&skb.packet) => skb.ifindex,
        // Some other interface, on which no endpoint is.
        Direction::Ingress => u32::MAX,
    };
    skb
}

/// The verdict that a program's result means.
pub fn verdict(hook: Direction, outcome: weir_ebpf::vm::RunOutcome) -> Result<Verdict, Broken> {
    match outcome.verdict() {
        NEXT => Ok(Verdict::Allow),
        DROP => Ok(Verdict::Deny),
        // `DROP` and `NEXT` are all that programs return. Any other code would make the kernel do something that
        // nothing here has judged.
        other => Err(Broken(format!("{} returned {other}", weir_artifact::layout::program_name(hook)))),
    }
}

/// The interface of the endpoint with index `place`.
pub fn interface(place: usize) -> u32 {
    place as u32 + 1
}
