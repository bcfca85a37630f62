//! Paths → inputs: files, directories and standard input, in an order that does not depend on the file system.
//!
//! Invariants: a file that several paths lead to is read once; links that go round in a circle end; a path that cannot
//! be read is an error, and hides none of the others. Hidden directories (`.git`, and the `..data` of mounted
//! ConfigMaps) are not searched; a hidden file is read, since leaving out a policy would weaken the set silently. A
//! search does not leave the directory that was named. A link that leads out of it is an error: otherwise the author of
//! the directory could make us read, and print parts of, any file of this machine. A pipe or a device with the name of
//! a manifest is an error too, since reading it might never end. Paths that the user names may be links, pipes or
//! devices. Excluded files are counted. The templates of a Helm chart are never read as YAML: a chart that a search
//! finds is an error, unless its templates are excluded.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, anyhow};
use weir_objects::decode::{ForeignPolicyKind, Input, InputKind};

use crate::args::InputOptions;
use crate::exclude::ExcludedPaths;
use crate::failure::with_hint;
use crate::input_source::{self, Renderer};
use crate::path_pattern::PathPattern;

/// The largest file that is read: ten times the snapshot of a large cluster. A device may have no end.
const LARGEST: u64 = 1 << 30;

const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// How inputs are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadOptions {
    /// How `cluster:` and charts are read.
    pub(crate) input: InputOptions,
    /// The only namespace that is read of a cluster; `None` reads all of it.
    pub(crate) only_namespace: Option<String>,
    /// The namespace of objects that name none; `None` if neither the command line nor the configuration names it.
    pub(crate) namespace: Option<String>,
    pub(crate) excluded_paths: ExcludedPaths,
    /// Kinds of policies that the user may lack the permission to list.
    pub(crate) ignored: Vec<&'static ForeignPolicyKind>,
}

/// A directory that was read.
#[derive(Clone, Debug)]
pub(crate) struct ReadDirectory {
    /// Its name for messages.
    pub(crate) name: String,
    /// What rendered it; `None` if it was searched for files.
    pub(crate) renderer: Option<Renderer>,
}

/// The inputs that were read, and the errors of those that could not be read.
#[derive(Debug, Default)]
pub(crate) struct LoadedInputs {
    pub(crate) inputs: Vec<Input>,
    pub(crate) errors: Vec<Error>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
    pub(crate) options: LoadOptions,
    /// The files that were left out by [`ExcludedPaths`].
    pub(crate) excluded: Vec<String>,
    /// The directories that were named, and how they were read.
    pub(crate) directories: Vec<ReadDirectory>,
    /// Whether a cluster was read.
    pub(crate) reads_cluster: bool,
    seen: HashSet<PathBuf>,
    stdin_read: bool,
}

