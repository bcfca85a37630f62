//! Patterns of paths: globs on the command line, `exclude` in `weir.toml` and the lines of `.weirignore`.
//!
//! The syntax is that of `.gitignore`: `*` and `?` match within one name, `[a-z]` is a set of characters, `**` as a
//! whole name matches any number of names, and `\` makes the next character an ordinary one. A pattern has at most one
//! way to fail: text that is not a valid set (`[a`) matches nothing, as in git.

/// One name of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamePattern {
    /// `**`: any number of names.
    AnyNames,
    /// A pattern for one name.
    Name(Vec<Piece>),
}

/// A part of a pattern for one name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// `*`
    AnyText,
    /// `?`
    AnyCharacter,
    /// `[a-z]`, `[!a-z]`
    Set {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Character(char),
    /// A set without an end.
    Nothing,
}

/// A pattern for a path relative to some directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPattern {
    names: Vec<NamePattern>,
}

impl PathPattern {
    pub(crate) fn parse(text: &str) -> Self {
        let names = text.split('/').filter(|name| !name.is_empty() && *name != ".");
        let parse = |name: &str| match name {
            "**" => NamePattern::AnyNames,
            name => NamePattern::Name(pieces(name)),
        };
        Self { names: names.map(parse).collect() }
    }

    /// Whether a text has characters that make it a pattern.
    pub(crate) fn is_pattern(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    /// Whether the pattern matches the whole path.
    pub(crate) fn matches(&self, path: &[&str]) -> bool {
        match_names(&self.names, path)
    }

    /// Whether all paths that match have the same number of names.
    pub(crate) fn is_limited(&self) -> bool {
        self.names.iter().all(|it| matches!(it, NamePattern::Name(_)))
    }

    /// Whether a path below this directory may match.
    pub(crate) fn may_match_below(&self, directory: &[&str]) -> bool {
        let is_open = self.names.last() == Some(&NamePattern::AnyNames);
        let longest = if is_open { self.names.len() } else { self.names.len().saturating_sub(1) };
        (0..=longest).any(|length| match_names(&self.names[..length], directory))
    }

    /// Whether the last name of the pattern says nothing about the end of a file's name.
    pub(crate) fn ends_openly(&self) -> bool {
        match self.names.last() {
            Some(NamePattern::Name(pieces)) => pieces.last() == Some(&Piece::AnyText),
            Some(NamePattern::AnyNames) => true,
            None => false,
        }
    }
}

/// A line of `.weirignore`, or an item of `exclude`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IgnoreRule {
    pattern: PathPattern,
    /// `!pattern`: includes the paths that it matches.
    negated: bool,
    /// `pattern/`: only directories.
    directories_only: bool,
}

impl IgnoreRule {
    /// `None` for an empty line and for a comment.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = without_trailing_spaces(line.strip_suffix('\r').unwrap_or(line));
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (negated, text) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest));
        let directories_only = text.ends_with('/');
        let text = text.strip_suffix('/').unwrap_or(text);
        let mut pattern = PathPattern::parse(text);
        // Without a slash before its end, the pattern is for a name at any depth.
        if !text.contains('/') {
            pattern.names.insert(0, NamePattern::AnyNames);
        }
        (!text.is_empty()).then_some(Self { pattern, negated, directories_only })
    }
}

/// Whether the rules exclude a path, as git decides for `.gitignore`: the last rule that matches wins, and nothing
/// below an excluded directory can be included again.
pub(crate) fn is_excluded(rules: &[IgnoreRule], path: &[&str], is_directory: bool) -> bool {
    (1..=path.len()).any(|length| {
        let (part, is_directory) = (&path[..length], length < path.len() || is_directory);
        let matches = |it: &&IgnoreRule| (is_directory || !it.directories_only) && it.pattern.matches(part);
        rules.iter().rev().find(matches).is_some_and(|rule| !rule.negated)
    })
}

fn without_trailing_spaces(line: &str) -> &str {
    let kept = line.trim_end_matches(' ');
    // `\ ` at the end is a space of the name.
    let backslashes = kept.bytes().rev().take_while(|it| *it == b'\\').count();
    if backslashes % 2 == 1 && kept.len() < line.len() { &line[..kept.len() + 1] } else { kept }
}

fn pieces(name: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = name.chars();
    while let Some(next) = rest.next() {
        pieces.push(match next {
            '*' if pieces.last() == Some(&Piece::AnyText) => continue,
            '*' => Piece::AnyText,
            '?' => Piece::AnyCharacter,
            '\\' => rest.next().map_or(Piece::Nothing, Piece::Character),
            '[' => match set(rest.as_str()) {
                Some((set, after)) => {
                    rest = after.chars();
                    set
                }
                None => Piece::Nothing,
            },
            other => Piece::Character(other),
        });
    }
    pieces
}

