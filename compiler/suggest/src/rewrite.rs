//! Edits → new texts of the files.
//!
//! Problem: a policy that is written again from its fields loses its comments, its order and its style.
//! Strategy: change only the bytes of the list item that the edit is about ([`splice`]): a line more, a line less. The
//! files are decoded again after each edit, and the result must be the objects that the edit asks for.
//! Invariants: nothing outside of the item's lines changes; a text that cannot be edited in place (anchors, lists within
//! lists, an object that is not in a file, a comment beside an item in brackets) is an error and never a guess.

mod splice;

use weir_objects::decode::{self, DecodeOptions, Decoded, Input, InputKind};
use weir_objects::k8s::{Body, ListAction, Object};
use weir_objects::origin::{FieldPath, ObjectId};
use weir_objects::source::SourceMap;
use weir_objects::syntax::SyntaxFormat;

use crate::edit::{Edit, Item};
use crate::tree::{self, Tree};
use splice::Obstacle;
pub(crate) use splice::TextChange;

/// A file before and after the edits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditedFile {
    /// Its name, as the user gave it; for a new file, the namespace and name of its policy.
    pub name: String,
    /// Its text before; `None` for a new file.
    pub before: Option<String>,
    /// Its text afterwards.
    pub after: String,
    kind: InputKind,
}

impl EditedFile {
    /// Whether the edits changed it.
    pub fn is_changed(&self) -> bool {
        self.before.as_ref() != Some(&self.after)
    }
}

/// Why a text cannot be edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// The text does not have the expected form.
    #[error("the text of {object} cannot be edited in place at {path}")]
    NotInPlace {
        /// The object.
        object: String,
        /// The field.
        path: String,
    },
    /// A comment would be lost, or would seem to be about another item.
    #[error("an item of {object} cannot be removed in place at {path}: a comment is beside it")]
    BesideComment {
        /// The object.
        object: String,
        /// The list.
        path: String,
    },
    /// The edited text has another meaning than the edit.
    #[error("the edited text does not give the expected objects")]
    OtherMeaning,
}

/// A change of one field that a finding suggests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFix {
    /// The object.
    pub object: ObjectId,
    /// The field: an item of a list to remove, or a scalar to replace.
    pub path: FieldPath,
    /// The new text of the scalar; `None` to remove the item.
    pub text: Option<String>,
}

/// Writes edits into the texts that objects were read from.
pub fn rewrite(
    sources: &SourceMap,
    objects: &[Object],
    options: &DecodeOptions,
    edits: &[Edit],
) -> Result<Vec<EditedFile>, RewriteError> {
    let mut files = files(sources, objects);
    let mut expected = objects.to_vec();
    for edit in edits {
        let read = read(&files, options);
        expected = edit.apply(&expected);
        match edit {
            Edit::Create(new) => {
                let name = format!("{}-{}.yaml", new.namespace, new.name);
                files.push(EditedFile { name, before: None, after: new.yaml(), kind: InputKind::Manifest });
            }
            Edit::Append { object, .. } | Edit::Remove { object, .. } | Edit::Replace { object, .. } => {
                let body = expected.iter().find(|it| it.id == *object).map(|it| &it.body);
                for change in changes(edit, body) {
                    apply(&mut files, &read, options, *object, &change)?;
                }
            }
        }
    }
    same(&read(&files, options).objects, &expected).then_some(files).ok_or(RewriteError::OtherMeaning)
}

/// Writes fixes of findings into the texts. The caller compares the meaning of both.
pub fn fix(
    sources: &SourceMap,
    objects: &[Object],
    options: &DecodeOptions,
    fixes: &[FieldFix],
) -> Result<Vec<EditedFile>, RewriteError> {
    let mut files = files(sources, objects);
    let mut fixes = fixes.to_vec();
    // From the end, so that the removal of an item does not move one that is still to be removed.
    fixes.sort_by(|one, other| (other.object, &other.path).cmp(&(one.object, &one.path)));
    fixes.dedup();
    for fix in fixes {
        let read = read(&files, options);
        let change = match fix.text {
            None => TextChange::remove_at(&fix.path),
            Some(text) => Some(TextChange::Scalar { path: fix.path, text: Tree::Text(text) }),
        };
        if let Some(change) = change {
            apply(&mut files, &read, options, fix.object, &change)?;
        }
    }
    Ok(files)
}

