//! Describes groups in few words: by namespace and label if that is exactly the group, otherwise by name and number.
//!
//! Invariants: a description by namespace or label means exactly the members, on every side where they exist. Groups
//! without such a description are listed, with the number of members that are not shown.

use std::collections::{BTreeMap, HashMap};

use super::{Diff, DiffEndpoint, Presence, RowEnd, ServiceAddress, possible};
use weir_model::controllers::VOLATILE_LABELS;
use weir_model::{Cluster, EndpointId};
use weir_objects::k8s::Labels;

/// At most this many names are listed.
const MOST_NAMES: usize = 3;
/// Pairs of labels are tried in namespaces of up to this many endpoints.
const MOST_FOR_PAIRS: usize = 2_000;

/// Describes groups of a comparison's endpoints.
pub struct Namer<'a> {
    clusters: [Option<&'a Cluster>; 2],
    endpoints: &'a [DiffEndpoint],
    services: &'a [ServiceAddress],
    /// Counts by the row's presence, since "all" means all endpoints that the row could be about.
    counts: [GroupSizes<'a>; 3],
}

type LabelPair<'a> = (&'a str, &'a str);

/// The number of endpoints in each group that a description can name.
#[derive(Default)]
struct GroupSizes<'a> {
    all: usize,
    namespaces: BTreeMap<&'a str, usize>,
    labels: HashMap<LabelPair<'a>, usize>,
    of_namespace: HashMap<(&'a str, LabelPair<'a>), usize>,
}

impl<'a> Namer<'a> {
    /// A namer for a comparison of two clusters; the base is `None` for a survey.
    pub fn new(base: Option<&'a Cluster>, head: &'a Cluster, diff: &'a Diff) -> Self {
        let mut it = Self {
            clusters: [base, Some(head)],
            endpoints: &diff.endpoints,
            services: &diff.services,
            counts: Default::default(),
        };
        it.counts = [Presence::Kept, Presence::Appeared, Presence::Disappeared].map(|presence| it.count(presence));
        it
    }

    /// The participants of a party, in words.
    pub fn party(&self, party: &RowEnd, presence: Presence) -> String {
        if !party.pods.is_empty() {
            return possible::text(party);
        }
        let mut parts = Vec::new();
        if !party.endpoints.is_empty() {
            parts.push(self.endpoints(&party.endpoints, presence));
        }
        if !party.ranges.is_empty() {
            parts.push(super::ranges::text(&party.ranges));
        }
        parts.extend((!party.services.is_empty()).then(|| self.services(&party.services)));
        parts.join(", and ")
    }

    /// Endpoints, in words.
    pub fn endpoints(&self, members: &[u32], presence: Presence) -> String {
        let counts = &self.counts[presence as usize];
        let sort = sort(members.iter().map(|it| &self.endpoints[*it as usize]));
        if let [one] = members {
            return self.name(*one);
        }
        // Members are distinct, so equal numbers mean equal sets. Comparing the sets would cost the product of rows and
        // endpoints.
        if members.len() == counts.all {
            return format!("all {sort}");
        }
        let mut by_namespace: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for member in members {
            by_namespace.entry(&self.endpoints[*member as usize].namespace).or_default().push(*member);
        }
        // A label across namespaces comes before the list of namespaces: it is shorter, and it is how a
        // `namespaceSelector: {}` with a `podSelector` reads.
        if by_namespace.len() > 1
            && let Some(label) = self.label(members, |label| counts.labels.get(&label).copied())
        {
            return format!("{sort} with {label}, in any namespace");
        }
        let is_whole = |namespace: &str, members: &[u32]| counts.namespaces.get(namespace) == Some(&members.len());
        // Whole namespaces need no names of pods, and several of them share one phrase.
        let (whole, partial): (Vec<_>, Vec<_>) = by_namespace.into_iter().partition(|(name, of)| is_whole(name, of));
        let whole: Vec<&str> = whole.into_iter().map(|(name, _)| name).collect();
        if let Some(text) = self.all_but(counts, &whole, &partial, &sort) {
            return text;
        }
        let mut parts = Vec::new();
        if !whole.is_empty() {
            parts.push(self.namespaces(&whole, &sort));
        }
        // One fewer if some are left out: "N more" takes the place of one.
        let shown = if partial.len() > MOST_NAMES { MOST_NAMES - 1 } else { partial.len() };
        parts.extend(partial.iter().take(shown).map(|(namespace, of)| self.within(counts, namespace, of)));
        if let Some(rest) = partial.get(shown..).filter(|rest| !rest.is_empty()) {
            let count: usize = rest.iter().map(|(_, of)| of.len()).sum();
            parts.push(format!("{count} more in {} other namespaces", rest.len()));
        }
        parts.join("; ")
    }

