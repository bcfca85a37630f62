//! A cluster of any size: pods of deployments in the namespaces of teams, and policies between them.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::Simulated;

/// The size of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Pods, on all nodes.
    pub pods: u32,
    /// Number of these pods on the agent's node.
    pub local: u32,
    /// Policies.
    pub policies: u32,
    /// Services, with an EndpointSlice each.
    pub services: u32,
}

const NAMESPACES: u32 = 20;
const APPS: u32 = 50;
/// Pods of a node, where they decide how many nodes there are.
const PODS_OF_NODE: u32 = 110;

/// Puts all objects into the server.
pub fn populate(server: &Simulated, scale: Scale) {
    for index in 0..NAMESPACES {
        let labels = json!({"team": format!("t{}", index % 5), "kubernetes.io/metadata.name": format!("ns{index}")});
        server.put("Namespace", object("v1", "Namespace", json!({"name": format!("ns{index}"), "labels": labels})));
    }
    let mut node = object("v1", "Node", json!({"name": "near"}));
    node["status"] = json!({"addresses": [{"type": "InternalIP", "address": "172.16.0.1"}]});
    server.put("Node", node);
    (0..far_nodes(scale)).for_each(|index| server.put("Node", self::node(index)));
    for index in 0..scale.pods {
        let local = index < scale.local;
        let (node, address) = if local {
            ("near".to_owned(), near_address(index))
        } else {
            (format!("far{}", index % far_nodes(scale)), far_address(index))
        };
        server.put("Pod", pod(index, &node, Some(address)));
    }
    (0..scale.policies).for_each(|index| server.put("NetworkPolicy", policy(index, index % 30)));
    for index in 0..scale.services {
        let (service, slice) = service(index, scale, None);
        server.put("Service", service);
        server.put("EndpointSlice", slice);
    }
}

/// The number of nodes beside the agent's.
pub fn far_nodes(scale: Scale) -> u32 {
    (scale.pods / PODS_OF_NODE).max(90)
}

/// Another node as a server stores it: the list of its images is most of it.
pub fn node(index: u32) -> Value {
    let (name, address) = (format!("far{index}"), host(&format!("far{index}")));
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("z{}", index % 3)});
    let mut node = object("v1", "Node", json!({"name": name, "labels": labels, "managedFields": managed()}));
    let image = |number: u32| {
        let digest = format!("{:064x}", u64::from(number) * 7_919);
        json!({"names": [format!("registry.example/shop/app{number}@sha256:{digest}"),
            format!("registry.example/shop/app{number}:1.2.3")], "sizeBytes": 52_428_800 + number})
    };
    let condition = |kind: &str| {
        json!({"type": kind, "status": "False", "reason": format!("KubeletHasNo{kind}"), "message": "kubelet has none",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(condition);
    node["status"] = json!({"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "conditions": conditions, "images": (0..50).map(image).collect::<Vec<_>>(),
        "capacity": {"cpu": "16", "memory": "65536Ki", "pods": "110"}});
    node
}

/// The address of a pod on the agent's node.
pub fn near_address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 199, 0, 10).to_bits() + index)
}

/// The address of a pod on another node.
pub fn far_address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 200, 0, 0).to_bits() + index)
}

