//! A cluster that changes while an agent runs: pods, policies, services and namespaces come and go, in every order that
//! is possible.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde_json::{Value, json};
use weir_runtime::sys::links::NetworkNamespace;
use weir_testing::Random;

use super::host::{FakeHost, PluggedPod};
use super::server::{FakeApiServer, FakeObjectId};
use super::verdicts::ExpectedPod;
use crate::cni::wire::{CniQuestion, Verb};

const NAMESPACES: [&str; 2] = ["red", "blue"];
const APPS: [&str; 3] = ["x", "y", "z"];
const SERVICES: [&str; 2] = ["s0", "s1"];
/// The addresses of services.
pub(super) const SERVICE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 96, 0, 2))];

#[derive(Clone, Debug)]
struct FakePod {
    namespace: &'static str,
    name: String,
    uid: String,
    app: &'static str,
    is_near: bool,
    address: Option<IpAddr>,
    ifindex: Option<u32>,
    /// The runtime is removing the pod's network: another pod may have the address already, and the interface may still
    /// exist.
    is_released: bool,
    in_api: bool,
    is_deleting: bool,
    is_reported: bool,
}

pub(super) struct FakeCluster {
    pub(super) server: FakeApiServer,
    pub(super) host: FakeHost,
    pods: Vec<FakePod>,
    uids: u32,
    /// Whether the container runtime leaves CNI results, and whether it names interfaces after pods.
    has_cache: bool,
    has_fixed_names: bool,
    disputed: Vec<IpAddr>,
    /// The UID of the pod of each interface that ever existed, by interface number.
    pub(super) of: BTreeMap<u32, String>,
    pub(super) trail: Vec<String>,
}

impl FakeCluster {
    pub(super) fn new(dice: &mut Random) -> Self {
        let mut world = Self {
            server: FakeApiServer::default(),
            host: FakeHost::default(),
            pods: Vec::new(),
            uids: 0,
            has_cache: !dice.once_in(3),
            has_fixed_names: dice.once_in(3),
            disputed: Vec::new(),
            of: BTreeMap::new(),
            trail: Vec::new(),
        };
        for (name, address) in [("near", "172.16.0.1"), ("far", "172.16.0.2")] {
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
            let meta = json!({"name": name, "uid": world.uid()});
            world.server.put("Node", json!({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}));
        }
        for name in NAMESPACES {
            world.put_namespace(name, dice);
        }
        world
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("u{}", self.uids)
    }

    fn note(&mut self, what: String) {
        self.trail.push(what);
    }

    /// Does one random step.
    pub(super) fn act(&mut self, dice: &mut Random) {
        match dice.below(28) {
            0..=3 => self.create(dice),
            4..=6 => self.attach(dice),
            7..=8 => self.report_address(dice),
            9..=11 => self.end(dice),
            12..=15 => self.put_policy(dice),
            16 => self.delete_policy(dice),
            17 => self.put_list(dice),
            18 => self.replace_namespace(dice),
            19 => {
                self.note("compacted".to_owned());
                self.server.compact();
            }
            20..=21 => self.put_service(dice),
            22..=24 => self.put_slice(dice),
            _ => self.dispute(dice),
        }
    }

    fn create(&mut self, dice: &mut Random) {
        let namespace = dice.pick(&NAMESPACES);
        let name = format!("p{}", dice.below(4));
        let is_taken = self.pods.iter().any(|it| it.in_api && it.namespace == namespace && it.name == name);
        if is_taken || self.is_ending(namespace) {
            return;
        }
        let pod = FakePod {
            namespace,
            name,
            uid: self.uid(),
            app: APPS[dice.below(3)],
            is_near: !dice.once_in(3),
            address: None,
            ifindex: None,
            is_released: false,
            in_api: true,
            is_deleting: false,
            is_reported: false,
        };
        self.note(format!("create {}/{} {} near={}", pod.namespace, pod.name, pod.uid, pod.is_near));
        self.put_pod(&pod);
        self.pods.push(pod);
    }

