//! The VM as a machine for the facts.

use std::collections::HashMap;

use weir_artifact::layout::MapName;
use weir_ebpf::vm::{ANY, MapId, ProgramId, RunOutcome, Skb, Stop, Vm, VmInputs};
use weir_model::Direction;

use crate::datapath::rig::{Arrival, Entries, INTERFACE, Parts};

/// The ticks of the image's clock in a second.
const TICKS: u64 = 250;

/// The VM with the maps and programs of [`Parts`].
pub struct Machine {
    vm: Vm,
    maps: HashMap<MapName, MapId>,
    programs: [ProgramId; 2],
    host: VmInputs,
    /// The number of packet bytes that programs may read directly.
    pub linear: usize,
    /// The VLAN tag that the device has removed.
    pub vlan: Option<u16>,
    /// The number of instructions that the last packet took.
    pub executed: u64,
}

impl Machine {
    /// Creates the maps and loads the programs.
    pub fn new(parts: &Parts) -> Self {
        let mut vm = Vm::new(1);
        let mut maps = HashMap::new();
        for image in &parts.maps {
            let id = vm.create_map(image.spec).unwrap();
            for (key, value) in image.entries.iter() {
                vm.map_update(id, key, value, ANY).unwrap();
            }
            maps.insert(image.name, id);
        }
        let numbers: HashMap<u32, i32> = maps.iter().map(|(name, id)| (*name as u32, id.0 as i32)).collect();
        let programs = [0, 1].map(|hook| vm.load(&parts.programs[hook].link(|map| numbers[&map.0])).unwrap());
        let host = VmInputs { jiffies: 1_000_000, ..VmInputs::default() };
        Self { vm, maps, programs, host, linear: usize::MAX, vlan: None, executed: 0 }
    }
}

impl Machine {
    /// Runs a packet and calls `change` before the program reads a value of these maps for the `nth` time. `None` if it
    /// reads fewer values.
    pub fn run_with_change(
        &mut self,
        (hook, packet, arrival): (Direction, &[u8], Arrival),
        (maps, nth): (&[MapName], usize),
        change: impl FnOnce(&mut Self),
    ) -> Option<RunOutcome> {
        let mut skb = self.skb(packet, arrival);
        let program = self.programs[usize::from(hook == Direction::Egress)];
        let maps: Vec<MapId> = maps.iter().map(|map| self.maps[map]).collect();
        let stop = self.vm.run_to_read(program, &mut skb, &mut self.host, &maps, nth);
        let Stop::Before(state) = stop.unwrap_or_else(|trap| panic!("{trap}: {packet:02x?}")) else { return None };
        change(self);
        let run = self.vm.resume(&state, &mut skb, &mut self.host);
        Some(run.unwrap_or_else(|trap| panic!("{trap}: {packet:02x?}")))
    }

    fn skb(&self, packet: &[u8], arrival: Arrival) -> Skb {
        let mut skb = Skb::new(packet.to_vec());
        skb.linear = skb.linear.min(self.linear);
        skb.vlan_tci = self.vlan;
        (skb.ifindex, skb.ingress_ifindex) = (INTERFACE, arrival.interface);
        (skb.has_socket, skb.tc_index) = (arrival.has_socket, arrival.stamp);
        skb
    }
}

impl crate::datapath::rig::Machine for Machine {
    fn run(&mut self, hook: Direction, packet: &[u8], arrival: Arrival) -> i32 {
        let mut skb = self.skb(packet, arrival);
        let program = self.programs[usize::from(hook == Direction::Egress)];
        let run = self.vm.run(program, &mut skb, &mut self.host);
        let outcome = run.unwrap_or_else(|trap| panic!("{trap}: {packet:02x?}"));
        self.executed = outcome.executed;
        outcome.verdict()
    }

    fn entries(&self, map: MapName) -> Entries {
        let Some(&id) = self.maps.get(&map) else { return Entries::new() };
        let keys = self.vm.map_keys(id).into_iter();
        keys.map(|key| (key.clone(), self.vm.map_lookup(id, &key).unwrap())).collect()
    }

    fn read(&self, map: MapName, key: &[u8]) -> Vec<u8> {
        self.vm.map_lookup(self.maps[&map], key).unwrap()
    }

    fn write(&mut self, map: MapName, key: &[u8], value: &[u8]) {
        self.vm.map_update(self.maps[&map], key, value, ANY).unwrap();
    }

    fn remove(&mut self, map: MapName, key: &[u8]) {
        self.vm.map_delete(self.maps[&map], key).unwrap();
    }

    fn advance(&mut self, seconds: u64) {
        self.host.jiffies += seconds * TICKS;
    }
}
