//! A policy that selects no pod.

use super::context::LintContext;
use super::{cover, words};
use weir_model::Policy;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code =
    Code::lint("policy-selects-nothing", Severity::Warning, include_str!("policy_selects_nothing.diff"))
        .what("A policy selects no pod, although its namespace has pods, or its selector contradicts itself.")
        .why(
            "The policy isolates no pod, so the pods that it was written for accept everything that no other policy \
          denies. Apart from selectors that no pod could match, the lint ignores namespaces without pods or workloads in the input, and policies for every pod. \
          Policies do not apply to pods on the host network, so these do not count.",
        );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let cluster = context.cluster;
    for policy in &cluster.policies {
        if context.is_spent(policy.object) {
            return;
        }
        if let Some(conflict) = context.pod_conflict(policy.subjects) {
            let path = FieldPath::root().field("spec").field("podSelector");
            let message = format!("policy {} can select no pod", words::policy(cluster, policy));
            found.push(
                Diagnostic::at(&CODE, FieldOrigin::new(policy.object, path), message)
                    .label("these requirements contradict each other")
                    .note(format!("no pod can have {}", words::requirements(&conflict.requirements)))
                    .help("remove one of the requirements"),
            );
            continue;
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
            .label("only pods on the host network match")
            .note(format!("{name} has hostNetwork: its address is the node's, and policies do not apply to it"))
            .help("restrict them on the node, or remove hostNetwork");
    }
    let hint = context.census(Some(policy.namespace)).explain(selector, &path);
    let diagnostic = Diagnostic::at(&CODE, FieldOrigin::new(policy.object, hint.path), message)
        .label("no pod of the namespace matches")
        .note(hint.note);
    diagnostic.help(hint.help.unwrap_or_else(|| "compare with: kubectl get pods --show-labels".to_owned()))
}
