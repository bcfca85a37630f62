//! One look-up as a kernel program, with the maps that its structure needs.

use weir_classes::AddressMap;
use weir_codegen::emit::shapes::TableShapes;
use weir_codegen::emit::{Plan, emit_look_up};
use weir_codegen::ir::{DecisionProgram, DecisionTables};
use weir_codegen::lower;
use weir_codegen::map_images::address_maps;
use weir_codegen::structures::rows::DirectionRows;
use weir_codegen::structures::{StructureOptions, Structures};
use weir_ebpf::asm::Asm;
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::target::Target;
use weir_ebpf::vm::{MapFlags, MapKind};
use weir_model::Direction;
use weir_objects::address::Family;
use weir_runtime::sys::{BpfKernel, KernelMap, MapDefinition, MapType};

/// The numbers of the caller's own maps begin here.
pub(crate) const OWN: u32 = 1_000;

/// A loaded look-up; the maps live as long as it does.
pub(crate) struct LookUp {
    pub(crate) program: weir_runtime::sys::KernelProgram,
    /// Instructions that the verifier walked.
    pub(crate) walked: u64,
    _maps: Vec<(u32, KernelMap)>,
}

/// The address map, laid out.
pub(crate) fn lay_out(addresses: AddressMap, options: &StructureOptions) -> DecisionTables {
    let rows = DirectionRows { directions: [&[], &[]], sets: &[], words: 1, room: options.room };
    let structures = Structures::build(&addresses, &[], rows, options);
    DecisionTables { addresses: addresses.into(), structures, ..DecisionTables::default() }
}

/// Loads the look-up; `own` are the caller's maps, by number from [`OWN`] on.
pub(crate) fn load(
    kernel: &BpfKernel,
    tables: &DecisionTables,
    family: Family,
    own: &[&KernelMap],
    address: impl FnOnce(&mut Asm),
) -> LookUp {
    let decisions: [DecisionProgram; 2] = Direction::ALL.map(|direction| lower::lower(direction, tables));
    let shapes = TableShapes::of(tables);
    let plan = Plan { target: Target::BASE, decisions: decisions.each_ref(), shapes, families: vec![family] };
    let program = emit_look_up(&plan, family, address).unwrap();
    let maps: Vec<(u32, KernelMap)> =
        address_maps(tables, family).iter().map(|image| (image.name as u32, make(kernel, image))).collect();
    let of_structure = |number: u32| maps.iter().find(|(name, _)| *name == number).map(|(_, map)| map.descriptor());
    let insns = program.link(|map| match map.0.checked_sub(OWN) {
        Some(own_number) => own[own_number as usize].descriptor(),
        None => of_structure(map.0).unwrap(),
    });
    let bytes = encode(&insns, ByteOrder::Little);
    let (program, walked) = match kernel.load_counted(&bytes) {
        Ok(loaded) => loaded,
        Err(_) => {
            panic!("{}", kernel.load(&bytes).map(|_| "loads without a log").map_err(|error| error.log).unwrap_err())
        }
    };
    LookUp { program, walked, _maps: maps }
}

pub(crate) fn make(kernel: &BpfKernel, image: &weir_artifact::map_image::MapImage) -> KernelMap {
    let map_type = match image.spec.kind {
        MapKind::Array => MapType::Array,
        MapKind::Hash => MapType::Hash,
        MapKind::LpmTrie => MapType::LpmTrie,
        kind => panic!("an address structure in a map of kind {kind:?}"),
    };
    let map = array_like(
        kernel,
        map_type,
        image.spec.key_size,
        image.spec.value_size,
        image.spec.max_entries,
        image.spec.flags.0,
    );
    if map_type == MapType::Array {
        image.entries.iter().for_each(|(key, value)| map.update(key, value, 0).unwrap());
    } else {
        for entries in image.entries.to_list().chunks(1 << 16) {
            let keys: Vec<u8> = entries.iter().flat_map(|it| it.0.iter().copied()).collect();
            let values: Vec<u8> = entries.iter().flat_map(|it| it.1.iter().copied()).collect();
            map.update_batch(&keys, &values, 0).unwrap();
        }
    }
    if image.spec.flags.contains(MapFlags::RDONLY_PROG) {
        map.freeze().unwrap();
    }
    map
}

fn array_like(
    kernel: &BpfKernel,
    map_type: MapType,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> KernelMap {
    kernel.create_map(&MapDefinition { map_type, key_size, value_size, max_entries, flags }, None).unwrap()
}

/// An array of one value.
pub(crate) fn value(kernel: &BpfKernel, bytes: &[u8]) -> KernelMap {
    let map = array_like(kernel, MapType::Array, 4, bytes.len() as u32, 1, 0);
    map.update(&[0; 4], bytes, 0).unwrap();
    map
}

/// A packet that the kernel accepts for a test run.
pub(crate) fn packet() -> Vec<u8> {
    let mut packet = vec![0; 64];
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    packet[14] = 0x45;
    packet
}
