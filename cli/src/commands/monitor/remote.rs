//! The packets of many nodes, merged by time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::printer::{EventPrinter, FullBuffer, ShownBatch, ShownEvent};
use super::row::EventRow;
use super::rules::RuleFinder;
use crate::all_nodes::{self, Followed, NodeEvent, NodeSummary};
use crate::args::{EventPeer, EventVerdict, GlobalArgs, MonitorArgs, MonitorFormat};
use crate::commands::CommandOutcome;
use crate::page::{self, OutputPage};

/// How long an event waits for events of other nodes that happened before it.
const PATIENCE: Duration = Duration::from_millis(700);
/// The time between two prints.
const TURN: Duration = Duration::from_millis(200);
/// The number of events that wait for their turn. Beyond it, the oldest are printed early.
const MOST_WAITING: usize = 10_000;
/// More records than the buffer of a node can hold.
const ALL_WAITING: usize = 1_000_000;
/// The widest column of nodes.
const WIDEST_NODE: usize = 24;

pub(super) fn run(global: &GlobalArgs, arguments: &MonitorArgs) -> Result<CommandOutcome> {
    let rules = if arguments.shows_connections() { rules_of_cluster(global, arguments) } else { RuleFinder::default() };
    let command = command(global, arguments);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    all_nodes::follow(&arguments.agents, &words, async |followed, summary| {
        MergedMonitor::new(global, arguments, rules, summary).run(followed).await
    })
}

/// The command of each node. The filters are applied there, so that only wanted events pass the API server.
fn command(global: &GlobalArgs, arguments: &MonitorArgs) -> Vec<String> {
    let mut words: Vec<String> = ["monitor", "-o", "jsonl"].map(str::to_owned).into();
    let mut add = |name: &str, value: String| words.push(format!("{name}={value}"));
    let filter = &arguments.filter;
    global.default_namespace().into_iter().for_each(|it| add("--namespace", it.to_owned()));
    filter.pods.iter().for_each(|it| add("--pod", it.clone()));
    filter.reasons.iter().for_each(|it| add("--reason", it.clone()));
    for peer in &filter.peers {
        add(
            "--peer",
            match peer {
                EventPeer::Pod(pod) => pod.clone(),
                EventPeer::Block(block) => block.to_string(),
            },
        );
    }
    for port in &filter.ports {
        let parts = [port.port.map(|it| it.to_string()), port.protocol.as_ref().map(|it| it.to_lowercase())];
        add("--port", parts.into_iter().flatten().collect::<Vec<_>>().join("/"));
    }
    if let Some(verdict) = filter.verdict {
        let name = match verdict {
            EventVerdict::Deny => "deny",
            EventVerdict::Allow => "allow",
            EventVerdict::All => "all",
        };
        add("--verdict", name.to_owned());
    }
    match arguments.last {
        // A node's output is JSON, in which packets that are only counted here use up the number.
        Some(last) => add("--last", if arguments.only_counts_some() { ALL_WAITING } else { last }.to_string()),
        None => {
            arguments.duration.into_iter().for_each(|it| add("--duration", it.to_string()));
            words.push("--until-eof".to_owned());
        }
    }
    words
}

/// Reads the objects of the cluster. Without them the rules of allowed connections are not named, which is said.
fn rules_of_cluster(global: &GlobalArgs, arguments: &MonitorArgs) -> RuleFinder {
    let request = crate::live_cluster::ClusterRequest {
        kubeconfig: arguments.agents.kubeconfig.as_deref(),
        context: arguments.agents.context.as_deref(),
        ..crate::live_cluster::ClusterRequest::default()
    };
    let read = crate::live_cluster::objects(&request).and_then(|objects| {
        crate::read::read_valid_without_lists(global, |loaded| loaded.add_text("cluster:".to_owned(), objects.text))
    });
    let why = match read {
        Ok(Some(read)) => return RuleFinder::of(read),
        Ok(None) => "the cluster's objects have errors".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    page::print_to_stderr(format_args!("note: policies are named without the rule that allows: {why}"));
    RuleFinder::default()
}

/// Events that wait until they can be printed in order, by time.
#[derive(Default)]
struct MergeBuffer {
    /// With the moment at which each came.
    waiting: BTreeMap<(String, u64), (Instant, ShownEvent)>,
    /// Keeps events of one time in the order in which they came.
    count: u64,
}

impl MergeBuffer {
    fn add(&mut self, event: ShownEvent, now: Instant) {
        self.count += 1;
        self.waiting.insert((event.row.time.clone(), self.count), (now, event));
    }

    /// The events that have waited long enough, and those before them.
    fn take(&mut self, now: Instant) -> Vec<ShownEvent> {
        let is_due = |came: &Instant| now.duration_since(*came) >= PATIENCE;
        let last = self.waiting.iter().rev().find(|(_, (came, _))| is_due(came)).map(|(key, _)| key.clone());
        let beyond = self.waiting.len().saturating_sub(MOST_WAITING);
        let mut taken = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            if taken.len() >= beyond && last.as_ref().is_none_or(|last| first.key() > last) {
                break;
            }
            taken.push(first.remove().1);
        }
        taken
    }

    /// Drops all but the last `count` events. Returns how many those are.
    fn keep_last(&mut self, count: usize) -> u64 {
        let more = self.waiting.len().saturating_sub(count);
        (0..more).for_each(|_| _ = self.waiting.pop_first());
        more as u64
    }

    fn take_all(&mut self) -> Vec<ShownEvent> {
        std::mem::take(&mut self.waiting).into_values().map(|(_, event)| event).collect()
    }
}

