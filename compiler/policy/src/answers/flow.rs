//! Flows in the form in which `weir query` takes them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_analysis::reach::ports;
use weir_analysis::world::PossiblePod;
use weir_model::Cluster;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol};
use weir_objects::k8s::Labels;

use crate::endpoint_lookup::reference;

/// A container port of a pod
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ContainerPort {
    /// Its name
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`
    pub protocol: String,
    /// Its number
    pub container_port: u16,
}

/// A pod that stands for the pods that an end describes, with all of its properties
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PodDescription {
    /// Its namespace
    pub namespace: String,
    /// All of its labels
    pub labels: BTreeMap<String, String>,
    /// If the input does not declare the namespace
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub namespace_labels: Option<BTreeMap<String, String>>,
    /// Its named ports
    pub ports: Vec<ContainerPort>,
    /// Its address
    pub ip: IpAddr,
}

/// An end that the input contains, or an address
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct NamedEnd {
    /// `namespace/name`, or `kind/namespace/name` for a workload
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub pod: Option<String>,
    /// Its address
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub ip: Option<IpAddr>,
}

/// An end of a flow
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(untagged))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum FlowSide {
    /// A pod that could exist
    Described(PodDescription),
    /// An end that the input contains, or an address
    Named(NamedEnd),
}

/// A flow as `weir query` takes it
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct FlowDescription {
    /// The source
    pub src: FlowSide,
    /// The destination
    pub dst: FlowSide,
    /// `TCP`, `UDP`, `SCTP` or `ICMP`
    pub proto: String,
    /// The destination port; absent for ICMP
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub port: Option<u16>,
}

impl PodDescription {
    /// The pod with every property, so that it means this pod alone.
    pub fn of(pod: &PossiblePod) -> Self {
        let port = |it: &weir_model::NamedPort| ContainerPort {
            name: it.name.clone(),
            protocol: ports::name(it.protocol).to_owned(),
            container_port: it.number,
        };
        Self {
            namespace: pod.namespace.clone(),
            labels: pod.labels.to_map(),
            namespace_labels: pod.namespace_labels.as_ref().map(Labels::to_map),
            ports: pod.ports.iter().map(port).collect(),
            ip: pod.address,
        }
    }
}

impl FlowDescription {
    /// The flow. Ends without a pod are those of the flow.
    pub fn of(cluster: &Cluster, flow: &Flow, pods: [Option<&PossiblePod>; 2]) -> Self {
        let end = |end: &FlowEnd, pod: Option<&PossiblePod>| match pod {
            Some(pod) => FlowSide::Described(PodDescription::of(pod)),
            None => FlowSide::Named(NamedEnd {
                pod: end.endpoint.map(|id| reference(&cluster.endpoints[id.index()].kind, &cluster.endpoint_name(id))),
                ip: end.address,
            }),
        };
        let (proto, port) = match flow.protocol {
            FlowProtocol::Transport(protocol) => (ports::name(protocol), Some(flow.port)),
            FlowProtocol::Icmp => ("ICMP", None),
        };
        Self { src: end(&flow.source, pods[0]), dst: end(&flow.destination, pods[1]), proto: proto.to_owned(), port }
    }
}
