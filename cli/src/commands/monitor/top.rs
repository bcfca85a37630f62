//! `weir monitor --top`: the pairs with most packets.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::row::EventRow;
use crate::page::{OutputPage, Style};

/// The time between two pictures.
const REFRESH: Duration = Duration::from_secs(1);
/// The number of rows: they fit on a terminal of 24 lines.
const ROWS: usize = 20;
/// The number of pairs that are counted. More would let a port scan fill the memory.
const MOST_PAIRS: usize = 10_000;

/// A pair of ends and the port, with the outcome of its packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pair {
    node: Option<String>,
    reason: String,
    direction: String,
    protocol: String,
    from: String,
    to: String,
    why: String,
}

/// The packets by pair, since the command began.
#[derive(Debug)]
pub(super) struct TopPairs {
    packets: HashMap<Pair, u64>,
    /// Packets of pairs beyond [`MOST_PAIRS`].
    beyond: u64,
    lost: u64,
    drawn: Option<Instant>,
}

impl TopPairs {
    pub(super) fn new() -> Self {
        Self { packets: HashMap::new(), beyond: 0, lost: 0, drawn: None }
    }

    pub(super) fn add(&mut self, row: &EventRow) {
        let (from, to) = match row.source_and_destination() {
            // The client's port differs for each connection.
            Some((from, to)) => (from.without_port(), to.text()),
            None => (row.pod.clone().unwrap_or_else(|| "no endpoint".to_owned()), String::new()),
        };
        let protocol = row.proto.clone().unwrap_or_else(|| "-".to_owned());
        let (node, reason, direction) = (row.node.clone(), row.reason.clone(), row.direction.clone());
        let pair = Pair { node, reason, direction, protocol, from, to, why: row.why() };
        if let Some(count) = self.packets.get_mut(&pair) {
            *count += 1;
        } else if self.packets.len() < MOST_PAIRS {
            self.packets.insert(pair, 1);
        } else {
            self.beyond += 1;
        }
    }

    pub(super) fn add_lost(&mut self, lost: u64) {
        self.lost += lost;
    }

    /// Whether the next picture is due.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.drawn.is_none_or(|drawn| now.duration_since(drawn) >= REFRESH);
        if is_due {
            self.drawn = Some(now);
        }
        is_due
    }

    pub(super) fn page(&self, color: bool) -> OutputPage {
        let mut page = OutputPage::colored(color);
        let mut pairs: Vec<(&Pair, u64)> = self.packets.iter().map(|(pair, count)| (pair, *count)).collect();
        pairs.sort_by_key(|(pair, count)| (Reverse(*count), *pair));
        page.pieces(&[(
            Style::Bold,
            &format_args!("{:>8}  {:11} {:7} {:6} FROM -> TO", "PACKETS", "REASON", "SIDE", "PROTO"),
        )]);
        for (pair, count) in pairs.iter().take(ROWS) {
            let Pair { node, reason, direction, protocol, from, to, why } = pair;
            let node = node.as_ref().map(|it| format!("{it}: ")).unwrap_or_default();
            page.line(format_args!("{count:>8}  {reason:11} {direction:7} {protocol:6} {node}{from} -> {to}  {why}"));
        }
        if pairs.len() > ROWS {
            let rest: u64 = pairs.iter().skip(ROWS).map(|(_, count)| count).sum();
            page.line(format_args!("{rest:>8}  and {} more pairs", pairs.len() - ROWS));
        }
        if self.beyond > 0 {
            page.line(format_args!(
                "{:>8}  of further pairs: only the first {MOST_PAIRS} pairs are counted",
                self.beyond
            ));
        }
        if self.lost > 0 {
            page.line(format_args!("{:>8}  not recorded", self.lost));
        }
        if pairs.is_empty() {
            page.line("no packets yet");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::row::tests::{event, row};
    use super::*;

    #[test]
    fn packets_of_a_pair_are_counted_whatever_the_clients_port() {
        let mut top = TopPairs::new();
        let mut first = event();
        top.add(&row(&first));
        first["local"]["port"] = json!(40_001);
        top.add(&row(&first));
        first["reason"] = json!("cut");
        top.add(&row(&first));
        top.add_lost(7);
        let page = top.page(false);
        let expected = " PACKETS  REASON      SIDE    PROTO  FROM -> TO
       2  denied      egress  TCP    shop/web 10.0.0.1 -> shop/db 10.0.0.2:5432  isolated by shop/deny, allowed by no rule
       1  cut         egress  TCP    shop/web 10.0.0.1 -> shop/db 10.0.0.2:5432  isolated by shop/deny, allowed by no rule
       7  not recorded
";
        assert_eq!(page.as_str(), expected);
    }

    #[test]
    fn rows_beyond_the_first_are_summed_up() {
        let mut top = TopPairs::new();
        for port in 1..=25 {
            let mut event = event();
            event["peer"]["port"] = json!(port);
            top.add(&row(&event));
        }
        let page = top.page(false);
        assert!(page.as_str().ends_with("       5  and 5 more pairs\n"), "{}", page.as_str());
    }
}
