//! JSON is for programs, but terminals and logs show it too: hidden characters get JSON's own lossless escapes.

use std::fmt::Write as _;
use std::io;

use weir_objects::escape::is_hidden;

use super::{ci_commands, to_stdout};

/// The same JSON value without hidden characters. All of them are in strings: the rest of a JSON text is visible ASCII.
pub(super) fn escaped(json: &str) -> String {
    if !json.contains(|letter| letter != '\n' && is_hidden(letter)) && !json.contains("##") {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len() + json.len() / 16);
    for letter in json.chars() {
        match letter {
            '\n' => out.push('\n'),
            // White space between values: strings contain it only as escapes.
            '\r' | '\t' => out.push(' '),
            letter if is_hidden(letter) => {
                letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(out, "\\u{unit:04x}"));
            }
            letter => out.push(letter),
        }
    }
    if ci_commands::has_marker(&out) { out.replace("##", "#\\u0023") } else { out }
}

/// Standard output for many lines of JSON. Each write must consist of whole tokens.
pub(crate) struct JsonLines;

impl io::Write for JsonLines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        print(lines).map(|()| lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn print(lines: &[u8]) -> io::Result<()> {
    let plain = lines.iter().all(|byte| (0x20..0x7f).contains(byte) || *byte == b'\n');
    if plain && !lines.windows(2).any(|pair| pair == b"##") {
        return to_stdout(lines);
    }
    to_stdout(escaped(&String::from_utf8_lossy(lines)).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes_are_visible_and_lossless() {
        let text = "a\u{1b}\n\u{202e}\u{7f}\u{9b}\u{e0041}##[error]##x";
        let json = serde_json::to_string(text).expect("JSON");
        let safe = escaped(&json);
        assert!(safe.bytes().all(|it| (0x20..0x7f).contains(&it)) && !safe.contains("##["), "{safe}");
        assert_eq!(serde_json::from_str::<String>(&safe).ok().as_deref(), Some(text));
        assert_eq!(escaped("{\"a\":\r1}"), "{\"a\": 1}");
    }
}
