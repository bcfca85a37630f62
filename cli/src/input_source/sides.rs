//! Both sides of a comparison.
//!
//! With a live cluster on one side, two questions can be meant. `weir diff cluster: PATH` asks what `kubectl apply -f
//! PATH` would change: the head is the cluster with the objects of PATH merged into those with the same names
//! ([`applied`]), and all other objects stay. With `--prune`, or with the cluster as the head, PATH is the whole state.
//! If it then has no pods and no workloads, it is the whole state of the kinds that it has, and the others are those of
//! the cluster.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;
use weir_classes::index::Key;
use weir_model::Assumptions;
use weir_objects::decode::{ForeignPolicyKind, Input, InputKind};

use super::refused::{self, ApplyTarget};
use super::{InputSource, Renderer, applied, cluster_name, read_cluster, unused_options};
use crate::args::{GlobalArgs, InputOptions};
use crate::failure::with_hint;
use crate::left_out::LeftOut;
use crate::live_cluster::LiveObjects;
use crate::load::{LoadOptions, LoadedInputs, ReadDirectory};
use crate::page;
use crate::read::{self, ReadInput};

/// Both sides, and the question that they answer.
pub(crate) struct Sides {
    /// Base and head.
    pub(crate) read: [ReadInput; 2],
    /// Which of the two questions about a cluster is answered; `None` without a cluster.
    pub(crate) question: Option<String>,
    /// The files of either side that were left out.
    pub(crate) excluded: Vec<String>,
}

/// A side with the texts that it was read from.
struct SideTexts {
    read: ReadInput,
    texts: Vec<Input>,
}

