//! The objects of files after `kubectl apply`: merged with the live objects of the same names.
//!
//! The merge ([`weir_policy::apply`]) works on JSON, and its result is decoded like any other input. The decoded fields
//! then replace those of the file's object, which keeps its number: findings and rows still show the lines of the file.
//! Specifications that differ from the file's, because a field of the live object stays, are named in a note.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Value, json};
use weir_classes::index::Key;
use weir_model::resolve::isolates;
use weir_objects::decode::{self, DecodeOptions, Input, InputKind};
use weir_objects::k8s::{Body, Object};
use weir_objects::source::SourceMap;
use weir_objects::syntax::SyntaxFormat;
use weir_policy::apply::{self, ApplyError};
use weir_policy::locator::Locator;

use super::sides::key;
use crate::failure::with_hint;
use crate::page::{self, OutputPage};
use crate::read::ReadInput;
use crate::render::text;
use crate::strict_yaml::to_json;

/// The most objects to name in notes. The others are counted.
const MOST_NOTES: usize = 5;

/// Merged objects, by their names.
pub(super) struct AppliedObjects {
    objects: BTreeMap<Key, Object>,
    notes: Vec<String>,
}

/// Merges the objects of a side with those of the cluster. An object that the cluster does not have is created as it is.
pub(super) fn objects(side: &ReadInput, live: &[Value]) -> Result<AppliedObjects> {
    let live: BTreeMap<Key, &Value> = live.iter().map(|it| (key(it), it)).collect();
    let mut locator = Locator::new(&side.sources);
    let (mut merged, mut kept) = (Vec::new(), BTreeMap::new());
    for object in &side.objects {
        let key = Key::of(object);
        let Some(old) = live.get(&key) else { continue };
        let Some(mut file) = file_object(&mut locator, object)? else { continue };
        // Items of a NetworkPolicyList need not repeat them.
        for (field, value) in [("kind", key.kind.as_str().into()), ("apiVersion", old["apiVersion"].clone())] {
            if file[field].is_null() {
                file[field] = value;
            }
        }
        let applied = apply::applied(old, &file).map_err(|error| unknown(&key, &error))?;
        kept.insert(key, apply::kept_fields(&applied, &file));
        merged.push(applied);
    }
    let objects = decoded(&merged, &side.default_namespace)?;
    let changed = side.objects.iter().filter_map(|file| {
        let key = Key::of(file);
        let is_changed = is_policy(file) && objects.get(&key).is_some_and(|it| !means_the_same(&it.body, &file.body));
        let fields = kept.get(&key).filter(|it| is_changed && !it.is_empty())?;
        Some(format!("{} keeps fields of the cluster that the file does not set: {}", name(&key), fields.join(", ")))
    });
    Ok(AppliedObjects { notes: changed.collect(), objects })
}

/// The object as its file has it; `None` for a list file, which is no object of the API.
pub(super) fn file_object(locator: &mut Locator<'_>, object: &Object) -> Result<Option<Value>> {
    if is_list_file(locator.sources(), object) {
        return Ok(None);
    }
    let object_name = || name(&Key::of(object));
    // Without its text, the object would count as applied as it is, and fields that stay would be lost.
    let Some(tree) = locator.tree(object.id) else {
        let message = format!("cannot find the text of {} again", object_name());
        return Err(with_hint(message, "this is a bug in weir: please report it; --prune does not need the text"));
    };
    to_json(tree).map(Some).map_err(|reason| anyhow!(reason)).with_context(object_name)
}

/// Whether the object is a file with addresses alone.
pub(super) fn is_list_file(sources: &SourceMap, object: &Object) -> bool {
    sources.object(object.id).is_some_and(|source| source.format == SyntaxFormat::List)
}

