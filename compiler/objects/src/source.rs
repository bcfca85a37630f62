//! The positions of objects in files. No other module knows file positions.
//!
//! Trees are dropped once an object is decoded, so 100,000 pods cost no more memory than their text. If a message
//! points into an object, the object is read again from the span stored here.

use crate::origin::ObjectId;
use crate::syntax::{Span, SyntaxFormat};

/// A file, in the order read. Prints as `f0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A byte range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSpan {
    /// The file.
    pub file: FileId,
    /// The range in its text.
    pub span: Span,
}

/// A file and its text.
#[derive(Debug)]
pub struct SourceFile {
    /// The file's name, as the user gave it.
    pub name: String,
    /// Its text, valid UTF-8.
    pub text: String,
}

/// The position of one object.
#[derive(Clone, Debug)]
pub struct ObjectSource {
    /// The file.
    pub file: FileId,
    /// YAML or JSON.
    pub format: SyntaxFormat,
    /// The text to read again: the YAML document, or the JSON object itself.
    pub span: Span,
    /// Within that text, which items to descend into (`items[3]` of a List document); empty for the root.
    pub items: Vec<u32>,
    /// The number of the document in its file, from 1.
    pub document: u32,
}

/// Files, and the positions of the objects in them.
#[derive(Debug, Default)]
pub struct SourceMap {
    files: Vec<SourceFile>,
    /// By `ObjectId`; `None` for objects that came without text.
    objects: Vec<Option<ObjectSource>>,
}

impl SourceMap {
    /// A map without files and objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file and its text.
    pub fn add_file(&mut self, name: String, text: String) -> FileId {
        self.files.push(SourceFile { name, text });
        FileId(self.files.len() as u32 - 1)
    }

    /// A file.
    pub fn file(&self, id: FileId) -> &SourceFile {
        &self.files[id.0 as usize]
    }

    /// All files.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Assigns the next number to an object and stores its position.
    pub fn add_object(&mut self, source: Option<ObjectSource>) -> ObjectId {
        self.objects.push(source);
        ObjectId(self.objects.len() as u32 - 1)
    }

    /// The position of an object; `None` if it came without text.
    pub fn object(&self, id: ObjectId) -> Option<&ObjectSource> {
        self.objects.get(id.0 as usize)?.as_ref()
    }
}
