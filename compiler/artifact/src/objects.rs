//! The objects that an artifact was made from, reduced to the fields that Weir reads: with them, the artifact can be
//! explained without the files.
//!
//! JSON as the decoder reads it, sorted by kind, namespace and name. It contains only fields that verdicts can depend
//! on: no container's environment, and no annotation but [`MODE`] and [`MIRROR`].

mod cluster_policy;

use std::net::IpAddr;

use super::json::Json;
use weir_objects::k8s::{
    Body, CidrList, ClusterPolicyKind, EndpointSlice, HostPort, LabelSelector, Labels, ListAction, ListEntry, MIRROR,
    MODE, Meta, Mode, NamedPort, NetworkPolicy, Node, Object, Operator, Phase, Pod, PolicyPeer, PolicyPort, PolicyRule,
    PolicyType, PortMatch, Protocol, Requirement, Service, ServicePort, SliceEndpoint, SlicePort, TargetPort, Workload,
};

/// The label with the name of the service that a slice belongs to.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A `List` of the objects.
pub fn objects(objects: &[Object]) -> String {
    let mut sorted: Vec<&Object> = objects.iter().collect();
    sorted.sort_by_key(|it| (api_version(&it.body), it.body.kind(), &it.meta.namespace, &it.meta.name));
    // An object's tree is many times larger than its text, so only one tree exists at a time.
    let mut out = "{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"List\",\n  \"items\": [".to_owned();
    for (index, item) in sorted.into_iter().enumerate() {
        out.push_str(if index == 0 { "\n    " } else { ",\n    " });
        object(item).write(&mut out, 2);
    }
    out.push_str(if objects.is_empty() { "]\n}\n" } else { "\n  ]\n}\n" });
    out
}

/// Compresses the text, because the same words occur for every pod.
pub(super) fn pack(objects: &str) -> Vec<u8> {
    lz4_flex::block::compress_prepend_size(objects.as_bytes())
}

/// The text that was stored. `None` if the data is damaged, or claims a length that compression cannot reach.
pub(super) fn unpack(stored: &[u8]) -> Option<String> {
    const MOST_RATIO: usize = 255;
    let (length, _) = stored.split_first_chunk()?;
    let is_possible = u32::from_le_bytes(*length) as usize <= MOST_RATIO * stored.len();
    let bytes = is_possible.then(|| lz4_flex::block::decompress_size_prepended(stored).ok())??;
    String::from_utf8(bytes).ok()
}

fn api_version(body: &Body) -> &'static str {
    match body {
        Body::Namespace | Body::Node(_) | Body::Pod(_) | Body::Service(_) => "v1",
        Body::EndpointSlice(_) => "discovery.k8s.io/v1",
        Body::NetworkPolicy(_) => "networking.k8s.io/v1",
        Body::ClusterPolicy(policy) => match policy.kind {
            ClusterPolicyKind::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
            ClusterPolicyKind::AdminNetworkPolicy | ClusterPolicyKind::BaselineAdminNetworkPolicy => {
                "policy.networking.k8s.io/v1alpha1"
            }
        },
        Body::CidrList(_) => "weir.dev/v1alpha1",
        Body::Workload(workload) => match workload.kind.as_str() {
            "ReplicationController" => "v1",
            "Job" | "CronJob" => "batch/v1",
            _ => "apps/v1",
        },
    }
}

fn object(object: &Object) -> Json<'_> {
    let (version, name) = (api_version(&object.body), object.body.kind());
    let owner = match &object.body {
        Body::Workload(workload) => workload.owner.as_deref(),
        _ => None,
    };
    let mut all = vec![("apiVersion", text(version)), ("kind", text(name)), ("metadata", meta(object, owner))];
    match &object.body {
        Body::Namespace => {}
        Body::Node(it) => all.push(("status", node(it))),
        Body::Pod(it) => all.extend([("spec", pod_spec(it)), ("status", pod_status(it))]),
        Body::Workload(it) => all.push(("spec", workload(it))),
        Body::Service(it) => all.push(("spec", service(it))),
        Body::EndpointSlice(it) => all.extend(slice(it)),
        Body::NetworkPolicy(it) => all.push(("spec", policy(it))),
        Body::ClusterPolicy(it) => all.push(("spec", cluster_policy::spec(it))),
        Body::CidrList(it) => all.push(("spec", list(it))),
    }
    members(all)
}

