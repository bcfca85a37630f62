//! Proposals for random clusters and flows: the reference judges every one of them, the text says the same as the
//! objects, and no edit of one rule that a brute-force search finds changes less.

mod brute_force;

use std::collections::BTreeMap;

use brute_force::{Effect, Universe};
use weir_fuzz::generators::cluster::{ClusterCase, enforceable};
use weir_fuzz::generators::manifest::yaml;
use weir_fuzz::generators::{flows, for_each};
use weir_model::Cluster;
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_objects::decode::{DecodeOptions, Decoded, Input, InputKind, decode};
use weir_suggest::change::{Change, ChangeError, change};
use weir_suggest::edit::Edit;
use weir_suggest::rewrite;

const CASES: u32 = 150;
const FLOWS: usize = 6;

fn options() -> DecodeOptions {
    DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false }
}

/// The case as the files of a user: read from its own YAML, so that objects and text agree.
fn written(case: &ClusterCase) -> Decoded {
    let input = Input { name: "case.yaml".to_owned(), bytes: yaml(&case.objects).into(), kind: InputKind::Manifest };
    decode(vec![input], &options()).0
}

fn opposite(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Allow => Verdict::Deny,
        Verdict::Deny => Verdict::Allow,
    }
}

/// Calls `test` with proposals for the opposite of each flow's verdict.
fn for_each_proposal(mut test: impl FnMut(&ClusterCase, &Decoded, &Flow, Verdict, Result<Change, ChangeError>)) {
    for_each(CASES, &enforceable(), |case| {
        let read = written(&case);
        let (cluster, _) = resolve(&read.objects, case.assume);
        for flow in flows::flows(&cluster, FLOWS, &mut case.random()) {
            let wanted = opposite(Oracle::new(&cluster).judge(&flow).verdict());
            let proposal = change(&read.objects, case.assume, std::slice::from_ref(&flow), wanted);
            test(&case, &read, &flow, wanted, proposal);
        }
    });
}

#[test]
fn the_reference_and_the_text_confirm_every_proposal() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for_each_proposal(|case, read, flow, wanted, proposal| {
        let change = match proposal {
            Ok(change) => change,
            Err(error) => {
                let kind = match error {
                    ChangeError::OtherKind { .. } => "another kind decides",
                    ChangeError::NotDeniable(_) => "not deniable",
                    ChangeError::Shared => "shared",
                    ChangeError::PortZero => "port 0",
                    ChangeError::NotRunning(_) => "not running",
                    ChangeError::NoBackend(_) => "no backend",
                    ChangeError::NoCandidate(_) => "no candidate",
                    other => panic!("{other} for {flow:?}"),
                };
                *seen.entry(kind).or_default() += 1;
                return;
            }
        };
        let (cluster, _) = resolve(&change.objects, case.assume);
        assert_eq!(Oracle::new(&cluster).judge(flow).verdict(), wanted, "{flow:?}: {:?}", change.steps);
        let edits: Vec<Edit> = change.steps.iter().map(|it| it.edit.clone()).collect();
        for edit in &edits {
            *seen
                .entry(match (edit, wanted) {
                    (Edit::Append { .. }, Verdict::Allow) => "append to allow",
                    (Edit::Append { .. }, Verdict::Deny) => "append to deny",
                    (Edit::Remove { .. }, _) => "remove",
                    (Edit::Replace { .. }, _) => "replace",
                    (Edit::Create(_), Verdict::Allow) => "create to allow",
                    (Edit::Create(_), Verdict::Deny) => "create to deny",
                })
                .or_default() += 1;
        }
        let files = rewrite::rewrite(&read.sources, &read.objects, &options(), &edits);
        let files = files.unwrap_or_else(|error| panic!("{error}: {edits:?}"));
        let again = rewrite::read(&files, &options());
        let (cluster, _) = resolve(&again.objects, case.assume);
        assert_eq!(Oracle::new(&cluster).judge(flow).verdict(), wanted, "{flow:?} in the text: {edits:?}");
    });
    let expected = [
        "another kind decides",
        "append to allow",
        "append to deny",
        "create to allow",
        "create to deny",
        "not deniable",
        "remove",
        "replace",
    ];
    let missing: Vec<&str> = expected.into_iter().filter(|it| !seen.contains_key(it)).collect();
    assert!(missing.is_empty(), "did not occur: {missing:?} of {seen:?}");
}

/// Whether a named end has an address that belongs to another pod. Comparisons know it only as that pod's.
fn is_contested(cluster: &Cluster, flow: &Flow) -> bool {
    let directory = Directory::new(cluster);
    let is_of_another = |end: &FlowEnd| {
        end.endpoint.is_some() && end.address.is_some_and(|it| directory.endpoint_at(it) != end.endpoint)
    };
    is_of_another(&flow.source) || is_of_another(&flow.destination)
}

#[test]
fn no_edit_of_one_rule_opens_less() {
    let mut compared = 0;
    for_each_proposal(|case, read, flow, wanted, proposal| {
        let (Verdict::Allow, Ok(change)) = (wanted, proposal) else { return };
        let [step] = &change.steps[..] else { return };
        let (before, _) = resolve(&read.objects, case.assume);
        if is_contested(&before, flow) {
            return;
        }
        let universe = Universe::of(&before, flow);
        let ours = universe.effect(&before, &resolve(&change.objects, case.assume).0);
        for (objects, what) in brute_force::edits(&read.objects, &before, flow, step.edit.direction()) {
            let (cluster, _) = resolve(&objects, case.assume);
            if Oracle::new(&cluster).judge(flow).verdict() == Verdict::Deny {
                continue;
            }
            compared += 1;
            let theirs: Effect = universe.effect(&before, &cluster);
            assert!(ours <= theirs, "{what} changes {theirs:?}, and {:?} {ours:?} for {flow:?}", step.edit);
        }
    });
    assert!(compared > 1_000, "only {compared} edits were compared");
}
