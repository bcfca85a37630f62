//! `weir monitor`: prints drops as they happen, and packets that policies in audit mode would drop.

mod filter;
mod top;

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use weir_runtime::events::{DatapathEvent, EventBatch, EventPacket};
use weir_runtime::runtime::{PinAccess, Runtime};

use super::CommandOutcome;
use super::flows::address;
use crate::args::{GlobalArgs, MonitorArgs, MonitorFormat};
use crate::page::{self, OutputPage, Style};
use crate::time::rfc_3339;
use filter::is_housekeeping;
use top::TopPairs;

/// How long one reading waits: `--duration` may be exceeded by this time.
const TURN: Duration = Duration::from_millis(200);
/// The time between two lines about packets that are only counted.
const SUMMARY: Duration = Duration::from_secs(10);

pub(crate) fn run(global: &GlobalArgs, arguments: &MonitorArgs) -> Result<CommandOutcome> {
    let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read)?;
    let mut events = runtime.events()?;
    let color = page::color_on_stdout(global.color);
    let mut printer = EventPrinter::new(arguments, global.default_namespace(), color);
    if let Some(last) = arguments.last {
        let mut waiting = EventBatch::default();
        loop {
            let read = events.read(Duration::ZERO)?;
            waiting.lost += read.lost;
            if read.events.is_empty() {
                break;
            }
            waiting.events.extend(read.events);
        }
        waiting.events.retain(|it| printer.takes(it));
        waiting.events.drain(..waiting.events.len().saturating_sub(last));
        printer.batch(&waiting)?;
        printer.finish()?;
        return Ok(CommandOutcome::Clean);
    }
    let end = arguments.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    while !printer.is_done() && end.is_none_or(|end| Instant::now() < end) {
        printer.batch(&events.read(TURN)?)?;
    }
    printer.finish()?;
    Ok(CommandOutcome::Clean)
}

/// Prints packets in the chosen form.
struct EventPrinter<'a> {
    arguments: &'a MonitorArgs,
    namespace: Option<&'a str>,
    color: bool,
    /// How many packets to print still.
    left: u64,
    /// Packets that were counted instead of printed, since the last line about them.
    housekeeping: u64,
    summarized: Instant,
    top: Option<TopPairs>,
    has_header: bool,
}

impl<'a> EventPrinter<'a> {
    fn new(arguments: &'a MonitorArgs, namespace: Option<&'a str>, color: bool) -> Self {
        Self {
            arguments,
            namespace,
            color,
            left: arguments.count.unwrap_or(u64::MAX),
            housekeeping: 0,
            summarized: Instant::now(),
            top: arguments.top.then(TopPairs::new),
            has_header: false,
        }
    }

    fn is_done(&self) -> bool {
        self.left == 0
    }

    fn takes(&self, event: &DatapathEvent) -> bool {
        self.arguments.filter.takes(self.namespace, event)
    }

    fn batch(&mut self, read: &EventBatch) -> Result<()> {
        let wanted: Vec<&DatapathEvent> = read.events.iter().filter(|it| self.takes(it)).collect();
        if let Some(top) = &mut self.top {
            wanted.into_iter().filter(|it| self.arguments.all || !is_housekeeping(it)).for_each(|it| top.add(it));
            top.add_lost(read.lost);
            if page::is_terminal() && top.is_due(Instant::now()) {
                top.page(self.color).print_over()?;
            }
            return Ok(());
        }
        let mut page = OutputPage::colored(self.color);
        for event in wanted {
            if self.is_done() {
                break;
            }
            match self.arguments.output {
                // Packets that are only counted do not count as printed.
                MonitorFormat::Text if !self.arguments.all && is_housekeeping(event) => {
                    self.housekeeping += 1;
                    continue;
                }
                MonitorFormat::Text => self.line(&mut page, event),
                MonitorFormat::Jsonl => page.json(&json(event))?,
            }
            self.left -= 1;
        }
        if read.lost > 0 {
            match self.arguments.output {
                MonitorFormat::Text => page.line(format_args!("{} more packets were not recorded", read.lost)),
                MonitorFormat::Jsonl => page.json(&json!({"lost": read.lost}))?,
            }
        }
        if self.summarized.elapsed() >= SUMMARY {
            self.summarize(&mut page);
        }
        if page.is_empty() { Ok(()) } else { page.print() }
    }

