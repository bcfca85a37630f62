//! A rule, or one of its peers, that no pod of the input matches.

use super::context::{LintContext, PolicyRule};
use super::words;
use weir_analysis::world::{SelectorConflict, block_is_empty};
use weir_model::{NamespaceId, Peer, Policy, SelectorId, rule_path};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::k8s::NAMESPACE_NAME_LABEL;
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code =
    Code::lint("rule-matches-no-peer", Severity::Warning, include_str!("rule_matches_no_peer.diff"))
        .what("A rule allows traffic with pods that are not in the input, or that cannot exist.")
        .why(
            "The selectors match no pod, so the rule allows nothing. Usually a label is misspelt, or a podSelector \
          without a namespaceSelector is meant for pods of another namespace. The lint applies only if the input \
          would contain such pods: if it has pods of these namespaces, or is a whole cluster. Selectors that no pod or \
          namespace could match are always reported: their requirements contradict each other, name a namespace that \
          cannot exist, or contradict the labels of the Namespace object. So are blocks whose exceptions leave no \
          address.",
        );

/// The selector that matches nothing.
enum Lack {
    /// No namespace can match.
    NoPossibleNamespace(SelectorConflict),
    /// No pod can match.
    NoPossiblePod(SelectorConflict),
    /// No address is left.
    NoAddress,
    Namespace(SelectorId),
    Pod(SelectorId),
}

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    context.rules().for_each(|at| check_rule(context, at, found));
}

fn check_rule(context: &LintContext<'_>, at: PolicyRule<'_>, found: &mut Diagnostics) {
    let PolicyRule { policy, direction, index, rule } = at;
    context.spend(rule.peers.len());
    let lacks: Vec<_> = rule.peers.iter().map(|peer| lack(context, policy.namespace, peer)).collect();
    let dead = lacks.iter().filter(|lack| lack.is_some()).count();
    let name = words::policy(context.cluster, policy);
    for (position, (peer, lack)) in rule.peers.iter().zip(&lacks).enumerate() {
        let Some(lack) = lack else { continue };
        let path = words::peer_path(direction, index, position);
        let message = match dead == lacks.len() {
            true => format!("{} of policy {name} matches no peer", rule_path(direction, index)),
            false => format!("a peer of {} of policy {name} matches nothing", rule_path(direction, index)),
        };
        found.push(describe(context, policy, peer, lack, &path, message));
        if dead == lacks.len() {
            break;
        }
    }
}

fn lack(context: &LintContext<'_>, own: NamespaceId, peer: &Peer) -> Option<Lack> {
    let (namespaces, pods) = match peer {
        Peer::Pods { namespaces, pods } => (namespaces, pods),
        Peer::Block { cidr, except } => {
            return (context.is_open() && block_is_empty(*cidr, except)).then_some(Lack::NoAddress);
        }
    };
    let impossible = namespaces.and_then(|it| context.namespace_conflict(it)).map(Lack::NoPossibleNamespace);
    let impossible = impossible.or_else(|| context.pod_conflict(*pods).map(Lack::NoPossiblePod));
    if impossible.is_some() {
        return impossible;
    }
    if let Some(selector) = namespaces
        && context.namespaces(*selector).is_empty()
    {
        return shows_namespaces(context, *selector).then_some(Lack::Namespace(*selector));
    }
    let shown = context.shows_pods(own, peer);
    (shown && context.peer_groups(own, peer).is_empty()).then_some(Lack::Pod(*pods))
}

/// Whether the input would show the namespace if it existed. A namespace that is selected by name and is not similar to
/// a declared one may come from another repository. So may one that is selected by label, if the input declares only
/// the policies' own namespace and has no pods.
fn shows_namespaces(context: &LintContext<'_>, selector: SelectorId) -> bool {
    let wanted = context.selector(selector);
    let is_named = wanted.match_labels.contains_key(NAMESPACE_NAME_LABEL);
    let is_near = || context.census(None).explain(wanted, &FieldPath::root()).help.is_some();
    let would_show = || (!is_named && !context.groups().is_empty()) || is_near();
    context.whole || (context.declares_namespaces && would_show())
}

