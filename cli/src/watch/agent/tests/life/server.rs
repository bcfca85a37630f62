//! An API server as the agent sees it: lists as streams and in pages, and watches that are late, end and expire.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use weir_testing::Random;

use crate::watch::cursor::{ApiEvent, WatchCursor, WatchFault};
use crate::watch::resources::{Resource, resources};
use crate::watch::scope::{FollowOrder, WatchScope};

/// The kind, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FakeObjectId {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl FakeObjectId {
    pub(super) fn new(kind: &'static str, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// A change of an object in the server's log.
struct LoggedChange {
    version: u64,
    kind: &'static str,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    change: &'static str,
    name: String,
    object: String,
}

/// The objects, and the log of their changes.
#[derive(Default)]
pub(super) struct FakeApiServer {
    version: u64,
    /// The log has no changes up to this version.
    compacted: u64,
    pub(super) objects: BTreeMap<FakeObjectId, Value>,
    log: Vec<LoggedChange>,
}

impl FakeApiServer {
    pub(super) fn put(&mut self, kind: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let id = FakeObjectId { kind, namespace: text("namespace"), name: text("name") };
        let change = if self.objects.contains_key(&id) { "MODIFIED" } else { "ADDED" };
        let name = id.name.clone();
        self.log.push(LoggedChange { version: self.version, kind, change, name, object: object.to_string() });
        self.objects.insert(id, object);
    }

    pub(super) fn delete(&mut self, id: &FakeObjectId) {
        if let Some(mut object) = self.objects.remove(id) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            let (version, object) = (self.version, object.to_string());
            self.log.push(LoggedChange { version, kind: id.kind, change: "DELETED", name: id.name.clone(), object });
        }
    }

    pub(super) fn get(&self, id: &FakeObjectId) -> Option<&Value> {
        self.objects.get(id)
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.log.clear();
    }

    fn of_kind(&self, kind: &str, selector: Option<&str>) -> Vec<String> {
        let of_kind = self.objects.iter().filter(|(id, _)| id.kind == kind);
        of_kind.filter(|(id, _)| selects(selector, &id.name)).map(|(_, it)| it.to_string()).collect()
    }
}

/// The agent's node.
const NODE: &str = "near";

/// Whether a field selector selects an object of this name. Pods that have ended do not occur here.
fn selects(selector: Option<&str>, name: &str) -> bool {
    selector.and_then(|it| it.strip_prefix("metadata.name=")).is_none_or(|selected| selected == name)
}

enum StreamState {
    Idle,
    /// A list as a stream: its remaining lines, and its version.
    Lines(VecDeque<String>, u64),
    Pages(VecDeque<String>),
    Watching(u64),
}

/// The watch of one kind.
pub(super) struct Stream {
    pub(super) kind: &'static str,
    cursor: WatchCursor,
    state: StreamState,
}

impl Stream {
    pub(super) fn all() -> Vec<Self> {
        let follow = |resource: Resource| Self {
            kind: resource.kind,
            cursor: WatchCursor::new(resource),
            state: StreamState::Idle,
        };
        resources(NODE).into_iter().map(follow).collect()
    }

    pub(super) fn obey(&mut self, order: FollowOrder) {
        self.cursor.obey(order, NODE);
        self.state = StreamState::Idle;
    }

    pub(super) fn list_again(&mut self) {
        self.cursor.list_again();
        self.state = StreamState::Idle;
    }

    /// Breaks the connection.
    pub(super) fn close(&mut self) {
        self.cursor.failed(&WatchFault::Closed);
        self.state = StreamState::Idle;
    }

    /// Delivers one line or one page. Returns whether there was one.
    pub(super) fn step(&mut self, server: &FakeApiServer, dice: &mut Random, emit: &mut impl FnMut(ApiEvent)) -> bool {
        if self.cursor.order().scope == WatchScope::Nothing {
            return false;
        }
        let selector = self.cursor.resource().field_selector.clone();
        match &mut self.state {
            StreamState::Idle => self.ask(server, dice, emit),
            StreamState::Lines(lines, version) => match lines.pop_front() {
                Some(line) => self.receive(&line, emit),
                None => self.state = StreamState::Watching(*version),
            },
            StreamState::Pages(_) => self.page(dice, emit),
            StreamState::Watching(version) => {
                let next = server
                    .log
                    .iter()
                    .find(|it| it.version > *version && it.kind == self.kind && selects(selector.as_deref(), &it.name));
                // The changes were removed from the log before they were sent. The server ends such a watch.
                if next.is_none() && *version < server.compacted {
                    self.close();
                    return true;
                }
                if *version < server.compacted {
                    self.refused(410);
                    return true;
                }
                let Some(LoggedChange { version: at, change, object, .. }) = next else { return false };
                let line = format!(r#"{{"type":"{change}","object":{object}}}"#);
                *version = *at;
                self.receive(&line, emit);
            }
        }
        true
    }

    fn ask(&mut self, server: &FakeApiServer, dice: &mut Random, emit: &mut impl FnMut(ApiEvent)) {
        self.cursor.begin();
        let uri = self.cursor.uri(0);
        if uri.contains("sendInitialEvents") {
            if dice.once_in(6) {
                return self.refused(400);
            }
            let objects = server.of_kind(self.kind, self.cursor.resource().field_selector.as_deref()).into_iter();
            let mut lines: VecDeque<String> =
                objects.map(|object| format!(r#"{{"type":"ADDED","object":{object}}}"#)).collect();
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let meta = json!({"resourceVersion": server.version.to_string(), "annotations": annotations});
            lines.push_back(json!({"type": "BOOKMARK", "object": {"metadata": meta}}).to_string());
            self.state = StreamState::Lines(lines, server.version);
        } else if let Some((_, version)) = uri.split_once("&resourceVersion=") {
            let version = version.split('&').next().and_then(|it| it.parse().ok()).unwrap_or(0);
            if version < server.compacted { self.refused(410) } else { self.state = StreamState::Watching(version) }
        } else {
            let objects = server.of_kind(self.kind, self.cursor.resource().field_selector.as_deref());
            let size = 1 + dice.below(3);
            let mut pages: VecDeque<String> = VecDeque::new();
            let count = objects.len().div_ceil(size).max(1);
            for number in 0..count {
                let items: Vec<&str> = objects.iter().skip(number * size).take(size).map(String::as_str).collect();
                let token = if number + 1 < count { r#","continue":"more""# } else { "" };
                let meta = format!(r#"{{"resourceVersion":"{}"{token}}}"#, server.version);
                pages.push_back(format!(r#"{{"kind":"List","metadata":{meta},"items":[{}]}}"#, items.join(",")));
            }
            self.state = StreamState::Pages(pages);
            self.page(dice, emit);
        }
    }

    fn page(&mut self, dice: &mut Random, emit: &mut impl FnMut(ApiEvent)) {
        let StreamState::Pages(pages) = &mut self.state else { return };
        let Some(page) = pages.pop_front() else { return self.state = StreamState::Idle };
        let is_last = pages.is_empty();
        if !is_last && dice.once_in(12) {
            return self.refused(410);
        }
        self.cursor.page(&page, emit).expect("a valid page");
        if is_last {
            self.state = StreamState::Idle;
        }
    }

    fn receive(&mut self, line: &str, emit: &mut impl FnMut(ApiEvent)) {
        self.cursor.line(line, emit).expect("a valid line");
    }

    fn refused(&mut self, code: u16) {
        self.cursor.failed(&WatchFault::Refused { code, message: String::new() });
        self.state = StreamState::Idle;
    }
}
