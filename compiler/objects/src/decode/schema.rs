//! The shapes of the kinds we read: which fields there are and what type each has.
//!
//! One table per kind serves three purposes: finding unknown fields and wrong types, suggesting the field that was
//! meant, and saying on which level a misplaced field belongs. *Strict* structures name every field that the API has;
//! the others name only the fields we read, and whatever else they hold is ignored.

use crate::k8s::MIRROR;

/// The type of a value.
#[derive(Debug)]
pub(crate) enum ValueType {
    /// A string.
    Str,
    /// A truth value.
    Bool,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// A port: a number of 32 bits or a name.
    IntOrStr,
    /// A point in time, as RFC 3339 has it.
    Time,
    /// Any value in which no key occurs twice.
    Any,
    /// A map with free keys and string values.
    StrMap,
    /// A list.
    List(&'static ValueType),
    /// A structure.
    Struct(&'static Fields),
}

/// The fields of a structure.
#[derive(Debug)]
pub(crate) struct Fields {
    /// What happens to a field that is not named here.
    pub(super) others: Others,
    /// Names and types.
    pub(super) fields: &'static [(&'static str, ValueType)],
}

/// The treatment of fields that a structure's table does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// They are errors.
    Refused,
    /// The reader of the structure judges them.
    LeftToReader,
    /// The structure is read only for context, and they say nothing that matters.
    Ignored,
}

use ValueType::{Any, Bool, Int32, Int64, IntOrStr, List, Str, StrMap, Struct, Time};

const fn strict(fields: &'static [(&'static str, ValueType)]) -> Fields {
    Fields { others: Others::Refused, fields }
}

const fn open(fields: &'static [(&'static str, ValueType)]) -> Fields {
    Fields { others: Others::Ignored, fields }
}

/// networking.k8s.io/v1 NetworkPolicy
pub(super) static NETWORK_POLICY: Fields =
    strict(&[("apiVersion", Str), ("kind", Str), ("metadata", Struct(&STRICT_META)), ("spec", Struct(&POLICY_SPEC))]);

static POLICY_SPEC: Fields = strict(&[
    ("podSelector", Struct(&SELECTOR)),
    ("ingress", List(&Struct(&INGRESS_RULE))),
    ("egress", List(&Struct(&EGRESS_RULE))),
    ("policyTypes", List(&Str)),
]);

static INGRESS_RULE: Fields = strict(&[("ports", List(&Struct(&POLICY_PORT))), ("from", List(&Struct(&PEER)))]);
static EGRESS_RULE: Fields = strict(&[("ports", List(&Struct(&POLICY_PORT))), ("to", List(&Struct(&PEER)))]);
static POLICY_PORT: Fields = strict(&[("protocol", Str), ("port", IntOrStr), ("endPort", Int32)]);
static PEER: Fields = strict(&[
    ("podSelector", Struct(&SELECTOR)),
    ("namespaceSelector", Struct(&SELECTOR)),
    ("ipBlock", Struct(&IP_BLOCK)),
]);
static IP_BLOCK: Fields = strict(&[("cidr", Str), ("except", List(&Str))]);
static SELECTOR: Fields = strict(&[("matchLabels", StrMap), ("matchExpressions", List(&Struct(&REQUIREMENT)))]);
static REQUIREMENT: Fields = strict(&[("key", Str), ("operator", Str), ("values", List(&Str))]);

static STRICT_META: Fields = strict(&[
    ("name", Str),
    ("generateName", Str),
    ("namespace", Str),
    ("selfLink", Str),
    ("uid", Str),
    ("resourceVersion", Str),
    ("generation", Int64),
    ("creationTimestamp", Time),
    ("deletionTimestamp", Time),
    ("deletionGracePeriodSeconds", Int64),
    ("labels", StrMap),
    ("annotations", StrMap),
    ("ownerReferences", List(&Struct(&STRICT_OWNER))),
    ("finalizers", List(&Str)),
    ("managedFields", List(&Struct(&MANAGED_FIELDS))),
]);
static STRICT_OWNER: Fields = strict(&[
    ("apiVersion", Str),
    ("kind", Str),
    ("name", Str),
    ("uid", Str),
    ("controller", Bool),
    ("blockOwnerDeletion", Bool),
]);
static MANAGED_FIELDS: Fields = strict(&[
    ("manager", Str),
    ("operation", Str),
    ("apiVersion", Str),
    ("time", Time),
    ("fieldsType", Str),
    ("fieldsV1", Any),
    ("subresource", Str),
]);

/// policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy
pub(super) static CLUSTER_NETWORK_POLICY: Fields = strict(&[
    ("apiVersion", Str),
    ("kind", Str),
    ("metadata", Struct(&STRICT_META)),
    ("spec", Struct(&CLUSTER_POLICY_SPEC)),
    ("status", Any),
]);
static CLUSTER_POLICY_SPEC: Fields = strict(&[
    ("tier", Str),
    ("priority", Int32),
    ("subject", Struct(&CLUSTER_SUBJECT)),
    ("ingress", List(&Struct(&CLUSTER_INGRESS_RULE))),
    ("egress", List(&Struct(&CLUSTER_EGRESS_RULE))),
]);
static CLUSTER_SUBJECT: Fields = strict(&[("namespaces", Struct(&SELECTOR)), ("pods", Struct(&NAMESPACED_POD))]);
static NAMESPACED_POD: Fields = strict(&[("namespaceSelector", Struct(&SELECTOR)), ("podSelector", Struct(&SELECTOR))]);
static CLUSTER_INGRESS_RULE: Fields = strict(&[
    ("name", Str),
    ("action", Str),
    ("from", List(&Struct(&CLUSTER_PEER))),
    ("protocols", List(&Struct(&CLUSTER_PROTOCOL))),
]);
static CLUSTER_EGRESS_RULE: Fields = strict(&[
    ("name", Str),
    ("action", Str),
    ("to", List(&Struct(&CLUSTER_PEER))),
    ("protocols", List(&Struct(&CLUSTER_PROTOCOL))),
]);
/// An API server may send the peers of a newer API. The reader refuses unknown fields in files.
static CLUSTER_PEER: Fields = Fields {
    others: Others::LeftToReader,
    fields: &[
        ("namespaces", Struct(&SELECTOR)),
        ("pods", Struct(&NAMESPACED_POD)),
        ("nodes", Struct(&SELECTOR)),
        ("networks", List(&Str)),
        ("domainNames", List(&Str)),
    ],
};
static CLUSTER_PROTOCOL: Fields = strict(&[
    ("tcp", Struct(&CLUSTER_PORTS)),
    ("udp", Struct(&CLUSTER_PORTS)),
    ("sctp", Struct(&CLUSTER_PORTS)),
    ("destinationNamedPort", Str),
]);
static CLUSTER_PORTS: Fields = strict(&[("destinationPort", Struct(&CLUSTER_PORT))]);
static CLUSTER_PORT: Fields = strict(&[("number", Int32), ("range", Struct(&CLUSTER_PORT_RANGE))]);
static CLUSTER_PORT_RANGE: Fields = strict(&[("start", Int32), ("end", Int32)]);

/// policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy
pub(super) static ADMIN_NETWORK_POLICY: Fields = strict(&[
    ("apiVersion", Str),
    ("kind", Str),
    ("metadata", Struct(&STRICT_META)),
    ("spec", Struct(&ADMIN_POLICY_SPEC)),
    ("status", Any),
]);
static ADMIN_POLICY_SPEC: Fields = strict(&[
    ("priority", Int32),
    ("subject", Struct(&CLUSTER_SUBJECT)),
    ("ingress", List(&Struct(&ADMIN_INGRESS_RULE))),
    ("egress", List(&Struct(&ADMIN_EGRESS_RULE))),
]);
static ADMIN_INGRESS_RULE: Fields = strict(&[
    ("name", Str),
    ("action", Str),
    ("from", List(&Struct(&CLUSTER_PEER))),
    ("ports", List(&Struct(&ADMIN_PORT))),
]);
static ADMIN_EGRESS_RULE: Fields = strict(&[
    ("name", Str),
    ("action", Str),
    ("to", List(&Struct(&CLUSTER_PEER))),
    ("ports", List(&Struct(&ADMIN_PORT))),
]);
static ADMIN_PORT: Fields =
    strict(&[("portNumber", Struct(&ADMIN_PORT_NUMBER)), ("namedPort", Str), ("portRange", Struct(&ADMIN_PORT_RANGE))]);
