//! An API server as the agent sees it: lists as streams and in pages, and watches that are late, end and expire.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::dice::Dice;
use crate::watch::cursor::{Cursor, Event, Fault};
use crate::watch::resources::{Resource, resources};

pub(super) type Id = (&'static str, String, String);

/// The objects, and the log of their changes.
#[derive(Default)]
pub(super) struct Server {
    version: u64,
    /// The log has no changes up to this version.
    compacted: u64,
    pub(super) objects: BTreeMap<Id, Value>,
    log: Vec<(u64, &'static str, &'static str, String)>,
}

impl Server {
    pub(super) fn put(&mut self, kind: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let id = (kind, text("namespace"), text("name"));
        let what = if self.objects.contains_key(&id) { "MODIFIED" } else { "ADDED" };
        self.log.push((self.version, kind, what, object.to_string()));
        self.objects.insert(id, object);
    }

    pub(super) fn delete(&mut self, id: &Id) {
        if let Some(mut object) = self.objects.remove(id) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.log.push((self.version, id.0, "DELETED", object.to_string()));
        }
    }

    pub(super) fn get(&self, id: &Id) -> Option<&Value> {
        self.objects.get(id)
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.log.clear();
    }

    fn of_kind(&self, kind: &str) -> Vec<String> {
        self.objects.iter().filter(|((of, ..), _)| *of == kind).map(|(_, it)| it.to_string()).collect()
    }
}

enum Place {
    Idle,
    /// A list as a stream: its remaining lines, and its version.
    Lines(VecDeque<String>, u64),
    Pages(VecDeque<String>),
    Watching(u64),
}

/// The watch of one kind.
pub(super) struct Stream {
    pub(super) kind: &'static str,
    cursor: Cursor,
    place: Place,
}

impl Stream {
    pub(super) fn all() -> Vec<Self> {
        let follow =
            |resource: Resource| Self { kind: resource.kind, cursor: Cursor::new(resource), place: Place::Idle };
        resources("near").into_iter().map(follow).collect()
    }

    pub(super) fn list_anew(&mut self) {
        self.cursor.list_anew();
        self.place = Place::Idle;
    }

    /// Breaks the connection.
    pub(super) fn close(&mut self) {
        self.cursor.failed(&Fault::Closed);
        self.place = Place::Idle;
    }

    /// Delivers one line or one page. Returns whether there was one.
    pub(super) fn step(&mut self, server: &Server, dice: &mut Dice, tell: &mut impl FnMut(Event)) -> bool {
        match &mut self.place {
            Place::Idle => self.ask(server, dice, tell),
            Place::Lines(lines, version) => match lines.pop_front() {
                Some(line) => self.hear(&line, tell),
                None => self.place = Place::Watching(*version),
            },
            Place::Pages(_) => self.page(dice, tell),
            Place::Watching(version) => {
                let next = server.log.iter().find(|(at, kind, ..)| at > version && *kind == self.kind);
                // The changes were removed from the log before they were sent. The server ends such a watch.
                if next.is_none() && *version < server.compacted {
                    self.close();
                    return true;
                }
                if *version < server.compacted {
                    self.refused(410);
                    return true;
                }
                let Some((at, _, what, object)) = next else { return false };
                let line = format!(r#"{{"type":"{what}","object":{object}}}"#);
                *version = *at;
                self.hear(&line, tell);
            }
        }
        true
    }

    fn ask(&mut self, server: &Server, dice: &mut Dice, tell: &mut impl FnMut(Event)) {
        self.cursor.begin();
        let uri = self.cursor.uri(0);
        if uri.contains("sendInitialEvents") {
            if dice.once_in(6) {
                return self.refused(400);
            }
            let objects = server.of_kind(self.kind).into_iter();
            let mut lines: VecDeque<String> =
                objects.map(|object| format!(r#"{{"type":"ADDED","object":{object}}}"#)).collect();
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let meta = json!({"resourceVersion": server.version.to_string(), "annotations": annotations});
            lines.push_back(json!({"type": "BOOKMARK", "object": {"metadata": meta}}).to_string());
            self.place = Place::Lines(lines, server.version);
        } else if let Some((_, version)) = uri.split_once("&resourceVersion=") {
            let version = version.split('&').next().and_then(|it| it.parse().ok()).unwrap_or(0);
            match version < server.compacted {
                true => self.refused(410),
                false => self.place = Place::Watching(version),
            }
        } else {
            let objects = server.of_kind(self.kind);
            let size = 1 + dice.below(3);
            let mut pages: VecDeque<String> = VecDeque::new();
            let count = objects.len().div_ceil(size).max(1);
            for number in 0..count {
                let items: Vec<&str> = objects.iter().skip(number * size).take(size).map(String::as_str).collect();
                let token = if number + 1 < count { r#","continue":"more""# } else { "" };
                let meta = format!(r#"{{"resourceVersion":"{}"{token}}}"#, server.version);
                pages.push_back(format!(r#"{{"kind":"List","metadata":{meta},"items":[{}]}}"#, items.join(",")));
            }
            self.place = Place::Pages(pages);
            self.page(dice, tell);
        }
    }

    fn page(&mut self, dice: &mut Dice, tell: &mut impl FnMut(Event)) {
        let Place::Pages(pages) = &mut self.place else { return };
        let Some(page) = pages.pop_front() else { return self.place = Place::Idle };
        let is_last = pages.is_empty();
        if !is_last && dice.once_in(12) {
            return self.refused(410);
        }
        self.cursor.page(&page, tell).expect("a page is as it should be");
        if is_last {
            self.place = Place::Idle;
        }
    }

    fn hear(&mut self, line: &str, tell: &mut impl FnMut(Event)) {
        self.cursor.line(line, tell).expect("a line is as it should be");
    }

    fn refused(&mut self, code: u16) {
        self.cursor.failed(&Fault::Refused { code, message: String::new() });
        self.place = Place::Idle;
    }
}
