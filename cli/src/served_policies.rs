//! The kinds of policies that an API server serves and Weir does not read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::{Client, Result};
use weir_objects::decode::ForeignPolicyKind;

use crate::api_kinds;

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
        if ForeignPolicyKind::in_unknown_versions().iter().any(|it| it.group == group.name) {
            found.extend(in_unknown_versions(client, &group).await?);
        }
        let version = group.preferred_version.as_ref().or(group.versions.first());
        let Some(version) = version.map(|it| it.group_version.clone()) else { continue };
        if !ForeignPolicyKind::all().iter().any(|it| it.group == group.name) {
            continue;
        }
        let kinds = kinds_of(client, &version).await?;
        let read =
            kinds.into_iter().filter_map(|(kind, path)| Some((ForeignPolicyKind::find(&group.name, &kind)?, path)));
        found.extend(read.map(|(kind, path)| ServedPolicyKind { kind, version: version.clone(), path }));
    }
    Ok(found)
}

/// Whether the server says that it does not have a kind. A 404 alone does not say so: proxies answer it too.
#[cfg(feature = "enforce")]
pub(crate) async fn lacks(client: &Client, resource: &api_kinds::Resource) -> Result<bool> {
    let groups = client.list_api_groups().await?.groups;
    let mut versions = groups.iter().flat_map(|group| &group.versions);
    if !versions.any(|it| it.group_version == resource.version) {
        return Ok(true);
    }
    match kinds_of(client, &resource.version).await {
        Ok(kinds) => Ok(!kinds.iter().any(|(_, path)| *path == resource.path)),
        // The server has answered before: it has the version's name, and no kind of it yet.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
        Err(error) => Err(error),
    }
}

/// Kubernetes' cluster-wide policies that this server serves, but not in the version that Weir reads. Without this,
/// a server that is newer than Weir would look like one that has no such policies.
async fn in_unknown_versions(client: &Client, group: &APIGroup) -> Result<Vec<ServedPolicyKind>> {
    let mut served = Vec::new();
    for version in &group.versions {
        let kinds = kinds_of(client, &version.group_version).await?;
        served.extend(kinds.into_iter().map(|(kind, path)| (kind, version.group_version.clone(), path)));
    }
    let read = api_kinds::kinds();
    let unknown = ForeignPolicyKind::in_unknown_versions().iter().filter_map(|kind| {
        let versions = || served.iter().filter(|(name, ..)| name == kind.kind);
        let is_read = |version: &str| read.iter().any(|it| it.kind == kind.kind && it.version == version);
        if versions().any(|(_, version, _)| is_read(version)) {
            return None;
        }
        let (_, version, path) = versions().next()?;
        Some(ServedPolicyKind { kind, version: version.clone(), path: path.clone() })
    });
    Ok(unknown.collect())
}

/// The kinds of a group's version, each with the path of its list.
async fn kinds_of(client: &Client, version: &str) -> Result<Vec<(String, String)>> {
    let resources = client.list_api_group_resources(version).await?.resources;
    // A name with a slash is a part of another resource: its status.
    let whole = resources.into_iter().filter(|it| !it.name.contains('/'));
    Ok(whole.map(|it| (it.kind, format!("/apis/{version}/{}", it.name))).collect())
}
