//! Pods, workloads and nodes: the fields that policy needs, without validation of the others.

use std::net::IpAddr;

use crate::address;
use crate::k8s::{HostPort, NamedPort, Node, Phase, Pod, Workload};
use crate::name::Name;

use super::report::ObjectFindings;
use super::trail::Trail;
use super::view::ValueView;
use super::{codes, metadata, ports, quirks};

/// Reads a pod.
pub(super) fn read(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> Pod {
    let (spec, status) = (object.get("spec"), object.get("status"));
    let (spec_at, status_at) = (Trail::ROOT.field("spec"), Trail::ROOT.field("status"));
    let ports = container_ports(spec, &spec_at, report);
    Pod {
        node: spec.get("nodeName").name(),
        host_network: spec.get("hostNetwork").bool().unwrap_or(false),
        phase: phase(status.get("phase"), &status_at.field("phase"), report),
        unready: status.get("conditions").items().any(|condition| {
            condition.get("type").str() == Some("Ready") && condition.get("status").str() != Some("True")
        }),
        addresses: addresses(status, "podIPs", "podIP", &status_at, report),
        node_addresses: addresses(status, "hostIPs", "hostIP", &status_at, report).into(),
        ports: ports.named.into(),
        host_ports: ports.of_host,
        owner: metadata::owner(object).map(Name::from),
        static_uid: metadata::static_uid(object).map(Box::from),
    }
}

/// Reads a workload with a pod template in `spec.template`.
pub(super) fn read_workload(object: ValueView<'_, '_>, kind: &str, report: &mut ObjectFindings) -> Workload {
    let template = object.get("spec").get("template");
    workload(object, template, kind, &Trail::ROOT.field("spec").field("template"), report)
}

/// Reads a CronJob, whose template is one level deeper.
pub(super) fn read_cron_job(object: ValueView<'_, '_>, kind: &str, report: &mut ObjectFindings) -> Workload {
    let template = object.get("spec").get("jobTemplate").get("spec").get("template");
    let spec = Trail::ROOT.field("spec");
    let job = spec.field("jobTemplate");
    workload(object, template, kind, &job.field("spec").field("template"), report)
}

fn workload(
    object: ValueView<'_, '_>,
    template: ValueView<'_, '_>,
    kind: &str,
    at: &Trail<'_>,
    report: &mut ObjectFindings,
) -> Workload {
    let spec = template.get("spec");
    Workload {
        kind: kind.to_owned(),
        pod_labels: template.get("metadata").get("labels").labels(),
        host_network: spec.get("hostNetwork").bool().unwrap_or(false),
        ports: container_ports(spec, &at.field("spec"), report).named,
        // A StatefulSet alone never runs a pod and its replacement at the same time
        // (https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#recreate-deployment). A number that is
        // left out may be an autoscaler's to choose.
        at_most_one: kind == "StatefulSet" && object.get("spec").get("replicas").int() == Some(1),
        owner: metadata::owner(object),
    }
}

/// Reads a node. Addresses of other types than InternalIP and ExternalIP may be names: they are kept only if they
/// parse.
pub(super) fn read_node(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> Node {
    let status = Trail::ROOT.field("status");
    let at = status.field("addresses");
    let mut addresses = Vec::new();
    for (index, entry) in object.get("status").get("addresses").items().enumerate() {
        let text = entry.get("address").str().unwrap_or_default();
        let must_parse = matches!(entry.get("type").str(), Some("InternalIP" | "ExternalIP"));
        if must_parse || address::parse_address(text).is_some() {
            addresses.extend(read_address(text, &at.index(index).field("address"), report));
        }
    }
    Node { addresses }
}

/// The addresses of the list, or the single one if the list is empty.
fn addresses(
    status: ValueView<'_, '_>,
    list: &str,
    single: &str,
    at: &Trail<'_>,
    report: &mut ObjectFindings,
) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (index, entry) in status.get(list).items().enumerate() {
        let text = entry.get("ip").str().unwrap_or_default();
        addresses.extend(read_address(text, &at.field(list).index(index).field("ip"), report));
    }
    if addresses.is_empty() {
        let text = status.get(single).str().unwrap_or_default();
        addresses.extend(read_address(text, &at.field(single), report));
    }
    // An agent keeps the pods of the whole cluster, and a list begins with room for four.
    addresses.shrink_to_fit();
    addresses
}

/// Reads an address; `None` for an empty text.
pub(super) fn read_address(text: &str, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<IpAddr> {
    if text.is_empty() {
        return None;
    }
    let Some(parsed) = address::parse_address(text) else {
        report.error(at, |origin| codes::bad_address::at(origin, text));
        return None;
    };
    quirks::warn(text, parsed.value, parsed.quirk, at, report);
    Some(parsed.value)
}

fn phase(phase: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<Phase> {
    match phase.str().unwrap_or_default() {
        "" => None,
        "Pending" => Some(Phase::Pending),
        "Running" => Some(Phase::Running),
        "Succeeded" => Some(Phase::Succeeded),
        "Failed" => Some(Phase::Failed),
        "Unknown" => Some(Phase::Unknown),
        other => {
            report.error(at, |origin| codes::bad_phase::at(origin, other));
            None
        }
    }
}

/// The ports of containers that matter for policies.
#[derive(Default)]
struct ContainerPorts {
    /// The ports with a name.
    named: Vec<NamedPort>,
    /// The ports with a `hostPort`.
    of_host: Vec<HostPort>,
}

/// Ports of the containers, then of the init containers that keep running, each in the order written.
fn container_ports(spec: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> ContainerPorts {
    let mut ports = ContainerPorts::default();
    for list in ["containers", "initContainers"] {
        let at = at.field(list);
        for (index, container) in spec.get(list).items().enumerate() {
            let runs_on = list == "containers" || container.get("restartPolicy").str() == Some("Always");
            if runs_on {
                ports.read(container, &at.index(index).field("ports"), report);
            }
        }
    }
    ports
}

impl ContainerPorts {
    fn read(&mut self, container: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) {
        for (index, port) in container.get("ports").items().enumerate() {
            let at = at.index(index);
            let name = port.get("name").string().filter(|name| !name.is_empty());
            // In the API, 0 means no hostPort.
            let host_port = port.get("hostPort").int().filter(|it| *it != 0);
            if name.is_none() && host_port.is_none() {
                continue;
            }
            let protocol = ports::protocol_or_default(port.get("protocol"), &at.field("protocol"), report);
            let number =
                ports::number(port.get("containerPort").int().unwrap_or(0), &at.field("containerPort"), report);
            let host_port = host_port.and_then(|it| ports::number(it, &at.field("hostPort"), report));
            let text = port.get("hostIP").str().unwrap_or_default();
            let address = host_port.and_then(|_| read_address(text, &at.field("hostIP"), report));
            let (Some(protocol), Some(number)) = (protocol, number) else { continue };
            self.named.extend(name.map(|name| NamedPort { name, protocol, number }));
            self.of_host.extend(host_port.map(|port| HostPort { address, protocol, port, number }));
        }
    }
}
