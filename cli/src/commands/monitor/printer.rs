//! Prints events in the chosen form.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::row::EventRow;
use super::top::TopPairs;
use crate::args::{ColorChoice, MonitorArgs, MonitorFormat};
use crate::page::{self, OutputPage, Style};

/// The time between two lines about packets that are only counted.
const SUMMARY: Duration = Duration::from_secs(10);
/// The indentation of the lines of an event after the first.
const INDENT: usize = 4;

/// An event, for people and for programs.
#[derive(Clone, Debug)]
pub(super) struct ShownEvent {
    pub(super) row: EventRow,
    pub(super) value: Value,
}

/// Events that are printed together, and the numbers of events that were lost before them.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownBatch {
    pub(super) events: Vec<ShownEvent>,
    /// Records that the kernel did not write.
    pub(super) lost: u64,
    /// At most this many connections began and ended unseen.
    pub(super) missed: u64,
    /// Events that this process dropped, because the terminal was slower than the nodes.
    pub(super) dropped: u64,
    /// Packets that are counted instead of printed.
    pub(super) housekeeping: u64,
    /// The buffers of records that were full.
    pub(super) full: Vec<FullBuffer>,
}

/// A kernel's buffer of records that was full when a monitor began to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FullBuffer {
    /// The node; `None` if it is this machine.
    pub(super) node: Option<String>,
}

/// Prints packets in the chosen form.
pub(super) struct EventPrinter<'a> {
    arguments: &'a MonitorArgs,
    color: ColorChoice,
    /// How many packets to print still.
    left: u64,
    /// Packets that were counted instead of printed, since the last line about them.
    housekeeping: u64,
    summarized: Instant,
    top: Option<TopPairs>,
    has_header: bool,
    /// The width of the column with the node; 0 without it.
    node_width: usize,
}

impl MonitorArgs {
    /// Whether some packets are counted instead of printed.
    pub(super) fn only_counts_some(&self) -> bool {
        self.output == MonitorFormat::Text && !self.all
    }

    /// Whether this packet is counted instead of printed.
    pub(super) fn only_counts(&self, row: &EventRow) -> bool {
        self.only_counts_some() && row.is_housekeeping()
    }
}

