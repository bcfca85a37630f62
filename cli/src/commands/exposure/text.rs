//! Exposure for people: the same sections as text and as Markdown, and one table as CSV.

use weir_analysis::diff::{AddressSet, possible_ends, row_traffic};
use weir_analysis::reach::edges::EndGroup;
use weir_analysis::reach::exposure::{Entrance, Exposure};
use weir_analysis::reach::{Passes, ports};
use weir_analysis::world::{EndSet, ExposedBy, ExposedGroup, PodSet, TrafficSet};
use weir_model::Cluster;

use super::Findings;
use crate::page::{OutputPage, Style};
use crate::render::text::count;
use crate::views::namespaces::{self, JoinableRow, RepeatedRow};
use crate::views::{links, words};

/// A heading, its rows, and the sentence for a section without rows.
struct ExposureSection {
    heading: &'static str,
    rows: Vec<ExposureRow>,
    none: &'static str,
    /// Whether the rows are about allowed connections, and not about missing policies.
    is_open: bool,
}

struct ExposureRow {
    /// The namespace that the row is about.
    own: Option<String>,
    /// The columns: who, what, from where.
    cells: [String; 3],
    /// The parts of the row that its columns may shorten.
    key: ExposureKey,
}

/// What must be equal in rows that become one, though their texts may not say it.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct ExposureKey {
    passes: Option<Passes>,
    /// The ranges among the sources. Texts name all other sources.
    ranges: Vec<EndGroup>,
    /// Possible pods, without the name of the row's own namespace.
    pods: Vec<PodSet>,
    except: Vec<PodSet>,
    source: EndSet,
    traffic: TrafficSet,
}

impl ExposureKey {
    fn of_groups(passes: Passes, groups: &[EndGroup]) -> Self {
        let is_ranges = |it: &&EndGroup| matches!(it, EndGroup::Ranges(_));
        let ranges = groups.iter().filter(is_ranges).cloned().collect();
        Self { passes: Some(passes), ranges, ..Self::default() }
    }

    fn of_possible(group: &ExposedGroup) -> Self {
        let own = group.pods.only_namespace().unwrap_or_default();
        let pods = |sets: &[PodSet]| sets.iter().map(|it| namespaces::pods_template(it, own)).collect();
        Self {
            pods: pods(std::slice::from_ref(&group.pods)),
            except: pods(&group.except),
            source: EndSet { pods: pods(&group.source.pods), ranges: group.source.ranges.clone() },
            traffic: group.traffic.clone(),
            ..Self::default()
        }
    }
}

pub(super) fn plain(found: &Findings<'_>, mut page: OutputPage) -> OutputPage {
    let names = links::namespaces_of(found.reach);
    page.folded_line(2, summary(found));
    for section in shown(found) {
        page.blank();
        page.line(section.heading);
        if section.rows.is_empty() {
            page.line(format_args!("  {}", section.none));
        }
        let rows = joined(&section);
        let width = |column: usize| rows.iter().map(|row| row.fields[column].chars().count()).max().unwrap_or(0);
        // Longer fields are not padded to each other. In a narrow page they would leave no room for the sources.
        let [widest_first, widest_second] = page.width().map_or([48, 40], |it| [it * 3 / 10, it * 3 / 10]);
        let (first, second) = (width(0).min(widest_first), width(1).min(widest_second));
        for row in rows.iter().take(found.most) {
            let [who, what, source] = [0, 1, 2].map(|it| row.fields[it].as_str());
            let style = if section.is_open { Style::Green } else { Style::Yellow };
            let pieces: [(Style, &dyn std::fmt::Display); 3] = [
                (Style::Plain, &format_args!("  {who:first$}  ")),
                (style, &format_args!("{what:second$}")),
                (Style::Plain, &format_args!("  {source}")),
            ];
            page.folded(6, &pieces);
            if let Some(holds) = row.where_it_holds(&names) {
                page.folded_line(6, format_args!("      {holds}"));
            }
        }
        if rows.len() > found.most {
            page.line(format_args!("  and {} more (--max 0 shows all)", rows.len() - found.most));
        }
    }
    if let Some((filter, all)) = found.filter {
        page.blank();
        page.folded_line(2, filter.sentence(found.exposures.len(), all, "workloads"));
    }
    page
}

/// The rows, with those of several namespaces that are equal but for the namespace together.
fn joined(section: &ExposureSection) -> Vec<RepeatedRow> {
    let row =
        |it: &ExposureRow| JoinableRow { own: it.own.clone(), fields: it.cells.to_vec(), key: Some(it.key.clone()) };
    namespaces::joined(&section.rows.iter().map(row).collect::<Vec<_>>())
}

