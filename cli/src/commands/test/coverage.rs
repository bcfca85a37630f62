//! `weir test --coverage`: which allowed connections and which isolated workloads no expectation tests.
//!
//! Only expectations that hold count. They are counted by the flows that they ask about, not by the names in them: an
//! expectation about a service tests the connections to the pods behind it.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use weir_analysis::reach::{CellCache, Reach};
use weir_model::eval::{Flow, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, Direction, EndpointId};
use weir_policy::question::JudgedPacket;

use super::{ExpectationResult, ExpectationStatus};
use crate::connections::{self, Connection};
use crate::page::OutputPage;
use crate::render::text::count;

/// Items of a kind, and those of them that no expectation tests.
#[derive(Debug)]
struct Tally<T> {
    total: usize,
    covered: usize,
    /// At most as many as are shown: the pairs of a large cluster would not fit into memory.
    uncovered: Vec<T>,
}

impl<T> Tally<T> {
    fn new() -> Self {
        Self { total: 0, covered: 0, uncovered: Vec::new() }
    }

    fn add(&mut self, is_covered: bool, most: usize, item: impl FnOnce() -> T) {
        self.total += 1;
        if is_covered {
            self.covered += 1;
        } else if self.uncovered.len() < most {
            self.uncovered.push(item());
        }
    }

    fn json(&self, item: impl Fn(&T) -> Value) -> Value {
        let uncovered: Vec<Value> = self.uncovered.iter().map(item).collect();
        json!({"total": self.total, "covered": self.covered, "uncovered": uncovered})
    }
}

/// An allowed connection that no expectation tests.
#[derive(Debug)]
struct UncoveredConnection {
    from: String,
    to: String,
    ports: String,
}

/// The coverage of an input by expectations.
#[derive(Debug)]
pub(super) struct Coverage {
    connections: Tally<UncoveredConnection>,
    /// Workloads that a policy isolates.
    isolated: Tally<String>,
}

impl Coverage {
    /// Of each list of uncovered items, at most `most` are kept.
    pub(super) fn new(cluster: &Cluster, results: &[ExpectationResult], most: usize) -> Result<Self> {
        let reach = Reach::new(cluster).context("cannot compute what the policies allow")?;
        let tested = TestedFlows::new(&reach, results);
        let mut coverage = Self { connections: Tally::new(), isolated: Tally::new() };
        let name = |index: usize| reach.party_name(&reach.parties[index]);
        connections::visit_all(&reach, &mut CellCache::new(&reach), |cells, it| {
            coverage.connections.add(tested.contains(&reach, cells, it), most, || UncoveredConnection {
                from: name(it.from),
                to: name(it.to),
                ports: it.ports.words(cells, &reach.classes.atoms),
            });
        });
        for (index, party) in reach.parties.iter().enumerate() {
            if [Direction::Ingress, Direction::Egress].into_iter().any(|it| reach.is_isolated(it, party)) {
                coverage.isolated.add(tested.denied.contains(&index), most, || name(index));
            }
        }
        Ok(coverage)
    }

    /// Adds lines for people.
    pub(super) fn print(&self, page: &mut OutputPage) {
        let Self { connections, isolated } = self;
        page.line(format_args!(
            "coverage: {} of {} between workloads",
            connections.covered,
            count(connections.total, "allowed connection")
        ));
        list(page, connections, |it| format!("{} -> {} {}", it.from, it.to, it.ports));
        let (covered, total) = (isolated.covered, count(isolated.total, "isolated workload"));
        let have = if covered == 1 { "has" } else { "have" };
        page.line(format_args!("coverage: {covered} of {total} {have} an expectation that denies"));
        list(page, isolated, String::clone);
    }

    /// The field `coverage` of docs/schema/test.json.
    pub(super) fn json(&self) -> Value {
        let connection = |it: &UncoveredConnection| json!({"from": it.from, "to": it.to, "ports": it.ports});
        json!({
            "connections": self.connections.json(connection),
            "isolatedWorkloads": self.isolated.json(|name| json!(name)),
        })
    }
}

