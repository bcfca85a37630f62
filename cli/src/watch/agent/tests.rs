use std::net::IpAddr;
use std::sync::Mutex;

use weir_artifact::layout::{MapName, endpoint};
use weir_classes::PeerId;
use weir_classes::departed::EndedService;
use weir_codegen::compile::Budget;
use weir_objects::decode::{self, Input, InputKind};
use weir_runtime::sys::links::Interface;

use super::judging::PAUSE;
use super::*;
use crate::watch::discover::{Cached, Inventory};
use crate::watch::enforce::{Installed, Looked, Survey, Trouble, Wanted};
use crate::watch::log::Format;

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
struct Kernel(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    done: Vec<String>,
    /// Interfaces that were closed.
    closed: Vec<String>,
    refuse_install: bool,
    refuse_write: bool,
    refuse_pod: bool,
    refuse_end: bool,
    refuse_look: bool,
    /// Pods that a check reports to be without our programs.
    astray: Vec<String>,
    /// Installations report that the generation is the previous one, so it keeps its number.
    is_same: bool,
}

impl Enforce for Kernel {
    fn install(&mut self, wanted: &Wanted<'_>) -> Result<Installed, Trouble> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        let at = wanted.endpoints.iter().map(|(pod, interface)| format!("{pod}@{interface}")).collect::<Vec<_>>();
        let isolated = wanted.artifact.endpoints.iter().any(|it| it.value[endpoint::FLAGS as usize] != 0);
        let isolated = if isolated { " isolated" } else { "" };
        // The tests give this address to the pod that they add later.
        let exact = wanted.artifact.map(MapName::Exact4);
        let late = exact.is_some_and(|map| map.entries.iter().any(|(key, _)| key[..] == [10, 0, 1, 6]));
        let late = if late { " with 10.0.1.6" } else { "" };
        let closed = wanted.closed.iter().map(|(pod, interface)| format!("{pod}@{interface}")).collect::<Vec<_>>();
        let closed = if closed.is_empty() { String::new() } else { format!(" closed {}", closed.join(",")) };
        seen.done.push(format!("install {}{closed}{isolated}{late}", at.join(",")));
        if seen.refuse_install {
            return Err(Trouble("no memory".to_owned()));
        }
        let failed = if seen.refuse_pod { vec![("shop/web".to_owned(), "busy".to_owned())] } else { Vec::new() };
        Ok(Installed { epoch: seen.done.len() as u32, is_new: !seen.is_same, failed })
    }

    fn write(&mut self, changes: &[(IpAddr, Option<PeerId>)], again: bool) -> Result<(), Trouble> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        for (address, peer) in changes {
            let (what, again) = (if peer.is_some() { "write" } else { "remove" }, if again { ", again" } else { "" });
            seen.done.push(format!("{what} {address}{again}"));
        }
        if changes.is_empty() && again {
            seen.done.push("again".to_owned());
        }
        if seen.refuse_write { Err(Trouble("full".to_owned())) } else { Ok(()) }
    }

    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, Trouble> {
        let mut seen = self.0.lock().expect("no test panics while it holds it");
        seen.done.extend(ended.iter().map(|it| format!("end {} {}:{}", it.pod, it.address, it.port)));
        if seen.refuse_end { Err(Trouble("busy".to_owned())) } else { Ok(ended.len()) }
    }

    fn rest(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn look(&mut self) -> Result<Looked, Trouble> {
        let seen = self.0.lock().expect("no test panics while it holds it");
        if seen.refuse_look {
            return Err(Trouble("no bpf file system".to_owned()));
        }
        let astray = seen.astray.iter().map(|pod| (pod.clone(), "no program of ours runs".to_owned())).collect();
        Ok(Looked { repaired: Vec::new(), astray })
    }

    fn close(&mut self, interface: &str) -> Result<(), Trouble> {
        self.0.lock().expect("no test panics while it holds it").closed.push(interface.to_owned());
        Ok(())
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        Ok(Survey::default())
    }
}

