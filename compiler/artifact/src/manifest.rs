//! The manifest: the inputs of the artifact, its costs, and the rules behind each entry.
//!
//! JSON whose bytes depend only on the input: it contains no time, no path of the machine that compiled, and no machine
//! name. The memory depends on the number of possible CPUs, which the compiler does not know; so it is given in two
//! parts.

use super::json::Json;
use super::memory::{self, MemorySize};
use super::{Artifact, Digest, LinkError, Provenance};
use crate::layout::endpoint;
use crate::map_image::MapImage;
use crate::structure::{LookupSet, Structure, StructureNote};
use weir_ebpf::limits::LimitsReport;
use weir_ebpf::target::Target;
use weir_objects::syntax::{Span, SyntaxNode, SyntaxValue, json};

/// The version of the manifest's format.
const VERSION: u64 = 2;

/// An input file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// The file's name, as the user gave it.
    pub name: String,
    /// The digest of its bytes.
    pub digest: Digest,
}

/// The content of the manifest that only the caller knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The files that were read.
    pub inputs: Vec<InputFile>,
    /// The objects in them, as [`super::objects()`] writes them; they have a section of their own.
    pub objects: String,
    /// The oldest kernel that the programs load on.
    pub target: Target,
    /// The node whose pods are local; `None` for every pod.
    pub node: Option<String>,
    /// Numbers of classes, atoms, policies and so on, by name.
    pub counts: Vec<(String, u64)>,
    /// The structure chosen for each set, with the reason.
    pub structures: Vec<StructureNote>,
    /// The questions that the API's text leaves open, with the assumed answers.
    pub assumptions: Vec<(String, String)>,
    /// Kinds of policies that are not read and were ignored, with the number of objects of each.
    pub left_out: Vec<(String, u64)>,
    /// The rules and lists behind each entry.
    pub provenance: Provenance,
}

/// The text of the manifest, in place of the content of `text`.
pub(super) fn write(
    artifact: &Artifact,
    reports: &[LimitsReport],
    description: &Description,
    mut text: String,
) -> Result<String, LinkError> {
    let assumptions = description.assumptions.iter().map(|(key, it)| (key.as_str(), it.as_str().into()));
    let (major, minor) = description.target.kernel;
    let programs = super::view::programs(artifact).zip(reports);
    let programs = programs.map(|((name, _), report)| program(name, report)).collect::<Result<_, _>>()?;
    let node = description.node.as_ref().map(|node| ("node", node.as_str().into()));
    let head = [
        ("manifest", VERSION.into()),
        ("weir", env!("CARGO_PKG_VERSION").into()),
        ("generation", artifact.generation()?.to_string().into()),
        ("target", format!("linux {major}.{minor}").into()),
    ];
    let rest = [
        ("inputs", Json::List(description.inputs.iter().map(input).collect())),
        ("assumptions", Json::object(assumptions)),
        ("counts", Json::object(description.counts.iter().map(|(key, count)| (key.as_str(), (*count).into())))),
        ("structures", Json::List(description.structures.iter().map(note).collect())),
        ("programs", Json::List(programs)),
        ("maps", Json::List(artifact.maps.iter().map(map).collect())),
        ("map_bytes", bytes(artifact.maps.iter().map(memory::full).sum())),
        ("endpoints", Json::List(artifact.endpoints.iter().map(local_endpoint).collect())),
    ];
    let left_out = description.left_out.iter().map(|(kind, count)| (kind.as_str(), (*count).into()));
    let left_out = (!description.left_out.is_empty()).then(|| ("left_out", Json::object(left_out)));
    let provenance = description.provenance.json();
    let members = head.into_iter().chain(node).chain(left_out).chain(rest).chain(provenance);
    text.clear();
    text.reserve(description.provenance.room());
    Json::object(members).write_text(&mut text);
    // After a much larger manifest, its memory is not kept.
    text.shrink_to(2 * text.len());
    Ok(text)
}

fn note(note: &StructureNote) -> Json<'_> {
    Json::object([
        ("place", note.place.name().into()),
        ("structure", note.structure.name().into()),
        ("entries", (note.entries as u64).into()),
        ("bytes", note.bytes.into()),
        ("why", note.why.as_str().into()),
    ])
}

/// Reads the notes from a manifest.
pub(super) fn notes(manifest: &str) -> Vec<StructureNote> {
    let Ok(root) = json::parse(manifest, Span::of(manifest)) else { return Vec::new() };
    let Some(SyntaxValue::Seq(notes)) = member(&root, "structures") else { return Vec::new() };
    notes.iter().filter_map(read_note).collect()
}

fn read_note(node: &SyntaxNode<'_>) -> Option<StructureNote> {
    let text = |name| match member(node, name)? {
        SyntaxValue::Str(text) => Some(text.to_string()),
        _ => None,
    };
    let number = |name| match member(node, name)? {
        SyntaxValue::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let place = LookupSet::ALL.into_iter().find(|it| Some(it.name()) == text("place").as_deref())?;
    let structure = Structure::ALL.into_iter().find(|it| Some(it.name()) == text("structure").as_deref())?;
    let entries = usize::try_from(number("entries")?).ok()?;
    Some(StructureNote { place, structure, entries, bytes: number("bytes")?, why: text("why")? })
}

fn member<'n, 't>(node: &'n SyntaxNode<'t>, name: &str) -> Option<&'n SyntaxValue<'t>> {
    let SyntaxValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.key == name).map(|entry| &entry.value.value)
}

fn input(input: &InputFile) -> Json<'_> {
    Json::object([("name", input.name.as_str().into()), ("sha256", input.digest.to_string().into())])
}

fn program(name: &'static str, report: &LimitsReport) -> Result<Json<'static>, LinkError> {
    if let Some(violation) = report.violations.first() {
        return Err(LinkError::Limits(violation.to_string()));
    }
    let mut members = vec![("name", name.into()), ("instructions", report.slots.into())];
    members.extend(report.longest_path.map(|steps| ("longest_path", steps.into())));
    members.push(("stack_bytes", report.stack.into()));
    Ok(Json::object(members))
}

fn map(map: &MapImage) -> Json<'_> {
    Json::object([
        ("name", map.name.name().into()),
        ("type", map.spec.kind.name().into()),
        ("entries", (map.entries.len() as u64).into()),
        ("max_entries", map.spec.max_entries.into()),
        ("bytes", bytes(memory::full(map))),
        ("charged_bytes", bytes(memory::charged(map))),
    ])
}

fn bytes(bytes: MemorySize) -> Json<'static> {
    Json::object([("fixed", bytes.fixed.into()), ("per_cpu", bytes.per_cpu.into())])
}

fn local_endpoint(local: &super::NamedEndpoint) -> Json<'_> {
    let at = endpoint::SUBJECT as usize;
    let subject = local.value.get(at..).and_then(|rest| rest.first_chunk()).map(|it| u32::from_le_bytes(*it));
    let name = format!("{}/{}", local.namespace, local.name);
    Json::object([("name", name.into()), ("subject", subject.unwrap_or(u32::MAX).into())])
}
