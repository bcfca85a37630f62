//! The list of a report: changes, or open workloads. It is HTML, so that it can be read without scripts.
//!
//! A large list is written in parts: the first rows are in the document, the others in `template` elements, which a
//! browser does not draw before the page's script takes them out. Rows that differ only in their namespace are folded
//! into one.

use std::collections::HashMap;

use weir_objects::diagnostic::FindingPlace;
use weir_objects::origin::FieldOrigin;
use weir_policy::locator::Locator;

use super::markup::Markup;
use super::source_links::SourceLinks;

/// The number of items in the document, and in each further part.
const PART: usize = 100;
/// The smallest number of rows that are folded if they differ only in their namespace.
const FEWEST_FOLDED: usize = 3;
/// The largest number of lines of a rule that are shown, and of characters of a line.
const MOST_LINES: usize = 12;
const LONGEST_LINE: usize = 160;
/// The largest number of rules of a row that are shown with their lines.
const MOST_RULES: usize = 6;

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RowKind {
    Added,
    Removed,
    IsolationEnds,
    IsolationBegins,
    Outside,
    Namespaces,
    NotIsolated,
    /// About pods that could exist.
    Possible,
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct ListRow {
    pub(crate) kind: RowKind,
    /// Empty if the row is not about connections: then `to` is a sentence.
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) ports: String,
    /// The namespace that rows like this one may have in common, to fold them.
    pub(crate) namespace: Option<String>,
    pub(crate) reasons: Vec<String>,
    pub(crate) rules: Vec<RuleText>,
    pub(crate) example: Option<String>,
    /// The number of the change in the page's tables.
    pub(crate) number: Option<usize>,
    /// A gate refuses it.
    pub(crate) is_refused: bool,
}

/// A rule, policy or list with its lines.
#[derive(Clone, Debug)]
pub(crate) struct RuleText {
    /// `now` or `before`; empty if there is only one state.
    pub(crate) when: &'static str,
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) lines: Vec<String>,
    pub(crate) href: Option<String>,
}

/// Lines of a file, from 1 and both ends inclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleLines<'t> {
    pub(crate) file: &'t str,
    /// The whole text of the file.
    pub(crate) text: &'t str,
    pub(crate) line: usize,
    pub(crate) end_line: usize,
}

impl RuleText {
    pub(crate) fn new(when: &'static str, name: String, at: RuleLines<'_>, links: &SourceLinks) -> Self {
        let RuleLines { file, text, line, end_line } = at;
        let number = (end_line + 1).saturating_sub(line).clamp(1, MOST_LINES);
        let shown = text.lines().skip(line.saturating_sub(1)).take(number);
        let lines = shown.map(|it| it.chars().take(LONGEST_LINE).collect()).collect();
        Self { when, name, file: file.to_owned(), line, lines, href: links.href(file, line) }
    }

    /// The lines of a place that a locator found.
    pub(crate) fn at(
        locator: &mut Locator<'_>,
        origin: FieldOrigin,
        name: String,
        links: &SourceLinks,
    ) -> Option<Self> {
        let at = locator.locate(&FindingPlace::Field(origin))?;
        let [line, end_line] = [at.span.start, at.span.end].map(|byte| locator.position(at.file, byte).line);
        let file = locator.sources().file(at.file);
        Some(Self::new("", name, RuleLines { file: &file.name, text: &file.text, line, end_line }, links))
    }
}

/// A row, or rows that differ only in their namespace.
struct ListItem<'r> {
    rows: Vec<&'r ListRow>,
}

/// The items of the list as HTML, in parts.
pub(crate) fn markup(rows: &[ListRow]) -> Markup {
    let mut out = Markup::new();
    let items = folded(rows);
    for (number, part) in items.chunks(PART).enumerate() {
        let (open, close) = match number {
            0 => ("<ul id=\"change-list\" class=\"changes\">", "</ul>"),
            _ => ("<template class=\"more-changes\">", "</template>"),
        };
        out.raw(open);
        part.iter().for_each(|item| write_item(&mut out, item));
        out.raw(close);
    }
    if items.len() > PART {
        out.raw("<p class=\"more\"><button type=\"button\" id=\"more\" hidden>Show more</button> ");
        out.number(items.len() - PART).raw(" more entries are not shown yet.</p>");
    }
    out
}

