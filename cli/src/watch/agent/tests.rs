use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use weir_artifact::Artifact;
use weir_artifact::layout::{MapName, endpoint};
use weir_classes::departed::EndedService;
use weir_codegen::compile::Budget;
use weir_objects::decode::{self, Input, InputKind};
use weir_runtime::sys::ChangedInterfaces;
use weir_runtime::sys::links::NamespaceInterface;

use super::entry_writes::PAUSE;
use super::pending::{GATHER, QUIET};
use super::upkeep::CHECK;
use super::*;
use crate::watch::annotate::PublishedGeneration;
use crate::watch::cni_socket::PendingQuestion;
use crate::watch::cursor::MalformedObject;
use crate::watch::discover::{Attachment, Inventory};
use crate::watch::enforce::{
    AddressChange, CheckedHooks, EnforceError, GonePod, InstallRequest, Installed, KernelSnapshot, NewPod,
    PodAtInterface, PodFailure,
};
use crate::watch::listed::ListedNames;
use crate::watch::log::{Log, messages_during};
use crate::watch::metrics::Metrics;
use crate::watch::notices::Notices;

const CLUSTER: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Node, metadata: {name: near}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u1, labels: {app: web}},
  spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.5}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, uid: u2, labels: {app: db}},
  spec: {nodeName: far}, status: {phase: Running, podIP: 10.0.1.5}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: shop},
  spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]}}
";

const KINDS: [&str; 4] = ["Namespace", "Node", "Pod", "NetworkPolicy"];

/// A fake kernel. It records the agent's requests, and can be set to refuse them.
#[derive(Clone, Default)]
struct FakeKernel(Arc<Mutex<FakeKernelState>>);

#[derive(Default)]
struct FakeKernelState {
    done: Vec<String>,
    /// Interfaces that were closed.
    closed: Vec<String>,
    refuse_install: bool,
    refuse_write: bool,
    refuse_single: bool,
    refuse_pod: bool,
    refuse_end: bool,
    refuse_check: bool,
    /// Pods that a check reports to be without our programs.
    astray: Vec<String>,
    /// The interfaces whose hooks were checked.
    checked: Vec<ChangedInterfaces>,
    /// Installations report that the generation is the previous one, so it keeps its number.
    is_same: bool,
    /// The CPU time that the process has used.
    cpu: Duration,
    /// The time after an installation within which another one would wait.
    pause: Duration,
    /// A thread waits for packets and programs.
    is_in_use: bool,
    /// How long an installation takes, in real time.
    install_takes: Duration,
    /// The next installation should be prepared.
    lacks_spare: bool,
    refuse_prepare: bool,
}

impl Enforce for FakeKernel {
    fn install(&mut self, request: &InstallRequest<'_>) -> Result<Installed, EnforceError> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        let shown = |it: &PodAtInterface| format!("{}@{}", it.pod, it.interface);
        let at = request.endpoints.iter().map(shown).collect::<Vec<_>>();
        let isolated = request.artifact.endpoints.iter().any(|it| it.value[endpoint::FLAGS as usize] != 0);
        let isolated = if isolated { " isolated" } else { "" };
        // The tests give this address to the pod that they add later.
        let exact = request.artifact.map(MapName::Exact4);
        let late = exact.is_some_and(|map| map.entries.iter().any(|(key, _)| key[..] == [10, 0, 1, 6]));
        let late = if late { " with 10.0.1.6" } else { "" };
        let closed = request.closed.iter().map(shown).collect::<Vec<_>>();
        let closed = if closed.is_empty() { String::new() } else { format!(" closed {}", closed.join(",")) };
        seen.done.push(format!("install {}{closed}{isolated}{late}", at.join(",")));
        std::thread::sleep(seen.install_takes);
        if seen.refuse_install {
            return Err(EnforceError::new("no memory"));
        }
        let failed = if seen.refuse_pod {
            vec![PodFailure { pod: "shop/web".to_owned(), why: "busy".to_owned() }]
        } else {
            Vec::new()
        };
        let (epoch, is_extended) = (seen.done.len() as u32, request.extends.is_some());
        Ok(Installed { epoch, is_new: !seen.is_same, is_extended, failed, repaired: Vec::new() })
    }

