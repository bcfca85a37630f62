//! Rules of the Baseline tier that no pod of the input can meet.

use super::context::LintContext;
use super::words;
use weir_model::{Direction, NamespaceId, Peer, Tier, TierPolicyId};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code = Code::lint(
    "baseline-never-asked",
    Severity::Note,
    include_str!("baseline_never_asked.diff"),
)
.what("NetworkPolicies isolate every pod that a policy of the Baseline tier selects.")
.why(
    "The Baseline tier is evaluated only for pods that no NetworkPolicy isolates in the direction. In the input \
             there is no such pod among the subjects of the policy, so its rules have no effect. They may be meant for \
             pods that come later.",
);

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    if context.cluster.tiers.is_empty() || !context.cohorts().are_known(context) {
        return;
    }
    for (id, tier) in (0..).map(TierPolicyId).zip(&context.cluster.tiers) {
        let subjects = Peer::Pods { namespaces: Some(tier.namespaces), pods: tier.pods };
        if tier.tier != Tier::Baseline || tier.is_audit || !context.shows_pods(NamespaceId(0), &subjects) {
            continue;
        }
        if context.is_spent(tier.object) {
            return;
        }
        let groups = context.peer_groups(NamespaceId(0), &subjects);
        context.spend(1 + groups.len());
        for direction in Direction::ALL {
            let is_isolated = |group| !context.cohorts().of(group).isolating(direction).is_empty();
            let Some(first) = groups.first() else { continue };
            if !tier.rules(direction).is_empty() && groups.iter().all(|group| is_isolated(*group)) {
                let name = direction.name();
                let policy = context.cluster.tier_policy_name(id);
                let by = context.cluster.policy(context.cohorts().of(*first).isolating(direction)[0]);
                let pod = words::endpoint(context.cluster, context.group(*first).first);
                let origin = FieldOrigin::new(tier.object, FieldPath::root().field("spec").field(name));
                let message =
                    format!("the {name} rules of {policy} have no effect: NetworkPolicies isolate all of its pods");
                found.push(
                    Diagnostic::at(&CODE, origin, message)
                        .label("evaluated only for pods that are not isolated")
                        .also(words::direction_origin(by, direction), format!("isolates {pod} for {name}"))
                        .help("if the rules are to bind these pods, put them in the Admin tier"),
                );
            }
        }
    }
}
