//! The packets of this machine.

use std::collections::VecDeque;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use weir_runtime::connections::Connections;
use weir_runtime::events::{DatapathEvent, Events};
use weir_runtime::runtime::{PinAccess, Runtime};

use super::printer::{EventPrinter, FullBuffer, ShownBatch, ShownEvent};
use super::row::EventRow;
use super::rules::RuleFinder;
use crate::args::{GlobalArgs, MonitorArgs, MonitorFormat};
use crate::commands::CommandOutcome;
use crate::page::{self, OutputPage};
use crate::time::rfc_3339;

/// How long one reading waits: `--duration` may be exceeded by this time.
const TURN: Duration = Duration::from_millis(200);
/// The time between two signs of life, with `--until-eof`.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// The monitor pauses for this many times the duration of a look at the flow tables: a look takes at most 2 % of a CPU.
const PAUSE: u32 = 50;

pub(super) fn run(global: &GlobalArgs, arguments: &MonitorArgs) -> Result<CommandOutcome> {
    let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read)?;
    let sources = Sources::open(&runtime, arguments)?;
    let mut monitor = LocalMonitor { arguments, global, sources, runtime: &runtime };
    let mut printer = EventPrinter::new(arguments, global.color, 0);
    if let Some(last) = arguments.last {
        printer.batch(monitor.waiting(last)?)?;
        printer.finish()?;
        return Ok(CommandOutcome::Clean);
    }
    let end = arguments.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let input = arguments.until_eof.then(watch_input);
    let is_ended = || input.as_ref().is_some_and(|it| it.load(Ordering::Relaxed));
    let mut sign_of_life: Option<Instant> = None;
    while !printer.is_done() && !is_ended() && end.is_none_or(|end| Instant::now() < end) {
        printer.batch(monitor.next()?)?;
        if arguments.until_eof && sign_of_life.is_none_or(|it| it.elapsed() >= SIGN_OF_LIFE) {
            sign_of_life = Some(Instant::now());
            print_sign_of_life(arguments)?;
        }
    }
    printer.finish()?;
    Ok(CommandOutcome::Clean)
}

/// A line that says nothing. If the reader is gone, writing it fails, and the monitor ends.
fn print_sign_of_life(arguments: &MonitorArgs) -> Result<()> {
    if arguments.output != MonitorFormat::Jsonl {
        return Ok(());
    }
    let mut page = OutputPage::new();
    page.json(&json!({"lost": 0}))?;
    page.print()
}

/// Waits for the end of standard input; returns where it is noted.
fn watch_input() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let of_thread = Arc::clone(&ended);
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        // An error is an end too: nothing can be read any more.
        while std::io::stdin().read(&mut buffer).is_ok_and(|count| count > 0) {}
        of_thread.store(true, Ordering::Relaxed);
    });
    ended
}

/// Whether enforcement was removed while the monitor was running.
fn is_removed(error: &weir_runtime::Error) -> bool {
    matches!(error, weir_runtime::Error::Nothing(_))
}

/// The sources of events on this machine.
struct Sources<'a> {
    events: Events<'a>,
    connections: Option<Connections<'a>>,
    /// When the flow tables are looked at again.
    next_look: Instant,
    /// Whether enforcement was removed, so that nothing more comes from here.
    is_outdated: bool,
    rules: RuleFinder,
}

impl<'a> Sources<'a> {
    fn open(runtime: &'a Runtime, arguments: &MonitorArgs) -> Result<Self, weir_runtime::Error> {
        let connections = arguments.shows_connections().then(|| runtime.connections()).transpose()?;
        let (events, rules) = (runtime.events()?, RuleFinder::default());
        Ok(Self { events, connections, next_look: Instant::now(), is_outdated: false, rules })
    }
}

struct LocalMonitor<'a> {
    arguments: &'a MonitorArgs,
    global: &'a GlobalArgs,
    runtime: &'a Runtime,
    sources: Sources<'a>,
}

