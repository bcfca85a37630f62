//! Services and EndpointSlices: the fields that policy needs.

use std::net::IpAddr;

use crate::k8s::{EndpointSlice, Service, ServicePort, SliceEndpoint, SlicePort, TargetPort};

use super::pods::read_address;
use super::ports;
use super::report::ObjectFindings;
use super::trail::Trail;
use super::view::ValueView;

/// Reads a service.
pub(super) fn read(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> Service {
    let spec = object.get("spec");
    let is_local = |field| spec.get(field).str() == Some("Local");
    Service {
        cluster_addresses: cluster_addresses(spec, report),
        headless: is_headless(spec),
        external_addresses: external_addresses(object, report),
        selector: spec.get("selector").labels(),
        local_traffic: is_local("internalTrafficPolicy") || is_local("externalTrafficPolicy"),
        publish_not_ready: spec.get("publishNotReadyAddresses").bool().unwrap_or(false),
        external_name: spec.get("type").str() == Some("ExternalName"),
        ports: service_ports(spec.get("ports"), report),
    }
}

fn is_headless(spec: ValueView<'_, '_>) -> bool {
    let first = spec.get("clusterIPs").items().next().and_then(|entry| entry.str());
    [spec.get("clusterIP").str(), first].contains(&Some("None"))
}

fn cluster_addresses(spec: ValueView<'_, '_>, report: &mut ObjectFindings) -> Vec<IpAddr> {
    let at = Trail::ROOT.field("spec");
    let (list, single) = (spec.get("clusterIPs"), spec.get("clusterIP"));
    if list.items().len() > 0 {
        return listed(list, &at.field("clusterIPs"), report);
    }
    let text = single.str().filter(|text| *text != "None").unwrap_or_default();
    read_address(text, &at.field("clusterIP"), report).into_iter().collect()
}

fn external_addresses(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> Vec<IpAddr> {
    let (spec, status) = (Trail::ROOT.field("spec"), Trail::ROOT.field("status"));
    let balancer = status.field("loadBalancer");
    let at = balancer.field("ingress");
    let mut addresses = listed(object.get("spec").get("externalIPs"), &spec.field("externalIPs"), report);
    for (index, entry) in object.get("status").get("loadBalancer").get("ingress").items().enumerate() {
        // Spec: "Setting this to "Proxy" indicates that traffic is delivered to the node or pod with the destination
        // set to the node's IP and node port or the pod's IP and port."
        if entry.get("ipMode").str() == Some("Proxy") {
            continue;
        }
        let text = entry.get("ip").str().unwrap_or_default();
        addresses.extend(read_address(text, &at.index(index).field("ip"), report));
    }
    addresses
}

/// The addresses of a list; the entry `None` (of a headless service) is skipped.
fn listed(list: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Vec<IpAddr> {
    let mut addresses = Vec::with_capacity(list.items().len());
    for (index, entry) in list.items().enumerate() {
        let text = entry.str().filter(|text| *text != "None").unwrap_or_default();
        addresses.extend(read_address(text, &at.index(index), report));
    }
    addresses
}

fn service_ports(ports: ValueView<'_, '_>, report: &mut ObjectFindings) -> Vec<ServicePort> {
    let spec = Trail::ROOT.field("spec");
    let at = spec.field("ports");
    let ports = ports.items().enumerate();
    ports.filter_map(|(index, port)| service_port(port, &at.index(index), report)).collect()
}

fn service_port(entry: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<ServicePort> {
    let protocol = ports::protocol_or_default(entry.get("protocol"), &at.field("protocol"), report);
    let port = ports::number(entry.get("port").int().unwrap_or(0), &at.field("port"), report);
    let target = entry.get("targetPort");
    let target = match (target.int(), target.str()) {
        // The server fills in `port` where these are zero or empty.
        (None | Some(0), None | Some("")) => port.map(TargetPort::Number),
        (Some(number), _) => ports::number(number, &at.field("targetPort"), report).map(TargetPort::Number),
        (None, Some(name)) => Some(TargetPort::Name(name.to_owned())),
    };
    let node_port = entry.get("nodePort").int().filter(|number| *number != 0);
    Some(ServicePort {
        name: entry.get("name").string().unwrap_or_default(),
        protocol: protocol?,
        port: port?,
        target: target?,
        node_port: node_port.and_then(|number| ports::number(number, &at.field("nodePort"), report)),
    })
}

/// Reads a slice. Slices of host names (`addressType: FQDN`) have no endpoints here, because packets carry no names.
pub(super) fn read_slice(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> EndpointSlice {
    let labels = object.get("metadata").get("labels").strings();
    let service = labels.filter(|(key, _)| *key == "kubernetes.io/service-name").last();
    let names = object.get("addressType").str() == Some("FQDN");
    let (endpoints_at, ports_at) = (Trail::ROOT.field("endpoints"), Trail::ROOT.field("ports"));
    let endpoints = object.get("endpoints").items().enumerate().filter(|_| !names);
    let endpoints = endpoints.map(|(index, entry)| endpoint(entry, &endpoints_at.index(index), report)).collect();
    let ports = object.get("ports").items().enumerate();
    let ports = ports.filter_map(|(index, entry)| slice_port(entry, &ports_at.index(index), report)).collect();
    EndpointSlice {
        service: service.map(|(_, name)| name.to_owned()).filter(|name| !name.is_empty()),
        endpoints,
        ports,
    }
}

fn endpoint(entry: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> SliceEndpoint {
    let target = entry.get("targetRef");
    let condition = |name| entry.get("conditions").get(name).bool();
    let pod = target.get("name").string().filter(|name| !name.is_empty() && target.get("kind").str() == Some("Pod"));
    SliceEndpoint {
        addresses: listed(entry.get("addresses"), &at.field("addresses"), report),
        ready: condition("ready").unwrap_or(true),
        serving: condition("serving").unwrap_or(true),
        terminating: condition("terminating").unwrap_or(false),
        node: entry.get("nodeName").name(),
        pod: pod.map(|name| (target.get("namespace").name().unwrap_or_default(), name)),
    }
}

fn slice_port(entry: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<SlicePort> {
    let protocol = ports::protocol_or_default(entry.get("protocol"), &at.field("protocol"), report);
    let number = match entry.get("port").int() {
        None => None,
        Some(number) => Some(ports::number(number, &at.field("port"), report)?),
    };
    Some(SlicePort { name: entry.get("name").string().unwrap_or_default(), protocol: protocol?, number })
}