    fn write_addresses(&mut self, changes: &[AddressChange], again: bool) -> Result<(), EnforceError> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        for AddressChange { address, class } in changes {
            let (what, again) = (if class.is_some() { "write" } else { "remove" }, if again { ", again" } else { "" });
            seen.done.push(format!("{what} {address}{again}"));
        }
        if changes.is_empty() && again {
            seen.done.push("again".to_owned());
        }
        if seen.refuse_write { Err(EnforceError::new("full")) } else { Ok(()) }
    }

    fn add_pod(&mut self, new: &NewPod) -> Result<u32, EnforceError> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        let PodAtInterface { pod, interface } = &new.at;
        seen.done.push(format!("add {pod}@{interface} like {}", new.like));
        if seen.refuse_single { Err(EnforceError::new("full")) } else { Ok(1) }
    }

    fn remove_pods(&mut self, pods: &[GonePod]) -> Result<(), EnforceError> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        let shown = |it: &GonePod| format!("{} {}", if it.is_deleted { "delete" } else { "lose" }, it.pod);
        seen.done.extend(pods.iter().map(shown));
        if seen.refuse_single { Err(EnforceError::new("busy")) } else { Ok(()) }
    }

    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, EnforceError> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        seen.done.extend(ended.iter().map(|it| format!("end {} {}:{}", it.pod, it.address, it.port)));
        if seen.refuse_end { Err(EnforceError::new("busy")) } else { Ok(ended.len()) }
    }

    fn pause(&self) -> Duration {
        self.0.lock().expect("no test panics while it holds it").pause
    }

    fn is_replaced_in_use(&self) -> bool {
        self.0.lock().expect("no test panics while it holds it").is_in_use
    }

    fn separate_replaced(&mut self) -> Result<(), EnforceError> {
        self.0.lock().expect("no test panics while it holds it").done.push("separate".to_owned());
        Ok(())
    }

    fn remove_replaced(&mut self) -> Result<(), EnforceError> {
        Ok(())
    }

    fn prepare_spare(&mut self, _: &Artifact) -> Result<(), EnforceError> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        let lacks_spare = seen.lacks_spare;
        seen.done.extend(lacks_spare.then(|| "prepare".to_owned()));
        if seen.refuse_prepare { Err(EnforceError::new("no memory")) } else { Ok(()) }
    }

    fn check_hooks(&mut self, of: &ChangedInterfaces) -> Result<CheckedHooks, EnforceError> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        seen.checked.push(of.clone());
        if seen.refuse_check {
            return Err(EnforceError::new("no bpf file system"));
        }
        let why = "no program of ours runs".to_owned();
        let astray = seen.astray.iter().map(|pod| PodFailure { pod: pod.clone(), why: why.clone() }).collect();
        Ok(CheckedHooks { repaired: Vec::new(), astray })
    }

    fn close(&mut self, interface: &str) -> Result<(), EnforceError> {
        self.0.lock().expect("no test panics while it holds it").closed.push(interface.to_owned());
        Ok(())
    }

    fn reconcile(&mut self) -> Result<KernelSnapshot, EnforceError> {
        Ok(KernelSnapshot::default())
    }
}

/// An agent, a fake kernel, and a host on which a pod's interface and its entry in the result cache appear together.
struct Rig {
    agent: NodeAgent<FakeKernel>,
    kernel: FakeKernel,
    host: Arc<Mutex<Inventory>>,
    metrics: Arc<Metrics>,
    notices: tokio::sync::mpsc::Receiver<Notice>,
    /// The agent's orders to the followers.
    orders: Arc<Mutex<Vec<(&'static str, FollowOrder)>>>,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        Self::with(UnknownPods::Allow, Budgets::default())
    }

    fn with_budgets(budgets: Budgets) -> Self {
        Self::with(UnknownPods::Allow, budgets)
    }

