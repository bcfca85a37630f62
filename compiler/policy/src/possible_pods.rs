//! Pods that could exist, as users describe them: by namespace and labels in place of a name.
//!
//! On the command line a description is `NAMESPACE/KEY=VALUE[,KEY=VALUE]`; no name of a pod contains `=`. Everywhere, it
//! is the object `{namespace, labels, namespaceLabels, ports, ip}`. Properties that a description leaves out are
//! unknown: an answer is given only if it is the same for every pod that the description fits.

use std::collections::BTreeMap;

#[cfg(feature = "serde")]
use serde::Deserialize;
use weir_analysis::world::{
    AskedEnd, AskedTarget, DescribedPod, OpenAnswer, OpenProperty, OpenQuestion, OpenQuestionError, PossiblePod,
    WorldError, ask, labels_text,
};
use weir_model::eval::{FlowEnd, FlowProtocol, Judgement, Verdict};
use weir_model::{Cluster, NamedPort, Protocol};
use weir_objects::decode::names;

use crate::endpoint_lookup::{parse_ip, parse_protocol};

/// The reason why `--world closed` has no answer.
pub const CLOSED: &str = "a described pod is not in the input, and `--world closed` asks about the input alone";

/// A description as it was written.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `namespace` and `labels`")
)]
pub struct WrittenPod {
    /// Its namespace.
    pub namespace: String,
    #[cfg_attr(feature = "serde", serde(default))]
    /// All of its labels.
    pub labels: BTreeMap<String, String>,
    /// The labels of its namespace; `None` if they are unknown.
    pub namespace_labels: Option<BTreeMap<String, String>>,
    /// Its named ports; `None` if they are unknown.
    pub ports: Option<Vec<WrittenContainerPort>>,
    /// Its address; `None` if it is unknown.
    pub ip: Option<String>,
}

/// A container port of a description.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Deserialize), serde(rename_all = "camelCase", deny_unknown_fields))]
pub struct WrittenContainerPort {
    /// Its name.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`; `None` is TCP.
    pub protocol: Option<String>,
    /// Its number.
    pub container_port: u16,
}

impl WrittenPod {
    /// The pod, if Kubernetes would accept its names and labels.
    pub fn pod(self) -> Result<DescribedPod, String> {
        valid("namespace", &self.namespace, names::dns_label)?;
        for (key, value) in self.labels.iter().chain(self.namespace_labels.iter().flatten()) {
            valid("label", key, names::label_key)?;
            valid("label value", value, names::label_value)?;
        }
        let port = |it: WrittenContainerPort| {
            valid("port name", &it.name, names::port_name)?;
            let protocol = match it.protocol.as_deref().map(parse_protocol).transpose()? {
                None => Protocol::Tcp,
                Some(FlowProtocol::Transport(protocol)) => protocol,
                Some(FlowProtocol::Icmp) => return Err("a container port has a protocol with ports".to_owned()),
            };
            Ok(NamedPort { name: it.name, protocol, number: it.container_port })
        };
        Ok(DescribedPod {
            namespace: self.namespace,
            labels: self.labels.into_iter().collect(),
            namespace_labels: self.namespace_labels.map(|it| it.into_iter().collect()),
            ports: self.ports.map(|it| it.into_iter().map(port).collect::<Result<_, String>>()).transpose()?,
            address: self.ip.as_deref().map(parse_ip).transpose()?,
        })
    }
}

fn valid(what: &str, text: &str, check: fn(&str) -> Result<(), &'static str>) -> Result<(), String> {
    check(text).map_err(|reason| format!("the {what} `{text}` {reason}"))
}

/// The description that a text of the command line is; `None` if it is a name or an address.
pub fn parse(text: &str) -> Option<Result<DescribedPod, String>> {
    if text.starts_with('{') {
        return Some(of_json(text));
    }
    text.contains('=').then(|| short(text))
}

#[cfg(feature = "serde")]
fn of_json(text: &str) -> Result<DescribedPod, String> {
    let written: Result<WrittenPod, _> = serde_json::from_str(text);
    written.map_err(|error| format!("`{text}` is not a description of a pod: {error}")).and_then(WrittenPod::pod)
}

#[cfg(not(feature = "serde"))]
fn of_json(text: &str) -> Result<DescribedPod, String> {
    Err(format!("`{text}` is JSON, which needs the feature `serde`: write NAMESPACE/KEY=VALUE[,KEY=VALUE]"))
}

/// `shop/app=web,tier=front`; `shop/=` for a pod without labels.
fn short(text: &str) -> Result<DescribedPod, String> {
    let layout = || format!("`{text}` is not a description of a pod: write NAMESPACE/KEY=VALUE[,KEY=VALUE]");
    let (namespace, written) = text.split_once('/').ok_or_else(layout)?;
    let mut labels = BTreeMap::new();
    for label in written.split(',').filter(|_| written != "=") {
        let (key, value) = label.split_once('=').ok_or_else(layout)?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("`{text}` has two values for the label {key}"));
        }
    }
    WrittenPod { namespace: namespace.to_owned(), labels, namespace_labels: None, ports: None, ip: None }.pod()
}

/// The pod as the command line takes it.
pub fn text(pod: &DescribedPod) -> String {
    format!("{}/{}", pod.namespace, labels_text(&pod.labels))
}

