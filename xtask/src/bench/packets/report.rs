//! Reports the results: a table on standard output, a JSON file next to those of the other benchmarks, and a section of
//! the page.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::MeasuredPath;
use super::guards::Enforcer;
use super::traffic::Load;
use crate::bench::chart::BarChart;
use crate::bench::page;

/// Nanoseconds of CPU time per unit.
#[derive(Clone, Copy, Debug)]
struct Figure {
    least: f64,
    median: f64,
}

impl Figure {
    fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self { least: at(0), median: at(sorted.len() / 2) }
    }
}

/// The number of rules at which other implementations are compared with ours.
const COMPARED: usize = 1_000;

const INTRODUCTION: &str = "\
## Real packets

Made by `cargo xtask bench packets`: a client, a routing node and a server, each in a network namespace, connected by
veths. Both pods are enforced, so a packet passes two of Weir's programs, and a transaction (request and reply) passes
four. Figures are microseconds of CPU time for each unit of work. They include both ends and all work that the kernel
does for their packets, on one CPU, as the scheduler counts it; other work of the machine is not included. All paths
exist at the same time and take turns in short slices. The figure is the smallest one of all rounds. The number in
brackets is the ratio to *nothing*, the faster of two paths without rules; the difference between these two paths is the
error of the measurement.

*Rules* is the number of rules before the one that matches, half of them for the client's egress and half for the
server's ingress. Each rule has one address and one port (for Weir, each is a policy). The netfilter rules are those of
agents that enforce policies with netfilter: they accept packets of connections that conntrack knows as established,
drop packets that conntrack finds invalid, and then walk the pod's chain. So only the first packet of a connection walks
the rules, and every packet pays for conntrack. *Stateless* is the same without conntrack: every packet walks all rules,
as it does in rules that come before conntrack.

";

/// Prints the results and writes them.
pub(super) fn write(rows: &[MeasuredPath]) -> Result<()> {
    let names: String = Load::ALL.iter().map(|load| format!(" {:>24}", load.name())).collect();
    println!("{:<27} {:>7}{names}", "µs of CPU (over nothing)", "rules");
    let all = Load::ALL.len();
    for row in rows {
        let cells: String = (0..all).map(|load| format!(" {:>24}", cell(row, load, rows))).collect();
        println!("{:<27} {:>7}{cells}", row.by.name(), row.rules);
    }
    let values: Vec<Value> = rows.iter().map(|row| json(row, rows)).collect();
    std::fs::write(page::figures("packets")?, serde_json::to_string_pretty(&values)? + "\n")?;
    draw()
}

/// The lesser figure of the two paths without rules.
fn nothing(rows: &[MeasuredPath], load: usize) -> Figure {
    let all = rows.iter().filter(|row| row.by == Enforcer::Nothing).map(|row| Figure::of(&row.figures[load]));
    all.min_by(|one, other| one.least.total_cmp(&other.least)).unwrap_or(Figure { least: f64::NAN, median: f64::NAN })
}

/// Nanoseconds in addition to the path without rules.
fn added(row: &MeasuredPath, load: usize, rows: &[MeasuredPath]) -> f64 {
    Figure::of(&row.figures[load]).least - nothing(rows, load).least
}

fn cell(row: &MeasuredPath, load: usize, rows: &[MeasuredPath]) -> String {
    let (figure, base) = (Figure::of(&row.figures[load]), nothing(rows, load));
    format!("{:.2} {:+.2} ({:.3})", figure.least / 1e3, added(row, load, rows) / 1e3, figure.least / base.least)
}

fn json(row: &MeasuredPath, rows: &[MeasuredPath]) -> Value {
    let rounded = |it: f64| (it * 10.0).round() / 10.0;
    let ratio = |one: f64, other: f64| (one / other * 1e4).round() / 1e4;
    let loads = Load::ALL.iter().enumerate().map(|(load, name)| {
        let (figure, base) = (Figure::of(&row.figures[load]), nothing(rows, load));
        let value = json!({
            "ns": rounded(figure.least),
            "over_nothing_ns": rounded(added(row, load, rows)),
            "ratio": ratio(figure.least, base.least),
            "median_ns": rounded(figure.median),
            "median_ratio": ratio(figure.median, base.median),
        });
        (name.key().to_owned(), value)
    });
    let figures: serde_json::Map<String, Value> = loads.collect();
    json!({"by": row.by.name(), "rules": row.rules, "figures": figures})
}

