//! Address structures: the look-up finds the class that the address map has, both in the tables' bytes and in the VM.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_artifact::layout::address_bytes;
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::AddressMap;
use weir_codegen::emit::shapes::TableShapes;
use weir_codegen::emit::{Plan, REMOTE, emit_look_up};
use weir_codegen::ir::{DecisionProgram, DecisionTables};
use weir_codegen::lower;
use weir_codegen::map_images::address_maps as images;
use weir_codegen::structures::rows::DirectionRows;
use weir_codegen::structures::{ExactTable, Prefixes, Room, StructureOptions, Structures, key};
use weir_ebpf::asm::{Asm, MapRef};
use weir_ebpf::insn::{Reg, Size};
use weir_ebpf::limits;
use weir_ebpf::target::Target;
use weir_ebpf::vm::{MapFlags, MapKind, MapSpec, Skb, Vm, VmInputs};
use weir_fuzz::generators::Random;
use weir_model::Direction;
use weir_objects::address::{Family, to_number};
use weir_testing::address_maps::generate;

/// The map that holds the address to look up.
const INPUT: MapRef = MapRef(1_000);

fn tables(addresses: AddressMap, options: &StructureOptions) -> DecisionTables {
    let rows = DirectionRows { directions: [&[], &[]], sets: &[], words: 1, room: options.room };
    let structures = Structures::build(&addresses, &[], rows, options);
    DecisionTables { addresses: addresses.into(), structures, ..DecisionTables::default() }
}

/// Copies the address from the input to the place where the look-up expects it.
fn from_input(asm: &mut Asm) {
    asm.load_map_value(Reg::R1, INPUT, 0);
    for offset in (0..16).step_by(4) {
        asm.load(Size::W, Reg::R2, Reg::R1, offset);
        asm.store(Size::W, Reg::R10, REMOTE + offset, Reg::R2);
    }
}

/// The class in the tables' bytes; `None` if the structure is not a table.
fn in_bytes(structures: &Structures, address: IpAddr) -> Option<u32> {
    let family = Family::of(address);
    let single = match structures.exact(family) {
        ExactTable::Perfect(table) => table.find(key(address)),
        ExactTable::Empty => None,
        ExactTable::Compares | ExactTable::Hash | ExactTable::Layered(_) => return None,
    };
    let number = to_number(address).1;
    match structures.prefixes(family) {
        _ if single.is_some() => single,
        Prefixes::Empty => Some(0),
        Prefixes::Search(table) => table.find(number),
        Prefixes::Dxr(table) => table.find(number as u32),
        Prefixes::Lpm(_) | Prefixes::HashPerLength(_) => None,
    }
}

/// Compares look-ups, and returns their number.
#[track_caller]
fn check(addresses: &AddressMap, asked: &[IpAddr], family: Family, forced: &[(LookupSet, Structure)]) -> usize {
    let of = |room| {
        check_with(
            addresses,
            asked,
            family,
            &StructureOptions { forced: forced.to_vec(), room, ..StructureOptions::default() },
        )
    };
    of(Room::Exact) + of(Room::Rounded)
}

#[track_caller]
fn check_with(addresses: &AddressMap, asked: &[IpAddr], family: Family, options: &StructureOptions) -> usize {
    let tables = tables(addresses.clone(), options);
    if *tables.structures.exact(family) == ExactTable::Compares {
        return 0;
    }
    let decisions: [DecisionProgram; 2] = Direction::ALL.map(|direction| lower::lower(direction, &tables));
    let shapes = TableShapes::of(&tables);
    let plan = Plan { target: Target::BASE, decisions: decisions.each_ref(), shapes, families: vec![family] };
    let program = emit_look_up(&plan, family, from_input).unwrap();
    let mut vm = Vm::new(1);
    let input =
        MapSpec { kind: MapKind::Array, key_size: 4, value_size: 16, max_entries: 1, flags: MapFlags::default() };
    let input = vm.create_map(input).unwrap();
    let mut maps = vec![(INPUT.0, input)];
    for image in images(&tables, family) {
        let map = vm.create_map(image.spec).unwrap();
        image.entries.iter().for_each(|(key, value)| vm.map_update(map, key, value, 0).unwrap());
        maps.push((image.name as u32, map));
    }
    let insns = program.link(|used| maps.iter().find(|(name, _)| *name == used.0).unwrap().1.0 as i32);
    assert_eq!(limits::check(&insns).violations, []);
    let program = vm.load(&insns).unwrap();
    for address in asked {
        let expected = addresses.find(*address).0;
        if let Some(found) = in_bytes(&tables.structures, *address) {
            assert_eq!(found, expected, "bytes: {address}, {:?}\n{addresses:?}", tables.structures.notes);
        }
        let mut value = address_bytes(*address);
        value.resize(16, 0);
        vm.map_update(input, &[0; 4], &value, 0).unwrap();
        let run = vm.run(program, &mut Skb::new(vec![0; 64]), &mut VmInputs::default());
        let found = run.unwrap_or_else(|trap| panic!("{trap}: {address}, {:?}", tables.structures.notes)).r0;
        assert_eq!(found, u64::from(expected), "machine: {address}, {:?}\n{addresses:?}", tables.structures.notes);
    }
    asked.len()
}

#[test]
fn every_structure_finds_what_the_map_says() {
    let (mut asked, mut seen) = (0, BTreeSet::new());
    for family in [Family::V4, Family::V6] {
        let [exact, prefixes] = [LookupSet::exact(family), LookupSet::prefixes(family)];
        for structure in exact.structures() {
            for prefix_structure in prefixes.structures() {
                for seed in 0..12 {
                    let most = [2, 8, 60, 400][seed as usize % 4];
                    let (map, addresses) = generate(&mut Random::new(seed), family, most);
                    asked += check(&map, &addresses, family, &[(exact, *structure), (prefixes, *prefix_structure)]);
                    seen.insert((exact, *structure, prefix_structure));
                }
            }
        }
    }
    assert!(asked > 50_000 && seen.len() == 32, "{asked} look-ups, {} combinations", seen.len());
}

#[test]
fn everything_as_one_prefix_and_its_halves() {
    for (family, all, low, high) in [
        (Family::V4, "0.0.0.0", "127.255.255.255", "255.255.255.255"),
        (Family::V6, "::", "7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ] {
        let [all, low, high] = [all, low, high].map(|text| text.parse().unwrap());
        for last in [low, high] {
            let range = weir_classes::ClassRange { first: all, last, peer: weir_classes::PeerId(9) };
            let map = AddressMap::new(&[], vec![range]);
            for structure in LookupSet::prefixes(family).structures() {
                check(&map, &[all, low, high], family, &[(LookupSet::prefixes(family), *structure)]);
            }
        }
    }
}
