//! Rules for a direction that `policyTypes` does not name.

use super::context::LintContext;
use super::words;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code = Code::lint("inert-rules", Severity::Warning, include_str!("inert_rules.diff"))
    .what("A policy has rules for a direction that is not in its policyTypes.")
    .why(
        "A policy isolates pods only for the directions in policyTypes. Rules for another direction neither allow \
         nor deny anything.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    for policy in &context.cluster.policies {
        let Some(direction) = policy.inert else { continue };
        let (name, field) = (words::policy(context.cluster, policy), direction.name());
        let spec = FieldPath::root().field("spec");
        let wanted = match field {
            "ingress" => "Ingress",
            _ => "Egress",
        };
        let message = format!("the {field} rules of policy {name} have no effect");
        found.push(
            Diagnostic::at(&CODE, FieldOrigin::new(policy.object, spec.field(field)), message)
                .label("these rules never apply")
                .also(FieldOrigin::new(policy.object, spec.field("policyTypes")), format!("does not name {wanted}"))
                .note(format!("the policy does not restrict the {field} traffic of its pods"))
                .help(format!("add `{wanted}` to policyTypes, or remove the {field} rules")),
        );
    }
}