    fn with(unknown_pods: UnknownPods, budgets: Budgets) -> Self {
        let (kernel, metrics) = (FakeKernel::default(), Arc::new(Metrics::default()));
        let host = Arc::new(Mutex::new(Inventory::default()));
        let (seen, used) = (Arc::clone(&host), Arc::clone(&kernel.0));
        let orders: Arc<Mutex<Vec<(&'static str, FollowOrder)>>> = Arc::default();
        let seen_orders = Arc::clone(&orders);
        let (sender, notices) = tokio::sync::mpsc::channel(64);
        let setup = Setup {
            node: "near".to_owned(),
            assume: Assumptions::default(),
            kinds: KINDS.to_vec(),
            unknown_pods,
            read_host: Box::new(move |_| seen.lock().expect("no test panics while it holds it").clone()),
            relist: Box::new(|_| ()),
            send_order: Box::new(move |kind, order| {
                seen_orders.lock().expect("no test panics while it holds it").push((kind, order))
            }),
            reports: Reports {
                metrics: Arc::clone(&metrics),
                notices: Notices::new(sender, Arc::clone(&metrics)),
                published: tokio::sync::watch::channel(PublishedGeneration::default()).0,
                log: Log,
            },
            target: Target::BASE,
            budgets,
            cpu: "10%".parse().expect("it is a share"),
            read_cpu: Box::new(move || used.lock().expect("no test panics while it holds it").cpu),
        };
        let mut agent = NodeAgent::new(setup, kernel.clone());
        agent.scopes = WatchScopes::everything();
        Self { agent, kernel, host, metrics, notices, orders, now: Instant::now() }
    }

    /// A rig whose agent has listed the cluster and put it into force.
    fn in_force() -> Self {
        let mut rig = Self::new();
        rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
        rig.list(CLUSTER);
        assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
        rig
    }

    fn plug(&mut self, name: &str, uid: &str, veth: &str, address: [u8; 4]) {
        let mut host = self.host.lock().expect("no test panics while it holds it");
        let ifindex = host.interfaces.iter().count() as u32 + 1;
        let (veth_name, kind) = (veth.to_owned(), "veth".to_owned());
        host.change_interfaces(|all| {
            all.push(NamespaceInterface { ifindex, name: veth_name, kind, peer: Some(2) });
        });
        host.cached.push(Arc::new(Attachment {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: Some(uid.to_owned()),
            host_interfaces: vec![veth.to_owned()],
            addresses: vec![address.into()],
            attached_at: Some(std::time::SystemTime::now()),
        }));
    }

    fn unplug(&mut self, veth: &str) {
        let mut host = self.host.lock().expect("no test panics while it holds it");
        host.change_interfaces(|all| all.retain(|it| it.name != veth));
    }

    fn apply(&mut self, text: &str) {
        objects(text).into_iter().for_each(|object| self.agent.handle_event(ApiEvent::Applied(object), self.now));
    }

    fn delete(&mut self, kind: &str, name: &str) {
        self.agent.handle_event(ApiEvent::Deleted(key(kind, name)), self.now);
    }

    fn list(&mut self, text: &str) {
        let objects = objects(text);
        for kind in KINDS {
            let keys: Vec<Key> = objects.iter().map(Key::of).filter(|key| key.kind == kind).collect();
            let of_kind = objects.iter().filter(|object| Key::of(object).kind == kind);
            of_kind.for_each(|object| self.agent.handle_event(ApiEvent::Applied(object.clone()), self.now));
            self.agent.handle_event(ApiEvent::Listed { kind, names: keys.iter().collect(), order: 0 }, self.now);
        }
    }

    /// Moves the clock forward, and calls the agent whenever its work is due. Returns the requests to the kernel.
    fn after(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        self.agent.act(self.now, &mut || None);
        while let Some(due) = self.agent.due().filter(|due| *due <= end) {
            assert!(due > self.now, "work that was due was done");
            self.now = due;
            self.agent.act(self.now, &mut || None);
        }
        self.now = end;
        self.agent.act(self.now, &mut || None);
        std::mem::take(&mut self.seen().done)
    }

    /// Makes the generation that is due, while these objects arrive. Returns the requests to the kernel.
    fn compile_while_receiving(&mut self, text: &str) -> Vec<String> {
        let done = self.compile_while(objects(text).into_iter().map(ApiEvent::Applied));
        // Whether a new epoch is due in the meantime depends on the speed of this machine.
        done.into_iter().map(|it| it.replace(", again", "")).collect()
    }

    fn compile_while(&mut self, events: impl Iterator<Item = ApiEvent>) -> Vec<String> {
        self.act_while(GATHER, events)
    }

    /// Does the work that is due after this time, while these events arrive.
    fn act_while(&mut self, time: Duration, events: impl Iterator<Item = ApiEvent>) -> Vec<String> {
        let at = self.now;
        let mut messages = events.map(|it| AgentMessage::Api(vec![(it, at)]));
        self.agent.act(self.now + time, &mut || messages.next());
        std::mem::take(&mut self.seen().done)
    }

    /// The notices about objects since the last call, as text.
    fn notices(&mut self) -> Vec<String> {
        let notices = std::iter::from_fn(|| self.notices.try_recv().ok());
        notices.map(|it| format!("{} {}/{}: {}", it.reason, it.about.kind, it.about.name, it.message)).collect()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, FakeKernelState> {
        self.kernel.0.lock().expect("no test panics while it holds it")
    }
}

fn objects(text: &str) -> Vec<Object> {
    let input = Input { name: "test".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (decoded, diagnostics) = decode::decode(
        vec![input],
        &decode::DecodeOptions { default_namespace: "shop".to_owned(), is_from_server: false },
    );
    assert!(!diagnostics.has_errors(), "{:?}", diagnostics.into_vec());
    decoded.objects
}

fn key(kind: &str, name: &str) -> Key {
    let namespace =
        if matches!(kind, "Namespace" | "Node" | "CidrList" | "ClusterNetworkPolicy") { "" } else { "shop" };
    Key { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

/// An object of which nothing can be read.
fn malformed(key: Key, uid: Option<&str>, message: &str) -> ApiEvent {
    let (uid, message) = (uid.map(str::to_owned), message.to_owned());
    ApiEvent::Malformed(MalformedObject { key, uid, node: None, message })
}

fn far_pod(name: &str, app: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}},
          spec: {{nodeName: far}}, status: {{phase: Running, podIP: {address}}}}}"
    )
}

