//! The list-and-watch protocol for one kind of objects: the next request, and the meaning of an answer.
//!
//! ```text
//!  Streaming ──initial events end──▶ Watching(version) ──closed, broken──▶ Watching(version)
//!     │ refused                         │ expired
//!     ▼                                 ▼
//!  Listing ──last page──▶ Watching   Streaming
//! ```
//!
//! Problem: a streaming list costs the server and the client a tenth of a list in one answer, but servers differ. Some
//! refuse it, some ignore the parameter without an error, and those on etcd 3.4 answer every attempt with an error.
//! Strategy: a fault before the end of the initial events leads to one ordinary list; the next list is streamed
//! again. If the server cannot be reached, or refuses in a way that an ordinary list would meet too (401, 403, 404,
//! 429), the stream itself is retried.
//! Invariants: no I/O here; a list is reported as complete only after the server has said so.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;
use weir_classes::index::Key;
use weir_objects::k8s::Object;

use super::resources::{Head, HeadMeta, Resource};

/// The number of objects on a page of a list.
const PAGE: u32 = 500;
/// The shortest time, in seconds, after which the server ends a watch. A random part of it is added, so that the
/// watches do not all end together.
const WATCH_SECONDS: u32 = 240;
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// A change that the API server reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// An object exists and has this content now.
    Applied(Object),
    /// An object of which only some parts can be read: those parts, and the error about the others.
    Partial { object: Object, message: String },
    /// An object exists but cannot be read.
    Malformed { key: Key, uid: Option<String>, message: String },
    /// An object is gone.
    Deleted(Key),
    /// The list of the kind is complete: only the objects with these keys exist.
    Listed { kind: &'static str, keys: BTreeSet<Key> },
}

/// Why a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
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

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, message } => write!(f, "the API server says {code}: {message}"),
            Self::Broken(error) => f.write_str(error),
            Self::Silent => f.write_str("the API server has not said anything for too long"),
            Self::NoInitialEnd => f.write_str("the API server does not stream lists"),
            Self::Closed => f.write_str("the API server has ended the answer"),
        }
    }
}

/// When to send the next request after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once: the fault is expected, or the next request is of another kind.
    AtOnce,
    /// After a wait.
    Later,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Streaming,
    Listing { token: Option<String> },
    Watching { version: String },
}

/// The state of the protocol for one kind of objects.
#[derive(Debug)]
pub(crate) struct Cursor {
    resource: Resource,
    place: Place,
    /// The keys of the objects in the current list so far.
    seen: BTreeSet<Key>,
}

#[derive(Deserialize)]
struct Line<'l> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'l RawValue,
}

