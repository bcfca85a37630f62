//! Objects of files that `kubectl apply` would refuse, so that the answer about them would be wrong.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use weir_classes::index::Key;
use weir_objects::k8s::Object;
use weir_policy::locator::Locator;

use super::applied::{file_object, is_list_file, name};
use super::sides::NamedList;
use crate::failure::with_hint;
use crate::read::ReadInput;
use crate::render::text::count;

/// The namespaces of the live objects, and the kinds that the server serves.
pub(super) struct ApplyTarget {
    namespaces: BTreeSet<String>,
    /// The only namespace that was read.
    only: Option<String>,
    unserved: Vec<&'static str>,
}

impl ApplyTarget {
    pub(super) fn new(live: &NamedList) -> Self {
        let namespaces = live.items.iter().filter(|it| it["kind"] == "Namespace");
        let namespaces = namespaces.filter_map(|it| it["metadata"]["name"].as_str()).map(str::to_owned).collect();
        Self { namespaces, only: live.only.clone(), unserved: live.unserved.clone() }
    }

    /// Notes about objects that cannot be applied before something else is.
    pub(super) fn notes(&self, side: &ReadInput) -> Vec<String> {
        let created: BTreeSet<&str> =
            side.objects.iter().filter(|it| it.body.kind() == "Namespace").map(|it| it.meta.name.as_str()).collect();
        let exists = |namespace: &str| {
            let is_read = self.only.as_deref().is_none_or(|only| only == namespace);
            namespace.is_empty() || !is_read || created.contains(namespace) || self.namespaces.contains(namespace)
        };
        let objects: Vec<&Object> = side.objects.iter().filter(|it| !is_list_file(&side.sources, it)).collect();
        let missing = by(&objects, |it| Some(it.meta.namespace.as_str()).filter(|it| !exists(it)));
        let unserved = by(&objects, |it| self.unserved.iter().copied().find(|kind| *kind == it.body.kind()));
        let missing = missing.into_iter().map(|(namespace, number)| {
            let objects = count(number, "object");
            format!(
                "namespace {namespace} does not exist, and the files do not create it: `kubectl apply` refuses its \
                 {objects} until it exists"
            )
        });
        let unserved = unserved.into_iter().map(|(kind, number)| {
            let objects = count(number, "object");
            format!(
                "the cluster does not know the kind {kind}: `kubectl apply` refuses {objects} until its definition is \
                 installed"
            )
        });
        missing.chain(unserved).collect()
    }
}

/// The number of objects with each value.
fn by<'o>(objects: &[&'o Object], value: impl Fn(&'o Object) -> Option<&'o str>) -> BTreeMap<&'o str, usize> {
    let mut found = BTreeMap::new();
    objects.iter().copied().filter_map(value).for_each(|it| *found.entry(it).or_insert(0) += 1);
    found
}

/// An error if an object has a name that the server would generate: `kubectl create` takes it, and `kubectl apply` does
/// not.
pub(super) fn generated_names(side: &ReadInput) -> Result<()> {
    let mut locator = Locator::new(&side.sources);
    for object in &side.objects {
        let Some(file) = file_object(&mut locator, object)? else { continue };
        if file["metadata"]["name"].is_null() && file["metadata"]["generateName"].is_string() {
            let message =
                format!("`kubectl apply` refuses {}: it has generateName and no name", name(&Key::of(object)));
            return Err(with_hint(message, "give it a name, or compare with --prune"));
        }
    }
    Ok(())
}
