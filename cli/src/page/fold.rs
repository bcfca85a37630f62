//! Breaks a line of styled pieces into lines of a width: between words, or within a word that is longer than a line.

use std::fmt::Display;

use weir_objects::escape;

use super::Style;

/// The lines, as styled pieces. All but the first are indented by `indent` spaces.
pub(super) fn lines(width: usize, indent: usize, pieces: &[(Style, &dyn Display)]) -> Vec<Vec<(Style, String)>> {
    let letters: Vec<(Style, char)> = pieces
        .iter()
        .flat_map(|(style, text)| {
            let escaped = escape::line(&text.to_string()).into_owned();
            escaped.chars().map(|letter| (*style, letter)).collect::<Vec<_>>()
        })
        .collect();
    let (mut rest, mut found) = (&letters[..], Vec::new());
    loop {
        let before = if found.is_empty() { 0 } else { indent.min(width / 2) };
        let room = width - before;
        let mut line = vec![(Style::Plain, " ".repeat(before))];
        if rest.len() <= room {
            found.push(joined(line, rest));
            return found;
        }
        let end = break_before(rest, room);
        let (now, later) = rest.split_at(end);
        line = joined(line, now);
        found.push(line);
        let next = later.iter().position(|(_, letter)| *letter != ' ').unwrap_or(later.len());
        rest = &later[next..];
        if rest.is_empty() {
            return found;
        }
    }
}

/// The index of the last space after a word that fits; the width if no word fits.
fn break_before(letters: &[(Style, char)], room: usize) -> usize {
    let first = letters.iter().position(|(_, letter)| *letter != ' ').unwrap_or(0);
    let spaces = (first..=room).rev();
    let mut found = spaces.filter(|at| letters[*at].1 == ' ');
    found.find(|at| *at > first).unwrap_or(room)
}

fn joined(mut line: Vec<(Style, String)>, letters: &[(Style, char)]) -> Vec<(Style, String)> {
    for of_style in letters.chunk_by(|a, b| a.0 == b.0) {
        line.push((of_style[0].0, of_style.iter().map(|(_, letter)| letter).collect()));
    }
    if let Some((_, last)) = line.last_mut() {
        last.truncate(last.trim_end().len());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let found = lines(10, 2, &[(Style::Plain, &text)]);
        let found: Vec<String> = found.into_iter().map(|it| it.into_iter().map(|(_, text)| text).collect()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_break_between_words() {
        check("one two", &["one two"]);
        check("one two three", &["one two", "  three"]);
        check("  one two three four", &["  one two", "  three", "  four"]);
        check("0123456789 1", &["0123456789", "  1"]);
    }

    #[test]
    fn a_long_word_is_broken_and_complete() {
        check("0123456789abcdef01", &["0123456789", "  abcdef01"]);
    }
}
