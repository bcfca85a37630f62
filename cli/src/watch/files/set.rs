//! The contents of files → events, without I/O.
//!
//! Problem: a file can be seen while it is being written, can be broken by an edit, and editors rename files while they
//! save. None of that may take a policy out of force, or put half of one into force.
//! Strategy: a content counts when two looks in a row find it, and a file is gone when two looks in a row find the same
//! other files in the same directory. A file with any error keeps all objects that it last had. A YAML file must end
//! with a line break, because a text that is cut within a line can be valid and mean more (`from:` without its peers
//! allows all peers). An empty file is an error: its objects are deleted by deleting the file. A directory without files
//! is an error too, because a directory whose file system is not mounted looks like that.
//! Invariants: the events lead to exactly the objects of the last accepted contents. Nothing is listed before every
//! file has been seen twice.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use weir_classes::index::Key;
use weir_objects::decode::{self, DecodeOptions, Input, InputKind};
use weir_objects::diagnostic::Severity;
use weir_objects::k8s::{Body, Meta, Object, Phase};
use weir_objects::origin::ObjectId;

use super::directory::{DirectoryId, DirectoryLook, FileContent, FileContents};
use super::{DIRECTORY, KIND};
use crate::watch::cursor::{ApiEvent, MalformedObject};
use crate::watch::resources::{field, kinds};
use crate::watch::scope::{FollowOrder, WatchScope};

/// The namespace of objects that name none, as for kubectl.
const DEFAULT_NAMESPACE: &str = "default";
/// The error of a directory without files.
const NO_FILES: &str = "the directory has no *.yaml, *.yml or *.json file";
/// The errors of a file that a message names.
const MOST_ERRORS: usize = 3;

type Objects = BTreeMap<Key, Object>;

#[derive(Debug, Default)]
struct KnownFile {
    /// The digest of the content that the last look found.
    seen: Option<u64>,
    /// The digest of the content that was decoded last.
    decoded: Option<u64>,
    /// The objects of the last content without errors.
    objects: Objects,
    /// The objects of a content that has just been decoded.
    proposed: Option<Objects>,
    error: Option<String>,
}

impl KnownFile {
    fn current(&self) -> &Objects {
        self.proposed.as_ref().unwrap_or(&self.objects)
    }

    fn is_settled(&self) -> bool {
        self.error.is_some() || self.seen == self.decoded
    }

    fn look(&mut self, content: FileContent, decode: impl FnOnce(Vec<u8>) -> Result<Objects, String>) {
        match content {
            FileContent::Unchanged => {}
            FileContent::Unreadable(error) => {
                (self.error, self.seen, self.decoded) = (Some(error), None, None);
            }
            FileContent::Bytes(bytes) => {
                let mut digest = DefaultHasher::new();
                bytes.hash(&mut digest);
                let digest = Some(digest.finish());
                let is_same = std::mem::replace(&mut self.seen, digest) == digest;
                if is_same && self.decoded != digest {
                    self.decoded = digest;
                    match decode(bytes) {
                        Ok(objects) => (self.proposed, self.error) = (Some(objects), None),
                        Err(error) => self.error = Some(error),
                    }
                }
            }
        }
    }
}

/// The files, and the objects that were sent to the agent.
#[derive(Debug)]
pub(super) struct FileSet {
    node: String,
    /// Whether nothing is listed as long as a file cannot be read.
    waits_for_all: bool,
    is_listed: bool,
    files: BTreeMap<String, KnownFile>,
    directory_error: Option<String>,
    /// The directory and the names of its files at the last look, unless that failed.
    last: Option<(DirectoryId, BTreeSet<String>)>,
    /// Whether the last two looks found the same files in the same directory.
    is_steady: bool,
    /// The files that are gone since the last call of [`Self::take_gone`], with the number of objects deleted.
    gone: Vec<(String, usize)>,
    orders: BTreeMap<&'static str, FollowOrder>,
    sent: Objects,
    sent_errors: BTreeMap<String, String>,
}

impl FileSet {
    pub(super) fn new(node: String, waits_for_all: bool) -> Self {
        let orders = kinds().into_iter().map(|it| (it.kind, FollowOrder::initial(it.kind))).collect();
        Self {
            node,
            waits_for_all,
            is_listed: false,
            files: BTreeMap::new(),
            directory_error: None,
            last: None,
            is_steady: false,
            gone: Vec::new(),
            orders,
            sent: Objects::new(),
            sent_errors: BTreeMap::new(),
        }
    }

