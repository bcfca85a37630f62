//! Links as a Mermaid flowchart, which GitHub and GitLab draw in Markdown: a box for each namespace.
//!
//! Mermaid refuses more than 500 edges and 50,000 characters
//! (<https://mermaid.js.org/config/schema-docs/config.html#maxedges>). Links beyond that are left out, and a node and a
//! warning say how many.

use weir_objects::escape::{self, is_hidden};

use super::boxes::{self, LinkEdges, NamespaceBox, NumberedEnds};
use super::links::{GraphLink, LinkEnd, LinkMark};
use crate::page::{self, OutputPage};

/// The most edges that Mermaid draws.
const MOST_EDGES: usize = 500;
/// Mermaid takes 50,000 characters. The rest is for the lines about omitted links.
const MOST_CHARACTERS: usize = 49_000;

/// One flowchart.
pub(crate) fn flowchart(links: &[GraphLink]) -> OutputPage {
    let shown = fitting(links);
    let mut text = drawn(&links[..shown]);
    if shown < links.len() {
        let more = links.len() - shown;
        text.push_str(&format!("  more[\"{more} more links are not drawn: Mermaid draws at most {MOST_EDGES}\"]\n"));
        page::print_to_stderr(format_args!(
            "warning: Mermaid draws at most {MOST_EDGES} edges and 50,000 characters: {more} of {} links are left out; \
             use --focus, --namespace or --by namespace, or `-o dot`",
            links.len()
        ));
    }
    let mut page = OutputPage::new();
    page.lines(&text);
    page
}

/// The number of links that Mermaid can draw.
fn fitting(links: &[GraphLink]) -> usize {
    let mut edges = 0;
    let within = links.iter().take_while(|link| {
        edges += edges_of(link);
        edges <= MOST_EDGES
    });
    let mut count = within.count();
    while drawn(&links[..count]).chars().count() > MOST_CHARACTERS {
        // Fewer by a tenth, since each attempt draws everything again.
        count -= count.div_ceil(10);
    }
    count
}

fn edges_of(link: &GraphLink) -> usize {
    match (link.from.len(), link.to.len()) {
        (from, to) if from > 1 && to > 1 => from + to,
        (from, to) => from * to,
    }
}

fn drawn(links: &[GraphLink]) -> String {
    let ends = NumberedEnds::new(links);
    let mut text = "flowchart LR\n".to_owned();
    ends.boxes().iter().for_each(|it| text.push_str(&box_text(it, &ends)));
    let (mut edge, mut styles) = (0, String::new());
    for (index, link) in links.iter().enumerate().filter(|(_, link)| link.mark != LinkMark::NoSource) {
        let (lines, count) = edges(index, link, &ends);
        text.push_str(&lines);
        if let Some(style) = style(link.mark) {
            let all: Vec<String> = (edge..edge + count).map(|it| it.to_string()).collect();
            styles.push_str(&format!("  linkStyle {} {style}\n", all.join(",")));
        }
        edge += count;
    }
    text + &styles
}

fn box_text(of: &NamespaceBox<'_>, numbers: &NumberedEnds<'_>) -> String {
    let node = |end: &&LinkEnd| format!("{}[{}]\n", numbers.id(end), quote(&end.name));
    let Some(namespace) = of.namespace else {
        return of.ends.iter().map(|end| format!("  {}", node(end))).collect();
    };
    let nodes: String = of.ends.iter().map(|end| format!("    {}", node(end))).collect();
    format!("  subgraph s{}[{}]\n{nodes}  end\n", of.number, quote(namespace))
}

/// The lines of a link, and how many edges they have. Several sources and destinations meet in a point.
fn edges(index: usize, link: &GraphLink, numbers: &NumberedEnds<'_>) -> (String, usize) {
    let label = quote(&link.passes);
    let (plain, arrow) = match link.mark {
        LinkMark::Some | LinkMark::Removed => ("-.-", "-.->"),
        _ => ("---", "-->"),
    };
    let mut text = String::new();
    match boxes::edges(link) {
        LinkEdges::Pairs(pairs) => {
            for (from, to) in pairs {
                text.push_str(&format!("  {} {arrow}|{label}| {}\n", numbers.id(from), numbers.id(to)));
            }
        }
        LinkEdges::ThroughPoint => {
            text.push_str(&format!("  e{index}(( ))\n"));
            link.from.iter().for_each(|it| text.push_str(&format!("  {} {plain} e{index}\n", numbers.id(it))));
            link.to.iter().for_each(|it| text.push_str(&format!("  e{index} {arrow}|{label}| {}\n", numbers.id(it))));
        }
    }
    (text, edges_of(link))
}

fn style(mark: LinkMark) -> Option<&'static str> {
    match mark {
        LinkMark::Added => Some("stroke:#bf8700,color:#bf8700"),
        LinkMark::Removed => Some("stroke:#cf222e,color:#cf222e"),
        LinkMark::Plain | LinkMark::Some | LinkMark::NoSource => None,
    }
}

/// A label. Letters with a meaning for Mermaid, Markdown or HTML are written as entity codes. Mermaid looks for
/// directives (`%%{init: …}%%`) and comments before it parses quotes.
fn quote(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for letter in text.chars() {
        match letter {
            '"' | '#' | '<' | '>' | '&' | '`' | '*' | '_' | ';' | '\\' | '%' | '{' | '}' => {
                quoted.push_str(&format!("#{};", u32::from(letter)));
            }
            letter if is_hidden(letter) => {
                quoted.push_str(&escape::line(letter.encode_utf8(&mut [0; 4])).replace('\\', "#92;"));
            }
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_be_closed_from_inside() {
        assert_eq!(quote("a\"]\n<b>`#"), "\"a#34;]#92;n#60;b#62;#96;#35;\"");
    }

    #[test]
    fn a_name_is_no_directive() {
        let quoted = quote("%%{init: {}}%% %%comment");
        assert!(!quoted.contains(['%', '{', '}']), "{quoted}");
        assert!(quoted.starts_with("\"#37;#37;#123;init: "), "{quoted}");
    }

    #[test]
    fn links_beyond_the_limit_are_counted() {
        let end = |name: String| LinkEnd::named(name);
        let link =
            |it: usize| GraphLink::new(end(format!("a{it}")), end("b".to_owned()), "x".to_owned(), LinkMark::Plain);
        let links: Vec<GraphLink> = (0..700).map(link).collect();
        let page = flowchart(&links);
        assert_eq!(page.as_str().matches("-->").count(), MOST_EDGES);
        assert!(page.as_str().contains("200 more links"), "{}", page.as_str());
    }
}
