//! Links as a Graphviz graph: workloads in a box for each namespace.

use weir_objects::escape::{self, is_hidden};

use super::boxes::{self, LinkEdges, NamespaceBox, NumberedEnds};
use super::links::{GraphLink, LinkEnd, LinkMark};
use crate::page::OutputPage;

/// One digraph.
pub(crate) fn digraph(links: &[GraphLink]) -> OutputPage {
    let ends = NumberedEnds::new(links);
    let mut text = "digraph reach {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n".to_owned();
    text.push_str("  edge [fontname=\"sans-serif\", fontsize=10];\n");
    ends.boxes().iter().for_each(|it| text.push_str(&box_text(it, &ends)));
    for (index, link) in links.iter().enumerate().filter(|(_, link)| link.mark != LinkMark::NoSource) {
        text.push_str(&edge(index, link, &ends));
    }
    text.push_str("}\n");
    let mut page = OutputPage::new();
    page.lines(&text);
    page
}

fn box_text(of: &NamespaceBox<'_>, numbers: &NumberedEnds<'_>) -> String {
    let node = |end: &&LinkEnd, style: &str| format!("{} [label={}{style}];\n", numbers.id(end), quote(&end.name));
    let Some(namespace) = of.namespace else {
        return of.ends.iter().map(|end| format!("  {}", node(end, ", style=rounded"))).collect();
    };
    let nodes: String = of.ends.iter().map(|end| format!("    {}", node(end, ""))).collect();
    format!("  subgraph cluster_{} {{\n    label={};\n{nodes}  }}\n", of.number, quote(namespace))
}

/// Edges from each source to each destination; through a point if there are several sources and several destinations.
fn edge(index: usize, link: &GraphLink, numbers: &NumberedEnds<'_>) -> String {
    let style = match link.mark {
        LinkMark::Plain | LinkMark::NoSource => "",
        LinkMark::Some => ", style=dashed",
        LinkMark::Added => ", color=\"#1a7f37\", fontcolor=\"#1a7f37\"",
        LinkMark::Removed => ", color=\"#cf222e\", fontcolor=\"#cf222e\", style=dashed",
    };
    let label = quote(&link.passes);
    if let LinkEdges::Pairs(pairs) = boxes::edges(link) {
        let one = |(from, to)| format!("  {} -> {} [label={label}{style}];\n", numbers.id(from), numbers.id(to));
        return pairs.into_iter().map(one).collect();
    }
    let mut text = format!("  e{index} [shape=point, label=\"\"];\n");
    for from in &link.from {
        text.push_str(&format!("  {} -> e{index} [arrowhead=none{style}];\n", numbers.id(from)));
    }
    for to in &link.to {
        text.push_str(&format!("  e{index} -> {} [label={label}{style}];\n", numbers.id(to)));
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
