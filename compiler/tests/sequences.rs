//! The datapath in the VM does with every sequence of packets what the model says: flows, time, generations, fragments, errors.
//!
//! A failing sequence is made smaller before it is shown. Every rule of the model must occur, or the test fails.

use std::collections::BTreeMap;

use weir_fuzz::generators::Random;
use weir_fuzz::generators::sequences::{Abilities, sequence};
use weir_fuzz::oracles::datapath::compare::{Sequence, Tally, agree, expect, report, smallest};
use weir_fuzz::oracles::datapath::machine::InVm;
use weir_fuzz::oracles::datapath::model::Outcome;
use weir_fuzz::oracles::datapath::worlds::worlds;

/// So many sequences, or what the environment says.
const SEQUENCES: u64 = 4_000;
const ALL: Abilities = Abilities { waits: true, context: true };

#[test]
fn every_sequence_of_packets_fares_as_the_model_says() {
    let worlds = worlds().unwrap();
    let mut machine = InVm::new(&worlds).unwrap();
    let mut tally = Tally::default();
    for seed in 0..SEQUENCES {
        let sequence = sequence(&mut Random::new(seed), worlds.len(), ALL);
        if agree(&sequence, &worlds, &mut machine, &mut tally).is_err() {
            let mut ask = |it: &Sequence| agree(it, &worlds, &mut machine, &mut Tally::default()).err();
            let smaller = smallest(sequence, &mut |it| ask(it).is_some());
            let text = ask(&smaller).map(|it| it.text).unwrap_or_default();
            panic!("seed {seed}\n{}", report(&smaller, &worlds, &text));
        }
    }
    assert!(tally.idle().is_empty(), "rules that no packet met: {:?}", tally.idle());
    let absent = |outcome: &Outcome| ![false, true].iter().any(|it| tally.outcomes.contains_key(&(*it, *outcome)));
    let absent: Vec<_> = Outcome::ALL.into_iter().filter(absent).collect();
    assert!(absent.is_empty(), "outcomes that no packet had: {absent:?}");
}

/// Every kind of difference over many sequences, with the smallest sequence found for each. Not a test of its own: it is for the
/// work on the datapath or the model (`cargo test -p weir-compiler --test sequences survey -- --ignored --nocapture`).
#[test]
#[ignore = "prints differences; asserts nothing"]
fn survey() {
    let worlds = worlds().unwrap();
    let mut machine = InVm::new(&worlds).unwrap();
    let mut tally = Tally::default();
    let mut kinds: BTreeMap<String, (usize, Sequence)> = BTreeMap::new();
    let count = std::env::var("SEQUENCES").ok().and_then(|it| it.parse().ok()).unwrap_or(SEQUENCES);
    for seed in 0..count {
        let sequence = sequence(&mut Random::new(seed), worlds.len(), ALL);
        if let Err(it) = agree(&sequence, &worlds, &mut machine, &mut tally) {
            let kind = format!("{:?}, not {}: {:?}", it.outcomes.0, it.outcomes.1, it.rules);
            kinds.entry(kind).or_insert((0, sequence)).0 += 1;
        }
    }
    let mut expected = Tally::default();
    for seed in 0..count {
        expect(&sequence(&mut Random::new(seed), worlds.len(), ALL), &worlds, &mut expected);
    }
    println!("{} packets in all: {:#?}\n{:#?}", expected.packets, expected.rules, expected.outcomes);
    println!("idle: {:?}", expected.idle());
    println!("{} packets; rules that no packet met: {:?}", tally.packets, tally.idle());
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    for (kind, (count, sequence)) in kinds.into_iter().take(12) {
        let mut ask = |it: &Sequence| agree(it, &worlds, &mut machine, &mut Tally::default()).err();
        let is_it = |it: Box<weir_fuzz::oracles::datapath::compare::Difference>| {
            format!("{:?}, not {}: {:?}", it.outcomes.0, it.outcomes.1, it.rules) == kind
        };
        let smaller = smallest(sequence, &mut |it| ask(it).is_some_and(is_it));
        let text = ask(&smaller).map(|it| it.text).unwrap_or_default();
        println!("=== {count} times {kind}\n{}", report(&smaller, &worlds, &text));
    }
}
