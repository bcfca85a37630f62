//! Links for languages of graphs: numbered ends in boxes by namespace, and the edges of a link.

use std::collections::{BTreeMap, BTreeSet};

use super::links::{GraphLink, LinkEnd};

/// The ends of all links, with their numbers.
pub(super) struct NumberedEnds<'l> {
    numbers: BTreeMap<&'l LinkEnd, usize>,
}

/// The ends of one namespace, or those without a namespace.
pub(super) struct NamespaceBox<'l> {
    pub(super) number: usize,
    pub(super) namespace: Option<&'l str>,
    pub(super) ends: Vec<&'l LinkEnd>,
}

/// How a link is drawn.
pub(super) enum LinkEdges<'l> {
    /// One edge for each pair.
    Pairs(Vec<(&'l LinkEnd, &'l LinkEnd)>),
    /// Several sources and several destinations meet in a point.
    ThroughPoint,
}

impl<'l> NumberedEnds<'l> {
    pub(super) fn new(links: &'l [GraphLink]) -> Self {
        let ends: BTreeSet<&LinkEnd> = links.iter().flat_map(|it| it.from.iter().chain(&it.to)).collect();
        Self { numbers: ends.into_iter().enumerate().map(|(index, end)| (end, index)).collect() }
    }

    /// The identifier of an end in the text.
    pub(super) fn id(&self, end: &LinkEnd) -> String {
        format!("n{}", self.numbers[end])
    }

    pub(super) fn boxes(&self) -> Vec<NamespaceBox<'l>> {
        let mut by_namespace: BTreeMap<Option<&str>, Vec<&LinkEnd>> = BTreeMap::new();
        for end in self.numbers.keys() {
            by_namespace.entry(end.namespace.as_deref()).or_default().push(end);
        }
        let boxes = by_namespace.into_iter().enumerate();
        boxes.map(|(number, (namespace, ends))| NamespaceBox { number, namespace, ends }).collect()
    }
}

pub(super) fn edges(link: &GraphLink) -> LinkEdges<'_> {
    match link.from.len() == 1 || link.to.len() == 1 {
        true => LinkEdges::Pairs(link.from.iter().flat_map(|from| link.to.iter().map(move |to| (from, to))).collect()),
        false => LinkEdges::ThroughPoint,
    }
}
