//! The kinds that the agent watches: their paths in the API, and how their objects are decoded.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;
use weir_classes::index::Key;
use weir_objects::decode::{self, DecodeOptions, Input, InputKind};
use weir_objects::diagnostic::{FindingPlace, Severity};
use weir_objects::k8s::Object;

use super::partial;
use super::scope::WatchScope;
pub(crate) use crate::api_kinds::{Resource, kinds};

/// The kinds of cluster-wide policies.
pub(crate) const CLUSTER_POLICY_KINDS: [&str; 3] =
    ["ClusterNetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"];

/// Whether the objects of a kind are policies or lists, which verdicts name.
pub(crate) fn has_rules(kind: &str) -> bool {
    matches!(kind, "NetworkPolicy" | "CidrList") || CLUSTER_POLICY_KINDS.contains(&kind)
}

/// [`kinds`], with the objects that the agent of this node follows before it knows any policy.
pub(crate) fn resources(node: &str) -> Vec<Resource> {
    let select = |resource: Resource| Resource {
        field_selector: WatchScope::initial(resource.kind).field_selector(resource.kind, node),
        ..resource
    };
    kinds().into_iter().map(select).collect()
}

/// The fields that every object has, even one that cannot be decoded.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Head {
    #[serde(default)]
    pub(crate) metadata: HeadMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeadMeta {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) namespace: String,
    #[serde(default)]
    pub(crate) uid: Option<String>,
    #[serde(default)]
    pub(crate) resource_version: Option<String>,
    /// Only read in bookmarks.
    #[serde(default)]
    pub(crate) annotations: Option<std::collections::BTreeMap<String, String>>,
}

impl Resource {
    /// The key of an object of this kind.
    pub(crate) fn key(&self, meta: &HeadMeta) -> Key {
        Key { kind: self.kind.to_owned(), namespace: meta.namespace.clone(), name: meta.name.clone() }
    }

    /// Decodes an object that the API sent. The errors are the same as for an object in a file.
    pub(crate) fn object(&self, text: &str) -> Result<Object, String> {
        self.decode(text.as_bytes().to_vec())
    }

    /// The readable parts of an object that cannot be read as a whole.
    pub(crate) fn readable_parts(&self, head: &Head, text: &str) -> Option<Object> {
        let mut written: Value = serde_json::from_str(text).ok()?;
        (written["apiVersion"], written["kind"]) = (self.version.as_ref().into(), self.kind.into());
        let object = partial::readable_parts(self.kind, &written, &|it| self.decode(it.to_string().into_bytes()).ok());
        object.filter(|object| Key::of(object) == self.key(&head.metadata))
    }

    fn decode(&self, bytes: Vec<u8>) -> Result<Object, String> {
        let input = Input { name: self.path.to_string(), bytes, kind: InputKind::Sent(self.kind) };
        let (decoded, diagnostics) =
            decode::decode(vec![input], &DecodeOptions { default_namespace: String::new(), is_from_server: true });
        let errors = diagnostics.iter().filter(|it| it.severity == Severity::Error);
        let errors: Vec<String> =
            errors.map(|it| format!("{}{} [{}]", field(&it.primary.place), it.message, it.code.name)).collect();
        match <[Object; 1]>::try_from(decoded.objects) {
            Ok([object]) if errors.is_empty() => Ok(object),
            _ if errors.is_empty() => Err(format!("the object is not a {}", self.kind)),
            _ => Err(errors.join("; ")),
        }
    }
}

/// The field that a finding is about, as the beginning of a message.
pub(super) fn field(place: &FindingPlace) -> String {
    match place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) if !origin.path.steps().is_empty() => {
            format!("{}: ", origin.path)
        }
        _ => String::new(),
    }
}