fn meta<'a>(object: &'a Object, owner: Option<&'a str>) -> Json<'a> {
    let Meta { name, namespace, uid, labels, deleting } = &object.meta;
    let name = match &object.body {
        // The name of a list file may not be valid as an object's name; no verdict depends on it.
        Body::CidrList(_) => object_name(name).into(),
        _ => text(name),
    };
    let mut all = vec![("name", name)];
    all.extend((!namespace.is_empty()).then(|| ("namespace", text(namespace))));
    all.extend(uid.as_ref().map(|uid| ("uid", text(uid))));
    let service = match &object.body {
        Body::EndpointSlice(EndpointSlice { service, .. }) => service.as_deref(),
        _ => None,
    };
    let labels = labels_and(labels, service.map(|service| (SERVICE_NAME, service)));
    all.extend((!labels.is_empty()).then(|| ("labels", members(labels))));
    let mode = match &object.body {
        Body::NetworkPolicy(policy) => policy.mode,
        Body::ClusterPolicy(policy) => policy.mode,
        _ => Mode::Enforce,
    };
    let static_uid = match &object.body {
        Body::Pod(pod) => pod.static_uid.as_deref(),
        _ => None,
    };
    let audit = (mode == Mode::Audit).then(|| (MODE, text("audit")));
    let annotations: Vec<_> = audit.into_iter().chain(static_uid.map(|uid| (MIRROR, text(uid)))).collect();
    all.extend((!annotations.is_empty()).then(|| ("annotations", members(annotations))));
    all.extend(deleting.then(|| ("deletionTimestamp", text("1970-01-01T00:00:00Z"))));
    if let Some((kind, name)) = owner.and_then(|it| it.split_once('/')) {
        let owner = [
            ("apiVersion", text("apps/v1")),
            ("kind", text(kind)),
            ("name", text(name)),
            ("uid", text("0")),
            ("controller", Json::Bool(true)),
        ];
        all.push(("ownerReferences", Json::List(vec![members(owner)])));
    }
    members(all)
}

fn object_name(name: &str) -> String {
    let plain = |it: char| if it.is_ascii_alphanumeric() { it.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(plain).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "list".to_owned() } else { name.to_owned() }
}

fn node(node: &Node) -> Json<'_> {
    let address = |at: &IpAddr| members([("type", text("InternalIP")), ("address", at.to_string().into())]);
    members([("addresses", Json::List(node.addresses.iter().map(address).collect()))])
}

fn pod_spec(pod: &Pod) -> Json<'_> {
    let mut all = vec![("containers", containers(&pod.ports, &pod.host_ports))];
    all.extend(pod.node.as_ref().map(|node| ("nodeName", text(node))));
    all.extend(pod.host_network.then_some(("hostNetwork", Json::Bool(true))));
    members(all)
}

fn pod_status(pod: &Pod) -> Json<'_> {
    let ips = |all: &[IpAddr]| Json::List(all.iter().map(|at| members([("ip", at.to_string().into())])).collect());
    let mut all = Vec::new();
    let phase = pod.phase.map(|phase| match phase {
        Phase::Pending => "Pending",
        Phase::Running => "Running",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
        Phase::Unknown => "Unknown",
    });
    all.extend(phase.map(|it| ("phase", text(it))));
    all.extend((!pod.addresses.is_empty()).then(|| ("podIPs", ips(&pod.addresses))));
    all.extend((!pod.node_addresses.is_empty()).then(|| ("hostIPs", ips(&pod.node_addresses))));
    if pod.unready {
        let condition = members([("type", text("Ready")), ("status", text("False"))]);
        all.push(("conditions", Json::List(vec![condition])));
    }
    members(all)
}

fn containers<'a>(named: &'a [NamedPort], of_host: &'a [HostPort]) -> Json<'a> {
    let ports = Json::List(named.iter().map(container_port).chain(of_host.iter().map(host_port)).collect());
    Json::List(vec![members([("name", text("main")), ("ports", ports)])])
}

fn container_port(port: &NamedPort) -> Json<'_> {
    members([
        ("name", text(&port.name)),
        ("protocol", protocol(port.protocol)),
        ("containerPort", u32::from(port.number).into()),
    ])
}

fn host_port(port: &HostPort) -> Json<'_> {
    let mut all = vec![
        ("protocol", protocol(port.protocol)),
        ("containerPort", u32::from(port.number).into()),
        ("hostPort", u32::from(port.port).into()),
    ];
    all.extend(port.address.map(|it| ("hostIP", it.to_string().into())));
    members(all)
}

fn workload(workload: &Workload) -> Json<'_> {
    let mut spec = vec![("containers", containers(&workload.ports, &[]))];
    spec.extend(workload.host_network.then_some(("hostNetwork", Json::Bool(true))));
    let metadata = members([("labels", labels(&workload.pod_labels))]);
    let template = members([("template", members([("metadata", metadata), ("spec", members(spec))]))]);
    match workload.kind.as_str() {
        "CronJob" => members([("jobTemplate", members([("spec", template)]))]),
        _ => template,
    }
}

