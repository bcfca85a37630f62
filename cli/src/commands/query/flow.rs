//! One line of the input: a flow as it was written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use weir_analysis::world::AskedEnd;
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol};
use weir_policy::endpoint_lookup::{EndpointLookup, parse_protocol};
use weir_policy::possible_pods::{self, WrittenPod};
use weir_policy::similar_name::most_similar;

/// Text that is borrowed from the line where it has no escapes. (Within an `Option`, only a newtype is.)
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct BorrowedText<'l>(#[serde(borrow)] Cow<'l, str>);

/// A flow as it was written. Unknown fields are allowed, because they belong to the program that asks; but not in an
/// end that describes a pod ([`DescribedEnds`]): a misspelt field there would describe other pods.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `src`, `dst`, `proto` and `port`")]
pub(super) struct WrittenFlow<'l> {
    #[serde(borrow, default)]
    id: Option<&'l RawValue>,
    #[serde(borrow)]
    src: WrittenEnd<'l>,
    #[serde(borrow)]
    dst: WrittenEnd<'l>,
    #[serde(borrow)]
    proto: BorrowedText<'l>,
    #[serde(default)]
    port: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `pod`, `ip`, or `namespace` and `labels`")]
struct WrittenEnd<'l> {
    #[serde(borrow, default)]
    pod: Option<BorrowedText<'l>>,
    #[serde(borrow, default)]
    ip: Option<BorrowedText<'l>>,
    /// A namespace without `pod`: a pod that is described.
    #[serde(borrow, default)]
    namespace: Option<BorrowedText<'l>>,
    #[serde(borrow, default)]
    labels: Option<&'l RawValue>,
    #[serde(borrow, default, rename = "namespaceLabels")]
    namespace_labels: Option<&'l RawValue>,
    #[serde(borrow, default)]
    ports: Option<&'l RawValue>,
}

/// The names of the fields in the ends of a flow.
#[derive(Debug, Deserialize)]
struct DescribedEnds {
    src: BTreeMap<String, IgnoredAny>,
    dst: BTreeMap<String, IgnoredAny>,
}

/// The fields of an end that describes a pod.
const DESCRIPTION: [&str; 5] = ["namespace", "labels", "namespaceLabels", "ports", "ip"];

/// The parts of a line that can be read even if it is no valid flow.
#[derive(Debug, Deserialize)]
struct LineWithId<'l> {
    #[serde(borrow, default)]
    id: Option<&'l RawValue>,
}

/// A line of the input.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every line is a flow, and a box would cost each an allocation")]
pub(super) enum FlowLine<'l> {
    Flow(WrittenFlow<'l>),
    Bad { id: Option<&'l RawValue>, reason: String },
}

impl<'l> FlowLine<'l> {
    pub(super) fn parse(line: &'l [u8]) -> Self {
        match serde_json::from_slice(line) {
            Ok(written) => match unknown_in_description(line, &written) {
                Some(reason) => Self::Bad { id: written.id, reason },
                None => Self::Flow(written),
            },
            Err(error) => {
                let id = serde_json::from_slice::<LineWithId<'_>>(line).ok().and_then(|it| it.id);
                // The position is within this line: "at line 1" would mislead.
                let reason = error.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default();
                Self::Bad { id, reason: format!("not a flow: {}", reason.replace("i64", "a port number")) }
            }
        }
    }

    /// The flow's `id` as it was written: any JSON value.
    pub(super) fn id(&self) -> Option<&'l RawValue> {
        match self {
            Self::Flow(written) => written.id,
            Self::Bad { id, .. } => *id,
        }
    }

    pub(super) fn flow(&self) -> Result<&WrittenFlow<'l>, String> {
        match self {
            Self::Flow(written) => Ok(written),
            Self::Bad { reason, .. } => Err(reason.clone()),
        }
    }
}

