//! Exposure in reports: the cards, and the list of a report without changes.

use weir_analysis::reach::edges::EndGroup;
use weir_analysis::reach::exposure::{Exposure, exposures};
use weir_analysis::reach::{CellCache, Passes, Reach, Zone};
use weir_classes::PeerId;
use weir_model::eval::RuleId;
use weir_model::{Direction, rule_path};
use weir_policy::locator::Locator;

use super::head::{Card, Tone};
use super::list::{ListRow, RowKind, RuleText};
use super::source_links::SourceLinks;
use crate::read::ReadInput;
use crate::render::text::count;
use crate::views::words;

/// The largest number of workloads that a row names.
const MOST_NAMES: usize = 5;

/// The numbers of exposed workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExposureCounts {
    workloads: usize,
    outside: usize,
    namespaces: usize,
    /// Not isolated for ingress.
    open: usize,
}

/// The exposure of the workloads of an input.
pub(crate) struct ReportExposure<'r> {
    reach: &'r Reach<'r>,
    cells: CellCache<'r>,
    found: Vec<Exposure>,
}

type OpenTraffic = Vec<(Passes, Vec<EndGroup>)>;

impl<'r> ReportExposure<'r> {
    pub(crate) fn of(reach: &'r Reach<'r>) -> Self {
        let mut cells = CellCache::new(reach);
        let found = exposures(reach, &mut cells);
        Self { reach, cells, found }
    }

    pub(crate) fn counts(&self) -> ExposureCounts {
        let number = |is: fn(&&Exposure) -> bool| self.found.iter().filter(is).count();
        ExposureCounts {
            workloads: self.found.len(),
            outside: number(|it| !it.outside.is_empty()),
            namespaces: number(|it| !it.namespaces.is_empty()),
            open: number(|it| !it.isolated[0]),
        }
    }

    /// The open ends of workloads: first to the outside, then to other namespaces, then those that nothing isolates.
    pub(crate) fn rows(&self, read: &ReadInput, links: &SourceLinks) -> Vec<ListRow> {
        let mut writer = RowWriter { exposure: self, locator: Locator::new(&read.sources), links };
        let mut rows = writer.of_kind(RowKind::Outside, |it| &it.outside);
        rows.extend(writer.of_kind(RowKind::Namespaces, |it| &it.namespaces));
        rows.extend(writer.not_isolated());
        rows
    }

    fn namespace(&self, exposure: &Exposure) -> &'r str {
        self.reach.namespace(self.reach.parties[exposure.party as usize].namespace)
    }

    /// `shop/web, shop/api and 3 more`
    fn names(&self, parties: &[&Exposure]) -> String {
        let name = |it: &&Exposure| self.reach.party_name(&self.reach.parties[it.party as usize]);
        let shown = parties.iter().take(MOST_NAMES).map(name).collect::<Vec<_>>().join(", ");
        match parties.len().saturating_sub(MOST_NAMES) {
            0 => shown,
            more => format!("{shown} and {more} more"),
        }
    }
}

impl ExposureCounts {
    /// `3 of 12 workloads can be reached from outside, …`
    pub(crate) fn verdict(self) -> (Tone, String) {
        if self.workloads == 0 {
            return (Tone::Calm, "The input has no pods and no workloads, so nothing can be reached.".to_owned());
        }
        let tone = if self.outside > 0 || self.open > 0 { Tone::Notice } else { Tone::Calm };
        let of = |number: usize| if number == 0 { "none".to_owned() } else { number.to_string() };
        let text = format!(
            "Of {}, {} can be reached from outside of the cluster and {} from other namespaces; {} are isolated \
             for ingress.",
            count(self.workloads, "workload"),
            of(self.outside),
            of(self.namespaces),
            of(self.workloads - self.open),
        );
        (tone, text)
    }

    /// The cards of a report without changes.
    pub(crate) fn cards(self) -> Vec<Card> {
        let of_all = format!("of {} can be reached from addresses outside", count(self.workloads, "workload"));
        let elsewhere = format!("of {} can be reached from other namespaces", count(self.workloads, "workload"));
        let isolated = self.workloads - self.open;
        let open = format!("of {} accept only what rules allow", count(self.workloads, "workload"));
        vec![
            Card::counting("Open to the outside", self.outside, of_all, Tone::Notice),
            Card::counting("Open to other namespaces", self.namespaces, elsewhere, Tone::Notice),
            Card::counting("Isolated for ingress", isolated, open, Tone::Calm),
            Card::counting(
                "Not isolated",
                self.open,
                "accept all traffic: no policy selects them".to_owned(),
                Tone::Notice,
            ),
        ]
    }

