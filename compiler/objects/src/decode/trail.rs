//! The current position in an object during a walk: a [`FieldPath`] that costs nothing until it is needed.
//!
//! Every frame of the walk borrows the one above, so objects without errors never build a path.

use crate::origin::FieldPath;

/// One step of the walk, with a link to the steps above it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trail<'p> {
    parent: Option<&'p Trail<'p>>,
    step: TrailStep<'p>,
}

#[derive(Clone, Copy, Debug)]
enum TrailStep<'p> {
    Root,
    Field(&'p str),
    Index(usize),
    Key(&'p str),
}

impl<'p> Trail<'p> {
    /// The object itself.
    pub(super) const ROOT: Trail<'static> = Trail { parent: None, step: TrailStep::Root };

    /// The position one field deeper.
    pub(super) fn field(&'p self, name: &'p str) -> Self {
        Self { parent: Some(self), step: TrailStep::Field(name) }
    }

    /// The position one list item deeper.
    pub(super) fn index(&'p self, index: usize) -> Self {
        Self { parent: Some(self), step: TrailStep::Index(index) }
    }

    /// The position one map entry deeper.
    pub(super) fn key(&'p self, key: &'p str) -> Self {
        Self { parent: Some(self), step: TrailStep::Key(key) }
    }

    /// The path of the position.
    pub(super) fn path(&self) -> FieldPath {
        let above = self.parent.map(Self::path).unwrap_or_default();
        match self.step {
            TrailStep::Root => above,
            TrailStep::Field(name) => above.field(name.to_owned()),
            TrailStep::Index(index) => above.index(index),
            TrailStep::Key(key) => above.key(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_the_server_does() {
        let spec = Trail::ROOT.field("spec");
        let (ingress, labels) = (spec.field("ingress"), spec.field("labels"));
        assert_eq!(ingress.index(3).path().to_string(), "spec.ingress[3]");
        assert_eq!(labels.key("app").path().to_string(), "spec.labels[app]");
        assert_eq!(Trail::ROOT.path().to_string(), "");
    }
}
