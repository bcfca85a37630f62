//! Expectations from the present state: for each connection that a policy lets through, its verdict, and for each
//! isolated workload a flow that it denies.
//!
//! Connections between ends that no policy isolates are left out: no policy decides about them, so a test must not
//! promise that they stay open. Every expectation is evaluated before it is written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::json;
use weir_analysis::reach::{CellCache, Party, Reach, ports};
use weir_classes::PortSpec;
use weir_model::eval::{Oracle, Verdict};
use weir_model::{Direction, Protocol};
use weir_policy::endpoint_lookup::EndpointLookup;
use weir_policy::possible_pods;
use weir_policy::question::{FlowQuestion, QuestionEnd};

use super::super::test;
use crate::connections::{self, Connection, ConnectionPorts};
use crate::read::ReadInput;

/// Expectations of each verdict that are written at most; people review the file.
const MOST: usize = 100;
/// Sources of one port of a workload that are written at most: every pod of a cluster may reach its DNS server.
const MOST_SOURCES: usize = 3;
/// A pod that no selector of the input is likely to be about, and an address for documentation.
const OUTSIDE: [&str; 2] = ["another-namespace/=", "192.0.2.1"];
/// Ports to look for one that is denied or, where nearly all are, allowed.
const PORTS: [u16; 4] = [80, 443, 22, 9];

/// A flow and its verdict today.
struct Line {
    from: String,
    to: String,
    port: String,
    verdict: Verdict,
}

/// The expectations, by the workload that they are about.
pub(super) struct TodaysVerdicts {
    lines: BTreeMap<String, Vec<Line>>,
    /// Lines beyond [`MOST`] and [`MOST_SOURCES`].
    left_out: usize,
}

impl TodaysVerdicts {
    /// `None` if there is nothing to expect.
    pub(super) fn new(read: &ReadInput) -> Result<Option<Self>> {
        let reach = Reach::new(&read.cluster).context("cannot compute what the policies allow")?;
        let mut collected = Collector::new(read, &reach);
        connections::visit_all(&reach, &mut CellCache::new(&reach), |cells, it| collected.connection(cells, it));
        for (index, party) in reach.parties.iter().enumerate() {
            collected.isolated(index, party);
        }
        let found = collected.found;
        if found.lines.is_empty() {
            return Ok(None);
        }
        match test::all_hold(read, &found.yaml(""))? {
            true => Ok(Some(found)),
            false => panic!("weir init wrote expectations that do not hold"),
        }
    }

    /// The file's text.
    pub(super) fn yaml(&self, policies: &str) -> String {
        let mut text = format!(
            "# Verdicts of today: weir test {policies} --expectations expectations.yaml\n\
             # Keep those that are intended, give them names, and correct the others together with the policies.\n"
        );
        if self.left_out > 0 {
            let left_out = self.left_out;
            _ = writeln!(text, "# {left_out} more are left out: `weir test --coverage` lists them.");
        }
        text.push_str("expectations:\n");
        for (workload, lines) in &self.lines {
            // A name from a file must not end the comment.
            let workload = weir_objects::escape::line(workload);
            _ = writeln!(text, "  # {workload}");
            for Line { from, to, port, verdict } in lines {
                let verdict = weir_policy::verdict_reasons::verdict_name(*verdict);
                let (from, to) = (json!(from), json!(to));
                _ = writeln!(text, "  - {{from: {from}, to: {to}, port: {port}, expect: {verdict}}}");
            }
        }
        text
    }
}

/// Collects the expectations of one input.
struct Collector<'c> {
    read: &'c ReadInput,
    reach: &'c Reach<'c>,
    oracle: Oracle<'c>,
    numbers: [usize; 2],
    /// The number of sources for each destination and port.
    sources: BTreeMap<(usize, PortSpec), usize>,
    found: TodaysVerdicts,
}

impl<'c> Collector<'c> {
    fn new(read: &'c ReadInput, reach: &'c Reach<'c>) -> Self {
        let found = TodaysVerdicts { lines: BTreeMap::new(), left_out: 0 };
        Self { read, reach, oracle: Oracle::new(&read.cluster), numbers: [0; 2], sources: BTreeMap::new(), found }
    }

