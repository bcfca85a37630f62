//! Parts of a Helm chart that a cluster may render to other objects than `helm template` does.
//!
//! Problem: without a cluster, helm answers `lookup` with nothing and fills `.Capabilities` with defaults. A chart that
//! asks whether a policy or a CRD exists then renders other objects than `helm install` would, and an answer about them
//! is an answer about another cluster. Weir cannot know the cluster's answer, so it names the templates that ask.

use std::fs;
use std::path::{Path, PathBuf};

/// Expressions that depend on the cluster.
const ASKS_CLUSTER: [&str; 2] = ["lookup", ".Capabilities"];
/// The most places to name. The others are counted.
const MOST: usize = 3;

/// Notes for the user about the chart in a directory.
pub(super) fn notes(chart: &Path) -> Vec<String> {
    let (mut places, mut archives) = (Vec::new(), Vec::new());
    let mut files = Vec::new();
    add_files(chart, &mut files);
    for file in files {
        let name = file.strip_prefix(chart).unwrap_or(&file).display().to_string();
        let parents: Vec<_> = file.strip_prefix(chart).unwrap_or(&file).iter().collect();
        if name.ends_with(".tgz") && parents.iter().any(|it| *it == "charts") {
            archives.push(name);
        } else if parents.iter().rev().skip(1).any(|it| *it == "templates") {
            let text = fs::read(&file).unwrap_or_default();
            places.extend(
                asked(&String::from_utf8_lossy(&text)).into_iter().map(|(line, what)| (name.clone(), line, what)),
            );
        }
    }
    let mut notes = Vec::new();
    if !places.is_empty() {
        let shown: Vec<String> =
            places.iter().take(MOST).map(|(file, line, what)| format!("`{what}` at {file}:{line}")).collect();
        let more = if places.len() > MOST { format!(", and {} more", places.len() - MOST) } else { String::new() };
        notes.push(format!(
            "{} asks the cluster, and is rendered without one, so `helm install` may make other objects: {}{more}",
            chart.display(),
            shown.join(", ")
        ));
    }
    if !archives.is_empty() {
        let archives = archives.join(", ");
        notes.push(format!(
            "{}: packed charts are not searched for questions to the cluster: {archives}",
            chart.display()
        ));
    }
    notes
}

/// The files below a directory, sorted. Links that lead out of it were refused before.
fn add_files(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|it| it.path()).collect();
    paths.sort();
    for path in paths {
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => add_files(&path, files),
            Ok(_) => files.push(path),
            Err(_) => {}
        }
    }
}

/// The lines of a template with expressions that depend on the cluster.
fn asked(template: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = template[at..].find("{{").map(|it| it + at) {
        let is_comment = template[start + 2..].trim_start_matches('-').trim_start().starts_with("/*");
        let end_mark = if is_comment { "*/" } else { "}}" };
        let end = template[start..].find(end_mark).map_or(template.len(), |it| it + start);
        if !is_comment {
            let line = 1 + template[..start].matches('\n').count();
            let action = &template[start + 2..end];
            found.extend(ASKS_CLUSTER.iter().filter(|word| has_word(action, word)).map(|word| (line, *word)));
        }
        at = end;
    }
    found
}

/// Whether an action contains a word, outside of strings.
fn has_word(action: &str, word: &str) -> bool {
    let mut outside = String::new();
    let mut quote = None;
    for it in action.chars() {
        match quote {
            Some(open) if it == open => quote = None,
            Some(_) => {}
            None if it == '"' || it == '`' => quote = Some(it),
            None => outside.push(it),
        }
    }
    let is_part = |it: char| it.is_alphanumeric() || it == '_' || it == '.' || it == '$';
    outside.match_indices(word).any(|(start, _)| {
        let before = outside[..start].chars().next_back();
        let after = outside[start + word.len()..].chars().next();
        // `$.Capabilities` is the same field; `.Values.lookup` is another one.
        let begins = before.is_none_or(|it| !is_part(it) || (word.starts_with('.') && it == '$'));
        begins && after.is_none_or(|it| !is_part(it) || (word.starts_with('.') && it == '.'))
    })
}

#[cfg(test)]
mod tests {
    use super::asked;

    #[test]
    fn expressions_that_ask_the_cluster_are_found() {
        assert_eq!(asked("a: 1\n{{- if (lookup \"v1\" \"Secret\" \"a\" \"b\") }}\n"), [(2, "lookup")]);
        assert_eq!(asked("{{ if $.Capabilities.APIVersions.Has \"a/v1\" }}"), [(1, ".Capabilities")]);
        assert_eq!(asked("{{ .Capabilities.KubeVersion }}{{ lookup `v1` }}").len(), 2);
    }

    #[test]
    fn other_uses_of_the_words_are_not_questions() {
        for text in
            ["lookup", "{{ .Values.lookup }}", "{{/* lookup \"v1\" }} */}}", "{{ \"lookup\" }}", "{{ lookups }}"]
        {
            assert_eq!(asked(text), [], "{text}");
        }
    }
}
