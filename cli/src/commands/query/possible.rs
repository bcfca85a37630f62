//! Flows whose ends are pods that could exist: they are added to a copy of the cluster, for one question each.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle};
use weir_model::{Cluster, Endpoint, EndpointId, NamedPort, Namespace, NamespaceId, Protocol, Standing};
use weir_objects::origin::ObjectId;

use crate::endpoint_lookup::{parse_ip, parse_protocol};

/// The label that the API server gives every namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A pod that is described instead of named.
#[derive(Clone, Debug)]
pub(super) struct DescribedPod {
    pub(super) namespace: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) namespace_labels: Option<BTreeMap<String, String>>,
    pub(super) ports: Vec<DescribedPort>,
    pub(super) ip: Option<String>,
}

/// A container port of a described pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DescribedPort {
    name: String,
    protocol: Option<String>,
    container_port: u16,
}

/// An end of a flow.
pub(super) enum PossibleFlowEnd {
    /// A pod of the cluster, or an address.
    Known(FlowEnd),
    /// A pod that is added.
    Described(DescribedPod),
}

/// Judges a flow as the reference does, with the described pods in the cluster.
pub(super) fn judge(
    cluster: &Cluster,
    [source, destination]: [PossibleFlowEnd; 2],
    protocol: FlowProtocol,
    port: u16,
) -> Result<Judgement, String> {
    let mut copy = cluster.clone();
    let family_of = |end: &PossibleFlowEnd| match end {
        PossibleFlowEnd::Known(end) => {
            let of_pod = || cluster.endpoints[end.endpoint?.index()].addresses.first().copied();
            end.address.or_else(of_pod)
        }
        PossibleFlowEnd::Described(pod) => pod.ip.as_deref().and_then(|it| parse_ip(it).ok()),
    };
    // A pod without an address gets one of the other end's family; which one does not matter to the one who asks.
    let is_v6 = [&source, &destination].into_iter().find_map(family_of).is_some_and(|it| it.is_ipv6());
    let mut end = |which: &str, end: PossibleFlowEnd| match end {
        PossibleFlowEnd::Known(end) => Ok(end),
        PossibleFlowEnd::Described(pod) => add(&mut copy, pod, is_v6).map_err(|reason| format!("{which}: {reason}")),
    };
    let (source, destination) = (end("src", source)?, end("dst", destination)?);
    Ok(Oracle::new(&copy).judge(&Flow { source, destination, protocol, port }))
}

fn add(cluster: &mut Cluster, pod: DescribedPod, is_v6: bool) -> Result<FlowEnd, String> {
    let address = match &pod.ip {
        Some(text) => parse_ip(text)?,
        None => free_address(cluster, is_v6)?,
    };
    if cluster.endpoints.iter().any(|it| it.standing == Standing::Member && it.addresses.contains(&address)) {
        return Err(format!("a pod already has the address {address}"));
    }
    let namespace = namespace(cluster, &pod)?;
    let port = |it: DescribedPort| {
        let protocol = match it.protocol.as_deref().map(parse_protocol).transpose()? {
            None => Protocol::Tcp,
            Some(FlowProtocol::Transport(protocol)) => protocol,
            Some(FlowProtocol::Icmp) => return Err("a container port has a protocol with ports".to_owned()),
        };
        Ok(NamedPort { name: it.name, protocol, number: it.container_port })
    };
    let named_ports: Vec<NamedPort> = pod.ports.into_iter().map(port).collect::<Result<_, String>>()?;
    let labels = cluster.labels.intern_labels(&Arc::new(pod.labels));
    cluster.endpoints.push(Endpoint {
        namespace,
        name: format!("possible-{}", cluster.endpoints.len()),
        kind: "Pod".into(),
        labels,
        standing: Standing::Member,
        addresses: vec![address],
        node: None,
        named_ports: named_ports.into(),
        owner: None,
        terminating: false,
        uid: None,
        object: ObjectId(0),
    });
    Ok(FlowEnd { endpoint: Some(EndpointId(cluster.endpoints.len() as u32 - 1)), address: Some(address) })
}

/// The pod's namespace, with the labels that the pod's description gives it. Those of a Namespace object stay.
fn namespace(cluster: &mut Cluster, pod: &DescribedPod) -> Result<NamespaceId, String> {
    let known = cluster.namespaces.iter().position(|it| it.name == pod.namespace);
    let mut labels = pod.namespace_labels.clone().unwrap_or_default();
    labels.insert(NAME_LABEL.to_owned(), pod.namespace.clone());
    if let Some(index) = known
        && cluster.namespaces[index].object.is_some()
    {
        let declared = cluster.labels.labels(cluster.namespaces[index].labels);
        if pod.namespace_labels.is_some() && *declared != labels {
            return Err(format!("the input declares the namespace {} with other labels", pod.namespace));
        }
        return Ok(NamespaceId(index as u32));
    }
    let labels = cluster.labels.intern_labels(&Arc::new(labels));
    let index = known.unwrap_or_else(|| {
        cluster.namespaces.push(Namespace { name: pod.namespace.clone(), labels, object: None });
        cluster.namespaces.len() - 1
    });
    if pod.namespace_labels.is_some() {
        cluster.namespaces[index].labels = labels;
    }
    Ok(NamespaceId(index as u32))
}

/// An address that is reserved for documentation and that no pod has.
fn free_address(cluster: &Cluster, is_v6: bool) -> Result<IpAddr, String> {
    let mut candidates = (1..=254u8).map(|last| match is_v6 {
        true => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)]),
        false => IpAddr::from([192, 0, 2, last]),
    });
    let is_free = |address: &IpAddr| cluster.endpoints.iter().all(|it| !it.addresses.contains(address));
    candidates.find(is_free).ok_or_else(|| "give the pod an address with `ip`".to_owned())
}