/// Rows that differ only in their namespace, in the place of the first of them.
fn folded(rows: &[ListRow]) -> Vec<ListItem<'_>> {
    let mut by_key: HashMap<_, Vec<usize>> = HashMap::new();
    let keys: Vec<Option<(RowKind, bool, [String; 3])>> = rows.iter().map(key).collect();
    for (index, key) in keys.iter().enumerate() {
        if let Some(key) = key {
            by_key.entry(key).or_default().push(index);
        }
    }
    let mut items = Vec::new();
    for (index, (row, key)) in rows.iter().zip(&keys).enumerate() {
        let same = key.as_ref().and_then(|key| by_key.get(key)).filter(|same| same.len() >= FEWEST_FOLDED);
        match same {
            Some(same) if same[0] == index => items.push(ListItem { rows: same.iter().map(|it| &rows[*it]).collect() }),
            Some(_) => {}
            None => items.push(ListItem { rows: vec![row] }),
        }
    }
    items
}

/// What rows have in common that are folded: their texts without the namespace.
fn key(row: &ListRow) -> Option<(RowKind, bool, [String; 3])> {
    let namespace = row.namespace.as_deref()?;
    let texts = [&row.from, &row.to, &row.ports].map(|text| without_namespace(text, namespace));
    Some((row.kind, row.is_refused, texts))
}

/// `*` for the namespace in `shop/web`, `namespace shop` and `every pod of shop`.
fn without_namespace(text: &str, namespace: &str) -> String {
    let words = text.split(' ').collect::<Vec<_>>();
    let one = |(index, word): (usize, &&str)| -> String {
        let bare = word.trim_end_matches([',', ';']);
        let before = index.checked_sub(1).map(|it| words[it]);
        if bare == namespace && matches!(before, Some("namespace" | "of")) {
            return word.replacen(namespace, "*", 1);
        }
        match word.strip_prefix(namespace).filter(|rest| rest.starts_with('/')) {
            Some(rest) => format!("*{rest}"),
            None => (*word).to_owned(),
        }
    };
    words.iter().enumerate().map(one).collect::<Vec<_>>().join(" ")
}

fn write_item(out: &mut Markup, item: &ListItem<'_>) {
    let [first, ..] = item.rows[..] else { return };
    if item.rows.len() == 1 {
        return write_row(out, first);
    }
    let names: Vec<&str> = item.rows.iter().filter_map(|it| it.namespace.as_deref()).collect();
    out.raw("<li class=\"change folded ").raw(first.kind.class()).raw("\">");
    write_title(out, first);
    out.raw("<details><summary>The same in ").number(item.rows.len()).raw(" namespaces: ");
    let shown = names.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    out.text(&if names.len() > 5 { format!("{shown} and {} more", names.len() - 5) } else { shown });
    out.raw("</summary><ul class=\"changes\">");
    item.rows.iter().for_each(|row| write_row(out, row));
    out.raw("</ul></details></li>");
}

fn write_row(out: &mut Markup, row: &ListRow) {
    out.raw("<li class=\"change ").raw(row.kind.class()).raw("\"");
    if let Some(number) = row.number {
        out.raw(" data-change=\"").number(number).raw("\"");
    }
    out.raw(">");
    write_title(out, row);
    if let Some(example) = &row.example {
        out.element("<p class=\"example\">", example, "</p>");
    }
    if !row.reasons.is_empty() || !row.rules.is_empty() {
        out.raw("<details><summary>Why, and the lines</summary><ul class=\"reasons\">");
        row.reasons.iter().for_each(|it| _ = out.element("<li>", it, "</li>"));
        out.raw("</ul>");
        row.rules.iter().take(MOST_RULES).for_each(|rule| write_rule(out, rule));
        out.raw("</details>");
    }
    out.raw("</li>");
}

