//! Rules for a direction that `policyTypes` does not name.

use super::context::LintContext;
use super::words;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Example, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code = Code {
    name: "inert-rules",
    severity: Severity::Warning,
    lint: true,
    what: "A policy has rules for a direction that its policyTypes do not name.",
    why: "policyTypes decides in which directions a policy isolates. Rules of a direction that it does not name are read \
          and forgotten: they neither allow nor restrict anything.",
    example: Example(include_str!("inert_rules.diff")),
};

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    for policy in &context.cluster.policies {
        let Some(direction) = policy.inert else { continue };
        let (name, field) = (words::policy(context.cluster, policy), direction.name());
        let spec = FieldPath::root().field("spec");
        let wanted = match field {
            "ingress" => "Ingress",
            _ => "Egress",
        };
        let message = format!("the {field} rules of policy {name} do nothing");
        found.push(
            Diagnostic::at(&CODE, FieldOrigin::new(policy.object, spec.field(field)), message)
                .label("these rules are never asked")
                .also(FieldOrigin::new(policy.object, spec.field("policyTypes")), format!("does not name {wanted}"))
                .note(format!("the policy leaves all {field} traffic of its pods as it is"))
                .help(format!("add `{wanted}` to policyTypes, or remove the {field} rules")),
        );
    }
}