fn list<T>(page: &mut OutputPage, tally: &Tally<T>, words: impl Fn(&T) -> String) {
    tally.uncovered.iter().for_each(|it| page.line(format_args!("  not covered: {}", words(it))));
    let hidden = tally.total - tally.covered - tally.uncovered.len();
    if hidden > 0 {
        page.line(format_args!("  … and {hidden} more (--max 0 shows all)"));
    }
}

/// The flows of expectations that hold, by the workloads at their ends: indices into [`Reach::parties`].
#[derive(Debug, Default)]
struct TestedFlows {
    /// Source, destination → protocols and ports.
    allowed: HashMap<(usize, usize), Vec<(FlowProtocol, u16)>>,
    /// Workloads at whose end a flow is denied.
    denied: BTreeSet<usize>,
}

/// The workload of each pod, by kind and name: a packet with an example of a described pod is in another cluster, whose
/// endpoints have other numbers. The example's pod is in no workload, even if it has the labels of one.
type PartyByName = HashMap<(String, String), usize>;

impl TestedFlows {
    fn new(reach: &Reach<'_>, results: &[ExpectationResult]) -> Self {
        let parties = reach.parties.iter().enumerate();
        let members = parties.flat_map(|(index, party)| party.members.iter().map(move |id| (*id, index)));
        let party_of: PartyByName = members.map(|(id, index)| (full_name(reach.cluster, id), index)).collect();
        let of_input = Oracle::new(reach.cluster);
        let mut tested = Self::default();
        let passed = results.iter().filter(|it| it.status == ExpectationStatus::Passed);
        for packet in passed.flat_map(|it| &it.packets) {
            let cluster = packet.cluster(reach.cluster);
            match packet.example.is_some() {
                true => tested.add(cluster, &Oracle::new(cluster), &party_of, packet),
                false => tested.add(cluster, &of_input, &party_of, packet),
            }
        }
        tested
    }

    fn add(&mut self, cluster: &Cluster, oracle: &Oracle<'_>, party_of: &PartyByName, packet: &JudgedPacket) {
        let JudgedPacket { flow, judgement, .. } = packet;
        let party = |id: EndpointId| party_of.get(&full_name(cluster, id)).copied();
        let source = oracle.complete(flow.source).endpoint.and_then(party);
        let destinations = destinations(cluster, oracle, flow).into_iter();
        let ends: Vec<(usize, u16)> = destinations.filter_map(|(id, port)| Some((party(id)?, port))).collect();
        if let (Some(from), Verdict::Allow) = (source, judgement.verdict()) {
            for (to, port) in &ends {
                self.allowed.entry((from, *to)).or_default().push((flow.protocol, *port));
            }
        }
        if judgement.egress.verdict == Verdict::Deny {
            self.denied.extend(source);
        }
        if judgement.ingress.verdict == Verdict::Deny {
            self.denied.extend(ends.iter().map(|(to, _)| to));
        }
    }

    fn contains(&self, reach: &Reach<'_>, cells: &CellCache<'_>, connection: Connection) -> bool {
        let flows = self.allowed.get(&(connection.from, connection.to));
        let contain = |(protocol, port): &(FlowProtocol, u16)| {
            connection.ports.contain(cells, &reach.classes.atoms, *protocol, *port)
        };
        flows.is_some_and(|flows| flows.iter().any(contain))
    }
}

/// Kind, namespace and name.
fn full_name(cluster: &Cluster, id: EndpointId) -> (String, String) {
    (cluster.endpoints[id.index()].kind.to_string(), cluster.endpoint_name(id))
}

/// The endpoints that a flow may arrive at, with the port there: its destination, or the backends of a service.
fn destinations(cluster: &Cluster, oracle: &Oracle<'_>, flow: &Flow) -> Vec<(EndpointId, u16)> {
    if let Some(endpoint) = oracle.complete(flow.destination).endpoint {
        return vec![(endpoint, flow.port)];
    }
    let claims = oracle.services_behind(flow).map(|it| it.claims).unwrap_or_default();
    let ports = claims.iter().map(|(service, port)| (&cluster.services[service.index()], *port));
    let backends = ports.filter_map(|(service, port)| service.ports.get(port as usize)).flat_map(|it| &it.backends);
    backends.filter_map(|backend| Some((backend.endpoint?, backend.port))).collect()
}
