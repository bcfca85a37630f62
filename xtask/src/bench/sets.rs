//! Writes the section on large sets of `docs/performance.md`, from the benchmark's figures.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

use super::page;

const INTRODUCTION: &str = "\
## Large sets

Made by `cargo xtask bench sets`, with random keys. Times are in nanoseconds, minus the time of the same program without
the look-up. Bytes are those that bpftool shows (for a trie, bpftool shows a quarter of the memory that it takes). The
number in brackets is the ratio of the kernel's own map of the same set to Weir's structure, in time and in bytes.
`layered` is the structure that the agent uses: a hash map for entries that change between two generations, in front of
a fixed table.

";

const AGENT: &str = "
### In force

Milliseconds from a `CidrList` to programs in force on an interface, with the steps of the agent: classes, tables and
programs, loading into the kernel. Then one entry in a hundred is replaced: the agent writes single addresses into the
generation in force, and makes a new generation for prefixes. The times in force do not include reading the list from
JSON.

";

/// Writes the section from the benchmark's JSON file.
pub(super) fn write() -> Result<()> {
    page::replace("sets", &markdown(&page::rows(&page::figures("sets")?)?))
}

fn markdown(rows: &[Value]) -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("| set | in | hit | miss | bytes an entry | build, ms | load, ms |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
    for row in rows.iter().filter(|row| row["what"] == "look-up") {
        let control = rows.iter().find(|it| is_same_set(it, row) && is_kernels(it));
        let with_ratio = |field: &str, value: f64, digits: usize| match control {
            Some(control) if !is_kernels(row) => {
                format!("{value:.digits$} ({:.1})", figure(control, field) / figure(row, field))
            }
            _ => format!("{value:.digits$}"),
        };
        let cells = [
            set(row),
            row["structure"].as_str().unwrap_or_default().to_owned(),
            with_ratio("hit_ns", figure(row, "hit_ns"), 0),
            with_ratio("miss_ns", figure(row, "miss_ns"), 0),
            with_ratio("bytes", figure(row, "bytes") / figure(row, "entries"), 1),
            format!("{:.0}", figure(row, "build_ms")),
            format!("{:.0}", figure(row, "load_ms")),
        ];
        _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text.push_str(AGENT);
    text.push_str(
        "| set | read | classes | tables | in the kernel | in force | 1 %: read | found | written | in force |\n",
    );
    text.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    let fields = [
        "read_ms",
        "classify_ms",
        "lay_out_ms",
        "install_ms",
        "in_force_ms",
        "changed_read_ms",
        "judge_ms",
        "write_ms",
        "changed_ms",
    ];
    for row in rows.iter().filter(|row| row["what"] == "agent") {
        let cells: String = fields.iter().map(|field| format!(" {:.0} |", figure(row, field))).collect();
        _ = writeln!(text, "| {} |{cells}", set(row));
    }
    text
}

fn figure(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_default()
}

fn is_same_set(a: &Value, b: &Value) -> bool {
    ["what", "family", "set", "entries"].iter().all(|field| a[field] == b[field])
}

/// Whether the row is a structure of the kernel, which one would use without Weir.
fn is_kernels(row: &Value) -> bool {
    row["structure"] == "hash" || row["structure"] == "lpm"
}

fn set(row: &Value) -> String {
    let count = page::grouped(row["entries"].as_u64().unwrap_or_default());
    format!("{count} {}, IPv{}", row["set"].as_str().unwrap_or_default(), row["family"])
}
