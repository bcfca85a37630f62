//! Warnings about manifests that are valid, but probably differ from the author's intention.
//!
//! Problem: policies that mean less, more or something other than their author thought, in inputs that range from one
//! policy without any pod to a whole cluster of 100,000.
//! Strategy: one file a lint. All of them share a [`LintContext`], which knows pods only as [`groups`] (pods of one
//! namespace that no selector distinguishes) and [`cohorts`] (groups that the same policies select), so that their work
//! grows with the number of different pods, not of all pods. In the open world, lints also judge policies for every pod
//! that could exist, by the diagrams of `weir_analysis::world`.
//! Invariants: missing input causes no finding: a lint that needs pods or namespaces is silent if the input has none.
//! Every lint has the same budget of steps; a lint that exceeds it reports that ([`lint_incomplete`]), so incomplete
//! results are always visible. The order of the input's objects has no effect.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod codes;

mod admin_accept_opens;
mod allow_list_without_effect;
mod and_or_peers;
mod baseline_never_asked;
mod cohorts;
mod context;
mod cover;
mod cover_index;
mod dns_not_allowed;
mod except_excludes_nothing;
mod groups;
mod inert_rules;
mod lint_incomplete;
mod list_entry_covered;
mod list_hits_cluster;
mod list_redundant;
mod lookup;
mod named_port_unknown;
mod namespace_missing;
mod networks_include_pods;
mod one_sided_allow;
mod policy_duplicate;
mod policy_redundant;
mod policy_selects_nothing;
mod prefixes;
mod rule_covered;
mod rule_matches_no_peer;
mod selector_suggestions;
mod service_address_contested;
mod service_partly_allowed;
mod tier_order_open;
mod tier_rule_covered;
mod tiers;
mod words;

use std::collections::BTreeSet;

use context::LintContext;

use weir_model::Cluster;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, FindingPlace};
use weir_objects::k8s::Object;
use weir_objects::origin::ObjectId;

type LintCheck = fn(&LintContext<'_>, &mut Diagnostics);

const LINTS: &[(&Code, LintCheck)] = &[
    (&admin_accept_opens::CODE, admin_accept_opens::check),
    (&allow_list_without_effect::CODE, allow_list_without_effect::check),
    (&and_or_peers::CODE, and_or_peers::check),
    (&baseline_never_asked::CODE, baseline_never_asked::check),
    (&dns_not_allowed::CODE, dns_not_allowed::check),
    (&except_excludes_nothing::CODE, except_excludes_nothing::check),
    (&inert_rules::CODE, inert_rules::check),
    (&list_entry_covered::CODE, list_entry_covered::check),
    (&list_hits_cluster::CODE, list_hits_cluster::check),
    (&list_redundant::CODE, list_redundant::check),
    (&named_port_unknown::CODE, named_port_unknown::check),
    (&namespace_missing::CODE, namespace_missing::check),
    (&networks_include_pods::CODE, networks_include_pods::check),
    (&one_sided_allow::CODE, one_sided_allow::check),
    (&policy_duplicate::CODE, policy_duplicate::check),
    (&policy_redundant::CODE, policy_redundant::check),
    (&policy_selects_nothing::CODE, policy_selects_nothing::check),
    (&rule_covered::CODE, rule_covered::check),
    (&rule_matches_no_peer::CODE, rule_matches_no_peer::check),
    (&service_address_contested::CODE, service_address_contested::check),
    (&service_partly_allowed::CODE, service_partly_allowed::check),
    (&tier_order_open::CODE, tier_order_open::check),
    (&tier_rule_covered::CODE, tier_rule_covered::check),
];

/// The codes of this stage.
pub const CODES: &[&Code] = &codes();

const fn codes() -> [&'static Code; LINTS.len() + 1] {
    let mut codes = [&lint_incomplete::CODE; LINTS.len() + 1];
    let mut index = 0;
    while index < LINTS.len() {
        codes[index] = LINTS[index].0;
        index += 1;
    }
    codes
}

/// Steps that one lint may take: some tenths of a second. 10,000 policies over 100,000 pods need a small part of it.
pub const STEPS: u64 = 30_000_000;

/// The pods that lints judge policies for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LintWorld {
    /// Every pod that could exist, and those of the input.
    Open,
    /// Only the pods of the input.
    Closed,
}

/// Runs every lint.
pub fn lint(objects: &[Object], cluster: &Cluster, world: LintWorld) -> Diagnostics {
    lint_within(STEPS, objects, cluster, world)
}

/// Runs every lint, each for at most `steps` steps. Findings about audit policies are those of the cluster with all
/// audit policies enforced; findings about other objects are those without audit policies.
pub fn lint_within(steps: u64, objects: &[Object], cluster: &Cluster, world: LintWorld) -> Diagnostics {
    let mut found = run(LintContext::new(objects, cluster, world), steps);
    if !cluster.audit.is_empty() {
        let audit: BTreeSet<ObjectId> = cluster.audit.iter().map(|policy| policy.object).collect();
        let is_of_audit = |it: &Diagnostic| position(it).0.is_some_and(|origin| audit.contains(&origin.object));
        found.retain(|it| !is_of_audit(it));
        let enforced = cluster.with_audit_enforced();
        let context = LintContext::new(objects, &enforced, world).judging(audit.clone());
        found.extend(run(context, steps).into_iter().filter(is_of_audit));
    }
    found.sort_by(|a, b| position(a).cmp(&position(b)));
    found.into_iter().fold(Diagnostics::new(), |mut all, it| {
        all.push(it);
        all
    })
}

fn run(context: LintContext<'_>, steps: u64) -> Vec<Diagnostic> {
    context.set_steps(steps);
    let mut found = Diagnostics::new();
    for (code, check) in LINTS {
        context.begin(steps);
        check(&context, &mut found);
        if let Some(object) = context.stopped_at() {
            found.push(lint_incomplete::found(code, object, steps));
        }
    }
    if let Some(coverage) = context.coverage() {
        lint_incomplete::unfinished(context.cluster, &coverage.unfinished).into_iter().for_each(|it| found.push(it));
    }
    found.into_vec()
}

/// By object, then field, then code. Lints point at fields only.
fn position(diagnostic: &Diagnostic) -> (Option<&weir_objects::origin::FieldOrigin>, &str) {
    match &diagnostic.primary.place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
            (Some(origin), diagnostic.code.name)
        }
        FindingPlace::Text(_) => (None, diagnostic.code.name),
    }
}