/// An agent, a fake kernel, and a host on which a pod's interface and its entry in the result cache appear together.
struct Rig {
    agent: Agent<Kernel>,
    kernel: Kernel,
    host: Arc<Mutex<Inventory>>,
    metrics: Arc<Metrics>,
    told: tokio::sync::mpsc::Receiver<Notice>,
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
        let (kernel, metrics) = (Kernel::default(), Arc::new(Metrics::default()));
        let host = Arc::new(Mutex::new(Inventory::default()));
        let seen = Arc::clone(&host);
        let (notices, told) = tokio::sync::mpsc::channel(64);
        let setup = Setup {
            node: "near".to_owned(),
            assume: Assumptions::default(),
            kinds: KINDS.to_vec(),
            unknown_pods,
            look: Box::new(move |_| seen.lock().expect("no test panics while it holds it").clone()),
            metrics: Arc::clone(&metrics),
            notices: Notices::new(notices, Arc::clone(&metrics)),
            told: tokio::sync::watch::channel(InForce::default()).0,
            relist: Box::new(|_| ()),
            log: Log { format: Format::Text },
            target: Target::BASE,
            budgets,
        };
        let agent = Agent::new(setup, kernel.clone());
        Self { agent, kernel, host, metrics, told, now: Instant::now() }
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
        let ifindex = host.interfaces.len() as u32 + 1;
        host.interfaces.push(Interface { ifindex, name: veth.to_owned(), kind: "veth".to_owned(), peer: Some(2) });
        host.cached.push(Cached {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: Some(uid.to_owned()),
            host_interfaces: vec![veth.to_owned()],
            addresses: vec![address.into()],
            made: Some(std::time::SystemTime::now()),
        });
    }

    fn unplug(&mut self, veth: &str) {
        let mut host = self.host.lock().expect("no test panics while it holds it");
        host.interfaces.retain(|it| it.name != veth);
    }

    fn apply(&mut self, text: &str) {
        objects(text).into_iter().for_each(|object| self.agent.take(Event::Applied(object), self.now));
    }

    fn delete(&mut self, kind: &str, name: &str) {
        self.agent.take(Event::Deleted(key(kind, name)), self.now);
    }

    fn list(&mut self, text: &str) {
        let objects = objects(text);
        for kind in KINDS {
            let keys = objects.iter().map(Key::of).filter(|key| key.kind == kind).collect();
            let of_kind = objects.iter().filter(|object| Key::of(object).kind == kind);
            of_kind.for_each(|object| self.agent.take(Event::Applied(object.clone()), self.now));
            self.agent.take(Event::Listed { kind, keys }, self.now);
        }
    }

    /// Moves the clock forward, and calls the agent whenever its work is due. Returns the requests to the kernel.
    fn after(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        self.agent.act(self.now, &mut || None);
        while let Some(due) = self.agent.due().filter(|due| *due <= end) {
            assert!(due > self.now, "what was due is done");
            self.now = due;
            self.agent.act(self.now, &mut || None);
        }
        self.now = end;
        self.agent.act(self.now, &mut || None);
        std::mem::take(&mut self.seen().done)
    }

    /// Makes the generation that is due, while these objects arrive. Returns the requests to the kernel.
    fn make_while_told(&mut self, text: &str) -> Vec<String> {
        let done = self.make_while(objects(text).into_iter().map(Event::Applied));
        // Whether a new epoch is due in the meantime depends on the speed of this machine.
        done.into_iter().map(|it| it.replace(", again", "")).collect()
    }

    fn make_while(&mut self, events: impl Iterator<Item = Event>) -> Vec<String> {
        let at = self.now;
        let mut told = events.map(|it| Heard::Told(it, at));
        self.agent.act(self.now + GATHER, &mut || told.next());
        std::mem::take(&mut self.seen().done)
    }

    /// The notices about objects since the last call, as text.
    fn told(&mut self) -> Vec<String> {
        let told = std::iter::from_fn(|| self.told.try_recv().ok());
        told.map(|it| format!("{} {}/{}: {}", it.reason, it.about.kind, it.about.name, it.message)).collect()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.kernel.0.lock().expect("no test panics while it holds it")
    }
}