pub(super) fn markdown(found: &Findings<'_>) -> OutputPage {
    let mut page = OutputPage::new();
    let names = links::namespaces_of(found.reach);
    page.line(words::md(&summary(found)));
    for section in shown(found) {
        page.blank();
        page.line(format_args!("### {}", section.heading));
        page.blank();
        if section.rows.is_empty() {
            page.line(section.none);
            continue;
        }
        page.line("| who | what | from where |");
        page.line("| --- | --- | --- |");
        let rows = joined(&section);
        for row in rows.iter().take(found.most) {
            let mut cells: Vec<String> = row.fields.iter().map(|it| words::md(it)).collect();
            if let (Some(holds), Some(who)) = (row.where_it_holds(&names), cells.first_mut()) {
                who.push_str(&format!(", {}", words::md(&holds)));
            }
            page.line(format_args!("| {} |", cells.join(" | ")));
        }
        if rows.len() > found.most {
            page.blank();
            page.line(format_args!("and {} more (--max 0 shows all)", rows.len() - found.most));
        }
    }
    if let Some((filter, all)) = found.filter {
        page.blank();
        page.line(words::md(&filter.sentence(found.exposures.len(), all, "workloads")));
    }
    page
}

pub(super) fn csv(found: &Findings<'_>) -> OutputPage {
    let mut page = OutputPage::new();
    page.line("exposure,who,what,from");
    for (name, section) in NAMES.into_iter().zip(sections(found)) {
        for row in section.rows.iter().take(found.most) {
            page.line(format_args!("{name},{}", row.cells.each_ref().map(|it| words::csv(it)).join(",")));
        }
    }
    page
}

/// The names of the sections in CSV.
const NAMES: [&str; 5] = ["outside", "service", "namespaces", "no-policy", "possible"];

fn summary(found: &Findings<'_>) -> String {
    let number = |is: fn(&&Exposure) -> bool| found.exposures.iter().filter(is).count();
    let workloads = format!(
        "{}: {} reachable from outside, {} from other namespaces, {} without any policy",
        count(found.exposures.len(), "workload"),
        number(|it| !it.outside.is_empty()),
        number(|it| !it.namespaces.is_empty()),
        number(|it| it.isolated == [false, false]),
    );
    match &found.possible {
        Some(groups) if found.exposures.is_empty() => {
            format!("{} of possible pods are exposed", count(groups.len(), "group"))
        }
        Some(groups) => format!("{workloads}; {} of possible pods", count(groups.len(), "group")),
        None => workloads,
    }
}

/// The sections of a page: without workloads, only those that are not about them.
fn shown(found: &Findings<'_>) -> Vec<ExposureSection> {
    let is_empty = found.exposures.is_empty() && found.possible.is_some();
    sections(found).into_iter().filter(|section| !is_empty || !section.rows.is_empty()).collect()
}

fn sections(found: &Findings<'_>) -> Vec<ExposureSection> {
    let mut sections = vec![
        ExposureSection {
            heading: "Reachable from outside",
            rows: rows(found, |it| &it.outside, |group| words::groups(found.reach, group)),
            none: "nothing",
            is_open: true,
        },
        ExposureSection {
            heading: "Services with node ports or external addresses",
            rows: found.entrances.iter().map(|it| entrance(found, it)).collect(),
            none: "none",
            is_open: true,
        },
        ExposureSection {
            heading: "Reachable from other namespaces",
            rows: rows(found, |it| &it.namespaces, |group| from_namespaces(found, group)),
            none: "nothing",
            is_open: true,
        },
        ExposureSection { heading: "Not isolated", rows: unprotected(found), none: "none", is_open: false },
    ];
    if let Some(groups) = &found.possible {
        let rows = groups.iter().map(|it| possible(found, it)).collect();
        sections.push(ExposureSection { heading: "Any pod that could exist", rows, none: "nothing", is_open: true });
    }
    sections
}

/// A group of pods that could exist: the pods, the traffic, the sources and the reason.
fn possible(found: &Findings<'_>, group: &ExposedGroup) -> ExposureRow {
    let reason = match group.by {
        ExposedBy::NotIsolated => reason(found.reach.cluster, group.by),
        by => format!("by {}", reason(found.reach.cluster, by)),
    };
    let limits: String = limits(group).iter().map(|it| format!("; {it}")).collect();
    ExposureRow {
        own: group.pods.only_namespace().map(str::to_owned),
        cells: [pods(group), traffic(group), format!("from {}: {reason}{limits}", source(group))],
        key: ExposureKey::of_possible(group),
    }
}

/// The pods of a group.
pub(super) fn pods(group: &ExposedGroup) -> String {
    let pods = possible_ends(&EndSet { pods: vec![group.pods.clone()], ranges: AddressSet::default() });
    if group.except.is_empty() { pods } else { pods.replacen("any pod", "any other pod", 1) }
}

pub(super) fn traffic(group: &ExposedGroup) -> String {
    row_traffic(group.traffic.clone()).to_string()
}

pub(super) fn source(group: &ExposedGroup) -> String {
    possible_ends(&group.source)
}

