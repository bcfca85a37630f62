//! Draws pictures without Graphviz; the same input gives the same bytes.
//!
//! A graph has its sources at the left and its destinations at the right. Each destination is a box with a line for
//! each way in, so no two labels ever meet; curves lead from the sources to these lines. A matrix is a grid of squares.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::folded_table::FoldedTable;
use super::links::{GraphLink, LinkMark};
use super::table::CellKind;
use super::words::xml;
use crate::page::OutputPage;

const LINE: usize = 20;
const GAP: usize = 14;
const MARGIN: usize = 16;
/// A letter of 13 px sans-serif is at most about this wide.
const LETTER: usize = 8;
/// Longer texts are cut; the tooltip has the whole text.
const LONGEST: usize = 44;
/// What the colours of a matrix mean.
const LEGEND: [(&str, CellKind); 4] = [
    ("everything", CellKind::Everything),
    ("some of it", CellKind::Part),
    ("nothing", CellKind::Nothing),
    ("not decided by policy", CellKind::Void),
];
/// The largest number of names in a box; for more, the box has a number and the tooltip all names.
const MOST_NAMES: usize = 10;

const STYLE: &str = "\
.bg{fill:#fff}.box{fill:#f6f8fa;stroke:#8c959f}.head{font-weight:600}.nosource{fill:#57606a;font-style:italic}\
text{font:13px system-ui,sans-serif;fill:#1f2328}path{fill:none;stroke:#57606a;stroke-width:1.2;opacity:.75}\
.some{stroke-dasharray:5 3}path.added{stroke:#1a7f37}path.removed{stroke:#cf222e;stroke-dasharray:5 3}\
text.added{fill:#1a7f37}text.removed{fill:#cf222e}.all{stroke:#9a6700}.arrow{fill:#57606a}\
.none{fill:#fff;stroke:#d0d7de}.part{fill:#9ec5f4;stroke:#57606a}.every{fill:#0b57b4;stroke:#0b57b4}.void{fill:#eaeef2}\
@media(prefers-color-scheme:dark){.bg{fill:#0d1117}.box{fill:#161b22;stroke:#6e7681}text{fill:#e6edf3}\
path{stroke:#9aa4ae}.arrow{fill:#9aa4ae}.all{stroke:#e3b341}path.added{stroke:#56d364}path.removed{stroke:#ff7b72}\
text.added{fill:#56d364}text.removed{fill:#ff7b72}.nosource{fill:#9aa4ae}\
.none{fill:#0d1117;stroke:#30363d}.part{fill:#1f4f87;stroke:#9aa4ae}.every{fill:#79b8ff;stroke:#79b8ff}.void{fill:#161b22}}";

/// A box at the right: a destination, and the links to it.
struct TargetBox<'l> {
    links: &'l [GraphLink],
    top: usize,
    names: usize,
}

/// Links as curves between boxes.
pub(crate) fn graph(links: &[GraphLink], title: &str) -> OutputPage {
    let mut sources: BTreeMap<&str, usize> = BTreeMap::new();
    links.iter().flat_map(|it| &it.from).for_each(|end| _ = sources.insert(&end.name, 0));
    let mut top = MARGIN;
    let targets: Vec<TargetBox<'_>> = links
        .chunk_by(|a, b| a.to == b.to)
        .map(|links| {
            let to = &links[0].to;
            let names = if to.len() > MOST_NAMES { MOST_NAMES + 1 } else { to.len() };
            let target = TargetBox { links, top, names };
            top += (names + links.len()) * LINE + GAP + 8;
            target
        })
        .collect();
    let height = top.max(MARGIN + sources.len() * (LINE + 8 + GAP)) + MARGIN;
    // Sources are spread over the height of their targets.
    let step = (height - 2 * MARGIN) / sources.len().max(1);
    sources.values_mut().enumerate().for_each(|(index, at)| *at = MARGIN + index * step);
    let left_width = width(sources.keys().copied());
    let right = MARGIN + left_width + 220;
    let right_width =
        width(links.iter().flat_map(|it| it.to.iter().map(|it| it.name.as_str()).chain([it.passes.as_str()])));
    let mut text = open(right + right_width + 24 + MARGIN, height, title);
    for target in &targets {
        curves(&mut text, target, &sources, MARGIN + left_width, right);
    }
    for (name, top) in &sources {
        rectangle(&mut text, MARGIN, *top, left_width, LINE + 8);
        label(&mut text, MARGIN + 8, top + 18, name, "head");
    }
    for target in &targets {
        draw_target(&mut text, target, right, right_width + 24);
    }
    text.push_str("</svg>\n");
    let mut page = OutputPage::new();
    page.lines(&text);
    page
}