fn objects(text: &str) -> Vec<Object> {
    let input = Input { name: "test".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (decoded, diagnostics) =
        decode::decode(vec![input], &decode::DecodeOptions { default_namespace: "shop".to_owned() });
    assert!(!diagnostics.has_errors(), "{:?}", diagnostics.into_vec());
    decoded.objects
}

fn key(kind: &str, name: &str) -> Key {
    let namespace = if matches!(kind, "Namespace" | "Node" | "CidrList") { "" } else { "shop" };
    Key { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
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
        let keys = objects(CLUSTER).iter().map(Key::of).filter(|key| key.kind == kind).collect();
        rig.agent.take(Event::Listed { kind, keys }, rig.now);
    }
    assert_eq!(rig.after(Duration::from_secs(60)), NONE);
    assert!(rig.metrics.unready().is_some());
    rig.agent.take(Event::Listed { kind: "NetworkPolicy", keys: [key("NetworkPolicy", "p")].into() }, rig.now);
    assert_eq!(rig.after(GATHER), ["install  isolated"]);
}

#[test]
fn changes_that_come_together_are_one_generation() {
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
fn an_endless_stream_of_changes_does_not_put_a_generation_off() {
    let mut rig = Rig::in_force();
    let mut done = Vec::new();
    for turn in 0..20 {
        rig.apply(if turn % 2 == 0 { OPEN } else { CLUSTER });
        done.extend(rig.after(QUIET / 2));
    }
    assert!(!done.is_empty());
}

#[test]
fn a_pod_of_a_known_class_is_one_write() {
    let mut rig = Rig::in_force();
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET / 2), ["write 10.0.1.6"]);
    rig.delete("Pod", "db-2");
    assert_eq!(rig.after(QUIET / 2), ["remove 10.0.1.6"]);
    assert!(rig.metrics.text().contains("weir_address_writes_total 2\n"), "{}", rig.metrics.text());
}

#[test]
fn pods_that_come_while_a_generation_is_made_are_in_both() {
    let mut rig = Rig::in_force();
    let late = far_pod("db-2", "db", "10.0.1.6");
    rig.apply(NARROW);
    let done = rig.make_while_told(&late);
    assert_eq!(done, ["write 10.0.1.6", "install shop/web@veth7 isolated with 10.0.1.6"]);
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
    let text = rig.metrics.text();
    for once in ["weir_pod_enforced_seconds_count 1\n", "weir_policy_enforced_seconds_count 1\n"] {
        assert!(text.contains(once), "{text}");
    }
}

#[test]
fn what_changes_while_a_generation_is_made_and_is_no_single_entry_is_in_the_next_one() {
    let mut rig = Rig::in_force();
    rig.apply(NARROW);
    let done = rig.make_while_told(OPEN);
    assert_eq!(done, ["install shop/web@veth7 isolated"]);
    let text = rig.metrics.text();
    assert!(text.contains("weir_policy_enforced_seconds_count 1\n"), "{text}");
    assert_eq!(rig.after(GATHER + QUIET), ["install shop/web@veth7"]);
    let text = rig.metrics.text();
    assert!(text.contains("weir_policy_enforced_seconds_count 2\n"), "{text}");
}

#[test]
fn what_is_nothing_to_one_generation_may_be_something_to_the_next() {
    let mut rig = Rig::in_force();
    rig.plug("api", "u3", "veth8", [10, 0, 0, 8]);
    rig.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, uid: u3, labels: {app: api}},
          spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.8}}",
    );
    // In the generation in force, this policy selects no pod.
    let late = NARROW.replace("name: p", "name: q").replace("app: web", "app: api");
    let done = rig.make_while_told(&late);
    let both = ["install shop/api@veth8,shop/web@veth7 isolated"];
    assert_eq!(done, both);
    assert_eq!(rig.after(GATHER + QUIET), both);
}

#[test]
fn what_came_late_is_in_the_generation_after_one_that_failed() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_install = true;
    let late = far_pod("db-2", "db", "10.0.1.6");
    rig.apply(NARROW);
    let done = rig.make_while_told(&late);
    assert_eq!(done, ["write 10.0.1.6", "install shop/web@veth7 isolated with 10.0.1.6"]);
    rig.seen().refuse_install = false;
    // The pod is no late change of this generation, so only the compile can have put its address there.
    assert_eq!(rig.after(GATHER + FIRST_RETRY), ["install shop/web@veth7 isolated with 10.0.1.6"]);
}

#[test]
fn an_address_more_or_less_on_a_list_is_one_write_and_its_flows_are_judged_again() {
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
    assert_eq!(rig.after(PAUSE), ["write 203.0.113.1, again"], "what its table says of it is overruled");
    rig.apply(&list("203.0.113.9"));
    assert_eq!(rig.after(PAUSE), ["remove 203.0.113.5, again"], "no table says anything of it");
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(PAUSE), ["write 10.0.1.6, again"]);
}

#[test]
fn what_cannot_be_written_singly_comes_with_a_new_generation() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_write = true;
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(GATHER), ["write 10.0.1.6", "install shop/web@veth7 isolated with 10.0.1.6"]);
}