    /// The files that cannot be read.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.errors().map(|(name, _)| name)
    }

    /// The files whose last content is not decoded yet, or was refused because of another file.
    pub(super) fn undecided(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter(|(_, file)| file.seen != file.decoded).map(|(name, _)| name.as_str())
    }

    fn errors(&self) -> impl Iterator<Item = (&str, &str)> {
        let of_files = self.files.iter().filter_map(|(name, file)| Some((name.as_str(), file.error.as_deref()?)));
        of_files.chain(self.directory_error.as_deref().map(|error| (DIRECTORY, error)))
    }

    /// Compares a look at the directory with the state, and returns the events.
    pub(super) fn update(&mut self, look: Result<DirectoryLook, String>) -> Vec<ApiEvent> {
        let look = look.and_then(|it| if it.files.is_empty() { Err(NO_FILES.to_owned()) } else { Ok(it) });
        match look {
            Err(error) => (self.directory_error, self.last, self.is_steady) = (Some(error), None, false),
            Ok(look) => {
                self.directory_error = None;
                let last = Some((look.directory, look.files.keys().cloned().collect()));
                self.is_steady = self.last == last;
                self.last = last;
                let gone = self.look(look.files);
                self.accept();
                self.note_gone(gone);
            }
        }
        let mut events = self.error_events();
        if self.is_listed {
            events.extend(self.changes());
        } else if self.can_be_listed() {
            self.is_listed = true;
            let kinds: Vec<&'static str> = self.orders.keys().copied().collect();
            events.extend(kinds.into_iter().flat_map(|kind| self.list(kind)));
        }
        events
    }

    fn can_be_listed(&self) -> bool {
        let is_settled = self.files.values().all(KnownFile::is_settled);
        let has_errors = self.errors().next().is_some();
        is_settled && self.is_steady && !(self.waits_for_all && has_errors)
    }

    /// Compares the contents with the files, and returns those that are gone.
    fn look(&mut self, contents: FileContents) -> BTreeMap<String, KnownFile> {
        let is_gone = |name: &String, _: &mut KnownFile| self.is_steady && !contents.contains_key(name);
        let gone = self.files.extract_if(.., is_gone).collect();
        for (name, content) in contents {
            let file = self.files.entry(name.clone()).or_default();
            file.look(content, |bytes| decoded(&name, bytes, &self.node));
        }
        gone
    }

    /// Notes how many objects are deleted with each file: those that no other file has.
    fn note_gone(&mut self, gone: BTreeMap<String, KnownFile>) {
        for (name, file) in gone {
            let is_deleted = |key: &&Key| !self.files.values().any(|other| other.objects.contains_key(*key));
            let deleted = file.objects.keys().filter(is_deleted).count();
            if self.is_listed && deleted > 0 {
                self.gone.push((name, deleted));
            }
        }
    }

    /// The files that are gone, with the number of objects that were deleted with each.
    pub(super) fn take_gone(&mut self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.gone)
    }

    /// Accepts proposed contents, unless an object is in two files. Then the proposal that comes later by its file's
    /// name is refused, and is tried again at the next look: the other file may change too.
    fn accept(&mut self) {
        while let Some((name, error)) = self.conflict() {
            if let Some(file) = self.files.get_mut(&name) {
                (file.proposed, file.decoded, file.error) = (None, None, Some(error));
            }
        }
        for file in self.files.values_mut() {
            if let Some(objects) = file.proposed.take() {
                file.objects = objects;
            }
        }
    }

    /// A file with a proposal that contains an object of another file.
    fn conflict(&self) -> Option<(String, String)> {
        let mut owners: BTreeMap<&Key, &str> = BTreeMap::new();
        let (proposing, others): (Vec<_>, Vec<_>) = self.files.iter().partition(|(_, file)| file.proposed.is_some());
        for (name, file) in others.into_iter().chain(proposing) {
            for key in file.current().keys() {
                let owner = *owners.entry(key).or_insert(name);
                if owner != name.as_str() && file.proposed.is_some() {
                    return Some((name.clone(), format!("{} is also in {owner}", in_words(key))));
                }
            }
        }
        None
    }

    fn error_events(&mut self) -> Vec<ApiEvent> {
        let now: BTreeMap<String, String> = self.errors().map(|(name, error)| (name.into(), error.into())).collect();
        let key = |name: &str| Key { kind: KIND.to_owned(), namespace: String::new(), name: name.to_owned() };
        let gone = self.sent_errors.keys().filter(|name| !now.contains_key(*name));
        let mut events: Vec<ApiEvent> = gone.map(|name| ApiEvent::Deleted(key(name))).collect();
        let new = now.iter().filter(|(name, error)| self.sent_errors.get(*name) != Some(error));
        let malformed = |(name, error): (&String, &String)| {
            ApiEvent::Malformed(MalformedObject { key: key(name), uid: None, node: None, message: error.clone() })
        };
        events.extend(new.map(malformed));
        self.sent_errors = now;
        events
    }

    /// The accepted objects that the agent follows, with a namespace for each that is used and not in a file.
    fn followed(&self) -> Objects {
        let mut objects: Objects = BTreeMap::new();
        for (key, object) in self.files.values().flat_map(|file| &file.objects) {
            objects.entry(key.clone()).or_insert_with(|| object.clone());
        }
        let used: BTreeSet<String> =
            objects.keys().map(|key| key.namespace.clone()).filter(|it| !it.is_empty()).collect();
        for name in used {
            let meta = Meta { name, ..Meta::default() };
            let namespace = Object { id: ObjectId(u32::MAX), meta, body: Body::Namespace };
            objects.entry(Key::of(&namespace)).or_insert(namespace);
        }
        objects.retain(|key, _| self.is_followed(key));
        objects
    }

    fn is_followed(&self, key: &Key) -> bool {
        self.orders.get(key.kind.as_str()).is_some_and(|order| match order.scope {
            WatchScope::All => true,
            WatchScope::OwnNode => key.name == self.node,
            WatchScope::Nothing => false,
        })
    }

    /// The differences between the objects that were sent and the accepted contents. Policies come before pods (the kinds are in
    /// alphabetical order), and deletions last, so that no pod loses its policy to the order of events.
    fn changes(&mut self) -> Vec<ApiEvent> {
        let now = self.followed();
        let changed = now.iter().filter(|(key, object)| self.sent.get(*key).is_none_or(|sent| !is_same(sent, object)));
        let mut events: Vec<ApiEvent> = changed.map(|(_, object)| ApiEvent::Applied(object.clone())).collect();
        let gone = self.sent.keys().filter(|key| !now.contains_key(key));
        events.extend(gone.cloned().map(ApiEvent::Deleted));
        self.sent = now;
        events
    }

    /// Follows other objects of a kind from now on.
    pub(super) fn obey(&mut self, kind: &'static str, order: FollowOrder) -> Vec<ApiEvent> {
        self.orders.insert(kind, order);
        self.list(kind)
    }

    /// All objects of a kind as a list, if the files are known.
    pub(super) fn list(&mut self, kind: &'static str) -> Vec<ApiEvent> {
        let order = self.orders.get(kind).copied().unwrap_or(FollowOrder::initial(kind));
        self.sent.retain(|key, _| key.kind != kind);
        if !self.is_listed || order.scope == WatchScope::Nothing {
            return Vec::new();
        }
        let objects: Objects = self.followed().into_iter().filter(|(key, _)| key.kind == kind).collect();
        let mut events: Vec<ApiEvent> = objects.values().cloned().map(ApiEvent::Applied).collect();
        events.push(ApiEvent::Listed { kind, names: objects.keys().collect(), order: order.number });
        self.sent.extend(objects);
        events
    }
}