/// The first line of a row: what, from where, to where, which ports, which line.
fn write_title(out: &mut Markup, row: &ListRow) {
    out.raw("<p class=\"title\">");
    out.element("<span class=\"badge\">", row.kind.words(), "</span> ");
    if row.is_refused {
        out.raw("<span class=\"badge refused\">refused</span> ");
    }
    if !row.from.is_empty() {
        out.element("<span class=\"from\">", &row.from, "</span> <span class=\"arrow\">→</span> ");
    }
    out.element("<span class=\"to\">", &row.to, "</span>");
    if !row.ports.is_empty() {
        out.element("<span class=\"colon\">:</span> <span class=\"ports\">", &row.ports, "</span>");
    }
    if let Some(rule) = row.rules.first() {
        out.raw(" <span class=\"rule-name\">");
        if !rule.when.is_empty() {
            out.text(rule.when).raw(" ");
        }
        out.text(&rule.name).raw("</span> ");
        write_place(out, rule);
    }
    out.raw("</p>");
}

fn write_rule(out: &mut Markup, rule: &RuleText) {
    out.raw("<figure><figcaption>");
    if !rule.when.is_empty() {
        out.text(rule.when).raw(": ");
    }
    out.text(&rule.name).raw(" ");
    write_place(out, rule);
    out.raw("</figcaption><pre tabindex=\"0\">");
    for (index, line) in rule.lines.iter().enumerate() {
        out.raw("<span><i>").number(rule.line + index).raw("</i>").text(line).raw("</span>");
    }
    out.raw("</pre></figure>");
}

/// `file:line`, as a link if there is a page that shows it.
fn write_place(out: &mut Markup, rule: &RuleText) {
    let place = format!("{}:{}", rule.file, rule.line);
    match &rule.href {
        Some(href) => out.element("<a class=\"at\" rel=\"noreferrer\" href=\"", href, "\">").element(
            "<code>",
            &place,
            "</code></a>",
        ),
        None => out.element("<code class=\"at\">", &place, "</code>"),
    };
}

impl RowKind {
    fn class(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::IsolationEnds => "added isolation",
            Self::IsolationBegins => "removed isolation",
            Self::Outside | Self::Namespaces | Self::NotIsolated | Self::Possible => "open",
        }
    }

    /// The same as the colour, in words.
    fn words(self) -> &'static str {
        match self {
            Self::Added => "+ newly allowed",
            Self::Removed => "− no longer allowed",
            Self::IsolationEnds => "+ isolation ends",
            Self::IsolationBegins => "− isolation begins",
            Self::Outside => "from outside",
            Self::Namespaces => "from other namespaces",
            Self::NotIsolated => "not isolated",
            Self::Possible => "pods that could exist",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(namespace: &str, ports: &str) -> ListRow {
        ListRow {
            kind: RowKind::Added,
            from: format!("{namespace}/web"),
            to: format!("pods with app=db in namespace {namespace}"),
            ports: ports.to_owned(),
            namespace: Some(namespace.to_owned()),
            reasons: Vec::new(),
            rules: Vec::new(),
            example: None,
            number: None,
            is_refused: false,
        }
    }

    #[test]
    fn rows_that_differ_only_in_their_namespace_are_folded() {
        let rows = [row("a", "TCP 1"), row("b", "TCP 2"), row("b", "TCP 1"), row("web", "TCP 1")];
        let sizes: Vec<usize> = folded(&rows).iter().map(|it| it.rows.len()).collect();
        assert_eq!(sizes, [3, 1]);
        assert_eq!(folded(&rows[..3]).len(), 3, "two are not worth a fold");
    }

    #[test]
    fn only_names_of_namespaces_are_left_out_of_a_key() {
        let text = without_namespace("db/db, every pod of db; pods with app=db in namespace db", "db");
        assert_eq!(text, "*/db, every pod of *; pods with app=db in namespace *");
    }

    #[test]
    fn a_long_list_has_only_its_first_part_in_the_document() {
        let rows: Vec<ListRow> = (0..250).map(|it| row("a", &format!("TCP {it}"))).collect();
        let html = markup(&rows).as_str().to_owned();
        assert_eq!(html.matches("<template").count(), 2);
        assert!(html.contains("150 more entries"), "{html}");
        let document = html.split("<template").next().expect("the first part");
        assert_eq!(document.matches("<li class=\"change ").count(), PART);
    }
}
