//! `weir verify`: does an artifact say what the policies say?

use std::io::Write as _;

use anyhow::Result;
use weir_compiler::verify::{self, Difference, Part, Report};

use super::Outcome;
use super::inspect::load;
use crate::args::{Global, Verify};
use crate::read;

pub(crate) fn run(global: &Global, arguments: &Verify) -> Result<Outcome> {
    let artifact = load(&arguments.artifact)?;
    let Some(read) = read::read_sound(global, &arguments.input)? else { return Ok(Outcome::Failed) };
    let report = verify::verify(&artifact, &read.cluster);
    print_differences(&report);
    std::io::stdout().lock().write_all(line(&report).as_bytes())?;
    Ok(if report.is_verified() { Outcome::Clean } else { Outcome::Findings })
}

/// Each with its witness.
pub(super) fn print_differences(report: &Report) {
    for difference in &report.differences {
        let mut text = format!("differs: {difference}\n");
        if let Difference::Verdict { packet, .. } = difference {
            let bytes: Vec<String> = packet.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&format!("  packet: {}\n", bytes.join(" ")));
        }
        _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// `verified N of N`
pub(super) fn line(report: &Report) -> String {
    let (agreed, asked) = (report.agreed(), report.asked());
    let parts = Part::ALL.iter().zip(report.parts).filter(|(_, (asked, _))| *asked > 0);
    let parts: Vec<String> = parts.map(|(part, (asked, agreed))| part_line(*part, asked, agreed)).collect();
    let how = if report.exhaustive { "every combination of what can be told apart" } else { "by parts" };
    format!("verified {agreed} of {asked} ({how}: {})\n", parts.join(", "))
}

fn part_line(part: Part, asked: u64, agreed: u64) -> String {
    match asked == agreed {
        true => format!("{asked} {}", part.name()),
        false => format!("{agreed} of {asked} {}", part.name()),
    }
}
