//! Objects that cannot be read, or only in part.
//!
//! Strategy: the parts that can be read are in force, and everything that was denied before stays denied. An Event,
//! metrics and a note at `/readyz` report the error.
//! Invariant: the last content that could be read stays in force only for the same object. An object of the same name
//! with another UID never had that content.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_classes::index::Key;
use weir_objects::k8s::{Body, CidrList, ListAction, Object};

use super::objects::UnreadableObject;
use super::{NodeAgent, Notice, Value, shown};
use crate::watch::cursor::MalformedObject;
use crate::watch::enforce::Enforce;
use crate::watch::files;

impl<E: Enforce> NodeAgent<E> {
    /// Keeps the last content of the object that could be read in force.
    pub(super) fn cannot_read(&mut self, object: MalformedObject, at: Instant) {
        let MalformedObject { key, uid, node, message } = object;
        if self.is_another(&key, uid.as_deref()) {
            self.deleted(&key, at);
        }
        let is_here = node.as_deref() == Some(&*self.node);
        let (effect, is_node_fault) = match (self.objects.index().get(&key), key.kind.as_str()) {
            (Some(_), _) => ("its last readable content stays in force", false),
            (None, files::KIND) => ("the objects that it had before stay in force", key.name == files::DIRECTORY),
            (None, "Pod") if is_here => ("policy is not enforced on this pod of the node", true),
            (None, _) => ("it is ignored", false),
        };
        self.report_unreadable(key, uid, UnreadableObject { error: message, is_node_fault }, effect, at);
    }

    /// Puts the readable parts of an object into force. An entry that cannot be read may be one that the list denied
    /// before, so the list keeps all entries that it denied before.
    pub(super) fn partly_read(&mut self, mut object: Object, message: String, at: Instant) {
        let (key, uid) = (Key::of(&object), object.meta.uid.as_ref().map(String::from));
        let known = self.objects.index().get(&key).filter(|known| known.meta.uid == object.meta.uid);
        if let (Body::CidrList(list), Some(Body::CidrList(before))) = (&mut object.body, known.map(|it| &it.body)) {
            keep_denied(list, before);
        }
        // Without this, the object would be logged as readable again.
        let before = self.objects.take_unreadable(&key);
        self.applied(object, at);
        if let Some(before) = before {
            self.objects.set_unreadable(key.clone(), before);
        }
        let effect = "only its readable parts are in force, and the other parts allow nothing";
        self.report_unreadable(key, uid, UnreadableObject { error: message, is_node_fault: false }, effect, at);
    }

    /// `effect` describes the consequence for the policy in force.
    fn report_unreadable(
        &mut self,
        key: Key,
        uid: Option<String>,
        unreadable: UnreadableObject,
        effect: &str,
        at: Instant,
    ) {
        let error = unreadable.error.clone();
        let message = format!("{error}; {effect}");
        self.reports.notices.report(Notice { about: key.clone(), uid, reason: "Unreadable", message }, at);
        let object = shown(&key);
        if self.objects.set_unreadable(key, unreadable) {
            let fields = [("object", object), ("error", Value::from(error)), ("so", Value::from(effect))];
            self.reports.log.error("the object cannot be read", &fields);
        }
    }
}

fn keep_denied(list: &mut CidrList, before: &CidrList) {
    if (list.action, before.action) != (ListAction::Deny, ListAction::Deny) {
        return;
    }
    let new: BTreeSet<_> = list.entries.iter().map(|it| (it.first, it.last)).collect();
    list.entries.extend(before.entries.iter().filter(|it| !new.contains(&(it.first, it.last))));
}