/// Reads both sides; `None` if one has errors, which are then reported already.
pub(crate) fn read_both(
    global: &GlobalArgs,
    options: &InputOptions,
    sources: &[InputSource<'_>; 2],
    prune: bool,
) -> Result<Option<Sides>> {
    if sources.iter().all(InputSource::reads_stdin) {
        return Err(with_hint("standard input (`-`) is named twice", "it can be read only once"));
    }
    let is_cluster = |source: &InputSource<'_>| matches!(source, InputSource::Cluster { .. });
    let mut options = read::load_options(global, options)?;
    unused_options(&options, sources.iter().any(is_cluster))?;
    let is_proposal = is_cluster(&sources[0]) && !is_cluster(&sources[1]);
    if prune && !is_proposal {
        let hint = "`weir diff cluster: PATH --prune` compares the cluster with PATH as the whole state";
        return Err(with_hint("--prune has no effect: the base is not a cluster, or the head is one", hint));
    }
    let mut lives: [Option<LiveObjects>; 2] = [None, None];
    for (source, live) in sources.iter().zip(&mut lives) {
        if let InputSource::Cluster { context } = source {
            let objects = read_cluster(*context, &options)?;
            options.namespace.get_or_insert_with(|| objects.namespace.clone());
            *live = Some(objects);
        }
    }
    let Some(base) = side(global, &options, &sources[0], lives[0].as_ref())? else { return Ok(None) };
    let Some(head) = side(global, &options, &sources[1], lives[1].as_ref())? else { return Ok(None) };
    refuse_two_ways([&base.read, &head.read])?;
    let excluded = [&base, &head].into_iter().flat_map(|it| it.read.excluded.clone()).collect();
    let compared = with_cluster(global, &options, sources, lives, [base, head], prune)?;
    Ok(compared.map(|(read, question)| Sides { read, question, excluded }))
}

/// Refuses to compare a directory that is rendered with one whose files are read as they are: a kustomization or chart
/// that a change adds would take files out of the head that the base has.
fn refuse_two_ways(sides: [&ReadInput; 2]) -> Result<()> {
    const WAYS: [Option<Renderer>; 3] = [None, Some(Renderer::Kustomize), Some(Renderer::Helm)];
    let of = |side: usize, way| sides[side].directories.iter().filter(move |it| it.renderer == way);
    let more_often = |side: usize, other: usize| {
        let way = WAYS.into_iter().find(|way| of(side, *way).count() > of(other, *way).count())?;
        of(side, way).next_back()
    };
    let (Some(base), Some(head)) = (more_often(0, 1), more_often(1, 0)) else { return Ok(()) };
    let shown = |it: &ReadDirectory| match it.renderer {
        Some(renderer) => format!("{} is {}, and other files in it are not read", it.name, renderer.name()),
        None => format!("the files of {} are read as they are", it.name),
    };
    Err(with_hint(
        format!("the sides are read in two ways. Base: {}; head: {}", shown(base), shown(head)),
        "compare directories that are both rendered, or files: give the rendered objects, or 'DIR/*.yaml'",
    ))
}

fn side(
    global: &GlobalArgs,
    options: &LoadOptions,
    source: &InputSource<'_>,
    live: Option<&LiveObjects>,
) -> Result<Option<SideTexts>> {
    if let InputSource::Artifact(path) = source {
        return Ok(read_artifact(global, path)?.map(|read| SideTexts { read, texts: Vec::new() }));
    }
    let mut texts = Vec::new();
    let read = read::read_valid_from(global, options.clone(), |loaded| {
        match (source, live) {
            (InputSource::Cluster { context }, Some(live)) => {
                loaded.add_text(cluster_name(*context), live.text.clone())
            }
            _ => {
                let added = source.add(loaded);
                loaded.errors.extend(added.err());
            }
        }
        texts.clone_from(&loaded.inputs);
    })?;
    Ok(read.map(|read| SideTexts { read, texts }))
}

/// The sides, after the objects that a proposal takes from the cluster were added to it.
fn with_cluster(
    global: &GlobalArgs,
    options: &LoadOptions,
    sources: &[InputSource<'_>; 2],
    lives: [Option<LiveObjects>; 2],
    [base, head]: [SideTexts; 2],
    prune: bool,
) -> Result<Option<([ReadInput; 2], Option<String>)>> {
    let cluster = |index: usize| match &sources[index] {
        InputSource::Cluster { context } => cluster_name(*context),
        _ => String::new(),
    };
    let whole = "the files are the whole state: objects that they do not name count as removed".to_owned();
    Ok(match lives {
        [None, None] | [Some(_), Some(_)] => Some(([base.read, head.read], None)),
        [Some(_), None] if matches!(sources[1], InputSource::Artifact(_)) => {
            Some(([base.read, head.read], Some(whole)))
        }
        [Some(live), None] if !prune => {
            let head = apply(global, options, head, &NamedList::parse(cluster(0), &live)?)?;
            let question = "the head is the cluster with the objects of the files applied, as `kubectl apply` does; \
                            objects that they do not name stay (--prune: the files are the whole state)";
            head.map(|head| ([base.read, head], Some(question.to_owned())))
        }
        [Some(live), None] => {
            let head = complete(global, options, head, &NamedList::parse(cluster(0), &live)?)?;
            head.map(|head| ([base.read, head], Some(whole)))
        }
        [None, Some(live)] => {
            let base = complete(global, options, base, &NamedList::parse(cluster(1), &live)?)?;
            base.map(|base| ([base, head.read], Some(whole)))
        }
    })
}

/// The objects of a cluster as JSON.
pub(super) struct NamedList {
    name: String,
    pub(super) items: Vec<Value>,
    /// The only namespace that was read.
    pub(super) only: Option<String>,
    /// Kinds that the server does not serve.
    pub(super) unserved: Vec<&'static str>,
}

impl NamedList {
    fn parse(name: String, live: &LiveObjects) -> Result<Self> {
        let mut list: Value =
            serde_json::from_slice(&live.text).with_context(|| format!("the objects of {name} are not JSON"))?;
        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(Self { name, items, only: live.only.clone(), unserved: live.unserved.clone() })
    }

    /// The text of the objects that `is_kept` accepts.
    fn text(&self, mut is_kept: impl FnMut(&Value) -> bool) -> Result<Input> {
        let items: Vec<&Value> = self.items.iter().filter(|it| is_kept(it)).collect();
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
        Ok(Input { name: self.name.clone(), bytes: serde_json::to_vec_pretty(&list)?, kind: InputKind::Manifest })
    }
}

/// The cluster with the objects of a side applied.
fn apply(global: &GlobalArgs, options: &LoadOptions, side: SideTexts, live: &NamedList) -> Result<Option<ReadInput>> {
    if side.read.objects.is_empty() {
        let hint = "name files with the objects that would be applied; `--prune` compares with these files alone";
        return Err(with_hint("nothing is proposed: the input contains no objects of a kind that weir reads", hint));
    }
    refused::generated_names(&side.read)?;
    let mut applied = applied::objects(&side.read, &live.items)?;
    if !global.quiet {
        for note in ApplyTarget::new(live).notes(&side.read) {
            page::print_to_stderr(format_args!("note: {note}"));
        }
        applied.print_notes();
    }
    let named: BTreeSet<Key> = side.read.objects.iter().map(Key::of).collect();
    let rest = live.text(|item| is_foreign(item) || !named.contains(&key(item)))?;
    let mut texts = side.texts;
    texts.push(rest);
    let set = |loaded: &mut LoadedInputs| loaded.inputs = texts;
    read::read_valid_changed(global, options.clone(), set, |objects| applied.put_into(objects))
}

/// The name of a live object.
pub(super) fn key(item: &Value) -> Key {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let meta = &item["metadata"];
    Key { kind: text(&item["kind"]), namespace: text(&meta["namespace"]), name: text(&meta["name"]) }
}

/// The side as the whole state. If it has no pods and no workloads, kinds that it lacks are taken from the cluster.
fn complete(
    global: &GlobalArgs,
    options: &LoadOptions,
    side: SideTexts,
    live: &NamedList,
) -> Result<Option<ReadInput>> {
    if !side.read.cluster.endpoints.is_empty() {
        return Ok(Some(side.read));
    }
    if side.read.objects.is_empty() {
        let hint =
            "name files with policies; to compare with no policies at all, name files that contain only the pods";
        return Err(with_hint("nothing is proposed: the input contains no objects of a kind that weir reads", hint));
    }
    let has: BTreeSet<String> = side.read.objects.iter().map(|object| Key::of(object).kind).collect();
    let is_taken = |item: &Value| item["kind"].as_str().is_some_and(|kind| !has.contains(kind) || is_foreign(item));
    let read = live.items.iter().filter(|it| is_taken(it) && !is_foreign(it));
    let taken: BTreeSet<&str> = read.filter_map(|item| item["kind"].as_str()).collect();
    if !global.quiet {
        let taken: Vec<&str> = taken.into_iter().collect();
        page::print_to_stderr(format_args!(
            "note: your files contain no pods or workloads; taken from the cluster: {}",
            taken.join(", ")
        ));
    }
    let mut texts = side.texts;
    texts.push(live.text(is_taken)?);
    read::read_valid_from(global, options.clone(), |loaded| loaded.inputs = texts)
}

/// Whether the object is a policy that is not read: its kind may have the name of one that is.
fn is_foreign(item: &Value) -> bool {
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
    let objects = artifact.objects.into_bytes();
    let Some(mut read) = read::read_valid_without_lists(global, |loaded| loaded.add_text(path.to_owned(), objects))?
    else {
        return Ok(None);
    };
    let manifest: Value =
        serde_json::from_str(&artifact.manifest).with_context(|| format!("the manifest of {path} cannot be read"))?;
    read.left_out = LeftOut::of_manifest(&manifest);
    if let Some((key, value)) = other_assumption(&manifest, read.cluster.assume, path)? {
        let hint = format!("compare with `--assume {key}={value}`");
        return Err(with_hint(format!("{path} was compiled with {key}={value}"), hint));
    }
    Ok(Some(read))
}

/// An assumption that an artifact was compiled with, if it is another one than the present one.
pub(crate) fn other_assumption(
    manifest: &Value,
    present: Assumptions,
    path: impl std::fmt::Display,
) -> Result<Option<(String, String)>> {
    for (key, value) in manifest["assumptions"].as_object().into_iter().flatten() {
        let (mut assume, value) = (present, value.as_str().unwrap_or_default());
        assume.set(key, value).with_context(|| format!("in the manifest of {path}"))?;
        if assume != present {
            return Ok(Some((key.clone(), value.to_owned())));
        }
    }
    Ok(None)
}
