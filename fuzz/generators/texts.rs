//! Texts that are almost manifests: parts of them are replaced by meaningful tokens, doubled or removed.

use super::Random;

/// Tokens that have a meaning in YAML, in Kubernetes or in addresses.
const TOKENS: [&str; 44] = [
    "null",
    "{}",
    "[]",
    "[null]",
    "- ",
    "-",
    ":",
    "\n",
    "\n  ",
    "---\n",
    "true",
    "80.5",
    "-1",
    "010",
    "0x50",
    "1e3",
    "99999999999999999999",
    "\"80\"",
    "podselector",
    "podSelector",
    "except",
    "spec",
    "metadata",
    "items",
    "kind: List\n",
    "&a ",
    "*a",
    "<<: ",
    "\u{feff}",
    "\t",
    "\r\n",
    "é",
    "10.0.0.0/8",
    "::ffff:1.2.3.4/96",
    "/",
    "a/b/c",
    "\"",
    "'",
    "{",
    "]",
    "!!str ",
    "| \n",
    "? ",
    "#",
];

/// A text with up to six edits.
pub fn mutate(base: &str, random: &mut Random) -> String {
    let mut text: Vec<char> = base.chars().collect();
    for _ in 0..random.below(7) {
        let start = random.below(text.len() + 1);
        let end = (start + random.below(12)).min(text.len());
        let insert: Vec<char> = match random.below(3) {
            0 => text[start..end].repeat(2),
            1 => random.pick(&TOKENS).chars().collect(),
            _ => another_line(&text, random),
        };
        text.splice(start..end, insert);
    }
    text.into_iter().collect()
}

/// Another line of the same text, which puts fields at the wrong level or repeats keys.
fn another_line(text: &[char], random: &mut Random) -> Vec<char> {
    let lines: Vec<&[char]> = text.split_inclusive(|it| *it == '\n').collect();
    if lines.is_empty() { Vec::new() } else { random.pick(&lines).to_vec() }
}
