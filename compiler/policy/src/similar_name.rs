//! Finds the known name that is most similar to a mistyped one, for hints.

/// The most similar of the known names. `None` if it differs in more than a third of the letters: a suggestion that is
/// probably wrong is worse than none.
pub fn most_similar<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.chars().count() / 3).max(1);
    let name = name.to_lowercase();
    let scored = known.into_iter().map(|it| (strsim::osa_distance(&name, &it.to_lowercase()), it)).min()?;
    (scored.0 <= most).then_some(scored.1)
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
