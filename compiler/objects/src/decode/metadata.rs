//! `metadata`: the fields that are kept, and the checks of the API server.

use crate::k8s::{MIRROR, MODE, Meta};
use crate::name::Name;
use crate::origin::FieldOrigin;

use super::DecodeOptions;
use super::codes;
use super::names;
use super::report::ObjectFindings;
use super::trail::Trail;
use super::view::ValueView;

/// The largest total size of all annotations.
const ANNOTATION_BYTES: usize = 256 * 1024;

/// Reads the metadata of a checked tree.
pub(super) fn read(object: ValueView<'_, '_>, namespaced: bool, options: &DecodeOptions) -> Meta {
    let meta = object.get("metadata");
    let non_empty = |name: &str| meta.get(name).string().filter(|text| !text.is_empty());
    let namespace = match namespaced {
        true => non_empty("namespace").map_or_else(|| options.default_namespace.as_str().into(), Name::from),
        false => Name::default(),
    };
    Meta {
        name: non_empty("name").or_else(|| non_empty("generateName")).unwrap_or_default(),
        namespace,
        uid: non_empty("uid").map(Name::from),
        labels: meta.get("labels").labels().into(),
        deleting: meta.get("deletionTimestamp").is_there(),
    }
}

/// The value of the annotation [`MODE`].
pub(super) fn mode<'n>(object: ValueView<'n, '_>) -> Option<&'n str> {
    let mut annotations = object.get("metadata").get("annotations").strings();
    annotations.find_map(|(key, value)| (key == MODE).then_some(value))
}

/// Calls `act` with the path of that annotation.
pub(super) fn at_mode(act: impl FnOnce(&Trail<'_>)) {
    act(&Trail::ROOT.field("metadata").field("annotations").key(MODE));
}

/// The longest UID of a static pod that is read. The kubelet's are hashes with 32 digits; a manifest can set another
/// one.
const LONGEST_UID: usize = 128;

/// The UID of the static pod whose mirror the object is, from the annotation [`MIRROR`].
///
/// Any user who may create pods can write this annotation. A value with the form of an API server's UID is ignored,
/// because it could be the UID of another pod, and so is a value that the container runtime cannot have.
// Spec: the kubelet sets a static pod's UID to an MD5 hash of its manifest if the manifest has none, and its mirror
// client copies it into the annotation (applyDefaults in pkg/kubelet/config/common.go, CreateMirrorPod in
// pkg/kubelet/pod/mirror_client.go). The container runtime gets the static pod's UID
// (generatePodSandboxConfig in pkg/kubelet/kuberuntime/kuberuntime_sandbox.go).
pub(super) fn static_uid<'n>(object: ValueView<'n, '_>) -> Option<&'n str> {
    let uid = object.get("metadata").get("annotations").get(MIRROR).str()?;
    let is_possible = (1..=LONGEST_UID).contains(&uid.len()) && uid.bytes().all(|it| it.is_ascii_graphic());
    (is_possible && !is_from_api_server(uid)).then_some(uid)
}

/// Whether the text has the form of the UIDs that an API server generates: 8-4-4-4-12 hexadecimal digits.
fn is_from_api_server(uid: &str) -> bool {
    let groups = uid.split('-');
    let is_hex = |group: &str| group.bytes().all(|it| it.is_ascii_hexdigit());
    groups.clone().all(is_hex) && groups.map(str::len).eq([8, 4, 4, 4, 12])
}

/// The controller that owns the object: `Kind/name`.
pub(super) fn owner(object: ValueView<'_, '_>) -> Option<String> {
    let mut owners = object.get("metadata").get("ownerReferences").items();
    let owner = owners.find(|owner| owner.get("controller").bool() == Some(true))?;
    Some(format!("{}/{}", owner.get("kind").str()?, owner.get("name").str()?))
}

/// Reports an object without a name that messages could use.
pub(super) fn require_name(object: ValueView<'_, '_>, report: &mut ObjectFindings) {
    let meta = object.get("metadata");
    let named = ["name", "generateName"].iter().any(|name| meta.get(name).str().is_some_and(|text| !text.is_empty()));
    if !named {
        report.missing(&Trail::ROOT.field("metadata").field("name"), codes::invalid_name::missing);
    }
}

/// The kinds whose metadata is validated. The server's checks differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    NetworkPolicy,
    CidrList,
    ClusterPolicy,
}

/// Makes the checks that the server makes when such an object is created.
// Spec: apimachinery's ValidateObjectMeta, and the check of finalizers that the core API adds.
pub(super) fn validate(object: ValueView<'_, '_>, of: Of, report: &mut ObjectFindings) {
    let at = Trail::ROOT.field("metadata");
    let meta = object.get("metadata");
    validate_names(meta, &at, report);
    validate_namespace(meta, of, &at, report);
    validate_labels(meta.get("labels"), &at.field("labels"), report);
    validate_annotations(meta.get("annotations"), &at.field("annotations"), report);
    validate_owners(meta.get("ownerReferences"), &at.field("ownerReferences"), report);
    validate_finalizers(meta.get("finalizers"), of, &at.field("finalizers"), report);
}

fn validate_names(meta: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) {
    let text = |name| meta.get(name).str().unwrap_or_default();
    let (name, prefix) = (text("name"), text("generateName"));
    if !prefix.is_empty()
        && let Err(why) = names::dns_subdomain(&masked(prefix))
    {
        report.error(&at.field("generateName"), |origin| codes::invalid_name::at(origin, prefix, why));
    }
    let generated = generated(prefix);
    let name = match (name, prefix) {
        ("", "") => return report.missing(&at.field("name"), codes::invalid_name::missing),
        ("", _) => &generated,
        _ => name,
    };
    if let Err(why) = names::dns_subdomain(name) {
        report.error(&at.field("name"), |origin| codes::invalid_name::at(origin, name, why));
    }
}