    /// Prints the rest: the last picture, and packets that were only counted.
    fn finish(&mut self) -> Result<()> {
        let mut page = match &self.top {
            Some(top) if page::is_terminal() => return top.page(self.color).print_over(),
            Some(top) => top.page(self.color),
            None => OutputPage::colored(self.color),
        };
        self.summarize(&mut page);
        if page.is_empty() { Ok(()) } else { page.print() }
    }

    fn summarize(&mut self, page: &mut OutputPage) {
        self.summarized = Instant::now();
        if self.housekeeping > 0 {
            let count = std::mem::take(&mut self.housekeeping);
            let text = format!("{count} packets of IPv6 neighbour discovery and group membership (--all shows them)");
            page.pieces(&[(Style::Dim, &text)]);
        }
    }

    fn line(&mut self, page: &mut OutputPage, event: &DatapathEvent) {
        if !self.has_header {
            self.has_header = true;
            page.pieces(&[(Style::Bold, &format_args!("{:24} {:7} {:11} PACKET", "TIME", "SIDE", "REASON"))]);
        }
        let outcome = if event.dropped { Style::Red } else { Style::Green };
        let (time, packet) = (rfc_3339(event.time), packet(event));
        page.pieces(&[
            (Style::Dim, &time),
            (Style::Plain, &format_args!(" {:7} ", event.direction)),
            (outcome, &format_args!("{:11}", event.outcome)),
            (Style::Plain, &format_args!(" {packet}{}", why(event))),
        ]);
    }
}

fn packet(event: &DatapathEvent) -> String {
    match &event.packet {
        Some(packet) => {
            let (from, to) = source_and_destination(event, packet);
            format!("{} {from} -> {to}", packet.protocol)
        }
        None => event.pod.clone().unwrap_or_else(|| "no endpoint".to_owned()),
    }
}

/// The list, policies and rules that decided, with a separator before them.
fn why(event: &DatapathEvent) -> String {
    let mut text = String::new();
    if let Some(list) = &event.why.list {
        text.push_str(&format!("  by list {list}"));
    } else if !event.why.tiers.is_empty() {
        text.push_str(&format!("  denied by a rule of {}", event.why.tiers.join(", ")));
        if !event.why.policies.is_empty() {
            text.push_str(&format!(", or isolated by {}, allowed by no rule", event.why.policies.join(", ")));
        }
    } else if !event.why.policies.is_empty() {
        text.push_str(&format!("  isolated by {}, allowed by no rule", event.why.policies.join(", ")));
    }
    if !event.why.audit.is_empty() {
        let audited = event.why.audit.join(", ");
        text.push_str(&match event.dropped {
            true => format!(", but with {audited} (audit)"),
            false => format!("  would be isolated by {audited} (audit), allowed by no rule"),
        });
    }
    text
}

/// An end of a packet, as it is printed: `shop/web 10.0.0.1:80`.
struct PacketEnd<'e> {
    pod: Option<&'e str>,
    ip: IpAddr,
    port: Option<u16>,
}

impl fmt::Display for PacketEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&address(self.pod, self.ip, self.port))
    }
}

impl PacketEnd<'_> {
    fn without_port(&self) -> String {
        address(self.pod, self.ip, None)
    }
}

fn source_and_destination<'e>(event: &'e DatapathEvent, packet: &'e EventPacket) -> (PacketEnd<'e>, PacketEnd<'e>) {
    let local = PacketEnd { pod: event.pod.as_deref(), ip: packet.local, port: packet.ports.map(|(local, _)| local) };
    let remote =
        PacketEnd { pod: packet.peer.as_deref(), ip: packet.remote, port: packet.ports.map(|(_, remote)| remote) };
    if event.direction == "egress" { (local, remote) } else { (remote, local) }
}

