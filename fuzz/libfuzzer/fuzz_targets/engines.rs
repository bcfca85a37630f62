//! For any seed, all engines agree on its cluster, with any structures.
#![no_main]

use weir_model::Assumptions;
use weir_model::resolve::resolve;
use weir_fuzz::generators::{Random, cluster};
use weir_fuzz::oracles::engines::{Effort, agree, scopes};

libfuzzer_sys::fuzz_target!(|seed: u64| {
    let mut random = Random::new(seed);
    let cluster = resolve(&cluster::objects(&mut random), Assumptions::default()).0;
    for scope in scopes(&cluster) {
        if let Err(difference) = agree(&cluster, scope, Effort { questions: 200, packets: 20 }, &mut random) {
            panic!("seed {seed}: {difference}");
        }
    }
});
