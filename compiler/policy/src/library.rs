//! The functions of the library over [`Policies`].

use weir_analysis::diff::{self, Diff};
use weir_artifact::Artifact;
use weir_classes::Scope;
use weir_codegen::compile::{self as codegen, CompileOptions};
use weir_lint::{LintWorld, lint};
use weir_model::eval::Oracle;
use weir_verify::VerifyReport;

use crate::answers::{CheckAnswer, CheckSummary, ExplainAnswer, Finding, ObjectCounts, SeverityCounts};
use crate::endpoint_lookup::EndpointLookup;
use crate::explanation::explain;
use crate::locator::Locator;
use crate::policies::{Policies, PolicyError};
use crate::question::{FlowQuestion, QuestionEnd};
use crate::similar_name::most_similar;
use crate::{findings, possible_pods};

/// Every finding: mistakes, and warnings for every pod that could exist. If the input has mistakes, warnings are left
/// out: they could be wrong about an input that lacks an object.
///
/// ```
/// use weir_policy::{LoadOptions, check, load, manifest};
///
/// let text = "\
/// apiVersion: networking.k8s.io/v1
/// kind: NetworkPolicy
/// metadata: {name: db, namespace: shop}
/// spec: {podSelector: {}, ingres: []}
/// ";
/// let found = check(&load(vec![manifest("shop.yaml", text)], &LoadOptions::default())).expect("it is not empty");
/// let finding = &found.diagnostics[0];
/// assert_eq!((finding.code.as_str(), finding.severity.as_str()), ("unknown-field", "error"));
/// assert_eq!(finding.location.as_ref().map(|it| it.line), Some(4));
/// ```
///
/// An input without objects and without findings is [`PolicyError::Empty`], because nothing was checked. With policies that
/// Weir does not read, each of them has a finding, and [`CheckSummary::complete`] is false.
pub fn check(policies: &Policies) -> Result<CheckAnswer, PolicyError> {
    let mut diagnostics = policies.diagnostics.clone();
    if policies.objects.is_empty() && diagnostics.iter().next().is_none() {
        return Err(PolicyError::Empty);
    }
    if !diagnostics.has_errors() {
        diagnostics.extend(lint(&policies.objects, &policies.cluster, LintWorld::Open));
    }
    let found = findings::located(&policies.sources, &diagnostics);
    let summary = CheckSummary {
        severities: SeverityCounts::of(&found),
        shown: found.len(),
        objects: policies.objects.len(),
        kinds: ObjectCounts::of(&policies.objects),
        skipped: policies.skipped.iter().cloned().collect(),
        complete: policies.unread.is_empty(),
    };
    Ok(CheckAnswer { diagnostics: found.iter().map(Finding::of).collect(), summary, left_out: Vec::new() })
}

/// The verdict on one flow and its reasons, as `weir explain` gives them. The ends are names, addresses, or descriptions
/// of pods that could exist (`shop/app=web`); the port is `80`, `53/udp`, or the name of a port.
///
/// ```
/// use weir_policy::{LoadOptions, ask, load, manifest};
///
/// let text = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIP: 10.0.0.1}}";
/// let policies = load(vec![manifest("pod.yaml", text)], &LoadOptions::default());
/// let error = ask(&policies, "shop/wep", "192.0.2.1", "443").expect_err("there is no such pod");
/// assert!(error.to_string().ends_with("did you mean `shop/web`?"));
/// ```
pub fn ask(policies: &Policies, from: &str, to: &str, port: &str) -> Result<ExplainAnswer, PolicyError> {
    let policies = policies.answerable()?;
    let wrong = |reason| PolicyError::Question { reason, hint: None };
    let described = |text| possible_pods::parse(text).transpose().map_err(wrong);
    let (described_from, described_to) = (described(from)?, described(to)?);
    let question = FlowQuestion {
        from: described_from.as_ref().map_or(QuestionEnd::Named(from), QuestionEnd::Described),
        to: described_to.as_ref().map_or(QuestionEnd::Named(to), QuestionEnd::Described),
        port: Some(port),
        protocol: None,
    };
    let lookup = EndpointLookup { cluster: &policies.cluster, default_namespace: &policies.default_namespace };
    let mut oracle = Oracle::new(&policies.cluster);
    let answer = question.ask(&lookup, &mut oracle).map_err(|reason| {
        let hint = question.hint(&lookup, oracle.directory());
        PolicyError::Question { reason, hint }
    })?;
    Ok(explain(&policies.cluster, &policies.sources, &answer))
}

