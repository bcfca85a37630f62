//! Objects that cannot be read, or only in part.
//!
//! Strategy: the parts that can be read are in force, and everything that was denied before stays denied. An Event,
//! metrics and readiness report the error.
//! Invariant: the last content that could be read stays in force only for the same object. An object of the same name
//! with another UID never had that content.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_classes::index::Key;
use weir_objects::k8s::{Body, CidrList, ListAction, Object};

use super::{Agent, Notice, Value, shown};
use crate::watch::enforce::Enforce;

impl<E: Enforce> Agent<E> {
    /// Keeps the last content of the object that could be read in force.
    pub(super) fn cannot_read(&mut self, key: Key, uid: Option<String>, message: String, at: Instant) {
        if self.is_another(&key, uid.as_ref()) {
            self.deleted(&key, at);
        }
        let stays =
            if self.index.get(&key).is_some() { "what it said before stays in force" } else { "it is left out" };
        self.tell_unread(key, uid, message, stays, at);
    }

    /// Puts the readable parts of an object into force. An entry that cannot be read may be one that the list denied
    /// before, so the list keeps all entries that it denied before.
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
