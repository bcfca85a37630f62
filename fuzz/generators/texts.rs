//! Texts that are almost manifests: parts of them are replaced by meaningful tokens, doubled or removed.

use super::{Generated, Random};

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

/// One of the texts with up to six edits.
pub fn mutated(bases: Vec<String>) -> Generated<String> {
    Generated::by(move |random| {
        let base = &bases[random.below(bases.len())];
        mutate(base, random)
    })
}

/// A text with up to six edits.
pub fn mutate(base: &str, random: &mut Random) -> String {
    let mut text: Vec<char> = base.chars().collect();
    random.several(6, |random| {
        let start = random.below(text.len() + 1);
        let end = (start + random.below(12)).min(text.len());
        let insert: Vec<char> = match random.below(3) {
            0 => text[start..end].repeat(2),
            1 => random.pick(&TOKENS).chars().collect(),
            _ => another_line(&text, random),
        };
        text.splice(start..end, insert);
    });
    text.into_iter().collect()
}

/// Another line of the same text, which puts fields at the wrong level or repeats keys.
fn another_line(text: &[char], random: &mut Random) -> Vec<char> {
    let lines: Vec<&[char]> = text.split_inclusive(|it| *it == '\n').collect();
    random.pick_any(&lines).unwrap_or_default().to_vec()
}