/// Why the description of a pod cannot be read as it was meant.
fn unknown_in_description(line: &[u8], written: &WrittenFlow<'_>) -> Option<String> {
    if !written.is_possible() && !written.names_and_describes() {
        return None;
    }
    let DescribedEnds { src, dst } = serde_json::from_slice(line).ok()?;
    [("src", &written.src, src), ("dst", &written.dst, dst)].into_iter().find_map(|(which, end, fields)| {
        if end.names_and_describes() {
            return Some(format!("{which}: `pod` names a pod of the input, and `labels` describes one: leave one out"));
        }
        let unknown = fields.keys().find(|name| end.is_described() && !DESCRIPTION.contains(&name.as_str()))?;
        let hint = match most_similar(unknown, DESCRIPTION) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the description of a pod has {}", DESCRIPTION.map(|it| format!("`{it}`")).join(", ")),
        };
        Some(format!("{which}: unknown field `{unknown}`; {hint}"))
    })
}

impl WrittenFlow<'_> {
    fn names_and_describes(&self) -> bool {
        [&self.src, &self.dst].into_iter().any(WrittenEnd::names_and_describes)
    }

    /// Whether an end is a pod that is described instead of named.
    pub(super) fn is_possible(&self) -> bool {
        [&self.src, &self.dst].into_iter().any(WrittenEnd::is_described)
    }

    /// The ends, protocol and port of a flow with a described end.
    pub(super) fn possible_ends<'c>(
        &self,
        lookup: &EndpointLookup<'c>,
        directory: &Directory<'c>,
    ) -> Result<([AskedEnd; 2], (FlowProtocol, u16)), String> {
        let target = self.target()?;
        let end = |which: &str, end: &WrittenEnd<'_>| {
            let found = match end.is_described() {
                true => end.described(),
                false => end.named(lookup, directory).map(|it| possible_pods::known(lookup.cluster, it)),
            };
            found.map_err(|reason| format!("{which}: {reason}"))
        };
        Ok(([end("src", &self.src)?, end("dst", &self.dst)?], target))
    }

    fn target(&self) -> Result<(FlowProtocol, u16), String> {
        let protocol = parse_protocol(&self.proto.0)?;
        let port = match (protocol, self.port) {
            (FlowProtocol::Icmp, _) => 0,
            (FlowProtocol::Transport(_), None) => return Err(format!("{} needs a port", self.proto.0)),
            (_, Some(port)) => u16::try_from(port).map_err(|_| format!("{port} is not a port"))?,
        };
        Ok((protocol, port))
    }

    /// The names of the ends that are named.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        [&self.src, &self.dst].into_iter().filter_map(|end| end.pod.as_ref().map(|it| &*it.0))
    }

    /// Finds the flow between the ends that the names and addresses refer to.
    pub(super) fn resolve<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Result<Flow, String> {
        let (protocol, port) = self.target()?;
        let end = |which: &str, end: &WrittenEnd<'_>| {
            end.named(lookup, directory).map_err(|reason| format!("{which}: {reason}"))
        };
        let (source, destination) = lookup.choose_addresses(end("src", &self.src)?, end("dst", &self.dst)?)?;
        Ok(Flow { source, destination, protocol, port })
    }
}

impl WrittenEnd<'_> {
    fn is_described(&self) -> bool {
        self.pod.is_none() && (self.namespace.is_some() || self.labels.is_some())
    }

    fn names_and_describes(&self) -> bool {
        self.pod.is_some() && self.labels.is_some()
    }

    fn described(&self) -> Result<AskedEnd, String> {
        let text = |text: &Option<BorrowedText<'_>>| text.as_ref().map(|it| it.0.to_string());
        let written = WrittenPod {
            namespace: text(&self.namespace).ok_or("a described pod needs a `namespace`")?,
            labels: part(self.labels, "labels")?.unwrap_or_default(),
            namespace_labels: part(self.namespace_labels, "namespaceLabels")?,
            ports: part(self.ports, "ports")?,
            ip: text(&self.ip),
        };
        Ok(AskedEnd::Described(written.pod()?))
    }

    fn named<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Result<FlowEnd, String> {
        let text = |text: &Option<BorrowedText<'_>>| text.as_ref().map(|it| it.0.to_string());
        lookup.end(directory, text(&self.pod).as_deref(), text(&self.ip).as_deref())
    }
}

/// A part of a described pod.
fn part<T: DeserializeOwned>(written: Option<&RawValue>, name: &str) -> Result<Option<T>, String> {
    let parsed = written.map(|written| serde_json::from_str(written.get())).transpose();
    parsed.map_err(|error| format!("{name}: {}", error.to_string().split(" at line ").next().unwrap_or_default()))
}
