//! With every structure for a set, the bytecode decides as the reference does.

use std::collections::BTreeSet;

use weir_artifact::structure::{LookupSet, Structure};
use weir_codegen::structures::StructureOptions;
use weir_fuzz::oracles::engines::{Compiled, Effort, agree_on, forced, room, rounds, scopes};

use crate::{for_each_cluster, resolved};

#[test]
fn every_structure_decides_as_the_reference_does() {
    let mut asked = 0;
    let mut seen: BTreeSet<(LookupSet, Structure)> = BTreeSet::new();
    for round in 0..rounds() {
        let options = forced(round);
        for_each_cluster(40, |objects, assume, mut random| {
            let cluster = resolved(&objects, assume);
            let options = StructureOptions { room: room(&mut random), ..options.clone() };
            for scope in scopes(&cluster).into_iter().take(2) {
                let compiled = Compiled::with(&cluster, scope, &options).expect("it compiles");
                seen.extend(compiled.tables.structures.notes.iter().map(|it| (it.place, it.structure)));
                let effort = Effort { questions: 10, packets: 60 };
                let agreed = agree_on(&compiled, effort, &mut random);
                asked += agreed.unwrap_or_else(|text| panic!("{options:?}: {text}"));
            }
        });
    }
    // The flow table is left out: it has only one structure, so `tables` has no note about it.
    let chosen = LookupSet::ALL.iter().filter(|place| place.structures().len() > 1);
    let all = chosen.flat_map(|place| place.structures().iter().map(|it| (*place, *it)));
    let unseen: Vec<_> = all.filter(|it| !seen.contains(it)).collect();
    assert!(asked > 10_000 && unseen.is_empty(), "{asked} questions, never chosen: {unseen:?}");
}
