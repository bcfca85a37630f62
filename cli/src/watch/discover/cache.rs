//! libcni's result cache: one JSON file for each attachment of a sandbox to a network (`cniCacheV1`).

use std::net::IpAddr;
use std::time::SystemTime;

use serde::Deserialize;

use super::SearchedPod;
use crate::cni::CniResult;

/// The contents of a cache file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` if the container runtime does not pass it on.
    pub(crate) uid: Option<String>,
    /// Interfaces on the host's side, the last created first: a bridge comes before its port.
    pub(crate) host_interfaces: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
    /// When the file was written: at the end of the attachment.
    pub(crate) attached_at: Option<SystemTime>,
}

impl Attachment {
    /// Whether the file is about this pod, and not about an earlier pod with its name.
    pub(super) fn is_of(&self, pod: SearchedPod<'_>) -> bool {
        let same_pod = self.uid.as_deref().zip(pod.uid).is_none_or(|(a, b)| a == b);
        self.namespace == pod.namespace && self.name == pod.name && same_pod
    }

    /// Whether this can be the attachment that has the pod's addresses. Before they are known, every attachment can.
    pub(super) fn could_have(&self, addresses: &[IpAddr]) -> bool {
        addresses.is_empty() || addresses.iter().any(|address| self.addresses.contains(address))
    }
}

/// Parses a file's text; `None` if it is about no pod, or about another interface than the pod's first.
pub(super) fn read(text: &str) -> Result<Option<Attachment>, serde_json::Error> {
    let file: CacheContent = serde_json::from_str(text)?;
    let argument = |key: &str| file.arguments.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
    let named = argument("K8S_POD_NAMESPACE").zip(argument("K8S_POD_NAME"));
    let Some((namespace, name)) = named.filter(|_| file.interface == "eth0") else { return Ok(None) };
    Ok(Some(Attachment {
        namespace,
        name,
        uid: argument("K8S_POD_UID").filter(|uid| !uid.is_empty()),
        host_interfaces: file.result.host_interfaces(&file.interface),
        addresses: file.result.addresses(),
        attached_at: None,
    }))
}

#[derive(Deserialize)]
struct CacheContent {
    #[serde(default, rename = "ifName")]
    interface: String,
    #[serde(default, rename = "cniArgs")]
    arguments: Vec<(String, String)>,
    #[serde(default)]
    result: CniResult,
}