#[derive(Deserialize)]
struct Page<'p> {
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'p RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(rename = "continue", default)]
    token: Option<String>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl Cursor {
    pub(crate) fn new(resource: Resource) -> Self {
        Self { resource, place: Place::Streaming, seen: BTreeSet::new() }
    }

    pub(crate) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Whether the answer is one page, and not a stream of lines.
    pub(crate) fn wants_page(&self) -> bool {
        matches!(self.place, Place::Listing { .. })
    }

    /// Whether the answer is a list in the form of a stream: it must not pause for long.
    pub(crate) fn is_initial(&self) -> bool {
        self.place == Place::Streaming
    }

    /// The path and query of the next request. `chance` is a random number that spreads the ends of watches.
    pub(crate) fn uri(&self, chance: u32) -> String {
        let seconds = WATCH_SECONDS + chance % (WATCH_SECONDS / 4);
        let watch = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        let query = match &self.place {
            Place::Streaming => format!("{watch}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
            Place::Watching { version } => format!("{watch}&resourceVersion={version}"),
            Place::Listing { token: None } => format!("limit={PAGE}"),
            Place::Listing { token: Some(token) } => format!("limit={PAGE}&continue={}", escape(token)),
        };
        let select = self.resource.field_selector.as_deref();
        let select = select.map(|it| format!("&fieldSelector={}", escape(it))).unwrap_or_default();
        format!("{}?{query}{select}", self.resource.path)
    }

    /// Called before each request.
    pub(crate) fn begin(&mut self) {
        if matches!(self.place, Place::Streaming | Place::Listing { token: None }) {
            self.seen.clear();
        }
    }

    /// Reads a page of a list.
    pub(crate) fn page(&mut self, text: &str, mut tell: impl FnMut(Event)) -> Result<(), Fault> {
        let page: Page<'_> = serde_json::from_str(text).map_err(broken)?;
        for raw in page.items.unwrap_or_default() {
            let head: Head = serde_json::from_str(raw.get()).map_err(broken)?;
            tell(self.applied(&head, raw));
        }
        match page.metadata.token.filter(|token| !token.is_empty()) {
            Some(token) => self.place = Place::Listing { token: Some(token) },
            None => self.complete(page.metadata.resource_version, tell),
        }
        Ok(())
    }

    /// Reads a line of a stream.
    pub(crate) fn line(&mut self, text: &str, tell: impl FnOnce(Event)) -> Result<(), Fault> {
        let line: Line<'_> = serde_json::from_str(text).map_err(broken)?;
        if line.kind == "ERROR" {
            let status: Status = serde_json::from_str(line.object.get()).unwrap_or_default();
            return Err(Fault::Refused { code: status.code, message: status.message });
        }
        let head: Head = serde_json::from_str(line.object.get()).map_err(broken)?;
        match line.kind.as_str() {
            "BOOKMARK" => return self.bookmark(head.metadata, tell),
            "DELETED" => {
                let key = self.resource.key(&head.metadata);
                self.seen.remove(&key);
                tell(Event::Deleted(key));
            }
            _ => tell(self.applied(&head, line.object)),
        }
        if let (Place::Watching { version }, Some(now)) = (&mut self.place, head.metadata.resource_version) {
            *version = now;
        }
        Ok(())
    }

    fn bookmark(&mut self, meta: HeadMeta, tell: impl FnOnce(Event)) -> Result<(), Fault> {
        let now = meta.resource_version.unwrap_or_default();
        let ends = meta.annotations.is_some_and(|it| it.get(INITIAL_END).is_some_and(|value| value == "true"));
        match &mut self.place {
            Place::Streaming if ends => self.complete(now, tell),
            // The server does not know initial events. It has sent its objects, but will not mark the last one.
            Place::Streaming => return Err(Fault::NoInitialEnd),
            Place::Watching { version } => *version = now,
            Place::Listing { .. } => {}
        }
        Ok(())
    }

    fn complete(&mut self, version: String, tell: impl FnOnce(Event)) {
        self.place = Place::Watching { version };
        tell(Event::Listed { kind: self.resource.kind, keys: std::mem::take(&mut self.seen) });
    }

    fn applied(&mut self, head: &Head, raw: &RawValue) -> Event {
        let key = self.resource.key(&head.metadata);
        if !matches!(self.place, Place::Watching { .. }) {
            self.seen.insert(key.clone());
        }
        // A bug in reading one object must not stop its whole kind.
        let read = std::panic::catch_unwind(|| self.resource.object(head, raw));
        match read.unwrap_or_else(|_| Err("reading it is a bug in weir; please report it".to_owned())) {
            Ok(object) => Event::Applied(object),
            Err(message) => match self.resource.understood(head, raw) {
                Some(object) => Event::Partial { object, message },
                None => Event::Malformed { key, uid: head.metadata.uid.clone(), message },
            },
        }
    }

    /// Called after a request that ended with a fault.
    pub(crate) fn failed(&mut self, fault: &Fault) -> Next {
        let is_known = |code: &u16| matches!(code, 401 | 403 | 404 | 429);
        match (&self.place, fault) {
            (Place::Watching { .. }, Fault::Closed) => Next::AtOnce,
            (Place::Watching { .. } | Place::Listing { .. }, Fault::Refused { code: 410, .. }) => {
                self.place = Place::Streaming;
                Next::AtOnce
            }
            (Place::Streaming, Fault::Refused { code, .. }) if is_known(code) => Next::Later,
            (Place::Streaming, Fault::Broken(_)) if self.seen.is_empty() => Next::Later,
            (Place::Streaming, _) => {
                self.place = Place::Listing { token: None };
                Next::AtOnce
            }
            (Place::Listing { .. }, _) => {
                self.place = Place::Streaming;
                Next::Later
            }
            (Place::Watching { .. }, _) => Next::Later,
        }
    }

    /// Starts again with a list, because objects that were reported before may be outdated.
    pub(crate) fn list_anew(&mut self) {
        self.place = Place::Streaming;
    }

    /// Reports an empty list, because the server does not have the kind at all.
    pub(crate) fn absent(&mut self, tell: impl FnOnce(Event)) {
        self.seen.clear();
        self.place = Place::Streaming;
        tell(Event::Listed { kind: self.resource.kind, keys: BTreeSet::new() });
    }
}

fn broken(error: serde_json::Error) -> Fault {
    Fault::Broken(format!("what the API server sent is not what was asked for: {error}"))
}

/// Percent-encodes a value for a query: every byte except letters, digits and `-._~`.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte as char),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
