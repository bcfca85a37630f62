//! A value that its field does not take.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("bad-value", include_str!("bad_value.diff"))
    .what("A field of a cluster-wide policy has a value that the API does not allow.")
    .why("The API server refuses the policy, so it would not be in force.");

/// An unknown word.
pub(crate) fn word(origin: FieldOrigin, text: &str, known: &[&str]) -> Diagnostic {
    let words: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
    let found = Diagnostic::at(&CODE, origin, format!("{} is not one of {}", quote(text), words.join(", ")));
    write_one_of(found, text, known, &format!("write one of {}", words.join(", ")))
}

/// A number outside of the range.
pub(crate) fn number(origin: FieldOrigin, number: i64, first: i64, last: i64) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{number} is not between {first} and {last}"))
        .help(format!("write a number from {first} to {last}"))
}

/// A text that is too long.
pub(crate) fn too_long(origin: FieldOrigin, most: usize) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("the text is longer than {most} characters")).help("write a shorter text")
}

/// A text that is no domain name.
pub(crate) fn domain_name(origin: FieldOrigin, text: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("{} is not a domain name", quote(text)))
        .help("write it like `example.com`, or `*.example.com` for all names below it")
}