/// An event as JSON (docs/schema/monitor.json).
pub(super) fn json(event: &DatapathEvent) -> Value {
    let mut value = json!({
        "time": rfc_3339(event.time), "verdict": if event.dropped { "deny" } else { "allow" },
        "reason": event.outcome, "direction": event.direction,
        "pod": event.pod, "ifindex": event.ifindex, "generation": event.generation,
        "policies": event.why.policies, "tiers": event.why.tiers, "audit": event.why.audit, "rule": null, "list": event.why.list,
    });
    if let Some(packet) = &event.packet {
        value["proto"] = json!(packet.protocol);
        value["local"] = json!({"ip": packet.local, "port": packet.ports.map(|it| it.0)});
        value["peer"] = json!({"ip": packet.remote, "pod": packet.peer, "port": packet.ports.map(|it| it.1)});
    }
    value
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use weir_runtime::names::Why;

    use super::*;

    /// A packet from a pod to another one, which a policy denies.
    pub(super) fn event() -> DatapathEvent {
        DatapathEvent {
            time: SystemTime::UNIX_EPOCH,
            pod: Some("shop/web".to_owned()),
            ifindex: 7,
            direction: "egress",
            outcome: "denied",
            dropped: true,
            packet: Some(EventPacket {
                protocol: "TCP".to_owned(),
                local: IpAddr::from([10, 0, 0, 1]),
                remote: IpAddr::from([10, 0, 0, 2]),
                peer: Some("shop/db".to_owned()),
                ports: Some((40_000, 5432)),
            }),
            generation: 1,
            why: Why { policies: vec!["shop/deny".to_owned()], ..Why::default() },
        }
    }

    /// A packet of ICMPv6 from a pod.
    pub(super) fn icmp6(local: &str, remote: &str) -> DatapathEvent {
        let [local, remote] = [local, remote].map(|it| it.parse().expect("an address"));
        let packet = EventPacket { protocol: "ICMPv6".to_owned(), local, remote, peer: None, ports: None };
        DatapathEvent { outcome: "source", packet: Some(packet), why: Why::default(), ..event() }
    }

    fn arguments(options: &str) -> MonitorArgs {
        use clap::Parser as _;
        let words = ["weir", "monitor"].into_iter().chain(options.split_whitespace());
        match crate::args::Cli::try_parse_from(words).expect("valid").command {
            crate::args::CliCommand::Enforcement(crate::args::EnforcementCommand::Monitor(arguments)) => arguments,
            _ => panic!("not the command"),
        }
    }

    #[test]
    fn line_names_both_ends_and_the_policy() {
        let mut page = OutputPage::new();
        let arguments = arguments("");
        let mut printer = EventPrinter::new(&arguments, None, false);
        printer.line(&mut page, &event());
        printer.line(&mut page, &event());
        let line = "1970-01-01T00:00:00.000Z egress  denied      TCP shop/web 10.0.0.1:40000 -> shop/db 10.0.0.2:5432  \
                    isolated by shop/deny, allowed by no rule\n";
        let header = "TIME                     SIDE    REASON      PACKET\n";
        assert_eq!(page.as_str(), format!("{header}{line}{line}"), "the header is printed once");
    }

    #[test]
    fn housekeeping_is_counted_and_does_not_use_up_the_count() {
        let arguments = arguments("--count 2");
        let mut printer = EventPrinter::new(&arguments, None, false);
        let events = vec![icmp6("fe80::1", "ff02::2"), event(), icmp6("fe80::1", "ff02::2")];
        printer.batch(&EventBatch { events, lost: 0 }).expect("it prints");
        assert_eq!((printer.left, printer.housekeeping), (1, 2));
        let mut page = OutputPage::new();
        printer.summarize(&mut page);
        assert!(page.as_str().starts_with("2 packets of IPv6 neighbour discovery"), "{}", page.as_str());
    }
}
