//! Namespaces with the same links, drawn as one end.
//!
//! Problem: a picture with a box for each of 200 namespaces cannot be read, and most of them are the same. Strategy:
//! colour refinement. All namespaces begin with one colour. In each round, two namespaces keep their common colour only
//! if their links are equal: the same traffic, to and from the same colours, the same number of times. Namespaces
//! that have one colour in the end are one box.
//!
//! Invariant: the picture claims exactly the links that the single ends have. A link between boxes says to how many
//! members each member has it, unless it has it to all.

use std::collections::BTreeMap;

use super::links::{GraphLink, LinkEnd, LinkMark};
use super::namespaces::NamespaceNames;

/// A link between ends that are numbers, with its traffic as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NumberedLink {
    from: usize,
    to: usize,
    passes: (usize, bool),
}

/// A link as one of its ends sees it: whether it leaves and the colour of the other end, `None` for a link to itself; and
/// its traffic.
type SeenLink = (Option<(bool, usize)>, (usize, bool));

/// How the links of a box to itself are spread: to the own namespace, and to the others.
#[derive(Clone, Copy, Debug, Default)]
struct LinkCounts {
    own: usize,
    others: usize,
}

/// Links with namespaces that are alike as one end; the same links if an end is no single namespace or name.
pub(crate) fn joined(links: Vec<GraphLink>, known: &NamespaceNames) -> Vec<GraphLink> {
    if links.iter().any(|it| it.from.len() != 1 || it.to.len() != 1) {
        return links;
    }
    let ends = numbers(links.iter().flat_map(|it| [&it.from[0], &it.to[0]]));
    let texts = numbers(links.iter().map(|it| it.passes.as_str()));
    let numbered: Vec<NumberedLink> = links
        .iter()
        .map(|it| NumberedLink {
            from: ends[&it.from[0]],
            to: ends[&it.to[0]],
            passes: (texts[it.passes.as_str()], it.mark == LinkMark::Some),
        })
        .collect();
    let names: Vec<&LinkEnd> = in_order(&ends);
    let colors = refined(&names, &numbered);
    let mut boxes: BTreeMap<usize, Vec<&LinkEnd>> = BTreeMap::new();
    colors.iter().zip(&names).for_each(|(color, end)| boxes.entry(*color).or_default().push(end));
    let mut counts: BTreeMap<NumberedLink, LinkCounts> = BTreeMap::new();
    for link in numbered {
        let between = NumberedLink { from: colors[link.from], to: colors[link.to], ..link };
        let count = counts.entry(between).or_default();
        if link.from == link.to { count.own += 1 } else { count.others += 1 }
    }
    let texts: Vec<&str> = in_order(&texts);
    let mut found: Vec<GraphLink> = counts
        .into_iter()
        .map(|(link, count)| {
            let [from, to] = [&boxes[&link.from], &boxes[&link.to]];
            let extent = extent(link.from == link.to, count, from.len(), to.len());
            let passes = format!("{}{extent}", texts[link.passes.0]);
            let mark = if link.passes.1 { LinkMark::Some } else { LinkMark::Plain };
            GraphLink::new(joined_end(from, known), joined_end(to, known), passes, mark)
        })
        .collect();
    found.sort_by(|a, b| (&a.to, &a.from).cmp(&(&b.to, &b.from)));
    found
}

fn numbers<T: Ord>(all: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut found: BTreeMap<T, usize> = all.map(|it| (it, 0)).collect();
    found.values_mut().enumerate().for_each(|(index, number)| *number = index);
    found
}

/// The keys, by their numbers.
fn in_order<T: Copy>(numbers: &BTreeMap<T, usize>) -> Vec<T> {
    numbers.keys().copied().collect()
}

