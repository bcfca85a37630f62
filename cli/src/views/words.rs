//! Ends and port sets, in words and as JSON.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Value, json};
use weir_analysis::reach::edges::{EndGroup, NamespaceOrOutside};
use weir_analysis::reach::{CellCache, CellId, Party, Passes, Reach, ports};
use weir_objects::address::{Family, Prefix, to_address, to_number};
use weir_objects::escape::{self, is_hidden};

/// The largest number of ranges that are listed; for more, the first ones and the number.
const MOST_RANGES: usize = 8;

pub(crate) const OUTSIDE: &str = "any address outside";

/// One end, for people.
pub(crate) fn group(reach: &Reach<'_>, group: &EndGroup) -> String {
    match group {
        EndGroup::Everyone => "every pod and address".to_owned(),
        EndGroup::Pods => "every pod".to_owned(),
        EndGroup::Namespace(id) => format!("every pod of {}", reach.namespace(*id)),
        EndGroup::Party(index) => reach.party_name(&reach.parties[*index as usize]),
        EndGroup::Outside => OUTSIDE.to_owned(),
        EndGroup::Ranges(all) => ranges(all),
    }
}

/// Several ends, for people.
pub(crate) fn groups(reach: &Reach<'_>, all: &[EndGroup]) -> String {
    match all {
        [] => "no source".to_owned(),
        all => all.iter().map(|it| group(reach, it)).collect::<Vec<_>>().join(", "),
    }
}

/// `10.0.0.0/8, 192.0.2.1-192.0.2.7`, or the addresses that are left out, if that is shorter.
pub(crate) fn ranges(all: &[(IpAddr, IpAddr)]) -> String {
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return String::new() };
    let family = Family::of(first.0);
    let most = if family == Family::V4 { u128::from(u32::MAX) } else { u128::MAX };
    if to_number(first.0).1 != 0 || to_number(last.1).1 != most {
        return list(all);
    }
    let holes: Vec<(IpAddr, IpAddr)> = all
        .iter()
        .zip(all.iter().skip(1))
        .map(|(a, b)| (to_address(family, to_number(a.1).1 + 1), to_address(family, to_number(b.0).1 - 1)))
        .collect();
    match holes.is_empty() {
        true => format!("any {family} address outside"),
        false => format!("any {family} address outside but {}", list(&holes)),
    }
}

fn list(all: &[(IpAddr, IpAddr)]) -> String {
    let mut text = all.iter().take(MOST_RANGES).map(|it| range(*it)).collect::<Vec<_>>().join(", ");
    if all.len() > MOST_RANGES {
        _ = write!(text, " and {} more ranges", all.len() - MOST_RANGES);
    }
    text
}

/// A range as a prefix if it is one, else as its first and last address.
pub(crate) fn range((first, last): (IpAddr, IpAddr)) -> String {
    if first == last {
        return first.to_string();
    }
    Prefix::exactly(first, last).map_or_else(|| format!("{first}-{last}"), |it| it.to_string())
}

/// A namespace, or outside.
pub(crate) fn place(reach: &Reach<'_>, place: NamespaceOrOutside) -> String {
    place.map_or_else(|| OUTSIDE.to_owned(), |id| reach.namespace(id).to_owned())
}

/// One end, for programs.
pub(crate) fn group_json(reach: &Reach<'_>, group: &EndGroup) -> Value {
    match group {
        EndGroup::Everyone => json!({"kind": "everyone"}),
        EndGroup::Pods => json!({"kind": "pods"}),
        EndGroup::Namespace(id) => json!({"kind": "namespace", "namespace": reach.namespace(*id)}),
        EndGroup::Party(index) => party_json(reach, &reach.parties[*index as usize]),
        EndGroup::Outside => json!({"kind": "outside"}),
        EndGroup::Ranges(all) => {
            json!({"kind": "ranges", "ranges": all.iter().map(|it| range(*it)).collect::<Vec<_>>()})
        }
    }
}

pub(crate) fn party_json(reach: &Reach<'_>, party: &Party) -> Value {
    json!({
        "kind": "workload",
        "namespace": reach.namespace(party.namespace),
        "name": party.name,
        "workload": party.kind,
        "members": party.members.iter().map(|id| &reach.cluster.endpoints[id.index()].name).collect::<Vec<_>>(),
    })
}

