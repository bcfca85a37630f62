//! JSON for programs: docs/schema/diff.json. Each group of endpoints and addresses is listed once, and rows refer to it
//! by number.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;
use weir_analysis::diff::{
    Decides, Diff, DiffRow, EndReason, EndState, Namer, Presence, RowEnd, RowTraffic, VerdictChange,
};
use weir_model::Direction;

use super::Compared;
use super::cost::Costs;
use super::flows::{flows, protocol, reference};
use super::places::{Culprit, Line, Places};
use super::words::Words;
use crate::because::word;
use crate::page::Page;

#[derive(Serialize)]
struct Document<'d> {
    base: &'d str,
    head: &'d str,
    summary: Summary,
    endpoints: Endpoints,
    isolation: Vec<Isolation<'d>>,
    groups: Vec<Group>,
    rows: Vec<Item<'d>>,
    cost: Option<&'d Costs>,
}

#[derive(Serialize)]
struct Summary {
    added: usize,
    removed: usize,
    rows: usize,
    shown: usize,
}

#[derive(Serialize)]
struct Endpoints {
    kept: usize,
    appeared: Vec<String>,
    disappeared: Vec<String>,
}

#[derive(Serialize)]
struct Isolation<'d> {
    direction: &'d str,
    change: &'d str,
    endpoints: Vec<String>,
    text: String,
    policies: Vec<Responsible<'d>>,
}

#[derive(Serialize)]
struct Group {
    text: String,
    endpoints: Vec<String>,
    addresses: Vec<Range>,
    services: Vec<Service>,
}

#[derive(Serialize)]
struct Range {
    first: IpAddr,
    last: IpAddr,
}

#[derive(Serialize)]
struct Service {
    address: IpAddr,
    base: Vec<String>,
    head: Vec<String>,
}

#[derive(Serialize)]
struct Item<'d> {
    presence: &'d str,
    change: &'d str,
    decides: &'d str,
    from: usize,
    to: usize,
    traffic: Ports,
    family: Option<String>,
    egress: Option<Sides<'d>>,
    ingress: Option<Sides<'d>>,
    witness: Witness<'d>,
}

#[derive(Serialize)]
struct Ports {
    text: String,
    ports: Vec<PortRange>,
    /// ICMP and all other protocols without ports.
    portless: bool,
}

#[derive(Serialize)]
struct PortRange {
    protocol: &'static str,
    first: u16,
    last: u16,
}

#[derive(Serialize)]
struct Sides<'d> {
    base: Told<'d>,
    head: Told<'d>,
}

#[derive(Serialize)]
struct Told<'d> {
    state: &'d str,
    rules: Vec<Responsible<'d>>,
    #[serde(rename = "isolatedBy")]
    isolated_by: Vec<Responsible<'d>>,
    list: Option<Responsible<'d>>,
}

#[derive(Serialize)]
struct Responsible<'d> {
    name: String,
    rule: Option<String>,
    file: Option<&'d str>,
    line: Option<usize>,
}

#[derive(Serialize)]
struct Witness<'d> {
    flow: serde_json::Value,
    #[serde(rename = "headFlow", skip_serializing_if = "Option::is_none")]
    head_flow: Option<serde_json::Value>,
    base: &'d str,
    head: &'d str,
}

/// One document with at most `most` rows.
pub(super) fn json(words: &Words<'_, '_>, costs: Option<&Costs>, most: usize) -> serde_json::Result<Page> {
    let Words { compared, namer, places } = *words;
    let diff = &compared.diff;
    let shown = &diff.rows[..diff.rows.len().min(most)];
    let mut maker = Maker { compared, namer, places, groups: Vec::new(), numbers: BTreeMap::new() };
    let rows = shown.iter().map(|row| maker.row(row)).collect();
    let of = |change| diff.rows.iter().filter(|row| row.change == change).count();
    let document = Document {
        base: &compared.names[0],
        head: &compared.names[1],
        summary: Summary {
            added: of(VerdictChange::Added),
            removed: of(VerdictChange::Removed),
            rows: diff.rows.len(),
            shown: shown.len(),
        },
        endpoints: endpoints(diff),
        isolation: maker.isolation(),
        rows,
        groups: maker.groups,
        cost: costs,
    };
    let mut page = Page::new();
    page.pretty_json(&document)?;
    Ok(page)
}

fn endpoints(diff: &Diff) -> Endpoints {
    let named = |wanted: [bool; 2]| -> Vec<String> {
        let all = diff.endpoints.iter().enumerate().filter(|(_, it)| it.ids.map(|id| id.is_some()) == wanted);
        all.map(|(index, _)| reference(diff, index as u32)).collect()
    };
    Endpoints { kept: named([true, true]).len(), appeared: named([false, true]), disappeared: named([true, false]) }
}

struct Maker<'d, 'c> {
    compared: &'d Compared,
    namer: &'d Namer<'c>,
    places: &'d Places,
    groups: Vec<Group>,
    numbers: BTreeMap<(RowEnd, Presence), usize>,
}

