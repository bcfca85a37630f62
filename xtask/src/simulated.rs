//! A simulated API server: it serves any objects that a test puts into it, with clusters of any size and changes at any
//! rate.
//!
//! Problem: the cost of an agent at 10,000 pods does not show at ten, and a real API server on the same machine costs
//! more than the agent. Strategy: an agent only needs streaming lists and watches, which are a few lines of HTTP/1.1.
//! Tests against a real server check that the agent understands one. Invariant: a watcher first gets the objects that
//! exist when it connects, then every change, in order.

mod cluster;
mod exec;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

pub use cluster::{Scale, far_address, far_nodes, near_address, node, pod, policy, populate, service};
use exec::ExecScript;
pub use exec::ExecStep;

/// The kinds, by the paths that clients request.
pub const KINDS: [(&str, &str); 15] = [
    ("Namespace", "/api/v1/namespaces"),
    ("Node", "/api/v1/nodes"),
    ("Pod", "/api/v1/pods"),
    ("Service", "/api/v1/services"),
    ("EndpointSlice", "/apis/discovery.k8s.io/v1/endpointslices"),
    ("NetworkPolicy", "/apis/networking.k8s.io/v1/networkpolicies"),
    ("Deployment", "/apis/apps/v1/deployments"),
    ("StatefulSet", "/apis/apps/v1/statefulsets"),
    ("DaemonSet", "/apis/apps/v1/daemonsets"),
    ("ReplicaSet", "/apis/apps/v1/replicasets"),
    ("ReplicationController", "/api/v1/replicationcontrollers"),
    ("Job", "/apis/batch/v1/jobs"),
    ("CronJob", "/apis/batch/v1/cronjobs"),
    ("CiliumNetworkPolicy", "/apis/cilium.io/v2/ciliumnetworkpolicies"),
    // A version that Weir does not read.
    ("BaselineAdminNetworkPolicy", "/apis/policy.networking.k8s.io/v2/baselineadminnetworkpolicies"),
];

/// The header with the client's part of a WebSocket's handshake.
const KEY: &str = "Sec-WebSocket-Key";
/// The interval at which watchers get a bookmark.
const BOOKMARK: Duration = Duration::from_secs(30);

/// A server on loopback that runs until its process ends.
#[derive(Clone, Debug)]
pub struct Simulated {
    port: u16,
    state: Arc<Mutex<SimulatedState>>,
}

#[derive(Debug, Default)]
struct SimulatedState {
    version: u64,
    /// How many of the next requests for a later page are answered with 410: the version of the list has expired.
    expiring: u32,
    kinds: BTreeMap<&'static str, SimulatedKind>,
    /// What commands in pods do, by `namespace/name`.
    scripts: BTreeMap<String, ExecScript>,
    executed: Vec<(String, Vec<String>)>,
    ended_inputs: Vec<String>,
    /// Paths whose lists are forbidden.
    forbidden: Vec<String>,
    /// Paths that are answered with 404 although the server says that it has their kinds.
    hidden: Vec<String>,
}

#[derive(Debug, Default)]
struct SimulatedKind {
    /// The objects as JSON, by namespace and name.
    objects: BTreeMap<String, Arc<str>>,
    watchers: Vec<Watcher>,
    /// The bytes of objects that were sent to watchers.
    sent: Arc<AtomicU64>,
}

/// A client that watches, and the only object that it asked for, if it has named one.
#[derive(Debug)]
struct Watcher {
    name: Option<String>,
    changes: Sender<Arc<str>>,
}

/// A watch: the objects that exist when it begins, and the channel for later changes.
struct Watched {
    objects: Vec<Arc<str>>,
    changes: Receiver<Arc<str>>,
    sent: Arc<AtomicU64>,
}

