//! For any choices, all engines agree on their cluster, with any structures.
#![no_main]

use weir_model::Assumptions;
use weir_model::resolve::resolve;
use weir_fuzz::generators::{Random, cluster, manifest};
use weir_fuzz::oracles::engines::{Effort, agree, scopes};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let objects = cluster::objects(&mut Random::from_bytes(bytes));
    let cluster = resolve(&objects, Assumptions::default()).0;
    for scope in scopes(&cluster) {
        let effort = Effort { questions: 200, packets: 20 };
        if let Err(difference) = agree(&cluster, scope, effort, &mut Random::new(1)) {
            panic!("{difference}\n{}", manifest::yaml(&objects));
        }
    }
});