fn service(service: &Service) -> Json<'_> {
    let mut all = vec![("ports", Json::List(service.ports.iter().map(service_port).collect()))];
    all.extend(service.headless.then(|| ("clusterIP", text("None"))));
    all.extend((!service.cluster_addresses.is_empty()).then(|| ("clusterIPs", addresses(&service.cluster_addresses))));
    all.extend(
        (!service.external_addresses.is_empty()).then(|| ("externalIPs", addresses(&service.external_addresses))),
    );
    all.extend((!service.selector.is_empty()).then(|| ("selector", labels(&service.selector))));
    all.extend(service.local_traffic.then(|| ("internalTrafficPolicy", text("Local"))));
    all.extend(service.publish_not_ready.then_some(("publishNotReadyAddresses", Json::Bool(true))));
    all.extend(service.external_name.then(|| ("type", text("ExternalName"))));
    members(all)
}

fn service_port(port: &ServicePort) -> Json<'_> {
    let target = match &port.target {
        TargetPort::Number(number) => u32::from(*number).into(),
        TargetPort::Name(name) => text(name),
    };
    let mut all = vec![
        ("name", text(&port.name)),
        ("protocol", protocol(port.protocol)),
        ("port", u32::from(port.port).into()),
        ("targetPort", target),
    ];
    all.extend(port.node_port.map(|it| ("nodePort", u32::from(it).into())));
    members(all)
}

fn slice(slice: &EndpointSlice) -> [(&'static str, Json<'_>); 3] {
    let is_v6 = slice.endpoints.iter().flat_map(|it| &it.addresses).any(IpAddr::is_ipv6);
    [
        ("addressType", text(if is_v6 { "IPv6" } else { "IPv4" })),
        ("endpoints", Json::List(slice.endpoints.iter().map(slice_endpoint).collect())),
        ("ports", Json::List(slice.ports.iter().map(slice_port).collect())),
    ]
}

fn slice_endpoint(endpoint: &SliceEndpoint) -> Json<'_> {
    let SliceEndpoint { ready, serving, terminating, .. } = *endpoint;
    let conditions = [("ready", ready), ("serving", serving), ("terminating", terminating)];
    let conditions = members(conditions.map(|(name, holds)| (name, Json::Bool(holds))));
    let mut all = vec![("addresses", addresses(&endpoint.addresses)), ("conditions", conditions)];
    all.extend(endpoint.node.as_ref().map(|name| ("nodeName", text(name))));
    all.extend(endpoint.pod.as_ref().map(|(namespace, name)| {
        ("targetRef", members([("kind", text("Pod")), ("namespace", text(namespace)), ("name", text(name))]))
    }));
    members(all)
}

fn slice_port(port: &SlicePort) -> Json<'_> {
    let mut all = vec![("name", text(&port.name)), ("protocol", protocol(port.protocol))];
    all.extend(port.number.map(|number| ("port", u32::from(number).into())));
    members(all)
}

fn policy(policy: &NetworkPolicy) -> Json<'_> {
    let types = policy.policy_types.iter().map(|it| match it {
        PolicyType::Ingress => "Ingress",
        PolicyType::Egress => "Egress",
    });
    let mut all = Vec::new();
    all.extend(policy.pod_selector_written.then(|| ("podSelector", selector(&policy.pod_selector))));
    all.extend((!policy.policy_types.is_empty()).then(|| ("policyTypes", Json::list(types))));
    all.extend((!policy.ingress.is_empty()).then(|| ("ingress", rules(&policy.ingress, "from"))));
    all.extend((!policy.egress.is_empty()).then(|| ("egress", rules(&policy.egress, "to"))));
    members(all)
}

fn rules<'a>(rules: &'a [PolicyRule], peers: &'static str) -> Json<'a> {
    Json::List(rules.iter().map(|it| rule(it, peers)).collect())
}

fn rule<'a>(rule: &'a PolicyRule, peers: &'static str) -> Json<'a> {
    let mut all = Vec::new();
    all.extend((!rule.peers.is_empty()).then(|| (peers, Json::List(rule.peers.iter().map(peer).collect()))));
    all.extend((!rule.ports.is_empty()).then(|| ("ports", Json::List(rule.ports.iter().map(policy_port).collect()))));
    members(all)
}

fn peer(peer: &PolicyPeer) -> Json<'_> {
    match peer {
        PolicyPeer::Pods { pods, namespaces } => {
            let mut all = Vec::new();
            all.extend(pods.as_ref().map(|it| ("podSelector", selector(it))));
            all.extend(namespaces.as_ref().map(|it| ("namespaceSelector", selector(it))));
            members(all)
        }
        PolicyPeer::Block { cidr, except } => {
            let mut block = vec![("cidr", cidr.to_string().into())];
            block.extend((!except.is_empty()).then(|| ("except", Json::list(except.iter().map(ToString::to_string)))));
            members([("ipBlock", members(block))])
        }
    }
}