impl Simulated {
    /// Starts an empty server.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on loopback")?;
        let kinds = KINDS.map(|(_, path)| (path, SimulatedKind::default())).into();
        let state = Arc::new(Mutex::new(SimulatedState { version: 1, kinds, ..SimulatedState::default() }));
        let server = Self { port: listener.local_addr()?.port(), state };
        let serving = server.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let server = serving.clone();
                // Errors are ignored: an agent that ends closes its connections.
                thread::spawn(move || _ = server.answer(&connection));
            }
        });
        Ok(server)
    }

    /// The kubeconfig for clients.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: weir\n\
             clusters: [{{name: weir, cluster: {{server: 'http://127.0.0.1:{}'}}}}]\nusers: [{{name: nobody, user: {{}}}}]\n\
             contexts: [{{name: weir, context: {{cluster: weir, user: nobody}}}}]\n",
            self.port
        );
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Adds or replaces an object.
    pub fn put(&self, kind: &str, mut object: Value) {
        let mut state = self.lock();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let (key, text): (String, Arc<str>) = (key(&object), object.to_string().into());
        let Some(kind) = state.kind(kind) else { return };
        let before = kind.objects.insert(key.clone(), Arc::clone(&text));
        kind.send(if before.is_some() { "MODIFIED" } else { "ADDED" }, &key, &text);
    }

    /// Deletes an object.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let mut state = self.lock();
        let Some(kind) = state.kind(kind) else { return };
        let key = format!("{namespace}/{name}");
        if let Some(text) = kind.objects.remove(&key) {
            kind.send("DELETED", &key, &text);
        }
    }

    /// The bytes of objects of a kind that were sent to watchers so far.
    pub fn sent(&self, kind: &str) -> u64 {
        self.lock().kind(kind).map_or(0, |kind| kind.sent.load(Ordering::Relaxed))
    }

    /// Lets the next `requests` requests for a later page of a list fail, because its version has expired.
    pub fn expire_lists(&self, requests: u32) {
        self.lock().expiring = requests;
    }

    /// Refuses lists of this path, as for a user without the permission.
    pub fn forbid(&self, path: &str) {
        self.lock().forbidden.push(path.to_owned());
    }

    /// Ends the watches of this path and answers further requests for it with 404, as a proxy does whose server is
    /// gone.
    pub fn hide(&self, path: &str) {
        let mut state = self.lock();
        state.hidden.push(path.to_owned());
        state.kinds.get_mut(path).into_iter().for_each(|kind| kind.watchers.clear());
    }

    /// Ends [`Self::hide`].
    pub fn show(&self, path: &str) {
        self.lock().hidden.retain(|it| it != path);
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, connection: &TcpStream) -> io::Result<()> {
        let mut lines = BufReader::new(connection.try_clone()?).lines();
        while let Some(request) = lines.next().transpose()? {
            let mut key = String::new();
            while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
                if let Some((_, value)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case(KEY)) {
                    key = value.trim().to_owned();
                }
            }
            let target = request.split(' ').nth(1).unwrap_or_default();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            if let Some(pod) = executing_pod(path) {
                return self.exec(connection, &pod, query, &key);
            }
            if query.contains("sendInitialEvents=true") {
                return self.stream(connection, path, selected_name(query));
            }
            let (status, body) = match query.contains("watch=true") {
                true => ("410 Gone", refusal(410, "Expired")),
                false => discovery(path).map_or_else(|| self.list(path, query), |body| ("200 OK", body)),
            };
            respond(connection, status, &body)?;
        }
        Ok(())
    }

    /// A page of a list. The token is the number of objects on earlier pages.
    fn list(&self, path: &str, query: &str) -> (&'static str, String) {
        let mut state = self.lock();
        let number = |key: &str| query.split('&').find_map(|it| it.strip_prefix(key)?.parse::<usize>().ok());
        let (limit, first) = (number("limit="), number("continue="));
        if first.is_some() && state.expiring > 0 {
            state.expiring -= 1;
            return ("410 Gone", refusal(410, "Expired"));
        }
        if state.forbidden.iter().any(|it| it == path) {
            return ("403 Forbidden", refusal(403, "Forbidden"));
        }
        if state.hidden.iter().any(|it| it == path) {
            return ("404 Not Found", refusal(404, "NotFound"));
        }
        let version = state.version;
        let (path, namespace) = in_namespace(path);
        let name = selected_name(query);
        let Some(kind) = state.kinds.get(&*path) else { return ("404 Not Found", refusal(404, "NotFound")) };
        let (first, limit) = (first.unwrap_or(0), limit.unwrap_or(usize::MAX));
        let is_in = |key: &str| namespace.is_none_or(|it| key.split_once('/').is_some_and(|(of, _)| of == it));
        let selected = kind.objects.iter().filter(|(key, _)| is_named(key, name.as_deref()) && is_in(key));
        let labels = selected_labels(query);
        let selected: Vec<&str> = selected.map(|(_, object)| &**object).filter(|it| has_labels(it, &labels)).collect();
        let items: Vec<&str> = selected.iter().copied().skip(first).take(limit).collect();
        let next = first + items.len();
        let token = if next < selected.len() { next.to_string() } else { String::new() };
        let meta = json!({"resourceVersion": version.to_string(), "continue": token});
        ("200 OK", format!(r#"{{"kind":"List","metadata":{meta},"items":[{}]}}"#, items.join(",")))
    }

    fn stream(&self, mut connection: &TcpStream, path: &str, name: Option<String>) -> io::Result<()> {
        let Some(Watched { objects, changes, sent }) = self.watch(path, name) else {
            return respond(connection, "404 Not Found", &refusal(404, "NotFound"));
        };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        connection.write_all(head.as_bytes())?;
        let send = |line: &str| {
            sent.fetch_add(line.len() as u64, Ordering::Relaxed);
            chunk(connection, line)
        };
        for object in objects {
            send(&line("ADDED", &object))?;
        }
        chunk(connection, &self.bookmark(true))?;
        loop {
            match changes.recv_timeout(BOOKMARK) {
                Ok(change) => send(&change)?,
                Err(RecvTimeoutError::Timeout) => chunk(connection, &self.bookmark(false))?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Returns the existing objects and registers for changes, in one step.
    fn watch(&self, path: &str, name: Option<String>) -> Option<Watched> {
        let mut state = self.lock();
        if state.hidden.iter().any(|it| it == path) {
            return None;
        }
        let kind = state.kinds.get_mut(path)?;
        let (sender, changes) = channel();
        let selected = kind.objects.iter().filter(|(key, _)| is_named(key, name.as_deref()));
        let objects = selected.map(|(_, object)| Arc::clone(object)).collect();
        kind.watchers.push(Watcher { name, changes: sender });
        Some(Watched { objects, changes, sent: Arc::clone(&kind.sent) })
    }

    fn bookmark(&self, ends: bool) -> String {
        let annotations = if ends { json!({"k8s.io/initial-events-end": "true"}) } else { json!({}) };
        let meta = json!({"resourceVersion": self.lock().version.to_string(), "annotations": annotations});
        line("BOOKMARK", &json!({"metadata": meta}).to_string())
    }
}

impl SimulatedState {
    fn kind(&mut self, name: &str) -> Option<&mut SimulatedKind> {
        let (_, path) = KINDS.iter().find(|(kind, _)| *kind == name)?;
        self.kinds.get_mut(path)
    }
}

impl SimulatedKind {
    fn send(&mut self, what: &str, key: &str, object: &str) {
        let change: Arc<str> = line(what, object).into();
        self.watchers.retain(|watcher| {
            !is_named(key, watcher.name.as_deref()) || watcher.changes.send(Arc::clone(&change)).is_ok()
        });
    }
}

/// The path of a kind, and the namespace that a path selects.
fn in_namespace(path: &str) -> (Cow<'_, str>, Option<&str>) {
    let found = path.split_once("/namespaces/").and_then(|(version, rest)| Some((version, rest.split_once('/')?)));
    match found {
        Some((version, (namespace, plural))) => (format!("{version}/{plural}").into(), Some(namespace)),
        None => (path.into(), None),
    }
}

/// The name in the field selector `metadata.name=NAME`. Other selectors are ignored: no pod here has ended.
fn selected_name(query: &str) -> Option<String> {
    let selector = query.split('&').find_map(|it| it.strip_prefix("fieldSelector="))?;
    selector.strip_prefix("metadata.name%3D").map(str::to_owned)
}

/// The labels in a label selector of `KEY=VALUE` pairs.
fn selected_labels(query: &str) -> Vec<(String, String)> {
    let selector = query.split('&').find_map(|it| it.strip_prefix("labelSelector=")).map(decoded).unwrap_or_default();
    let pair = |it: &str| it.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    selector.split(',').filter_map(pair).collect()
}

fn has_labels(object: &str, labels: &[(String, String)]) -> bool {
    // Most lists have no selector, and their objects need not be parsed.
    let object: Value = if labels.is_empty() { Value::Null } else { serde_json::from_str(object).unwrap_or_default() };
    labels.iter().all(|(key, value)| object["metadata"]["labels"][key] == value.as_str())
}

/// The pod, as `namespace/name`, in the path of a command.
fn executing_pod(path: &str) -> Option<String> {
    let (namespace, rest) = path.strip_prefix("/api/v1/namespaces/")?.split_once("/pods/")?;
    Some(format!("{namespace}/{}", rest.strip_suffix("/exec")?))
}

/// The text of a percent-encoded value in a query.
fn decoded(value: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), value.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let number = value_of(rest);
        bytes.push(number.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if number.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The byte of an escape sequence at the start of a text.
fn value_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"%")?.get(..2)?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn is_named(key: &str, name: Option<&str>) -> bool {
    name.is_none_or(|name| key.rsplit('/').next() == Some(name))
}

/// The answer to a request for the server's groups, or for the kinds of a group.
fn discovery(path: &str) -> Option<String> {
    let of = |path: &'static str| path.strip_prefix("/apis/")?.rsplit_once('/');
    if path == "/apis" {
        let versions: BTreeSet<&str> = KINDS.iter().filter_map(|(_, path)| Some(of(path)?.0)).collect();
        let version = |it: &str| json!({"groupVersion": it, "version": it.rsplit('/').next()});
        let group = |it: &str| {
            let name = it.split('/').next();
            json!({"name": name, "versions": [version(it)], "preferredVersion": version(it)})
        };
        let groups: Vec<Value> = versions.into_iter().map(group).collect();
        return Some(json!({"kind": "APIGroupList", "groups": groups}).to_string());
    }
    let version = path.strip_prefix("/apis/")?;
    let kinds = KINDS.iter().filter_map(|(kind, path)| of(path).filter(|it| it.0 == version).map(|it| (kind, it.1)));
    let resource =
        |(kind, name)| json!({"name": name, "kind": kind, "singularName": "", "namespaced": true, "verbs": ["list"]});
    let resources: Vec<Value> = kinds.map(resource).collect();
    let list = json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources});
    (list["resources"] != json!([])).then(|| list.to_string())
}

fn key(object: &Value) -> String {
    let meta = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", meta("namespace"), meta("name"))
}

fn line(what: &str, object: &str) -> String {
    format!("{{\"type\":\"{what}\",\"object\":{object}}}\n")
}

fn refusal(code: u16, reason: &str) -> String {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason})
        .to_string()
}

fn chunk(mut connection: &TcpStream, text: &str) -> io::Result<()> {
    connection.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn respond(mut connection: &TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all((head + body).as_bytes())
}