impl<'d> Maker<'d, '_> {
    fn row(&mut self, row: &'d DiffRow) -> Item<'d> {
        let sides = |direction| {
            let [base, head] = row.accounts(direction)?;
            Some(Sides { base: self.told(0, direction, base), head: self.told(1, direction, head) })
        };
        let (egress, ingress) = (sides(Direction::Egress), sides(Direction::Ingress));
        Item {
            presence: presence(row.presence),
            change: change(row.change),
            decides: decides(row.decides),
            from: self.group(&row.source, row.presence),
            to: self.group(&row.destination, row.presence),
            traffic: traffic(&row.traffic),
            family: row.family.map(|it| it.to_string()),
            egress,
            ingress,
            witness: witness(self.compared, row),
        }
    }

    fn group(&mut self, party: &RowEnd, presence: Presence) -> usize {
        let key = (party.clone(), presence);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let diff = &self.compared.diff;
        let service = |index: &u32| {
            let it = &diff.services[*index as usize];
            let on = |which: usize| {
                let cluster = &self.compared.sides[which].cluster;
                it.services[which].iter().map(|id| cluster.service_name(*id)).collect()
            };
            Service { address: it.address, base: on(0), head: on(1) }
        };
        self.groups.push(Group {
            text: self.namer.party(party, presence),
            endpoints: party.endpoints.iter().map(|it| reference(diff, *it)).collect(),
            addresses: party.ranges.iter().map(|it| Range { first: it.first, last: it.last }).collect(),
            services: party.services.iter().map(service).collect(),
        });
        self.numbers.insert(key, self.groups.len() - 1);
        self.groups.len() - 1
    }

    fn told(&self, which: usize, direction: Direction, account: &EndReason) -> Told<'d> {
        let list = match account.state {
            EndState::List(list) => Some(self.responsible(which, Culprit::List(list))),
            _ => None,
        };
        Told {
            state: state(account.state),
            rules: account.rules.iter().map(|it| self.responsible(which, Culprit::Rule(direction, *it))).collect(),
            isolated_by: account.isolating.iter().map(|it| self.responsible(which, Culprit::Policy(*it))).collect(),
            list,
        }
    }

    fn responsible(&self, which: usize, culprit: Culprit) -> Responsible<'d> {
        let cluster = &self.compared.sides[which].cluster;
        let (name, rule) = match culprit {
            Culprit::Rule(direction, id) => {
                (cluster.policy_name(id.policy), Some(format!("spec.{}[{}]", direction.name(), id.rule)))
            }
            Culprit::Policy(id) => (cluster.policy_name(id), None),
            Culprit::List(id) => (cluster.lists[id.index()].name.clone(), None),
        };
        let at: Option<&Line> = self.places.line(which, culprit);
        Responsible { name, rule, file: at.map(|it| it.file.as_str()), line: at.map(|it| it.line) }
    }

    fn isolation(&self) -> Vec<Isolation<'d>> {
        let one = |change: &'d weir_analysis::diff::IsolationChange| Isolation {
            direction: change.direction.name(),
            change: if change.begins { "begins" } else { "ends" },
            endpoints: change.endpoints.iter().map(|it| reference(&self.compared.diff, *it)).collect(),
            text: self.namer.endpoints(&change.endpoints, Presence::Kept),
            policies: change
                .policies
                .iter()
                .map(|it| self.responsible(usize::from(change.begins), Culprit::Policy(*it)))
                .collect(),
        };
        self.compared.diff.isolation.iter().map(one).collect()
    }
}

fn traffic(traffic: &RowTraffic) -> Ports {
    let range =
        |it: &weir_classes::PortSpec| PortRange { protocol: protocol(it.protocol), first: it.first, last: it.last };
    Ports { text: traffic.to_string(), ports: traffic.ranges.iter().map(range).collect(), portless: traffic.portless }
}

fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::Kept => "kept",
        Presence::Appeared => "appeared",
        Presence::Disappeared => "disappeared",
    }
}

fn change(change: VerdictChange) -> &'static str {
    match change {
        VerdictChange::Added => "added",
        VerdictChange::Removed => "removed",
    }
}

fn decides(decides: Decides) -> &'static str {
    match decides {
        Decides::Egress => "egress",
        Decides::Ingress => "ingress",
        Decides::Both => "both",
    }
}

fn state(state: EndState) -> &'static str {
    match state {
        EndState::Absent => "absent",
        EndState::Free => "no-subject",
        EndState::Open => "not-isolated",
        EndState::Isolated => "isolated",
        EndState::List(_) => "list",
        EndState::Service => "service",
    }
}

/// A flow as `weir query` takes it. It is the same on both sides, unless an end has another address there and the
/// families would be mistaken without one.
fn witness<'d>(compared: &Compared, row: &DiffRow) -> Witness<'d> {
    let verdict = |which: usize| match &row.witness.flows[which] {
        None => "absent",
        Some(_) => word(row.witness.verdicts[which]),
    };
    let [base, head] = flows(compared, row);
    let (flow, head_flow) = match (base, head) {
        (Some(base), Some(head)) if base != head => (base, Some(head)),
        (Some(flow), _) | (None, Some(flow)) => (flow, None),
        (None, None) => (serde_json::Value::Null, None),
    };
    Witness { flow, head_flow, base: verdict(0), head: verdict(1) }
}
