//! Links as a Graphviz graph: workloads in a box for each namespace.

use std::collections::{BTreeMap, BTreeSet};

use weir_objects::escape::{self, is_hidden};

use super::links::{GraphLink, LinkEnd, LinkMark};
use crate::page::OutputPage;

/// One digraph.
pub(crate) fn digraph(links: &[GraphLink]) -> OutputPage {
    let ends: BTreeSet<&LinkEnd> = links.iter().flat_map(|it| it.from.iter().chain(&it.to)).collect();
    let numbers: BTreeMap<&LinkEnd, usize> = ends.iter().enumerate().map(|(index, end)| (*end, index)).collect();
    let mut text = "digraph reach {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n".to_owned();
    text.push_str("  edge [fontname=\"sans-serif\", fontsize=10];\n");
    text.push_str(&boxes(&ends, &numbers));
    for (index, link) in links.iter().enumerate().filter(|(_, link)| link.mark != LinkMark::NoSource) {
        text.push_str(&edge(index, link, &numbers));
    }
    text.push_str("}\n");
    let mut page = OutputPage::new();
    page.lines(&text);
    page
}

fn boxes(ends: &BTreeSet<&LinkEnd>, numbers: &BTreeMap<&LinkEnd, usize>) -> String {
    let mut by_namespace: BTreeMap<Option<&str>, Vec<&LinkEnd>> = BTreeMap::new();
    for end in ends {
        by_namespace.entry(end.namespace.as_deref()).or_default().push(end);
    }
    let mut text = String::new();
    for (index, (namespace, ends)) in by_namespace.iter().enumerate() {
        let indent = if namespace.is_some() { "    " } else { "  " };
        if let Some(namespace) = namespace {
            text.push_str(&format!("  subgraph cluster_{index} {{\n    label={};\n", quote(namespace)));
        }
        for end in ends {
            let style = if namespace.is_some() { "" } else { ", style=rounded" };
            text.push_str(&format!("{indent}n{} [label={}{style}];\n", numbers[end], quote(&end.name)));
        }
        text.push_str(if namespace.is_some() { "  }\n" } else { "" });
    }
    text
}

/// Edges from each source to each destination; through a point if there are several sources and several destinations.
fn edge(index: usize, link: &GraphLink, numbers: &BTreeMap<&LinkEnd, usize>) -> String {
    let style = match link.mark {
        LinkMark::Plain | LinkMark::NoSource => "",
        LinkMark::Some => ", style=dashed",
        LinkMark::Added => ", color=\"#1a7f37\", fontcolor=\"#1a7f37\"",
        LinkMark::Removed => ", color=\"#cf222e\", fontcolor=\"#cf222e\", style=dashed",
    };
    let label = quote(&link.passes);
    let number = |end: &LinkEnd| format!("n{}", numbers[end]);
    if link.from.len() == 1 || link.to.len() == 1 {
        let pairs = link.from.iter().flat_map(|from| link.to.iter().map(move |to| (from, to)));
        return pairs.map(|(a, b)| format!("  {} -> {} [label={label}{style}];\n", number(a), number(b))).collect();
    }
    let mut text = format!("  e{index} [shape=point, label=\"\"];\n");
    for from in &link.from {
        text.push_str(&format!("  {} -> e{index} [arrowhead=none{style}];\n", number(from)));
    }
    for to in &link.to {
        text.push_str(&format!("  e{index} -> {} [label={label}{style}];\n", number(to)));
    }
    text
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(letter);
            }
            // A backslash has a meaning in a label.
            letter if is_hidden(letter) => {
                quoted.push_str(&escape::line(letter.encode_utf8(&mut [0; 4])).replace('\\', "\\\\"))
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_cannot_be_closed_from_inside() {
        assert_eq!(quote("a\"];b\\\n"), "\"a\\\"];b\\\\\\\\n\"");
    }
}
