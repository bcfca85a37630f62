//! Objects that cannot be read, or not as a whole.
//!
//! Strategy: what is understood is in force, and everything that was denied before stays denied; it is told as an Event, in metrics and
//! in readiness. Invariant: what an object said is believed for as long as it is the same object: one of the same name that has another
//! UID never said it.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_compiler::index::Key;
use weir_compiler::k8s::{Body, CidrList, ListAction, Object};

use super::{Agent, Notice, Value, shown};
use crate::watch::enforce::Enforce;

impl<E: Enforce> Agent<E> {
    /// What it was when it was read last stays in force.
    pub(super) fn cannot_read(&mut self, key: Key, uid: Option<String>, message: String, at: Instant) {
        if self.is_another(&key, uid.as_ref()) {
            self.deleted(&key, at);
        }
        let stays =
            if self.index.get(&key).is_some() { "what it said before stays in force" } else { "it is left out" };
        self.tell_unread(key, uid, message, stays, at);
    }

    /// What is understood of it is in force. An entry that cannot be read may be one that was denied before: those stay.
    pub(super) fn partly_read(&mut self, mut object: Object, message: String, at: Instant) {
        let (key, uid) = (Key::of(&object), object.meta.uid.clone());
        let known = self.index.get(&key).filter(|known| known.meta.uid == uid);
        if let (Body::CidrList(list), Some(Body::CidrList(before))) = (&mut object.body, known.map(|it| &it.body)) {
            keep_denied(list, before);
        }
        let malformed = self.malformed.remove(&key);
        self.applied(object, at);
        self.malformed.extend(malformed.map(|message| (key.clone(), message)));
        self.tell_unread(key, uid, message, "what is understood of it is in force, and allows no more than that", at);
    }

    fn tell_unread(&mut self, key: Key, uid: Option<String>, message: String, so: &str, at: Instant) {
        let told = format!("{message}; {so}");
        self.notices.tell(Notice { about: key.clone(), uid, reason: "Unreadable", message: told }, at);
        if self.malformed.get(&key) != Some(&message) {
            let fields = [("object", shown(&key)), ("error", Value::from(message.as_str())), ("so", Value::from(so))];
            self.log.error("the object cannot be read", &fields);
        }
        self.malformed.insert(key, message);
    }
}

fn keep_denied(list: &mut CidrList, before: &CidrList) {
    if (list.action, before.action) != (ListAction::Deny, ListAction::Deny) {
        return;
    }
    let new: BTreeSet<_> = list.entries.iter().map(|it| (it.first, it.last)).collect();
    list.entries.extend(before.entries.iter().filter(|it| !new.contains(&(it.first, it.last))));
}
