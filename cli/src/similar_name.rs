//! Finds the known name that is most similar to a mistyped one, for hints.

/// The most similar of the known names. `None` if it differs in more than a third of the letters: a suggestion that is
/// probably wrong is worse than none.
pub(crate) fn most_similar<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.chars().count() / 3).max(1);
    let scored = known.into_iter().map(|it| (distance(name, it), it)).min()?;
    (scored.0 <= most).then_some(scored.1)
}

/// The number of edits (insert, delete, replace, swap of neighbours) from one word to the other. Case is ignored.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::most_similar;

    #[test]
    fn swapped_letters_are_similar() {
        assert_eq!(most_similar("namespcae", ["namespace", "lints"]), Some("namespace"));
    }

    #[test]
    fn another_word_is_not_similar() {
        assert_eq!(most_similar("colour", ["namespace", "lints"]), None);
    }
}
