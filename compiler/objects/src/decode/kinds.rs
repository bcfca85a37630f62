//! The kinds that are read, and the treatment of all others.
//!
//! An object is identified by group, version and kind together, because other projects have a `NetworkPolicy` of their
//! own. A skipped object must never be a policy that was meant for Weir, so names and versions that nearly match are
//! errors.

use crate::k8s::{Body, ClusterPolicyKind};
use crate::origin::FieldOrigin;

use super::codes;
use super::report::ObjectFindings;
use super::schema::{self, Fields};
use super::suggest::{is_typo, nearest};
use super::trail::Trail;
use super::view::ValueView;
use super::{cidr_list, cluster_policy, pods, policy, services};

/// A kind that is read.
#[derive(Debug)]
pub(super) struct ReadKind {
    /// The `apiVersion` of its objects.
    pub(super) version: &'static str,
    /// The `kind` of its objects.
    pub(super) name: &'static str,
    /// Whether its objects are namespaced.
    pub(super) namespaced: bool,
    /// The shape of its objects.
    pub(super) fields: &'static Fields,
    /// Reads an object whose shape has been checked.
    pub(super) read: fn(ValueView<'_, '_>, &ReadKind, &mut ObjectFindings) -> Body,
}

const POLICY_VERSION: &str = "networking.k8s.io/v1";
const CLUSTER_POLICY_VERSION: &str = "policy.networking.k8s.io/v1alpha2";
const ADMIN_POLICY_VERSION: &str = "policy.networking.k8s.io/v1alpha1";
const LIST_VERSION: &str = "weir.dev/v1alpha1";

static KINDS: [ReadKind; 17] = [
    kind(POLICY_VERSION, "NetworkPolicy", &schema::NETWORK_POLICY, |object, _, report| {
        Body::NetworkPolicy(policy::read(object, report))
    }),
    cluster_policy(
        CLUSTER_POLICY_VERSION,
        "ClusterNetworkPolicy",
        &schema::CLUSTER_NETWORK_POLICY,
        |object, _, report| {
            Body::ClusterPolicy(cluster_policy::read(object, ClusterPolicyKind::ClusterNetworkPolicy, report).into())
        },
    ),
    cluster_policy(ADMIN_POLICY_VERSION, "AdminNetworkPolicy", &schema::ADMIN_NETWORK_POLICY, |object, _, report| {
        Body::ClusterPolicy(cluster_policy::read(object, ClusterPolicyKind::AdminNetworkPolicy, report).into())
    }),
    cluster_policy(
        ADMIN_POLICY_VERSION,
        "BaselineAdminNetworkPolicy",
        &schema::BASELINE_ADMIN_NETWORK_POLICY,
        |object, _, report| {
            Body::ClusterPolicy(
                cluster_policy::read(object, ClusterPolicyKind::BaselineAdminNetworkPolicy, report).into(),
            )
        },
    ),
    ReadKind {
        namespaced: false,
        ..kind(LIST_VERSION, "CidrList", &schema::CIDR_LIST, |object, _, report| {
            Body::CidrList(cidr_list::read(object, report).into())
        })
    },
    kind("v1", "Pod", &schema::POD, |object, _, report| Body::Pod(pods::read(object, report))),
    ReadKind { namespaced: false, ..kind("v1", "Namespace", &schema::NAMESPACE, |_, _, _| Body::Namespace) },
    ReadKind {
        namespaced: false,
        ..kind("v1", "Node", &schema::NODE, |object, _, report| Body::Node(pods::read_node(object, report)))
    },
    kind("v1", "Service", &schema::SERVICE, |object, _, report| Body::Service(services::read(object, report))),
    kind("discovery.k8s.io/v1", "EndpointSlice", &schema::ENDPOINT_SLICE, |object, _, report| {
        Body::EndpointSlice(services::read_slice(object, report))
    }),
    workload("v1", "ReplicationController"),
    workload("apps/v1", "Deployment"),
    ReadKind { fields: &schema::STATEFUL_SET, ..workload("apps/v1", "StatefulSet") },
    workload("apps/v1", "DaemonSet"),
    workload("apps/v1", "ReplicaSet"),
    workload("batch/v1", "Job"),
    kind("batch/v1", "CronJob", &schema::CRON_JOB, |object, kind, report| {
        Body::Workload(pods::read_cron_job(object, kind.name, report))
    }),
];

const fn kind(
    version: &'static str,
    name: &'static str,
    fields: &'static Fields,
    read: fn(ValueView<'_, '_>, &ReadKind, &mut ObjectFindings) -> Body,
) -> ReadKind {
    ReadKind { version, name, namespaced: true, fields, read }
}

const fn cluster_policy(
    version: &'static str,
    name: &'static str,
    fields: &'static Fields,
    read: fn(ValueView<'_, '_>, &ReadKind, &mut ObjectFindings) -> Body,
) -> ReadKind {
    ReadKind { namespaced: false, ..kind(version, name, fields, read) }
}

const fn workload(version: &'static str, name: &'static str) -> ReadKind {
    kind(version, name, &schema::WORKLOAD, |object, kind, report| {
        Body::Workload(pods::read_workload(object, kind.name, report))
    })
}

