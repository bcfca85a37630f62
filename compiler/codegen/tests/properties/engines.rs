//! The reference, the IR before and after the passes, and the bytecode in the VM agree, with the same reasons.

use weir_fuzz::oracles::engines::{Effort, agree, scopes};

use crate::{for_each_cluster, resolved};

#[test]
fn all_engines_agree_on_every_cluster() {
    let (mut asked, mut not_empty) = (0, 0);
    for_each_cluster(250, |objects, assume, mut random| {
        let (cluster, effort) = (resolved(&objects, assume), Effort { questions: 400, packets: 60 });
        let of_scope = |scope| agree(&cluster, scope, effort, &mut random);
        let count: Result<usize, String> = scopes(&cluster).into_iter().map(of_scope).sum();
        let count = count.unwrap_or_else(|difference| panic!("{difference}"));
        (asked, not_empty) = (asked + count, not_empty + usize::from(count > 0));
    });
    assert!(asked >= 150_000 && not_empty >= 220, "only {asked} questions on {not_empty} clusters");
}