    /// The card of a report on changes.
    pub(crate) fn change_card(base: Self, head: Self) -> Card {
        let tone = match (head.outside > base.outside || head.namespaces > base.namespaces, head == base) {
            (true, _) => Tone::Warning,
            (false, true) => Tone::Calm,
            (false, false) => Tone::Notice,
        };
        let text = match base.workloads + head.workloads {
            0 => "no workloads in the input".to_owned(),
            _ => format!(
                "workloads reachable from outside; from other namespaces: {} → {}",
                base.namespaces, head.namespaces
            ),
        };
        Card { title: "Exposure", number: format!("{} → {}", base.outside, head.outside), text, tone }
    }
}

struct RowWriter<'a, 'r> {
    exposure: &'a ReportExposure<'r>,
    locator: Locator<'a>,
    links: &'a SourceLinks,
}

impl<'r> RowWriter<'_, 'r> {
    /// One row for the workloads of a namespace that are open in the same way.
    fn of_kind(&mut self, kind: RowKind, of: fn(&Exposure) -> &OpenTraffic) -> Vec<ListRow> {
        let exposure = self.exposure;
        let mut ways: Vec<(&OpenTraffic, Vec<&Exposure>)> = Vec::new();
        for it in exposure.found.iter().filter(|it| !of(it).is_empty()) {
            let is_same = |other: &Exposure| exposure.namespace(other) == exposure.namespace(it);
            match ways.iter_mut().find(|(way, parties)| *way == of(it) && is_same(parties[0])) {
                Some((_, parties)) => parties.push(it),
                None => ways.push((of(it), vec![it])),
            }
        }
        let mut rows = Vec::new();
        for (way, parties) in ways {
            for (passes, sources) in way {
                rows.push(ListRow {
                    from: match sources[..] {
                        [EndGroup::Pods] => "every other namespace".to_owned(),
                        _ => words::groups(exposure.reach, sources),
                    },
                    ports: exposure.cells.words(*passes),
                    rules: self.rules(parties[0], kind),
                    ..self.row(kind, &parties)
                });
            }
        }
        rows
    }

    fn not_isolated(&mut self) -> Vec<ListRow> {
        let exposure = self.exposure;
        let of_namespaces = exposure.found.chunk_by(|a, b| exposure.namespace(a) == exposure.namespace(b));
        let mut rows = Vec::new();
        for of_namespace in of_namespaces {
            for (isolated, ports) in [([false, false], "all traffic, in and out"), ([false, true], "all traffic in")] {
                let open: Vec<&Exposure> = of_namespace.iter().filter(|it| it.isolated == isolated).collect();
                if !open.is_empty() {
                    rows.push(ListRow { ports: ports.to_owned(), ..self.row(RowKind::NotIsolated, &open) });
                }
            }
        }
        rows
    }

    fn row(&self, kind: RowKind, parties: &[&Exposure]) -> ListRow {
        ListRow {
            kind,
            from: String::new(),
            to: self.exposure.names(parties),
            ports: String::new(),
            namespace: Some(self.exposure.namespace(parties[0]).to_owned()),
            reasons: Vec::new(),
            rules: Vec::new(),
            example: None,
            number: None,
            is_refused: false,
        }
    }

    /// The ingress rules of a workload that let the sources of a section in.
    fn rules(&mut self, exposure: &Exposure, kind: RowKind) -> Vec<RuleText> {
        let reach: &Reach<'r> = self.exposure.reach;
        let party = &reach.parties[exposure.party as usize];
        let elsewhere = reach.parties.iter().filter(|it| it.namespace != party.namespace).flat_map(|it| it.peers);
        let sources: Vec<PeerId> = match kind {
            RowKind::Outside => reach.zones.iter().map(|zone: &Zone| zone.peer).collect(),
            _ => elsewhere.flatten().collect(),
        };
        let is_source =
            |predicate| sources.iter().any(|it| reach.classes.peers[it.index()].predicates.contains(predicate));
        let mut found = Vec::new();
        for id in reach.isolating(Direction::Ingress, party) {
            let policy = &reach.cluster.policies[id.index()];
            for rule in 0..policy.rules(Direction::Ingress).map_or(0, <[_]>::len) as u32 {
                let peers = reach.classes.peers_of(Direction::Ingress, RuleId { policy: id, rule });
                if peers.is_none_or(|all| all.iter().any(is_source)) {
                    let path = rule_path(Direction::Ingress, rule as usize);
                    let name = format!("{} {path}", reach.cluster.policy_name(id));
                    let origin = policy.rule_origin(Direction::Ingress, rule as usize);
                    found.extend(RuleText::at(&mut self.locator, origin, name, self.links));
                }
            }
        }
        found
    }
}