/// Every connection that is allowed in only one of two inputs, for every pod that could exist. No rows and no changes of
/// isolation mean that the inputs allow the same.
pub fn diff(base: &Policies, head: &Policies) -> Result<Diff, PolicyError> {
    let [base, head] = [&base.answerable()?.cluster, &head.answerable()?.cluster];
    if base.assume != head.assume {
        return Err(PolicyError::Assumptions);
    }
    Ok(diff::compare_open(base, head, false)?)
}

/// Programs and tables that enforce the policies, for the pods of a node, or for every pod that has an address.
/// [`Artifact::to_bytes`] is the file; [`verify`] proves that it enforces the policies.
pub fn compile(policies: &Policies, node: Option<&str>) -> Result<Artifact, PolicyError> {
    let policies = policies.answerable()?;
    let cluster = &policies.cluster;
    let scope = match node {
        None => Scope::everything(cluster),
        Some(name) => Scope::node(cluster, name).ok_or_else(|| PolicyError::UnknownNode {
            name: name.to_owned(),
            similar: most_similar(name, cluster.nodes.iter().map(|it| it.name.as_str())).map(str::to_owned),
        })?,
    };
    let options = CompileOptions::default();
    let compiled = codegen::compile(cluster, &scope, &options)?;
    let mut locator = Locator::new(&policies.sources);
    let artifact = compiled.artifact_of_files(cluster, &options, &mut |origin| locator.line(origin), |description| {
        description.node = node.map(str::to_owned);
        description.objects = weir_artifact::objects(&policies.objects);
    });
    Ok(artifact?)
}

/// Compares an artifact with the policies, in an interpreter that runs its programs over its tables.
pub fn verify(artifact: &Artifact, policies: &Policies) -> Result<VerifyReport, PolicyError> {
    Ok(weir_verify::verify(artifact, &policies.answerable()?.cluster))
}

#[cfg(test)]
mod tests {
    use weir_model::Assumptions;

    use super::*;
    use crate::{LoadOptions, load, manifest};

    fn read(text: &str, assumptions: Assumptions) -> Policies {
        load(vec![manifest("a.yaml", text)], &LoadOptions { assumptions, ..LoadOptions::default() })
    }

    #[test]
    fn sides_with_different_assumptions_are_not_compared() {
        let text = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
        let mut other = Assumptions::default();
        other.set("audit", "enforce").expect("it is one");
        let [base, head] = [Assumptions::default(), other].map(|it| read(text, it));
        assert!(matches!(diff(&base, &head), Err(PolicyError::Assumptions)));
        assert!(diff(&base, &base).is_ok());
    }

    #[test]
    fn a_check_of_policies_that_are_not_read_is_not_complete() {
        let text = "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a, namespace: shop}}";
        let answer = check(&read(text, Assumptions::default())).expect("findings");
        assert!(!answer.summary.complete);
        assert_eq!(answer.diagnostics[0].code, "unread-policy");
    }

    #[test]
    fn an_input_without_objects_is_not_an_input_without_mistakes() {
        assert!(matches!(check(&read("", Assumptions::default())), Err(PolicyError::Empty)));
        let broken = check(&read("a: [", Assumptions::default())).expect("findings");
        assert!(broken.summary.severities.errors > 0);
    }

    #[test]
    fn an_unknown_node_is_named_with_the_most_similar_one() {
        let text = "{apiVersion: v1, kind: Node, metadata: {name: node-1}}";
        let error = compile(&read(text, Assumptions::default()), Some("nod-1")).expect_err("there is no such node");
        assert_eq!(error.to_string(), "the input has no node nod-1; did you mean `node-1`?");
    }
}
