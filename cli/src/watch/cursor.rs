//! The list-and-watch protocol for one kind of objects: the next request, and the meaning of an answer.
//!
//! ```text
//!  Streaming ──initial events end──▶ Watching(version) ──closed, broken──▶ Watching(version)
//!     │ refused                         │ expired, or silent twice
//!     ▼                                 ▼
//!  Listing ──last page──▶ Watching   Streaming
//! ```
//!
//! Problem: a streaming list costs the server and the client a tenth of a list in one answer, but servers differ. Some
//! refuse it, some ignore the parameter without an error, and those on etcd 3.4 answer every attempt with an error.
//! Strategy: a fault before the end of the initial events leads to one ordinary list; the next list is streamed
//! again. If the server cannot be reached, or refuses in a way that an ordinary list would meet too (401, 403, 404,
//! 429), the stream itself is retried.
//! Invariants: no I/O here; a list is emitted as complete only after the server has marked its end.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;
use weir_classes::index::Key;
use weir_objects::k8s::Object;

use super::listed::ListedNames;
use super::resources::{Head, HeadMeta, Resource};
use super::scope::FollowOrder;
use crate::api_kinds::escape;

/// The number of objects on a page of a list.
const PAGE: u32 = 500;
/// The shortest time, in seconds, after which the server ends a watch. A random part of it is added, so that the
/// watches do not all end together.
const WATCH_SECONDS: u32 = 240;
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// A change that the API server reports.
#[derive(Debug)]
pub(crate) enum ApiEvent {
    /// An object exists and has this content now.
    Applied(Object),
    /// An object of which only some parts can be read: those parts, and the error about the others.
    Partial { object: Object, message: String },
    /// An object exists but cannot be read.
    Malformed(MalformedObject),
    /// An object is gone.
    Deleted(Key),
    /// The list of the kind is complete: only the objects with these names exist. `order` is the number of the order
    /// that the list belongs to.
    Listed { kind: &'static str, names: ListedNames, order: u32 },
}

impl ApiEvent {
    /// The kind of the object or list.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Applied(object) | Self::Partial { object, .. } => object.body.kind(),
            Self::Malformed(MalformedObject { key, .. }) | Self::Deleted(key) => &key.kind,
            Self::Listed { kind, .. } => kind,
        }
    }
}

/// The known facts about an object that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct MalformedObject {
    pub(crate) key: Key,
    pub(crate) uid: Option<String>,
    /// The node that a pod is on.
    pub(crate) node: Option<String>,
    pub(crate) message: String,
}

/// Why a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchFault {
    /// The server has answered with an error.
    Refused { code: u16, message: String },
    /// The connection has failed, or the data is not valid.
    Broken(String),
    /// The server has sent nothing for too long.
    Silent,
    /// The server supports watches, but does not stream lists.
    NoInitialEnd,
    /// The server has ended the answer, as it does from time to time.
    Closed,
}

impl fmt::Display for WatchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, message } => write!(f, "the API server answered {code}: {message}"),
            Self::Broken(error) => f.write_str(error),
            Self::Silent => f.write_str("the API server sent nothing for too long"),
            Self::NoInitialEnd => f.write_str("the API server does not stream lists"),
            Self::Closed => f.write_str("the API server ended the answer"),
        }
    }
}

/// When to send the next request after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextRequest {
    /// At once: the fault is expected, or the next request is of another kind.
    AtOnce,
    /// After a wait.
    Later,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CursorState {
    Streaming,
    Listing { token: Option<String> },
    Watching { version: String },
}

/// The state of the protocol for one kind of objects.
#[derive(Debug)]
pub(crate) struct WatchCursor {
    resource: Resource,
    order: FollowOrder,
    state: CursorState,
    /// The objects in the current list so far.
    seen: ListedNames,
    /// The last object of the watch, if its version has not been read. Only the next request needs the version, and to
    /// read it from each object would take as long as to decode the object.
    latest: String,
    /// How many watches in a row have ended with [`WatchFault::Silent`], without any event or bookmark.
    silent_watches: u32,
}

#[derive(Deserialize)]
struct WatchLine<'l> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'l RawValue,
}

#[derive(Deserialize)]
struct ListPage<'p> {
    metadata: ListPageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'p RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListPageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(rename = "continue", default)]
    token: Option<String>,
}

#[derive(Default, Deserialize)]
struct ErrorStatus {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl WatchCursor {
    pub(crate) fn new(resource: Resource) -> Self {
        let order = FollowOrder::initial(resource.kind);
        Self {
            resource,
            order,
            state: CursorState::Streaming,
            seen: ListedNames::default(),
            latest: String::new(),
            silent_watches: 0,
        }
    }

    pub(crate) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Follows the objects of this order from now on, and begins with a list of them.
    pub(crate) fn obey(&mut self, order: FollowOrder, node: &str) {
        self.resource.field_selector = order.scope.field_selector(self.resource.kind, node);
        self.order = order;
        self.list_again();
    }

