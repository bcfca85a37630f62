//! The plain manifests: the chart in `deploy/chart`, rendered with its own values.
//!
//! The chart is the only source. Its templates contain only simple placeholders (`{{ .Values.a.b }}`, `{{
//! .Release.Namespace }}`) and conditions, so rendering needs no Helm; anything else in braces is an error here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The namespace in the plain manifests.
const NAMESPACE: &str = "kube-system";

/// Writes `deploy/weir.yaml`.
pub fn write() -> Result<()> {
    Ok(fs::write(directory().join("weir.yaml"), plain()?)?)
}

/// The expected contents of `deploy/weir.yaml`.
pub fn plain() -> Result<String> {
    with(&[])
}

/// The chart's manifests with these values instead of the chart's own.
pub fn with(choices: &[(&str, &str)]) -> Result<String> {
    let chart = directory().join("chart");
    let mut values = values(&read(&chart.join("values.yaml"))?)?;
    for (name, value) in choices {
        let known = values.get_mut(*name).with_context(|| format!("values.yaml has no {name}"))?;
        (*value).clone_into(known);
    }
    let mut text =
        "# Made from deploy/chart by `cargo xtask deploy`. Apply with `kubectl apply --server-side -f`.\n".to_owned();
    for path in ["crds/cidrlists.yaml", "templates/rbac.yaml", "templates/daemonset.yaml"] {
        let rendered = render(&read(&chart.join(path))?, &values).with_context(|| format!("in {path}"))?;
        text += &format!("---\n{rendered}");
    }
    Ok(text)
}

/// `deploy/` of the repository.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads scalars by their paths, from a file of mappings that are indented by two spaces.
fn values(text: &str) -> Result<BTreeMap<String, String>> {
    let (mut values, mut above) = (BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
        let depth = (line.len() - line.trim_start().len()) / 2;
        let (key, value) = line.trim().split_once(':').with_context(|| format!("values.yaml: {line}"))?;
        above.truncate(depth);
        above.push(key);
        if !value.trim().is_empty() {
            values.insert(above.join("."), value.trim().to_owned());
        }
    }
    Ok(values)
}

/// Removes the sections between `{{- if .Values.… }}` and `{{- end }}` whose value is `false`.
fn chosen(template: &str, values: &BTreeMap<String, String>) -> Result<String> {
    let (mut kept, mut open) = (String::new(), Vec::new());
    for line in template.split_inclusive('\n') {
        let inside = line.trim().strip_prefix("{{- ").and_then(|rest| rest.strip_suffix(" }}"));
        let condition = inside.and_then(|it| it.strip_prefix("if .Values."));
        match (inside, condition) {
            (_, Some(name)) => open.push(match values.get(name).map(String::as_str) {
                Some("true") => true,
                Some("false") => false,
                _ => bail!("{} is neither true nor false in values.yaml", line.trim()),
            }),
            (Some("end"), _) => _ = open.pop().context("an `end` without an `if`")?,
            _ if open.iter().all(|it| *it) => kept += line,
            _ => {}
        }
    }
    if open.is_empty() { Ok(kept) } else { bail!("an `if` without an `end`") }
}

fn render(template: &str, values: &BTreeMap<String, String>) -> Result<String> {
    let template = chosen(template, values)?;
    let mut rendered = String::new();
    let mut rest = template.as_str();
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").context("a placeholder without }}")?;
        rendered += before;
        match name.trim() {
            ".Release.Namespace" => rendered += NAMESPACE,
            name => match name.strip_prefix(".Values.").and_then(|name| values.get(name)) {
                Some(value) => rendered += value,
                None => bail!("{{{{ {name} }}}} is not a value in values.yaml"),
            },
        }
        rest = after;
    }
    Ok(rendered + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_manifests_are_the_chart_with_its_own_values() {
        let there = read(&directory().join("weir.yaml")).expect("it is in the tree");
        assert_eq!(there, plain().expect("the chart renders"), "`cargo xtask deploy` makes it anew");
    }

    #[test]
    fn unknown_placeholders_are_errors() {
        let values = values("a:\n  b: 1\n# c\nd: e\n").expect("mappings");
        assert_eq!(render("x {{ .Values.a.b }} {{ .Values.d }}", &values).expect("known"), "x 1 e");
        let conditional = "a\n{{- if .Values.on }}\nb\n{{- end }}\nc\n";
        let with = |value: &str| render(conditional, &[("on".to_owned(), value.to_owned())].into());
        assert_eq!(with("true").expect("known"), "a\nb\nc\n");
        assert_eq!(with("false").expect("known"), "a\nc\n");
        assert!(with("yes").is_err());
        for odd in [
            "{{- if .Values.d }}\n",
            "{{- end }}\n",
            "{{ .Values.a }}",
            "{{ toYaml .Values.a }}",
            "{{ if .Values.d }}",
            "{{ .Values.a.b",
        ] {
            assert!(render(odd, &values).is_err(), "{odd}");
        }
    }
}