fn width<'t>(texts: impl Iterator<Item = &'t str>) -> usize {
    texts.map(|it| it.chars().count().min(LONGEST)).max().unwrap_or(0) * LETTER + 16
}

fn draw_target(text: &mut String, target: &TargetBox<'_>, left: usize, width: usize) {
    let to = &target.links[0].to;
    rectangle(text, left, target.top, width, (target.names + target.links.len()) * LINE + 8);
    let mut at = target.top + 18;
    for end in to.iter().take(MOST_NAMES) {
        label(text, left + 8, at, &end.name, "head");
        at += LINE;
    }
    if to.len() > MOST_NAMES {
        let all: Vec<&str> = to.iter().map(|it| it.name.as_str()).collect();
        let more = format!("and {} more", to.len() - MOST_NAMES);
        _ = write!(text, "<g><title>{}</title>", xml(&all.join(", ")));
        label(text, left + 8, at, &more, "head");
        text.push_str("</g>\n");
        at += LINE;
    }
    for link in target.links {
        match link.mark {
            LinkMark::NoSource => label(text, left + 20, at, "no source", "nosource"),
            LinkMark::Added => label(text, left + 20, at, &link.passes, "added"),
            LinkMark::Removed => label(text, left + 20, at, &link.passes, "removed"),
            _ => label(text, left + 20, at, &link.passes, ""),
        }
        at += LINE;
    }
}

fn curves(text: &mut String, target: &TargetBox<'_>, sources: &BTreeMap<&str, usize>, left: usize, right: usize) {
    for (slot, link) in target.links.iter().enumerate().filter(|(_, link)| link.mark != LinkMark::NoSource) {
        let y = target.top + (target.names + slot) * LINE + 14;
        let class = match (link.mark, link.passes.as_str()) {
            (LinkMark::Some, _) => " class=\"some\"",
            (LinkMark::Added, _) => " class=\"added\"",
            (LinkMark::Removed, _) => " class=\"removed\"",
            (_, "everything") => " class=\"all\"",
            _ => "",
        };
        for from in &link.from {
            let start = sources.get(from.name.as_str()).copied().unwrap_or(0) + 14;
            let middle = (left + right) / 2;
            _ = writeln!(text, "<path{class} d=\"M{left} {start}C{middle} {start} {middle} {y} {right} {y}\"/>");
        }
        _ = writeln!(text, "<path class=\"arrow\" d=\"M{right} {y}h14\"/>");
        _ = writeln!(
            text,
            "<polygon class=\"arrow\" points=\"{0},{1} {0},{2} {3},{y}\"/>",
            right + 10,
            y - 4,
            y + 4,
            right + 16
        );
    }
}

