//! The files of a git revision, read with `git`: the work tree is not touched.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};

use super::program::{self, TemporaryDirectory};
use super::{Renderer, render};
use crate::failure::with_hint;
use crate::load::LoadedInputs;

/// A file in a git revision.
struct GitBlob {
    name: String,
    id: String,
}

/// A directory or file of a revision.
struct GitPath<'r> {
    revision: &'r str,
    tree: String,
    /// Relative to the repository's root, without a slash at the end; empty for the root.
    at: String,
}

/// Adds the files at a path of a revision.
pub(super) fn add(loaded: &mut LoadedInputs, revision: &str, path: &str) -> Result<()> {
    let place = GitPath::find(revision, path)?;
    let files = place.list()?;
    let names: Vec<&str> = files.iter().filter_map(|it| it.file.strip_prefix(&place.at)).collect();
    if let Some(renderer) = Renderer::of_files(names.iter().map(|it| it.trim_start_matches('/'))) {
        let bytes = place.render(renderer, loaded)?;
        loaded.add_rendered_text(format!("{revision}:{}", place.at), renderer, bytes);
        return Ok(());
    }
    if files.iter().all(|it| it.file != place.at) {
        loaded.note_search(format!("{revision}:{}", place.at));
    }
    let root = match loaded.options.excluded_paths.is_empty() {
        true => None,
        false => Some(PathBuf::from(git(&["rev-parse", "--show-toplevel"], None)?.trim_end()).canonicalize()?),
    };
    let rules = &loaded.options.excluded_paths;
    let is_excluded =
        |file: &str, is_directory| root.as_ref().is_some_and(|it| rules.has(&it.join(file), is_directory));
    let WantedFiles { wanted, excluded } = place.wanted(&files, is_excluded)?;
    let number = excluded.len();
    loaded.excluded.extend(excluded);
    if wanted.is_empty() {
        let hint = match number {
            0 => {
                "paths are relative to the repository's root; write ./PATH for a path relative to this directory".into()
            }
            _ => format!("excluded files are not read: {number}"),
        };
        return Err(with_hint(format!("no files to read in git:{revision}:{path}"), hint));
    }
    contents(wanted)?.into_iter().for_each(|it| loaded.add_text(it.name, it.bytes));
    Ok(())
}

/// The commit at which two revisions went apart.
pub(super) fn merge_base(a: &str, b: &str) -> Result<String> {
    let base = git(&["merge-base", "--end-of-options", a, b], None).map_err(|error| {
        let hint = "a shallow clone may lack it: `git fetch --unshallow`";
        with_hint(format!("git finds no common ancestor of `{a}` and `{b}` ({error})"), hint)
    })?;
    Ok(base.trim_end().to_owned())
}

/// A text with its name for messages.
struct NamedText {
    name: String,
    bytes: Vec<u8>,
}

/// The files that a search reads, and the names of those that it leaves out.
#[derive(Default)]
struct WantedFiles {
    wanted: Vec<GitBlob>,
    excluded: Vec<String>,
}

/// An entry of `git ls-tree`.
struct TreeEntry {
    mode: String,
    id: String,
    /// Relative to the repository's root.
    file: String,
}

