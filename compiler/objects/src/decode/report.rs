//! The findings about one object: limited in number, and without consequences of an error already reported.

use crate::diagnostic::{Diagnostic, Severity};
use crate::origin::{FieldOrigin, FieldPath, ObjectId, PathStep};

use super::codes;
use super::trail::Trail;

/// Findings in one object beyond this number are only counted: they would say nothing new.
pub(super) const LIMIT: usize = 100;

/// Collects the findings about one object.
#[derive(Debug)]
pub(super) struct ObjectFindings {
    object: ObjectId,
    /// Whether an API server has sent the object.
    is_from_server: bool,
    /// The largest number of errors, and of warnings, to keep. Further ones are only counted.
    limit: usize,
    list: Vec<Diagnostic>,
    /// Fields whose values could not be read.
    blemishes: Vec<FieldPath>,
    errors: usize,
    warnings: usize,
}

impl ObjectFindings {
    /// A report without findings.
    pub(super) fn new(object: ObjectId, limit: usize, is_from_server: bool) -> Self {
        Self { object, is_from_server, limit, list: Vec::new(), blemishes: Vec::new(), errors: 0, warnings: 0 }
    }

    /// Whether an API server has sent the object, so that the fields of a newer API may be in it.
    pub(super) fn is_from_server(&self) -> bool {
        self.is_from_server
    }

    /// The object's number.
    pub(super) fn object(&self) -> ObjectId {
        self.object
    }

    /// The origin of a field of the object.
    pub(super) fn origin(&self, at: &Trail<'_>) -> FieldOrigin {
        FieldOrigin::new(self.object, at.path())
    }

    /// An error that makes the fields around it unreliable: an unknown field, a wrong type.
    pub(super) fn blemish(&mut self, at: &Trail<'_>, build: impl FnOnce(FieldOrigin) -> Diagnostic) {
        self.errors += 1;
        if self.errors <= self.limit {
            let origin = self.origin(at);
            self.blemishes.push(origin.path.clone());
            self.list.push(build(origin));
        }
    }

    /// Adds an error about the meaning of a value. It is left out if it only follows from a blemish: after `from:
    /// [{podselector: …}]`, it is no news that the peer is empty.
    pub(super) fn error(&mut self, at: &Trail<'_>, build: impl FnOnce(FieldOrigin) -> Diagnostic) {
        self.add(Severity::Error, at, is_echo, build);
    }

    /// Adds an error about a missing value. It is also left out if a field beside it is a blemish, because that field
    /// may be this value under another name.
    pub(super) fn missing(&mut self, at: &Trail<'_>, build: impl FnOnce(FieldOrigin) -> Diagnostic) {
        self.add(Severity::Error, at, is_echo_or_beside, build);
    }

    /// Adds a warning. It is left out beside any blemish: the errors must be fixed first.
    pub(super) fn warn(&mut self, at: &Trail<'_>, build: impl FnOnce(FieldOrigin) -> Diagnostic) {
        self.add(Severity::Warning, at, is_echo_or_beside, build);
    }

    /// Adds a finding, unless it only echoes a blemish. Beyond the limit, findings are counted without a look at them.
    fn add(
        &mut self,
        severity: Severity,
        at: &Trail<'_>,
        echo: impl Fn(&[PathStep], &[PathStep]) -> bool,
        build: impl FnOnce(FieldOrigin) -> Diagnostic,
    ) {
        let count = if severity == Severity::Error { self.errors } else { self.warnings };
        if count < self.limit {
            let origin = self.origin(at);
            if self.blemishes.iter().any(|blemish| echo(origin.path.steps(), blemish.steps())) {
                return;
            }
            self.list.push(build(origin));
        }
        match severity {
            Severity::Error => self.errors += 1,
            _ => self.warnings += 1,
        }
    }

    /// Whether the object has errors and must not be used.
    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The findings, in the order found.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        let [errors, warnings] = [self.errors, self.warnings].map(|count| count.saturating_sub(self.limit));
        if errors + warnings > 0 {
            let severity = if errors > 0 { Severity::Error } else { Severity::Warning };
            let origin = FieldOrigin::object(self.object);
            self.list.push(codes::too_many_findings::at(origin, errors + warnings, severity));
        }
        self.list
    }
}

/// Whether a finding at `path` may only be a consequence of the error at `blemish`: it is about the structure that
/// holds the blemish, or about something inside of the blemish.
fn is_echo(path: &[PathStep], blemish: &[PathStep]) -> bool {
    path == holder(blemish) || path.starts_with(blemish)
}

fn is_echo_or_beside(path: &[PathStep], blemish: &[PathStep]) -> bool {
    is_echo(path, blemish) || holder(path) == holder(blemish)
}

fn holder(path: &[PathStep]) -> &[PathStep] {
    path.split_last().map_or(path, |(_, holder)| holder)
}
