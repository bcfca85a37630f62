//! Where the objects of a comparison come from: paths, a git revision, the live cluster or an artifact.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, anyhow};
use weir_classes::index::Key;
use weir_objects::decode::ForeignPolicyKind;

use crate::args::GlobalArgs;
use crate::config;
use crate::failure::with_hint;
use crate::left_out::{self, LeftOut};
use crate::live_cluster;
use crate::load::LoadedInputs;
use crate::page;
use crate::read::{self, ReadInput};

/// The source of one side's objects.
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
    pub(crate) fn parse(text: &'t str) -> Result<Self> {
        // An existing file takes precedence, even if its name looks like another kind of source.
        if text != "-" && Path::new(text).exists() {
            let mut start = [0; MAGIC.len()];
            let read = std::fs::File::open(text).and_then(|mut file| file.read_exact(&mut start));
            let is_artifact = read.is_ok() && start == MAGIC;
            return Ok(if is_artifact { Self::Artifact(text) } else { Self::Paths(vec![text]) });
        }
        if let Some(rest) = text.strip_prefix("git:") {
            let found = rest.split_once(':').filter(|(revision, _)| !revision.is_empty());
            let (revision, path) = found.ok_or_else(|| {
                with_hint(
                    format!("`{text}` names no revision and path"),
                    "write git:REV:PATH, for example git:main:policies",
                )
            })?;
            return Ok(Self::Git { revision, path });
        }
        if let Some(context) = text.strip_prefix("cluster:") {
            return Ok(Self::Cluster { context: Some(context).filter(|it| !it.is_empty()) });
        }
        Ok(Self::Paths(text.split(',').filter(|it| !it.is_empty()).collect()))
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

    /// Reads the objects; `None` if they have errors, which are then reported already.
    fn read(&self, global: &GlobalArgs, live: &[NamedText]) -> Result<Option<ReadInput>> {
        match self {
            Self::Paths(paths) => read::read_valid_from(global, |loaded| {
                paths.iter().for_each(|path| loaded.add_path(Path::new(path)));
                add_all(loaded, live.to_vec());
            }),
            Self::Git { revision, path } => {
                let files = files_of(revision, path)?;
                read::read_valid_from(global, |loaded| add_all(loaded, [files, live.to_vec()].concat()))
            }
            Self::Cluster { .. } => read::read_valid_from(global, |loaded| add_all(loaded, live.to_vec())),
            Self::Artifact(path) => read_artifact(global, path),
        }
    }
}

/// A text of objects that does not come from a path: a git blob, or the objects of a cluster.
#[derive(Clone)]
struct NamedText {
    /// The name for messages.
    name: String,
    bytes: Vec<u8>,
}

/// A file in a git revision.
struct GitBlob {
    name: String,
    id: String,
}