#[test]
fn a_malformed_object_keeps_what_it_said_before() {
    let mut rig = Rig::in_force();
    let event = Event::Malformed { key: key("NetworkPolicy", "p"), uid: None, message: "odd".to_owned() };
    rig.agent.take(event, rig.now);
    // Another change leads to a new generation. It contains the policy with its last readable content.
    rig.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {a: b}}}");
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    let line = "weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"malformed\"} 1";
    assert!(rig.metrics.text().contains(line), "{}", rig.metrics.text());
    // A list that names the policy does not remove it. A list without it does.
    rig.agent.take(Event::Listed { kind: "NetworkPolicy", keys: [key("NetworkPolicy", "p")].into() }, rig.now);
    assert_eq!(rig.after(GATHER), NONE);
    rig.agent.take(Event::Listed { kind: "NetworkPolicy", keys: BTreeSet::new() }, rig.now);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7"]);
    assert!(!rig.metrics.text().contains("malformed"), "{}", rig.metrics.text());
}

#[test]
fn events_are_about_what_is_not_enforced() {
    let mut rig = Rig::in_force();
    assert_eq!(rig.told(), NONE);
    let event =
        |message: &str| Event::Malformed { key: key("NetworkPolicy", "p"), uid: None, message: message.to_owned() };
    for _ in 0..3 {
        rig.agent.take(event("odd"), rig.now);
    }
    assert_eq!(rig.told(), ["Unreadable NetworkPolicy/p: odd; what it said before stays in force"]);
    rig.seen().refuse_install = true;
    rig.apply(OPEN);
    rig.after(Duration::from_secs(10));
    let said = "not in force on node near: no memory; what was in force stays";
    assert_eq!(rig.told(), [format!("NotEnforced NetworkPolicy/p: {said}")]);
    let line = "weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"failed\"} 1";
    assert!(rig.metrics.text().contains(line), "{}", rig.metrics.text());
    rig.seen().refuse_install = false;
    rig.seen().refuse_pod = true;
    rig.after(Duration::from_secs(60));
    assert_eq!(rig.told(), ["NotEnforced Pod/web: its policy is not in force on node near: busy"]);
    assert!(!rig.metrics.text().contains("why=\"failed\""), "{}", rig.metrics.text());
}

#[test]
fn a_list_takes_away_what_it_does_not_name() {
    let mut rig = Rig::in_force();
    rig.agent.take(Event::Listed { kind: "Pod", keys: [key("Pod", "web")].into() }, rig.now);
    assert_eq!(rig.after(GATHER), ["remove 10.0.1.5"]);
}

#[test]
fn a_generation_that_fails_is_tried_again_and_nothing_is_written_into_the_one_before() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_install = true;
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert!(rig.metrics.unready().is_some_and(|why| why.contains("no memory")));
    // The index has new classes, which the kernel does not have. So nothing may be written.
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(GATHER), NONE);
    let with_both = ["install shop/web@veth7 isolated with 10.0.1.6"];
    assert_eq!(rig.after(FIRST_RETRY), with_both);
    rig.seen().refuse_install = false;
    assert_eq!(rig.after(3 * FIRST_RETRY), with_both, "and nothing is written that it has");
    assert_eq!(rig.metrics.unready(), None);
    assert_eq!(rig.after(Duration::from_secs(60)), NONE);
}

#[test]
fn pods_that_the_kernel_refuses_are_tried_again_and_do_not_hold_up_others() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_pod = true;
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert!(rig.metrics.unready().is_some_and(|why| why.contains("shop/web: busy")));
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["write 10.0.1.6"]);
    rig.seen().refuse_pod = false;
    assert_eq!(rig.after(FIRST_RETRY + GATHER), ["again", "install shop/web@veth7 isolated with 10.0.1.6"]);
    assert_eq!(rig.metrics.unready(), None);
}

#[test]
fn an_interface_that_comes_late_is_found() {
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
fn a_pod_of_the_same_name_is_another_pod() {
    let mut rig = Rig::in_force();
    rig.plug("web", "u9", "veth9", [10, 0, 0, 9]);
    let again = CLUSTER.replace("u1", "u9").replace("10.0.0.5", "10.0.0.9");
    rig.apply(&again);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth9 isolated"]);
}

#[test]
fn policies_outlive_their_deletion_together_with_the_namespace() {
    let mut rig = Rig::in_force();
    rig.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop, deletionTimestamp: '2026-01-01T00:00:00Z'}}");
    rig.delete("NetworkPolicy", "p");
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.unplug("veth7");
    rig.delete("Pod", "web");
    assert_eq!(rig.after(GATHER), ["install "]);
    rig.delete("Namespace", "shop");
    assert_eq!(rig.agent.index.get(&key("NetworkPolicy", "p")), None);
    assert_eq!(rig.after(GATHER).len(), 1);
}

