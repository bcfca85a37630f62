//! The files beside the binary: completions, man pages, documents and the systemd unit.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::build::Tree;
use crate::process::capture;

/// The files beside the binary, sorted by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Payload {
    pub(super) man: Vec<(String, Vec<u8>)>,
    /// The names are those that the shells expect.
    pub(super) completions: Vec<(&'static str, Vec<u8>)>,
    pub(super) documents: Vec<(&'static str, Vec<u8>)>,
    /// The quick start and the files that it uses, with their paths in the repository.
    pub(super) examples: Vec<(String, Vec<u8>)>,
    /// The systemd unit for hosts without Kubernetes.
    pub(super) unit: Vec<u8>,
}

/// The file name of each shell's completions.
const SHELLS: [(&str, &str); 5] = [
    ("bash", "weir.bash"),
    ("elvish", "weir.elv"),
    ("fish", "weir.fish"),
    ("powershell", "_weir.ps1"),
    ("zsh", "_weir"),
];
const UNIT: &str = "deploy/systemd/weir.service";
const DOCUMENTS: [&str; 3] = ["CHANGELOG.md", "LICENSE", "README.md"];
const QUICK_START: &str = "docs/quickstart.md";
/// The directories of the quick start's files.
const EXAMPLES: [&str; 3] = ["policies/changes", "policies/examples", "policies/expectations"];

/// The paths, relative to the repository, of the quick start and of the files that it uses; sorted.
pub fn examples(root: &Path) -> Result<Vec<String>> {
    let mut paths = vec![QUICK_START.to_owned()];
    for directory in EXAMPLES {
        for entry in fs::read_dir(root.join(directory)).with_context(|| format!("cannot read {directory}"))? {
            paths.push(format!("{directory}/{}", entry?.file_name().to_string_lossy()));
        }
    }
    paths.sort();
    Ok(paths)
}

impl Payload {
    /// Asks the program, which runs on this machine, for its completions and man pages.
    pub(super) fn read(tree: &Tree, program: &Path) -> Result<Self> {
        let directory = tree.target.join("dist-man");
        _ = fs::remove_dir_all(&directory);
        capture(Command::new(program).arg("man").arg(&directory))?;
        let mut man = Vec::new();
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            man.push((name, fs::read(&path)?));
        }
        man.sort();
        ensure!(man.len() > 10, "only {} man pages", man.len());
        let completion = |(shell, name)| {
            let script = capture(Command::new(program).args(["completions", shell]))?;
            Ok((name, script.into_bytes()))
        };
        let document = |name| {
            let text = fs::read(tree.root.join(name)).with_context(|| format!("cannot read {name}"))?;
            Ok((name, text))
        };
        let example = |path: String| {
            let text = fs::read(tree.root.join(&path)).with_context(|| format!("cannot read {path}"))?;
            Ok((path, text))
        };
        Ok(Self {
            man,
            completions: SHELLS.into_iter().map(completion).collect::<Result<_>>()?,
            documents: DOCUMENTS.into_iter().map(document).collect::<Result<_>>()?,
            examples: examples(&tree.root)?.into_iter().map(example).collect::<Result<_>>()?,
            unit: fs::read(tree.root.join(UNIT)).with_context(|| format!("cannot read {UNIT}"))?,
        })
    }

    /// The completions of a shell.
    pub(super) fn completion(&self, name: &str) -> Result<&[u8]> {
        let found = self.completions.iter().find(|(it, _)| *it == name);
        Ok(found.with_context(|| format!("there are no completions {name}"))?.1.as_slice())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn payload() -> Payload {
        Payload {
            man: vec![("weir-check.1".into(), b".TH check".to_vec()), ("weir.1".into(), b".TH weir".to_vec())],
            completions: SHELLS.map(|(shell, name)| (name, shell.as_bytes().to_vec())).to_vec(),
            documents: DOCUMENTS.map(|name| (name, name.as_bytes().to_vec())).to_vec(),
            examples: ["docs/quickstart.md", "policies/examples/01-default-deny.yaml"]
                .map(|path| (path.to_owned(), path.as_bytes().to_vec()))
                .to_vec(),
            unit: b"[Unit]".to_vec(),
        }
    }
}