/// The kind with this name. No two have the same.
pub(super) fn named(name: &str) -> Option<&'static ReadKind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// The result of identifying an object by its `apiVersion` and `kind`.
#[derive(Debug)]
pub(super) enum KindLookup<'k> {
    /// A kind that is read.
    Known(&'static ReadKind),
    /// A list; its items are of this kind unless they name another.
    List(Option<&'k str>),
    /// A kind of another project.
    Other,
    /// Probably a misspelt kind that is read; the name is the correct one.
    UnknownKind(&'static str),
    /// A kind that is read, in a version that is not served; the text is the served version.
    Unserved(&'static str),
}

/// Identifies an object. `items` is true if it has a field of that name.
pub(super) fn identify<'k>(version: &str, kind: &'k str, items: bool) -> KindLookup<'k> {
    if let Some(known) = find(version, kind) {
        return KindLookup::Known(known);
    }
    match kind.strip_suffix("List") {
        Some("") if items || version == "v1" => return KindLookup::List(None),
        Some(item) if item != "Cidr" && !item.is_empty() && (items || find(version, item).is_some()) => {
            return KindLookup::List(Some(item));
        }
        _ => {}
    }
    near_miss(version, kind).unwrap_or(KindLookup::Other)
}

fn find(version: &str, kind: &str) -> Option<&'static ReadKind> {
    KINDS.iter().find(|known| known.name == kind && known.version == version)
}

fn near_miss<'k>(version: &str, kind: &str) -> Option<KindLookup<'k>> {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    // Groups without a dot, and those of k8s.io, belong to Kubernetes; of these only networking.k8s.io has the kind.
    let kubernetes = !group.contains('.') || group.ends_with(".k8s.io") || is_typo(group, "networking.k8s.io");
    let ours = is_typo(group, "weir.dev");
    match kind {
        "NetworkPolicy" if kubernetes => return Some(KindLookup::Unserved(POLICY_VERSION)),
        "ClusterNetworkPolicy" if is_policy_api(group) => return Some(KindLookup::Unserved(CLUSTER_POLICY_VERSION)),
        "AdminNetworkPolicy" | "BaselineAdminNetworkPolicy" if is_policy_api(group) => {
            return Some(KindLookup::Unserved(ADMIN_POLICY_VERSION));
        }
        "CidrList" if ours || version == "v1" => return Some(KindLookup::Unserved(LIST_VERSION)),
        _ => {}
    }
    if group == "weir.dev" {
        return Some(KindLookup::UnknownKind("CidrList"));
    }
    if is_policy_api(group) {
        let kinds = ["ClusterNetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"];
        return nearest(kind, kinds).map(KindLookup::UnknownKind);
    }
    let policy_group = matches!(group, "networking.k8s.io" | "extensions");
    let meant = nearest(kind, ["NetworkPolicy", "NetworkPolicyList"]).filter(|_| policy_group);
    meant.map(KindLookup::UnknownKind)
}

fn is_policy_api(group: &str) -> bool {
    group == "policy.networking.k8s.io" || is_typo(group, "policy.networking.k8s.io")
}

/// Reports the missing field of an object that has only one of `apiVersion` and `kind`.
pub(super) fn report_missing(version: &str, kind: &str, report: &mut ObjectFindings) {
    let (missing, known) = if version.is_empty() {
        ("apiVersion", KINDS.iter().find(|known| known.name == kind).map(|known| (known.version, known.name)))
    } else {
        let mut same = KINDS.iter().filter(|known| known.version == version);
        ("kind", same.next().filter(|_| same.next().is_none()).map(|known| (known.name, known.version)))
    };
    report.error(&Trail::ROOT, |origin: FieldOrigin| codes::missing_kind::at(origin, missing, known));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(version: &str, kind: &str, expected: &str) {
        let found = match identify(version, kind, kind.ends_with("List")) {
            KindLookup::Known(kind) => format!("known {}", kind.name),
            KindLookup::List(item) => format!("list {}", item.unwrap_or("of anything")),
            KindLookup::Other => "other".to_owned(),
            KindLookup::UnknownKind(meant) => format!("meant {meant}"),
            KindLookup::Unserved(version) => format!("served in {version}"),
        };
        assert_eq!(found, expected, "{version} {kind}");
    }

    #[test]
    fn kinds_go_by_group_and_version() {
        check("networking.k8s.io/v1", "NetworkPolicy", "known NetworkPolicy");
        for version in ["crd.projectcalico.org/v1", "networking.k8s.aws/v1", "networking.gke.io/v1", "crd.antrea.io/v1"]
        {
            check(version, "NetworkPolicy", "other");
        }
        check("networking.k8s.io/v1", "Ingress", "other");
        check("v1", "Secret", "other");
        check("weir.dev/v1alpha1", "CidrList", "known CidrList");
    }

    #[test]
    fn lists_of_every_kind_are_looked_into() {
        check("v1", "List", "list of anything");
        check("v1", "PodList", "list Pod");
        check("networking.k8s.io/v1", "NetworkPolicyList", "list NetworkPolicy");
        check("weir.dev/v1alpha1", "CidrListList", "list CidrList");
    }

    #[test]
    fn near_misses_are_not_passed_over() {
        for version in
            ["extensions/v1beta1", "networking.k8s.io/v1beta1", "v1", "networkin.k8s.io/v1", "networking.k8s.io"]
        {
            check(version, "NetworkPolicy", "served in networking.k8s.io/v1");
        }
        for kind in ["networkpolicy", "NetworkPolicies", "Networkpolicy", "NetworkPolcy"] {
            check("networking.k8s.io/v1", kind, "meant NetworkPolicy");
        }
        check("weir.dev/v1", "CidrList", "served in weir.dev/v1alpha1");
        check("weir.dev/v1alpha1", "CIDRBlock", "meant CidrList");
    }
}
