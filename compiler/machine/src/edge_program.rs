//! Runs the program at the edge of the node over the emitted map images, in the userspace machine.

use super::Broken;
use weir_artifact::Artifact;
use weir_artifact::layout::{MapName, protected};
use weir_artifact::map_image::MapEntry;
use weir_ebpf::asm::MapRef;
use weir_ebpf::vm::{MapId, ProgramId, Skb, Vm, VmInputs};

/// XDP's result "drop the packet".
pub const DROP: i32 = 1;
/// XDP's result "pass the packet to the kernel".
pub const PASS: i32 = 2;

/// The loaded program, and the filled maps that it uses; every endpoint of the artifact is enforced.
#[derive(Debug)]
pub struct AtEdge {
    vm: Vm,
    program: ProgramId,
    maps: [Option<MapId>; MapName::ALL.len()],
}

impl AtEdge {
    /// `None` if the artifact has no such program.
    pub fn new(artifact: &Artifact) -> Result<Option<Self>, Broken> {
        let Some(code) = &artifact.edge else { return Ok(None) };
        let mut vm = Vm::new(1);
        let mut maps = [None; MapName::ALL.len()];
        // Only maps that the program names: the others may be large, and a fault in them is found at the pods.
        for map in artifact.maps.iter().filter(|map| code.maps.iter().any(|used| used.map.0 == map.name as u32)) {
            let refused = |errno| Broken(format!("map {} is refused: {errno:?}", map.name.name()));
            let id = vm.create_map(map.spec).map_err(refused)?;
            for (key, value) in map.entries.to_list().into_iter().chain(local_entries(artifact, map.name)) {
                vm.map_update(id, &key, &value, 0).map_err(refused)?;
            }
            maps[map.name as usize] = Some(id);
        }
        let id = |map: MapRef| maps.get(map.0 as usize).copied().flatten().map_or(-1, |id: MapId| id.0 as i32);
        let program =
            vm.load_xdp(&code.link(id)).map_err(|error| Broken(format!("at_edge cannot be loaded: {error}")))?;
        Ok(Some(Self { vm, program, maps }))
    }

    /// Whether the program drops a packet.
    pub fn drops(&mut self, packet: Vec<u8>) -> Result<bool, Broken> {
        // A fresh packet and host for each question: this program keeps no flows, so no answer depends on an earlier
        // one.
        let outcome = self.vm.run(self.program, &mut Skb::new(packet), &mut VmInputs::default());
        match outcome.map_err(|trap| Broken(trap.to_string()))?.verdict() {
            DROP => Ok(true),
            PASS => Ok(false),
            other => Err(Broken(format!("at_edge returned {other}"))),
        }
    }

    /// A value in one of the program's maps.
    pub fn read(&self, map: MapName, key: &[u8]) -> Option<Vec<u8>> {
        self.vm.map_lookup(self.maps.get(map as usize).copied().flatten()?, key).ok()
    }

    /// Writes a value into one of the program's maps.
    pub fn write(&mut self, map: MapName, key: &[u8], value: &[u8]) -> Result<(), Broken> {
        let id = self.maps.get(map as usize).copied().flatten();
        let id = id.ok_or_else(|| Broken(format!("at_edge does not use {}", map.name())))?;
        self.vm.map_update(id, key, value, 0).map_err(|errno| Broken(format!("{}: {errno:?}", map.name())))
    }
}

fn local_entries(artifact: &Artifact, map: MapName) -> Vec<MapEntry> {
    protected(map, artifact.endpoints.iter().map(|it| it.value.as_slice()))
}