    fn connection(&mut self, cells: &CellCache<'_>, connection: Connection) {
        let [from, to] = [connection.from, connection.to].map(|index| &self.reach.parties[index]);
        let is_decided =
            self.reach.is_isolated(Direction::Egress, from) || self.reach.is_isolated(Direction::Ingress, to);
        let port = match connection.ports {
            ConnectionPorts::Range(range) => Some(range),
            ConnectionPorts::Nearly(_) => {
                let tcp = |port| PortSpec { protocol: Protocol::Tcp, first: port, last: port };
                let atoms = &self.reach.classes.atoms;
                let is_open = |it: &PortSpec| {
                    let protocol = weir_model::eval::FlowProtocol::Transport(it.protocol);
                    connection.ports.contain(cells, atoms, protocol, it.first)
                };
                PORTS.into_iter().map(tcp).find(is_open)
            }
        };
        let Some(port) = port.filter(|it| is_decided && it.first > 0) else { return };
        let sources = self.sources.entry((connection.to, port)).or_default();
        *sources += 1;
        if *sources > MOST_SOURCES {
            self.found.left_out += 1;
            return;
        }
        let port = port_text(port.first, port.protocol);
        let line = Line { from: self.name(from), to: self.name(to), port, verdict: Verdict::Allow };
        self.add(to, line);
    }

    /// A flow that the workload denies: from a namespace or an address that no policy is about, or if only its egress
    /// is isolated, to it. The ports on which the workload listens come first: a test of another port would find no
    /// likely mistake.
    fn isolated(&mut self, index: usize, party: &Party) {
        let name = self.name(party);
        let is_in = self.reach.is_isolated(Direction::Ingress, party);
        if !is_in && !self.reach.is_isolated(Direction::Egress, party) {
            return;
        }
        let any = PORTS.into_iter().map(|port| (port, Protocol::Tcp));
        let ports: Vec<(u16, Protocol)> = if is_in { self.own_ports(index, party) } else { Vec::new() };
        let ports: Vec<(u16, Protocol)> = ports.into_iter().chain(any).collect();
        for (outside, (port, protocol)) in OUTSIDE.into_iter().flat_map(|it| ports.iter().map(move |port| (it, *port)))
        {
            let (outside, port) = (outside.to_owned(), port_text(port, protocol));
            let (from, to) = if is_in { (outside, name.clone()) } else { (name.clone(), outside) };
            let line = Line { from, to, port, verdict: Verdict::Deny };
            if self.holds(&line) {
                return self.add(party, line);
            }
        }
    }

    /// The ports on which others may reach the workload, and those that its containers name.
    fn own_ports(&self, index: usize, party: &Party) -> Vec<(u16, Protocol)> {
        let used = self.sources.keys().filter(|(to, _)| *to == index).map(|(_, port)| (port.first, port.protocol));
        let first = party.members.first().map(|id| &self.read.cluster.endpoints[id.index()]);
        let named = first.into_iter().flat_map(|it| it.named_ports.iter()).map(|it| (it.number, it.protocol));
        used.chain(named).collect()
    }

    fn add(&mut self, about: &Party, line: Line) {
        let kind = usize::from(line.verdict == Verdict::Deny);
        // Not asked: a large cluster has millions of connections.
        if self.numbers[kind] == MOST {
            self.found.left_out += 1;
        } else if self.holds(&line) {
            self.numbers[kind] += 1;
            self.found.lines.entry(self.reach.party_name(about)).or_default().push(line);
        }
    }

    fn holds(&mut self, line: &Line) -> bool {
        let lookup = EndpointLookup { cluster: &self.read.cluster, default_namespace: &self.read.default_namespace };
        let described = [&line.from, &line.to].map(|it| possible_pods::parse(it).and_then(Result::ok));
        let end = |index: usize, name| described[index].as_ref().map_or(name, QuestionEnd::Described);
        let question = FlowQuestion {
            from: end(0, QuestionEnd::Named(&line.from)),
            to: end(1, QuestionEnd::Named(&line.to)),
            port: Some(&line.port),
            protocol: None,
        };
        question.ask(&lookup, &mut self.oracle).is_ok_and(|it| it.verdict() == Some(line.verdict))
    }

    /// The name of the workload's first pod, with its kind: other objects may have the same name.
    fn name(&self, party: &Party) -> String {
        let cluster = &self.read.cluster;
        let first = party.members.first().map(|id| (&cluster.endpoints[id.index()].kind, cluster.endpoint_name(*id)));
        first.map_or_else(String::new, |(kind, name)| format!("{}/{name}", kind.to_lowercase()))
    }
}

fn port_text(port: u16, protocol: Protocol) -> String {
    format!("{port}/{}", ports::name(protocol).to_lowercase())
}
