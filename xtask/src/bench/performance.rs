//! Writes the section on whole programs of `docs/performance.md`, and its picture, from the benchmark's figures.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::chart::BarChart;
use super::page;

/// The figures: their keys in the file and their titles.
const FIGURES: [(&str, &str); 7] = [
    ("established_1", "established, 1 flow"),
    ("established_1024", "1,024 flows"),
    ("established_65536", "65,536 flows"),
    ("established_524288", "524,288 flows"),
    ("new_pod", "new, from a pod"),
    ("new_outside", "new, to outside"),
    ("denied", "denied"),
];

const INTRODUCTION: &str = "\
## Whole programs

Made by `cargo xtask bench programs`, in one run on one machine. Run it on your own machine too: the ratios are more
reliable than the absolute figures. A figure is the time for one packet in nanoseconds, minus the time of a program that
does nothing. The number in brackets is the ratio to the smallest handwritten program that does the same for TCP
(`runtime-bpf/benches/programs/minimal.rs` lists what it does). Flows take turns in an order that the CPU's caches cannot
predict. *Cluster-wide* are ClusterNetworkPolicies with 25 rules each, and *instructions* those of the longer program.

![Nanoseconds for each packet](performance.svg)

";

/// Writes both from the benchmark's JSON file.
pub(super) fn write(figures: &Path) -> Result<()> {
    let rows = page::rows(figures)?;
    page::replace("programs", &markdown(&rows))?;
    Ok(std::fs::write(page::docs().join("performance.svg"), picture(&rows))?)
}

fn markdown(rows: &[Value]) -> String {
    let mut text = INTRODUCTION.to_owned();
    for (family, name) in [(4, "IPv4"), (6, "IPv6")] {
        _ = writeln!(text, "### {name}\n");
        let names: String = FIGURES.iter().map(|(_, name)| format!(" {name} |")).collect();
        _ = writeln!(text, "| flows in | policies | cluster-wide | listed addresses | instructions |{names}");
        _ = writeln!(text, "| --- | --- | --- | --- | --- |{}", " --- |".repeat(FIGURES.len()));
        for row in rows.iter().filter(|row| row["family"] == family) {
            let cells: String = FIGURES.iter().map(|(figure, _)| format!(" {} |", cell(row, figure))).collect();
            let numbers = ["policies", "cluster_wide", "listed", "instructions"].map(|field| number(row, field));
            _ = writeln!(text, "| {} | {} |{cells}", word(row), numbers.join(" | "));
        }
        text.push('\n');
    }
    text
}

fn cell(row: &Value, figure: &str) -> String {
    let [nanoseconds, ratio] = ["ns", "ratio"].map(|it| row["figures"][figure][it].as_f64().unwrap_or_default());
    if is_by_hand(row) { format!("{nanoseconds:.1}") } else { format!("{nanoseconds:.1} ({ratio:.2})") }
}

fn is_by_hand(row: &Value) -> bool {
    row["flows"] == "by hand"
}

fn word(row: &Value) -> &str {
    row["flows"].as_str().unwrap_or_default()
}

/// A number with commas; empty for the minimal program, which has no policies.
fn number(row: &Value, field: &str) -> String {
    if is_by_hand(row) {
        return String::new();
    }
    page::grouped(row[field].as_u64().unwrap_or_default())
}

const COLOURS: [&str; 4] = ["#9aa5b1", "#1f77b4", "#2ca02c", "#d98b2b"];

/// Bars of IPv4: by hand, 100 policies in each of the flow tables.
fn picture(rows: &[Value]) -> String {
    let is_shown = |row: &&Value| {
        row["family"] == 4
            && row["listed"] == 0
            && row["cluster_wide"] == 0
            && (is_by_hand(row) || row["policies"] == 100)
    };
    let shown: Vec<&Value> = rows.iter().filter(is_shown).take(COLOURS.len()).collect();
    let value = |row: &Value, figure: &str| row["figures"][figure]["ns"].as_f64().unwrap_or_default();
    let all = shown.iter().flat_map(|row| FIGURES.iter().map(|(figure, _)| value(row, figure)));
    let longest = all.fold(1.0, f64::max);
    let legend = COLOURS.into_iter().zip(shown.iter().map(|row| word(row))).collect();
    let chart = BarChart { left: 150.0, bar: 10.0, legend, legend_step: 130.0 };
    let bar = |ns: f64| ((ns / longest * chart.room()).max(0.5), format!("{ns:.1}"));
    let groups = FIGURES
        .map(|(figure, name)| (name.to_owned(), shown.iter().map(|row| bar(value(row, figure))).collect::<Vec<_>>()));
    chart.draw(&groups)
}
