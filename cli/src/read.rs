//! The beginning of every command: configuration, inputs, objects, the cluster.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use weir_artifact as artifact;
use weir_artifact::Digest;
use weir_model::{Assumptions, Cluster, resolve};
use weir_objects::decode::{self, DecodeOptions, ForeignPolicy, Input, InputKind};
use weir_objects::diagnostic::{Diagnostics, Severity};
use weir_objects::k8s::Object;
use weir_objects::source::SourceMap;
use weir_policy::answers::ObjectCounts;
use weir_policy::findings;

use crate::args::{GlobalArgs, InputOptions, InputPaths};
use crate::config::{self, Config};
use crate::exclude::{self, ExcludedPaths};
use crate::failure::{self, with_hint};
use crate::input_source;
use crate::left_out::{self, LeftOut};
use crate::load::{LoadOptions, LoadedInputs, ReadDirectory};
use crate::page::{self, OutputPage, Progress};
use crate::render::text;

/// The input after reading and resolving.
#[derive(Debug)]
pub(crate) struct ReadInput {
    pub(crate) config: Config,
    pub(crate) default_namespace: String,
    pub(crate) objects: Vec<Object>,
    pub(crate) sources: SourceMap,
    /// Kinds that are not read, and the number of objects of each.
    pub(crate) skipped: Vec<(String, usize)>,
    /// Policies of ignored kinds, which an answer must name.
    pub(crate) left_out: LeftOut,
    /// Policies of other kinds that are not read: there is no answer with them.
    unread: Vec<ForeignPolicy>,
    /// Files and the digests of their bytes, if they were asked for.
    pub(crate) inputs: Vec<artifact::InputFile>,
    pub(crate) cluster: Cluster,
    pub(crate) diagnostics: Diagnostics,
    /// The directories that were named, and how they were read.
    pub(crate) directories: Vec<ReadDirectory>,
    /// The files that were left out by `exclude` or `.weirignore`.
    pub(crate) excluded: Vec<String>,
    /// Whether every path could be read. Errors are reported already.
    pub(crate) complete: bool,
    /// Whether standard input was read.
    pub(crate) stdin_read: bool,
}

/// Reads everything; reports errors and continues with the rest.
pub(crate) fn read(global: &GlobalArgs, paths: &InputPaths) -> Result<ReadInput> {
    let read = read_with(global, paths, load_options(global, &paths.options)?, |_| Vec::new())?;
    Ok(read.with_excluded_reported(!global.quiet))
}

/// As [`read`], with only the objects of one namespace of a cluster.
pub(crate) fn read_namespace(global: &GlobalArgs, paths: &InputPaths, namespace: &str) -> Result<ReadInput> {
    let options = load_options(global, &paths.options)?;
    let options = LoadOptions { only_namespace: Some(namespace.to_owned()), ..options };
    Ok(read_with(global, paths, options, |_| Vec::new())?.with_excluded_reported(!global.quiet))
}

/// How the inputs of a command are read.
pub(crate) fn load_options(global: &GlobalArgs, input: &InputOptions) -> Result<LoadOptions> {
    let config = config::load(global.config.as_deref())?;
    Ok(LoadOptions {
        input: input.clone(),
        only_namespace: None,
        namespace: global.default_namespace().map(str::to_owned).or_else(|| config.namespace.clone()),
        ignored: left_out::ignored(&config, global)?,
        excluded_paths: ExcludedPaths::load(&config)?,
    })
}

fn read_with(
    global: &GlobalArgs,
    paths: &InputPaths,
    options: LoadOptions,
    note: fn(&[Input]) -> Vec<artifact::InputFile>,
) -> Result<ReadInput> {
    let add = |loaded: &mut LoadedInputs| input_source::add_paths(loaded, &paths.paths);
    read_loaded(global, options, |loaded| add_with_lists(global, loaded, add), note, |_| {})
}

/// Reads the inputs that `add` adds, and the lists of the command line. `None` if there are errors, as in
/// [`read_valid`].
pub(crate) fn read_valid_from(
    global: &GlobalArgs,
    options: LoadOptions,
    add: impl FnOnce(&mut LoadedInputs),
) -> Result<Option<ReadInput>> {
    read_valid_changed(global, options, add, |_| {})
}

