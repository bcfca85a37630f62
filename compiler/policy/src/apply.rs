//! The object that `kubectl apply` makes of a file and the object in the cluster.
//!
//! Problem: `apply` does not replace an object. A field that the file does not set stays, unless the last `apply` has
//! set it. If the server's default was written into `policyTypes`, a file that adds egress rules and does not name
//! `policyTypes` leaves egress open, although a new object of the same file would isolate it.
//! Strategy: kubectl's client-side merge of three objects (the last applied one, the live one, the file) on JSON.
//! Mappings are merged by key. Lists are replaced, except those whose items the API identifies by a field
//! ([`MERGED_LISTS`]). For custom resources, kubectl makes a JSON merge patch, which replaces every list.
//! Invariant: `compiler/corpus/kubectl-apply` records what kubectl and kube-apiserver make of each case;
//! `cli/tests/kubectl_apply` compares.

use serde_json::{Map, Value};

/// The annotation in which `kubectl apply` records the file.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Lists that are merged item by item: the kinds that have them, the path without indices, and the field that identifies
/// an item (`patchMergeKey` in the API's types). Only lists that Weir reads; it is not important how others are merged.
const MERGED_LISTS: [(&str, &str, &str); 6] = [
    ("Pod", "spec.containers", "name"),
    ("Pod", "spec.initContainers", "name"),
    ("Pod", "spec.containers.ports", "containerPort"),
    ("Pod", "spec.initContainers.ports", "containerPort"),
    ("Service", "spec.ports", "port"),
    ("", "metadata.ownerReferences", "uid"),
];

/// Kinds with a pod template, and the path to it.
const TEMPLATES: [(&str, &str); 7] = [
    ("Deployment", "spec.template."),
    ("StatefulSet", "spec.template."),
    ("DaemonSet", "spec.template."),
    ("ReplicaSet", "spec.template."),
    ("ReplicationController", "spec.template."),
    ("Job", "spec.template."),
    ("CronJob", "spec.jobTemplate.spec.template."),
];

/// The live object after `kubectl apply` of the file. Without the annotation of an earlier `apply`, no field is removed.
pub fn applied(live: &Value, file: &Value) -> Value {
    let last = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    let last: Value = last.and_then(|it| serde_json::from_str(it).ok()).unwrap_or_default();
    let kind = file["kind"].as_str().unwrap_or_default();
    let mut file = file.clone();
    // The status is a resource of its own, which `apply` does not write.
    if let Some(fields) = file.as_object_mut() {
        fields.remove("status");
    }
    // kubectl sends the namespace and its own annotation in every request, and records empty annotations. Without them,
    // all annotations of other users would count as removed.
    if let Some(metadata) = file["metadata"].as_object_mut() {
        let annotations = metadata.entry("annotations").or_insert(Value::Null);
        if annotations.is_null() {
            *annotations = Value::Object(Map::new());
        }
        metadata.entry("namespace").or_insert_with(|| live["metadata"]["namespace"].clone());
    }
    ApplyMerge { kind }.value(&last, live, &file, "")
}

/// Fields of the specification that the result has from the live object and not from the file: `spec.policyTypes`.
pub fn kept_fields(applied: &Value, file: &Value) -> Vec<String> {
    let mut kept = Vec::new();
    add_kept(&applied["spec"], &file["spec"], "spec", &mut kept);
    kept
}

fn add_kept(applied: &Value, file: &Value, path: &str, kept: &mut Vec<String>) {
    let Some(fields) = applied.as_object() else { return };
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        match file.get(name) {
            None => kept.push(path),
            Some(of_file) => add_kept(value, of_file, &path, kept),
        }
    }
}

struct ApplyMerge<'k> {
    kind: &'k str,
}

impl ApplyMerge<'_> {
    fn value(&self, last: &Value, live: &Value, file: &Value, path: &str) -> Value {
        match (live, file) {
            (Value::Object(live), Value::Object(file)) => Value::Object(self.mapping(last, live, file, path)),
            (Value::Array(live), Value::Array(file)) => match self.key_of_items(path) {
                Some(key) => Value::Array(self.items(last, live, file, path, key)),
                None => Value::Array(file.clone()),
            },
            _ => without_nulls(file),
        }
    }

    fn mapping(
        &self,
        last: &Value,
        live: &Map<String, Value>,
        file: &Map<String, Value>,
        path: &str,
    ) -> Map<String, Value> {
        let was_applied = |name: &String| last.get(name).is_some();
        let stays = live.iter().filter(|(name, _)| file.contains_key(*name) || !was_applied(name));
        let mut merged: Map<String, Value> = stays.map(|(name, value)| (name.clone(), value.clone())).collect();
        for (name, value) in file {
            // An explicit null removes the field.
            if value.is_null() {
                merged.remove(name);
                continue;
            }
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let old = live.get(name).unwrap_or(&Value::Null);
            let new = self.value(last.get(name).unwrap_or(&Value::Null), old, value, &path);
            merged.insert(name.clone(), new);
        }
        merged
    }

    /// Items of the file, merged with live items that have the same key; then the live items that no `apply` has set.
    fn items(&self, last: &Value, live: &[Value], file: &[Value], path: &str, key: &str) -> Vec<Value> {
        let in_list = |list: &[Value], item: &Value| list.iter().position(|it| it[key] == item[key]);
        let last = last.as_array().map_or(&[][..], Vec::as_slice);
        let merge = |item: &Value| {
            let old = in_list(live, item).map_or(&Value::Null, |at| &live[at]);
            let applied = in_list(last, item).map_or(&Value::Null, |at| &last[at]);
            self.value(applied, old, item, path)
        };
        let stays = live.iter().filter(|it| in_list(file, it).is_none() && in_list(last, it).is_none());
        file.iter().map(merge).chain(stays.cloned()).collect()
    }

    /// The field that identifies the items of a list; `None` if the list is replaced as a whole.
    fn key_of_items(&self, path: &str) -> Option<&'static str> {
        let template = TEMPLATES.iter().find(|(kind, _)| *kind == self.kind);
        let (kind, path) = match template.and_then(|(_, prefix)| path.strip_prefix(prefix)) {
            Some(in_template) => ("Pod", in_template),
            None => (self.kind, path),
        };
        let list = MERGED_LISTS.iter().find(|(of, at, _)| (of.is_empty() || *of == kind) && *at == path);
        list.map(|(_, _, key)| *key)
    }
}

/// A value that is new: its nulls are no fields.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        other => other.clone(),
    }
}