    fn put_pod(&mut self, pod: &FakePod) {
        let node = if pod.is_near { "near" } else { "far" };
        let mut meta =
            json!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "labels": {"app": pod.app}});
        if pod.is_deleting {
            meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let status = match pod.address.filter(|_| pod.is_reported) {
            Some(address) => json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}),
            None => json!({"phase": "Pending"}),
        };
        let spec = json!({"nodeName": node});
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status});
        self.server.put("Pod", object);
    }

    fn choose(&self, dice: &mut Random, is_it: impl Fn(&FakePod) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.pods.len()).filter(|index| is_it(&self.pods[*index])).collect();
        dice.pick_any(&all)
    }

    /// Gives the pod its network. No other pod has the address at this time, but another pod may have had it just
    /// before.
    fn attach(&mut self, dice: &mut Random) {
        let Some(index) = self.choose(dice, |it| it.in_api && it.address.is_none() && !it.is_deleting) else { return };
        let of_node = u8::from(!self.pods[index].is_near);
        let free = (1..6).map(|last| IpAddr::from([10, 0, of_node, last]));
        let is_free = |address: &IpAddr| {
            !self.pods.iter().any(|it| it.address == Some(*address) && !it.is_released)
                && !self.disputed.contains(address)
        };
        let free: Vec<IpAddr> = free.filter(is_free).collect();
        let Some(address) = dice.pick_any(&free) else { return };
        let FakePod { namespace, name, uid, is_near, .. } = self.pods[index].clone();
        self.pods[index].address = Some(address);
        if is_near {
            let fixed = format!("cali-{namespace}-{name}");
            let veth = if self.has_fixed_names { fixed } else { format!("veth-{uid}") };
            // Two interfaces cannot have the same name.
            if let Some(other) = self.named(&veth) {
                self.unplug(other, dice);
            }
            let ifindex = self.host.lock().plug(
                &veth,
                &PluggedPod { namespace, name: &name, uid: &uid, address },
                self.has_cache,
            );
            self.of.insert(ifindex, uid.clone());
            self.pods[index].ifindex = Some(ifindex);
            self.note(format!("attach {uid} {address} at {ifindex} {veth}"));
        }
        if dice.once_in(2) {
            self.report_to_api(index);
        }
    }

    fn named(&self, veth: &str) -> Option<usize> {
        let state = self.host.lock();
        let ifindex = state.inventory.interfaces.iter().find(|it| it.name == veth)?.ifindex;
        self.pods.iter().position(|it| it.ifindex == Some(ifindex))
    }

    fn report_address(&mut self, dice: &mut Random) {
        if let Some(index) = self.choose(dice, |it| it.in_api && it.address.is_some() && !it.is_reported) {
            self.report_to_api(index);
        }
    }

    fn report_to_api(&mut self, index: usize) {
        self.pods[index].is_reported = true;
        let pod = self.pods[index].clone();
        self.note(format!("the API has the address of {}", pod.uid));
        self.put_pod(&pod);
    }

    /// One step of a pod's end. The order of the steps is random: marked as deleting, address released, interface
    /// removed, deleted.
    fn end(&mut self, dice: &mut Random) {
        let Some(index) = self.choose(dice, |it| it.in_api || it.ifindex.is_some()) else { return };
        let pod = self.pods[index].clone();
        match dice.below(4) {
            0 if pod.in_api && !pod.is_deleting => {
                self.pods[index].is_deleting = true;
                let pod = self.pods[index].clone();
                self.note(format!("deleting {}", pod.uid));
                self.put_pod(&pod);
            }
            1 if pod.is_deleting || !pod.in_api => {
                self.note(format!("released {}", pod.uid));
                self.pods[index].is_released = true;
            }
            2 if (pod.is_deleting || !pod.in_api) && pod.ifindex.is_some() => self.unplug(index, dice),
            // Deleted by force, or because the pod has ended.
            3 => self.delete(index),
            _ => {}
        }
    }

    fn delete(&mut self, index: usize) {
        let pod = &mut self.pods[index];
        if std::mem::take(&mut pod.in_api) {
            (pod.is_deleting, pod.is_released) = (true, pod.is_released || !pod.is_near);
            let id = FakeObjectId::new("Pod", pod.namespace, &pod.name);
            let what = format!("deleted {}", pod.uid);
            self.note(what);
            self.server.delete(&id);
        }
    }

    fn unplug(&mut self, index: usize, dice: &mut Random) {
        let pod = &mut self.pods[index];
        pod.is_released = true;
        let Some(ifindex) = pod.ifindex.take() else { return };
        let what = format!("unplugged {} at {ifindex}", pod.uid);
        let uid = pod.uid.clone();
        self.host.lock().unplug(ifindex, &uid, !dice.once_in(3));
        self.note(what);
    }

    fn put_policy(&mut self, dice: &mut Random) {
        let namespace = dice.pick(&NAMESPACES);
        if self.is_ending(namespace) {
            return;
        }
        let name = format!("n{}", dice.below(3));
        let selector = if dice.once_in(2) { json!({}) } else { json!({"matchLabels": {"app": APPS[dice.below(3)]}}) };
        let mut spec = json!({"podSelector": selector});
        let (is_ingress, is_egress) = (!dice.once_in(4), dice.once_in(2));
        let types: Vec<&str> =
            [(is_ingress, "Ingress"), (is_egress, "Egress")].iter().filter(|it| it.0).map(|it| it.1).collect();
        if !types.is_empty() {
            spec["policyTypes"] = json!(types);
        }
        let count = [dice.below(3), dice.below(3)];
        spec["ingress"] = (0..count[0]).map(|_| rule(dice, "from")).collect();
        spec["egress"] = (0..count[1]).map(|_| rule(dice, "to")).collect();
        let id = FakeObjectId::new("NetworkPolicy", namespace, &name);
        let uid = self.server.get(&id).and_then(|it| it["metadata"]["uid"].as_str().map(str::to_owned));
        let uid = uid.unwrap_or_else(|| self.uid());
        self.note(format!("policy {namespace}/{name} {spec}"));
        let meta = json!({"name": name, "namespace": namespace, "uid": uid});
        let version = "networking.k8s.io/v1";
        self.server.put(
            "NetworkPolicy",
            json!({"apiVersion": version, "kind": "NetworkPolicy", "metadata": meta, "spec": spec}),
        );
    }

    fn delete_policy(&mut self, dice: &mut Random) {
        let all: Vec<_> = self.server.objects.keys().filter(|it| it.kind == "NetworkPolicy").cloned().collect();
        if let Some(id) = dice.pick_any(&all) {
            self.note(format!("no policy {id:?}"));
            self.server.delete(&id);
        }
    }

    fn put_list(&mut self, dice: &mut Random) {
        let id = FakeObjectId::new("CidrList", "", "l");
        if dice.once_in(3) {
            self.note("no list".to_owned());
            return self.server.delete(&id);
        }
        let count = 1 + dice.below(3);
        let cidrs: Vec<String> = (0..count).map(|_| format!("203.0.113.{}", 1 + dice.below(4))).collect();
        self.note(format!("list {cidrs:?}"));
        let uid = self.uid();
        let spec = json!({"action": if dice.once_in(4) { "Allow" } else { "Deny" }, "cidrs": cidrs});
        let meta = json!({"name": "l", "uid": uid});
        self.server.put(
            "CidrList",
            json!({"apiVersion": "weir.dev/v1alpha1", "kind": "CidrList", "metadata": meta, "spec": spec}),
        );
    }

    /// Adds, changes or deletes a service.
    fn put_service(&mut self, dice: &mut Random) {
        let id = FakeObjectId::new("Service", dice.pick(&NAMESPACES), dice.pick(&SERVICES));
        if dice.once_in(4) || self.is_ending(&id.namespace) {
            self.note(format!("no service {id:?}"));
            return self.server.delete(&id);
        }
        let of_another = |address: &IpAddr| {
            self.server.objects.iter().any(|(other, it)| *other != id && it["spec"]["clusterIP"] == json!(address))
        };
        let free: Vec<IpAddr> = SERVICE_ADDRESSES.into_iter().filter(|it| !of_another(it)).collect();
        let before = self.server.get(&id).map(|it| (it["metadata"]["uid"].clone(), it["spec"]["clusterIP"].clone()));
        let Some((uid, address)) = before.or_else(|| Some((json!(self.uid()), json!(dice.pick_any(&free)?)))) else {
            return;
        };
        let ports = json!([{"port": 80, "targetPort": 80 + dice.below(2)}]);
        let mut spec = json!({"clusterIP": address, "clusterIPs": [address], "ports": ports});
        if dice.once_in(2) {
            spec["selector"] = json!({"app": dice.pick(&APPS)});
        }
        self.note(format!("service {}/{} {spec}", id.namespace, id.name));
        let meta = json!({"name": id.name, "namespace": id.namespace, "uid": uid});
        self.server.put("Service", json!({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}));
    }

    /// Adds, changes or deletes one of two slices of a service. The service does not have to exist, and the
    /// addresses can belong to no pod: slices are written later than pods.
    fn put_slice(&mut self, dice: &mut Random) {
        let (namespace, service) = (dice.pick(&NAMESPACES), dice.pick(&SERVICES));
        let id = FakeObjectId::new("EndpointSlice", namespace, &format!("{service}-{}", dice.below(2)));
        if dice.once_in(5) || self.is_ending(namespace) {
            self.note(format!("no slice {id:?}"));
            return self.server.delete(&id);
        }
        let address = |dice: &mut Random| match dice.below(5) {
            0 => IpAddr::from([203, 0, 113, 1 + dice.below(4) as u8]),
            _ => IpAddr::from([10, 0, dice.below(2) as u8, 1 + dice.below(5) as u8]),
        };
        let endpoint = |dice: &mut Random| {
            let conditions = json!({"ready": !dice.once_in(4), "terminating": dice.once_in(6)});
            json!({"addresses": [address(dice)], "conditions": conditions})
        };
        let endpoints: Vec<Value> = (0..dice.below(4)).map(|_| endpoint(dice)).collect();
        self.note(format!("slice {namespace}/{} {endpoints:?}", id.name));
        let labels = json!({"kubernetes.io/service-name": service});
        let uid = self.server.get(&id).map(|it| it["metadata"]["uid"].clone());
        let uid = uid.unwrap_or_else(|| json!(self.uid()));
        let meta = json!({"name": id.name, "namespace": namespace, "uid": uid, "labels": labels});
        let ports = json!([{"port": 80 + dice.below(2), "protocol": "TCP"}]);
        self.server.put(
            "EndpointSlice",
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
                "addressType": "IPv4", "ports": ports, "endpoints": endpoints}),
        );
    }

    fn put_namespace(&mut self, name: &'static str, dice: &mut Random) {
        let labels = json!({"team": APPS[dice.below(2)], "kubernetes.io/metadata.name": name});
        let meta = json!({"name": name, "uid": self.uid(), "labels": labels});
        self.server.put("Namespace", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}));
    }

    pub(super) fn is_any_ending(&self) -> bool {
        NAMESPACES.iter().any(|name| self.is_ending(name))
    }

    fn is_ending(&self, name: &str) -> bool {
        let namespace = self.server.get(&FakeObjectId::new("Namespace", "", name));
        namespace.is_some_and(|it| !it["metadata"]["deletionTimestamp"].is_null())
    }

    /// Deletes a namespace with all its objects, one step per call; then creates another namespace of the same name.
    fn replace_namespace(&mut self, dice: &mut Random) {
        let ending = NAMESPACES.into_iter().find(|name| self.is_ending(name));
        let name = ending.unwrap_or_else(|| NAMESPACES[dice.below(2)]);
        if ending.is_none() {
            self.note(format!("namespace {name} is deleted"));
            self.mark_namespace(name);
            return;
        }
        let has_policies = !self.policies_in(name).is_empty();
        self.delete_policies(name);
        if !has_policies || dice.once_in(2) {
            self.end_namespace(name, dice);
        }
    }

    fn mark_namespace(&mut self, name: &str) {
        let id = FakeObjectId::new("Namespace", "", name);
        let Some(mut namespace) = self.server.get(&id).cloned() else { return };
        namespace["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self.server.put("Namespace", namespace);
    }

    fn policies_in(&self, name: &str) -> Vec<FakeObjectId> {
        self.server.objects.keys().filter(|it| it.kind == "NetworkPolicy" && it.namespace == name).cloned().collect()
    }

    fn delete_policies(&mut self, name: &str) {
        self.note(format!("the policies of {name} are deleted"));
        self.policies_in(name).iter().for_each(|id| self.server.delete(id));
    }

    fn end_namespace(&mut self, name: &'static str, dice: &mut Random) {
        self.note(format!("namespace {name} is another one"));
        let id = FakeObjectId::new("Namespace", "", name);
        self.delete_policies(name);
        let pods: Vec<usize> = (0..self.pods.len()).filter(|it| self.pods[*it].namespace == name).collect();
        pods.into_iter().for_each(|index| self.delete(index));
        let is_of_service = |it: &&FakeObjectId| it.namespace == name && matches!(it.kind, "Service" | "EndpointSlice");
        let of_services: Vec<FakeObjectId> = self.server.objects.keys().filter(is_of_service).cloned().collect();
        of_services.iter().for_each(|id| self.server.delete(id));
        self.server.delete(&id);
        self.put_namespace(name, dice);
        if dice.once_in(2) {
            self.server.compact();
        }
    }

    /// A pod with CAP_NET_ADMIN takes a neighbour's address. If there are CNI results, this has no effect.
    fn dispute(&mut self, dice: &mut Random) {
        let Some(index) = self.choose(dice, |it| it.in_api && it.ifindex.is_some()) else { return };
        let Some(victim) = self.choose(dice, |it| it.in_api && it.ifindex.is_some()) else { return };
        if index == victim {
            return;
        }
        let (Some(ifindex), Some(address)) = (self.pods[index].ifindex, self.pods[victim].address) else { return };
        self.note(format!("{} takes {address}", self.pods[index].uid));
        self.host.lock().add_address(ifindex, address);
        if !self.has_cache {
            self.disputed.extend([Some(address), self.pods[index].address].into_iter().flatten());
        }
    }

    /// Completes everything that was begun; interfaces of deleted pods may remain.
    pub(super) fn finish(&mut self, dice: &mut Random) {
        for name in NAMESPACES {
            if self.is_ending(name) && dice.once_in(2) {
                self.end_namespace(name, dice);
            }
        }
        for index in 0..self.pods.len() {
            let pod = self.pods[index].clone();
            if pod.in_api && (pod.is_deleting || pod.is_released) {
                self.delete(index);
            }
            if pod.in_api && pod.address.is_some() && !pod.is_reported && !pod.is_deleting {
                self.report_to_api(index);
            }
            if !self.pods[index].in_api && !dice.once_in(3) {
                self.unplug(index, dice);
            }
        }
        self.pods.retain(|it| it.in_api || it.ifindex.is_some());
        let left: Vec<IpAddr> = self.pods.iter().filter_map(|it| it.address).collect();
        self.disputed.retain(|it| left.contains(it));
    }

    /// Without CNI results, an address in two network namespaces does not identify a pod. The namespace of a pod that
    /// is gone may still exist.
    fn is_ambiguous(&self, address: IpAddr) -> bool {
        let state = self.host.lock();
        let has_it = |namespace: &NetworkNamespace| namespace.addresses.iter().any(|(_, it)| *it == address);
        !self.has_cache && state.inventory.namespaces.iter().filter(|it| has_it(&it.content)).count() > 1
    }

    /// The question of the CNI plug-in about a pod that it has attached.
    pub(super) fn question(&self, dice: &mut Random) -> Option<(String, CniQuestion)> {
        let pod = &self.pods[self.choose(dice, |it| it.in_api && it.ifindex.is_some() && !it.is_deleting)?];
        let state = self.host.lock();
        let veth = state.inventory.interfaces.iter().find(|it| Some(it.ifindex) == pod.ifindex)?.name.clone();
        let (namespace, name) = (pod.namespace.to_owned(), pod.name.clone());
        let of = crate::cni::wire::CniPod { namespace, name, uid: Some(pod.uid.clone()) };
        let (verb, wait) = (Verb::Add, Duration::from_secs(3_600));
        let question = CniQuestion { verb, pod: of, interfaces: vec![veth], addresses: vec![pod.address?], wait };
        Some((pod.uid.clone(), question))
    }

    pub(super) fn expected_pods(&self) -> Vec<ExpectedPod> {
        let expected = |pod: &FakePod| {
            let address = pod.address.filter(|_| pod.in_api && pod.is_reported)?;
            Some(ExpectedPod {
                path: format!("{}/{}", pod.namespace, pod.name),
                uid: pod.uid.clone(),
                ifindex: pod.ifindex?,
                address,
                is_disputed: self.disputed.contains(&address) || self.is_ambiguous(address),
            })
        };
        self.pods.iter().filter_map(expected).collect()
    }

    /// The state of the cluster, for a failure message.
    pub(super) fn shown(&self) -> String {
        let pods: Vec<String> = self.pods.iter().map(|it| format!("{it:?}")).collect();
        format!(
            "cache {}, fixed names {}\n{}\n{}",
            self.has_cache,
            self.has_fixed_names,
            pods.join("\n"),
            self.trail.join("\n")
        )
    }
}

fn rule(dice: &mut Random, peers: &str) -> Value {
    let mut rule = json!({});
    let count = dice.below(3);
    let all: Vec<Value> = (0..count).map(|_| peer(dice)).collect();
    if !all.is_empty() {
        rule[peers] = json!(all);
    }
    if dice.once_in(2) {
        rule["ports"] = json!([{"port": 80}]);
    }
    rule
}

fn peer(dice: &mut Random) -> Value {
    match dice.below(4) {
        0 => json!({"podSelector": {"matchLabels": {"app": APPS[dice.below(3)]}}}),
        1 => json!({"namespaceSelector": {"matchLabels": {"team": APPS[dice.below(2)]}}}),
        2 => json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": APPS[dice.below(3)]}}}),
        _ => json!({"ipBlock": {"cidr": (["10.0.0.0/30", "203.0.113.0/31", "10.0.1.0/24"][dice.below(3)])}}),
    }
}
