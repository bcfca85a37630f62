//! Findings with their places in the files, in the order of the files.

use weir_objects::diagnostic::{Diagnostic, Diagnostics, FindingPlace, PlaceLabel, Severity};
use weir_objects::k8s::{Body, Object};
use weir_objects::source::SourceMap;

use crate::answers::{CheckLocation, CheckObject, CheckRelated, Finding, ObjectCounts, SeverityCounts};
use crate::locator::{LineColumn, Location, Locator, ObjectIdentity};

/// A finding and its location.
#[derive(Clone, Debug)]
pub struct LocatedFinding {
    /// The finding.
    pub diagnostic: Diagnostic,
    /// `None` for an object without text.
    pub location: Option<LocatedSpan>,
    /// Labels at other places.
    pub related: Vec<RelatedLabel>,
    /// The object it is about, and the field in it.
    pub object: Option<ObjectIdentity>,
    /// As the API server prints it.
    pub field: Option<String>,
}

/// A label at another place that has to do with a finding.
#[derive(Clone, Debug)]
pub struct RelatedLabel {
    /// `None` for an object without text.
    pub location: Option<LocatedSpan>,
    /// The message at this place.
    pub text: String,
}

/// A location with its lines.
#[derive(Clone, Debug)]
pub struct LocatedSpan {
    /// The bytes.
    pub at: Location,
    /// The file's name.
    pub file: String,
    /// The first character.
    pub start: LineColumn,
    /// One past the last character.
    pub end: LineColumn,
}

/// Locates findings, sorts them by position and drops repetitions of a finding at the same place.
pub fn located(sources: &SourceMap, diagnostics: &Diagnostics) -> Vec<LocatedFinding> {
    let mut locator = Locator::new(sources);
    let mut ordered: Vec<&Diagnostic> = diagnostics.iter().collect();
    ordered.sort_by_key(|diagnostic| object_of(&diagnostic.primary.place));
    let mut findings: Vec<LocatedFinding> = ordered.into_iter().map(|it| finding(&mut locator, it)).collect();
    // Labels at other objects are located last: in between, they would spoil the order in which documents are parsed
    // again.
    for finding in &mut findings {
        let secondary = &finding.diagnostic.secondary;
        finding.related = secondary
            .iter()
            .map(|label| RelatedLabel { location: spot(&mut locator, label), text: label.text.clone() })
            .collect();
    }
    findings.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
    findings.dedup_by(|a, b| sort_key(a) == sort_key(b));
    findings
}

fn object_of(place: &FindingPlace) -> Option<u32> {
    match place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
            Some(origin.object.0)
        }
        FindingPlace::Text(_) => None,
    }
}

fn finding(locator: &mut Locator<'_>, diagnostic: &Diagnostic) -> LocatedFinding {
    let origin = match &diagnostic.primary.place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
            Some(origin)
        }
        FindingPlace::Text(_) => None,
    };
    LocatedFinding {
        location: spot(locator, &diagnostic.primary),
        related: Vec::new(),
        object: origin.and_then(|origin| locator.identity(origin.object)),
        field: origin.map(|origin| origin.path.to_string()).filter(|path| !path.is_empty()),
        diagnostic: diagnostic.clone(),
    }
}

fn spot(locator: &mut Locator<'_>, label: &PlaceLabel) -> Option<LocatedSpan> {
    let at = locator.locate(&label.place)?;
    Some(LocatedSpan {
        file: locator.sources().file(at.file).name.clone(),
        start: locator.position(at.file, at.span.start),
        end: locator.position(at.file, at.span.end),
        at,
    })
}

fn sort_key(finding: &LocatedFinding) -> (Option<&Location>, &str, &str) {
    let at = finding.location.as_ref().map(|spot| &spot.at);
    (at, finding.diagnostic.code.name, &finding.diagnostic.message)
}

impl SeverityCounts {
    /// The findings of each severity.
    pub fn of(findings: &[LocatedFinding]) -> Self {
        let count = |severity| findings.iter().filter(|it| it.diagnostic.severity == severity).count();
        Self { errors: count(Severity::Error), warnings: count(Severity::Warning), notes: count(Severity::Note) }
    }
}

impl ObjectCounts {
    /// The objects of each kind. EndpointSlices are parts of services.
    pub fn of(objects: &[Object]) -> Self {
        let mut counts = Self::default();
        for object in objects {
            *match object.body {
                Body::NetworkPolicy(_) => &mut counts.policies,
                Body::ClusterPolicy(_) => &mut counts.cluster_policies,
                Body::CidrList(_) => &mut counts.lists,
                Body::Pod(_) => &mut counts.pods,
                Body::Workload(_) => &mut counts.workloads,
                Body::Service(_) => &mut counts.services,
                Body::Namespace => &mut counts.namespaces,
                Body::Node(_) => &mut counts.nodes,
                Body::EndpointSlice(_) => continue,
            } += 1;
        }
        counts
    }
}

impl Finding {
    /// The finding as data.
    pub fn of(finding: &LocatedFinding) -> Self {
        let diagnostic = &finding.diagnostic;
        Self {
            code: diagnostic.code.name.to_owned(),
            severity: diagnostic.severity.to_string(),
            message: diagnostic.message.clone(),
            location: finding.location.as_ref().map(CheckLocation::of),
            object: finding.object.as_ref().map(|object| CheckObject {
                kind: object.kind.clone(),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
            }),
            field: finding.field.clone(),
            label: diagnostic.primary.text.clone(),
            related: finding.related.iter().map(CheckRelated::of).collect(),
            notes: diagnostic.notes.clone(),
            help: diagnostic.help.clone(),
        }
    }
}

impl CheckRelated {
    fn of(label: &RelatedLabel) -> Self {
        Self { location: label.location.as_ref().map(CheckLocation::of), message: label.text.clone() }
    }
}

impl CheckLocation {
    fn of(span: &LocatedSpan) -> Self {
        Self {
            file: span.file.clone(),
            document: span.at.document,
            line: span.start.line,
            column: span.start.column,
            end_line: span.end.line,
            end_column: span.end.column,
        }
    }
}