const OPEN: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: shop},
  spec: {podSelector: {matchLabels: {app: web}}, ingress: [{}]}}";

/// The same pods as before, on one port.
const NARROW: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: shop},
  spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 80}]}]}}";

const NONE: [&str; 0] = [];

#[test]
fn nothing_is_installed_before_every_kind_is_listed() {
    let mut rig = Rig::new();
    rig.apply(CLUSTER);
    for kind in ["Namespace", "Node", "Pod"] {
        let keys: Vec<Key> = objects(CLUSTER).iter().map(Key::of).filter(|key| key.kind == kind).collect();
        rig.agent.handle_event(ApiEvent::Listed { kind, names: keys.iter().collect(), order: 0 }, rig.now);
    }
    assert_eq!(rig.after(Duration::from_secs(60)), NONE);
    assert!(rig.metrics.unready().is_some());
    rig.agent.handle_event(
        ApiEvent::Listed { kind: "NetworkPolicy", names: [key("NetworkPolicy", "p")].iter().collect(), order: 0 },
        rig.now,
    );
    assert_eq!(rig.after(GATHER), ["install  isolated"]);
}

#[test]
fn name_of_a_node_that_no_object_has_is_warned_of() {
    let is_warned_of = |text: &str| {
        let messages = messages_during(|| Rig::new().list(text));
        messages.iter().filter(|it| it.starts_with("no pod and no Node object has the name of this node")).count()
    };
    let elsewhere = CLUSTER.replace("near", "other");
    assert_eq!(is_warned_of(&elsewhere), 1, "--node is misspelt");
    assert_eq!(is_warned_of(CLUSTER), 0);
    assert_eq!(is_warned_of(&elsewhere.replace("name: other", "name: near")), 0, "its pods are not there yet");
    assert_eq!(is_warned_of(&elsewhere.replace("nodeName: other", "nodeName: near")), 0, "files need no Node object");
    assert_eq!(is_warned_of("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"), 0, "there are no pods");
}

