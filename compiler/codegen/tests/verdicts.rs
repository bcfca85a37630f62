//! The corpus of verdicts: ordinary Kubernetes YAML, with the verdicts that the API text requires in comments. Written
//! by hand, never regenerated; every engine is tested with it.
//!
//! ```text
//! # flow: shop/web -> shop/db tcp/5432 = allow because shop/db spec.ingress[0]
//! # flow: 10.0.0.7 -> shop/db@fd00::7 icmp = deny ingress because shop/db spec.ingress
//! ```
//!
//! An end is `namespace/pod` (its first address), `namespace/pod@address`, or an address. The verdict is `allow`, `deny
//! egress`, `deny ingress` or `deny both`. `because` names every rule that allows the flow, or every isolating policy
//! if no rule does; `because no policy` means that no policy isolates; without `because`, only the verdict is compared.
//! Every case is added to the objects of `corpus/verdicts/cluster.yaml`.

#[path = "verdicts/engines.rs"]
mod engines;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use engines::{Answer, Asked};
use weir_model::Direction;
use weir_model::eval::Oracle;
use weir_testing::case::{Case, Row};

const AREAS: [&str; 8] = ["lists", "peers", "ports", "reading", "selection", "services", "tiers", "traffic"];

/// The results of one engine over all cases.
#[derive(Default)]
struct Tally {
    judged: usize,
    skipped: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn count(&mut self, case: &Case, row: &Row, direction: Direction, asked: &Asked) {
        let expected = row.expected(direction);
        match asked {
            Asked::Skipped(reason) => *self.skipped.entry(reason).or_default() += 1,
            Asked::NotThere => {}
            Asked::Answered(verdict) => {
                self.judged += 1;
                if *verdict != expected {
                    let side = direction.name();
                    self.wrong.push(format!("{}: {}\n    {side}: {verdict:?}", case.path.display(), row.text));
                }
            }
        }
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/verdicts")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    files.sort();
    files
}

fn cases() -> Vec<Case> {
    let base = fs::read_to_string(directory().join("cluster.yaml")).unwrap();
    AREAS.iter().flat_map(|area| files(&directory().join(area))).map(|path| Case::read(path, &base)).collect()
}

/// Tests one engine with every row. The sides that it skips are printed, and must be the expected ones.
#[track_caller]
fn check(name: &str, at_least: usize, skips: &[(&str, usize)], engine: impl Fn(&Case) -> Vec<Answer>) {
    let mut tally = Tally::default();
    for case in cases() {
        for (row, answer) in case.rows.iter().zip(engine(&case)) {
            for direction in Direction::ALL {
                tally.count(&case, row, direction, answer.side(direction));
            }
        }
    }
    println!("{name}: {} sides judged, skipped: {:?}", tally.judged, tally.skipped);
    assert!(tally.wrong.is_empty(), "{name}:\n  {}", tally.wrong.join("\n  "));
    let skipped: Vec<(&str, usize)> = tally.skipped.into_iter().collect();
    assert_eq!(skipped, skips, "{name} skips more or fewer sides than it did");
    assert!(tally.judged >= at_least, "{name} judged only {} sides", tally.judged);
}

#[test]
fn the_reference_says_what_the_text_says() {
    check("reference", 800, &[], engines::reference);
}

#[test]
fn the_reference_allows_a_flow_only_if_both_ends_allow_it() {
    for case in cases() {
        let mut oracle = Oracle::new(&case.cluster);
        for row in &case.rows {
            assert_eq!(oracle.judge(&row.flow).verdict(), row.verdict(), "{}: {}", case.path.display(), row.text);
        }
    }
}

#[test]
fn the_reference_gives_the_reasons_that_the_text_gives() {
    let mut compared = 0;
    for case in cases() {
        for (row, found) in case.rows.iter().zip(engines::reasons(&case)) {
            let Some(expected) = &row.because else { continue };
            assert_eq!(&found, expected, "{}: {}", case.path.display(), row.text);
            compared += 1;
        }
    }
    assert!(compared >= 200, "only {compared} reasons compared");
}

/// Many pods may be behind a service or hostPort. Each of them is tested as a pod of its own, not through the address.
const BEHIND: (&str, usize) = ("behind a service", 126);

#[test]
fn the_general_program_says_it() {
    check("ir, general", 650, &[BEHIND], engines::general);
}

#[test]
fn the_optimised_program_says_it_for_the_whole_cluster_and_for_each_node() {
    check("ir, optimised", 650, &[BEHIND], engines::optimised);
}

#[test]
fn the_bytecode_says_it_for_the_whole_cluster_and_for_each_node() {
    check("vm", 650, &[BEHIND], engines::bytecode);
}

#[test]
fn the_rules_say_it() {
    check("iptables", 650, &[("not its address", 2), ("service address", 258)], engines::iptables);
}

#[test]
fn every_area_has_cases_and_every_case_has_rows() {
    for area in AREAS {
        assert!(files(&directory().join(area)).len() >= 6, "{area} has too few cases");
    }
    let entries = fs::read_dir(directory()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(entries.count(), AREAS.len(), "a directory is not asked");
    let rows: usize = cases().iter().map(|case| case.rows.len()).sum();
    assert!(rows >= 400, "only {rows} rows");
}