impl AppliedObjects {
    /// Prints which policies keep fields of the cluster.
    pub(super) fn print_notes(&self) {
        for note in self.notes.iter().take(MOST_NOTES) {
            page::print_to_stderr(format_args!("note: {note}"));
        }
        if self.notes.len() > MOST_NOTES {
            let more = text::count(self.notes.len() - MOST_NOTES, "policy");
            page::print_to_stderr(format_args!("note: so do {more} more"));
        }
    }

    /// Puts the merged fields into the objects of the files. Objects of the cluster have other names.
    pub(super) fn put_into(&mut self, objects: &mut [Object]) {
        for object in objects {
            if let Some(merged) = self.objects.remove(&Key::of(object)) {
                object.meta = merged.meta;
                object.body = merged.body;
            }
        }
    }
}

fn unknown(key: &Key, error: &ApplyError) -> anyhow::Error {
    let hint = match error {
        ApplyError::LastApplied => "`kubectl apply` fails, too: `kubectl apply set-last-applied` writes a new one",
        _ => "`kubectl replace` or `kubectl apply --server-side` keep both: compare with --prune, or git revisions",
    };
    with_hint(format!("cannot tell what `kubectl apply` makes of {}: {error}", name(key)), hint)
}

fn decoded(merged: &[Value], default_namespace: &str) -> Result<BTreeMap<Key, Object>> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": merged});
    let input = Input {
        name: "the cluster after `kubectl apply`".to_owned(),
        bytes: serde_json::to_vec_pretty(&list)?,
        kind: InputKind::Manifest,
    };
    let options = DecodeOptions { default_namespace: default_namespace.to_owned(), is_from_server: false };
    let (decoded, mut found) = decode::decode(vec![input], &options);
    if found.has_errors() {
        found.retain_mut(|it| it.severity == weir_objects::diagnostic::Severity::Error);
        let findings = weir_policy::findings::located(&decoded.sources, &found);
        text::findings(&decoded.sources, &findings, OutputPage::new(), usize::MAX).print_to_stderr();
        return Err(with_hint(
            "the API server would refuse the objects that `kubectl apply` makes of the files and the cluster",
            "fields that the files do not set stay as they are in the cluster: set them, or compare with --prune",
        ));
    }
    Ok(decoded.objects.into_iter().map(|it| (Key::of(&it), it)).collect())
}

fn is_policy(object: &Object) -> bool {
    matches!(object.body, Body::NetworkPolicy(_) | Body::ClusterPolicy(_) | Body::CidrList(_))
}

/// Whether two policies are equal, if `policyTypes` gets its default where it is absent.
fn means_the_same(a: &Body, b: &Body) -> bool {
    match (a, b) {
        (Body::NetworkPolicy(a), Body::NetworkPolicy(b)) => {
            (&a.pod_selector, &a.ingress, &a.egress, a.mode) == (&b.pod_selector, &b.ingress, &b.egress, b.mode)
                && isolates(a) == isolates(b)
        }
        (a, b) => a == b,
    }
}

/// `NetworkPolicy shop/db`
pub(super) fn name(key: &Key) -> String {
    let namespace = if key.namespace.is_empty() { String::new() } else { format!("{}/", key.namespace) };
    format!("{} {namespace}{}", key.kind, key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_whose_text_is_missing_is_an_error() {
        let text = b"{apiVersion: v1, kind: Namespace, metadata: {name: shop}}".to_vec();
        let input = Input { name: "shop.yaml".to_owned(), bytes: text, kind: InputKind::Manifest };
        let options = DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
        let (decoded, _) = decode::decode(vec![input], &options);
        let object = &decoded.objects[0];
        let read = file_object(&mut Locator::new(&decoded.sources), object).expect("its text");
        assert_eq!(read.expect("it is an object of the API")["kind"], "Namespace");
        let none = SourceMap::new();
        let error = file_object(&mut Locator::new(&none), object).expect_err("there is no text");
        assert_eq!(error.to_string(), "cannot find the text of Namespace shop again");
    }
}