impl LoadedInputs {
    pub(crate) fn new(options: LoadOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Reads every file that a path or a glob leads to. A directory with a kustomization or a chart is rendered.
    pub(crate) fn add_path(&mut self, path: &Path) {
        if path == Path::new("-") {
            return self.add_stdin(InputKind::Manifest);
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => match Renderer::of(path) {
                Some(renderer) => self.add_rendered(path, renderer),
                None => self.add_directory(path),
            },
            Ok(_) => self.add_file(path, InputKind::Manifest),
            Err(error) => match path.to_str().filter(|it| PathPattern::is_pattern(it)) {
                Some(pattern) => self.add_glob(pattern),
                None => self.fail(path, error),
            },
        }
    }

    fn add_rendered(&mut self, path: &Path, renderer: Renderer) {
        match input_source::render(path, renderer, &self.options) {
            Ok(bytes) => self.add_rendered_text(path.display().to_string(), renderer, bytes),
            Err(error) => self.errors.push(error),
        }
    }

    /// Adds the text that a renderer made from a directory.
    pub(crate) fn add_rendered_text(&mut self, name: String, renderer: Renderer, bytes: Vec<u8>) {
        self.notes.push(format!("{name} is {}: other files in it are not read", renderer.name()));
        self.add_text(format!("{name} ({})", renderer.name()), bytes);
        self.directories.push(ReadDirectory { name, renderer: Some(renderer) });
    }

    /// Notes that a directory is searched for files.
    pub(crate) fn note_search(&mut self, name: String) {
        self.directories.push(ReadDirectory { name, renderer: None });
    }

    /// Adds a text that does not come from a path.
    pub(crate) fn add_text(&mut self, name: String, bytes: Vec<u8>) {
        self.inputs.push(Input { name, bytes, kind: InputKind::Manifest });
    }

    /// Whether a file of a directory would be read.
    pub(crate) fn is_wanted(path: &Path) -> bool {
        has_extension(path) && !path.ancestors().skip(1).any(is_hidden)
    }

    /// Whether a directory within another one would be searched.
    pub(crate) fn is_searched(path: &Path) -> bool {
        !path.ancestors().any(is_hidden)
    }

    /// A list file.
    pub(crate) fn add_list(&mut self, path: &Path, kind: InputKind) {
        if path == Path::new("-") { self.add_stdin(kind) } else { self.add_file(path, kind) }
    }

    fn add_directory(&mut self, path: &Path) {
        self.note_search(path.display().to_string());
        let mut files = Vec::new();
        let errors = self.errors.len();
        match path.canonicalize() {
            Ok(root) => self.search(&root, path, &mut files),
            Err(error) => self.fail(path, error),
        }
        if files.is_empty() && self.errors.len() == errors {
            let message = format!("no files to read in {}", path.display());
            let hint = match self.excluded.len() {
                0 => "a directory is searched for *.yaml, *.yml and *.json".to_owned(),
                excluded => format!("excluded files are not read: {excluded}"),
            };
            self.errors.push(with_hint(message, hint));
        }
        for file in files {
            self.add_file(&file, InputKind::Manifest);
        }
    }

    /// Reads the files that a glob matches. Names before the first special character are an ordinary directory.
    fn add_glob(&mut self, text: &str) {
        self.note_search(text.to_owned());
        let fixed = text.split('/').take_while(|name| !PathPattern::is_pattern(name)).map(|it| it.len() + 1);
        let (base, rest) = text.split_at(fixed.sum());
        let (base, pattern) = (Path::new(base), PathPattern::parse(rest));
        let (errors, excluded) = (self.errors.len(), self.excluded.len());
        let mut files = Vec::new();
        match or_here(base).canonicalize() {
            Ok(root) => GlobSearch { root, pattern }.visit(self, base, &mut Vec::new(), &mut files),
            Err(error) => return self.fail(base, error),
        }
        if files.is_empty() && self.errors.len() == errors {
            let message = format!("no file matches {text}");
            self.errors.push(match self.excluded.len() - excluded {
                0 => with_hint(message, "`*` matches within one name, `**` matches any number of directories"),
                excluded => with_hint(message, format!("excluded files are not read: {excluded}")),
            });
        }
        for file in files {
            self.add_file(&file, InputKind::Manifest);
        }
    }

    fn is_excluded(&self, path: &Path, is_directory: bool) -> bool {
        let rules = &self.options.excluded_paths;
        // A path that cannot be resolved is not excluded: reading it then fails with its own message.
        !rules.is_empty() && path.canonicalize().is_ok_and(|it| rules.has(&it, is_directory))
    }

    /// Whether a path of a search is excluded; its files are then counted.
    fn leaves_out(&mut self, path: &Path, is_directory: bool) -> bool {
        let is_excluded = self.is_excluded(path, is_directory);
        if is_excluded {
            match is_directory {
                true => add_files_below(path, &mut self.excluded),
                false => self.excluded.push(path.display().to_string()),
            }
        }
        is_excluded
    }

    /// Refuses a directory of a search that is a chart, unless its templates are excluded.
    fn refuses_chart(&mut self, path: &Path) -> bool {
        let is_chart = Renderer::of(path) == Some(Renderer::Helm);
        let is_refused = is_chart && !self.is_excluded(&path.join("templates"), true);
        if is_refused {
            self.errors.push(with_hint(
                format!("{} is a Helm chart, whose templates are not read as YAML", path.display()),
                "name the chart as a path of its own to render it with helm, or exclude it: \
                 `exclude` in weir.toml, .weirignore",
            ));
        }
        is_refused
    }

    fn search(&mut self, root: &Path, directory: &Path, files: &mut Vec<PathBuf>) {
        // Seen before: another path led here, or a link goes round in a circle.
        match directory.canonicalize() {
            Ok(real) if !self.seen.insert(real.clone()) => return,
            Ok(_) => {}
            Err(error) => return self.fail(directory, error),
        }
        let entries = match fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => return self.fail(directory, error),
        };
        let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            self.visit(root, path, files);
        }
    }

    /// One entry of a directory that is searched.
    fn visit(&mut self, root: &Path, path: PathBuf, files: &mut Vec<PathBuf>) {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() && is_hidden(&path) => {}
            Ok(metadata)
                if (metadata.is_dir() || has_extension(&path)) && self.leaves_out(&path, metadata.is_dir()) => {}
            Ok(metadata) if metadata.is_dir() && self.refuses_chart(&path) => {}
            Ok(metadata) if metadata.is_file() && Renderer::is_part_of_chart(&path) => {
                self.excluded.push(path.display().to_string());
            }
            // A kustomization is not an object. Its resources are read as they are.
            Ok(metadata) if metadata.is_file() && Renderer::is_kustomization(&path) => {
                let directory = path.parent().unwrap_or(root).display();
                self.notes.push(format!(
                    "{directory} has a kustomization, and its files are read as they are: to render it, name {directory}"
                ));
            }
            Ok(metadata) if metadata.is_dir() || has_extension(&path) => self.take(root, path, &metadata, files),
            Err(error) if has_extension(&path) => self.fail(&path, error),
            _ => {}
        }
    }

    /// A directory, or a file that a search reads.
    fn take(&mut self, root: &Path, path: PathBuf, metadata: &fs::Metadata, files: &mut Vec<PathBuf>) {
        match path.canonicalize() {
            Ok(real) if !real.starts_with(root) => self.errors.push(leads_out(&path, root)),
            Ok(_) if metadata.is_dir() => self.search(root, &path, files),
            Ok(_) if metadata.is_file() => files.push(path),
            Ok(_) => self.errors.push(with_hint(
                format!("cannot read {}: it is not a file but a pipe, a socket or a device", path.display()),
                "to read it, name it as a path of its own",
            )),
            Err(error) => self.fail(&path, error),
        }
    }

    fn add_file(&mut self, path: &Path, kind: InputKind) {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if !self.seen.insert(real) {
            return;
        }
        match read_file(path) {
            Ok(bytes) => self.inputs.push(Input { name: path.display().to_string(), bytes, kind }),
            Err(error) => self.fail(path, error),
        }
    }

    fn add_stdin(&mut self, kind: InputKind) {
        if self.stdin_read {
            return self.errors.push(with_hint("standard input (`-`) is named twice", "it can be read only once"));
        }
        self.stdin_read = true;
        match read_all(std::io::stdin().lock(), 0) {
            Ok(bytes) => self.inputs.push(Input { name: "-".to_owned(), bytes, kind }),
            Err(error) => self.errors.push(anyhow!(error).context("cannot read standard input")),
        }
    }

    /// Whether `-` was among the paths.
    pub(crate) fn stdin_read(&self) -> bool {
        self.stdin_read
    }

    fn fail(&mut self, path: &Path, error: std::io::Error) {
        let failed: Result<(), _> = Err(error);
        if let Err(error) = failed.with_context(|| format!("cannot read {}", path.display())) {
            self.errors.push(error);
        }
    }
}