#[test]
fn a_policy_that_is_deleted_alone_is_gone_at_once() {
    let mut rig = Rig::in_force();
    rig.delete("NetworkPolicy", "p");
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7"]);
}

#[test]
fn a_deleted_pod_stays_enforced_until_its_interface_is_gone() {
    let mut rig = Rig::in_force();
    rig.delete("Pod", "web");
    rig.apply(OPEN);
    assert_eq!(rig.after(Duration::from_secs(5)), ["install shop/web@veth7"]);
    rig.unplug("veth7");
    assert_eq!(rig.after(CHECK + GATHER), ["install "]);
}

/// The order of the kubelet: the interface goes first, then the API reports the end of the pod.
#[test]
fn a_pod_that_ends_is_no_failure() {
    let mut rig = Rig::in_force();
    let deleting = CLUSTER.replace("uid: u1,", "uid: u1, deletionTimestamp: '2026-01-01T00:00:00Z',");
    rig.apply(&deleting);
    rig.after(Duration::from_secs(3));
    rig.unplug("veth7");
    for _ in 0..3 {
        rig.after(Duration::from_secs(1));
        assert_eq!(rig.metrics.unready(), None);
        let text = rig.metrics.text();
        assert!(!text.contains("no_interface\"} 1") && !text.contains("weir_failures_total"), "{text}");
        assert!(text.contains("weir_endpoints{state=\"ending\"} 1\n"), "{text}");
    }
    rig.delete("Pod", "web");
    rig.after(Duration::from_secs(1));
    assert!(rig.metrics.text().contains("weir_endpoints{state=\"ending\"} 0\n"), "{}", rig.metrics.text());
}

/// The pod is not being deleted. The runtime may be replacing its network.
#[test]
fn a_pod_whose_interface_stays_away_is_told_of_in_the_end() {
    let mut rig = Rig::in_force();
    rig.unplug("veth7");
    rig.after(Duration::from_secs(10));
    assert_eq!(rig.metrics.unready(), None);
    rig.after(Duration::from_secs(60));
    assert!(rig.metrics.unready().is_some_and(|why| why.starts_with("pod shop/web: no interface")));
}

/// The interface of such a pod may exist without our knowledge.
#[test]
fn a_pod_that_was_never_found_is_told_of_though_it_is_being_deleted() {
    let mut rig = Rig::new();
    rig.list(&CLUSTER.replace("uid: u1,", "uid: u1, deletionTimestamp: '2026-01-01T00:00:00Z',"));
    rig.after(Duration::from_secs(61));
    assert!(rig.metrics.unready().is_some_and(|why| why.starts_with("pod shop/web: no interface")));
}

#[test]
fn an_interface_that_comes_back_as_another_is_found() {
    let mut rig = Rig::in_force();
    rig.unplug("veth7");
    assert_eq!(rig.after(CHECK + GATHER), ["install  isolated"]);
    rig.plug("web", "u1", "veth8", [10, 0, 0, 5]);
    assert_eq!(rig.after(Duration::from_secs(10)), ["install shop/web@veth8 isolated"]);
}

#[test]
fn a_pod_is_enforced_before_the_api_knows_its_address() {
    let mut rig = Rig::in_force();
    let starting = |status: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: web-2, namespace: shop, uid: u7, labels: {{app: web}}}},
              spec: {{nodeName: near}}, status: {status}}}"
        )
    };
    rig.apply(&starting("{phase: Pending}"));
    rig.after(Duration::from_secs(3));
    // An earlier pod of this name has left its result in the cache.
    rig.plug("web-2", "u6", "veth6", [10, 0, 0, 6]);
    assert_eq!(rig.after(Duration::from_secs(3)), NONE);
    rig.plug("web-2", "u7", "veth8", [10, 0, 0, 7]);
    let both = ["install shop/web@veth7,shop/web-2@veth8 isolated"];
    assert_eq!(rig.after(Duration::from_secs(1) + GATHER), both);
    // The next update of the API still has no address.
    rig.apply(&starting("{phase: Pending, conditions: [{type: PodScheduled, status: 'True'}]}"));
    assert_eq!(rig.after(Duration::from_secs(3)), NONE);
    rig.apply(&starting("{phase: Running, podIP: 10.0.0.7}"));
    assert_eq!(rig.after(Duration::from_secs(3)), both);
}

mod budget;
mod flows;
mod identity;
mod life;
mod newcomers;
