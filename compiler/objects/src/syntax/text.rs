//! Bytes → text: bytes that are not UTF-8 are refused with their position, and the byte order mark is removed.

use super::{SyntaxFormat, json, yaml};

/// The longest text that is read: spans are 32 bits wide.
pub const MAX_TEXT: usize = i32::MAX as usize;

/// Up to this size, text that starts like JSON is checked: it may be a YAML flow mapping.
const MAX_PROBE: usize = 16 << 20;

/// Bytes that are not text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The problem: one line, lower case, no full stop.
    pub message: String,
    /// The position of the first wrong byte.
    pub offset: usize,
    /// The line of that byte, from 1.
    pub line: usize,
    /// The next step.
    pub help: Option<String>,
}

/// Converts bytes to text, without the byte order mark: spans count from after it.
///
/// # Errors
/// Fails if the bytes are not UTF-8, contain NUL bytes, or are longer than [`MAX_TEXT`].
pub fn text(bytes: Vec<u8>) -> Result<String, TextError> {
    if bytes.len() > MAX_TEXT {
        return Err(error(&bytes, 0, "more than 2 GiB of text", "split the input into several files"));
    }
    if let Some((message, help)) = foreign(&bytes) {
        return Err(error(&bytes, 0, message, help));
    }
    let mut text = String::from_utf8(bytes).map_err(|wrong| {
        let offset = wrong.utf8_error().valid_up_to();
        let byte = wrong.as_bytes().get(offset).copied().unwrap_or_default();
        let message = format!("byte {byte:#04x} is not UTF-8 text");
        error(wrong.as_bytes(), offset, message, "save the file as UTF-8")
    })?;
    // `contains` first: it is several times faster than `position`, and nearly all texts have no NUL byte.
    if text.as_bytes().contains(&0) {
        let offset = text.bytes().position(|byte| byte == 0).unwrap_or_default();
        return Err(error(text.as_bytes(), offset, "a NUL byte in the text", "is this a binary file?"));
    }
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

/// Whether text is YAML or JSON: as in kubectl, JSON starts with `{`.
///
/// A YAML flow mapping starts with `{` too. So text that is not valid JSON but valid YAML is treated as YAML. Text
/// longer than the limit is not checked and treated as JSON. A template that starts with `{{` is given to the YAML
/// reader.
pub fn format(text: &str) -> SyntaxFormat {
    let text = text.trim_start();
    if !text.starts_with('{') || text.starts_with("{{") {
        return SyntaxFormat::Yaml;
    }
    let json =
        text.len() > MAX_PROBE || json::check(text).is_ok() || yaml::documents(text).any(|document| document.is_err());
    if json { SyntaxFormat::Json } else { SyntaxFormat::Yaml }
}

/// Recognizes other encodings and compressed files by their first bytes.
fn foreign(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let utf8 = "save the file as UTF-8";
    let head = bytes.get(..64).unwrap_or(bytes);
    let nul = head.iter().filter(|byte| **byte == 0).count();
    match bytes {
        [0x1f, 0x8b, ..] => Some(("the file is compressed with gzip", "unpack it first: `gunzip -c FILE | weir … -`")),
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some(("the file is UTF-32 text", utf8)),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(("the file is UTF-16 text", utf8)),
        _ if nul * 3 > head.len() => Some(("the file is UTF-16 or UTF-32 text, or binary", utf8)),
        _ => None,
    }
}

fn error(bytes: &[u8], offset: usize, message: impl Into<String>, help: &str) -> TextError {
    let before = bytes.get(..offset).unwrap_or_default();
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    TextError { message: message.into(), offset, line, help: Some(help.to_owned()) }
}

#[cfg(test)]
mod tests;