/// As [`read_valid_from`], with a change of the objects before they are resolved.
pub(crate) fn read_valid_changed(
    global: &GlobalArgs,
    options: LoadOptions,
    add: impl FnOnce(&mut LoadedInputs),
    change: impl FnOnce(&mut [Object]),
) -> Result<Option<ReadInput>> {
    let add = |loaded: &mut LoadedInputs| add_with_lists(global, loaded, add);
    valid(global, read_loaded(global, options, add, |_| Vec::new(), change)?)
}

/// Reads the inputs that `add` adds, which already contain their lists. `None` if there are errors, as in
/// [`read_valid`].
pub(crate) fn read_valid_without_lists(
    global: &GlobalArgs,
    add: impl FnOnce(&mut LoadedInputs),
) -> Result<Option<ReadInput>> {
    let options = load_options(global, &InputOptions::default())?;
    valid(global, read_loaded(global, options, add, |_| Vec::new(), |_| {})?)
}

/// Reads texts that were read before, with the lists of the command line among them.
pub(crate) fn read_texts(global: &GlobalArgs, inputs: Vec<Input>) -> Result<ReadInput> {
    let options = load_options(global, &InputOptions::default())?;
    read_loaded(global, options, |loaded| loaded.inputs.extend(inputs), |_| Vec::new(), |_| {})
}

fn read_loaded(
    global: &GlobalArgs,
    options: LoadOptions,
    add: impl FnOnce(&mut LoadedInputs),
    note: fn(&[Input]) -> Vec<artifact::InputFile>,
    change: impl FnOnce(&mut [Object]),
) -> Result<ReadInput> {
    let config = config::load(global.config.as_deref())?;
    let assume = assumptions(&config, global)?;
    let ignored = options.ignored.clone();
    let progress = Progress::new(global.quiet, "reading");
    let mut loaded = LoadedInputs::new(options);
    add(&mut loaded);
    progress.pause();
    loaded.errors.iter().for_each(failure::print);
    report_notes(global, &loaded);
    if global.verbose > 0 {
        describe(&config, &loaded);
    }
    progress.stage("decoding");
    let (complete, stdin_read) = (loaded.errors.is_empty(), loaded.stdin_read());
    let (excluded, directories) = (std::mem::take(&mut loaded.excluded), std::mem::take(&mut loaded.directories));
    let default_namespace = loaded.options.namespace.take().unwrap_or_else(|| "default".to_owned());
    let inputs = note(&loaded.inputs);
    let options = DecodeOptions { default_namespace: default_namespace.clone(), is_from_server: false };
    let (mut decoded, mut diagnostics) = decode::decode(loaded.inputs, &options);
    let (left_out, unread) = left_out::split(decoded.foreign, &ignored);
    diagnostics.retain_mut(|it| !left_out::is_of_ignored_kind(it, &unread));
    change(&mut decoded.objects);
    progress.stage("resolving");
    let (cluster, found) = resolve::resolve(&decoded.objects, assume);
    diagnostics.extend(found);
    drop(progress);
    Ok(ReadInput {
        config,
        default_namespace,
        objects: decoded.objects,
        sources: decoded.sources,
        skipped: decoded.skipped.into_iter().collect(),
        left_out,
        unread,
        inputs,
        cluster,
        diagnostics,
        directories,
        excluded,
        complete,
        stdin_read,
    })
}

/// Prints the notes about the files.
fn report_notes(global: &GlobalArgs, loaded: &LoadedInputs) {
    for note in loaded.notes.iter().filter(|_| !global.quiet) {
        page::print_to_stderr(format_args!("note: {note}"));
    }
}

/// Reads the inputs of a command that answers questions. If they have errors or no objects, this is reported and the
/// result is `None`: there is no answer, and the exit code is 2.
pub(crate) fn read_valid(global: &GlobalArgs, paths: &InputPaths) -> Result<Option<ReadInput>> {
    let read = read_with(global, paths, load_options(global, &paths.options)?, |_| Vec::new())?;
    Ok(valid(global, read)?.filter(ReadInput::asks_something))
}

/// As [`read_valid`], with the digests of the inputs.
pub(crate) fn read_valid_with_digests(global: &GlobalArgs, paths: &InputPaths) -> Result<Option<ReadInput>> {
    let options = load_options(global, &paths.options)?;
    Ok(valid(global, read_with(global, paths, options, digests)?)?.filter(ReadInput::asks_something))
}

