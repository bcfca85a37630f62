//! libcni's result cache: one JSON file for each attachment of a sandbox to a network (`cniCacheV1`).
//!
//! Problem: the agent reads the cache several times for each pod that comes or leaves, and each pod has a file there.
//! Strategy: a file is read again only if it has another [`FileStamp`] than before.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use serde::Deserialize;

use super::SearchedPod;
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
        let same_pod = self.uid.as_deref().zip(pod.uid).is_none_or(|(a, b)| a == b);
        self.namespace == pod.namespace && self.name == pod.name && same_pod
    }

    /// Whether this can be the attachment that has the pod's addresses. Before they are known, every attachment can.
    pub(super) fn could_have(&self, addresses: &[IpAddr]) -> bool {
        addresses.is_empty() || addresses.iter().any(|address| self.addresses.contains(address))
    }
}

/// The files of earlier reads.
#[derive(Debug, Default)]
pub(super) struct ResultCache {
    files: BTreeMap<String, KnownFile>,
}

/// A file that has been parsed, and its stamp at that time.
#[derive(Debug)]
struct KnownFile {
    stamp: FileStamp,
    /// As [`parse`] returns it.
    content: Option<Attachment>,
}

/// The attachments of a read of the cache, and why some are missing.
#[derive(Debug, Default)]
pub(super) struct CacheRead {
    pub(super) attachments: Vec<Attachment>,
    pub(super) unread: Vec<String>,
}

impl ResultCache {
    /// Reads the files with these names in a directory. A file that has been deleted since they were listed is left
    /// out.
    pub(super) fn read(&mut self, directory: &Path, names: Vec<String>, now: SystemTime) -> CacheRead {
        let mut read = CacheRead::default();
        let mut before = std::mem::take(&mut self.files);
        for name in names {
            let path = directory.join(&name);
            let is_unchanged =
                |known: &KnownFile| fs::metadata(&path).is_ok_and(|found| FileStamp::of(&found) == known.stamp);
            let known = before.remove(&name).filter(is_unchanged);
            let file = match known.map_or_else(|| read_file(&path), Ok) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    read.unread.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            read.attachments.extend(file.content.clone());
            if !file.stamp.is_young(now) {
                self.files.insert(name, file);
            }
        }
        read
    }
}

fn read_file(path: &Path) -> io::Result<KnownFile> {
    let mut file = File::open(path)?;
    // Before the text is read: a later change has another stamp then.
    let found = file.metadata()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let attached_at = found.modified().ok();
    let content = parse(&text)?.map(|it| Attachment { attached_at, ..it });
    Ok(KnownFile { stamp: FileStamp::of(&found), content })
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
    use std::os::unix::fs::MetadataExt as _;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::watch::file_stamp::CLOCK_STEP;

    /// A directory for files of a test. Dropping it removes it.
    struct Directory(PathBuf);

    impl Drop for Directory {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-results-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, pod: &str) {
            let arguments = format!(r#"[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","{pod}"]]"#);
            fs::write(self.0.join(name), format!(r#"{{"ifName":"eth0","cniArgs":{arguments}}}"#)).unwrap();
        }
    }

    /// The names of the pods, and the errors.
    fn read(cache: &mut ResultCache, directory: &Directory, names: &[&str], now: SystemTime) -> (Vec<String>, usize) {
        let names = names.iter().map(|it| (*it).to_owned()).collect();
        let CacheRead { attachments, unread } = cache.read(&directory.0, names, now);
        (attachments.into_iter().map(|it| it.name).collect(), unread.len())
    }

    /// A cache that claims another pod for each file that it knows, so that it is seen which files are read.
    fn altered(directory: &Directory, names: &[&str], now: SystemTime) -> ResultCache {
        let mut cache = ResultCache::default();
        read(&mut cache, directory, names, now);
        for file in cache.files.values_mut() {
            file.content = Some(Attachment { name: "known".to_owned(), ..Attachment::default() });
        }
        cache
    }

    #[test]
    fn a_file_is_read_again_only_after_a_change() {
        let directory = Directory::new("change");
        directory.write("a", "web");
        directory.write("b", "api");
        let later = SystemTime::now() + CLOCK_STEP * 2;
        let found = |cache: &mut ResultCache| read(cache, &directory, &["a", "b"], later).0;
        let known = || altered(&directory, &["a", "b"], later);
        assert_eq!(found(&mut known()), ["known", "known"]);
        let a = directory.0.join("a");
        let times = || FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        File::options().write(true).open(&a).unwrap().set_times(times()).unwrap();
        let changes: [&dyn Fn(); 3] = [
            // The same size, and the same time of change as far as other programs can set it.
            &|| {
                directory.write("a", "wib");
                File::options().write(true).open(&a).unwrap().set_times(times()).unwrap();
            },
            &|| {
                directory.write("c", "web");
                fs::rename(directory.0.join("c"), &a).unwrap();
            },
            &|| {
                fs::remove_file(&a).unwrap();
                directory.write("a", "web");
            },
        ];
        for change in changes {
            let mut cache = known();
            // The clock of the file system advances in steps of some milliseconds.
            std::thread::sleep(Duration::from_millis(20));
            change();
            let found = found(&mut cache);
            assert!(found[0] != "known" && found[1] == "known", "{found:?}");
        }
        let mut cache = known();
        fs::remove_file(&a).unwrap();
        assert_eq!(found(&mut cache), ["known"]);
        assert_eq!(cache.files.len(), 1, "it is forgotten");
    }

    #[test]
    fn a_file_that_has_just_been_written_or_has_errors_is_read_each_time() {
        let directory = Directory::new("new");
        directory.write("a", "web");
        fs::write(directory.0.join("b"), "{").unwrap();
        let changed = fs::metadata(directory.0.join("a")).unwrap().ctime();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(changed.try_into().unwrap());
        for at in [now, now + CLOCK_STEP / 2, now - CLOCK_STEP * 10] {
            let mut cache = altered(&directory, &["a"], at);
            assert_eq!(read(&mut cache, &directory, &["a"], now).0, ["web"]);
        }
        let later = now + CLOCK_STEP * 2;
        let mut cache = altered(&directory, &["a", "b"], later);
        assert_eq!(read(&mut cache, &directory, &["a", "b"], later), (vec!["known".to_owned()], 1));
        directory.write("b", "api");
        assert_eq!(read(&mut cache, &directory, &["a", "b"], later), (vec!["known".to_owned(), "api".to_owned()], 0));
    }
}
