//! The kinds of objects that Weir reads from the Kubernetes API, and their paths: for the agent and for `cluster:`.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// A kind of objects in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: &'static str,
    pub(crate) version: Cow<'static, str>,
    /// Its path on the server.
    pub(crate) path: Cow<'static, str>,
    /// Selects the objects that the server sends; all if it is `None`.
    pub(crate) field_selector: Option<String>,
    /// Whether a server may lack the kind. Then it has no objects of the kind.
    pub(crate) optional: bool,
}

impl Resource {
    pub(crate) fn new(
        kind: &'static str,
        version: impl Into<Cow<'static, str>>,
        path: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { kind, version: version.into(), path: path.into(), field_selector: None, optional: false }
    }
}

const CLUSTER_POLICIES: &str = "policy.networking.k8s.io/v1alpha2";
const ADMIN_POLICIES: &str = "policy.networking.k8s.io/v1alpha1";

/// The kinds that the agent watches.
pub(crate) fn kinds() -> Vec<Resource> {
    vec![
        Resource::new("Namespace", "v1", "/api/v1/namespaces"),
        Resource::new("Node", "v1", "/api/v1/nodes"),
        Resource::new("Pod", "v1", "/api/v1/pods"),
        Resource::new("Service", "v1", "/api/v1/services"),
        Resource::new("EndpointSlice", "discovery.k8s.io/v1", "/apis/discovery.k8s.io/v1/endpointslices"),
        Resource::new("NetworkPolicy", "networking.k8s.io/v1", "/apis/networking.k8s.io/v1/networkpolicies"),
        Resource {
            optional: true,
            ..Resource::new("ClusterNetworkPolicy", CLUSTER_POLICIES, api(CLUSTER_POLICIES, "clusternetworkpolicies"))
        },
        Resource {
            optional: true,
            ..Resource::new("AdminNetworkPolicy", ADMIN_POLICIES, api(ADMIN_POLICIES, "adminnetworkpolicies"))
        },
        Resource {
            optional: true,
            ..Resource::new(
                "BaselineAdminNetworkPolicy",
                ADMIN_POLICIES,
                api(ADMIN_POLICIES, "baselineadminnetworkpolicies"),
            )
        },
        Resource {
            optional: true,
            ..Resource::new("CidrList", "weir.dev/v1alpha1", "/apis/weir.dev/v1alpha1/cidrlists")
        },
    ]
}

fn api(version: &str, kind: &str) -> String {
    format!("/apis/{version}/{kind}")
}

/// The characters of a query's value that need no escape sequence are letters, digits and these.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a value for a query.
pub(crate) fn escape(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ESCAPED)
}
