//! The kinds of policies that an API server serves and Weir does not read.

use kube::{Client, Result};
use weir_objects::decode::ForeignPolicyKind;

/// A served kind.
#[derive(Clone, Debug)]
pub(crate) struct ServedPolicyKind {
    pub(crate) kind: &'static ForeignPolicyKind,
    /// The `apiVersion` of its objects: the version that the server prefers.
    pub(crate) version: String,
    /// The path of its list.
    pub(crate) path: String,
}

/// Asks the server which groups it serves, and for the kinds of those groups that can have such policies: usually one
/// request, without any object.
pub(crate) async fn served(client: &Client) -> Result<Vec<ServedPolicyKind>> {
    let mut found = Vec::new();
    for group in client.list_api_groups().await?.groups {
        let version = group.preferred_version.as_ref().or(group.versions.first());
        let Some(version) = version.map(|it| it.group_version.clone()) else { continue };
        if !ForeignPolicyKind::all().iter().any(|it| it.group == group.name) {
            continue;
        }
        for resource in client.list_api_group_resources(&version).await?.resources {
            // A name with a slash is a part of another resource: its status.
            let kind = ForeignPolicyKind::find(&group.name, &resource.kind).filter(|_| !resource.name.contains('/'));
            let path = format!("/apis/{version}/{}", resource.name);
            found.extend(kind.map(|kind| ServedPolicyKind { kind, version: version.clone(), path }));
        }
    }
    Ok(found)
}
