//! Random address maps with many edge cases, and the addresses to look up in them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_classes::{AddressMap, ClassRange, PeerId, SingleAddress};
use weir_fuzz::generators::Random;
use weir_objects::address::{Family, to_address, to_number};

/// Single addresses and ranges of one family, and every address at or next to one of their boundaries.
pub fn generate(random: &mut Random, family: Family, most: usize) -> (AddressMap, Vec<IpAddr>) {
    let bits = u32::from(family.bits());
    let top = if bits == 128 { u128::MAX } else { u128::from(u32::MAX) };
    let number = |random: &mut Random| -> u128 {
        let wide = u128::from(random.number()) << 64 | u128::from(random.number());
        let shift = random.below(bits as usize) as u32;
        match random.below(5) {
            0 => wide & top,
            1 => (wide & top) >> shift,
            2 => (1 << shift) - u128::from(random.number() & 1),
            3 => top - ((wide & top) >> shift),
            // Neighbours: all below one prefix.
            _ => (0xac10_0000_0000_0000_0000_0000_0000_0000 >> (128 - bits)) | (wide & 0x3ff),
        }
    };
    // Class numbers that need one, two and four bytes.
    let large = [200, 700, 70_000][random.below(3)];
    let class = |random: &mut Random| match random.below(4) {
        0 => 0,
        1 => large + random.below(3) as u32,
        _ => 1 + random.below(4) as u32,
    };
    let count = random.below(most + 1);
    let mut cuts: BTreeSet<u128> = (0..count).map(|_| number(random)).collect();
    if random.below(2) == 0 {
        cuts.insert(0);
    }
    let cuts: Vec<u128> = cuts.into_iter().collect();
    let mut ranges: Vec<ClassRange> = Vec::new();
    for (index, first) in cuts.iter().enumerate() {
        let last = cuts.get(index + 1).map_or(top, |next| next - 1);
        if random.below(5) > 0 {
            let [first, last] = [*first, last].map(|it| to_address(family, it));
            ranges.push(ClassRange { first, last, peer: PeerId(class(random)) });
        }
    }
    let singles: BTreeMap<u128, u32> = (0..random.below(most + 1)).map(|_| (number(random), class(random))).collect();
    let single = |(at, peer): (&u128, &u32)| SingleAddress {
        address: to_address(family, *at),
        peer: PeerId(*peer),
        moves: random.below(8) == 0,
    };
    let singles: Vec<SingleAddress> = singles.iter().map(single).collect();
    let map = AddressMap::new(&singles, ranges);
    let edges = map.exact().map(|it| it.0).chain(map.ranges.iter().flat_map(|it| [it.first, it.last]));
    let mut asked: BTreeSet<u128> = [0, 1, top - 1, top].into();
    for edge in edges.map(|it| to_number(it).1) {
        asked.extend([edge.saturating_sub(1), edge, edge.saturating_add(1).min(top)]);
    }
    asked.extend((0..20).map(|_| number(random)));
    (map, asked.into_iter().map(|at| to_address(family, at)).collect())
}