/// Draws the section of the page and its picture from the JSON file.
pub(super) fn draw() -> Result<()> {
    let rows = page::rows(&page::figures("packets")?)?;
    std::fs::write(page::docs().join("packets.svg"), picture(&rows))?;
    page::replace("packets", &markdown(&rows))
}

fn figure(row: &Value, load: Load, of: &str) -> f64 {
    row["figures"][load.key()][of].as_f64().unwrap_or(f64::NAN)
}

fn name(row: &Value) -> &str {
    row["by"].as_str().unwrap_or_default()
}

fn at_size(rows: &[Value]) -> impl Iterator<Item = &Value> {
    rows.iter().filter(|row| row["rules"] == COMPARED)
}

fn markdown(rows: &[Value]) -> String {
    let mut text = INTRODUCTION.to_owned();
    let names: String = Load::ALL.iter().map(|load| format!(" {} |", load.name())).collect();
    _ = writeln!(text, "| enforced by | rules |{names}\n| --- | --- |{}", " --- |".repeat(Load::ALL.len()));
    for row in rows {
        let cell = |load| format!(" {:.2} ({:.3}) |", figure(row, load, "ns") / 1e3, figure(row, load, "ratio"));
        let cells: String = Load::ALL.map(cell).concat();
        _ = writeln!(text, "| {} | {} |{cells}", name(row), page::grouped(row["rules"].as_u64().unwrap_or_default()));
    }
    text + &comparison(rows)
}

/// The loads that are compared. Streams are left out: their differences are smaller than the measurement's error.
const COUNTED: [Load; 3] = [Load::RoundTrip, Load::Connection, Load::Small];

/// The added time at one number of rules, and its ratio to ours.
fn comparison(rows: &[Value]) -> String {
    let names: String = COUNTED.iter().map(|load| format!(" {} |", load.name())).collect();
    let mut text = format!(
        "\nThe time that {} rules add to *nothing*, in nanoseconds, and in brackets the ratio to the time that Weir adds:\n\n\
         ![Nanoseconds over nothing](packets.svg)\n\n| enforced by |{names}\n| --- |{}\n",
        page::grouped(COMPARED as u64),
        " --- |".repeat(COUNTED.len())
    );
    let Some(ours) = at_size(rows).find(|row| name(row) == Enforcer::Tcx.name()) else { return String::new() };
    for row in at_size(rows) {
        let cell = |load| {
            let [theirs, ours] = [row, ours].map(|row| figure(row, load, "over_nothing_ns"));
            format!(" {theirs:.0} ({:.1}) |", theirs / ours)
        };
        _ = writeln!(text, "| {} |{}", name(row), COUNTED.map(cell).concat());
    }
    text
}

/// The nanoseconds at the two ends of the bars' logarithmic scale.
const SHORTEST: f64 = 10.0;
const LONGEST: f64 = 1e6;
const COLOURS: [&str; 3] = ["#1f77b4", "#2ca02c", "#d98b2b"];

/// Draws the added time at one number of rules, on a logarithmic scale.
fn picture(rows: &[Value]) -> String {
    let legend = COLOURS.into_iter().zip(COUNTED.map(Load::name)).collect();
    let chart = BarChart { left: 190.0, bar: 12.0, legend, legend_step: 170.0 };
    let scale = chart.room() / (LONGEST / SHORTEST).log10();
    let bar = |row, load| {
        let added = figure(row, load, "over_nothing_ns");
        ((added.clamp(SHORTEST, LONGEST) / SHORTEST).log10() * scale, format!("{added:.0} ns"))
    };
    let groups = at_size(rows).map(|row| (name(row).to_owned(), COUNTED.map(|load| bar(row, load)).into()));
    chart.draw(&groups.collect::<Vec<_>>())
}
