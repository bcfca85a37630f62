//! The readable parts of an object that is not valid as a whole.
//!
//! Problem: one mistyped word must not disable a whole policy, or a list with all its other entries.
//! Strategy: the object is built again from the parts that can be read on their own. A part that allows is kept only if
//! it can be read. A part that isolates or denies is always kept, and is as wide as it may have been meant. The
//! exception is an unreadable entry of a list, which is left out; the agent keeps the entries that the list denied
//! before.
//! Invariant: only the agent does this. `weir check` and `weir compile` report the error and stop.

use serde_json::{Value, json};
use weir_objects::k8s::{MODE, Object};

/// Entries that are decoded together: fewer than the limit of findings about one object.
const AT_ONCE: usize = 50;
const POLICY: [&str; 4] = ["podSelector", "policyTypes", "ingress", "egress"];

/// Decodes a manifest as strictly as everywhere else.
pub(super) type Decode<'d> = dyn Fn(&Value) -> Option<Object> + 'd;

/// The object without its unreadable parts; `None` if no part can be used.
pub(super) fn readable_parts(kind: &str, written: &Value, decode: &Decode<'_>) -> Option<Object> {
    match kind {
        "NetworkPolicy" => policy(written, decode),
        "ClusterNetworkPolicy" | "AdminNetworkPolicy" | "BaselineAdminNetworkPolicy" => {
            cluster_policy(kind, written, decode)
        }
        "CidrList" => list(written, decode),
        "EndpointSlice" => slice(written, decode),
        "Pod" => pod(written, decode),
        _ => None,
    }
}

/// A policy with an unknown mode is enforced as it is written. A policy with any other error isolates its pods and
/// keeps only the rules that can be read.
fn policy(written: &Value, decode: &Decode<'_>) -> Option<Object> {
    let mut sound = without_odd_mode(written, &["enforce", "audit"]);
    if let Some(object) = decode(&sound) {
        return Some(object);
    }
    let spec = &written["spec"];
    // This is copied for each rule, so it must be small.
    (sound["metadata"], sound["spec"]) = (bare(&sound["metadata"]), Value::Null);
    let with = |spec: Value| {
        let mut it = sound.clone();
        it["spec"] = spec;
        it
    };
    let selector = &spec["podSelector"];
    let is_read = decode(&with(json!({"podSelector": selector}))).is_some();
    let selector = if is_read { selector.clone() } else { json!({}) };
    let is_known = spec.as_object().is_none_or(|spec| spec.keys().all(|key| POLICY.contains(&key.as_str())));
    let read = |direction: &str| {
        let rules = spec[direction].as_array().filter(|_| is_known).into_iter().flatten();
        let alone = |rule: &&Value| decode(&with(json!({"podSelector": {}, direction: [rule]}))).is_some();
        rules.filter(alone).cloned().collect::<Vec<_>>()
    };
    let (ingress, egress) = (read("ingress"), read("egress"));
    let types =
        types(spec, is_known, &|types| decode(&with(json!({"podSelector": {}, "policyTypes": types}))).is_some());
    decode(&with(json!({"podSelector": selector, "policyTypes": types, "ingress": ingress, "egress": egress})))
}

/// A cluster-wide policy without the parts that cannot be read. A rule that cannot be read fails closed, as the API text
/// demands for unknown peers: an accepting rule matches nothing, and any other rule denies everything. Subjects that
/// cannot be read are all pods; then, and if its tier or priority cannot be read, only its denying rules apply.
fn cluster_policy(kind: &str, written: &Value, decode: &Decode<'_>) -> Option<Object> {
    let mut sound = without_odd_mode(written, &["enforce", "audit"]);
    if let Some(object) = decode(&sound) {
        return Some(object);
    }
    let spec = &written["spec"];
    (sound["metadata"], sound["spec"]) = (bare(&sound["metadata"]), Value::Null);
    let with = |spec: &Value| {
        let mut it = sound.clone();
        it["spec"] = spec.clone();
        it
    };
    let mut kept = json!({"subject": {"namespaces": {}}});
    if kind != "BaselineAdminNetworkPolicy" {
        kept["priority"] = json!(0);
    }
    if kind == "ClusterNetworkPolicy" {
        kept["tier"] = json!("Admin");
    }
    let mut is_place_known = true;
    for field in ["tier", "priority", "subject"] {
        let mut more = kept.clone();
        more[field] = spec[field].clone();
        match spec[field].is_null() || decode(&with(&more)).is_none() {
            true => is_place_known &= kept[field].is_null(),
            false => kept = more,
        }
    }
    // A rule fails closed if its only peer has no field.
    let accept = if kind == "ClusterNetworkPolicy" { "Accept" } else { "Allow" };
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let rules = spec[direction].as_array().map_or(&[][..], Vec::as_slice);
        let readable = |rule: &Value| {
            let mut alone = kept.clone();
            alone[direction] = json!([rule]);
            decode(&with(&alone)).is_some()
        };
        let part = |rule: &Value| match (readable(rule), is_place_known || rule["action"] == "Deny") {
            (true, true) => rule.clone(),
            (true, false) => json!({"action": accept, peers: [{}]}),
            (false, _) => json!({"action": if rule["action"] == accept { accept } else { "Deny" }, peers: [{}]}),
        };
        let rules: Vec<Value> = rules.iter().map(part).collect();
        kept[direction] = json!(rules);
    }
    decode(&with(&kept))
}

