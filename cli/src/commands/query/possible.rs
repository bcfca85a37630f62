//! Flows whose ends are pods that could exist: they are added to a copy of the cluster, for one question each.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle};
use weir_model::{AddedPod, Cluster, NamedPort, Protocol, Standing};
use weir_objects::k8s::NAMESPACE_NAME_LABEL;

use crate::endpoint_lookup::{parse_ip, parse_protocol};

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
    let declared = cluster.namespaces.iter().find(|it| it.name == pod.namespace && it.object.is_some());
    if let (Some(declared), Some(labels)) = (declared, &pod.namespace_labels) {
        let mut described = labels.clone();
        described.insert(NAMESPACE_NAME_LABEL.to_owned(), pod.namespace.clone());
        if *cluster.labels.labels(declared.labels) != described {
            return Err(format!("the input declares the namespace {} with other labels", pod.namespace));
        }
    }
    let port = |it: DescribedPort| {
        let protocol = match it.protocol.as_deref().map(parse_protocol).transpose()? {
            None => Protocol::Tcp,
            Some(FlowProtocol::Transport(protocol)) => protocol,
            Some(FlowProtocol::Icmp) => return Err("a container port has a protocol with ports".to_owned()),
        };
        Ok(NamedPort { name: it.name, protocol, number: it.container_port })
    };
    let ports: Vec<NamedPort> = pod.ports.into_iter().map(port).collect::<Result<_, String>>()?;
    let DescribedPod { namespace, labels, namespace_labels, .. } = pod;
    let endpoint = cluster.add_pod(AddedPod { namespace, namespace_labels, labels, ports, address });
    Ok(FlowEnd { endpoint: Some(endpoint), address: Some(address) })
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
