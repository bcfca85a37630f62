//! Draws findings for people, for programs, for code scanning and for GitHub, all from one list.

pub(crate) mod github;
pub(crate) mod json;
pub(crate) mod sarif;
pub(crate) mod text;

use weir_objects::diagnostic::{Diagnostic, Diagnostics, FindingPlace, PlaceLabel, Severity};
use weir_objects::source::SourceMap;

use crate::locate::{Identity, Location, Locator, Position};

/// A finding and its location.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) diagnostic: Diagnostic,
    pub(crate) location: Option<Spot>,
    pub(crate) related: Vec<(Option<Spot>, String)>,
    /// The object it is about, and the field in it.
    pub(crate) object: Option<Identity>,
    pub(crate) field: Option<String>,
}

/// A location with its lines.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) at: Location,
    pub(crate) file: String,
    pub(crate) start: Position,
    pub(crate) end: Position,
}

/// Locates findings, sorts them by position and drops repetitions of a finding at the same place.
pub(crate) fn findings(sources: &SourceMap, diagnostics: &Diagnostics) -> Vec<Finding> {
    let mut locator = Locator::new(sources);
    let mut ordered: Vec<&Diagnostic> = diagnostics.iter().collect();
    ordered.sort_by_key(|diagnostic| object_of(&diagnostic.primary.place));
    let mut findings: Vec<Finding> = ordered.into_iter().map(|it| finding(&mut locator, it)).collect();
    // Labels at other objects are located last: in between, they would spoil the order in which documents are parsed
    // again.
    for finding in &mut findings {
        let secondary = &finding.diagnostic.secondary;
        finding.related = secondary.iter().map(|label| (spot(&mut locator, label), label.text.clone())).collect();
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

fn finding(locator: &mut Locator<'_>, diagnostic: &Diagnostic) -> Finding {
    let origin = match &diagnostic.primary.place {
        FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
            Some(origin)
        }
        FindingPlace::Text(_) => None,
    };
    Finding {
        location: spot(locator, &diagnostic.primary),
        related: Vec::new(),
        object: origin.and_then(|origin| locator.identity(origin.object)),
        field: origin.map(|origin| origin.path.to_string()).filter(|path| !path.is_empty()),
        diagnostic: diagnostic.clone(),
    }
}

fn spot(locator: &mut Locator<'_>, label: &PlaceLabel) -> Option<Spot> {
    let at = locator.locate(&label.place)?;
    Some(Spot {
        file: locator.sources().file(at.file).name.clone(),
        start: locator.position(at.file, at.span.start),
        end: locator.position(at.file, at.span.end),
        at,
    })
}

fn sort_key(finding: &Finding) -> (Option<&Location>, &str, &str) {
    let at = finding.location.as_ref().map(|spot| &spot.at);
    (at, finding.diagnostic.code.name, &finding.diagnostic.message)
}

/// The number of findings of each severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) errors: usize,
    pub(crate) warnings: usize,
    pub(crate) notes: usize,
}

impl Tally {
    pub(crate) fn of(findings: &[Finding]) -> Self {
        let count = |severity| findings.iter().filter(|it| it.diagnostic.severity == severity).count();
        Self { errors: count(Severity::Error), warnings: count(Severity::Warning), notes: count(Severity::Note) }
    }
}
