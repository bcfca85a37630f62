//! Sequences of packets through the programs in the kernel, beside the model (`weir_fuzz::oracles::datapath`).
//!
//! A test run in the kernel gives every packet a socket and no stamp, and its clock cannot be moved. So these sequences
//! contain no waiting, no stamps and no VLAN tags.

use std::collections::BTreeMap;

use weir_artifact::layout::MapName;
use weir_artifact::map_image::with_few_flows;
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::vm::{MapFlags, MapKind};
use weir_fuzz::generators::for_each;
use weir_fuzz::generators::sequences::{Abilities, sequences};
use weir_fuzz::oracles::datapath::bytes;
use weir_fuzz::oracles::datapath::compare::{Tally, agree};
use weir_fuzz::oracles::datapath::machine::{
    INTERFACE, MOST_FLOWS, Machine, Seen, config_of, counter_keys, ingress_ifindex, is_of_one_generation, seen,
};
use weir_fuzz::oracles::datapath::packet::Packet;
use weir_fuzz::oracles::datapath::worlds::{World, worlds};
use weir_model::Direction;
use weir_runtime::sys::{BpfKernel, KernelMap, KernelProgram};

use super::{context, kernel};

const SEQUENCES: u32 = 1_000;
/// With fewer packets than this, the test would prove too little.
const PACKETS: usize = 10_000;

struct InKernel<'w> {
    worlds: &'w [World],
    shared: BTreeMap<MapName, (KernelMap, MapKind)>,
    own: Vec<BTreeMap<MapName, KernelMap>>,
    programs: Vec<[KernelProgram; 2]>,
    world: usize,
    pod: Option<usize>,
    turn: u64,
}

impl<'w> InKernel<'w> {
    fn new(kernel: &BpfKernel, worlds: &'w [World]) -> Self {
        let (mut shared, mut own, mut programs) = (BTreeMap::new(), Vec::new(), Vec::new());
        for world in worlds {
            let mut of_world = BTreeMap::new();
            for image in world.maps.iter().filter(|it| is_of_one_generation(it.name)) {
                of_world.insert(image.name, filled(kernel, image));
            }
            for image in world.maps.iter().filter(|it| !is_of_one_generation(it.name)) {
                let image = with_few_flows(image, MOST_FLOWS);
                shared.entry(image.name).or_insert_with(|| (filled(kernel, &image), image.spec.kind));
            }
            let of_all = shared.iter().map(|(name, (map, _))| (*name, map));
            let descriptors: BTreeMap<u32, i32> = of_all
                .chain(of_world.iter().map(|(name, map)| (*name, map)))
                .map(|(name, map)| (name as u32, map.descriptor()))
                .collect();
            programs.push([0, 1].map(|hook: usize| {
                let insns = world.programs[hook].link(|map| descriptors[&map.0]);
                kernel.load(&encode(&insns, ByteOrder::Little)).unwrap_or_else(|error| panic!("{error}"))
            }));
            own.push(of_world);
        }
        Self { worlds, shared, own, programs, world: 0, pod: None, turn: 0 }
    }

    fn counters(&self, hook: Direction) -> Vec<u64> {
        let map = &self.shared[&MapName::Counters].0;
        let of_cpus =
            |value: Vec<u8>| value.chunks(16).map(|cpu| u64::from_le_bytes(*cpu.first_chunk().unwrap())).sum();
        counter_keys(hook).iter().map(|key| of_cpus(map.lookup(key).unwrap())).collect()
    }
}

fn filled(kernel: &BpfKernel, image: &weir_artifact::map_image::MapImage) -> KernelMap {
    let map = kernel.create_map(&(&image.spec).into(), None).unwrap();
    for (key, value) in image.entries.iter() {
        map.update(key, value, 0).unwrap();
    }
    if image.spec.flags.contains(MapFlags::RDONLY_PROG) {
        map.freeze().unwrap();
    }
    map
}

impl Machine for InKernel<'_> {
    fn reset(&mut self, turn: u64) {
        self.turn = turn;
        for (name, (map, kind)) in &self.shared {
            match kind {
                MapKind::Hash => {
                    while let Some(key) = map.next_key(None).unwrap() {
                        map.delete(&key).unwrap();
                    }
                }
                MapKind::Array if *name != MapName::FlowShape => {
                    let definition = map.definition();
                    for key in 0..definition.max_entries {
                        map.update(&key.to_le_bytes(), &vec![0; definition.value_size as usize], 0).unwrap();
                    }
                }
                _ => {}
            }
        }
    }

    fn switch(&mut self, world: usize, generation: u32) {
        self.world = world;
        let value = config_of(&self.worlds[world], generation, self.turn);
        self.own[world][&MapName::Config].update(&[0; 4], &value, 0).unwrap();
        self.plug(self.pod);
    }

    fn plug(&mut self, pod: Option<usize>) {
        self.pod = pod;
        let (map, key) = (&self.own[self.world][&MapName::Endpoints], INTERFACE.to_le_bytes());
        match pod {
            Some(pod) => map.update(&key, &self.worlds[self.world].values[pod], 0).unwrap(),
            // The entry may not exist.
            None => _ = map.delete(&key),
        }
    }

    fn advance(&mut self, _seconds: u64) {
        panic!("the kernel's clock cannot be moved");
    }

    fn send(&mut self, packet: &Packet) -> Result<Seen, String> {
        let before = self.counters(packet.hook);
        let program = &self.programs[self.world][usize::from(packet.hook == Direction::Egress)];
        let run = program.test_run(&bytes::frame(packet), &context(ingress_ifindex(packet)), 1);
        let run = run.map_err(|error| error.to_string())?;
        seen(run.verdict as i32, &before, &self.counters(packet.hook))
    }
}

#[test]
fn every_sequence_of_packets_has_the_models_outcomes_in_the_kernel() {
    let Some(kernel) = kernel() else { return };
    let worlds = worlds().unwrap();
    let mut machine = InKernel::new(&kernel, &worlds);
    if machine.programs[0][0].test_run(&[0; 64], &context(INTERFACE), 1).is_err() {
        return eprintln!("this kernel's test run knows no interface that a packet came in through");
    }
    let (mut tally, abilities) = (Tally::default(), Abilities { waits: false, context: false });
    for_each(SEQUENCES, &sequences(worlds.len(), abilities), |sequence| {
        agree(&sequence, &worlds, &mut machine, &mut tally).unwrap_or_else(|it| panic!("{}", it.text));
    });
    assert!(tally.packets >= PACKETS, "only {} packets", tally.packets);
}