/// The part of a prefix that the server checks: a `-` at its end is valid, because more characters follow.
// Spec: maskTrailingDash of apimachinery, which replaces the byte before the dash as well.
fn masked(prefix: &str) -> String {
    let base = prefix.strip_suffix('-').filter(|base| !base.is_empty());
    base.map_or_else(|| prefix.to_owned(), |base| base.get(..base.len() - 1).unwrap_or(base).to_owned() + "a")
}

/// A name as the server makes it from a prefix: at most 58 bytes of the prefix, and five letters.
fn generated(prefix: &str) -> String {
    let cut = (0..=prefix.len().min(58)).rev().find(|cut| prefix.is_char_boundary(*cut)).unwrap_or(0);
    prefix.get(..cut).unwrap_or_default().to_owned() + "xxxxx"
}

fn validate_namespace(meta: ValueView<'_, '_>, of: Of, at: &Trail<'_>, report: &mut ObjectFindings) {
    let namespace = meta.get("namespace").str().unwrap_or_default();
    let at = at.field("namespace");
    match (of, names::dns_label(namespace)) {
        _ if namespace.is_empty() => {}
        (Of::CidrList, _) => report.error(&at, codes::invalid_namespace::of_list),
        // The server drops it. Charts write the release's namespace into every object.
        (Of::ClusterPolicy, _) => report.warn(&at, codes::invalid_namespace::of_cluster_policy),
        (Of::NetworkPolicy, Err(why)) => {
            report.error(&at, |origin| codes::invalid_namespace::at(origin, namespace, why));
        }
        (Of::NetworkPolicy, Ok(())) => {}
    }
}

/// Validates labels, also those of a selector. The server's path ends at the map; the entry becomes a second place.
pub(super) fn validate_labels(labels: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) {
    for (key, value) in labels.strings() {
        let at_entry = |map: &FieldOrigin| FieldOrigin::new(map.object, map.path.key(key));
        if let Err(why) = names::label_key(key) {
            report.error(at, |map| {
                let entry = at_entry(&map);
                codes::bad_label_key::at(map, key, why).also(entry, "this entry")
            });
        }
        if let Err(why) = names::label_value(value) {
            report.error(at, |map| {
                let entry = at_entry(&map);
                codes::bad_label_value::at(map, value, why).also(entry, "this entry")
            });
        }
    }
}

fn validate_annotations(annotations: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) {
    let mut bytes = 0;
    for (key, value) in annotations.strings() {
        bytes += key.len() + value.len();
        if let Err(why) = names::label_key(&key.to_lowercase()) {
            let entry = report.origin(&at.key(key));
            report.error(at, |origin| codes::invalid_annotations::key(origin, key, why).also(entry, "this entry"));
        }
    }
    if bytes > ANNOTATION_BYTES {
        report.error(at, |origin| codes::invalid_annotations::size(origin, bytes, ANNOTATION_BYTES));
    }
}

fn validate_owners(owners: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) {
    let mut controllers = 0;
    for (index, owner) in owners.items().enumerate() {
        let entry = report.origin(&at.index(index));
        for (field, what) in missing_in_owner(owner) {
            // The server's path has no index here.
            report.error(&at.field(field), |origin| {
                codes::invalid_owner_reference::at(origin, what).also(entry.clone(), "this owner")
            });
        }
        let text = |name| owner.get(name).str().unwrap_or_default();
        if text("apiVersion") == "v1" && text("kind") == "Event" {
            report.error(at, |origin| {
                codes::invalid_owner_reference::at(origin, "an Event cannot own anything").also(entry, "this owner")
            });
        }
        controllers += usize::from(owner.get("controller").bool() == Some(true));
        if controllers > 1 && owner.get("controller").bool() == Some(true) {
            report
                .error(at, |origin| codes::invalid_owner_reference::at(origin, "only one owner can be the controller"));
        }
    }
}

fn missing_in_owner(owner: ValueView<'_, '_>) -> impl Iterator<Item = (&'static str, &'static str)> {
    let text = move |name| owner.get(name).str().unwrap_or_default();
    // `group/` has no version, and a text with two slashes is not valid at all.
    let version = match text("apiVersion").split('/').collect::<Vec<_>>()[..] {
        [version] | [_, version] => version,
        _ => "",
    };
    [
        ("apiVersion", version, "an owner needs an apiVersion with a version"),
        ("kind", text("kind"), "an owner needs a kind"),
        ("name", text("name"), "an owner needs a name"),
        ("uid", text("uid"), "an owner needs a uid"),
    ]
    .into_iter()
    .filter(|(_, value, _)| value.is_empty())
    .map(|(field, _, what)| (field, what))
}

fn validate_finalizers(finalizers: ValueView<'_, '_>, of: Of, at: &Trail<'_>, report: &mut ObjectFindings) {
    let (mut orphan, mut foreground) = (false, false);
    for (index, finalizer) in finalizers.items().enumerate() {
        let name = finalizer.str().unwrap_or_default();
        orphan |= name == "orphan";
        foreground |= name == "foregroundDeletion";
        if let Err(why) = names::label_key(name) {
            report.error(at, |origin| codes::invalid_finalizer::at(origin, name, why));
        }
        // For custom resources, the server only warns.
        let must_be_qualified = of == Of::NetworkPolicy;
        if must_be_qualified && !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
            report.error(&at.index(index), |origin| codes::invalid_finalizer::unqualified(origin, name));
        }
    }
    if orphan && foreground {
        report.error(at, codes::invalid_finalizer::conflict);
    }
}