/// The directory itself, or the current one for the empty path.
fn or_here(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() { Path::new(".") } else { directory }
}

/// The search for the files that a glob matches.
struct GlobSearch {
    /// The real path of the directory that the pattern is relative to.
    root: PathBuf,
    pattern: PathPattern,
}

impl GlobSearch {
    /// Visits the entries of a directory. `names` are its own names below the root. A link to a directory that may
    /// contain matches is an error.
    fn visit(&self, loaded: &mut LoadedInputs, directory: &Path, names: &mut Vec<String>, files: &mut Vec<PathBuf>) {
        let entries = match fs::read_dir(or_here(directory)).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => return loaded.fail(directory, error),
        };
        let mut entries: Vec<_> = entries.into_iter().map(|it| it.file_name()).collect();
        entries.sort();
        for name in entries {
            names.push(name.to_string_lossy().into_owned());
            self.visit_entry(loaded, &directory.join(&name), names, files);
            names.pop();
        }
    }

    fn visit_entry(&self, loaded: &mut LoadedInputs, path: &Path, names: &mut Vec<String>, files: &mut Vec<PathBuf>) {
        let parts: Vec<&str> = names.iter().map(String::as_str).collect();
        let is_match = self.pattern.matches(&parts);
        let metadata = fs::metadata(path);
        if metadata.as_ref().is_ok_and(fs::Metadata::is_dir) {
            let is_deeper = self.pattern.may_match_below(&parts);
            match () {
                () if is_hidden(path) || !(is_match || is_deeper) || loaded.leaves_out(path, true) => {}
                // A directory that matches is searched, as if a shell had expanded the glob.
                () if is_match && self.pattern.is_limited() => loaded.visit(&self.root, path.to_owned(), files),
                () if path.is_symlink() => loaded.errors.push(with_hint(
                    format!("cannot search {}: it is a symbolic link to a directory", path.display()),
                    "a glob does not follow it: name the link as a path of its own, or exclude it",
                )),
                () => self.visit(loaded, path, names, files),
            }
            return;
        }
        let is_wanted = is_match && (has_extension(path) || !self.pattern.ends_openly());
        if is_wanted && !Renderer::is_kustomization(path) && !loaded.leaves_out(path, false) {
            match metadata {
                Ok(metadata) => loaded.take(&self.root, path.to_owned(), &metadata, files),
                Err(error) => loaded.fail(path, error),
            }
        }
    }
}

/// Adds the files below an excluded directory that a search would have read. A link to a directory counts as a file.
fn add_files_below(directory: &Path, found: &mut Vec<String>) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|it| it.path()).collect();
    paths.sort();
    for path in paths {
        match path.is_dir() {
            true if is_hidden(&path) => {}
            true if !path.is_symlink() => add_files_below(&path, found),
            is_directory if is_directory || has_extension(&path) => found.push(path.display().to_string()),
            _ => {}
        }
    }
}

fn leads_out(path: &Path, root: &Path) -> Error {
    with_hint(
        format!("cannot read {}: it is a symbolic link that leads out of {}", path.display(), root.display()),
        "to read its target, name it as a path of its own",
    )
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    read_all(file, length)
}

/// Reads the whole source. `length` is only a hint: the source's actual length may be another one.
fn read_all(source: impl Read, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length.min(LARGEST) as usize + 1);
    source.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST { Err(std::io::Error::other("it is longer than 1 GiB")) } else { Ok(bytes) }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known)))
}