/// The monitors of all nodes, as one.
struct MergedMonitor<'a> {
    arguments: &'a MonitorArgs,
    global: &'a GlobalArgs,
    rules: RuleFinder,
    summary: NodeSummary,
    buffer: MergeBuffer,
    /// The numbers of lost events that are not printed yet.
    counts: ShownBatch,
    /// Nodes whose monitors have failed since the last print.
    failed: Vec<String>,
}

impl<'a> MergedMonitor<'a> {
    fn new(global: &'a GlobalArgs, arguments: &'a MonitorArgs, rules: RuleFinder, summary: NodeSummary) -> Self {
        let (buffer, counts) = (MergeBuffer::default(), ShownBatch::default());
        Self { arguments, global, rules, summary, buffer, counts, failed: Vec::new() }
    }

    async fn run(mut self, mut followed: Followed) -> Result<CommandOutcome> {
        let nodes: Vec<String> = followed.nodes().to_vec();
        self.print_head(&nodes)?;
        let width = nodes.iter().map(|it| it.chars().count()).max().unwrap_or(0).clamp(4, WIDEST_NODE);
        let mut printer = EventPrinter::new(self.arguments, self.global.color, width);
        let printed = self.print_events(&mut followed, &mut printer).await;
        // Also after an error, such as a closed pipe: no monitor may be left behind on a node.
        followed.stop();
        while let Some(event) = followed.next().await {
            self.take(event);
            self.counts.dropped += self.buffer.keep_last(MOST_WAITING);
        }
        // Those since the last turn.
        self.counts.dropped += followed.take_dropped();
        followed.close().await;
        printed?;
        if !printer.is_done() {
            self.print_rest(&mut printer)?;
        }
        printer.finish()?;
        self.print_tail()?;
        Ok(self.summary.outcome())
    }

    /// Prints events until all nodes have ended, or the user or an option ends the command.
    async fn print_events(&mut self, followed: &mut Followed, printer: &mut EventPrinter<'_>) -> Result<()> {
        let mut turn = tokio::time::interval(TURN);
        let mut interrupted = std::pin::pin!(interrupted());
        while !printer.is_done() {
            tokio::select! {
                event = followed.next() => match event {
                    Some(event) => self.take(event),
                    None => break,
                },
                _ = turn.tick() => {
                    self.counts.dropped += followed.take_dropped();
                    // The last events of all nodes are known only when all nodes have answered.
                    if self.arguments.last.is_none() {
                        let events = self.buffer.take(Instant::now());
                        self.print(printer, events)?;
                    }
                }
                () = &mut interrupted => break,
            }
        }
        Ok(())
    }

    fn take(&mut self, event: NodeEvent) {
        match event {
            NodeEvent::Line(node, value) => self.line(&node, value),
            NodeEvent::Rubbish(node, line) => self.summary.rubbish(&node, &line),
            NodeEvent::Ended(node, Ok(())) => _ = self.summary.answered.insert(node),
            NodeEvent::Ended(node, Err(why)) => {
                self.summary.fail(&node, why);
                self.failed.push(node);
            }
        }
    }

    fn line(&mut self, node: &str, value: Value) {
        self.summary.answered.insert(node.to_owned());
        if value.get("full") == Some(&Value::Bool(true)) {
            let buffer = FullBuffer { node: Some(node.to_owned()) };
            // A node may send any number of these lines.
            if !self.counts.full.contains(&buffer) {
                self.counts.full.push(buffer);
            }
        }
        let count = |name: &str| value.get(name).and_then(Value::as_u64);
        match (count("lost"), count("missed")) {
            (None, None) => {}
            (lost, missed) => {
                self.counts.lost += lost.unwrap_or(0);
                self.counts.missed += missed.unwrap_or(0);
                return;
            }
        }
        let Some((mut row, lacking)) = EventRow::read(&value).ok().filter(|(row, _)| !row.time.is_empty()) else {
            return self.summary.rubbish(node, &value.to_string());
        };
        self.summary.lacks(node, lacking.into_iter().map(str::to_owned));
        if self.arguments.last.is_some() && self.arguments.only_counts(&row) {
            self.counts.housekeeping += 1;
            return;
        }
        row.node = Some(node.to_owned());
        self.buffer.add(ShownEvent { row, value: all_nodes::with_node(node, value) }, Instant::now());
        self.arguments.last.into_iter().for_each(|last| _ = self.buffer.keep_last(last));
    }

