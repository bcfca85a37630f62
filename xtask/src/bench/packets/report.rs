//! What was measured: a table on standard output, JSON beside that of the other benchmarks.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::Row;
use super::guards::By;
use super::traffic::Load;

/// Microseconds of CPU for each unit, and how many times those of nothing.
struct Figure {
    least: f64,
    median: f64,
}

impl Figure {
    fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let least = sorted.first().copied().unwrap_or(f64::NAN);
        Self { least, median: sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN) }
    }
}

/// Prints and writes it.
pub(super) fn write(rows: &[Row]) -> Result<()> {
    let names: String = Load::ALL.iter().map(|load| format!(" {:>24}", load.name())).collect();
    println!("{:<27} {:>7}{names}", "µs of CPU (over nothing)", "rules");
    for row in rows {
        let cells: String = (0..Load::ALL.len()).map(|load| format!(" {:>24}", cell(row, load, rows))).collect();
        println!("{:<27} {:>7}{cells}", row.by.name(), row.rules);
    }
    let all: Vec<Value> = rows.iter().map(|row| json(row, rows)).collect();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join("packets.json"), serde_json::to_string_pretty(&all)? + "\n")?;
    Ok(())
}

/// The lesser of those with nothing in their way.
fn nothing(rows: &[Row], load: usize) -> Figure {
    let all = rows.iter().filter(|row| row.by == By::Nothing).map(|row| Figure::of(&row.figures[load]));
    all.min_by(|one, other| one.least.total_cmp(&other.least)).unwrap_or(Figure { least: f64::NAN, median: f64::NAN })
}

fn cell(row: &Row, load: usize, rows: &[Row]) -> String {
    let (figure, base) = (Figure::of(&row.figures[load]), nothing(rows, load));
    format!("{:.2} {:+.2} ({:.3})", figure.least / 1e3, (figure.least - base.least) / 1e3, figure.least / base.least)
}

fn json(row: &Row, rows: &[Row]) -> Value {
    let rounded = |it: f64| (it * 10.0).round() / 10.0;
    let loads = Load::ALL.iter().enumerate().map(|(load, name)| {
        let (figure, base) = (Figure::of(&row.figures[load]), nothing(rows, load));
        let ratio = |one: f64, other: f64| (one / other * 1e4).round() / 1e4;
        let value = json!({
            "ns": rounded(figure.least),
            "over_nothing_ns": rounded(figure.least - base.least),
            "ratio": ratio(figure.least, base.least),
            "median_ns": rounded(figure.median),
            "median_ratio": ratio(figure.median, base.median),
        });
        (name.key().to_owned(), value)
    });
    let figures: serde_json::Map<String, Value> = loads.collect();
    json!({"by": row.by.name(), "rules": row.rules, "figures": figures})
}
