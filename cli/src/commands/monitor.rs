//! `weir monitor`: prints drops as they happen, and packets that policies in audit mode would drop.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::{Value, json};
use weir_runtime::events::{Event, Packet};
use weir_runtime::runtime::{Access, Runtime};

use super::Outcome;
use super::flows::address;
use crate::args::{Monitor, MonitorFormat};
use crate::page::Page;

/// How long one reading waits: `--duration` may be exceeded by this time.
const TURN: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &Monitor) -> Result<Outcome> {
    let runtime = Runtime::open(&arguments.pinned.bpffs, Access::Read)?;
    let mut events = runtime.events()?;
    let end = arguments.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 && end.is_none_or(|end| Instant::now() < end) {
        let read = events.read(TURN)?;
        let mut page = Page::new();
        for event in read.events.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            match arguments.output {
                MonitorFormat::Text => page.line(line(event)),
                MonitorFormat::Jsonl => page.json(&json(event))?,
            }
        }
        left = left.saturating_sub(read.events.len() as u64);
        if read.lost > 0 {
            match arguments.output {
                MonitorFormat::Text => page.line(format_args!("{} more were not recorded", read.lost)),
                MonitorFormat::Jsonl => page.json(&json!({"lost": read.lost}))?,
            }
        }
        if page != Page::new() {
            page.print()?;
        }
    }
    Ok(Outcome::Clean)
}

fn line(event: &Event) -> String {
    let mut text = format!("{} {:7} {:11} ", time(event.time), event.direction, event.outcome);
    match &event.packet {
        Some(packet) => text.push_str(&ends(event, packet)),
        None => text.push_str(event.pod.as_deref().unwrap_or("no endpoint")),
    }
    if let Some(list) = &event.why.list {
        text.push_str(&format!("  by list {list}"));
    } else if !event.why.policies.is_empty() {
        text.push_str(&format!("  isolated by {}, allowed by no rule", event.why.policies.join(", ")));
    }
    if !event.why.audit.is_empty() {
        let audit = event.why.audit.join(", ");
        text.push_str(&match event.dropped {
            true => format!(", but with {audit} (audit)"),
            false => format!("  would be isolated by {audit} (audit), allowed by no rule"),
        });
    }
    text
}

fn ends(event: &Event, packet: &Packet) -> String {
    let local = address(event.pod.as_deref(), packet.local, packet.ports.map(|it| it.0));
    let remote = address(packet.peer.as_deref(), packet.remote, packet.ports.map(|it| it.1));
    let (from, to) = if event.direction == "egress" { (local, remote) } else { (remote, local) };
    format!("{} {from} -> {to}", packet.protocol)
}

fn json(event: &Event) -> Value {
    let mut value = json!({
        "time": time(event.time), "verdict": if event.dropped { "deny" } else { "allow" }, "reason": event.outcome, "direction": event.direction,
        "pod": event.pod, "ifindex": event.ifindex, "generation": event.generation,
        "policies": event.why.policies, "audit": event.why.audit, "rule": null, "list": event.why.list,
    });
    if let Some(packet) = &event.packet {
        value["proto"] = json!(packet.protocol);
        value["local"] = json!({"ip": packet.local, "port": packet.ports.map(|it| it.0)});
        value["peer"] = json!({"ip": packet.remote, "pod": packet.peer, "port": packet.ports.map(|it| it.1)});
    }
    value
}

/// RFC 3339, in UTC, to the millisecond.
fn time(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    // Days since 1 March of year 0, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: u64| time(UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.007Z");
    }
}