fn valid(global: &GlobalArgs, read: ReadInput) -> Result<Option<ReadInput>> {
    let mut read = read.with_excluded_reported(true);
    read.diagnostics.retain_mut(|diagnostic| diagnostic.severity == Severity::Error);
    if !read.diagnostics.is_empty() {
        let findings = findings::located(&read.sources, &read.diagnostics);
        let page = OutputPage::colored(page::color_on_stderr(global.color));
        text::findings(&read.sources, &findings, page, usize::MAX).print_to_stderr();
        failure::print(&with_hint(
            format!("the input has {}, so there is no answer", text::count(findings.len(), "error")),
            "`weir check` prints warnings too",
        ));
    }
    if !read.unread.is_empty() {
        failure::print(&left_out::refusal(&read.sources, &read.unread));
    }
    let is_valid = read.complete && read.diagnostics.is_empty() && read.unread.is_empty();
    Ok(is_valid.then_some(read))
}

fn digests(inputs: &[Input]) -> Vec<artifact::InputFile> {
    let digest = |it: &Input| artifact::InputFile { name: it.name.clone(), digest: Digest::of(&it.bytes) };
    inputs.iter().map(digest).collect()
}

fn add_with_lists(global: &GlobalArgs, loaded: &mut LoadedInputs, add: impl FnOnce(&mut LoadedInputs)) {
    add(loaded);
    global.deny_list.iter().for_each(|path| loaded.add_list(path, InputKind::DenyList));
    global.allow_list.iter().for_each(|path| loaded.add_list(path, InputKind::AllowList));
}

/// The assumptions about points that the API leaves open, for a command that reads no files.
#[cfg(feature = "enforce")]
pub(crate) fn chosen_assumptions(global: &GlobalArgs) -> Result<Assumptions> {
    assumptions(&config::load(global.config.as_deref())?, global)
}

fn assumptions(config: &Config, global: &GlobalArgs) -> Result<Assumptions> {
    let mut assume = Assumptions::default();
    for (key, value) in &config.assume {
        assume.set(key, value).with_context(|| format!("in [assume] of {}", config::FILE_NAME))?;
    }
    for (key, value) in &global.assume {
        assume.set(key, value).context("in --assume")?;
    }
    Ok(assume)
}

fn describe(config: &Config, loaded: &LoadedInputs) {
    let mut page = OutputPage::new();
    if let Some(path) = &config.path {
        page.line(format_args!("configuration: {}", path.display()));
    }
    for input in &loaded.inputs {
        page.line(format_args!("read {} ({} bytes)", input.name, input.bytes.len()));
    }
    page.print_to_stderr();
}

impl ReadInput {
    /// Prints how many files were left out. An answer without them may be another one, so commands that answer print
    /// this with `--quiet` too.
    fn with_excluded_reported(self, is_wanted: bool) -> Self {
        if is_wanted && !self.excluded.is_empty() {
            let (file, number) = (exclude::FILE_NAME, text::count(self.excluded.len(), "file"));
            page::print_to_stderr(format_args!("note: left out by `exclude` or {file}: {number}"));
        }
        self
    }

    /// Whether the input has objects; reports that it has none. Without objects every answer is "allowed", which would
    /// hide a wrong path.
    fn asks_something(&self) -> bool {
        if self.objects.is_empty() {
            failure::print(&with_hint(
                "the input has no objects that weir reads, so there is no answer",
                self.no_objects(),
            ));
        }
        !self.objects.is_empty()
    }

    /// The contents of an input without objects.
    pub(crate) fn no_objects(&self) -> String {
        let skipped: Vec<String> = self.skipped.iter().map(|(kind, number)| format!("{number} {kind}")).collect();
        match skipped.is_empty() {
            true => "the files are empty; are they generated by a step that did not run?".to_owned(),
            false => format!("it has only other kinds: {}", skipped.join(", ")),
        }
    }

    /// The names of the kinds of policies that are not read and not ignored.
    pub(crate) fn unread_kinds(&self) -> BTreeSet<String> {
        self.unread.iter().map(|it| it.kind.name()).collect()
    }

    pub(crate) fn counts(&self) -> ObjectCounts {
        ObjectCounts::of(&self.objects)
    }
}