impl<'a> EventPrinter<'a> {
    pub(super) fn new(arguments: &'a MonitorArgs, color: ColorChoice, node_width: usize) -> Self {
        Self {
            arguments,
            color,
            left: arguments.count.unwrap_or(u64::MAX),
            housekeeping: 0,
            summarized: Instant::now(),
            top: arguments.top.then(TopPairs::new),
            has_header: false,
            node_width,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    pub(super) fn batch(&mut self, batch: ShownBatch) -> Result<()> {
        if let Some(top) = &mut self.top {
            let counted = batch.events.iter().filter(|it| self.arguments.all || !it.row.is_housekeeping());
            counted.for_each(|it| top.add(&it.row));
            top.add_lost(batch.lost + batch.missed + batch.dropped);
            if page::is_terminal() && top.is_due(Instant::now()) {
                top.page(page::color_on_stdout(self.color)).print_over()?;
            }
            return Ok(());
        }
        let mut page = OutputPage::for_stdout(self.color);
        self.add(&mut page, batch)?;
        if self.summarized.elapsed() >= SUMMARY {
            self.summarize(&mut page);
        }
        if page.is_empty() { Ok(()) } else { page.print() }
    }

    fn add(&mut self, page: &mut OutputPage, batch: ShownBatch) -> Result<()> {
        for event in &batch.events {
            if self.is_done() {
                break;
            }
            // Packets that are only counted do not count as printed.
            if self.arguments.only_counts(&event.row) {
                self.housekeeping += 1;
                continue;
            }
            match self.arguments.output {
                MonitorFormat::Text => self.line(page, &event.row),
                MonitorFormat::Jsonl => page.json(&event.value)?,
            }
            self.left -= 1;
        }
        let ShownBatch { lost, missed, dropped, housekeeping, full, events: _ } = batch;
        self.housekeeping += housekeeping;
        for buffer in full {
            self.full_buffer(page, &buffer)?;
        }
        for (count, name, text) in [
            (lost, "lost", "events were lost: the kernel writes at most 200 records a second"),
            (missed, "missed", "connections, at most, began and ended between two looks at the flow tables"),
            (dropped, "dropped", "events were dropped: the nodes sent more than the terminal could take"),
        ] {
            if count > 0 {
                match self.arguments.output {
                    MonitorFormat::Text => page.folded(INDENT, &[(Style::Yellow, &format_args!("{count} {text}"))]),
                    MonitorFormat::Jsonl => page.json(&json!({name: count}))?,
                }
            }
        }
        Ok(())
    }

    /// Prints that packets have no record because a buffer was full.
    fn full_buffer(&self, page: &mut OutputPage, FullBuffer { node }: &FullBuffer) -> Result<()> {
        match self.arguments.output {
            MonitorFormat::Text => {
                let of_node = node.as_deref().map_or_else(String::new, |it| format!(" of {it}"));
                let text = format!(
                    "the buffer of records{of_node} was full: packets after those that were waiting have no record \
                     (it has room again; `weir counters` counts all packets)"
                );
                page.folded(INDENT, &[(Style::Yellow, &text)]);
            }
            MonitorFormat::Jsonl => {
                // With `lost`, a monitor of another version reads it too.
                let mut value = json!({"lost": 0, "full": true});
                if let Some(node) = node {
                    value["node"] = json!(node);
                }
                page.json(&value)?;
            }
        }
        Ok(())
    }

    /// Prints the rest: the last picture, and packets that were only counted.
    pub(super) fn finish(&mut self) -> Result<()> {
        let color = page::color_on_stdout(self.color);
        let mut page = match &self.top {
            Some(top) if page::is_terminal() => return top.page(color).print_over(),
            Some(top) => top.page(color),
            None => OutputPage::for_stdout(self.color),
        };
        self.summarize(&mut page);
        if page.is_empty() { Ok(()) } else { page.print() }
    }

    fn summarize(&mut self, page: &mut OutputPage) {
        self.summarized = Instant::now();
        if self.housekeeping > 0 {
            let count = std::mem::take(&mut self.housekeeping);
            let text = format!(
                "{count} packets of IPv6 neighbour discovery, or of IPv6 at pods without it (--all shows them)"
            );
            page.folded(INDENT, &[(Style::Dim, &text)]);
        }
    }

    fn line(&mut self, page: &mut OutputPage, row: &EventRow) {
        if !self.has_header {
            self.has_header = true;
            let node = self.node_column("NODE");
            page.pieces(&[(Style::Bold, &format_args!("{:24} {node}{:7} {:11} PACKET", "TIME", "SIDE", "REASON"))]);
        }
        let outcome = if row.passed() { Style::Green } else { Style::Red };
        let node = self.node_column(row.node.as_deref().unwrap_or_default());
        let (packet, why) = (row.packet(), row.why());
        let separator = if why.is_empty() { "" } else { "  " };
        page.folded(
            INDENT,
            &[
                (Style::Dim, &format_args!("{:24}", row.time)),
                (Style::Plain, &format_args!(" {node}{:7} ", row.direction)),
                (outcome, &format_args!("{:11}", row.reason)),
                (Style::Plain, &format_args!(" {packet}{separator}{why}")),
            ],
        );
    }

    fn node_column(&self, text: &str) -> String {
        if self.node_width == 0 { String::new() } else { format!("{text:width$} ", width = self.node_width) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::{event, icmp6, row};
    use super::*;

    fn arguments(options: &str) -> MonitorArgs {
        use clap::Parser as _;
        let words = ["weir", "monitor"].into_iter().chain(options.split_whitespace());
        match crate::args::Cli::try_parse_from(words).expect("valid").command {
            crate::args::CliCommand::Observe(crate::args::ObserveCommand::Monitor(arguments)) => arguments,
            _ => panic!("not the command"),
        }
    }

    fn shown(value: Value) -> ShownEvent {
        ShownEvent { row: row(&value), value }
    }

    #[test]
    fn line_names_both_ends_and_the_policy() {
        let mut page = OutputPage::new();
        let arguments = arguments("");
        let mut printer = EventPrinter::new(&arguments, ColorChoice::Never, 0);
        printer.line(&mut page, &row(&event()));
        printer.line(&mut page, &row(&event()));
        let line = "1970-01-01T00:00:00.000Z egress  denied      TCP shop/web 10.0.0.1:40000 -> shop/db 10.0.0.2:5432  \
                    isolated by shop/deny, allowed by no rule\n";
        let header = "TIME                     SIDE    REASON      PACKET\n";
        assert_eq!(page.as_str(), format!("{header}{line}{line}"), "the header is printed once");
    }

    #[test]
    fn housekeeping_is_counted_and_does_not_use_up_the_count() {
        let arguments = arguments("--count 2");
        let mut printer = EventPrinter::new(&arguments, ColorChoice::Never, 0);
        let events = [icmp6("fe80::1", "ff02::2"), event(), icmp6("fe80::1", "ff02::2")].map(shown).into();
        printer.add(&mut OutputPage::new(), ShownBatch { events, ..ShownBatch::default() }).expect("it prints");
        assert_eq!((printer.left, printer.housekeeping), (1, 2));
        let mut page = OutputPage::new();
        printer.summarize(&mut page);
        assert!(page.as_str().starts_with("2 packets of IPv6 neighbour discovery"), "{}", page.as_str());
    }

    #[test]
    fn lost_events_of_each_kind_are_counted_in_both_forms() {
        for (options, expected) in [
            ("", ["1 events were lost: ", "2 connections, at most, ", "3 events were dropped: "]),
            ("-o jsonl", ["{\"lost\":1}", "{\"missed\":2}", "{\"dropped\":3}"]),
        ] {
            let (arguments, mut page) = (arguments(options), OutputPage::new());
            let batch = ShownBatch { lost: 1, missed: 2, dropped: 3, ..ShownBatch::default() };
            EventPrinter::new(&arguments, ColorChoice::Never, 0).add(&mut page, batch).expect("it prints");
            let lines: Vec<&str> = page.as_str().lines().collect();
            assert!(lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{lines:?}");
            assert_eq!(lines.len(), 3);
        }
    }
}
