//! Paths → inputs: files, directories and standard input, in an order that does not depend on the file system.
//!
//! Invariants: a file that several paths lead to is read once; links that go round in a circle end; a path that cannot
//! be read is an error, and hides none of the others. Hidden directories (`.git`, and the `..data` of mounted
//! ConfigMaps) are not searched; a hidden file is read, since leaving out a policy would weaken the set silently. A
//! search does not leave the directory that was named. A link that leads out of it is an error: otherwise the author of
//! the directory could make us read, and print parts of, any file of this machine. A pipe or a device with the name of
//! a manifest is an error too, since reading it might never end. Paths that the user names may be links, pipes or
//! devices.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, anyhow};
use weir_objects::decode::{Input, InputKind};

use crate::failure::with_hint;

/// The largest file that is read: ten times the snapshot of a large cluster. A device may have no end.
const LARGEST: u64 = 1 << 30;

const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The inputs that were read, and the errors of those that could not be read.
#[derive(Debug, Default)]
pub(crate) struct LoadedInputs {
    pub(crate) inputs: Vec<Input>,
    pub(crate) errors: Vec<Error>,
    seen: HashSet<PathBuf>,
    stdin_read: bool,
}

impl LoadedInputs {
    /// Reads every file that a path leads to.
    pub(crate) fn add_path(&mut self, path: &Path) {
        if path == Path::new("-") {
            return self.add_stdin(InputKind::Manifest);
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => self.add_directory(path),
            Ok(_) => self.add_file(path, InputKind::Manifest),
            Err(error) => self.fail(path, error),
        }
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
        let mut files = Vec::new();
        let errors = self.errors.len();
        match path.canonicalize() {
            Ok(root) => self.search(&root, path, &mut files),
            Err(error) => self.fail(path, error),
        }
        if files.is_empty() && self.errors.len() == errors {
            let message = format!("no files to read in {}", path.display());
            self.errors.push(with_hint(message, "a directory is searched for *.yaml, *.yml and *.json"));
        }
        for file in files {
            self.add_file(&file, InputKind::Manifest);
        }
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
            Ok(metadata) if metadata.is_dir() || has_extension(&path) => match path.canonicalize() {
                Ok(real) if !real.starts_with(root) => self.errors.push(leads_out(&path, root)),
                Ok(_) if metadata.is_dir() => self.search(root, &path, files),
                Ok(_) if metadata.is_file() => files.push(path),
                Ok(_) => self.errors.push(with_hint(
                    format!("cannot read {}: it is not a file but a pipe, a socket or a device", path.display()),
                    "to read it, name it as a path of its own",
                )),
                Err(error) => self.fail(&path, error),
            },
            Err(error) if has_extension(&path) => self.fail(&path, error),
            _ => {}
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
