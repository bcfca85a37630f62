//! Renders directories that hold no finished objects: kustomizations with `kubectl kustomize`, Helm charts with
//! `helm template`.
//!
//! Neither talks to a cluster. kustomize's plug-ins, functions and Helm support stay off, because only flags that we do
//! not give turn them on; helm updates no dependencies. A kustomization can still name remote resources, which
//! kustomize then downloads: docs/inputs.md says what runs for a directory that others wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result};

use super::chart_notes;
use super::program::run_if_installed;
use crate::failure::with_hint;
use crate::load::LoadOptions;
use crate::page;

/// A program that makes objects from a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renderer {
    Kustomize,
    Helm,
}

/// The names that kustomize takes.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
const CHART: &str = "Chart.yaml";
const CHART_FILES: [&str; 3] = [CHART, "values.yaml", "values.schema.json"];

impl Renderer {
    /// The renderer for a directory; `None` if its files are objects.
    pub(crate) fn of(directory: &Path) -> Option<Self> {
        Self::with(|name| directory.join(name).is_file())
    }

    /// The renderer for a directory with these files, given relative to it.
    pub(super) fn of_files<'f>(files: impl Iterator<Item = &'f str> + Clone) -> Option<Self> {
        Self::with(|name| files.clone().any(|it| it == name))
    }

    fn with(has: impl Fn(&str) -> bool) -> Option<Self> {
        match KUSTOMIZATIONS.iter().any(|it| has(it)) {
            true => Some(Self::Kustomize),
            false => has(CHART).then_some(Self::Helm),
        }
    }

    /// Whether a file is a kustomization, and so no object.
    pub(crate) fn is_kustomization(file: &Path) -> bool {
        file.file_name().is_some_and(|name| KUSTOMIZATIONS.iter().any(|it| name == *it))
    }

    /// Whether a file is one that Helm reads beside a chart's templates, and so no object.
    pub(crate) fn is_part_of_chart(file: &Path) -> bool {
        let is_named = file.file_name().is_some_and(|name| CHART_FILES.iter().any(|it| name == *it));
        is_named && file.with_file_name(CHART).is_file()
    }

    /// As [`Self::is_part_of_chart`], for a file in the directory of a chart.
    pub(super) fn is_chart_file(name: &str) -> bool {
        CHART_FILES.contains(&name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kustomize => "rendered by kustomize",
            Self::Helm => "rendered by helm",
        }
    }

    /// The commands to try, the first one that is installed counts.
    fn commands(self, directory: &Path, options: &LoadOptions) -> Vec<Command> {
        // A name that begins with a dash would be a flag.
        let directory = if directory.to_string_lossy().starts_with('-') {
            Path::new(".").join(directory)
        } else {
            directory.to_owned()
        };
        let command = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).arg(&directory);
            command
        };
        match self {
            Self::Kustomize => vec![command("kubectl", &["kustomize"]), command("kustomize", &["build"])],
            Self::Helm => {
                // Without a namespace, helm would take that of the current kubeconfig: the same chart would be other
                // objects for another user.
                let namespace = options.namespace.as_deref().unwrap_or("default");
                let mut helm = Command::new("helm");
                helm.args(["template", "--namespace", namespace]);
                options.input.helm_values.iter().for_each(|file| _ = helm.arg("--values").arg(file));
                helm.arg(directory);
                vec![helm]
            }
        }
    }
}

/// The objects of a directory, as YAML.
pub(crate) fn render(directory: &Path, renderer: Renderer, options: &LoadOptions) -> Result<Vec<u8>> {
    let shown = directory.display();
    if renderer == Renderer::Helm {
        let root = directory.canonicalize().with_context(|| format!("cannot read {shown}"))?;
        refuse_links_out(&root, &root)?;
        // Also with --quiet: the answer may be another one in the cluster.
        chart_notes::notes(directory).iter().for_each(|it| page::print_to_stderr(format_args!("note: {it}")));
    }
    for mut command in renderer.commands(directory, options) {
        let program = command.get_program().to_string_lossy().into_owned();
        if let Some(output) = run_if_installed(&mut command, None)? {
            return finished(&program, directory, output);
        }
    }
    Err(match renderer {
        Renderer::Kustomize => with_hint(
            format!("{shown} has a kustomization, and neither kubectl nor kustomize is in PATH"),
            format!("install kubectl, or give the rendered objects; to read the files as they are: '{shown}/*.yaml'"),
        ),
        Renderer::Helm => with_hint(
            format!("{shown} is a Helm chart, and helm is not in PATH"),
            format!("install helm, or give the rendered objects: helm template {shown} | weir … -"),
        ),
    })
}

fn finished(program: &str, directory: &Path, output: Output) -> Result<Vec<u8>> {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() {
        said.lines().for_each(|line| page::print_to_stderr(format_args!("{program}: {line}")));
        return Ok(output.stdout);
    }
    let said = if said.is_empty() { "it printed no error message".to_owned() } else { said };
    Err(with_hint(
        format!("{program} cannot render {}: {said}", directory.display()),
        format!("`{program}` must render the directory without weir, too"),
    ))
}

/// helm follows links, and a chart of another author could make it print any file of this machine.
fn refuse_links_out(root: &Path, directory: &Path) -> Result<()> {
    let cannot = || format!("cannot read {}", directory.display());
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>).with_context(cannot)?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|it| it.path()).collect();
    paths.sort();
    for path in paths {
        let metadata = fs::symlink_metadata(&path).with_context(cannot)?;
        if metadata.is_symlink() {
            let is_inside = path.canonicalize().is_ok_and(|real| real.starts_with(root));
            if !is_inside {
                return Err(with_hint(
                    format!("cannot render {}: {} is a link that leads out of it", root.display(), path.display()),
                    "replace the link by the file",
                ));
            }
        } else if metadata.is_dir() {
            refuse_links_out(root, &path)?;
        }
    }
    Ok(())
}
