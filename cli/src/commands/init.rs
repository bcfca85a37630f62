//! `weir init`: the files of a repository that tests its policies: `weir.toml`, expectations, and a job for CI.

mod expectations;
mod forge;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

use super::CommandOutcome;
use crate::args::{GlobalArgs, InitArgs, InputOptions, InputPaths, TextOrJson};
use crate::config;
use crate::failure::with_hint;
use crate::output_file;
use crate::page::OutputPage;
use crate::page::Style::Bold;
use crate::read;
use expectations::TodaysVerdicts;
use forge::Forge;

const EXPECTATIONS: &str = "expectations.yaml";

/// The files that are searched for policies.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

pub(crate) fn run(global: &GlobalArgs, arguments: &InitArgs) -> Result<CommandOutcome> {
    let policies = policies(arguments)?;
    // Without `./` before each name that is printed.
    let directory = arguments.directory.strip_prefix(".").unwrap_or(&arguments.directory);
    let input = InputPaths { paths: vec![directory.join(&policies)], options: InputOptions::default() };
    let ignored = unread_kinds(global, &input)?;
    // Ignored from here on, as with the weir.toml that is written.
    let mut global = global.clone();
    global.ignore_kind.extend(ignored.iter().cloned());
    let Some(read) = read::read_valid(&global, &input)? else { return Ok(CommandOutcome::Failed) };
    let verdicts = TodaysVerdicts::new(&read)?;
    let forge = Forge::of(directory);
    let files = files(directory, &policies, &ignored, verdicts.as_ref(), forge)?;
    if !arguments.force && !arguments.dry_run {
        output_file::refuse_existing(files.keys().map(PathBuf::as_path), "`--force` overwrites files")?;
    }
    let mut page = OutputPage::for_stdout(global.color);
    for (path, text) in &files {
        match arguments.dry_run {
            true => print(&mut page, path, text),
            false => write(path, text)?,
        }
    }
    if !arguments.dry_run {
        summary(&mut page, &policies, &files, verdicts.as_ref(), forge);
    }
    read.left_out.mark(&mut page, TextOrJson::Text)?;
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// The directory of the policies, relative to the repository's.
fn policies(arguments: &InitArgs) -> Result<PathBuf> {
    let directory = &arguments.directory;
    let found = match &arguments.policies {
        Some(path) => path.strip_prefix(directory).unwrap_or(path).to_owned(),
        None => find(directory)?,
    };
    let is_below = found.components().all(|it| matches!(it, Component::Normal(_))) && found != Path::new("");
    let is_plain = found.to_str().is_some_and(|it| {
        !it.starts_with('-') && it.chars().all(|it| it.is_ascii_alphanumeric() || "._-/".contains(it))
    });
    match (is_below && directory.join(&found).is_dir(), is_plain) {
        (true, true) => Ok(found),
        (false, _) => Err(with_hint(
            format!("{} is no directory below {}", found.display(), directory.display()),
            "the policies must be in a directory of their own: its files are read as Kubernetes objects",
        )),
        (true, false) => Err(with_hint(
            format!("the name {} cannot be written into a CI file", found.display()),
            "rename the directory: letters, digits, `.`, `_`, `-` and `/` are allowed",
        )),
    }
}

/// The only directory in this one with files that mention a NetworkPolicy.
fn find(directory: &Path) -> Result<PathBuf> {
    let entries = directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))?;
    let mut found = BTreeSet::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", directory.display()))?.path();
        let is_hidden = path.file_name().is_none_or(|it| it.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.is_dir() && !path.is_symlink() && has_policies(&path) {
            found.extend(path.file_name().map(PathBuf::from));
        }
    }
    let names: Vec<String> = found.iter().map(|it| it.display().to_string()).collect();
    match found.len() {
        1 => Ok(found.into_iter().next().unwrap_or_default()),
        0 => Err(with_hint(
            format!("no directory in {} contains a NetworkPolicy", directory.display()),
            "put the policies into a directory, such as `policies`, or name it with --policies",
        )),
        _ => Err(with_hint(
            format!("several directories contain policies: {}", names.join(", ")),
            "name one with --policies",
        )),
    }
}

