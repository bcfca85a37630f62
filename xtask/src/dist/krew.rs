//! The manifest with which krew installs `kubectl weir`, from `.krew.yaml` of the repository.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::{Files, ReleaseFacts, sha256};

/// The template, with `{{ version }}`, `{{ repository }}` and `{{ sha256 FILE }}`.
pub const TEMPLATE: &str = ".krew.yaml";

/// The manifest, or nothing if the release lacks one of its files.
pub(super) fn manifest(root: &Path, facts: &ReleaseFacts, files: &Files) -> Result<Option<String>> {
    let template = fs::read_to_string(root.join(TEMPLATE)).with_context(|| format!("cannot read {TEMPLATE}"))?;
    render(&template, facts, |name| files.get(name).map(|it| sha256(it)))
}

/// Fills in a template. `sum` is the checksum of a file of the release, if it has the file.
pub fn render(template: &str, facts: &ReleaseFacts, sum: impl Fn(&str) -> Option<String>) -> Result<Option<String>> {
    let mut text = template.replace("{{ version }}", &facts.version).replace("{{ repository }}", &facts.repository);
    while let Some((before, rest)) = text.split_once("{{ sha256 ") {
        let (name, after) = rest.split_once(" }}").context("a placeholder without an end")?;
        let Some(sum) = sum(name) else { return Ok(None) };
        text = format!("{before}{sum}{after}");
    }
    match text.split_once("{{") {
        Some((_, rest)) => bail!("{TEMPLATE}: unknown placeholder {}", rest.lines().next().unwrap_or_default()),
        None => Ok(Some(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::facts;
    use super::*;

    #[test]
    fn placeholders_are_filled_in_and_unknown_ones_are_errors() {
        let rendered = |template: &str, has: bool| render(template, &facts(), |name| has.then(|| format!("<{name}>")));
        let template = "{{ repository }}/v{{ version }} {{ sha256 weir-{{ version }}.tar.gz }}";
        let expected = "https://git.example/weir/v1.2.3 <weir-1.2.3.tar.gz>";
        assert_eq!(rendered(template, true).expect("known").as_deref(), Some(expected));
        assert_eq!(rendered(template, false).expect("known"), None);
        assert!(rendered("{{ versoin }}", true).is_err());
    }
}