    /// One endpoint: pods by name, workloads with their kind.
    pub fn name(&self, endpoint: u32) -> String {
        let it = &self.endpoints[endpoint as usize];
        match it.kind.as_str() {
            "Pod" => format!("{}/{}", it.namespace, it.name),
            kind => format!("{kind} {}/{}", it.namespace, it.name),
        }
    }

    fn services(&self, services: &[u32]) -> String {
        let name = |index: &u32| {
            let service = &self.services[*index as usize];
            let mut names = Vec::new();
            for (cluster, ids) in self.clusters.iter().zip(&service.services) {
                let Some(cluster) = cluster else { continue };
                // From both sides: a change can be that another service has the address now.
                names.extend(ids.iter().map(|id| cluster.service_name(*id)));
            }
            names.sort();
            names.dedup();
            format!("{} ({})", names.join(", "), service.address)
        };
        let names: Vec<String> = services.iter().map(name).collect();
        let word = if names.len() == 1 { "service" } else { "services" };
        format!("{word} {}", some(&names))
    }

    /// "All but" a few namespaces, if the group contains most namespaces as a whole.
    fn all_but(
        &self,
        counts: &GroupSizes<'a>,
        whole: &[&str],
        partial: &[(&str, Vec<u32>)],
        sort: &str,
    ) -> Option<String> {
        let others: Vec<String> =
            counts.namespaces.keys().filter(|it| !whole.contains(it)).map(|it| (*it).to_owned()).collect();
        // A reader has to subtract the namespaces in mind, so there may only be few, and the result must be shorter.
        let few = partial.is_empty() && others.len() <= 2 && whole.len() > 2 * others.len();
        few.then(|| format!("all {sort} outside namespace{} {}", plural(others.len()), others.join(", ")))
    }

    fn namespaces(&self, whole: &[&str], sort: &str) -> String {
        let names: Vec<String> = whole.iter().map(|it| (*it).to_owned()).collect();
        match self.namespace_label(whole) {
            Some(label) if whole.len() > 1 => format!("all {sort} of namespaces with {label}"),
            _ => format!("all {sort} of namespace{} {}", plural(names.len()), some(&names)),
        }
    }

    /// A label that exactly these namespaces have, on every side.
    fn namespace_label(&self, whole: &[&str]) -> Option<String> {
        let first = whole.first()?;
        let labels_of = |cluster: &'a Cluster, name: &str| -> Option<&'a Labels> {
            let found = cluster.namespaces.binary_search_by(|it| it.name.as_str().cmp(name)).ok()?;
            Some(cluster.labels.labels(cluster.namespaces[found].labels))
        };
        let clusters: Vec<&Cluster> = self.clusters.iter().flatten().copied().collect();
        let of_first = clusters.iter().find_map(|it| labels_of(it, first))?;
        let is_exact = |key: &str, value: &str| {
            clusters.iter().all(|cluster| {
                // Namespaces without endpoints as well: the text says "namespaces with this label", and readers check
                // it in the cluster.
                cluster.namespaces.iter().all(|namespace| {
                    let has = cluster.labels.labels(namespace.labels).get(key) == Some(value);
                    has == whole.contains(&namespace.name.as_str())
                })
            })
        };
        let found = of_first.iter().find(|(key, value)| is_exact(key, value));
        found.map(|(key, value)| format!("{key}={value}"))
    }

    /// A part of a namespace: by label, or by name.
    fn within(&self, counts: &GroupSizes<'a>, namespace: &'a str, members: &[u32]) -> String {
        let sort = sort(members.iter().map(|it| &self.endpoints[*it as usize]));
        if let [one] = members {
            return self.name(*one);
        }
        let of_label = |label| counts.of_namespace.get(&(namespace, label)).copied();
        if counts.namespaces.get(namespace) == Some(&members.len()) {
            return format!("all {sort} of namespace {namespace}");
        }
        if let Some(label) = self.label(members, of_label) {
            return format!("{sort} with {label} in namespace {namespace}");
        }
        // Two labels only after one has failed: the search costs the square of the labels.
        if let Some(labels) = self.two_labels(namespace, members) {
            return format!("{sort} with {labels} in namespace {namespace}");
        }
        let names: Vec<String> = members.iter().map(|it| self.endpoints[*it as usize].name.clone()).collect();
        let of = counts.namespaces.get(namespace).copied().unwrap_or_default();
        format!("{} of {of} {sort} of namespace {namespace}: {}", names.len(), some(&names))
    }