    /// The order that is followed.
    pub(crate) fn order(&self) -> FollowOrder {
        self.order
    }

    /// Whether the answer is one page, and not a stream of lines.
    pub(crate) fn wants_page(&self) -> bool {
        matches!(self.state, CursorState::Listing { .. })
    }

    /// Whether the answer is a list in the form of a stream: it must not pause for long.
    pub(crate) fn is_initial(&self) -> bool {
        self.state == CursorState::Streaming
    }

    /// The path and query of the next request. `chance` is a random number that spreads the ends of watches.
    pub(crate) fn uri(&self, chance: u32) -> String {
        let seconds = WATCH_SECONDS + chance % (WATCH_SECONDS / 4);
        let watch = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        let query = match &self.state {
            CursorState::Streaming => format!("{watch}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
            CursorState::Watching { version } => format!("{watch}&resourceVersion={version}"),
            CursorState::Listing { token: None } => format!("limit={PAGE}"),
            CursorState::Listing { token: Some(token) } => format!("limit={PAGE}&continue={}", escape(token)),
        };
        let select = self.resource.field_selector.as_deref();
        let select = select.map(|it| format!("&fieldSelector={}", escape(it))).unwrap_or_default();
        format!("{}?{query}{select}", self.resource.path)
    }

    /// Called before each request.
    pub(crate) fn begin(&mut self) {
        self.read_version();
        if matches!(self.state, CursorState::Streaming | CursorState::Listing { token: None }) {
            self.seen.clear();
        }
    }

    /// Reads a page of a list.
    pub(crate) fn page(&mut self, text: &str, mut emit: impl FnMut(ApiEvent)) -> Result<(), WatchFault> {
        let page: ListPage<'_> = serde_json::from_str(text).map_err(broken)?;
        for raw in page.items.unwrap_or_default() {
            emit(self.applied(raw.get())?);
        }
        match page.metadata.token.filter(|token| !token.is_empty()) {
            Some(token) => self.state = CursorState::Listing { token: Some(token) },
            None => self.complete(page.metadata.resource_version, emit),
        }
        Ok(())
    }

    /// Reads a line of a stream.
    pub(crate) fn line(&mut self, text: &str, emit: impl FnOnce(ApiEvent)) -> Result<(), WatchFault> {
        match usual_object(text).and_then(|object| Some((object, self.applied(object).ok()?))) {
            Some((object, event)) => {
                self.silent_watches = 0;
                if matches!(self.state, CursorState::Watching { .. }) {
                    self.latest.clear();
                    self.latest.push_str(object);
                }
                emit(event);
                Ok(())
            }
            None => self.any_line(text, emit),
        }
    }

    /// Reads a line of a stream that is not the usual one, or is not valid.
    fn any_line(&mut self, text: &str, emit: impl FnOnce(ApiEvent)) -> Result<(), WatchFault> {
        let line: WatchLine<'_> = serde_json::from_str(text).map_err(broken)?;
        self.silent_watches = 0;
        if line.kind == "ERROR" {
            let status: ErrorStatus = serde_json::from_str(line.object.get()).unwrap_or_default();
            return Err(WatchFault::Refused { code: status.code, message: status.message });
        }
        let head = head(line.object.get())?;
        match line.kind.as_str() {
            "BOOKMARK" => return self.bookmark(head.metadata, emit),
            "DELETED" => {
                let key = self.resource.key(&head.metadata);
                self.seen.remove(&key.namespace, &key.name);
                emit(ApiEvent::Deleted(key));
            }
            _ => emit(self.applied(line.object.get())?),
        }
        self.set_version(head.metadata);
        Ok(())
    }

    /// Reads the version of the last object of the watch.
    fn read_version(&mut self) {
        if self.latest.is_empty() {
            return;
        }
        match head(&self.latest) {
            Ok(head) => self.set_version(head.metadata),
            // The object was decoded before, so its JSON is valid. Without a version, only a list is right.
            Err(_) => self.list_again(),
        }
    }

    fn set_version(&mut self, meta: HeadMeta) {
        self.latest.clear();
        if let (CursorState::Watching { version }, Some(now)) = (&mut self.state, meta.resource_version) {
            *version = now;
        }
    }

    fn bookmark(&mut self, meta: HeadMeta, emit: impl FnOnce(ApiEvent)) -> Result<(), WatchFault> {
        self.latest.clear();
        let now = meta.resource_version.unwrap_or_default();
        let ends = meta.annotations.is_some_and(|it| it.get(INITIAL_END).is_some_and(|value| value == "true"));
        match &mut self.state {
            CursorState::Streaming if ends => self.complete(now, emit),
            // The server does not know initial events. It has sent its objects, but will not mark the last one.
            CursorState::Streaming => return Err(WatchFault::NoInitialEnd),
            CursorState::Watching { version } => *version = now,
            CursorState::Listing { .. } => {}
        }
        Ok(())
    }

    fn complete(&mut self, version: String, emit: impl FnOnce(ApiEvent)) {
        self.state = CursorState::Watching { version };
        let (kind, order) = (self.resource.kind, self.order.number);
        emit(ApiEvent::Listed { kind, names: std::mem::take(&mut self.seen), order });
    }

    fn applied(&mut self, text: &str) -> Result<ApiEvent, WatchFault> {
        // A bug in reading one object must not stop its whole kind.
        let read = std::panic::catch_unwind(|| self.resource.object(text));
        let read =
            read.unwrap_or_else(|_| Err("bug: weir panicked while it decoded the object; please report it".to_owned()));
        let message = match read {
            Ok(object) => {
                self.see(&object.meta.namespace, &object.meta.name);
                return Ok(ApiEvent::Applied(object));
            }
            Err(message) => message,
        };
        let head = head(text)?;
        let key = self.resource.key(&head.metadata);
        self.see(&key.namespace, &key.name);
        let parts = std::panic::catch_unwind(|| self.resource.readable_parts(&head, text)).unwrap_or_default();
        Ok(match parts {
            Some(object) => ApiEvent::Partial { object, message },
            None => {
                let node = (key.kind == "Pod").then(|| node_of(text)).flatten();
                ApiEvent::Malformed(MalformedObject { key, uid: head.metadata.uid, node, message })
            }
        })
    }

    /// Notes that the current list has an object.
    fn see(&mut self, namespace: &str, name: &str) {
        if !matches!(self.state, CursorState::Watching { .. }) {
            self.seen.insert(namespace, name);
        }
    }

    /// Called before [`Self::failed`] after a watch that the server has accepted, and in which it has sent nothing for
    /// too long.
    pub(crate) fn watch_was_silent(&mut self) {
        self.silent_watches += 1;
    }

    /// Called after a request that ended with a fault.
    pub(crate) fn failed(&mut self, fault: &WatchFault) -> NextRequest {
        if *fault != WatchFault::Silent {
            self.silent_watches = 0;
        }
        let is_known = |code: &u16| matches!(code, 401 | 403 | 404 | 429);
        match (&self.state, fault) {
            (CursorState::Watching { .. }, WatchFault::Closed) => NextRequest::AtOnce,
            (CursorState::Watching { .. } | CursorState::Listing { .. }, WatchFault::Refused { code: 410, .. }) => {
                self.state = CursorState::Streaming;
                NextRequest::AtOnce
            }
            (CursorState::Streaming, WatchFault::Refused { code, .. }) if is_known(code) => NextRequest::Later,
            (CursorState::Streaming, WatchFault::Broken(_)) if self.seen.is_empty() => NextRequest::Later,
            (CursorState::Streaming, _) => {
                self.state = CursorState::Listing { token: None };
                NextRequest::AtOnce
            }
            (CursorState::Listing { .. }, _) => {
                self.state = CursorState::Streaming;
                NextRequest::Later
            }
            (CursorState::Watching { .. }, WatchFault::Silent) => {
                // The version may be one that the server does not know, for example after etcd was restored from a
                // backup. Then it sends neither events nor bookmarks until it has reached the version.
                if self.silent_watches > 1 {
                    self.silent_watches = 0;
                    self.state = CursorState::Streaming;
                }
                NextRequest::Later
            }
            (CursorState::Watching { .. }, _) => NextRequest::Later,
        }
    }

    /// Starts again with a list, because known objects may be outdated.
    pub(crate) fn list_again(&mut self) {
        self.latest.clear();
        self.state = CursorState::Streaming;
    }

    /// Emits an empty list, because the server does not have the kind at all.
    pub(crate) fn kind_is_absent(&mut self, emit: impl FnOnce(ApiEvent)) {
        self.seen.clear();
        self.state = CursorState::Streaming;
        emit(ApiEvent::Listed { kind: self.resource.kind, names: ListedNames::default(), order: self.order.number });
    }
}

/// The object of a line that begins as the API server writes it when an object has come or changed. The decoder rejects
/// text after the object, so a line with other fields fails there and is read by [`WatchCursor::any_line`].
fn usual_object(line: &str) -> Option<&str> {
    let of = |kind| line.strip_prefix(r#"{"type":""#)?.strip_prefix(kind)?.strip_prefix(r#"","object":"#);
    of("MODIFIED").or_else(|| of("ADDED"))?.trim_end().strip_suffix('}')
}

/// The node that a pod names, if that much can be read.
fn node_of(pod: &str) -> Option<String> {
    let pod: serde_json::Value = serde_json::from_str(pod).ok()?;
    Some(pod["spec"]["nodeName"].as_str()?.to_owned())
}

fn head(object: &str) -> Result<Head, WatchFault> {
    serde_json::from_str(object).map_err(broken)
}

fn broken(error: serde_json::Error) -> WatchFault {
    WatchFault::Broken(format!("invalid answer of the API server: {error}"))
}

#[cfg(test)]
mod tests;
