//! The agent's watch against kube-runtime's, the well-known implementation for Rust: after the same faults of the same
//! API server, both know the same objects.
//!
//! Only faults that kube-runtime's watcher copes with: not an absent kind, not a server that refuses streaming lists.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::sync::{Arc, Mutex};

use futures_util::TryStreamExt as _;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Client};
use weir_runtime::skip;
use xtask::apiserver::Settings;

use crate::api::{PODS, add_cluster, add_pod, agent, ask, has_the_servers_objects, policy};
use crate::rig::{Directory, Wire, server, until};

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
const KINDS: [(&str, &str, &str); 5] = [
    ("", "Namespace", "namespaces"),
    ("", "Node", "nodes"),
    ("", "Pod", "pods"),
    ("", "Service", "services"),
    ("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
];

type Objects = BTreeMap<String, DynamicObject>;

/// What kube-runtime's watchers know, by kind. They run until the test's process ends.
#[derive(Clone, Default)]
struct Reflectors(Arc<Mutex<BTreeMap<&'static str, Objects>>>);

impl Reflectors {
    fn start(kubeconfig: &Path) -> Self {
        let this = Self::default();
        let (reflectors, kubeconfig) = (this.clone(), kubeconfig.to_owned());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
            runtime.block_on(async {
                let file = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig is ours");
                let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("valid");
                let client = Client::try_from(config).expect("valid");
                let all = KINDS.map(|kind| reflectors.clone().reflect(client.clone(), kind));
                futures_util::future::join_all(all).await;
            });
        });
        this
    }

    async fn reflect(self, client: Client, (group, kind, plural): (&'static str, &'static str, &'static str)) {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
        let api: Api<DynamicObject> = Api::all_with(client, &resource);
        let mut events = pin!(watch(api, watcher::Config::default().streaming_lists()).default_backoff());
        let key = |it: &DynamicObject| format!("{:?}/{:?}", it.metadata.namespace, it.metadata.name);
        let mut listed = Objects::new();
        loop {
            // An error ends no watcher: it waits and begins again.
            let Ok(Some(event)) = events.try_next().await else { continue };
            let mut known = self.0.lock().expect("no watcher panics");
            let known = known.entry(kind).or_default();
            match event {
                Event::Init => listed.clear(),
                Event::InitApply(object) => _ = listed.insert(key(&object), object),
                Event::InitDone => *known = std::mem::take(&mut listed),
                Event::Apply(object) => _ = known.insert(key(&object), object),
                Event::Delete(object) => _ = known.remove(&key(&object)),
            }
        }
    }

    /// Whether the agent's artifact was compiled from the objects that the watchers know.
    fn know_what_was_compiled(&self, directory: &Directory) -> bool {
        let objects = directory.path().join("reflected");
        std::fs::create_dir_all(&objects).expect("the directory is ours");
        for (group, kind, _) in KINDS {
            let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
            let known = self.0.lock().expect("no watcher panics").get(kind).cloned().unwrap_or_default();
            let items = known.into_values().map(|object| {
                let mut object = serde_json::to_value(object).expect("it came from JSON");
                (object["apiVersion"], object["kind"]) = (version.as_str().into(), kind.into());
                object
            });
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()});
            std::fs::write(objects.join(format!("{kind}.json")), list.to_string()).expect("the directory is ours");
        }
        let artifact = directory.path().join("artifact");
        let verify = Command::new(env!("CARGO_BIN_EXE_weir")).arg("verify").arg(artifact).arg(objects).output();
        verify.expect("weir starts").status.success()
    }
}

#[test]
fn agent_and_kube_runtime_know_the_same_objects_after_the_same_faults() {
    let directory = Directory::new();
    let mut server = skip!(unless server(&directory, Settings::default()));
    let wire = Wire::to(server.port());
    let kubeconfig = wire.kubeconfig(&server, &directory);
    let (agent, reflectors) = (agent(&directory, &kubeconfig), Reflectors::start(&kubeconfig));
    let agree = |server: &_, after: &str| {
        until(after, || has_the_servers_objects(server, &directory) && reflectors.know_what_was_compiled(&directory));
    };
    add_cluster(&server);
    add_pod(&server, "web", "near", "10.231.0.2");
    add_pod(&server, "old", "near", "10.231.0.3");
    ask(&server, "POST", POLICIES, &policy("p", r#"{"podSelector":{}}"#));
    agree(&server, "the first objects are known");
    // The connection is cut, and nothing has changed when it is back.
    wire.cut();
    wire.mend();
    ask(&server, "PATCH", &format!("{PODS}/old"), r#"{"metadata":{"labels":{"app":"web"}}}"#);
    agree(&server, "a change after a cut is known");
    // The server restarts while it is reachable.
    server.kill_apiserver();
    server.start_apiserver().expect("it starts again");
    ask(&server, "POST", POLICIES, &policy("q", r#"{"podSelector":{},"policyTypes":["Egress"]}"#));
    agree(&server, "a change after a restart is known");
    // Objects go and come while the connection is cut, and the server forgets the versions in between.
    wire.cut();
    ask(&server, "DELETE", &format!("{PODS}/old?gracePeriodSeconds=0"), "");
    ask(&server, "DELETE", &format!("{POLICIES}/p"), "");
    ask(&server, "POST", POLICIES, &policy("r", r#"{"podSelector":{"matchLabels":{"app":"web"}}}"#));
    server.compact().expect("etcd compacts");
    server.kill_apiserver();
    server.start_apiserver().expect("it starts again");
    wire.mend();
    agree(&server, "changes that no event reported are known");
    assert_eq!(agent.terminate(), Some(0));
}