/// How many generations came into force, how many of them by changes of the one before, and how many extended it.
fn generations(rig: &Rig) -> [Option<String>; 3] {
    let text = rig.metrics.text();
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    ["weir_generations_total", "weir_incremental_generations_total", "weir_extended_generations_total"].map(value)
}

#[test]
fn changes_of_policies_and_remote_pods_are_applied_to_the_generation_in_force() {
    let mut rig = Rig::in_force();
    let counts = |all: [&str; 3]| all.map(|count| Some(count.to_owned()));
    assert_eq!(generations(&rig), counts(["1", "0", "0"]));
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(generations(&rig), counts(["2", "1", "0"]));
    // No pod of this app existed, so its address has no class yet.
    let other = NARROW.replace("app: db", "app: job").replace("name: p", "name: q");
    rig.apply(&other);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.apply(&far_pod("job", "job", "10.0.1.6"));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated with 10.0.1.6"]);
    assert_eq!(generations(&rig), counts(["4", "3", "2"]));
    rig.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}");
    assert_eq!(rig.after(GATHER), NONE);
    rig.apply(&other.replace("app: job", "app: cron"));
    assert_eq!(rig.after(GATHER).len(), 1);
    assert_eq!(generations(&rig), counts(["5", "4", "2"]), "a policy changes after a namespace got other labels");
}

#[test]
fn steps_of_a_pods_start_without_a_new_address_need_no_generation() {
    let mut rig = Rig::in_force();
    let pod = |phase: &str, address: &str, ready: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: new, namespace: shop, uid: u9, labels: {{app: web}}}}, \
              spec: {{nodeName: near}}, \
              status: {{phase: {phase}{address}, conditions: [{{type: Ready, status: '{ready}'}}]}}}}"
        )
    };
    rig.apply(&pod("Pending", "", "False"));
    assert_eq!(rig.after(Duration::from_secs(1)), NONE, "it sends nothing yet");
    rig.plug("new", "u9", "veth9", [10, 0, 0, 9]);
    rig.apply(&pod("Pending", ", podIP: 10.0.0.9", "False"));
    assert_eq!(rig.after(Duration::from_secs(1)), ["add shop/new@veth9 like shop/web"]);
    rig.apply(&pod("Running", ", podIP: 10.0.0.9, hostIP: 172.16.0.1", "False"));
    rig.apply(&pod("Running", ", podIP: 10.0.0.9, hostIP: 172.16.0.1", "True"));
    assert_eq!(rig.after(Duration::from_secs(1)), NONE);
}

#[test]
fn labels_of_a_namespace_that_no_policy_mentions_need_no_generation() {
    let mut rig = Rig::in_force();
    rig.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}");
    rig.apply("{apiVersion: v1, kind: Namespace, metadata: {name: new, labels: {team: a}}}");
    assert_eq!(rig.after(Duration::from_secs(1)), NONE);
}

#[test]
fn changes_within_the_gathering_time_are_one_generation() {
    let mut rig = Rig::in_force();
    for _ in 0..3 {
        rig.apply(OPEN);
        rig.apply(CLUSTER);
        assert_eq!(rig.after(QUIET / 2), NONE);
    }
    rig.apply(OPEN);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7"]);
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
}

#[test]
fn endless_changes_do_not_delay_a_generation() {
    let mut rig = Rig::in_force();
    let mut done = Vec::new();
    // Until twice the gathering time is over.
    for turn in 0..4 * GATHER.as_micros() / QUIET.as_micros() {
        rig.apply(if turn % 2 == 0 { OPEN } else { CLUSTER });
        done.extend(rig.after(QUIET / 2));
    }
    assert!(!done.is_empty());
}

