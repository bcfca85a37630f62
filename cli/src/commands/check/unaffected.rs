//! Lints of an input with errors: those that the errors cannot make wrong.
//!
//! Problem: an object with an error is not in the cluster. A lint that misses it could report that a policy selects no
//! pod, or that two sides do not agree. If one error switched off every lint, a large input would never be linted.
//! Strategy: an error in a policy can change only lints about policies of its namespace, and those that compare
//! namespaces. An error in another object, or in a text that is no object, can change every lint but those that judge
//! an object by its own text.

use std::collections::BTreeSet;

use weir_objects::diagnostic::{Diagnostic, Diagnostics, FindingPlace, Severity};
use weir_objects::origin::ObjectId;
use weir_policy::locator::{Locator, ObjectIdentity};

use crate::read::ReadInput;

/// Lints that need nothing but the object that they are about.
const OF_ONE_OBJECT: [&str; 5] =
    ["and-or-peers", "except-excludes-nothing", "inert-rules", "list-entry-covered", "rule-covered"];
/// Lints about a policy that read policies of other namespaces.
const OF_SEVERAL_NAMESPACES: [&str; 7] = [
    "admin-accept-opens",
    "baseline-never-asked",
    "lint-incomplete",
    "one-sided-allow",
    "service-partly-allowed",
    "tier-order-open",
    "tier-rule-covered",
];

/// Longer names are cut.
const LONGEST_NAME: usize = 300;

/// The lints that hold in spite of errors.
pub(super) struct SoundLints {
    pub(super) lints: Diagnostics,
    /// Sentences about the lints that are left out, with the reason.
    pub(super) skipped: Vec<String>,
}

/// The objects and texts that have errors.
#[derive(Default)]
struct Errors {
    /// Objects with errors: their own lints are left out.
    objects: BTreeSet<ObjectId>,
    /// Namespaces of policies with errors, each with one of these policies.
    namespaces: Vec<(String, String)>,
    /// An error whose effect has no limits.
    everywhere: Option<String>,
}

/// Removes the lints that an error of the input could have made wrong.
pub(super) fn sound_lints(read: &ReadInput, lints: Diagnostics) -> SoundLints {
    let mut locator = Locator::new(&read.sources);
    let errors = Errors::of(read, &mut locator);
    let mut kept = Diagnostics::new();
    for lint in lints.into_vec() {
        if errors.leaves(read, &mut locator, &lint) {
            kept.push(lint);
        }
    }
    SoundLints { lints: kept, skipped: errors.sentences() }
}

impl Errors {
    fn of(read: &ReadInput, locator: &mut Locator<'_>) -> Self {
        let mut errors = Self::default();
        for error in read.diagnostics.iter().filter(|it| it.severity == Severity::Error) {
            let object = object_of(error);
            errors.objects.extend(object);
            let identity = object.and_then(|it| locator.identity(it));
            match identity {
                Some(ObjectIdentity { kind, namespace, name }) if kind == "NetworkPolicy" => {
                    let namespace = namespace.unwrap_or_else(|| read.default_namespace.clone());
                    if !errors.namespaces.iter().any(|(known, _)| *known == namespace) {
                        let policy = clip(format!("NetworkPolicy {namespace}/{name}"));
                        errors.namespaces.push((namespace, policy));
                    }
                }
                Some(ObjectIdentity { kind, namespace, name }) => {
                    let namespace = namespace.map(|it| format!("{it}/")).unwrap_or_default();
                    let object = clip(format!("{kind} {namespace}{name}"));
                    errors.everywhere.get_or_insert(format!("{object} has an error"));
                }
                None => {
                    _ = errors.everywhere.get_or_insert("a part of the input cannot be read as an object".to_owned())
                }
            }
        }
        errors.namespaces.sort();
        errors
    }

    /// Whether a lint holds.
    fn leaves(&self, read: &ReadInput, locator: &mut Locator<'_>, lint: &Diagnostic) -> bool {
        let code = lint.code.name;
        let Some(object) = object_of(lint) else { return self.is_empty() };
        if self.is_empty() || self.objects.contains(&object) {
            return self.is_empty();
        }
        if OF_ONE_OBJECT.contains(&code) {
            return true;
        }
        if self.everywhere.is_some() || OF_SEVERAL_NAMESPACES.contains(&code) {
            return false;
        }
        let Some(identity) = locator.identity(object) else { return false };
        if is_of_the_cluster(&identity.kind) {
            return true;
        }
        let namespace = identity.namespace.as_deref().unwrap_or(&read.default_namespace);
        !self.namespaces.iter().any(|(known, _)| known == namespace)
    }

    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.everywhere.is_none()
    }

    fn sentences(&self) -> Vec<String> {
        if let Some(why) = &self.everywhere {
            return vec![format!("{why}, so only lints that read one object alone were run; fix the errors first")];
        }
        let names: Vec<&str> = self.namespaces.iter().map(|(name, _)| name.as_str()).collect();
        let Some((_, policy)) = self.namespaces.first() else { return Vec::new() };
        let more = match names.len() {
            1 => String::new(),
            count => format!(" and policies of {} more", count - 1),
        };
        let shown = if names.len() > 4 {
            format!("{} and {} more", clip(names[..3].join(", ")), names.len() - 3)
        } else {
            clip(names.join(", "))
        };
        let word = if names.len() == 1 { "namespace" } else { "namespaces" };
        vec![format!(
            "those about {word} {shown}, and those that compare namespaces, because of errors in {policy}{more}"
        )]
    }
}

/// Cuts a text, because invalid names can have any length.
fn clip(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_NAME) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Whether objects of a kind have no namespace.
fn is_of_the_cluster(kind: &str) -> bool {
    matches!(kind, "CidrList" | "Namespace" | "Node") || (kind != "NetworkPolicy" && kind.ends_with("NetworkPolicy"))
}

fn object_of(diagnostic: &Diagnostic) -> Option<ObjectId> {
    match &diagnostic.primary.place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
            Some(origin.object)
        }
        FindingPlace::Text(_) => None,
    }
}
