//! The rows of a comparison are exactly the differences between the verdicts of both sides on all flows, with the same
//! reasons.

use weir_objects::k8s::Object;
use weir_model::Assumptions;
use weir_model::resolve::resolve;
use weir_fuzz::generators::{Random, change, cluster};
use weir_fuzz::oracles::difference::{Asked, agree};
use weir_fuzz::oracles::shrink::{report, smallest};

use crate::generated;

fn check(base: &[Object], head: &[Object], assume: Assumptions, seed: u64) -> Result<Asked, String> {
    let (base, head) = (resolve(base, assume).0, resolve(head, assume).0);
    agree(&base, &head, &mut Random::new(seed))
}

/// Leaves out objects of one side, then of the other, as long as the check still fails.
fn smaller(base: Vec<Object>, head: Vec<Object>, assume: Assumptions, seed: u64) -> String {
    let (base, _) = smallest(base, |base| check(base, &head, assume, seed).err());
    let (head, text) = smallest(head, |head| check(&base, head, assume, seed).err());
    format!("seed {seed}, {assume:?}\nbase: {}\nhead: {}", report("", &base), report(&text, &head))
}

#[track_caller]
fn check_pairs(seeds: std::ops::Range<u64>, head: impl Fn(&[Object], &mut Random) -> Vec<Object>) -> Asked {
    let mut all = Asked::default();
    for seed in seeds {
        let (base, assume, mut random) = generated(seed);
        let head = head(&base, &mut random);
        match check(&base, &head, assume, seed) {
            Ok(asked) => {
                all.flows += asked.flows;
                all.differing += asked.differing;
                all.rows += asked.rows;
            }
            Err(text) => panic!("{}\n{text}", smaller(base, head, assume, seed)),
        }
    }
    all
}

#[test]
fn a_changed_cluster_differs_exactly_where_the_rows_say() {
    let asked = check_pairs(0..200, change::changed);
    assert!(asked.flows >= 500_000 && asked.differing >= 20_000 && asked.rows >= 200, "too little: {asked:?}");
}

#[test]
fn another_cluster_differs_exactly_where_the_rows_say() {
    let asked = check_pairs(1_000..1_080, |_, random| cluster::objects(random));
    assert!(asked.flows >= 500_000 && asked.differing >= 50_000 && asked.rows >= 500, "too little: {asked:?}");
}

#[test]
fn a_cluster_does_not_differ_from_itself() {
    let asked = check_pairs(2_000..2_040, |base, _| base.to_vec());
    assert_eq!((asked.differing, asked.rows), (0, 0));
}
