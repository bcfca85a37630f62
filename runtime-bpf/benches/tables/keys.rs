//! Sets of addresses, keys that are in them and keys that are not, and the cost of looking them up in the kernel.
//!
//! The program picks the key from an array of 65,536 keys with a random generator whose state it keeps from run to run.
//! "Hot" uses an array of one key. Costs are nanoseconds above the same program without the look-up.

use std::net::IpAddr;

use weir_artifact::layout::address_bytes;
use weir_classes::{AddressMap, ClassRange, PeerId, SingleAddress};
use weir_codegen::emit::REMOTE;
use weir_codegen::ir::DecisionTables;
use weir_codegen::structures::StructureOptions;
use weir_ebpf::asm::{Asm, MapRef};
use weir_ebpf::insn::{AluOp, Reg, Size};
use weir_fuzz::generators::Random;
use weir_objects::address::{Family, Prefix, to_address};
use weir_runtime::sys::{BpfKernel, KernelMap};

use crate::kernel::{self, OWN, lay_out, load, packet, value};

const KEYS: usize = 1 << 16;
const REPEAT: u32 = 200_000;
const RUNS: usize = 7;

/// Addresses that are not in the set.
pub(crate) fn misses(random: &mut Random, family: Family, map: &AddressMap) -> Vec<IpAddr> {
    (0..KEYS).map(|_| somewhere(random, family)).filter(|it| map.find(*it).0 == 0).collect()
}

/// The cost of a look-up: hot, hits and misses.
pub(crate) fn costs(
    kernel: &BpfKernel,
    tables: &DecisionTables,
    options: &StructureOptions,
    family: Family,
    [hits, misses]: [&[IpAddr]; 2],
) -> [f64; 3] {
    [&hits[..1], hits, misses].map(|keys| {
        let (state, keys) = (value(kernel, &[1; 8]), array_of(kernel, keys));
        let look_up = load(kernel, tables, family, &[&state, &keys], |asm| next_key(asm, family));
        let empty = load(kernel, &lay_out(AddressMap::default(), options), family, &[&state, &keys], |asm| {
            next_key(asm, family)
        });
        assert!(look_up.walked > empty.walked, "there is a look-up in it");
        (measure(&look_up) - measure(&empty)).max(0.5)
    })
}

/// The least of several means: the cost when nothing else disturbs the machine.
fn measure(look_up: &kernel::LookUp) -> f64 {
    let run = |_| look_up.program.test_run(&packet(), &[], REPEAT).unwrap().nanoseconds;
    (0..RUNS).map(run).min().map_or(0.0, f64::from)
}

/// 65,536 keys of 16 bytes, taken from `keys` in turn.
fn array_of(kernel: &BpfKernel, keys: &[IpAddr]) -> KernelMap {
    let mut bytes = Vec::with_capacity(16 * KEYS);
    for key in keys.iter().cycle().take(KEYS) {
        let end = bytes.len() + 16;
        bytes.extend(address_bytes(*key));
        bytes.resize(end, 0);
    }
    value(kernel, &bytes)
}

fn next_key(asm: &mut Asm, family: Family) {
    asm.load_map_value(Reg::R1, MapRef(OWN), 0);
    asm.load(Size::Dw, Reg::R2, Reg::R1, 0);
    asm.constant(Reg::R3, 0x5851_f42d_4c95_7f2d);
    asm.alu(AluOp::Mul, Reg::R2, Reg::R3);
    asm.alu(AluOp::Add, Reg::R2, 12_345);
    asm.store(Size::Dw, Reg::R1, 0, Reg::R2);
    asm.alu(AluOp::Rsh, Reg::R2, 48);
    asm.alu(AluOp::Lsh, Reg::R2, 4);
    asm.load_map_value(Reg::R1, MapRef(OWN + 1), 0);
    asm.alu(AluOp::Add, Reg::R1, Reg::R2);
    for offset in (0..i16::from(family.bits() / 8)).step_by(4) {
        asm.load(Size::W, Reg::R2, Reg::R1, offset);
        asm.store(Size::W, Reg::R10, REMOTE + offset, Reg::R2);
    }
}

fn somewhere(random: &mut Random, family: Family) -> IpAddr {
    let number = u128::from(random.number()) << 64 | u128::from(random.number());
    match family {
        Family::V4 => to_address(family, number & 0xffff_ffff),
        Family::V6 => to_address(family, 0x2000 << 112 | number >> 16),
    }
}

pub(crate) fn singles(random: &mut Random, family: Family, count: usize) -> (AddressMap, Vec<IpAddr>) {
    let mut exact: Vec<(IpAddr, PeerId)> =
        (0..count).map(|_| (somewhere(random, family), PeerId(1 + random.below(250) as u32))).collect();
    exact.sort();
    exact.dedup_by_key(|it| it.0);
    let hits = (0..KEYS).map(|_| exact[random.below(exact.len())].0).collect();
    let single = |(address, peer): &(IpAddr, PeerId)| SingleAddress { address: *address, peer: *peer, moves: false };
    (AddressMap::new(&exact.iter().map(single).collect::<Vec<_>>(), Vec::new()), hits)
}

/// Disjoint prefixes, most of them /24 (/48), some shorter, as in routing tables.
pub(crate) fn prefixes(random: &mut Random, family: Family, count: usize) -> (AddressMap, Vec<IpAddr>) {
    let usual = if family == Family::V4 { 24 } else { 48 };
    let mut list: Vec<Prefix> = (0..count)
        .map(|_| {
            let shorter = if random.below(2) == 0 { random.below(6) } else { 0 } as u8;
            Prefix::new(somewhere(random, family), usual - shorter)
        })
        .collect();
    list.sort();
    list.dedup();
    let mut ranges: Vec<ClassRange> = Vec::new();
    for prefix in list {
        if ranges.last().is_none_or(|last| last.last < prefix.address()) {
            let peer = PeerId(1 + random.below(250) as u32);
            ranges.push(ClassRange { first: prefix.address(), last: prefix.last(), peer });
        }
    }
    let hits = (0..KEYS).map(|_| ranges[random.below(ranges.len())].last).collect();
    (AddressMap::new(&[], ranges), hits)
}