    /// A label that exactly these members have: all of them on every side, and no other endpoint.
    fn label(&self, members: &[u32], count: impl Fn(LabelPair<'a>) -> Option<usize>) -> Option<String> {
        // A label of all members is a label of the first one, so only its labels are tried.
        let mut candidates = self.labels_of(*members.first()?).into_iter();
        let found = candidates.find(|label| {
            // Both are needed: the count shows that no other endpoint has the label, `has_everywhere` that no member
            // lacks it on the side that the reader looks at.
            count(*label) == Some(members.len()) && members.iter().all(|it| self.has_everywhere(*it, *label))
        });
        found.map(|(key, value)| format!("{key}={value}"))
    }

    fn two_labels(&self, namespace: &str, members: &[u32]) -> Option<String> {
        let first = self.labels_of(*members.first()?);
        let common: Vec<LabelPair<'a>> =
            first.into_iter().filter(|label| members.iter().all(|it| self.has_everywhere(*it, *label))).collect();
        let of_namespace: Vec<u32> = (0..self.endpoints.len() as u32)
            .filter(|it| self.endpoints[*it as usize].namespace == namespace)
            // One more than the limit, to notice that there are more, without collecting all of them.
            .take(MOST_FOR_PAIRS + 1)
            .collect();
        if of_namespace.len() > MOST_FOR_PAIRS {
            return None;
        }
        for (index, one) in common.iter().enumerate() {
            for other in &common[index + 1..] {
                let have =
                    // On any side: if another endpoint has the labels on one side only, the description would be wrong
                    // there.
                    of_namespace.iter().filter(|it| self.has_somewhere(**it, *one) && self.has_somewhere(**it, *other));
                if have.count() == members.len() {
                    return Some(format!("{}={}, {}={}", one.0, one.1, other.0, other.1));
                }
            }
        }
        None
    }

    fn label_sets(&self, endpoint: u32) -> impl Iterator<Item = &'a Labels> {
        let on = |(cluster, id): (Option<&'a Cluster>, Option<EndpointId>)| {
            let cluster = cluster?;
            Some(cluster.labels.labels(cluster.endpoints[id?.index()].labels))
        };
        self.clusters.into_iter().zip(self.endpoints[endpoint as usize].ids).filter_map(on)
    }

    /// Its labels on any side, without those that controllers generate.
    fn labels_of(&self, endpoint: u32) -> Vec<LabelPair<'a>> {
        let mut all: Vec<LabelPair<'a>> = self.label_sets(endpoint).flatten().collect();
        // A hash is exactly on the pods of one ReplicaSet, so it would often be an exact label, and it says nothing to
        // a reader.
        all.retain(|(key, _)| !VOLATILE_LABELS.contains(key));
        all.sort_unstable();
        all.dedup();
        all
    }

    fn has_everywhere(&self, endpoint: u32, (key, value): LabelPair<'_>) -> bool {
        self.label_sets(endpoint).all(|labels| labels.get(key) == Some(value))
    }

    fn has_somewhere(&self, endpoint: u32, (key, value): LabelPair<'_>) -> bool {
        self.label_sets(endpoint).any(|labels| labels.get(key) == Some(value))
    }

    fn count(&self, presence: Presence) -> GroupSizes<'a> {
        let mut counts = GroupSizes::default();
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let [base, head] = endpoint.ids.map(|it| it.is_some());
            let takes_part = match presence {
                Presence::Kept => base && head,
                // Also endpoints that both sides have: new endpoints reach old ones, and "all pods" in such a row means
                // all of the head.
                Presence::Appeared => head,
                Presence::Disappeared => base,
            };
            if !takes_part {
                continue;
            }
            counts.all += 1;
            *counts.namespaces.entry(&endpoint.namespace).or_default() += 1;
            for label in self.labels_of(index as u32) {
                *counts.labels.entry(label).or_default() += 1;
                *counts.of_namespace.entry((&endpoint.namespace, label)).or_default() += 1;
            }
        }
        counts
    }
}

/// The common noun for the endpoints.
fn sort<'e>(endpoints: impl Iterator<Item = &'e DiffEndpoint>) -> String {
    let mut kinds: Vec<&str> = endpoints.map(|it| it.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    match kinds[..] {
        ["Pod"] => "pods".to_owned(),
        _ if kinds.contains(&"Pod") => "pods and workloads".to_owned(),
        _ => "workloads".to_owned(),
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The first few names, and the number of the others.
fn some(names: &[String]) -> String {
    // "and 1 more" is as long as the name that it hides, so one name more than the limit is shown.
    let shown = if names.len() > MOST_NAMES + 1 { MOST_NAMES } else { names.len() };
    let mut text = names[..shown].join(", ");
    if names.len() > shown {
        text.push_str(&format!(" and {} more", names.len() - shown));
    }
    text
}