fn describe(
    context: &LintContext<'_>,
    policy: &Policy,
    peer: &Peer,
    lack: &Lack,
    path: &FieldPath,
    message: String,
) -> Diagnostic {
    let namespaces = match peer {
        Peer::Pods { namespaces, .. } => *namespaces,
        Peer::Block { .. } => None,
    };
    match lack {
        Lack::NoPossibleNamespace(conflict) => {
            describe_conflict(context, policy, path.field("namespaceSelector"), "namespace", conflict, message)
        }
        Lack::NoPossiblePod(conflict) => {
            describe_conflict(context, policy, path.field("podSelector"), "pod", conflict, message)
        }
        Lack::NoAddress => {
            let path = path.field("ipBlock").field("except");
            Diagnostic::at(&CODE, FieldOrigin::new(policy.object, path), message)
                .label("these exceptions leave no address of the block")
                .help("remove the block or an exception")
        }
        Lack::Namespace(selector) => {
            let hint = context.census(None).explain(context.selector(*selector), &path.field("namespaceSelector"));
            Diagnostic::at(&CODE, FieldOrigin::new(policy.object, hint.path), message)
                .label("no namespace of the input matches")
                .note(hint.note)
                .help(hint.help.unwrap_or_else(|| "compare with: kubectl get namespaces --show-labels".to_owned()))
        }
        Lack::Pod(pods) => {
            let places = match namespaces {
                Some(selector) => context.namespaces(selector).to_vec(),
                None => vec![policy.namespace],
            };
            describe_pods(context, policy, *pods, &places, path, message)
        }
    }
}

fn describe_conflict(
    context: &LintContext<'_>,
    policy: &Policy,
    path: FieldPath,
    noun: &str,
    conflict: &SelectorConflict,
    message: String,
) -> Diagnostic {
    let diagnostic = Diagnostic::at(&CODE, FieldOrigin::new(policy.object, path), message)
        .label(format!("no {noun} can match"))
        .note(format!("no {noun} can have {}", words::requirements(&conflict.requirements)));
    let declared = conflict.namespace.map(|id| &context.cluster.namespaces[id.index()]);
    let diagnostic = match declared.and_then(|it| Some((it, it.object?))) {
        Some((namespace, object)) => {
            let text = format!("namespace {} is declared with other labels", namespace.name);
            diagnostic.also(FieldOrigin::new(object, FieldPath::root().field("metadata")), text)
        }
        None => diagnostic,
    };
    diagnostic.help("remove one of the requirements, or the peer")
}

fn describe_pods(
    context: &LintContext<'_>,
    policy: &Policy,
    pods: SelectorId,
    places: &[NamespaceId],
    path: &FieldPath,
    message: String,
) -> Diagnostic {
    let selector = context.selector(pods);
    let path = path.field("podSelector");
    if let Some(id) = context.on_host(places, pods) {
        let name = words::endpoint(context.cluster, id);
        return Diagnostic::at(&CODE, FieldOrigin::new(policy.object, path), message)
            .label("only pods on the host network match")
            .note(format!("{name} has hostNetwork: its address is the node's, and selectors do not match it"))
            .help("allow the nodes' addresses with an ipBlock");
    }
    let [place] = places else {
        return Diagnostic::at(&CODE, FieldOrigin::new(policy.object, path), message)
            .label(format!("no pod of {} has {}", words::count(places.len(), "namespace"), words::selector(selector)))
            .help("compare with: kubectl get pods --all-namespaces --show-labels");
    };
    let hint = context.census(Some(*place)).explain(selector, &path);
    let elsewhere = elsewhere(context, pods, *place);
    let diagnostic = Diagnostic::at(&CODE, FieldOrigin::new(policy.object, hint.path), message)
        .label(format!("no pod in `{}` matches", context.cluster.namespaces[place.index()].name))
        .note(hint.note);
    match (hint.help, elsewhere) {
        (Some(help), _) => diagnostic.help(help),
        (None, Some((pod, namespace))) => diagnostic
            .note(format!("{pod} would match, but a podSelector alone looks in the policy's own namespace"))
            .help(format!("add a namespaceSelector beside it: kubernetes.io/metadata.name: {namespace}")),
        (None, None) => diagnostic.help("compare with: kubectl get pods --show-labels"),
    }
}

/// A pod of another namespace that the selector would match.
fn elsewhere(context: &LintContext<'_>, pods: SelectorId, own: NamespaceId) -> Option<(String, String)> {
    let cluster = context.cluster;
    let other = context.find_anywhere(pods).iter().map(|id| context.group(*id)).find(|it| it.namespace != own)?;
    let namespace = cluster.namespaces[other.namespace.index()].name.clone();
    Some((words::endpoint(cluster, other.first), namespace))
}
