//! `weir suggest`: the smallest change of a policy that allows or denies a flow, with the proof that it does.
//!
//! The proof does not trust the search: the edited files are read as any input, the question is asked again, and both
//! inputs are compared.

mod output;

use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};
use weir_model::eval::{Flow, Oracle, Verdict};
use weir_objects::decode::DecodeOptions;
use weir_policy::endpoint_lookup::EndpointLookup;
use weir_policy::possible_pods;
use weir_policy::question::{FlowQuestion, QuestionEnd};
use weir_suggest::change::{self, Change, ChangeError};
use weir_suggest::edit::Edit;
use weir_suggest::rewrite::{self, EditedFile};

use super::CommandOutcome;
use super::diff;
use crate::args::{GlobalArgs, InputPaths, SuggestArgs, SuggestFormat};
use crate::failure::with_hint;
use crate::page::{self, OutputPage, Progress};
use crate::read::{self, ReadInput};

/// Rows of the comparison that are shown as text.
const MOST_ROWS: usize = 20;

/// A change that has been verified.
struct Proposal<'a> {
    arguments: &'a SuggestArgs,
    change: Change,
    files: Vec<EditedFile>,
    objects: Vec<ProposedObject>,
    report: diff::ChangeReport,
}

/// An object with the change.
struct ProposedObject {
    namespace: String,
    name: String,
    yaml: String,
}

pub(crate) fn run(global: &GlobalArgs, arguments: &SuggestArgs) -> Result<CommandOutcome> {
    for end in [&arguments.from, &arguments.to] {
        let described = possible_pods::parse(end);
        ensure!(described.is_none(), "`{end}`: a change is proposed for pods and workloads of the input only");
    }
    let Some(read) = read::read_valid(global, &arguments.input)? else { return Ok(CommandOutcome::Failed) };
    let wanted = wanted(arguments);
    let (flows, verdict) = ask(&read, arguments)?;
    if verdict == wanted {
        let word = if wanted == Verdict::Allow { "allowed" } else { "denied" };
        page::print_to_stderr(format_args!("nothing to change: the flow is {word}"));
        return Ok(CommandOutcome::Clean);
    }
    let progress = Progress::new(global.quiet, "searching for the smallest change");
    let change = change::change(&read.objects, read.cluster.assume, &flows, wanted).map_err(failed)?;
    let edits: Vec<Edit> = change.steps.iter().map(|it| it.edit.clone()).collect();
    let mut files = rewrite::rewrite(&read.sources, &read.objects, &options(&read), &edits)
        .map_err(|error| with_hint(error.to_string(), "write the list with one item on each line, without anchors"))?;
    place_new_files(&mut files, &arguments.input);
    progress.pause();
    let Some(head) = read_again(global, &files)? else { return Ok(CommandOutcome::Failed) };
    if ask(&head, arguments)?.1 != wanted {
        panic!("the changed files do not give the wanted verdict: {edits:?}");
    }
    let objects = edits.iter().filter_map(|edit| proposed(edit, &read, &head)).collect();
    let page = match arguments.output {
        SuggestFormat::Text => OutputPage::for_stdout(global.color),
        _ => OutputPage::new(),
    };
    let left_out = read.left_out.clone();
    progress.stage("comparing");
    let report = diff::report([read, head], MOST_ROWS, page.empty_like())?;
    drop(progress);
    let proposal = Proposal { arguments, change, files, objects: unique(objects), report };
    let mut page = proposal.page(page)?;
    left_out.mark(&mut page, arguments.output)?;
    page.print()?;
    proposal.print_notes();
    Ok(CommandOutcome::Clean)
}

fn wanted(arguments: &SuggestArgs) -> Verdict {
    if arguments.deny { Verdict::Deny } else { Verdict::Allow }
}

