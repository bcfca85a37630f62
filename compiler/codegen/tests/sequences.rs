//! For any sequence of packets, the datapath in the VM behaves like the model: flows, time, generations, fragments,
//! errors.
//!
//! A failing sequence is minimized before it is shown. Every rule of the model must occur, otherwise the test fails.

use weir_fuzz::generators::for_each;
use weir_fuzz::generators::sequences::{Abilities, sequences};
use weir_fuzz::oracles::datapath::compare::{Tally, agree};
use weir_fuzz::oracles::datapath::machine::InVm;
use weir_fuzz::oracles::datapath::model::Outcome;
use weir_fuzz::oracles::datapath::worlds::worlds;

/// The number of sequences. `cargo xtask fuzz` runs them for any time.
const SEQUENCES: u32 = 4_000;
const ALL: Abilities = Abilities { waits: true, context: true };

#[test]
fn every_sequence_of_packets_fares_as_the_model_says() {
    let worlds = worlds().unwrap();
    let mut machine = InVm::new(&worlds).unwrap();
    let mut tally = Tally::default();
    for_each(SEQUENCES, &sequences(worlds.len(), ALL), |sequence| {
        agree(&sequence, &worlds, &mut machine, &mut tally).unwrap_or_else(|it| panic!("{}", it.text));
    });
    assert!(tally.idle().is_empty(), "rules that no packet met: {:?}", tally.idle());
    let absent = |outcome: &Outcome| ![false, true].iter().any(|it| tally.outcomes.contains_key(&(*it, *outcome)));
    let absent: Vec<_> = Outcome::ALL.into_iter().filter(absent).collect();
    assert!(absent.is_empty(), "outcomes that no packet had: {absent:?}");
}