/// Whether a file of the directory, or of one below it, mentions a NetworkPolicy. Files that cannot be read do not.
fn has_policies(directory: &Path) -> bool {
    let Ok(entries) = directory.read_dir() else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        let is_read = path.extension().and_then(|it| it.to_str()).is_some_and(|it| EXTENSIONS.contains(&it));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => has_policies(&path),
            Ok(kind) if kind.is_file() && is_read => {
                std::fs::read_to_string(&path).is_ok_and(|it| it.contains("NetworkPolicy"))
            }
            _ => false,
        }
    })
}

/// The kinds of policies in the input that Weir does not read.
fn unread_kinds(global: &GlobalArgs, input: &InputPaths) -> Result<BTreeSet<String>> {
    Ok(read::read(global, input)?.unread_kinds())
}

fn files(
    directory: &Path,
    policies: &Path,
    ignored: &BTreeSet<String>,
    verdicts: Option<&TodaysVerdicts>,
    forge: Option<Forge>,
) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let policies = policies.display().to_string();
    files.insert(directory.join(config::FILE_NAME), configuration(&policies, ignored));
    if let Some(verdicts) = verdicts {
        files.insert(directory.join(EXPECTATIONS), verdicts.yaml(&policies));
    }
    if let Some(forge) = forge {
        files.insert(directory.join(forge.file()), forge.text(&policies));
    }
    Ok(files)
}

/// The text of `weir.toml`.
fn configuration(policies: &str, ignored: &BTreeSet<String>) -> String {
    let names: Vec<String> = ignored.iter().map(|it| format!("\"{it}\"")).collect();
    let kinds = match ignored.is_empty() {
        true => "# ignore-kinds = [\"cilium.io/CiliumNetworkPolicy\"]".to_owned(),
        false => format!("ignore-kinds = [{}]", names.join(", ")),
    };
    format!(
        "\
# Settings of `weir` commands in this repository, such as `weir check {policies}`. The command line takes precedence.

# The namespace of objects that name none.
# namespace = \"default\"

# Kinds of policies that Weir does not read. Answers are given without them, and say so.
{kinds}

# Levels of findings by code: off, note, warning, error. `weir explain-code --list` prints the codes.
[lints]
# dns-not-allowed = \"error\"

# Readings of points that the API leaves open.
[assume]
# ipblock-pods = \"ignore\"
"
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    output_file::replace(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

fn print(page: &mut OutputPage, path: &Path, text: &str) {
    page.pieces(&[(Bold, &format_args!("would write {}:", path.display()))]);
    text.lines().for_each(|line| page.line(format_args!("  {line}")));
    page.blank();
}

fn summary(
    page: &mut OutputPage,
    policies: &Path,
    files: &BTreeMap<PathBuf, String>,
    verdicts: Option<&TodaysVerdicts>,
    forge: Option<Forge>,
) {
    files.keys().for_each(|it| page.line(format_args!("wrote {}", it.display())));
    if verdicts.is_none() {
        page.folded_line(
            2,
            "no expectations: the input has no pod or workload that a policy isolates or lets reach another one",
        );
    }
    if forge.is_none() {
        page.folded_line(
            2,
            "no CI file: the repository has neither `.github` nor `.gitlab-ci.yml`, and no remote of one of them",
        );
    }
    page.blank();
    page.line("Next steps:");
    let policies = policies.display();
    page.line(format_args!("  weir check {policies}"));
    if verdicts.is_some() {
        page.line(format_args!("  weir test {policies} --expectations {EXPECTATIONS} --coverage"));
        page.folded_line(
            4,
            format_args!("  review {EXPECTATIONS}: it has the verdicts of today, also where they are mistakes"),
        );
    }
    forge.iter().flat_map(|it| it.next_steps()).for_each(|it| page.folded_line(4, format_args!("  {it}")));
}