static ADMIN_PORT_NUMBER: Fields = strict(&[("protocol", Str), ("port", Int32)]);
static ADMIN_PORT_RANGE: Fields = strict(&[("protocol", Str), ("start", Int32), ("end", Int32)]);

/// policy.networking.k8s.io/v1alpha1 BaselineAdminNetworkPolicy
pub(super) static BASELINE_ADMIN_NETWORK_POLICY: Fields = strict(&[
    ("apiVersion", Str),
    ("kind", Str),
    ("metadata", Struct(&STRICT_META)),
    ("spec", Struct(&BASELINE_POLICY_SPEC)),
    ("status", Any),
]);
static BASELINE_POLICY_SPEC: Fields = strict(&[
    ("subject", Struct(&CLUSTER_SUBJECT)),
    ("ingress", List(&Struct(&ADMIN_INGRESS_RULE))),
    ("egress", List(&Struct(&ADMIN_EGRESS_RULE))),
]);

/// weir.dev/v1alpha1 CidrList
pub(super) static CIDR_LIST: Fields = strict(&[
    ("apiVersion", Str),
    ("kind", Str),
    ("metadata", Struct(&STRICT_META)),
    ("spec", Struct(&CIDR_LIST_SPEC)),
]);
static CIDR_LIST_SPEC: Fields = strict(&[
    ("action", Str),
    ("order", Int64),
    ("directions", List(&Str)),
    ("appliesTo", Struct(&APPLIES_TO)),
    ("cidrs", List(&Str)),
]);
static APPLIES_TO: Fields = strict(&[("namespaceSelector", Struct(&SELECTOR)), ("podSelector", Struct(&SELECTOR))]);

static META: Fields = open(&[
    ("name", Str),
    ("generateName", Str),
    ("namespace", Str),
    ("uid", Str),
    ("deletionTimestamp", Str),
    ("labels", StrMap),
    ("ownerReferences", List(&Struct(&OWNER))),
]);
static OWNER: Fields = open(&[("kind", Str), ("name", Str), ("controller", Bool)]);

/// v1 Namespace
pub(super) static NAMESPACE: Fields = open(&[("metadata", Struct(&META))]);

/// v1 Node
pub(super) static NODE: Fields = open(&[("metadata", Struct(&META)), ("status", Struct(&NODE_STATUS))]);
static NODE_STATUS: Fields = open(&[("addresses", List(&Struct(&NODE_ADDRESS)))]);
static NODE_ADDRESS: Fields = open(&[("type", Str), ("address", Str)]);

/// v1 Pod
pub(super) static POD: Fields =
    open(&[("metadata", Struct(&POD_META)), ("spec", Struct(&POD_SPEC)), ("status", Struct(&POD_STATUS))]);
static POD_META: Fields = open(&[
    ("name", Str),
    ("generateName", Str),
    ("namespace", Str),
    ("uid", Str),
    ("deletionTimestamp", Str),
    ("labels", StrMap),
    ("annotations", Struct(&POD_ANNOTATIONS)),
    ("ownerReferences", List(&Struct(&OWNER))),
]);
static POD_ANNOTATIONS: Fields = open(&[(MIRROR, Str)]);
static POD_SPEC: Fields = open(&[
    ("nodeName", Str),
    ("hostNetwork", Bool),
    ("containers", List(&Struct(&CONTAINER))),
    ("initContainers", List(&Struct(&CONTAINER))),
]);
static CONTAINER: Fields = open(&[("ports", List(&Struct(&CONTAINER_PORT))), ("restartPolicy", Str)]);
static CONTAINER_PORT: Fields =
    open(&[("name", Str), ("protocol", Str), ("containerPort", Int32), ("hostPort", Int32), ("hostIP", Str)]);
