//! Address structures in the kernel: the verifier accepts every look-up, and each returns the same as the address map.

mod kernel;

use kernel::{OWN, lay_out, load, packet, value};
use weir_artifact::layout::address_bytes;
use weir_artifact::structure::{LookupSet, Structure};
use weir_codegen::emit::REMOTE;
use weir_codegen::structures::{ExactTable, StructureOptions};
use weir_ebpf::asm::{Asm, MapRef};
use weir_ebpf::insn::{Reg, Size};
use weir_fuzz::generators::Random;
use weir_objects::address::Family;
use weir_runtime::skip;
use weir_runtime::sys::BpfKernel;
use weir_testing::address_maps::generate;

fn from_input(asm: &mut Asm) {
    asm.load_map_value(Reg::R1, MapRef(OWN), 0);
    for offset in (0..16).step_by(4) {
        asm.load(Size::W, Reg::R2, Reg::R1, offset);
        asm.store(Size::W, Reg::R10, REMOTE + offset, Reg::R2);
    }
}

/// How many look-ups were compared.
#[track_caller]
fn check(kernel: &BpfKernel, seed: u64, family: Family, forced: &[(LookupSet, Structure)]) -> usize {
    let most = [3, 60, 3_000][seed as usize % 3];
    let (map, asked) = generate(&mut Random::new(seed), family, most);
    let tables = lay_out(map, &StructureOptions { forced: forced.to_vec(), ..StructureOptions::default() });
    if *tables.structures.exact(family) == ExactTable::Compares {
        return 0;
    }
    let input = value(kernel, &[0; 16]);
    let look_up = load(kernel, &tables, family, &[&input], from_input);
    assert!(look_up.walked < 4_000, "{} instructions walked, {:?}", look_up.walked, tables.structures.notes);
    for address in asked.iter().take(2_000) {
        let mut bytes = address_bytes(*address);
        bytes.resize(16, 0);
        input.update(&[0; 4], &bytes, 0).unwrap();
        let found = look_up.program.test_run(&packet(), &[], 1).unwrap().verdict;
        assert_eq!(found, tables.addresses.find(*address).0, "{address}, {:?}", tables.structures.notes);
    }
    asked.len()
}

#[test]
fn every_structure_finds_the_same_classes_in_the_kernel() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    let mut asked = 0;
    for family in [Family::V4, Family::V6] {
        let [exact, prefixes] = [LookupSet::exact(family), LookupSet::prefixes(family)];
        let most = exact.structures().len().max(prefixes.structures().len());
        for round in 0..most {
            let of = |place: LookupSet| (place, place.structures()[round % place.structures().len()]);
            for seed in 0..6 {
                asked += check(&kernel, seed, family, &[of(exact), of(prefixes)]);
            }
        }
    }
    assert!(asked > 10_000, "only {asked} look-ups");
}
