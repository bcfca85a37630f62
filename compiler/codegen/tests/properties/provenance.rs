//! The manifest describes the entries as the tables contain them.

use weir_classes::{AtomId, PeerId, Scope, SubjectId, classify};
use weir_codegen::describe::provenance::{LastDescriptions, Positions, provenance};
use weir_model::Direction;

use crate::{for_each_cluster, resolved};

#[test]
fn the_manifest_names_the_rules_of_every_entry() {
    let mut named = 0;
    for_each_cluster(150, |objects, assume, _| {
        let cluster = resolved(&objects, assume);
        let classes = classify(&cluster, &Scope::everything(&cluster)).expect("it can be classified");
        let provenance = provenance(&cluster, &classes, &mut Positions::None(&mut LastDescriptions::default()));
        let policies = classes.policies();
        let (subjects, peers, atoms) = (classes.subjects.len(), classes.peers.len(), classes.atoms.count());
        for direction in Direction::ALL {
            for (subject, peer, atom) in (0..subjects as u32)
                .flat_map(|subject| (0..peers as u32).map(move |peer| (subject, peer)))
                .flat_map(|(subject, peer)| (0..atoms as u32).map(move |atom| (subject, peer, atom)))
            {
                let expected = classes.provenance(direction, SubjectId(subject), PeerId(peer), AtomId(atom));
                let expected: Vec<_> = expected.into_iter().map(|it| (it.policy, it.rule)).collect();
                let found = provenance.rules(direction, subject, peer, atom);
                let found: Vec<_> = found.into_iter().map(|(policy, rule)| (policies[policy as usize], rule)).collect();
                assert_eq!(found, expected, "{direction:?} subject{subject} peer{peer} atom{atom}");
                named += found.len();
            }
        }
    });
    assert!(named > 10_000, "only {named} rules were named");
}
