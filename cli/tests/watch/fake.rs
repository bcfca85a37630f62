//! A minimal API server for tests of the agent and its host. It streams lists and watches, and can be made unreachable.
//! These tests need only the events of the API. Tests of the API's behaviour use the real server.
//!
//! The server must run in the node's network namespace, and only a process can be started there. The process is this
//! test binary again: it runs one ignored test that reads orders from standard input.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use xtask::apiserver::Settings;

use crate::rig::Directory;

#[derive(Default)]
struct State {
    /// The objects, by path and name.
    objects: BTreeMap<(String, String), Value>,
    /// All events so far: path, type, object.
    events: Vec<(String, &'static str, Value)>,
    open: Vec<TcpStream>,
    is_away: bool,
}

/// A fixed port is free, because the test has its own network namespace.
const PORT: u16 = 6443;
const ROLE: &str = "WEIR_TEST_FAKE_API";

/// The server's process.
pub(crate) struct Fake {
    child: Child,
    orders: ChildStdin,
}

#[derive(Deserialize, Serialize)]
enum Order {
    Apply(String, Value),
    Delete(String, String, String),
    Away(bool),
}

impl Fake {
    pub(crate) fn start(settings: &Settings) -> Self {
        let mut command = settings.command(std::env::current_exe().expect("it runs"));
        command.args(["--exact", "fake::serve_what_is_ordered", "--ignored", "--nocapture"]).env(ROLE, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let orders = child.stdin.take().expect("it is piped");
        Self { child, orders }
    }

    fn order(&mut self, order: &Order) {
        let line = serde_json::to_string(order).expect("JSON") + "\n";
        self.orders.write_all(line.as_bytes()).expect("it listens");
    }

    /// Creates or replaces an object.
    pub(crate) fn apply(&mut self, path: &str, object: Value) {
        self.order(&Order::Apply(path.to_owned(), object));
    }

    pub(crate) fn delete(&mut self, path: &str, namespace: &str, name: &str) {
        self.order(&Order::Delete(path.to_owned(), namespace.to_owned(), name.to_owned()));
    }

    /// Closes all connections. The server answers no requests while it is away.
    pub(crate) fn set_away(&mut self, is_away: bool) {
        self.order(&Order::Away(is_away));
    }

    pub(crate) fn kubeconfig(&self, directory: &Directory) -> PathBuf {
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{PORT}")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]});
        let path = directory.path().join("kubeconfig");
        fs::write(&path, text.to_string()).expect("the directory is ours");
        path
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
#[ignore = "other tests start it as their server"]
fn serve_what_is_ordered() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let serving = Serving::default();
    let listener = TcpListener::bind(("127.0.0.1", PORT)).expect("the namespace is the test's own");
    let accepting = serving.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serving = accepting.clone();
            thread::spawn(move || serving.serve(&stream));
        }
    });
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match serde_json::from_str(&line).expect("an order") {
            Order::Apply(path, object) => serving.apply(&path, object),
            Order::Delete(path, namespace, name) => serving.delete(&path, &namespace, &name),
            Order::Away(is_away) => serving.set_away(is_away),
        }
    }
}

/// The server and its state.
#[derive(Clone, Default)]
struct Serving {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Serving {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().expect("no thread panics while it holds the lock")
    }

    fn apply(&self, path: &str, object: Value) {
        let name = format!("{}/{}", object["metadata"]["namespace"], object["metadata"]["name"]);
        let mut state = self.lock();
        let mut object = object;
        object["metadata"]["resourceVersion"] = json!((state.events.len() + 2).to_string());
        let known = state.objects.insert((path.to_owned(), name), object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        state.events.push((path.to_owned(), kind, object));
        self.state.1.notify_all();
    }

    fn delete(&self, path: &str, namespace: &str, name: &str) {
        let mut state = self.lock();
        let key = (path.to_owned(), format!("\"{namespace}\"/\"{name}\""));
        let object = state.objects.remove(&key).expect("it was applied");
        state.events.push((path.to_owned(), "DELETED", object));
        self.state.1.notify_all();
    }

    fn set_away(&self, is_away: bool) {
        let mut state = self.lock();
        state.is_away = is_away;
        state.open.drain(..).for_each(|it| _ = it.shutdown(Shutdown::Both));
        self.state.1.notify_all();
    }

    /// Answers one request; the connection is closed after it.
    fn serve(&self, stream: &TcpStream) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let request = lines.next().unwrap_or_default();
        if lines.by_ref().take_while(|line| !line.is_empty()).count() == 0 || self.lock().is_away {
            return;
        }
        let target = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let (path, query) = target.split_once('?').unwrap_or((target.as_str(), ""));
        if let Ok(copy) = stream.try_clone() {
            self.lock().open.push(copy);
        }
        // An error means that the agent has disconnected.
        _ = if request.starts_with("GET") && query.contains("watch=true") {
            self.stream(stream, path, query)
        } else {
            let (status, text) = match path {
                "/apis" => ("200 OK", "{\"kind\":\"APIGroupList\",\"groups\":[]}"),
                _ => ("201 Created", "{\"kind\":\"Status\",\"code\":201}"),
            };
            write!(&*stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len())
        };
    }

    fn stream(&self, mut stream: &TcpStream, path: &str, query: &str) -> std::io::Result<()> {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let mut send = |lines: &str| write!(stream, "{:x}\r\n{lines}\r\n", lines.len());
        let mut sent = 0;
        let mut state = self.lock();
        if query.contains("sendInitialEvents=true") {
            let mut lines = String::new();
            for (_, object) in state.objects.iter().filter(|((of, _), _)| of == path) {
                _ = writeln!(lines, "{}", json!({"type": "ADDED", "object": object}));
            }
            sent = state.events.len();
            let end = json!({"k8s.io/initial-events-end": "true"});
            let meta = json!({"resourceVersion": (sent + 1).to_string(), "annotations": end});
            _ = writeln!(lines, "{}", json!({"type": "BOOKMARK", "object": {"kind": "Any", "metadata": meta}}));
            send(&lines)?;
        } else if let Some(version) = query.split('&').find_map(|it| it.strip_prefix("resourceVersion=")) {
            sent = version.parse::<usize>().map_or(0, |it| it.saturating_sub(1));
        }
        while !state.is_away {
            let mut lines = String::new();
            for (_, kind, object) in state.events.iter().skip(sent).filter(|(of, ..)| of == path) {
                _ = writeln!(lines, "{}", json!({"type": kind, "object": object}));
            }
            sent = sent.max(state.events.len());
            if lines.is_empty() {
                state = self
                    .state
                    .1
                    .wait_timeout(state, Duration::from_secs(1))
                    .expect("no thread panics while it holds the lock")
                    .0;
            } else {
                drop(state);
                send(&lines)?;
                state = self.lock();
            }
        }
        Ok(())
    }
}