impl LocalMonitor<'_> {
    /// The next events. If enforcement was removed, waits until an artifact is attached: an agent that is installed
    /// again, or a script, does that soon.
    fn next(&mut self) -> Result<ShownBatch> {
        if self.sources.is_outdated {
            match Sources::open(self.runtime, self.arguments) {
                Err(error) if is_removed(&error) => {
                    std::thread::sleep(TURN);
                    return Ok(ShownBatch::default());
                }
                sources => self.sources = sources?,
            }
            self.sources.events.count_all_losses();
            page::print_to_stderr("note: an artifact was attached; its packets follow");
        }
        let is_in_force = match self.sources.events.is_in_force() {
            // For the reader of several nodes, the end of a node's monitor is the sign that nothing is enforced there.
            Err(error) if is_removed(&error) && !self.arguments.until_eof => {
                page::print_to_stderr("note: enforcement was removed; waiting until an artifact is attached");
                false
            }
            is_in_force => is_in_force?,
        };
        if is_in_force {
            return self.batch();
        }
        // The records that wait are the last ones of the old programs.
        self.sources.is_outdated = true;
        let read = self.sources.events.read(Duration::ZERO)?;
        let mut batch = ShownBatch { lost: read.lost, ..ShownBatch::default() };
        batch.events = read.events.iter().filter(|it| self.takes(it)).map(shown).collect::<Result<_>>()?;
        Ok(batch)
    }

    fn takes(&self, event: &DatapathEvent) -> bool {
        self.arguments.filter.takes(self.global.default_namespace(), event)
    }

    /// The next events, if there are any within [`TURN`].
    fn batch(&mut self) -> Result<ShownBatch> {
        let sources = &mut self.sources;
        let read = sources.events.read(TURN)?;
        let mut batch = ShownBatch { lost: read.lost, full: full_buffer(read.was_full), ..ShownBatch::default() };
        let mut events = read.events;
        let began = Instant::now();
        if let Some(connections) = sources.connections.as_mut().filter(|_| began >= sources.next_look) {
            match connections.read() {
                // The next turn finds that out.
                Err(error) if is_removed(&error) => {}
                found => {
                    let found = found?;
                    batch.missed = found.missed;
                    events.extend(found.connections);
                    events.sort_by_key(|it| it.time);
                }
            }
            sources.next_look = Instant::now() + (began.elapsed() * PAUSE).max(TURN);
        }
        events.retain(|it| self.takes(it));
        let is_allowed = |it: &DatapathEvent| it.outcome == "allowed";
        if events.iter().any(is_allowed) {
            self.sources.rules.follow(self.global, self.runtime)?;
        }
        batch.events = events.iter().map(shown).collect::<Result<_>>()?;
        self.sources.rules.name_rules(&mut batch.events);
        Ok(batch)
    }

    /// The last waiting records that the filters take and that are printed. Neighbour discovery of a pod can fill the
    /// whole buffer: if it counted, the drops before it would never be shown.
    fn waiting(&mut self, last: usize) -> Result<ShownBatch> {
        let mut batch = ShownBatch::default();
        // The ring buffer holds hundreds of records, of which usually only a few are wanted.
        let mut kept: VecDeque<ShownEvent> = VecDeque::new();
        loop {
            let read = self.sources.events.read(Duration::ZERO)?;
            batch.lost += read.lost;
            batch.full.extend(full_buffer(read.was_full));
            if read.events.is_empty() {
                break;
            }
            for event in read.events.iter().filter(|it| self.takes(it)) {
                let event = shown(event)?;
                if self.arguments.only_counts(&event.row) {
                    batch.housekeeping += 1;
                } else {
                    kept.push_back(event);
                }
            }
            kept.drain(..kept.len().saturating_sub(last));
        }
        batch.events = kept.into();
        Ok(batch)
    }
}

/// This machine's buffer, if it was full.
fn full_buffer(was_full: bool) -> Vec<FullBuffer> {
    was_full.then_some(FullBuffer { node: None }).into_iter().collect()
}

fn shown(event: &DatapathEvent) -> Result<ShownEvent> {
    let value = json(event);
    Ok(ShownEvent { row: EventRow::read(&value)?.0, value })
}

/// An event as JSON (docs/schema/monitor.json).
pub(in crate::commands) fn json(event: &DatapathEvent) -> Value {
    let why = &event.why;
    let mut value = json!({
        "time": rfc_3339(event.time), "verdict": if event.dropped { "deny" } else { "allow" },
        "reason": event.outcome, "direction": event.direction,
        "pod": event.pod, "ifindex": event.ifindex, "generation": event.generation,
        "policies": why.policies, "tiers": why.tiers, "audit": why.audit, "rule": why.rule, "list": why.list,
        "places": why.places,
    });
    if let Some(family) = event.unparsed {
        value["family"] = json!(family);
    }
    if let Some(packet) = &event.packet {
        value["proto"] = json!(packet.protocol);
        value["local"] = json!({"ip": packet.local, "port": packet.ports.map(|it| it.0)});
        value["peer"] = json!({"ip": packet.remote, "pod": packet.peer, "port": packet.ports.map(|it| it.1)});
    }
    value
}