/// Whether two contents of an object are the same. The number depends on the other objects of the file.
fn is_same(one: &Object, other: &Object) -> bool {
    one.meta == other.meta && one.body == other.body
}

fn in_words(key: &Key) -> String {
    match key.namespace.as_str() {
        "" => format!("{} {}", key.kind, key.name),
        namespace => format!("{} {namespace}/{}", key.kind, key.name),
    }
}

/// The objects of a file that the agent can use.
fn decoded(name: &str, bytes: Vec<u8>, node: &str) -> Result<Objects, String> {
    if !name.ends_with(".json") && !bytes.is_empty() && !bytes.ends_with(b"\n") {
        return Err("it does not end with a line break: it may be half-written".to_owned());
    }
    let input = Input { name: name.to_owned(), bytes, kind: InputKind::Manifest };
    let options = DecodeOptions { default_namespace: DEFAULT_NAMESPACE.to_owned(), is_from_server: false };
    let (decoded, diagnostics) = decode::decode(vec![input], &options);
    let errors = diagnostics.iter().filter(|it| it.severity == Severity::Error);
    let errors: Vec<String> =
        errors.map(|it| format!("{}{} [{}]", field(&it.primary.place), it.message, it.code.name)).collect();
    if !errors.is_empty() {
        let more = errors.len().saturating_sub(MOST_ERRORS);
        let more = if more > 0 { format!("; and {more} more errors") } else { String::new() };
        return Err(format!("{}{more}", errors.iter().take(MOST_ERRORS).cloned().collect::<Vec<_>>().join("; ")));
    }
    if let Some(foreign) = decoded.foreign.first() {
        return Err(format!("weir does not read {} objects, which decide about packets", foreign.kind.name()));
    }
    let used: BTreeSet<&str> = kinds().into_iter().map(|it| it.kind).collect();
    let objects: Objects = decoded
        .objects
        .into_iter()
        .filter(|object| used.contains(object.body.kind()))
        .filter_map(|object| of_this_host(object, node))
        .map(|object| (Key::of(&object), object))
        .collect();
    if objects.is_empty() {
        return Err("it has no objects for the agent; delete the file to delete the objects that it had".to_owned());
    }
    Ok(objects)
}

/// A pod that names no node is of this one. A pod that has ended is left out, as from an API server.
fn of_this_host(mut object: Object, node: &str) -> Option<Object> {
    if let Body::Pod(pod) = &mut object.body {
        if matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed)) {
            return None;
        }
        pod.node.get_or_insert_with(|| node.into());
    }
    Some(object)
}

#[cfg(test)]
mod tests;
