//! The place of a statement in the input: an object and a field path in it.
//!
//! A [`FieldOrigin`] travels from `decode` to the last table entry. It names no file and no line: those live only in
//! [`crate::source::SourceMap`], so an object that came from an API server gets the same messages without a file.

use std::borrow::Cow;
use std::fmt;
use std::iter;
use std::sync::Arc;

/// An object of the input, in the order it was decoded. Prints as `o3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o{}", self.0)
    }
}

/// One step of a [`FieldPath`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathStep {
    /// `.name`
    Field(Cow<'static, str>),
    /// `[3]`
    Index(u32),
    /// `[key]`: an entry of a map with free keys (labels, annotations).
    Key(Cow<'static, str>),
}

/// A path as the API server prints it: `spec.ingress[0].from[1].ipBlock.cidr`. Copies share the steps, because each
/// port and each peer of a rule has an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath {
    steps: Arc<[PathStep]>,
}

impl FieldPath {
    /// The object itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// The steps, outermost first.
    pub fn steps(&self) -> &[PathStep] {
        &self.steps
    }

    /// This path, one field deeper.
    #[must_use]
    pub fn field(&self, name: impl Into<Cow<'static, str>>) -> Self {
        self.push(PathStep::Field(name.into()))
    }

    /// This path, one list item deeper.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.push(PathStep::Index(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    /// This path, one map entry deeper.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.push(PathStep::Key(key.to_owned().into()))
    }

    fn push(&self, step: PathStep) -> Self {
        Self { steps: self.steps.iter().cloned().chain(iter::once(step)).collect() }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.steps.iter().enumerate() {
            match step {
                PathStep::Field(name) if position == 0 => f.write_str(name)?,
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
                PathStep::Key(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}

/// An object and a field in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldOrigin {
    /// The object.
    pub object: ObjectId,
    /// The field; the root path for the object as a whole.
    pub path: FieldPath,
}

impl FieldOrigin {
    /// A field of an object.
    pub fn new(object: ObjectId, path: FieldPath) -> Self {
        Self { object, path }
    }

    /// An object as a whole.
    pub fn object(object: ObjectId) -> Self {
        Self { object, path: FieldPath::root() }
    }
}