/// Why the traffic is allowed: the rule, or that no policy isolates.
pub(super) fn reason(cluster: &Cluster, by: ExposedBy) -> String {
    match by {
        ExposedBy::Rule(rule) => format!("{} spec.ingress[{}]", cluster.policy_name(rule.policy), rule.rule),
        ExposedBy::Tier(rule) => format!("{} {}", cluster.tier_policy_name(rule.policy), cluster.tier_rule_name(rule)),
        ExposedBy::NotIsolated => "no policy isolates it".to_owned(),
    }
}

/// What denies a part of the traffic.
pub(super) fn limits(group: &ExposedGroup) -> Vec<&'static str> {
    let limits = [
        (group.is_cut_by_lists, "lists deny a part"),
        (group.is_cut_by_tiers, "cluster-wide policies deny a part"),
        (group.is_cut_by_egress, "only from sources whose egress allows it"),
    ];
    limits.into_iter().filter(|(holds, _)| *holds).map(|(_, words)| words).collect()
}

fn from_namespaces(found: &Findings<'_>, groups: &[EndGroup]) -> String {
    match groups {
        [EndGroup::Pods] => "every other namespace".to_owned(),
        groups => words::groups(found.reach, groups),
    }
}

/// Traffic that passes, and its sources.
type OpenTraffic = Vec<(Passes, Vec<EndGroup>)>;

/// The rows of a section; parties that are exposed in the same way share a row.
fn rows(
    found: &Findings<'_>,
    of: fn(&Exposure) -> &OpenTraffic,
    source: impl Fn(&[EndGroup]) -> String,
) -> Vec<ExposureRow> {
    let mut rows = Vec::new();
    let mut ways: Vec<(&OpenTraffic, Vec<&Exposure>)> = Vec::new();
    for exposure in found.exposures.iter().filter(|it| !of(it).is_empty()) {
        let same = |party: &Exposure| {
            let of = |it: &Exposure| found.reach.parties[it.party as usize].namespace;
            of(party) == of(exposure)
        };
        match ways.iter_mut().find(|(way, parties)| *way == of(exposure) && same(parties[0])) {
            Some((_, parties)) => parties.push(exposure),
            None => ways.push((of(exposure), vec![exposure])),
        }
    }
    for (way, parties) in ways {
        let names: Vec<String> = parties.iter().map(|it| name(found, it)).collect();
        for (passes, groups) in way {
            let cells = [names.join(", "), found.cells.words(*passes), format!("from {}", source(groups))];
            let key = ExposureKey::of_groups(*passes, groups);
            rows.push(ExposureRow { own: Some(namespace(found, parties[0])), cells, key });
        }
    }
    rows
}

fn namespace(found: &Findings<'_>, exposure: &Exposure) -> String {
    found.reach.namespace(found.reach.parties[exposure.party as usize].namespace).to_owned()
}

fn name(found: &Findings<'_>, exposure: &Exposure) -> String {
    found.reach.party_name(&found.reach.parties[exposure.party as usize])
}

fn entrance(found: &Findings<'_>, entrance: &Entrance) -> ExposureRow {
    let cluster = found.reach.cluster;
    let port = &cluster.services[entrance.service.index()].ports[entrance.port as usize];
    let node_port = port.node_port.map_or(String::new(), |number| format!(", node port {number}"));
    let lets_in = match (entrance.open.len(), entrance.backends) {
        (_, 0) => "no ready backend is a known pod".to_owned(),
        (0, _) => "no backend is reachable from outside".to_owned(),
        (open, all) if open == all => format!("all of {} reachable from outside", count(all, "backend")),
        (open, all) => format!("{open} of {} reachable from outside", count(all, "backend")),
    };
    let number = format!("{} {}{node_port}", ports::name(port.protocol), port.port);
    let service = &cluster.services[entrance.service.index()];
    ExposureRow {
        own: Some(found.reach.namespace(service.namespace).to_owned()),
        cells: [format!("service {}", cluster.service_name(entrance.service)), number, lets_in],
        key: ExposureKey::default(),
    }
}

fn unprotected(found: &Findings<'_>) -> Vec<ExposureRow> {
    let mut rows = Vec::new();
    let kinds = [
        ([false, false], "no policy at all"),
        ([false, true], "no policy for ingress"),
        ([true, false], "no policy for egress"),
    ];
    for (isolated, words) in kinds {
        for of_namespace in found.exposures.chunk_by(|a, b| {
            let of = |it: &Exposure| found.reach.parties[it.party as usize].namespace;
            of(a) == of(b)
        }) {
            let open: Vec<&Exposure> = of_namespace.iter().filter(|it| it.isolated == isolated).collect();
            let all = format!("{} of {}", open.len(), count(of_namespace.len(), "workload"));
            let names: Vec<String> = open.iter().map(|it| name(found, it)).collect();
            let lists = if open.iter().any(|it| it.lists) { "address lists apply" } else { "" };
            if !open.is_empty() {
                let cells = [names.join(", "), format!("{words} ({all})"), lists.to_owned()];
                let own = Some(namespace(found, open[0]));
                rows.push(ExposureRow { own, cells, key: ExposureKey::default() });
            }
        }
    }
    rows
}
