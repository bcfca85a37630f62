//! The rows of a comparison are exactly the differences between the verdicts of both sides on all flows, with the same
//! reasons.

use weir_fuzz::generators::change::{changed, changes};
use weir_fuzz::generators::{Random, cluster, for_each};
use weir_fuzz::oracles::difference::{Asked, agree};
use weir_model::resolve::resolve;
use weir_objects::k8s::Object;

#[track_caller]
fn check_pairs(cases: u32, head: fn(&[Object], &mut Random) -> Vec<Object>) -> Asked {
    let mut all = Asked::default();
    for_each(cases, &changes(head), |case| {
        let [base, head] = [&case.base.objects, &case.head].map(|objects| resolve(objects, case.base.assume).0);
        let asked = agree(&base, &head, &mut case.base.random()).unwrap_or_else(|difference| panic!("{difference}"));
        all.flows += asked.flows;
        all.differing += asked.differing;
        all.rows += asked.rows;
    });
    all
}

#[test]
fn a_changed_cluster_differs_exactly_where_the_rows_say() {
    let asked = check_pairs(200, changed);
    assert!(asked.flows >= 500_000 && asked.differing >= 20_000 && asked.rows >= 200, "too little: {asked:?}");
}

#[test]
fn another_cluster_differs_exactly_where_the_rows_say() {
    let asked = check_pairs(80, |_, random| cluster::objects(random));
    assert!(asked.flows >= 500_000 && asked.differing >= 50_000 && asked.rows >= 500, "too little: {asked:?}");
}

#[test]
fn a_cluster_does_not_differ_from_itself() {
    let asked = check_pairs(40, |base, _| base.to_vec());
    assert_eq!((asked.differing, asked.rows), (0, 0));
}
