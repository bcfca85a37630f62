//! libcni's result cache: one JSON file for each attachment of a sandbox to a network (`cniCacheV1`).
//!
//! Problem: the agent reads the cache several times for each pod that comes or leaves, and each pod has a file there.
//! Strategy: the kernel names the files that have changed ([`ChangedFiles`]), and only these are read again. It does
//! not name each of them in every case, so at times all files are looked at, and those with another [`FileStamp`] are
//! read again.
//! Invariants: a file that could not be read is tried again each time, also if it is a link to a file that does not
//! exist. The files are known of the directory that is watched: a look counts only if the path led there before and
//! after it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use weir_runtime::sys::{ChangedFiles, FileChanges};

use super::{SearchedPod, names};
use crate::cni::CniResult;
use crate::watch::file_stamp::FileStamp;

/// The contents of a cache file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` if the container runtime does not pass it on.
    pub(crate) uid: Option<String>,
    /// Interfaces on the host's side, the last created first: a bridge comes before its port.
    pub(crate) host_interfaces: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
    /// When the file was written: at the end of the attachment.
    pub(crate) attached_at: Option<SystemTime>,
}

impl Attachment {
    /// Whether the file is about this pod, and not about an earlier pod with its name.
    pub(super) fn is_of(&self, pod: SearchedPod<'_>) -> bool {
        self.namespace == pod.namespace && self.name == pod.name && pod.uids.allow(self.uid.as_deref())
    }

    /// Whether this can be the attachment that has the pod's addresses. Before they are known, every attachment can.
    pub(super) fn could_have(&self, addresses: &[IpAddr]) -> bool {
        addresses.is_empty() || addresses.iter().any(|address| self.addresses.contains(address))
    }
}

/// The time after which all files are looked at. Less than the interval of the regular reads, so that each of these
/// looks at all.
const MOST_AGE: Duration = Duration::from_millis(900);

/// The files as they were last read.
#[derive(Debug, Default)]
pub(super) struct ResultCache {
    files: BTreeMap<String, KnownFile>,
    /// Why some files could not be read, by their names; `None` for links to files that do not exist.
    unread: BTreeMap<String, Option<String>>,
    /// Why the directory could not be read.
    unlisted: Option<String>,
    /// `None` before the first read, and if it could not be opened: then all files are looked at each time.
    changes: Option<ChangedFiles>,
    /// When all files were looked at.
    looked: Option<Instant>,
}

/// A file that has been parsed, and its stamp at that time.
#[derive(Debug)]
struct KnownFile {
    stamp: FileStamp,
    /// Whether the file was so new that the stamp may not show the next change.
    was_young: bool,
    /// As [`parse`] returns it.
    content: Option<Arc<Attachment>>,
}

/// The attachments of a read of the cache, and why some are missing.
#[derive(Debug, Default)]
pub(super) struct CacheRead {
    pub(super) attachments: Vec<Arc<Attachment>>,
    pub(super) unread: Vec<String>,
}

impl ResultCache {
    /// The present content of the files in this directory. A directory that does not exist has none.
    pub(super) fn read(&mut self, directory: &Path) -> CacheRead {
        let now = Instant::now();
        if self.changes.is_none() {
            self.changes = ChangedFiles::new().ok();
        }
        let id = || fs::metadata(directory).map(|it| (it.dev(), it.ino())).ok();
        // Before the watch: otherwise the watch could be on another directory than the look.
        let before = id();
        let changes = self.changes.as_mut().map_or(FileChanges::Any, |it| it.take(directory));
        let time = SystemTime::now();
        match changes {
            FileChanges::These(names) if self.looked.is_some_and(|at| now.duration_since(at) < MOST_AGE) => {
                let failed: Vec<String> = self.unread.keys().cloned().collect();
                names.into_iter().chain(failed).for_each(|name| self.read_again(directory, name, time));
            }
            _ => {
                self.look_at_all(directory, time);
                self.looked = (self.unlisted.is_none() && before.is_some() && before == id()).then_some(now);
            }
        }
        let attachments = self.files.values().filter_map(|it| it.content.clone()).collect();
        CacheRead { attachments, unread: self.unlisted.iter().chain(self.unread.values().flatten()).cloned().collect() }
    }

    /// Reads the files that have another stamp than before, and those that were young.
    fn look_at_all(&mut self, directory: &Path, now: SystemTime) {
        let names = match names(directory) {
            Ok(names) => names,
            Err(error) => {
                *self = Self { changes: self.changes.take(), ..Self::default() };
                self.unlisted = Some(format!("{}: {error}", directory.display()));
                return;
            }
        };
        let mut before = std::mem::take(&mut self.files);
        self.unlisted = None;
        self.unread.clear();
        for name in names {
            let is_unchanged = |known: &KnownFile| {
                let found = fs::metadata(directory.join(&name));
                !known.was_young && found.is_ok_and(|found| FileStamp::of(&found) == known.stamp)
            };
            match before.remove(&name).filter(is_unchanged) {
                Some(known) => _ = self.files.insert(name, known),
                None => self.read_again(directory, name, now),
            }
        }
    }

