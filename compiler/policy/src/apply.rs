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
use weir_objects::k8s::MODE;

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

/// Custom resources: kubectl makes a JSON merge patch for them.
const CUSTOM: [&str; 4] = ["AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "CidrList", "ClusterNetworkPolicy"];

/// Why the result of `kubectl apply` is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// kubectl fails, too.
    #[error("its annotation {LAST_APPLIED} is not a JSON object")]
    LastApplied,
    /// kubectl identifies items by this field alone, and two items have the same value: it may lose one of them.
    #[error(
        "two items of {path} have the {field} {value}, by which `kubectl apply` tells items apart: it may lose one"
    )]
    SameKey {
        /// The list.
        path: String,
        /// The field that identifies an item.
        field: &'static str,
        /// The value of both items.
        value: String,
    },
}

/// The live object after `kubectl apply` of the file. Without the annotation of an earlier `apply`, no field is removed.
pub fn applied(live: &Value, file: &Value) -> Result<Value, ApplyError> {
    let last = match &live["metadata"]["annotations"][LAST_APPLIED] {
        Value::String(recorded) if !recorded.is_empty() => {
            let parsed = serde_json::from_str(recorded).ok().filter(|it: &Value| it.is_object() || it.is_null());
            parsed.ok_or(ApplyError::LastApplied)?
        }
        _ => Value::Null,
    };
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

/// Fields that the result has from the live object and not from the file: those of the specification, such as
/// `spec.policyTypes`, and the annotation of the audit mode.
pub fn kept_fields(applied: &Value, file: &Value) -> Vec<String> {
    let mut kept = Vec::new();
    add_kept(&applied["spec"], &file["spec"], "spec", &mut kept);
    let mode = |of: &Value| of["metadata"]["annotations"].get(MODE).is_some();
    if mode(applied) && !mode(file) {
        kept.push(format!("metadata.annotations[{MODE}]"));
    }
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
    fn value(&self, last: &Value, live: &Value, file: &Value, path: &str) -> Result<Value, ApplyError> {
        Ok(match (live, file) {
            (Value::Object(live), Value::Object(file)) => Value::Object(self.mapping(last, live, file, path)?),
            (Value::Array(live), Value::Array(file)) => match self.key_of_items(path) {
                Some(key) => Value::Array(self.items(last, live, file, path, key)?),
                None => Value::Array(file.clone()),
            },
            _ => without_nulls(file),
        })
    }

    fn mapping(
        &self,
        last: &Value,
        live: &Map<String, Value>,
        file: &Map<String, Value>,
        path: &str,
    ) -> Result<Map<String, Value>, ApplyError> {
        let was_applied = |name: &String| last.get(name).is_some();
        let stays = live.iter().filter(|(name, _)| file.contains_key(*name) || !was_applied(name));
        let mut merged: Map<String, Value> = stays.map(|(name, value)| (name.clone(), value.clone())).collect();
        for (name, value) in file {
            // An explicit null removes the field. In a JSON merge patch, one that the last `apply` had too is no change.
            if value.is_null() {
                let is_repeated = last.get(name).is_some_and(Value::is_null);
                if !(is_repeated && CUSTOM.contains(&self.kind)) {
                    merged.remove(name);
                }
                continue;
            }
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let old = live.get(name).unwrap_or(&Value::Null);
            let new = self.value(last.get(name).unwrap_or(&Value::Null), old, value, &path)?;
            merged.insert(name.clone(), new);
        }
        Ok(merged)
    }

    /// Items of the file, merged with live items that have the same key; then the live items that no `apply` has set.
    fn items(
        &self,
        last: &Value,
        live: &[Value],
        file: &[Value],
        path: &str,
        key: &'static str,
    ) -> Result<Vec<Value>, ApplyError> {
        let last = last.as_array().map_or(&[][..], Vec::as_slice);
        if let Some(value) = [last, live, file].into_iter().find_map(|it| repeated(it, key)) {
            // Without a change, there is nothing to merge.
            let merged = self.in_order(last, live, file, path)?;
            let error = || ApplyError::SameKey { path: path.to_owned(), field: key, value: value.to_string() };
            return merged.filter(|it| it == live).ok_or_else(error);
        }
        let in_list = |list: &[Value], item: &Value| list.iter().position(|it| it[key] == item[key]);
        let merge = |item: &Value| {
            let old = in_list(live, item).map_or(&Value::Null, |at| &live[at]);
            let applied = in_list(last, item).map_or(&Value::Null, |at| &last[at]);
            self.value(applied, old, item, path)
        };
        let merged: Result<Vec<Value>, ApplyError> = file.iter().map(merge).collect();
        let stays = live.iter().filter(|it| in_list(file, it).is_none() && in_list(last, it).is_none());
        Ok(merged?.into_iter().chain(stays.cloned()).collect())
    }

    /// Each item of the file, merged with the live item at its place; `None` if there are more or fewer of these.
    fn in_order(
        &self,
        last: &[Value],
        live: &[Value],
        file: &[Value],
        path: &str,
    ) -> Result<Option<Vec<Value>>, ApplyError> {
        let has_same_length = live.len() == file.len() && (last.is_empty() || last.len() == file.len());
        let merge = |(index, item): (usize, &Value)| {
            self.value(last.get(index).unwrap_or(&Value::Null), &live[index], item, path)
        };
        has_same_length.then(|| file.iter().enumerate().map(merge).collect()).transpose()
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

/// A key that two items of a list have.
fn repeated<'l>(list: &'l [Value], key: &str) -> Option<&'l Value> {
    list.iter()
        .enumerate()
        .map(|(index, it)| (index, &it[key]))
        .find_map(|(index, value)| list[..index].iter().any(|it| it[key] == *value).then_some(value))
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_objects::k8s::ClusterPolicyKind::{AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy};

    use super::*;

    fn live(last: &str, object: &Value) -> Value {
        let mut live = object.clone();
        live["metadata"]["annotations"] = json!({LAST_APPLIED: last});
        live
    }

    #[test]
    fn a_record_of_the_last_apply_that_is_no_object_is_an_error() {
        let file = json!({"kind": "Pod", "metadata": {"name": "a"}});
        for broken in ["{", "[]", "7"] {
            assert_eq!(applied(&live(broken, &file), &file), Err(ApplyError::LastApplied), "{broken}");
        }
        for none in ["", "null"] {
            assert!(applied(&live(none, &file), &file).is_ok(), "{none}");
        }
    }

    #[test]
    fn a_null_that_the_last_apply_had_removes_no_field_of_a_custom_resource() {
        let file = |kind: &str| json!({"kind": kind, "metadata": {"name": "a"}, "spec": {"cidrs": null}});
        let cidrs = |kind: &str, last: &str| {
            let object = json!({"kind": kind, "metadata": {"name": "a"}, "spec": {"cidrs": ["192.0.2.0/24"]}});
            applied(&live(last, &object), &file(kind)).expect("merged")["spec"].get("cidrs").is_some()
        };
        let repeated = r#"{"spec": {"cidrs": null}}"#;
        for kind in CUSTOM {
            assert!(cidrs(kind, repeated), "{kind}");
            assert!(!cidrs(kind, "{}"), "{kind}");
        }
        assert!(!cidrs("NetworkPolicy", repeated));
    }

    #[test]
    fn every_cluster_wide_policy_is_a_custom_resource() {
        for kind in [AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy] {
            assert!(CUSTOM.contains(&kind.name()), "{}", kind.name());
        }
    }

    #[test]
    fn an_audit_mode_that_stays_is_a_kept_field() {
        let file = json!({"metadata": {"name": "a"}});
        let applied = json!({"metadata": {"name": "a", "annotations": {MODE: "audit"}}});
        assert_eq!(kept_fields(&applied, &file), ["metadata.annotations[weir.dev/mode]"]);
        assert_eq!(kept_fields(&applied, &applied), Vec::<String>::new());
    }
}
