//! A policy that selects no pod.

use super::context::LintContext;
use super::{cover, words};
use weir_model::Policy;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Example, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code = Code {
    name: "policy-selects-nothing",
    severity: Severity::Warning,
    lint: true,
    what: "A policy selects no pod, although its namespace has pods.",
    why: "The pods it was written for are not isolated by it: everything reaches them that no other policy keeps out. A \
          namespace without any pod or workload in the input says nothing, and a policy for every pod is never reported. \
          Pods on their node's network are passed over by policies and do not count.",
    example: Example(include_str!("policy_selects_nothing.diff")),
};

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let cluster = context.cluster;
    for policy in &cluster.policies {
        if context.is_spent(policy.object) {
            return;
        }
        let suspicious = context.has_pods(policy.namespace) && !cover::selects_all(&cluster.labels, policy.subjects);
        if suspicious && context.subjects(policy).is_empty() {
            found.push(describe(context, policy));
        }
    }
}

fn describe(context: &LintContext<'_>, policy: &Policy) -> Diagnostic {
    let cluster = context.cluster;
    let path = FieldPath::root().field("spec").field("podSelector");
    let message = format!("policy {} selects no pod", words::policy(cluster, policy));
    let selector = context.selector(policy.subjects);
    if let Some(id) = context.on_host(&[policy.namespace], policy.subjects) {
        let name = words::endpoint(cluster, id);
        return Diagnostic::at(&CODE, FieldOrigin::new(policy.object, path), message)
            .label("only pods on their node's network match")
            .note(format!("{name} has hostNetwork: policies pass such pods over, their address is the node's"))
            .help("restrict them on the node, or take them off the host's network");
    }
    let hint = context.census(Some(policy.namespace)).explain(selector, &path);
    let diagnostic = Diagnostic::at(&CODE, FieldOrigin::new(policy.object, hint.path), message)
        .label("no pod of the namespace matches")
        .note(hint.note);
    diagnostic.help(hint.help.unwrap_or_else(|| "compare with: kubectl get pods --show-labels".to_owned()))
}