    /// Reads a file. One that does not exist any more is forgotten.
    fn read_again(&mut self, directory: &Path, name: String, now: SystemTime) {
        let path = directory.join(&name);
        self.files.remove(&name);
        self.unread.remove(&name);
        match read_file(&path, now) {
            Ok(file) => _ = self.files.insert(name, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let is_link = fs::symlink_metadata(&path).is_ok_and(|it| it.is_symlink());
                self.unread.extend(is_link.then_some((name, None)));
            }
            Err(error) => _ = self.unread.insert(name, Some(format!("{}: {error}", path.display()))),
        }
    }
}

fn read_file(path: &Path, now: SystemTime) -> io::Result<KnownFile> {
    let mut file = File::open(path)?;
    // Before the text is read: a later change has another stamp then.
    let found = file.metadata()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let attached_at = found.modified().ok();
    let content = parse(&text)?.map(|it| Arc::new(Attachment { attached_at, ..it }));
    let stamp = FileStamp::of(&found);
    Ok(KnownFile { was_young: stamp.is_young(now), stamp, content })
}

/// Parses a file's text; `None` if it is about no pod, or about another interface than the pod's first.
pub(super) fn parse(text: &str) -> Result<Option<Attachment>, serde_json::Error> {
    let file: CacheContent = serde_json::from_str(text)?;
    let argument = |key: &str| file.arguments.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
    let named = argument("K8S_POD_NAMESPACE").zip(argument("K8S_POD_NAME"));
    let Some((namespace, name)) = named.filter(|_| file.interface == "eth0") else { return Ok(None) };
    Ok(Some(Attachment {
        namespace,
        name,
        uid: argument("K8S_POD_UID").filter(|uid| !uid.is_empty()),
        host_interfaces: file.result.host_interfaces(&file.interface),
        addresses: file.result.addresses(),
        attached_at: None,
    }))
}

#[derive(Deserialize)]
struct CacheContent {
    #[serde(default, rename = "ifName")]
    interface: String,
    #[serde(default, rename = "cniArgs")]
    arguments: Vec<(String, String)>,
    #[serde(default)]
    result: CniResult,
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::time::Duration;

    use super::*;
    use crate::watch::file_stamp::CLOCK_STEP;
    use weir_testing::files::Directory;