/// The policy types as they are written. Both types if they cannot be read. If the policy names none, also both types
/// if it has egress rules, or an unknown field that may have been meant as one of them.
fn types(spec: &Value, is_known: bool, is_read: &dyn Fn(&Value) -> bool) -> Value {
    let written = &spec["policyTypes"];
    let is_absent = written.is_null() || written.as_array().is_some_and(Vec::is_empty);
    let has_egress = !spec["egress"].is_null() && spec["egress"].as_array().is_none_or(|rules| !rules.is_empty());
    match is_absent {
        true if is_known && !has_egress => json!(["Ingress"]),
        false if is_read(written) => written.clone(),
        _ => json!(["Ingress", "Egress"]),
    }
}

/// A list without the entries that cannot be read. A list counts as `Deny` unless its action is `Allow`. A list that
/// denies ignores every other field that cannot be read, so it denies more: both directions, or all pods. A list that
/// allows and has such a field allows nothing.
fn list(written: &Value, decode: &Decode<'_>) -> Option<Object> {
    let mut sound = without_odd_mode(written, &["enforce"]);
    (sound["metadata"], sound["spec"]) = (bare(&sound["metadata"]), Value::Null);
    let spec = written["spec"].as_object()?;
    let with = |spec: Value| {
        let mut it = sound.clone();
        it["spec"] = spec;
        it
    };
    let allows = spec.get("action").and_then(Value::as_str) == Some("Allow");
    let mut kept = json!({"action": if allows { "Allow" } else { "Deny" }, "cidrs": []});
    let mut is_whole = true;
    for (field, value) in spec.iter().filter(|(field, _)| !matches!(field.as_str(), "action" | "cidrs")) {
        let mut more = kept.clone();
        more[field] = value.clone();
        match decode(&with(more.clone())) {
            Some(_) => kept = more,
            None => is_whole = false,
        }
    }
    let entries = spec.get("cidrs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if is_whole || !allows {
        let mut read = Vec::with_capacity(entries.len());
        for some in entries.chunks(AT_ONCE) {
            let is_read = |cidrs: &[Value]| decode(&with(json!({"action": "Deny", "cidrs": cidrs}))).is_some();
            match is_read(some) {
                true => read.extend_from_slice(some),
                false => read.extend(some.iter().filter(|entry| is_read(std::slice::from_ref(*entry))).cloned()),
            }
        }
        kept["cidrs"] = Value::Array(read);
    }
    decode(&with(kept))
}

/// A slice without the ports that cannot be read. The API server does not check port numbers, and kube-proxy uses the
/// other ports of the slice, so they must count.
fn slice(written: &Value, decode: &Decode<'_>) -> Option<Object> {
    let mut kept = written.clone();
    let ports = kept["ports"].take();
    let (version, kind) = (&written["apiVersion"], &written["kind"]);
    let shell = json!({"apiVersion": version, "kind": kind, "metadata": bare(&written["metadata"]), "addressType": "IPv4",
        "endpoints": []});
    let is_read = |port: &&Value| {
        let mut alone = shell.clone();
        alone["ports"] = json!([port]);
        decode(&alone).is_some()
    };
    let ports = ports.as_array().map_or(&[][..], Vec::as_slice);
    kept["ports"] = ports.iter().filter(is_read).cloned().collect();
    decode(&kept)
}

/// A pod without the container ports that cannot be read. The API server does not check `hostIP`; a port whose
/// `hostIP` cannot be read counts for all addresses. The pod itself must be known: otherwise it would not be
/// enforced.
fn pod(written: &Value, decode: &Decode<'_>) -> Option<Object> {
    let mut kept = written.clone();
    let shell =
        json!({"apiVersion": written["apiVersion"], "kind": written["kind"], "metadata": bare(&written["metadata"])});
    let is_read = |port: &Value| {
        let mut alone = shell.clone();
        alone["spec"] = json!({"containers": [{"name": "c", "ports": [port]}]});
        decode(&alone).is_some()
    };
    for list in ["containers", "initContainers"] {
        for container in kept["spec"][list].as_array_mut().into_iter().flatten() {
            let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) else { continue };
            ports.retain_mut(|port| {
                if !is_read(port)
                    && let Some(fields) = port.as_object_mut()
                {
                    fields.remove("hostIP");
                }
                is_read(port)
            });
        }
    }
    decode(&kept)
}

fn without_odd_mode(written: &Value, modes: &[&str]) -> Value {
    let mut it = written.clone();
    if let Some(annotations) = it["metadata"]["annotations"].as_object_mut()
        && annotations.get(MODE).is_some_and(|mode| mode.as_str().is_none_or(|mode| !modes.contains(&mode)))
    {
        annotations.remove(MODE);
    }
    it
}

/// The metadata that identify an object, its deletion time, and its mode.
fn bare(meta: &Value) -> Value {
    let mut it = json!({});
    for field in ["name", "namespace", "uid", "deletionTimestamp"] {
        if let Some(value) = meta.get(field) {
            it[field] = value.clone();
        }
    }
    if let Some(mode) = meta["annotations"].get(MODE) {
        it["annotations"] = json!({MODE: mode});
    }
    it
}

#[cfg(test)]
mod tests;