    fn print(&mut self, printer: &mut EventPrinter<'_>, mut events: Vec<ShownEvent>) -> Result<()> {
        self.rules.name_rules(&mut events);
        printer.batch(ShownBatch { events, ..std::mem::take(&mut self.counts) })?;
        self.print_failed()
    }

    /// Says at once that the events of a node have ended. The reason is repeated at the end.
    fn print_failed(&mut self) -> Result<()> {
        let failed = std::mem::take(&mut self.failed);
        if failed.is_empty() || self.arguments.top {
            return Ok(());
        }
        let mut page = OutputPage::for_stdout(self.global.color);
        for node in failed {
            match self.arguments.output {
                MonitorFormat::Text => self.summary.failure(&mut page, &node),
                MonitorFormat::Jsonl => page.json(&self.summary.failure_json(&node))?,
            }
        }
        page.print()
    }

    /// Prints the events that still wait; with `--last`, the last ones of all nodes.
    fn print_rest(&mut self, printer: &mut EventPrinter<'_>) -> Result<()> {
        let events = self.buffer.take_all();
        self.print(printer, events)
    }

    fn print_head(&self, nodes: &[String]) -> Result<()> {
        let mut page = OutputPage::for_stdout(self.global.color);
        if self.arguments.output == MonitorFormat::Text && !self.arguments.top {
            self.summary.head(&mut page, nodes);
            page.print()?;
        }
        Ok(())
    }

    fn print_tail(&self) -> Result<()> {
        let mut page = OutputPage::new();
        if self.arguments.output == MonitorFormat::Jsonl {
            page.json(&json!({"nodes": self.summary.json()}))?;
            return page.print();
        }
        self.summary.tail(&mut page);
        page.print_to_stderr();
        Ok(())
    }
}

/// Waits for the user to end the command.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    _ = tokio::signal::ctrl_c().await;
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::{event, row};
    use super::*;

    fn at(time: &str) -> ShownEvent {
        let mut value = event();
        value["time"] = json!(time);
        ShownEvent { row: row(&value), value }
    }

    fn times(events: &[ShownEvent]) -> Vec<&str> {
        events.iter().map(|it| it.row.time.as_str()).collect()
    }

    #[test]
    fn events_wait_for_earlier_ones_of_slower_nodes() {
        let (mut buffer, start) = (MergeBuffer::default(), Instant::now());
        buffer.add(at("2026-01-01T00:00:02.000Z"), start);
        buffer.add(at("2026-01-01T00:00:01.000Z"), start + PATIENCE / 2);
        buffer.add(at("2026-01-01T00:00:03.000Z"), start + PATIENCE / 2);
        assert!(buffer.take(start + PATIENCE / 2).is_empty());
        let taken = buffer.take(start + PATIENCE);
        assert_eq!(times(&taken), ["2026-01-01T00:00:01.000Z", "2026-01-01T00:00:02.000Z"]);
        assert_eq!(times(&buffer.take_all()), ["2026-01-01T00:00:03.000Z"]);
    }

    #[test]
    fn a_flood_of_events_does_not_grow_the_buffer() {
        let (mut buffer, start) = (MergeBuffer::default(), Instant::now());
        (0..MOST_WAITING + 5).for_each(|_| buffer.add(at("2026-01-01T00:00:02.000Z"), start));
        assert_eq!(buffer.take(start).len(), 5);
        assert_eq!(buffer.waiting.len(), MOST_WAITING);
    }

    #[test]
    fn options_of_the_user_are_those_of_the_nodes() {
        use clap::Parser as _;
        let line = "weir monitor --all-nodes -n shop --pod shop/a --peer 10.0.0.0/8 --peer shop/b --port 53/udp --port icmp \
                    --reason denied --verdict all --duration 5";
        let cli = crate::args::Cli::try_parse_from(line.split_whitespace()).expect("valid");
        let crate::args::CliCommand::Observe(crate::args::ObserveCommand::Monitor(arguments)) = &cli.command else {
            panic!("not the command")
        };
        let words = command(&cli.global, arguments);
        let expected = "monitor -o jsonl --namespace=shop --pod=shop/a --reason=denied --peer=10.0.0.0/8 --peer=shop/b \
                        --port=53/udp --port=icmp --verdict=all --duration=5 --until-eof";
        assert_eq!(words.join(" "), expected);
        // The node's own parser takes them.
        assert!(crate::args::Cli::try_parse_from(["weir".to_owned()].iter().chain(&words)).is_ok());
    }
}
