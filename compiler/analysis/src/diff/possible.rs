//! Groups of possible pods in words, as the policies' selectors say them.

use super::{RowEnd, ranges};
use crate::world::{EndSet, PodSet, PossibleEnd, PossibleFlow};
use weir_model::Protocol;
use weir_model::eval::FlowProtocol;
use weir_objects::k8s::{LabelSelector, NAMESPACE_NAME_LABEL, Operator, Requirement};

/// At most this many values or sets are listed.
const MOST: usize = 4;

/// A group of possible pods and outside addresses.
pub(super) fn text(end: &RowEnd) -> String {
    let counted = match end.endpoints.len() {
        0 => String::new(),
        count => format!(" ({count} in the input)"),
    };
    let outside = (!end.ranges.is_empty()).then(|| ranges::text(&end.ranges));
    // A block matches pods and outside addresses alike, and is said once.
    if let ([PodSet { namespaces, pods, addresses: Some(addresses) }], Some(outside)) = (&end.pods[..], &outside)
        && *addresses == end.ranges
        && [namespaces, pods].into_iter().all(|it| *it == LabelSelector::default())
    {
        return match outside.strip_prefix("any outside ") {
            Some(all) => format!("any {all} of a pod or outside{counted}"),
            None => format!("any pod or outside address in {outside}{counted}"),
        };
    }
    let mut parts: Vec<String> = end.pods.iter().take(MOST).map(pod_set).collect();
    parts.extend((end.pods.len() > MOST).then(|| format!("{} more groups of pods", end.pods.len() - MOST)));
    let outside = outside.map(|it| format!(", and {it}")).unwrap_or_default();
    format!("{}{counted}{outside}", parts.join("; "))
}

/// Possible ends, as rows say them: `any pod with app=api in namespace shop, and any outside address`.
pub fn ends(set: &EndSet) -> String {
    let EndSet { pods, ranges } = set.clone();
    text(&RowEnd { endpoints: Vec::new(), ranges, services: Vec::new(), pods })
}

/// `any pod with app=api in namespace shop`
fn pod_set(set: &PodSet) -> String {
    let labels = match set.pods == LabelSelector::default() {
        true => String::new(),
        false => format!(" with {}", selector(&set.pods)),
    };
    let addresses =
        set.addresses.as_ref().map(|it| format!(" at {}", ranges::text(it).replacen("any outside", "any", 1)));
    format!("any pod{labels} in {}{}", namespaces(&set.namespaces), addresses.unwrap_or_default())
}

/// `namespace shop`, `namespaces with team=a, but not dev`, `any namespace`
fn namespaces(wanted: &LabelSelector) -> String {
    let (names, labels): (Vec<Requirement>, Vec<Requirement>) =
        wanted.requirements().partition(|it| it.key == NAMESPACE_NAME_LABEL);
    let labels: Vec<String> = labels.iter().map(requirement).collect();
    let mut text = match labels.is_empty() {
        true => String::new(),
        false => format!("namespaces with {}", labels.join(", ")),
    };
    for Requirement { operator, values, .. } in names {
        let listed = some(&values);
        let start = if text.is_empty() { "" } else { ", " };
        text += &match (operator, values.len()) {
            (Operator::In, 1) if start.is_empty() => format!("namespace {listed}"),
            (Operator::In, _) if start.is_empty() => format!("namespaces {listed}"),
            (Operator::In, _) => format!("{start}namely {listed}"),
            (Operator::NotIn, _) if start.is_empty() => format!("any namespace but {listed}"),
            (Operator::NotIn, _) => format!("{start}but not {listed}"),
            (Operator::Exists, _) => String::new(),
            (Operator::DoesNotExist, _) => format!("{start}no namespace"),
        };
    }
    if text.is_empty() { "any namespace".to_owned() } else { text }
}

/// A selector as kubectl prints it.
fn selector(selector: &LabelSelector) -> String {
    selector.requirements().map(|it| requirement(&it)).collect::<Vec<_>>().join(",")
}

fn requirement(requirement: &Requirement) -> String {
    let Requirement { key, operator, values } = requirement;
    match (operator, &values[..]) {
        (Operator::In, [one]) => format!("{key}={one}"),
        (Operator::NotIn, [one]) => format!("{key}!={one}"),
        (Operator::In, _) => format!("{key} in ({})", values.join(",")),
        (Operator::NotIn, _) => format!("{key} notin ({})", values.join(",")),
        (Operator::Exists, _) => key.clone(),
        (Operator::DoesNotExist, _) => format!("!{key}"),
    }
}

fn some(names: &[String]) -> String {
    match names.len() {
        count if count > MOST => format!("{} and {} more", names[..MOST - 1].join(", "), count - MOST + 1),
        _ => names.join(", "),
    }
}

/// `a pod with app=web in namespace shop → a pod in namespace ops TCP 80`
pub fn flow(flow: &PossibleFlow) -> String {
    let protocol = match flow.protocol {
        FlowProtocol::Transport(Protocol::Tcp) => format!("TCP {}", flow.port),
        FlowProtocol::Transport(Protocol::Udp) => format!("UDP {}", flow.port),
        FlowProtocol::Transport(Protocol::Sctp) => format!("SCTP {}", flow.port),
        FlowProtocol::Icmp => "ICMP".to_owned(),
    };
    format!("{} → {} {protocol}", end(&flow.source), end(&flow.destination))
}

fn end(end: &PossibleEnd) -> String {
    let PossibleEnd::Pod(pod) = end else {
        return match end {
            PossibleEnd::Address(address) => address.to_string(),
            PossibleEnd::Pod(_) => String::new(),
        };
    };
    let labels: Vec<String> = pod.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let labels = if labels.is_empty() { "without labels".to_owned() } else { format!("with {}", labels.join(",")) };
    let of_namespace = pod.namespace_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let of_namespace: Vec<String> = of_namespace.collect();
    let of_namespace =
        if of_namespace.is_empty() { String::new() } else { format!(" (with {})", of_namespace.join(",")) };
    let address = if pod.address_matters { format!(" at {}", pod.address) } else { String::new() };
    let ports = pod.ports.iter().map(|it| format!(" that calls the port {}", it.name)).collect::<String>();
    format!("a pod {labels}{address} in namespace {}{of_namespace}{ports}", pod.namespace)
}
