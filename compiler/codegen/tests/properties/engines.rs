//! The reference, the IR before and after the passes, and the bytecode in the VM agree, with the same reasons.

use weir_objects::k8s::Object;
use weir_model::{Assumptions, Cluster};
use weir_model::resolve::resolve;
use weir_fuzz::generators::Random;
use weir_fuzz::oracles::engines::{Effort, agree, scopes};
use weir_fuzz::oracles::shrink::{report, smallest};

use crate::{generated, resolved};

/// Compares the engines in every scope; returns the number of questions.
fn check(cluster: &Cluster, effort: Effort, random: &mut Random) -> Result<usize, String> {
    scopes(cluster).into_iter().map(|scope| agree(cluster, scope, effort, random)).sum()
}

fn fails(objects: &[Object], assume: Assumptions, seed: u64) -> Option<String> {
    let cluster = resolve(objects, assume).0;
    check(&cluster, Effort { questions: 2_000, packets: 500 }, &mut Random::new(seed)).err()
}

#[test]
fn all_engines_agree_on_every_cluster() {
    let (mut asked, mut not_empty) = (0, 0);
    for seed in 0..250 {
        let (objects, assume, mut random) = generated(seed);
        let cluster = resolved(&objects, assume);
        match check(&cluster, Effort { questions: 400, packets: 60 }, &mut random) {
            Ok(count) => (asked, not_empty) = (asked + count, not_empty + usize::from(count > 0)),
            Err(text) => {
                let (objects, smaller) = smallest(objects, |objects| fails(objects, assume, seed));
                panic!("seed {seed}: {text}\n\nsmaller, {assume:?}: {}", report(&smaller, &objects));
            }
        }
    }
    assert!(asked >= 150_000 && not_empty >= 220, "only {asked} questions on {not_empty} clusters");
}
