//! Addresses and ports that occur in the artifact: a damaged table or program may differ from the cluster there,
//! although the cluster has no boundary there.
//!
//! Any address may be asked about, so extra ones cost only time. The addresses are: every key of a kernel map; every
//! group of bytes in a table that could be an address, and every word that look-ups compare with ([`beside`]); every
//! constant in the programs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::endpoints::{address, entries};
use super::expected::around;
use super::slots::{PROTOCOLS, SlotPort};
use weir_artifact::Artifact;
use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapImage;
use weir_ebpf::insn::{Insn, Operand};
use weir_objects::address::{Family, Prefix, to_address, to_number};

/// The smallest size of a table with an entry for each 16-bit value.
const FIRST_TABLE: usize = 4 << 16;

/// Whether a map is one value that programs read directly.
pub(super) fn is_table(map: &MapImage) -> bool {
    map.spec.max_entries == 1 && map.entries.len() == 1
}

/// Addresses of a family that occur in the artifact.
pub(super) fn addresses(artifact: &Artifact, family: Family) -> BTreeSet<IpAddr> {
    let [exact, listed, prefixes] = match family {
        Family::V4 => [MapName::Exact4, MapName::Listed4, MapName::Prefixes4],
        Family::V6 => [MapName::Exact6, MapName::Listed6, MapName::Prefixes6],
    };
    let bytes = usize::from(family.bits() / 8);
    let mut found = BTreeSet::new();
    // A layered structure has two tables, and an address in the wrong one is as bad as a wrong class.
    for exact in [exact, listed] {
        match artifact.map(exact) {
            Some(map) if is_table(map) => {
                let value = entries(artifact, exact).next().map_or(&[][..], |(_, value)| value);
                // Fields of compiled tables are aligned to four bytes, so no key begins anywhere else. Most groups are
                // no addresses. That costs a probe each; a list of offsets would need the layout, and would miss a
                // table that was built wrongly.
                found.extend((0..value.len()).step_by(4).filter_map(|at| address(value.get(at..at + bytes)?)));
            }
            _ => found.extend(entries(artifact, exact).filter_map(|(key, _)| address(key))),
        }
    }
    match artifact.map(prefixes) {
        // A first table, indexed by the upper 16 bits, has an entry for each of their values.
        Some(map) if is_table(map) && map.spec.value_size as usize >= FIRST_TABLE => {
            let shift = u32::from(family.bits()) - 16;
            // One address for each entry is enough: an entry is either an answer for all of its addresses or leads to a
            // chunk, whose boundaries are found while it is read (`beside`).
            found.extend((0..1u128 << 16).map(|upper| to_address(family, upper << shift)));
        }
        // A table that is searched: its boundaries are proposed when the survey sees which words were read.
        Some(map) if is_table(map) => {}
        _ => {
            for (key, _) in entries(artifact, prefixes) {
                let Some((length, of)) = key.split_first_chunk().and_then(|(len, rest)| Some((len, address(rest)?)))
                else {
                    continue;
                };
                // A damaged length may be longer than an address. The kernel would not accept such an entry, but it
                // must not stop the verification either.
                let length = u32::from_le_bytes(*length).min(u32::from(family.bits())) as u8;
                let prefix = Prefix::new(of, length);
                found.extend(around(prefix.address(), prefix.last()));
            }
        }
    }
    found.extend(in_code(artifact, family));
    found
}

/// Addresses from the constants of comparisons: an IPv4 address is one constant, an IPv6 address four in a row.
fn in_code(artifact: &Artifact, family: Family) -> Vec<IpAddr> {
    let constants: Vec<[u8; 4]> = compared(artifact).map(|constant| constant.to_le_bytes()).collect();
    // Programs compare an IPv6 address in four steps, the first group first.
    constants.windows(usize::from(family.bits() / 32)).filter_map(|words| address(words.as_flattened())).collect()
}

fn compared(artifact: &Artifact) -> impl Iterator<Item = i32> {
    let insns = artifact.programs.iter().flat_map(|program| &program.code.insns);
    insns.filter_map(|insn| match insn {
        Insn::JumpIf { src: Operand::Imm(constant), .. } => Some(*constant),
        _ => None,
    })
}

/// Ports that programs compare with, and their neighbours.
pub(super) fn ports(artifact: &Artifact) -> BTreeSet<u16> {
    let numbers = compared(artifact).filter_map(|constant| u16::try_from(constant).ok());
    // The neighbours too: `>` instead of `>=` shows only at the constant, and a constant that is off by one only beside
    // it.
    numbers.flat_map(|it| [it.checked_sub(1), Some(it), it.checked_add(1)]).flatten().collect()
}

/// The same ports for every protocol, and packets without ports: two IP protocols by their numbers.
pub(super) fn all_ports(artifact: &Artifact) -> Vec<SlotPort> {
    let numbers = ports(artifact);
    let with = PROTOCOLS.into_iter().flat_map(|protocol| numbers.iter().map(move |port| (Some(protocol), *port)));
    // GRE, which a program might treat as a tunnel, and a number reserved for experiments (RFC 3692), which it cannot
    // know.
    with.chain([(None, 47), (None, 253)]).collect()
}

/// Addresses next to the boundary that a look-up compared with: `word` is the table's content at the place of the read.
/// The look-up may have compared any group of 32 bits, or the lower half of one, and a range's start may be stored
/// minus one.
pub(super) fn beside(asked: IpAddr, word: u32) -> Vec<IpAddr> {
    let (family, number) = to_number(asked);
    let mut found = Vec::new();
    for shift in (0..u32::from(family.bits())).step_by(32) {
        let group = (number >> shift) as u32;
        // DXR stores 16 bits: the upper half is the index into the first table.
        let half = group & 0xffff_0000 | word & 0xffff;
        for start in [word, half] {
            // `checked_shr` because the first group has nothing above it, and a shift by the whole width is an error.
            let upper = number.checked_shr(shift + 32).and_then(|it| it.checked_shl(shift + 32)).unwrap_or(0);
            let low = (1u128 << shift) - 1;
            let at = |start: u32| upper | u128::from(start) << shift;
            // Which of these three is the boundary depends on whether the table stores the start of a range or the
            // number before it. All three are asked about, so the layout need not be known.
            found.push(to_address(family, at(start) | low));
            found.extend(start.checked_add(1).map(|after| to_address(family, at(after))));
            found.push(to_address(family, at(start)));
        }
    }
    found
}