#[test]
fn pod_of_a_known_class_is_a_single_write() {
    let mut rig = Rig::in_force();
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET / 2), ["write 10.0.1.6"]);
    rig.delete("Pod", "db-2");
    assert_eq!(rig.after(QUIET / 2), ["remove 10.0.1.6"]);
    assert!(rig.metrics.text().contains("weir_address_writes_total 2\n"), "{}", rig.metrics.text());
}

#[test]
fn list_entry_change_is_a_single_write_and_its_flows_are_judged_again() {
    let list = |addresses: &str| {
        format!(
            "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: bad}}, spec: {{action: Deny, cidrs: [{addresses}]}}}}"
        )
    };
    let mut rig = Rig::in_force();
    rig.apply(&list("203.0.113.1, 203.0.113.9"));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.after(PAUSE), NONE);
    rig.apply(&list("203.0.113.1, 203.0.113.5, 203.0.113.9"));
    assert_eq!(rig.after(PAUSE), ["write 203.0.113.5, again"]);
    rig.apply(&list("203.0.113.5, 203.0.113.9"));
    assert_eq!(rig.after(PAUSE), ["write 203.0.113.1, again"], "the new entry overrides the compiled table");
    rig.apply(&list("203.0.113.9"));
    assert_eq!(rig.after(PAUSE), ["remove 203.0.113.5, again"], "no compiled table has the address");
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(PAUSE), ["write 10.0.1.6, again"]);
}

#[test]
fn refused_entry_writes_lead_to_a_new_generation() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_write = true;
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(GATHER), ["write 10.0.1.6", "install shop/web@veth7 isolated with 10.0.1.6"]);
}

#[test]
fn malformed_object_keeps_its_last_readable_content() {
    let mut rig = Rig::in_force();
    let event = malformed(key("NetworkPolicy", "p"), None, "odd");
    rig.agent.handle_event(event, rig.now);
    // Another change leads to a new generation. It contains the policy with its last readable content.
    rig.apply(
        "{apiVersion: v1, kind: Node, metadata: {name: near}, \
          status: {addresses: [{type: InternalIP, address: 172.16.0.9}]}}",
    );
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    let line = "weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"malformed\"} 1";
    assert!(rig.metrics.text().contains(line), "{}", rig.metrics.text());
    // A list that names the policy does not remove it. A list without it does.
    rig.agent.handle_event(
        ApiEvent::Listed { kind: "NetworkPolicy", names: [key("NetworkPolicy", "p")].iter().collect(), order: 0 },
        rig.now,
    );
    assert_eq!(rig.after(GATHER), NONE);
    rig.agent
        .handle_event(ApiEvent::Listed { kind: "NetworkPolicy", names: ListedNames::default(), order: 0 }, rig.now);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7"]);
    assert!(!rig.metrics.text().contains("malformed"), "{}", rig.metrics.text());
}

#[test]
fn events_report_unreadable_failed_and_refused_objects_once() {
    let mut rig = Rig::in_force();
    assert_eq!(rig.notices(), NONE);
    let event = |message: &str| malformed(key("NetworkPolicy", "p"), None, message);
    for _ in 0..3 {
        rig.agent.handle_event(event("odd"), rig.now);
    }
    assert_eq!(rig.notices(), ["Unreadable NetworkPolicy/p: odd; its last readable content stays in force"]);
    rig.seen().refuse_install = true;
    rig.apply(OPEN);
    rig.after(Duration::from_secs(10));
    let message = "not in force on node near: no memory; the previous generation stays in force";
    assert_eq!(rig.notices(), [format!("NotEnforced NetworkPolicy/p: {message}")]);
    let line = "weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"failed\"} 1";
    assert!(rig.metrics.text().contains(line), "{}", rig.metrics.text());
    rig.seen().refuse_install = false;
    rig.seen().refuse_pod = true;
    rig.after(Duration::from_secs(60));
    assert_eq!(rig.notices(), ["NotEnforced Pod/web: policy is not in force on the pod on node near: busy"]);
    assert!(!rig.metrics.text().contains("why=\"failed\""), "{}", rig.metrics.text());
}