/// A pod of a deployment as a server stores it: most of its fields do not matter to the agent. A pod without an address
/// is still starting.
pub fn pod(index: u32, node: &str, address: Option<Ipv4Addr>) -> Value {
    let (namespace, app) = (format!("ns{}", index % NAMESPACES), format!("a{}", index % APPS));
    let (hash, name) = (format!("{:08x}", index % APPS * 0x0101), format!("{app}-{index:08x}"));
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-{hash}"), "controller": true,
        "blockOwnerDeletion": true, "uid": format!("00000000-0000-4000-8000-{:012x}", index % APPS)}]);
    let labels = json!({"app": app, "tier": format!("x{}", index % 3), "pod-template-hash": hash});
    let container = json!({"name": "main", "image": "registry.example/shop/app:1.2.3", "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": "MODE", "value": "production"}, {"name": "PORT", "value": "8080"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "kube-api-access-x", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]});
    let mut pod = object(
        "v1",
        "Pod",
        json!({"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owner,
        "uid": format!("00000000-0000-4000-9000-{index:012x}"), "creationTimestamp": "2026-01-01T00:00:00Z",
        "generateName": format!("{app}-{hash}-"), "managedFields": managed()}),
    );
    pod["spec"] = json!({"nodeName": node, "containers": [container], "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "volumes": [{"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]}}]});
    pod["status"] = match address {
        None => json!({"phase": "Pending", "qosClass": "Burstable"}),
        Some(address) => json!({"phase": "Running", "qosClass": "Burstable", "podIP": address.to_string(),
            "podIPs": [{"ip": address.to_string()}], "hostIP": host(node), "hostIPs": [{"ip": host(node)}],
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null,
                "lastTransitionTime": "2026-01-01T00:00:03Z"}],
            "containerStatuses": [{"name": "main", "ready": true, "started": true, "restartCount": 0, "imageID": "",
                "image": "registry.example/shop/app:1.2.3", "containerID": format!("containerd://{index:064x}"),
                "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}}}]}),
    };
    pod
}

/// The `managedFields` that a server keeps: about half of an object's size.
fn managed() -> Value {
    json!([{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {},
        "f:pod-template-hash": {}, "f:tier": {}}, "f:ownerReferences": {".": {}}}, "f:spec": {"f:containers": {
        "k:{\"name\":\"main\"}": {".": {}, "f:env": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:ports": {}}},
        "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}}}},
        {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "subresource": "status",
        "time": "2026-01-01T00:00:03Z", "fieldsV1": {"f:status": {"f:conditions": {}, "f:containerStatuses": {}, "f:hostIP": {},
        "f:phase": {}, "f:podIP": {}, "f:podIPs": {}, "f:startTime": {}}}}])
}

fn host(node: &str) -> String {
    match node.trim_start_matches("far").parse::<u32>() {
        Ok(number) => format!("172.16.{}.{}", 1 + number / 250, number % 250),
        Err(_) => "172.16.0.1".to_owned(),
    }
}

/// A policy for one application: allows another application, a team, and in every fourth policy egress to a block.
/// `port` changes the policy.
pub fn policy(index: u32, port: u32) -> Value {
    let app = |index: u32| json!({"matchLabels": {"app": format!("a{}", index % APPS)}});
    let name = json!({"name": format!("q{index}"), "namespace": format!("ns{}", index % NAMESPACES), "managedFields": managed()});
    let mut policy = object("networking.k8s.io/v1", "NetworkPolicy", name);
    let from = json!([{"podSelector": app(index + 7)}, {"namespaceSelector": {"matchLabels": {"team": format!("t{}", index % 5)}}}]);
    policy["spec"] = json!({"podSelector": app(index), "policyTypes": ["Ingress"],
        "ingress": [{"from": from, "ports": [{"port": 8000 + port, "protocol": "TCP"}]}]});
    if index.is_multiple_of(4) {
        policy["spec"]["policyTypes"] = json!(["Ingress", "Egress"]);
        let block =
            json!({"cidr": format!("192.0.{}.0/24", index % 250), "except": [format!("192.0.{}.8/29", index % 250)]});
        policy["spec"]["egress"] = json!([{"to": [{"ipBlock": block}, {"podSelector": {}}]}]);
    }
    policy
}

/// A service and its only slice, without one of the members.
pub fn service(index: u32, scale: Scale, without: Option<u32>) -> (Value, Value) {
    let members = (0..scale.pods / scale.services.max(1)).filter(|it| Some(*it) != without);
    let members = members.map(|it| it * scale.services + index);
    let (namespace, name) = (format!("ns{}", index % NAMESPACES), format!("s{index}"));
    let mut service = object("v1", "Service", json!({"name": name, "namespace": namespace}));
    let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 1, 0).to_bits() + index).to_string();
    service["spec"] = json!({"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
        "selector": {"app": format!("a{}", index % APPS)},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]});
    let meta =
        json!({"name": format!("{name}-1"), "namespace": namespace, "labels": {"kubernetes.io/service-name": name}});
    let mut slice = object("discovery.k8s.io/v1", "EndpointSlice", meta);
    slice["addressType"] = json!("IPv4");
    slice["ports"] = json!([{"name": "http", "port": 8080, "protocol": "TCP"}]);
    let endpoint = |member: u32| {
        let address = if member < scale.local { near_address(member) } else { far_address(member) };
        let pod = &pod(member, "", None)["metadata"];
        let target = json!({"kind": "Pod", "namespace": pod["namespace"], "name": pod["name"]});
        let conditions = json!({"ready": true, "serving": true, "terminating": false});
        json!({"addresses": [address.to_string()], "conditions": conditions, "targetRef": target})
    };
    slice["endpoints"] = members.map(endpoint).collect();
    (service, slice)
}

fn object(version: &str, kind: &str, meta: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": meta})
}
