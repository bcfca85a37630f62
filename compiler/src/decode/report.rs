//! The findings about one object: bounded in number, and without the echoes of a mistake already reported.

use crate::diagnostic::{Diagnostic, Severity};
use crate::origin::{FieldPath, ObjectId, Origin};

use super::codes;
use super::trail::Trail;

/// More findings than this in one object say nothing new; the rest is only counted.
pub(super) const LIMIT: usize = 100;

/// Collects the findings about one object.
#[derive(Debug)]
pub(super) struct Report {
    object: ObjectId,
    /// How many errors, and how many of the others, to keep.
    limit: usize,
    list: Vec<Diagnostic>,
    /// Fields that could not be read as what they should be.
    blemishes: Vec<FieldPath>,
    errors: usize,
    others: usize,
}

impl Report {
    /// Nothing found yet.
    pub(super) fn new(object: ObjectId, limit: usize) -> Self {
        Self { object, limit, list: Vec::new(), blemishes: Vec::new(), errors: 0, others: 0 }
    }

    /// The object's number.
    pub(super) fn object(&self) -> ObjectId {
        self.object
    }

    /// A place in the object.
    pub(super) fn origin(&self, at: &Trail<'_>) -> Origin {
        Origin::new(self.object, at.path())
    }

    /// One that makes the fields around it unreliable: an unknown field, a wrong type.
    pub(super) fn blemish(&mut self, at: &Trail<'_>, build: impl FnOnce(Origin) -> Diagnostic) {
        let origin = self.origin(at);
        if self.blemishes.len() < self.limit {
            self.blemishes.push(origin.path.clone());
        }
        self.keep(build(origin));
    }

    /// One about the meaning of a value. It is left out where it only echoes a blemish nearby: after
    /// `from: [{podselector: …}]`, that the peer is empty is no news.
    pub(super) fn add(&mut self, at: &Trail<'_>, build: impl FnOnce(Origin) -> Diagnostic) {
        let origin = self.origin(at);
        if !self.blemishes.iter().any(|blemish| is_echo(origin.path.steps(), blemish.steps())) {
            self.keep(build(origin));
        }
    }

    fn keep(&mut self, diagnostic: Diagnostic) {
        let count = match diagnostic.severity {
            Severity::Error => &mut self.errors,
            _ => &mut self.others,
        };
        *count += 1;
        if *count <= self.limit {
            self.list.push(diagnostic);
        }
    }

    /// Whether the object can not be used.
    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The findings, in the order found.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        let [errors, others] = [self.errors, self.others].map(|count| count.saturating_sub(self.limit));
        if errors + others > 0 {
            let severity = if errors > 0 { Severity::Error } else { Severity::Warning };
            let origin = Origin::object(self.object);
            self.list.push(codes::too_many_findings::at(origin, errors + others, severity));
        }
        self.list
    }
}

/// Whether a finding at `path` may only be there because of the mistake at `blemish`: it is about the structure that
/// holds the blemish, about a sibling, or about something inside.
fn is_echo<S: PartialEq>(path: &[S], blemish: &[S]) -> bool {
    let holder = blemish.split_last().map_or(blemish, |(_, holder)| holder);
    let parent = path.split_last().map_or(path, |(_, parent)| parent);
    path == holder || parent == holder || path.starts_with(blemish)
}