/// The set of characters that begins after `[`, and the text after it.
fn set(text: &str) -> Option<(Piece, &str)> {
    let negated = text.starts_with(['!', '^']);
    let mut rest = text[usize::from(negated)..].chars();
    let mut ranges = Vec::new();
    loop {
        let first = match rest.next()? {
            // A bracket that is the first character belongs to the set.
            ']' if !ranges.is_empty() => return Some((Piece::Set { negated, ranges }, rest.as_str())),
            '\\' => rest.next()?,
            other => other,
        };
        let mut after = rest.clone();
        let last = match (after.next(), after.next()) {
            (Some('-'), Some('\\')) => after.next(),
            (Some('-'), Some(last)) if last != ']' => Some(last),
            _ => None,
        };
        match last {
            Some(last) => {
                ranges.push((first, last));
                rest = after;
            }
            None => ranges.push((first, first)),
        }
    }
}

fn match_names(pattern: &[NamePattern], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], path) => path.is_empty(),
        // At the end, `**` matches the entries of the directory, and not the directory itself.
        ([NamePattern::AnyNames], path) => !path.is_empty(),
        ([NamePattern::AnyNames, rest @ ..], path) => (0..=path.len()).any(|skip| match_names(rest, &path[skip..])),
        ([NamePattern::Name(pieces), rest @ ..], [name, path @ ..]) => {
            match_name(pieces, name) && match_names(rest, path)
        }
        ([NamePattern::Name(_), ..], []) => false,
    }
}

/// Matches one name. After a mismatch, only the last `*` takes one character more, so the time is bounded by the
/// product of both lengths.
fn match_name(pieces: &[Piece], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut piece, mut at) = (0, 0);
    let mut star = None;
    while at < name.len() || piece < pieces.len() {
        if pieces.get(piece) == Some(&Piece::AnyText) {
            star = Some((piece, at));
            piece += 1;
        } else if name.get(at).is_some_and(|it| pieces.get(piece).is_some_and(|piece| match_character(piece, *it))) {
            (piece, at) = (piece + 1, at + 1);
        } else {
            match star {
                Some((of, taken)) if taken < name.len() => {
                    star = Some((of, taken + 1));
                    (piece, at) = (of + 1, taken + 1);
                }
                _ => return false,
            }
        }
    }
    true
}

fn match_character(piece: &Piece, character: char) -> bool {
    match piece {
        Piece::AnyCharacter => true,
        Piece::Character(it) => *it == character,
        Piece::Set { negated, ranges } => {
            ranges.iter().any(|(first, last)| (*first..=*last).contains(&character)) != *negated
        }
        Piece::AnyText | Piece::Nothing => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &str, path: &str, expected: bool) {
        let rules: Vec<IgnoreRule> = lines.lines().filter_map(IgnoreRule::parse).collect();
        let is_directory = path.ends_with('/');
        let path: Vec<&str> = path.split('/').filter(|it| !it.is_empty()).collect();
        assert_eq!(is_excluded(&rules, &path, is_directory), expected, "{lines:?} {path:?}");
    }

    #[test]
    fn a_name_without_slash_matches_at_any_depth() {
        check("*.json", "a/b/c.json", true);
        check("templates", "charts/a/templates/x.yaml", true);
        check("/templates", "charts/a/templates/x.yaml", false);
        check("charts/*/templates", "charts/a/templates/x.yaml", true);
        check("charts/*/templates", "charts/a/b/templates/x.yaml", false);
        check("charts/**/templates", "charts/templates/x.yaml", true);
    }

    #[test]
    fn the_last_rule_decides_but_not_below_an_excluded_directory() {
        check("*.yaml\n!keep.yaml", "a/keep.yaml", false);
        check("!keep.yaml\n*.yaml", "a/keep.yaml", true);
        check("a/\n!a/keep.yaml", "a/keep.yaml", true);
        check("a/*\n!a/keep.yaml", "a/keep.yaml", false);
    }

    #[test]
    fn a_slash_at_the_end_means_directories() {
        check("build/", "build", false);
        check("build/", "build/", true);
        check("build/", "x/build/y.yaml", true);
    }

    #[test]
    fn comments_and_escapes_are_those_of_git() {
        check("#a", "#a", false);
        check("\\#a", "#a", true);
        check("\\!a", "!a", true);
        check("a  ", "a", true);
        check("a\\ ", "a ", true);
        check("[a-c]?.y*", "b1.yaml", true);
        check("[!a-c]", "b", false);
        check("[]x]", "]", true);
        check("[a", "[a", false);
        check("a\\*b", "a*b", true);
        check("a\\*b", "axb", false);
    }
}