fn policy_port(port: &PolicyPort) -> Json<'_> {
    let mut all = vec![("protocol", protocol(port.protocol))];
    match &port.port {
        PortMatch::Any => {}
        PortMatch::Named(name) => all.push(("port", text(name))),
        PortMatch::Range(first, last) => {
            all.push(("port", u32::from(*first).into()));
            all.extend((first != last).then(|| ("endPort", u32::from(*last).into())));
        }
    }
    members(all)
}

fn list(list: &CidrList) -> Json<'_> {
    let action = match list.action {
        ListAction::Deny => "Deny",
        ListAction::Allow => "Allow",
    };
    let directions = [(list.ingress, "Ingress"), (list.egress, "Egress")];
    let directions = directions.into_iter().filter(|it| it.0).map(|it| it.1);
    let entry = |it: &ListEntry| format!("{}-{}", it.first, it.last);
    let mut applies_to = Vec::new();
    applies_to.extend(list.namespaces.as_ref().map(|it| ("namespaceSelector", selector(it))));
    applies_to.extend(list.pods.as_ref().map(|it| ("podSelector", selector(it))));
    members([
        ("action", text(action)),
        ("order", Json::Signed(list.order)),
        ("directions", Json::list(directions)),
        ("appliesTo", members(applies_to)),
        ("cidrs", Json::list(list.entries.iter().map(entry))),
    ])
}

fn selector(selector: &LabelSelector) -> Json<'_> {
    let mut all = Vec::new();
    all.extend((!selector.match_labels.is_empty()).then(|| ("matchLabels", labels(&selector.match_labels))));
    let expressions = selector.match_expressions.iter().map(requirement).collect();
    all.extend((!selector.match_expressions.is_empty()).then_some(("matchExpressions", Json::List(expressions))));
    members(all)
}

fn requirement(requirement: &Requirement) -> Json<'_> {
    let operator = match requirement.operator {
        Operator::In => "In",
        Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
    };
    let values = || ("values", Json::list(requirement.values.iter().map(String::as_str)));
    let mut all = vec![("key", text(&requirement.key)), ("operator", text(operator))];
    all.extend((!requirement.values.is_empty()).then(values));
    members(all)
}

fn labels(labels: &Labels) -> Json<'_> {
    members(labels_and(labels, None))
}

/// The labels in the order of their keys, with one more label among them.
fn labels_and<'a>(labels: &'a Labels, more: Option<(&'a str, &'a str)>) -> Vec<(&'a str, Json<'a>)> {
    let mut all: Vec<_> = labels.iter().map(|(key, value)| (key, text(value))).collect();
    if let Some((key, value)) = more {
        all.retain(|it| it.0 != key);
        all.insert(all.partition_point(|it| it.0 < key), (key, text(value)));
    }
    all
}

fn addresses(all: &[IpAddr]) -> Json<'_> {
    Json::list(all.iter().map(ToString::to_string))
}

fn protocol(protocol: Protocol) -> Json<'static> {
    text(match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    })
}

fn text(text: &str) -> Json<'_> {
    text.into()
}

fn members<'a>(members: impl IntoIterator<Item = (&'a str, Json<'a>)>) -> Json<'a> {
    Json::object(members)
}

#[cfg(test)]
mod tests {
    use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
    use weir_objects::origin::ObjectId;

    use super::*;

    #[test]
    fn uid_of_a_static_pod_is_written_as_it_was_read() {
        let pod = Body::Pod(Pod { static_uid: Some("0a1b".into()), ..Pod::default() });
        let meta = Meta { name: "web".to_owned(), namespace: "shop".into(), ..Meta::default() };
        let text = objects(&[Object { id: ObjectId(0), meta, body: pod.clone() }]);
        let input = Input { name: "x".to_owned(), bytes: text.into_bytes(), kind: InputKind::Manifest };
        let (decoded, _) =
            decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
        assert_eq!(decoded.objects.iter().map(|it| &it.body).collect::<Vec<_>>(), [&pod]);
    }

    #[test]
    fn packed_text_is_smaller_and_unpacks_to_the_same() {
        let text = "{\"kind\": \"Pod\"}, ".repeat(1_000);
        let packed = pack(&text);
        assert!(packed.len() < text.len() / 50, "{}", packed.len());
        assert_eq!(unpack(&packed).as_deref(), Some(text.as_str()));
        assert_eq!(unpack(&pack("")).as_deref(), Some(""));
    }

    #[test]
    fn invalid_packed_text_is_refused_before_memory_is_allocated() {
        assert_eq!(unpack(&[]), None);
        assert_eq!(unpack(&[0xff, 0xff, 0xff, 0xff, 0]), None);
        let mut packed = pack(&"pods ".repeat(100));
        packed.pop();
        assert_eq!(unpack(&packed), None);
    }
}