/// Reads both sides; `None` if one has errors. If one side is a live cluster and the other has no pods and no
/// workloads, the other is a proposal for that cluster: every kind of which it has no objects is taken from the
/// cluster.
pub(crate) fn read_both(global: &GlobalArgs, sources: &[InputSource<'_>; 2]) -> Result<Option<[ReadInput; 2]>> {
    if sources.iter().all(InputSource::reads_stdin) {
        return Err(with_hint("standard input (`-`) is named twice", "it can be read only once"));
    }
    let ignored = left_out::ignored(&config::load(global.config.as_deref())?, global)?;
    let mut lives: [Vec<NamedText>; 2] = Default::default();
    for (source, live) in sources.iter().zip(&mut lives) {
        if let InputSource::Cluster { context } = source {
            let name = format!("cluster:{}", context.unwrap_or_default());
            *live = vec![NamedText { name, bytes: live_cluster::objects(*context, &ignored)? }];
        }
    }
    let mut read = Vec::with_capacity(2);
    for (index, source) in sources.iter().enumerate() {
        let Some(side) = source.read(global, &lives[index])? else { return Ok(None) };
        let beside = &lives[1 - index];
        let proposed = side.cluster.endpoints.is_empty() && lives[index].is_empty() && !beside.is_empty();
        match proposed {
            true => match complete(global, source, &side, beside)? {
                Some(side) => read.push(side),
                None => return Ok(None),
            },
            false => read.push(side),
        }
    }
    Ok(read.try_into().ok())
}

/// Reads the side again, with the missing kinds taken from the cluster.
fn complete(
    global: &GlobalArgs,
    source: &InputSource<'_>,
    side: &ReadInput,
    live: &[NamedText],
) -> Result<Option<ReadInput>> {
    if source.reads_stdin() {
        let hint = "name a file instead: kinds that the file does not contain are then taken from the cluster";
        return Err(with_hint("standard input contains no pods and no workloads to compare with the cluster", hint));
    }
    if side.objects.is_empty() {
        let hint =
            "name files with policies; to compare with no policies at all, name files that contain only the pods";
        return Err(with_hint("nothing is proposed: the input contains no objects of a kind that weir reads", hint));
    }
    let has: BTreeSet<String> = side.objects.iter().map(|object| Key::of(object).kind).collect();
    let mut taken = BTreeSet::new();
    let mut lacking = Vec::with_capacity(live.len());
    for NamedText { name, bytes } in live {
        let mut list: serde_json::Value =
            serde_json::from_slice(bytes).with_context(|| format!("the objects of {name} are not JSON"))?;
        if let Some(items) = list["items"].as_array_mut() {
            items.retain(|item| item["kind"].as_str().is_some_and(|kind| !has.contains(kind) || is_foreign(item)));
            let read = items.iter().filter(|item| !is_foreign(item));
            taken.extend(read.filter_map(|item| item["kind"].as_str().map(str::to_owned)));
        }
        lacking.push(NamedText { name: name.clone(), bytes: serde_json::to_vec(&list)? });
    }
    if !global.quiet {
        let taken: Vec<String> = taken.into_iter().collect();
        page::print_to_stderr(format_args!(
            "note: your files contain no pods or workloads; taken from the cluster: {}",
            taken.join(", ")
        ));
    }
    source.read(global, &lacking)
}

/// Whether the object is a policy that is not read: its kind may have the name of one that is.
fn is_foreign(item: &serde_json::Value) -> bool {
    let group = item["apiVersion"].as_str().and_then(|it| it.split_once('/')).map_or("", |(group, _)| group);
    ForeignPolicyKind::find(group, item["kind"].as_str().unwrap_or_default()).is_some()
}

/// Reads the objects that an artifact was compiled from. They include its lists, and must be read with the options of
/// the compilation.
pub(crate) fn read_artifact(global: &GlobalArgs, path: &str) -> Result<Option<ReadInput>> {
    let artifact = crate::commands::inspect::load(Path::new(path))?;
    if artifact.objects.is_empty() {
        let hint =
            "an older version of weir compiled it; compile it again, or name the files that it was compiled from";
        return Err(with_hint(format!("{path} does not contain the objects that it was compiled from"), hint));
    }
    let objects = vec![NamedText { name: path.to_owned(), bytes: artifact.objects.into_bytes() }];
    let Some(mut read) = read::read_valid_without_lists(global, |loaded| add_all(loaded, objects))? else {
        return Ok(None);
    };
    let manifest: serde_json::Value =
        serde_json::from_str(&artifact.manifest).with_context(|| format!("the manifest of {path} cannot be read"))?;
    read.left_out = LeftOut::of_manifest(&manifest);
    for (key, value) in manifest["assumptions"].as_object().into_iter().flatten() {
        let mut assume = read.cluster.assume;
        let value = value.as_str().unwrap_or_default();
        assume.set(key, value).with_context(|| format!("in the manifest of {path}"))?;
        if assume != read.cluster.assume {
            let hint = format!("compare with `--assume {key}={value}`");
            return Err(with_hint(format!("{path} was compiled with {key}={value}"), hint));
        }
    }
    Ok(Some(read))
}

fn add_all(loaded: &mut LoadedInputs, texts: Vec<NamedText>) {
    texts.into_iter().for_each(|text| loaded.add_text(text.name, text.bytes));
}

/// The files at a path of a revision: the file itself, or the files of a directory that would be read.
fn files_of(revision: &str, path: &str) -> Result<Vec<NamedText>> {
    let from_here = path.strip_prefix("./").or((path == ".").then_some(""));
    let at = match from_here {
        Some(rest) => format!("{}{rest}", git(&["rev-parse", "--show-prefix"], None)?.trim_end()),
        None => path.to_owned(),
    };
    let at = at.trim_end_matches('/');
    let commit = git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{revision}^{{tree}}")], None);
    let tree = commit.map_err(|error| {
        let hint = "a revision is a branch, a tag or a commit; a shallow clone may lack it: `git fetch origin REV`";
        with_hint(format!("git does not know the revision `{revision}` ({error})"), hint)
    })?;
    let mut arguments = vec!["ls-tree", "-r", "-z", "--full-tree", tree.trim_end()];
    if !at.is_empty() {
        arguments.extend(["--", at]);
    }
    let listed = git(&arguments, None)?;
    let mut wanted = Vec::new();
    for entry in listed.split('\0').filter(|it| !it.is_empty()) {
        let (meta, file) = entry.split_once('\t').context("git ls-tree printed an unexpected line")?;
        let below = Path::new(file.strip_prefix(at).unwrap_or(file));
        let is_wanted = file == at || LoadedInputs::is_wanted(below);
        let fields: Vec<&str> = meta.split(' ').collect();
        match fields[..] {
            ["120000", _, id]
                if is_wanted || (LoadedInputs::is_searched(below) && is_directory(tree.trim_end(), file, id)?) =>
            {
                return Err(with_hint(
                    format!("{revision}:{file} is a symbolic link"),
                    "links are not followed in a revision: name the link's target instead",
                ));
            }
            ["160000", ..] if file == at || LoadedInputs::is_searched(below) => {
                page::print_to_stderr(format_args!(
                    "warning: {revision}:{file} is a submodule: its files are not read"
                ));
            }
            [_, "blob", id] if is_wanted => {
                wanted.push(GitBlob { name: format!("{revision}:{file}"), id: id.to_owned() });
            }
            _ => {}
        }
    }
    if wanted.is_empty() {
        let hint = "paths are relative to the repository's root; write ./PATH for a path relative to this directory";
        return Err(with_hint(format!("no files to read in git:{revision}:{path}"), hint));
    }
    contents(wanted)
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
    let output = run(Command::new("git").args(["cat-file", "--batch"]), Some(ids))?;
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
    let output = run(Command::new("git").args(arguments), input)?;
    String::from_utf8(output.stdout).context("git printed a name that is not UTF-8")
}

/// Runs a program to its end. If it fails, its standard error becomes the error.
fn run(command: &mut Command, input: Option<String>) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => with_hint(
            format!("`{program}` is not installed, or not in PATH"),
            format!("install {program}, or name files instead"),
        ),
        _ => anyhow!(error).context(format!("cannot run {program}")),
    })?;
    // The program may write output before it has read all input, so both happen in parallel.
    let writer = child.stdin.take().zip(input);
    let writer = writer.map(|(mut stdin, input)| std::thread::spawn(move || _ = stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().with_context(|| format!("cannot run {program}"))?;
    writer.map(std::thread::JoinHandle::join);
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().lines().last().unwrap_or("it printed no error message").to_owned();
    Err(anyhow!("{program} failed: {said}"))
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
            ("cluster:", InputSource::Cluster { context: None }),
            ("cluster:prod", InputSource::Cluster { context: Some("prod") }),
        ] {
            assert_eq!(InputSource::parse(text).expect("a source"), expected, "{text}");
        }
        assert!(InputSource::parse("git:main").is_err() && InputSource::parse("git::x").is_err());
    }
}