    fn write(directory: &Directory, name: &str, pod: &str) {
        let arguments = format!(r#"[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","{pod}"]]"#);
        fs::write(directory.0.join(name), format!(r#"{{"ifName":"eth0","cniArgs":{arguments}}}"#)).unwrap();
    }

    /// The names of the pods, and the errors.
    fn content(cache: &ResultCache) -> (Vec<&str>, usize) {
        let pods = cache.files.values().filter_map(|it| it.content.as_ref());
        (pods.map(|it| it.name.as_str()).collect(), cache.unread.len())
    }

    fn read(cache: &mut ResultCache, directory: &Directory) -> (Vec<String>, usize) {
        let CacheRead { attachments, unread } = cache.read(&directory.0);
        (attachments.iter().map(|it| it.name.clone()).collect(), unread.len())
    }

    /// Makes the cache claim another pod for each file that it knows, so that it is seen which files are read.
    fn alter(cache: &mut ResultCache) {
        for file in cache.files.values_mut() {
            file.content = Some(Arc::new(Attachment { name: "known".to_owned(), ..Attachment::default() }));
        }
    }

    /// A cache that has looked at all files at this time, altered.
    fn altered(directory: &Directory, at: SystemTime) -> ResultCache {
        let mut cache = ResultCache::default();
        cache.look_at_all(&directory.0, at);
        alter(&mut cache);
        cache
    }

    type Change<'d> = &'d dyn Fn();

    /// Changes of the file `a`, after each of which it is about another pod.
    fn check_changes(directory: &Directory, check: &mut dyn FnMut(Change<'_>)) {
        let a = directory.0.join("a");
        let times = || FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        File::options().write(true).open(&a).unwrap().set_times(times()).unwrap();
        let changes: [Change<'_>; 3] = [
            // The same size, and the same time of change as far as other programs can set it.
            &|| {
                write(directory, "a", "wib");
                File::options().write(true).open(&a).unwrap().set_times(times()).unwrap();
            },
            &|| {
                write(directory, "c", "web");
                fs::rename(directory.0.join("c"), &a).unwrap();
            },
            &|| {
                fs::remove_file(&a).unwrap();
                write(directory, "a", "web");
            },
        ];
        changes.into_iter().for_each(check);
    }

    #[test]
    fn a_look_at_all_files_reads_those_that_have_changed() {
        let directory = Directory::new("results-look");
        write(&directory, "a", "web");
        write(&directory, "b", "api");
        let later = SystemTime::now() + CLOCK_STEP * 2;
        let known = || altered(&directory, later);
        let mut cache = known();
        cache.look_at_all(&directory.0, later);
        assert_eq!(content(&cache), (vec!["known", "known"], 0));
        check_changes(&directory, &mut |change| {
            let mut cache = known();
            // The clock of the file system advances in steps of some milliseconds.
            std::thread::sleep(Duration::from_millis(20));
            change();
            cache.look_at_all(&directory.0, later);
            let (found, errors) = content(&cache);
            assert!(found[0] != "known" && found[1] == "known" && errors == 0, "{found:?}");
        });
        let mut cache = known();
        fs::remove_file(directory.0.join("a")).unwrap();
        cache.look_at_all(&directory.0, later);
        assert_eq!(content(&cache), (vec!["known"], 0), "it is forgotten");
    }

    #[test]
    fn a_look_reads_files_that_have_just_been_written_and_those_with_errors() {
        let directory = Directory::new("results-new");
        write(&directory, "a", "web");
        fs::write(directory.0.join("b"), "{").unwrap();
        let changed = fs::metadata(directory.0.join("a")).unwrap().ctime();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(changed.try_into().unwrap());
        for at in [now, now + CLOCK_STEP / 2, now - CLOCK_STEP * 10] {
            let mut cache = altered(&directory, at);
            cache.look_at_all(&directory.0, at);
            assert_eq!(content(&cache), (vec!["web"], 1));
        }
        let later = now + CLOCK_STEP * 2;
        let mut cache = altered(&directory, later);
        cache.look_at_all(&directory.0, later);
        assert_eq!(content(&cache), (vec!["known"], 1));
        write(&directory, "b", "api");
        cache.look_at_all(&directory.0, later);
        assert_eq!(content(&cache), (vec!["known", "api"], 0));
    }

    #[test]
    fn between_two_looks_the_files_are_read_that_the_kernel_names() {
        let directory = Directory::new("results-named");
        write(&directory, "a", "web");
        write(&directory, "b", "api");
        let mut cache = ResultCache::default();
        read(&mut cache, &directory);
        // A slow test must not reach the next look.
        let settle = |cache: &mut ResultCache| {
            read(cache, &directory);
            alter(cache);
            cache.looked = Some(Instant::now() + Duration::from_secs(3600));
        };
        settle(&mut cache);
        assert_eq!(read(&mut cache, &directory), (vec!["known".to_owned(), "known".to_owned()], 0));
        check_changes(&directory, &mut |change| {
            settle(&mut cache);
            change();
            let (found, errors) = read(&mut cache, &directory);
            assert!(found[0] != "known" && found[1] == "known" && errors == 0, "{found:?}");
        });
        settle(&mut cache);
        fs::write(directory.0.join("b"), "{").unwrap();
        fs::remove_file(directory.0.join("a")).unwrap();
        assert_eq!(read(&mut cache, &directory), (vec![], 1));
        assert_eq!(read(&mut cache, &directory), (vec![], 1), "the error is still reported");
        write(&directory, "b", "api");
        assert_eq!(read(&mut cache, &directory), (vec!["api".to_owned()], 0));
    }

    #[test]
    fn all_files_are_looked_at_after_some_time_and_in_a_new_directory() {
        let directory = Directory::new("results-time");
        write(&directory, "target", "web");
        fs::create_dir(directory.0.join("results")).unwrap();
        let results = Directory(directory.0.join("results"));
        std::os::unix::fs::symlink(directory.0.join("target"), results.0.join("a")).unwrap();
        let mut cache = ResultCache::default();
        assert_eq!(read(&mut cache, &results), (vec!["web".to_owned()], 0));
        // The kernel names no file: the link is the same.
        write(&directory, "target", "api");
        cache.looked = cache.looked.and_then(|at| at.checked_sub(MOST_AGE));
        assert_eq!(read(&mut cache, &results), (vec!["api".to_owned()], 0));
        std::os::unix::fs::symlink(directory.0.join("late"), results.0.join("late")).unwrap();
        assert_eq!(read(&mut cache, &results), (vec!["api".to_owned()], 0));
        write(&directory, "late", "cron");
        assert_eq!(
            read(&mut cache, &results),
            (vec!["api".to_owned(), "cron".to_owned()], 0),
            "the link is tried again"
        );
        fs::rename(&results.0, directory.0.join("elsewhere")).unwrap();
        assert_eq!(read(&mut cache, &results), (vec![], 0), "there is no directory");
        fs::create_dir(&results.0).unwrap();
        write(&results, "b", "db");
        assert_eq!(read(&mut cache, &results), (vec!["db".to_owned()], 0));
        fs::remove_dir_all(&results.0).unwrap();
        fs::write(&results.0, "").unwrap();
        let CacheRead { attachments, unread } = cache.read(&results.0);
        assert!(attachments.is_empty() && unread.len() == 1 && unread[0].contains("results: "), "{unread:?}");
        fs::remove_file(&results.0).unwrap();
    }
}
