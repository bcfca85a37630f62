//! Our readers against well-known ones, on random texts.
//!
//! `WEIR_READER_TEXTS` is the number of texts for each comparison, `WEIR_READER_SEED` the first of their seeds.

use weir_fuzz::generators::{Random, documents};
use weir_fuzz::oracles::readers::judge::{self, Answer, Judge, Kind};
use weir_fuzz::oracles::readers::{Tally, libyaml, serde};
use weir_runtime::skip;

/// Texts that are asked about at once.
const BATCH: u64 = 1_000;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// The seeds to test.
fn seeds() -> std::ops::Range<u64> {
    let first = variable("WEIR_READER_SEED", 1);
    first..first + variable("WEIR_READER_TEXTS", 20_000)
}

/// Prints the counts and checks that each kind of answer occurred.
fn check(what: &str, tally: Tally) {
    let seeds = seeds();
    println!("{what}: {tally:?}, seeds {seeds:?}");
    let enough = tally.texts() / 50;
    assert!(tally.accepted > enough && tally.refused > enough, "too few texts of one kind: {what}: {tally:?}");
    assert!(tally.known < tally.texts() / 8, "too many known differences: {what}: {tally:?}");
}

/// Compares our reading of a text with another reader's, for every seed.
fn every_seed(what: &str, make: fn(&mut Random) -> String, agree: fn(&str, &mut Tally) -> Result<(), String>) {
    let mut tally = Tally::default();
    for seed in seeds() {
        agree(&make(&mut Random::new(seed)), &mut tally).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    check(what, tally);
}

#[test]
fn yaml_is_read_as_libyaml_reads_it() {
    every_seed("libyaml", documents::yaml, libyaml::agree);
}

#[test]
fn json_is_read_as_serde_json_reads_it() {
    every_seed("serde_json", documents::json, serde::agree);
}

type Agree = fn(&str, &Answer, &mut Tally) -> Result<(), String>;

/// Compares texts with the answers of Kubernetes' readers.
fn compare(judge: &mut Judge, kind: Kind, text: impl Fn(&mut Random) -> String, agrees: Agree) {
    let mut tally = Tally::default();
    let seeds = seeds();
    for first in seeds.clone().step_by(BATCH as usize) {
        let batch = first..(first + BATCH).min(seeds.end);
        let texts: Vec<String> = batch.clone().map(|seed| text(&mut Random::new(seed))).collect();
        let answers = judge.ask(kind, &texts).expect("the judge answers");
        for ((seed, text), answer) in batch.zip(&texts).zip(&answers) {
            agrees(text, answer, &mut tally).unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
        }
    }
    check(&format!("{kind:?}"), tally);
}

#[test]
fn texts_are_read_as_kubernetes_reads_them() {
    let mut judge = match xtask::apiserver::judge() {
        Ok(program) => Judge::start(&program).expect("the judge starts"),
        Err(error) => skip!("{error:#}"),
    };
    compare(&mut judge, Kind::Yaml, documents::yaml, judge::yaml_agrees);
    compare(&mut judge, Kind::Json, documents::json, judge::json_agrees);
    compare(&mut judge, Kind::Cidr, documents::cidr, judge::cidr_agrees);
    compare(&mut judge, Kind::Address, documents::cidr, judge::address_agrees);
    compare(&mut judge, Kind::Prefix, documents::cidr, judge::prefix_agrees);
    compare(&mut judge, Kind::Selector, documents::selector, judge::selector_agrees);
}