/// The answer for every pod that the descriptions fit.
pub fn answer(cluster: &Cluster, question: &OpenQuestion) -> Result<OpenAnswer, String> {
    ask(cluster, question).map_err(|error| match error {
        OpenQuestionError::Description(reason) => reason,
        OpenQuestionError::World(WorldError::TooLarge { .. }) => {
            "the policies there combine too many selectors: describe the pods more closely, with `namespaceLabels`, `ports` \
             and `ip`"
                .to_owned()
        }
        OpenQuestionError::World(error @ WorldError::Contradiction(_)) => panic!("{error}"),
    })
}

/// The judgement of a flow, if it is the same for every pod that the descriptions fit: the reference's for one of them.
pub fn judge(
    cluster: &Cluster,
    [source, end]: [AskedEnd; 2],
    protocol: FlowProtocol,
    port: u16,
) -> Result<Judgement, String> {
    let question = OpenQuestion { source, targets: vec![AskedTarget { end, protocol, port }] };
    let answer = answer(cluster, &question)?;
    if answer.verdict().is_none() {
        let fields = fields(&question, &answer).join(" and ");
        return Err(format!("the verdict depends on {fields}: allow if {}", conditions(&answer)));
    }
    let judged = answer.examples().flat_map(|it| it.flows).map(|(_, judgement)| judgement).next();
    judged.ok_or_else(|| "no pod fits the descriptions".to_owned())
}

/// An end that is a pod, workload or address of the cluster.
pub fn known(cluster: &Cluster, end: FlowEnd) -> AskedEnd {
    let of_endpoint = || end.endpoint.map(|id| cluster.endpoints[id.index()].addresses.clone()).unwrap_or_default();
    AskedEnd::Known(end.endpoint, end.address.map_or_else(of_endpoint, |it| vec![it]))
}

/// The fields that would determine the verdict: `src.ip`, `dst.namespaceLabels`.
pub fn fields(question: &OpenQuestion, answer: &OpenAnswer) -> Vec<String> {
    let is_source = |name: &str| matches!(&question.source, AskedEnd::Described(pod) if pod.namespace == name);
    let field = |property: &OpenProperty| match property {
        OpenProperty::SourceAddress => "src.ip".to_owned(),
        OpenProperty::DestinationAddress => "dst.ip".to_owned(),
        OpenProperty::NamespaceLabels(name) if is_source(name) => "src.namespaceLabels".to_owned(),
        OpenProperty::NamespaceLabels(_) => "dst.namespaceLabels".to_owned(),
        OpenProperty::PortNames => "dst.ports".to_owned(),
    };
    answer.depends_on.iter().map(field).collect()
}

/// The conditions under which the flow is allowed, in one sentence.
pub fn conditions(answer: &OpenAnswer) -> String {
    let more = if answer.has_more_conditions { "; or more" } else { "" };
    format!("{}{more}", answer.allowed_if.join("; or "))
}

/// The properties that an example adds to the description: `the address 192.0.2.1, namespace ops with team=a`.
pub fn added(asked: &DescribedPod, pod: &PossiblePod) -> Option<String> {
    let mut parts = Vec::new();
    parts.extend(asked.address.is_none().then(|| format!("the address {}", pod.address)));
    if let (None, Some(labels)) = (&asked.namespace_labels, &pod.namespace_labels) {
        parts.push(match labels.is_empty() {
            true => format!("namespace {} without labels", pod.namespace),
            false => format!("namespace {} with {}", pod.namespace, labels_text(labels)),
        });
    }
    let names: Vec<&str> = pod.ports.iter().map(|it| it.name.as_str()).collect();
    parts.extend((asked.ports.is_none() && !names.is_empty()).then(|| format!("a port named {}", names.join(", "))));
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The verdict's word; `depends` if it is not the same for every pod that the descriptions fit.
pub fn verdict_word(verdict: Option<Verdict>) -> &'static str {
    verdict.map_or("depends", crate::verdict_reasons::verdict_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let found = parse(text).expect("a description").map(|it| super::text(&it));
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn names_and_addresses_are_no_descriptions() {
        assert!(["shop/web", "web", "10.0.0.1", "::1", "deployment/shop/web"].iter().all(|it| parse(it).is_none()));
    }

    #[test]
    fn a_description_has_a_namespace_and_labels() {
        check("shop/tier=front,app=web", Ok("shop/app=web,tier=front"));
        check("shop/app.kubernetes.io/name=web", Ok("shop/app.kubernetes.io/name=web"));
        check("shop/app=", Ok("shop/app="));
        check("shop/=", Ok("shop/="));
        #[cfg(feature = "serde")]
        check("{\"namespace\": \"shop\", \"ip\": \"10.0.0.1\"}", Ok("shop/="));
    }

    #[test]
    fn mistakes_in_a_description_are_named() {
        let layout = "`app=web` is not a description of a pod: write NAMESPACE/KEY=VALUE[,KEY=VALUE]";
        check("app=web", Err(layout));
        check("shop/app=a,app=b", Err("`shop/app=a,app=b` has two values for the label app"));
        check(
            "Shop/app=web",
            Err(
                "the namespace `Shop` must consist of lower case letters, digits and `-`, and start and end with a letter or digit",
            ),
        );
        check("shop/=web", Err("the label `` has an empty name"));
    }
}
