//! Where objects come from: paths, a git revision, the live cluster, or an artifact.
//!
//! Every command that reads takes the first three as a PATH. An artifact is a side of a comparison only.

mod applied;
mod chart_notes;
mod git;
mod program;
mod refused;
mod rendered;
mod sides;

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

pub(crate) use rendered::{Renderer, render};
#[cfg(feature = "enforce")]
pub(crate) use sides::read_artifact;
pub(crate) use sides::{other_assumption, read_both};

use crate::failure::with_hint;
use crate::live_cluster::{self, ClusterRequest, LiveObjects};
use crate::load::{LoadOptions, LoadedInputs};

/// The source of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputSource<'t> {
    Paths(Vec<&'t str>),
    Git { revision: &'t str, path: &'t str },
    Cluster { context: Option<&'t str> },
    Artifact(&'t str),
}

/// The first bytes of an artifact.
const MAGIC: [u8; 4] = *b"\x7fELF";

impl<'t> InputSource<'t> {
    /// A side of a comparison: several paths are separated by commas.
    pub(crate) fn parse_side(text: &'t str) -> Result<Self> {
        // An existing file takes precedence, even if its name looks like another kind of source.
        if text != "-" && Path::new(text).exists() {
            let mut start = [0; MAGIC.len()];
            let read = std::fs::File::open(text).and_then(|mut file| file.read_exact(&mut start));
            let is_artifact = read.is_ok() && start == MAGIC;
            return Ok(if is_artifact { Self::Artifact(text) } else { Self::Paths(vec![text]) });
        }
        match Self::parse(text)? {
            Self::Paths(_) => Ok(Self::Paths(text.split(',').filter(|it| !it.is_empty()).collect())),
            other => Ok(other),
        }
    }

    /// A PATH of any command.
    pub(crate) fn parse(text: &'t str) -> Result<Self> {
        if text != "-" && Path::new(text).exists() {
            return Ok(Self::Paths(vec![text]));
        }
        if let Some(rest) = text.strip_prefix("git:") {
            let (revision, path) = rest.split_once(':').unwrap_or((rest, ""));
            if revision.is_empty() {
                let hint = "write git:REV or git:REV:PATH, for example git:main:policies";
                return Err(with_hint(format!("`{text}` names no revision"), hint));
            }
            if revision.contains("..") {
                let hint = "a range is for `weir diff git:A..B`, which compares both; here, name one revision";
                return Err(with_hint(format!("`{text}` names two revisions"), hint));
            }
            return Ok(Self::Git { revision, path });
        }
        if let Some(context) = text.strip_prefix("cluster:") {
            return Ok(Self::Cluster { context: Some(context).filter(|it| !it.is_empty()) });
        }
        Ok(Self::Paths(vec![text]))
    }

    /// Whether it reads standard input.
    fn reads_stdin(&self) -> bool {
        matches!(self, Self::Paths(paths) if paths.contains(&"-"))
    }

    /// The prefix of file names that is not part of the path in the repository.
    pub(crate) fn prefix(&self) -> String {
        match self {
            Self::Git { revision, .. } => format!("{revision}:"),
            _ => String::new(),
        }
    }

    /// Adds the texts of the source. Errors of single paths are among those of the inputs.
    fn add(&self, loaded: &mut LoadedInputs) -> Result<()> {
        match self {
            Self::Paths(paths) => paths.iter().for_each(|path| loaded.add_path(Path::new(path))),
            Self::Git { revision, path } => git::add(loaded, revision, path)?,
            Self::Cluster { context } => {
                let live = read_cluster(*context, &loaded.options)?;
                loaded.reads_cluster = true;
                loaded.options.namespace.get_or_insert(live.namespace);
                loaded.add_text(cluster_name(*context), live.text);
            }
            Self::Artifact(path) => loaded.add_path(Path::new(path)),
        }
        Ok(())
    }
}

/// The name of a cluster in messages.
fn cluster_name(context: Option<&str>) -> String {
    format!("cluster:{}", context.unwrap_or_default())
}

fn read_cluster(context: Option<&str>, options: &LoadOptions) -> Result<LiveObjects> {
    let flag = options.input.context.as_deref();
    ensure!(
        context.is_none() || flag.is_none() || context == flag,
        "cluster:{} and --context {} name two contexts",
        context.unwrap_or_default(),
        flag.unwrap_or_default()
    );
    live_cluster::objects(&ClusterRequest {
        kubeconfig: options.input.kubeconfig.as_deref(),
        context: context.or(flag),
        namespace: options.only_namespace.as_deref(),
        ignored: &options.ignored,
    })
}

/// Adds all that the PATH arguments of a command name.
pub(crate) fn add_paths(loaded: &mut LoadedInputs, paths: &[impl AsRef<Path>]) {
    for path in paths.iter().map(AsRef::as_ref) {
        let added = match path.to_str() {
            Some(text) => InputSource::parse(text).and_then(|source| source.add(loaded)),
            None => {
                loaded.add_path(path);
                Ok(())
            }
        };
        loaded.errors.extend(added.err());
    }
    loaded.errors.extend(unused_options(&loaded.options, loaded.reads_cluster).err());
}

/// Refuses options for a cluster if no input is one: the user thinks that it is read.
fn unused_options(options: &LoadOptions, reads_cluster: bool) -> Result<()> {
    let flag = match &options.input {
        it if it.context.is_some() => "--context",
        it if it.kubeconfig.is_some() => "--kubeconfig",
        _ => return Ok(()),
    };
    if reads_cluster {
        return Ok(());
    }
    Err(with_hint(
        format!("{flag} has no effect: no input is a cluster"),
        "to read the cluster, name the input cluster:",
    ))
}

/// The two sides that `git:A..B[:PATH]` and `git:A...B[:PATH]` name; `None` for another source.
pub(crate) fn revision_range(text: &str) -> Result<Option<[String; 2]>> {
    let Some(rest) = text.strip_prefix("git:").filter(|_| !Path::new(text).exists()) else { return Ok(None) };
    let (revisions, path) = rest.split_once(':').map_or((rest, String::new()), |(a, b)| (a, format!(":{b}")));
    let or_head = |revision: &str| if revision.is_empty() { "HEAD".to_owned() } else { revision.to_owned() };
    let base = match (revisions.split_once("..."), revisions.split_once("..")) {
        (Some((a, b)), _) => [git::merge_base(&or_head(a), &or_head(b)).context("git:A...B")?, or_head(b)],
        (None, Some((a, b))) => [or_head(a), or_head(b)],
        (None, None) => return Ok(None),
    };
    Ok(Some(base.map(|revision| format!("git:{revision}{path}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_source_is_parsed() {
        let paths = |it| InputSource::Paths(it);
        for (text, expected) in [
            ("a.yaml,b/", paths(vec!["a.yaml", "b/"])),
            ("-", paths(vec!["-"])),
            ("git:main:policies", InputSource::Git { revision: "main", path: "policies" }),
            ("git:v1:", InputSource::Git { revision: "v1", path: "" }),
            ("git:main", InputSource::Git { revision: "main", path: "" }),
            ("cluster:", InputSource::Cluster { context: None }),
            ("cluster:prod", InputSource::Cluster { context: Some("prod") }),
        ] {
            assert_eq!(InputSource::parse_side(text).expect("a source"), expected, "{text}");
        }
        assert!(InputSource::parse("git::x").is_err() && InputSource::parse("git:a..b").is_err());
        assert_eq!(InputSource::parse("a,b").expect("a path"), paths(vec!["a,b"]));
    }

    #[test]
    fn a_range_names_two_revisions() {
        let range = |text: &str| revision_range(text).expect("no git is needed");
        assert_eq!(range("git:a..b:p"), Some(["git:a:p".to_owned(), "git:b:p".to_owned()]));
        assert_eq!(range("git:a.."), Some(["git:a".to_owned(), "git:HEAD".to_owned()]));
        assert_eq!(range("git:a:p/../q"), None);
        assert_eq!(range("a..b"), None);
    }
}