/// The colour of each end. Ends that are no namespace keep a colour of their own.
fn refined(ends: &[&LinkEnd], links: &[NumberedLink]) -> Vec<usize> {
    let mut colors: Vec<usize> =
        ends.iter().enumerate().map(|(index, end)| if end.is_namespace() { 0 } else { index + 1 }).collect();
    let mut count = 0;
    loop {
        let mut seen: Vec<Vec<SeenLink>> = vec![Vec::new(); ends.len()];
        for link in links {
            if link.from == link.to {
                seen[link.from].push((None, link.passes));
            } else {
                seen[link.from].push((Some((true, colors[link.to])), link.passes));
                seen[link.to].push((Some((false, colors[link.from])), link.passes));
            }
        }
        seen.iter_mut().for_each(|it| it.sort_unstable());
        let keys: Vec<_> = colors.iter().copied().zip(seen).collect();
        let distinct = numbers(keys.iter());
        colors = keys.iter().map(|it| distinct[it]).collect();
        if distinct.len() == count {
            return colors;
        }
        count = distinct.len();
    }
}

/// Which of the pairs of two boxes a link is about; empty if it is about all of them.
fn extent(is_same: bool, count: LinkCounts, from: usize, to: usize) -> String {
    if is_same && to == 1 {
        return String::new();
    }
    let others = if is_same { to - 1 } else { to };
    let each = count.others / from;
    match (is_same && count.own > 0, each) {
        (true, 0) => " (within each)".to_owned(),
        (true, each) if each == others => String::new(),
        (true, each) => format!(" (within each, and to {each} of the other {others})"),
        (false, each) if each == others && is_same => " (to each other, not within each)".to_owned(),
        (false, each) if each == others => String::new(),
        (false, each) => format!(" (each to {each} of {others})"),
    }
}

fn joined_end(members: &[&LinkEnd], known: &NamespaceNames) -> LinkEnd {
    match members {
        [only] => (*only).clone(),
        _ => {
            let names: Vec<&str> = members.iter().filter_map(|it| it.whole_namespace()).collect();
            LinkEnd::named(known.words(&names))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(name: &str) -> LinkEnd {
        LinkEnd::of_namespace(name)
    }

    fn link(from: &str, to: &str, passes: &str) -> GraphLink {
        GraphLink::new(end(from), end(to), passes.to_owned(), LinkMark::Plain)
    }

    /// `from -> to: traffic` of each link.
    fn lines(links: Vec<GraphLink>) -> Vec<String> {
        let names = ["a", "b", "c", "d", "hub"];
        let joined = joined(links, &NamespaceNames::new(names));
        joined.iter().map(|it| format!("{} -> {}: {}", it.from[0].name, it.to[0].name, it.passes)).collect()
    }

    #[test]
    fn namespaces_with_equal_links_are_one_box() {
        let mut links = Vec::new();
        for it in ["a", "b", "c", "d"] {
            links.extend([link(it, it, "everything"), link("hub", it, "TCP 80")]);
        }
        let boxed = "namespaces a, b, c, d";
        assert_eq!(
            lines(links),
            [format!("hub -> {boxed}: TCP 80"), format!("{boxed} -> {boxed}: everything (within each)"),]
        );
    }

    #[test]
    fn a_namespace_with_another_link_is_a_box_of_its_own() {
        let links = vec![link("hub", "a", "TCP 80"), link("hub", "b", "TCP 80"), link("hub", "c", "TCP 81")];
        let lines = lines(links);
        assert!(lines.contains(&"hub -> c: TCP 81".to_owned()), "{lines:?}");
        assert!(lines.contains(&"hub -> namespaces a, b: TCP 80".to_owned()), "{lines:?}");
    }

    #[test]
    fn links_to_some_members_say_to_how_many() {
        // A ring: each reaches the next one.
        let links = vec![link("a", "b", "x"), link("b", "c", "x"), link("c", "d", "x"), link("d", "a", "x")];
        assert_eq!(lines(links), ["namespaces a, b, c, d -> namespaces a, b, c, d: x (each to 1 of 3)"]);
    }
}