/// The flows of the question, and the verdict on all of them.
fn ask(read: &ReadInput, arguments: &SuggestArgs) -> Result<(Vec<Flow>, Verdict)> {
    let lookup = EndpointLookup { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    let question = FlowQuestion {
        from: QuestionEnd::Named(&arguments.from),
        to: QuestionEnd::Named(&arguments.to),
        port: arguments.port.as_deref(),
        protocol: arguments.proto.as_deref(),
    };
    let answer = question.ask(&lookup, &mut oracle);
    let answer = answer.map_err(|reason| match question.hint(&lookup, oracle.directory()) {
        Some(hint) => with_hint(reason, hint),
        None => anyhow!(reason),
    })?;
    let Some(verdict) = answer.verdict() else { bail!("the verdict depends on pods that are not in the input") };
    // A service is denied only if each of its backends is.
    let is_denied = |it: &weir_policy::question::JudgedPacket| it.judgement.verdict() == Verdict::Deny;
    let verdict = match arguments.deny && !answer.packets.iter().all(is_denied) {
        true => Verdict::Allow,
        false => verdict,
    };
    Ok((answer.packets.into_iter().map(|it| it.flow).collect(), verdict))
}

fn failed(error: ChangeError) -> anyhow::Error {
    let hint = match &error {
        ChangeError::OtherKind { .. } => "`weir explain` shows the entry or rule; change it there",
        ChangeError::Shared => "name a pod or a workload as the destination",
        _ => "`weir explain` shows what decides",
    };
    with_hint(error.to_string(), hint)
}

fn options(read: &ReadInput) -> DecodeOptions {
    DecodeOptions { default_namespace: read.default_namespace.clone(), is_from_server: false }
}

/// New files are proposed beside the first path of the input.
fn place_new_files(files: &mut [EditedFile], input: &InputPaths) {
    let first = input.paths.first().map(|it| it.as_path()).filter(|it| *it != Path::new("-"));
    let directory = first.and_then(|it| if it.is_dir() { Some(it) } else { it.parent() });
    for file in files.iter_mut().filter(|it| it.before.is_none()) {
        let directory = directory.unwrap_or(Path::new(""));
        let stem = file.name.trim_end_matches(".yaml").to_owned();
        let numbered = (2..).map(|number| format!("{stem}-{number}.yaml"));
        let mut paths = std::iter::once(file.name.clone()).chain(numbered).map(|it| directory.join(it));
        file.name = paths.find(|it| !it.exists()).unwrap_or_default().display().to_string();
    }
}

fn read_again(global: &GlobalArgs, files: &[EditedFile]) -> Result<Option<ReadInput>> {
    // The lists of the command line are among the files.
    read::read_valid_without_lists(global, |loaded| loaded.inputs.extend(rewrite::inputs(files)))
}

/// The object of an edit, as text of the changed files.
fn proposed(edit: &Edit, read: &ReadInput, head: &ReadInput) -> Option<ProposedObject> {
    let (namespace, name) = match edit {
        Edit::Create(new) => (new.namespace.clone(), new.name.clone()),
        _ => {
            // The object may be a policy that an earlier edit has created.
            let object = read.objects.iter().chain(&head.objects).find(|it| Some(it.id) == edit.object())?;
            (object.meta.namespace.to_string(), object.meta.name.clone())
        }
    };
    let is_it = |it: &&weir_objects::k8s::Object| {
        it.body.kind() == "NetworkPolicy" && it.meta.namespace == namespace && it.meta.name == name
    };
    let object = head.objects.iter().find(is_it)?;
    let source = head.sources.object(object.id).filter(|it| it.items.is_empty());
    let yaml = match (source, &object.body) {
        (Some(source), _) => document(source.span.slice(&head.sources.file(source.file).text)),
        (None, weir_objects::k8s::Body::NetworkPolicy(policy)) => {
            weir_suggest::tree::policy(&namespace, &name, policy).block(0)
        }
        (None, _) => return None,
    };
    Some(ProposedObject { namespace, name, yaml })
}

/// A document without the line that separates it from the one before.
fn document(text: &str) -> String {
    let text = text.trim();
    text.strip_prefix("---").unwrap_or(text).trim_start().to_owned() + "\n"
}

/// Each object once: several edits may be of one object.
fn unique(objects: Vec<ProposedObject>) -> Vec<ProposedObject> {
    let mut unique: Vec<ProposedObject> = Vec::new();
    for object in objects {
        let is_same = |it: &ProposedObject| (&it.namespace, &it.name) == (&object.namespace, &object.name);
        if !unique.iter().any(is_same) {
            unique.push(object);
        }
    }
    unique
}
