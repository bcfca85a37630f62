//! Two policies that differ only in their names.

use super::context::LintContext;
use super::words;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};

pub(super) static CODE: Code = Code::lint("policy-duplicate", Severity::Warning, include_str!("policy_duplicate.diff"))
    .what("A policy does the same as another policy of its namespace.")
    .why(
        "Both policies select the same pods, isolate them in the same directions, and allow the same traffic, for \
             every pod that could exist. Changing or removing one of them denies nothing while the other one is there. \
             Usually a policy was renamed and the old object was left behind.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let Some(coverage) = context.coverage() else { return };
    for it in &coverage.duplicates {
        let [policy, original] = [it.policy, it.original].map(|id| context.cluster.policy(id));
        let [name, other] = [policy, original].map(|it| words::policy(context.cluster, it));
        let message = format!("policy {name} does the same as policy {other}");
        found.push(
            Diagnostic::at(&CODE, words::name_origin(policy), message)
                .label("same pods, same directions, same traffic")
                .also(words::name_origin(original), "the other policy")
                .help("remove one of them"),
        );
    }
}