/// What passes, for programs: one entry for each family, or one for both.
pub(crate) fn passes_json(reach: &Reach<'_>, cells: &CellCache<'_>, passes: Passes) -> Value {
    match passes {
        Passes::Cell(cell) => json!([cell_json(reach, cells, cell, None)]),
        Passes::ByFamily(v4, v6) => {
            json!([cell_json(reach, cells, v4, Some("IPv4")), cell_json(reach, cells, v6, Some("IPv6"))])
        }
    }
}

/// `other` is everything that `ports` does not name: other ports, and protocols without ports.
pub(crate) fn cell_json(reach: &Reach<'_>, cells: &CellCache<'_>, cell: CellId, family: Option<&str>) -> Value {
    let atoms = &reach.classes.atoms;
    let (other, specs) = ports::parts(atoms, cells.set(cell));
    let specs: Vec<Value> = specs
        .iter()
        .map(|it| json!({"protocol": ports::name(it.protocol), "first": it.first, "last": it.last}))
        .collect();
    json!({
        "family": family,
        "words": ports::words(atoms, cells.set(cell)),
        "other": if other { "allow" } else { "deny" },
        "ports": specs,
    })
}

/// A field of a CSV file.
pub(crate) fn csv(text: &str) -> String {
    let text = escape::line(text);
    // A spreadsheet would read such a text as a formula.
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.into_owned() };
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// The entity of XML and HTML for a letter of their syntax.
fn entity(letter: char) -> &'static str {
    match letter {
        '<' => "&lt;",
        '>' => "&gt;",
        '&' => "&amp;",
        '"' => "&quot;",
        _ => "&#39;",
    }
}

/// Text inside of a Markdown table.
pub(crate) fn md(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' => escaped.push_str(entity(letter)),
            // A name must not notify a user of GitHub.
            '@' => escaped.push_str("&#64;"),
            letter if is_hidden(letter) => {
                escaped.push_str(&escape::line(letter.encode_utf8(&mut [0; 4])).replace('\\', "\\\\"))
            }
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '#' | '!' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// Text inside of XML and HTML, in attributes too. Hidden letters, some of which XML cannot hold, are written out.
pub(crate) fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '"' | '\'' => escaped.push_str(entity(letter)),
            letter if is_hidden(letter) => escape::push(&mut escaped, letter),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pairs: &[(&str, &str)], expected: &str) {
        let parse = |text: &str| text.parse::<IpAddr>().expect(text);
        let all: Vec<_> = pairs.iter().map(|(first, last)| (parse(first), parse(last))).collect();
        assert_eq!(ranges(&all), expected);
    }

    #[test]
    fn ranges_are_written_in_their_shortest_form() {
        check(&[("10.0.0.0", "10.255.255.255"), ("192.0.2.1", "192.0.2.1")], "10.0.0.0/8, 192.0.2.1");
        check(&[("10.0.0.1", "10.0.0.2")], "10.0.0.1-10.0.0.2");
        check(&[("0.0.0.0", "255.255.255.255")], "any IPv4 address outside");
        check(&[("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")], "any IPv6 address outside");
        check(
            &[("0.0.0.0", "169.254.169.253"), ("169.254.169.255", "255.255.255.255")],
            "any IPv4 address outside but 169.254.169.254",
        );
    }

    #[test]
    fn many_ranges_are_counted() {
        let all: Vec<(String, String)> = (0..20).map(|it| (format!("10.0.{it}.1"), format!("10.0.{it}.1"))).collect();
        let all: Vec<(&str, &str)> = all.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let shown = (0..8).map(|it| format!("10.0.{it}.1")).collect::<Vec<_>>().join(", ");
        check(&all, &format!("{shown} and 12 more ranges"));
    }

    #[test]
    fn names_are_escaped_for_each_format() {
        assert_eq!(xml("</script><a b='c\">&\u{1}"), "&lt;/script&gt;&lt;a b=&#39;c&quot;&gt;&amp;\\u{1}");
        assert_eq!(md("a|b`c*d_<x>\n@all"), "a\\|b\\`c\\*d\\_&lt;x&gt;\\\\n&#64;all");
        assert_eq!(csv("a,b\"c"), "\"a,b\"\"c\"");
        assert_eq!(csv("=1+1"), "'=1+1");
    }
}