#[test]
fn list_deletes_objects_that_it_does_not_name() {
    let mut rig = Rig::in_force();
    rig.agent
        .handle_event(ApiEvent::Listed { kind: "Pod", names: [key("Pod", "web")].iter().collect(), order: 0 }, rig.now);
    assert_eq!(rig.after(GATHER), ["remove 10.0.1.5"]);
}

/// An agent whose kernel has refused a generation.
fn refused(refuse: impl FnOnce(&mut FakeKernelState), why: &str) -> Rig {
    let mut rig = Rig::in_force();
    refuse(&mut rig.seen());
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert!(rig.metrics.unready().is_some_and(|shown| shown.contains(why)));
    rig
}

#[test]
fn failed_generation_is_retried_without_writes_into_the_previous_one() {
    let mut rig = refused(|kernel| kernel.refuse_install = true, "no memory");
    // The index has new classes, which the kernel does not have. So nothing may be written.
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(GATHER), NONE);
    let with_both = ["install shop/web@veth7 isolated with 10.0.1.6"];
    // The attempt that failed has taken real time.
    assert_eq!(rig.after(RETRY.first + RETRY.first / 2), with_both);
    rig.seen().refuse_install = false;
    assert_eq!(rig.after(3 * RETRY.first), with_both, "the generation contains both, so nothing is written");
    assert_eq!(rig.metrics.unready(), None);
    assert_eq!(rig.after(Duration::from_secs(60)), NONE);
}

#[test]
fn refused_pod_is_retried_and_does_not_delay_others() {
    let mut rig = refused(|kernel| kernel.refuse_pod = true, "shop/web: busy");
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["write 10.0.1.6"]);
    rig.seen().refuse_pod = false;
    assert_eq!(rig.after(RETRY.first + GATHER), ["again", "install shop/web@veth7 isolated with 10.0.1.6"]);
    assert_eq!(rig.metrics.unready(), None);
}

#[test]
fn late_interface_is_found() {
    let mut rig = Rig::new();
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), ["install  isolated"]);
    assert!(rig.metrics.unready().is_some_and(|why| why.starts_with("pod shop/web: no interface")));
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    assert_eq!(rig.after(Duration::from_secs(10)), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.metrics.unready(), None);
    assert!(rig.metrics.text().contains("weir_interface_enforced_seconds_count 1\n"), "{}", rig.metrics.text());
}

#[test]
fn pod_with_another_uid_is_another_pod() {
    let mut rig = Rig::in_force();
    rig.plug("web", "u9", "veth9", [10, 0, 0, 9]);
    let again = CLUSTER.replace("u1", "u9").replace("10.0.0.5", "10.0.0.9");
    rig.apply(&again);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth9 isolated"]);
}

#[test]
fn policies_stay_until_their_terminating_namespace_is_gone() {
    let mut rig = Rig::in_force();
    rig.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop, deletionTimestamp: '2026-01-01T00:00:00Z'}}");
    rig.delete("NetworkPolicy", "p");
    assert_eq!(rig.after(GATHER), NONE, "the generation in force has it");
    rig.unplug("veth7");
    rig.delete("Pod", "web");
    assert_eq!(rig.after(GATHER), ["delete shop/web"]);
    rig.delete("Namespace", "shop");
    assert_eq!(rig.agent.objects.index().get(&key("NetworkPolicy", "p")), None);
    assert_eq!(rig.after(GATHER), ["install "], "the generation in force has the policy, and no pod is left");
}

#[test]
fn deleted_policy_of_a_living_namespace_is_removed_at_once() {
    let mut rig = Rig::in_force();
    rig.delete("NetworkPolicy", "p");
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7"]);
}

mod budget;
mod flows;
mod identity;
mod interfaces;
mod life;
mod local_changes;
mod meanwhile;
mod newcomers;
mod pace;
mod preparation;
mod scopes;
mod static_pods;
