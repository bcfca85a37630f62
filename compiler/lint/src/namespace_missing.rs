//! A policy for a namespace that does not exist.

use super::context::LintContext;
use super::words;
use weir_objects::decode::nearest;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code =
    Code::lint("namespace-missing", Severity::Warning, include_str!("namespace_missing.diff"))
        .what("A policy is for a namespace that is not in the input.")
        .why(
            "A policy selects pods of its own namespace only. If the namespace does not exist, the policy protects \
          nothing, and the pods that it was written for are not isolated. The lint applies only if the input \
          declares namespaces, and not to namespaces that every cluster has or that have pods in the input.",
        );

/// Namespaces that every cluster has, although no manifest declares them.
const BUILT_IN: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    if !context.declares_namespaces {
        return;
    }
    let namespaces = &context.cluster.namespaces;
    let inhabited = |index: usize| {
        let at = context.cluster.endpoints.partition_point(|endpoint| endpoint.namespace.index() < index);
        context.cluster.endpoints.get(at).is_some_and(|endpoint| endpoint.namespace.index() == index)
    };
    let is_missing = |index: usize| {
        let namespace = &namespaces[index];
        namespace.object.is_none() && !BUILT_IN.contains(&namespace.name.as_str()) && !inhabited(index)
    };
    let missing: Vec<bool> = (0..namespaces.len()).map(is_missing).collect();
    for policy in &context.cluster.policies {
        if !missing[policy.namespace.index()] {
            continue;
        }
        let namespace = &namespaces[policy.namespace.index()].name;
        let name = words::policy(context.cluster, policy);
        let path = FieldPath::root().field("metadata").field("namespace");
        let message = format!("policy {name} is for a namespace that is not in the input");
        let diagnostic = Diagnostic::at(&CODE, FieldOrigin::new(policy.object, path), message)
            .label(format!("no Namespace `{namespace}`, and no pod in it"));
        let declared = namespaces.iter().filter(|it| it.object.is_some()).map(|it| it.name.as_str());
        found.push(match nearest(namespace, declared) {
            Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
            None => diagnostic.help("declare the namespace, or name one that exists"),
        });
    }
}