/// Reads the files again.
pub fn read(files: &[EditedFile], options: &DecodeOptions) -> Decoded {
    decode::decode(inputs(files), options).0
}

/// The files as inputs.
pub fn inputs(files: &[EditedFile]) -> Vec<Input> {
    let input = |it: &EditedFile| Input { name: it.name.clone(), bytes: it.after.clone().into_bytes(), kind: it.kind };
    files.iter().map(input).collect()
}

fn files(sources: &SourceMap, objects: &[Object]) -> Vec<EditedFile> {
    let file = |(index, file): (usize, &weir_objects::source::SourceFile)| {
        let is_of_file = |it: &&Object| {
            sources.object(it.id).is_some_and(|at| at.file.0 as usize == index && at.format == SyntaxFormat::List)
        };
        let kind = match objects.iter().find(is_of_file).map(|it| &it.body) {
            Some(Body::CidrList(list)) if list.action == ListAction::Allow => InputKind::AllowList,
            Some(_) => InputKind::DenyList,
            None => InputKind::Manifest,
        };
        EditedFile { name: file.name.clone(), before: Some(file.text.clone()), after: file.text.clone(), kind }
    };
    sources.files().iter().enumerate().map(file).collect()
}

fn changes(edit: &Edit, edited: Option<&Body>) -> Vec<TextChange> {
    let trees = |items: &[Item], direction| items.iter().map(|it| tree::item(it, direction)).collect();
    let mut found = Vec::new();
    match edit {
        Edit::Append { list, item, .. } => {
            found.push(TextChange::Append { list: list.path(), item: tree::item(item, list.direction()) });
        }
        Edit::Remove { list, index, .. } => {
            if let Some(Body::NetworkPolicy(policy)) = edited
                && edit.needs_policy_types(&weir_objects::k8s::NetworkPolicy {
                    policy_types: Vec::new(),
                    ..policy.clone()
                })
            {
                let list = FieldPath::root().field("spec").field("policyTypes");
                let word = |word: &str| TextChange::Append { list: list.clone(), item: Tree::Text(word.to_owned()) };
                found.extend([word("Ingress"), word("Egress")]);
            }
            found.push(TextChange::Remove { list: list.path(), index: *index });
        }
        Edit::Replace { list, index, items, .. } => {
            let items = trees(items, list.direction());
            found.push(TextChange::Replace { list: list.path(), index: *index, items });
        }
        Edit::Create(_) => {}
    }
    found
}

/// Applies one change of a text. The file is decoded again if an earlier change may have moved the object.
fn apply(
    files: &mut [EditedFile],
    read: &Decoded,
    options: &DecodeOptions,
    object: ObjectId,
    change: &TextChange,
) -> Result<(), RewriteError> {
    let again;
    let read = match read.sources.files().iter().zip(&*files).all(|(file, it)| file.text == it.after) {
        true => read,
        false => {
            again = self::read(files, options);
            &again
        }
    };
    let name = read.objects.iter().find(|it| it.id == object).map(|it| {
        let (meta, kind) = (&it.meta, it.body.kind());
        match meta.namespace.as_str() {
            "" => format!("{kind} {}", meta.name),
            namespace => format!("{kind} {namespace}/{}", meta.name),
        }
    });
    let error = |obstacle| {
        let (object, path) = (name.clone().unwrap_or_default(), change.path().to_string());
        match obstacle {
            Obstacle::Form => RewriteError::NotInPlace { object, path },
            Obstacle::Comment => RewriteError::BesideComment { object, path },
        }
    };
    let source = read.sources.object(object).ok_or_else(|| error(Obstacle::Form))?;
    let file = files.get_mut(source.file.0 as usize).ok_or_else(|| error(Obstacle::Form))?;
    file.after = splice::splice(&file.after, source, change).map_err(error)?;
    Ok(())
}

/// Whether two lists have the same objects, whatever their numbers are.
fn same(one: &[Object], other: &[Object]) -> bool {
    let is_same = |(one, other): (&Object, &Object)| {
        (&one.meta.namespace, &one.meta.name) == (&other.meta.namespace, &other.meta.name) && one.body == other.body
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}