static POD_STATUS: Fields = open(&[
    ("phase", Str),
    ("podIP", Str),
    ("podIPs", List(&Struct(&POD_IP))),
    ("hostIP", Str),
    ("hostIPs", List(&Struct(&POD_IP))),
    ("conditions", List(&Struct(&CONDITION))),
]);
static POD_IP: Fields = open(&[("ip", Str)]);
static CONDITION: Fields = open(&[("type", Str), ("status", Str)]);

/// Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job
pub(super) static WORKLOAD: Fields = open(&[("metadata", Struct(&META)), ("spec", Struct(&WORKLOAD_SPEC))]);
static WORKLOAD_SPEC: Fields = open(&[("template", Struct(&TEMPLATE))]);

/// apps/v1 StatefulSet
pub(super) static STATEFUL_SET: Fields = open(&[("metadata", Struct(&META)), ("spec", Struct(&STATEFUL_SET_SPEC))]);
static STATEFUL_SET_SPEC: Fields = open(&[("replicas", Int32), ("template", Struct(&TEMPLATE))]);

static TEMPLATE: Fields = open(&[("metadata", Struct(&META)), ("spec", Struct(&POD_SPEC))]);

/// batch/v1 CronJob
pub(super) static CRON_JOB: Fields = open(&[("metadata", Struct(&META)), ("spec", Struct(&CRON_JOB_SPEC))]);
static CRON_JOB_SPEC: Fields = open(&[("jobTemplate", Struct(&JOB_TEMPLATE))]);
static JOB_TEMPLATE: Fields = open(&[("spec", Struct(&WORKLOAD_SPEC))]);

/// v1 Service
pub(super) static SERVICE: Fields =
    open(&[("metadata", Struct(&META)), ("spec", Struct(&SERVICE_SPEC)), ("status", Struct(&SERVICE_STATUS))]);
static SERVICE_SPEC: Fields = open(&[
    ("type", Str),
    ("clusterIP", Str),
    ("clusterIPs", List(&Str)),
    ("externalIPs", List(&Str)),
    ("selector", StrMap),
    ("internalTrafficPolicy", Str),
    ("externalTrafficPolicy", Str),
    ("publishNotReadyAddresses", Bool),
    ("ports", List(&Struct(&SERVICE_PORT))),
]);
static SERVICE_PORT: Fields =
    open(&[("name", Str), ("protocol", Str), ("port", Int32), ("targetPort", IntOrStr), ("nodePort", Int32)]);
static SERVICE_STATUS: Fields = open(&[("loadBalancer", Struct(&LOAD_BALANCER))]);
static LOAD_BALANCER: Fields = open(&[("ingress", List(&Struct(&BALANCER_IP)))]);
static BALANCER_IP: Fields = open(&[("ip", Str), ("ipMode", Str)]);

/// discovery.k8s.io/v1 EndpointSlice
pub(super) static ENDPOINT_SLICE: Fields = open(&[
    ("metadata", Struct(&META)),
    ("addressType", Str),
    ("endpoints", List(&Struct(&ENDPOINT))),
    ("ports", List(&Struct(&SLICE_PORT))),
]);
static ENDPOINT: Fields = open(&[
    ("addresses", List(&Str)),
    ("conditions", Struct(&ENDPOINT_CONDITIONS)),
    ("nodeName", Str),
    ("targetRef", Struct(&TARGET_REF)),
]);
static ENDPOINT_CONDITIONS: Fields = open(&[("ready", Bool), ("serving", Bool), ("terminating", Bool)]);
static TARGET_REF: Fields = open(&[("kind", Str), ("namespace", Str), ("name", Str)]);
static SLICE_PORT: Fields = open(&[("name", Str), ("protocol", Str), ("port", Int32)]);
