//! Maps as seen from outside of the program: the operations of the `bpf` system call.

use super::super::{Errno, ProgramId, Vm};
use super::{MapContent, MapId, MapSpec, VmMap};

impl Vm {
    /// Creates a map.
    pub fn create_map(&mut self, spec: MapSpec) -> Result<MapId, Errno> {
        let id = MapId(u32::try_from(self.maps.len()).map_err(|_| Errno::NoMem)?);
        let map = VmMap::new(id, spec, self.cpus, &mut self.memory)?;
        self.maps.push(map);
        Ok(id)
    }

    /// The parameters with which a map was created.
    pub fn map_spec(&self, map: MapId) -> Option<MapSpec> {
        self.maps.get(map.0 as usize).map(|map| map.spec)
    }

    fn map_for_update(&mut self, map: MapId, key: &[u8]) -> Result<&mut VmMap, Errno> {
        let map = self.maps.get_mut(map.0 as usize).ok_or(Errno::Inval)?;
        // EPERM before the key is looked at, as in the system call:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/syscall.c (`map_update_elem`, `FMODE_CAN_WRITE`).
        if map.frozen {
            return Err(Errno::Perm);
        }
        if key.len() == map.spec.key_size as usize { Ok(map) } else { Err(Errno::Inval) }
    }

    /// Writes an entry. A per-CPU value consists of all CPUs' values, each rounded up to eight bytes.
    pub fn map_update(&mut self, map: MapId, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        // Only for its checks: the borrow of one map would exclude the memory, which the update needs too.
        self.map_for_update(map, key)?;
        let Self { maps, memory, .. } = self;
        let map = maps.get_mut(map.0 as usize).ok_or(Errno::Inval)?;
        let MapContent::Values(region) = map.content else { return Err(Errno::Inval) };
        let (size, stride) = (map.spec.value_size as usize, map.stride());
        if value.len() != if map.spec.per_cpu() { stride * map.cpus as usize } else { size } {
            return Err(Errno::Inval);
        }
        let slot = map.slot_for(key, flags, memory)?;
        for (cpu, value) in (0..map.cpus).zip(value.chunks(stride.max(1))) {
            let bytes = memory.bytes_mut(region, map.element(slot, cpu));
            bytes.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        }
        Ok(())
    }

    /// Reads an entry, in the form that [`Vm::map_update`] takes.
    pub fn map_lookup(&self, map: MapId, key: &[u8]) -> Result<Vec<u8>, Errno> {
        let map = self.maps.get(map.0 as usize).ok_or(Errno::Inval)?;
        let MapContent::Values(region) = map.content else { return Err(Errno::Inval) };
        if key.len() != map.spec.key_size as usize {
            return Err(Errno::Inval);
        }
        let slot = map.index.find(key).ok_or(Errno::NoEnt)?;
        let mut value = Vec::new();
        for cpu in 0..map.cpus {
            value.extend_from_slice(self.memory.bytes(region, map.element(slot, cpu)));
            if map.spec.per_cpu() {
                // Padding up to eight bytes, as `bpf_percpu_array_copy` leaves it:
                // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/arraymap.c
                value.resize((cpu as usize + 1) * map.stride(), 0);
            }
        }
        Ok(value)
    }

    /// Removes an entry.
    pub fn map_delete(&mut self, map: MapId, key: &[u8]) -> Result<(), Errno> {
        self.map_for_update(map, key)?.remove(key)
    }

    /// All keys, sorted bytewise; prefixes have no host bits.
    pub fn map_keys(&self, map: MapId) -> Vec<Vec<u8>> {
        self.maps.get(map.0 as usize).map_or_else(Vec::new, |map| map.index.keys())
    }

    /// Freezes a map: from now on only programs may write to it.
    pub fn map_freeze(&mut self, map: MapId) {
        if let Some(map) = self.maps.get_mut(map.0 as usize) {
            map.frozen = true;
        }
    }

    /// Writes an entry of a program array, or empties it with `None`.
    pub fn set_program(&mut self, map: MapId, index: u32, program: Option<ProgramId>) -> Result<(), Errno> {
        let map = self.map_for_update(map, &index.to_le_bytes())?;
        let MapContent::Programs(programs) = &mut map.content else { return Err(Errno::Inval) };
        // Without a check that the programs are of one kind: the kernel makes it (`bpf_prog_map_compatible`), and all
        // programs of a machine come from one artifact.
        programs.get_mut(index as usize).map(|entry| *entry = program).ok_or(Errno::TooBig)
    }

    /// Takes the records that are ready at the head of a ring buffer.
    pub fn drain(&mut self, ring: MapId) -> Vec<Vec<u8>> {
        match self.maps.get_mut(ring.0 as usize).map(|map| &mut map.content) {
            Some(MapContent::Ring(ring)) => ring.drain(),
            _ => Vec::new(),
        }
    }
}

impl VmMap {
    /// The distance from one CPU's value to the next, in bytes.
    fn stride(&self) -> usize {
        let size = self.spec.value_size as usize;
        // Only between user space and the map. Programs see the plain size.
        if self.spec.per_cpu() { size.next_multiple_of(8) } else { size }
    }

    pub(in super::super) fn is_read_only(&self) -> bool {
        self.spec.flags.contains(super::MapFlags::RDONLY_PROG)
    }
}