impl<'r> GitPath<'r> {
    fn find(revision: &'r str, path: &str) -> Result<Self> {
        let from_here = path.strip_prefix("./").or((path == ".").then_some(""));
        let at = match from_here {
            Some(rest) => format!("{}{rest}", git(&["rev-parse", "--show-prefix"], None)?.trim_end()),
            None => path.to_owned(),
        };
        let name = format!("{revision}^{{tree}}");
        let tree = git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &name], None).map_err(|error| {
            let hint = "a revision is a branch, a tag or a commit; a shallow clone may lack it: `git fetch origin REV`";
            with_hint(format!("git does not know the revision `{revision}` ({error})"), hint)
        })?;
        Ok(Self { revision, tree: tree.trim_end().to_owned(), at: at.trim_end_matches('/').to_owned() })
    }

    fn list(&self) -> Result<Vec<TreeEntry>> {
        let mut arguments = vec!["ls-tree", "-r", "-z", "--full-tree", &self.tree];
        if !self.at.is_empty() {
            arguments.extend(["--", &self.at]);
        }
        let listed = git(&arguments, None)?;
        let entry = |entry: &str| {
            let (meta, file) = entry.split_once('\t')?;
            let (mode, rest) = meta.split_once(' ')?;
            let id = rest.rsplit(' ').next()?.to_owned();
            Some(TreeEntry { mode: mode.to_owned(), id, file: file.to_owned() })
        };
        let entries = listed.split('\0').filter(|it| !it.is_empty()).map(entry);
        entries.collect::<Option<_>>().context("git ls-tree printed an unexpected line")
    }

    /// The files that a search reads. Links and submodules are refused.
    fn wanted(&self, files: &[TreeEntry], is_excluded: impl Fn(&str, bool) -> bool) -> Result<WantedFiles> {
        let Self { revision, tree, at } = self;
        let charts: BTreeSet<&str> = files.iter().filter_map(|it| it.file.strip_suffix("/Chart.yaml")).collect();
        let mut found = WantedFiles::default();
        for TreeEntry { mode, id, file } in files {
            let below = Path::new(file.strip_prefix(at.as_str()).unwrap_or(file));
            let is_named = file == at;
            let is_wanted = is_named || (LoadedInputs::is_wanted(below) && !Renderer::is_kustomization(below));
            let (is_link, is_submodule) = (mode == "120000", mode == "160000");
            let is_searched = LoadedInputs::is_searched(below) && (is_link || is_submodule);
            if !is_wanted && !is_searched {
                continue;
            }
            if !is_named && is_excluded(file, is_submodule) {
                if is_wanted || is_submodule || is_directory(tree, file, id)? {
                    found.excluded.push(format!("{revision}:{file}"));
                }
                continue;
            }
            if is_link && (is_wanted || is_directory(tree, file, id)?) {
                return Err(with_hint(
                    format!("{revision}:{file} is a symbolic link"),
                    "links are not followed in a revision: name the link's target instead",
                ));
            }
            if is_submodule {
                return Err(with_hint(
                    format!("{revision}:{file} is a submodule, whose files are not part of the revision"),
                    "name paths without it, or exclude it: `exclude` in weir.toml, .weirignore",
                ));
            }
            if is_link {
                continue;
            }
            let name = format!("{revision}:{file}");
            let mut directories = Path::new(file).ancestors().skip(1).filter_map(Path::to_str);
            match directories.find(|it| !is_named && it.len() > at.len() && charts.contains(it)) {
                Some(chart) if is_excluded(&format!("{chart}/templates"), true) => {
                    match file[chart.len()..].strip_prefix('/').is_some_and(Renderer::is_chart_file) {
                        true => found.excluded.push(name),
                        false => found.wanted.push(GitBlob { name, id: id.clone() }),
                    }
                }
                Some(chart) => {
                    return Err(with_hint(
                        format!("{revision}:{chart} is a Helm chart, whose templates are not read as YAML"),
                        "name the chart as a path of its own to render it with helm, or exclude it: `exclude` in \
                         weir.toml, .weirignore",
                    ));
                }
                None => found.wanted.push(GitBlob { name, id: id.clone() }),
            }
        }
        Ok(found)
    }

    /// Renders the directory in a copy of the revision, because a kustomization may refer to other directories.
    fn render(&self, renderer: Renderer, loaded: &LoadedInputs) -> Result<Vec<u8>> {
        let copy = TemporaryDirectory::new()?;
        // Where git runs, because `checkout-index` copies only the files below its directory.
        let top = git(&["rev-parse", "--show-toplevel"], None)?;
        let place = copy.path().canonicalize().context("cannot read the temporary directory")?;
        let (index, files) = (place.join("index"), place.join("files"));
        let in_copy = |arguments: &[&str]| {
            let mut command = Command::new("git");
            // A link becomes a file with the link's text, so that it cannot lead out of the copy.
            command.args(["-c", "core.symlinks=false"]).args(arguments);
            command.current_dir(top.trim_end()).env("GIT_INDEX_FILE", &index);
            program::run(&mut command, None)
        };
        in_copy(&["read-tree", &self.tree])?;
        in_copy(&["checkout-index", "--all", "--quiet", &format!("--prefix={}/", files.display())])?;
        render(&files.join(&self.at), renderer, &loaded.options)
    }
}

/// Whether a link leads to a directory of the revision, or out of it.
fn is_directory(tree: &str, link: &str, id: &str) -> Result<bool> {
    let target = git(&["cat-file", "blob", id], None)?;
    let mut path: Vec<&str> = link.split('/').collect();
    path.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if path.pop().is_none() => return Ok(true),
            ".." => {}
            part => path.push(part),
        }
    }
    if target.starts_with('/') || path.is_empty() {
        return Ok(true);
    }
    // git fails for a target that does not exist. Such a link can be ignored.
    let kind = git(&["cat-file", "-t", &format!("{tree}:{}", path.join("/"))], None);
    Ok(kind.is_ok_and(|kind| kind.trim_end() == "tree"))
}

/// The contents of many blobs, from one process.
fn contents(wanted: Vec<GitBlob>) -> Result<Vec<NamedText>> {
    let ids: String = wanted.iter().map(|blob| format!("{}\n", blob.id)).collect();
    let output = program::run(Command::new("git").args(["cat-file", "--batch"]), Some(ids))?;
    let mut rest = output.stdout.as_slice();
    let mut files = Vec::with_capacity(wanted.len());
    for GitBlob { name, .. } in wanted {
        let broken = || anyhow!("git cat-file did not print {name}");
        let end = rest.iter().position(|it| *it == b'\n').ok_or_else(broken)?;
        let header = std::str::from_utf8(&rest[..end]).map_err(|_| broken())?;
        let size: usize = header.rsplit(' ').next().and_then(|it| it.parse().ok()).ok_or_else(broken)?;
        let bytes = rest.get(end + 1..end + 1 + size).ok_or_else(broken)?.to_vec();
        rest = rest.get(end + size + 2..).unwrap_or_default();
        files.push(NamedText { name, bytes });
    }
    Ok(files)
}

fn git(arguments: &[&str], input: Option<String>) -> Result<String> {
    let output = program::run(Command::new("git").args(arguments), input)?;
    String::from_utf8(output.stdout).context("git printed a name that is not UTF-8")
}