/// A grid of squares, filled by how much passes.
pub(crate) fn matrix(folded: &FoldedTable<'_>) -> OutputPage {
    const SIDE: usize = 22;
    let (table, lines) = (folded.table, &folded.lines);
    let names = width(lines.iter().map(|it| it.label.as_str()));
    let digits = (lines.len().to_string().len() + 1) * LETTER;
    let left = MARGIN + digits + names;
    let top = MARGIN + LINE + digits;
    let size = lines.len() * SIDE;
    let mut notes = folded.legend();
    if lines.iter().any(|it| folded.values(it, it).1.is_some()) {
        notes.push("a square in two halves: left within a namespace, right between two namespaces".to_owned());
    }
    let bottom = top + size + GAP;
    let width = (left + size).max(left + 200).max(MARGIN + widest(&notes)) + MARGIN;
    let height = bottom + (LEGEND.len() + notes.len()) * LINE + MARGIN;
    let mut text = open(width, height, "Who can reach whom: from rows to columns");
    for index in 0..lines.len() {
        let x = left + index * SIDE + SIDE / 2;
        _ = writeln!(text, "<text text-anchor=\"middle\" x=\"{x}\" y=\"{}\">{}</text>", top - 6, index + 1);
    }
    for (number, from) in lines.iter().enumerate() {
        let y = top + number * SIDE;
        label(&mut text, MARGIN, y + 16, &(number + 1).to_string(), "");
        label(&mut text, MARGIN + digits, y + 16, &from.label, "head");
        for (column, to) in lines.iter().enumerate() {
            let x = left + column * SIDE;
            let (within, between) = folded.values(from, to);
            let [within, between] = [Some(within), between].map(|it| it.map(|it| &table.values[it]));
            let title = |words: &str| format!("{} to {}: {words}", from.label, to.label);
            match (within, between) {
                (Some(within), Some(between)) => {
                    let words = title(&format!("{} within a namespace, {} between two", within.words, between.words));
                    rectangle_of(&mut text, (x, y), (SIDE / 2 - 1, SIDE - 2), within.kind, &words);
                    rectangle_of(&mut text, (x + SIDE / 2 - 1, y), (SIDE / 2 - 1, SIDE - 2), between.kind, &words);
                }
                (Some(cell), None) | (None, Some(cell)) => {
                    rectangle_of(&mut text, (x, y), (SIDE - 2, SIDE - 2), cell.kind, &title(&cell.words));
                }
                (None, None) => {}
            }
        }
    }
    for (index, (words, kind)) in LEGEND.into_iter().enumerate() {
        let y = bottom + index * LINE;
        rectangle_of(&mut text, (left, y), (14, 14), kind, words);
        label(&mut text, left + 22, y + 12, words, "");
    }
    for (index, words) in notes.iter().enumerate() {
        let y = bottom + (LEGEND.len() + index) * LINE + 12;
        _ = writeln!(text, "<text x=\"{MARGIN}\" y=\"{y}\">{}</text>", xml(words));
    }
    text.push_str("</svg>\n");
    let mut page = OutputPage::new();
    page.lines(&text);
    page
}

/// The width of texts that are not cut.
fn widest(texts: &[String]) -> usize {
    texts.iter().map(|it| it.chars().count()).max().unwrap_or(0) * LETTER
}

/// Draws a value. A partial one also has a diagonal line, so that it differs not only by its colour.
fn rectangle_of(
    text: &mut String,
    (x, y): (usize, usize),
    (width, height): (usize, usize),
    kind: CellKind,
    title: &str,
) {
    let class = match kind {
        CellKind::Everything => "every",
        CellKind::Part => "part",
        CellKind::Nothing => "none",
        CellKind::Void | CellKind::Hidden => "void",
    };
    _ = write!(text, "<g><title>{}</title>", xml(title));
    _ = write!(text, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>");
    if kind == CellKind::Part {
        _ = write!(text, "<path d=\"M{x} {}l{width} -{height}\"/>", y + height);
    }
    text.push_str("</g>\n");
}

fn open(width: usize, height: usize, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"{width}\" height=\"{height}\"/>\n"
    )
}

fn rectangle(text: &mut String, x: usize, y: usize, width: usize, height: usize) {
    _ = writeln!(text, "<rect class=\"box\" rx=\"4\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>");
}

fn label(text: &mut String, x: usize, y: usize, words: &str, class: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let cut: String = words.chars().take(LONGEST).collect();
    match cut.len() < words.len() {
        true => {
            let (cut, words) = (xml(&cut), xml(words));
            _ = writeln!(text, "<text{class} x=\"{x}\" y=\"{y}\">{cut}…<title>{words}</title></text>");
        }
        false => _ = writeln!(text, "<text{class} x=\"{x}\" y=\"{y}\">{}</text>", xml(words)),
    }
}
