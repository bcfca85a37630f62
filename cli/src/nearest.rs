//! The known name that a mistyped one was probably meant to be.

/// The nearest of the known names, if it is near enough to be worth suggesting.
pub(crate) fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
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
    use super::nearest;

    #[test]
    fn a_swapped_letter_is_near() {
        assert_eq!(nearest("namespcae", ["namespace", "lints"]), Some("namespace"));
    }

    #[test]
    fn another_word_is_not() {
        assert_eq!(nearest("colour", ["namespace", "lints"]), None);
    }
}
