//! Compiler output and explanations for a few cases of the corpus, for review: `.ir`, `.bpf` and `.explain` next to the
//! case. They describe and require nothing: `BLESS=1` makes them again. The requirements are in the case itself.
//!
//! `.bpf` contains the instructions that the case adds to the programs of the same cluster without policies. Labels and
//! instruction addresses are left out, so that a change of the datapath does not change every case.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One case for each kind of rule.
const CASES: [&str; 6] = [
    "lists/order",
    "peers/except-own-block",
    "ports/endport",
    "ports/named-egress",
    "services/target-port",
    "traffic/own-node",
];

/// Rows of a case that are explained.
const MOST_ROWS: usize = 3;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compiler/corpus/verdicts")
}

fn weir(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).current_dir(corpus()).args(arguments).output();
    let output = output.expect("weir starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn compiled(paths: &[&str], what: &str) -> String {
    weir(&[&["compile"], paths, &["--no-verify", "--emit", what]].concat())
}

/// An instruction without its number and the names of labels.
fn instruction(line: &str) -> Option<String> {
    let (number, rest) = line.split_once(": ")?;
    number.trim().parse::<u32>().ok()?;
    Some(match rest.split_once("goto L") {
        Some((before, _)) => format!("{before}goto …"),
        None => rest.to_owned(),
    })
}

fn programs(text: &str) -> Vec<(String, Vec<String>)> {
    let mut programs: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        match line.strip_suffix(':').filter(|it| it.ends_with("_pod") || *it == "at_edge") {
            Some(name) => programs.push((name.to_owned(), Vec::new())),
            None => programs.last_mut().expect("a program").1.extend(instruction(line)),
        }
    }
    programs
}

/// The lines of `after` that are not in a longest common subsequence; groups of them are separated.
fn added(before: &[String], after: &[String]) -> Vec<String> {
    let width = after.len() + 1;
    let mut common = vec![0u16; (before.len() + 1) * width];
    for (i, old) in before.iter().enumerate().rev() {
        for (j, new) in after.iter().enumerate().rev() {
            let (down, right) = (common[(i + 1) * width + j], common[i * width + j + 1]);
            common[i * width + j] = if old == new { common[(i + 1) * width + j + 1] + 1 } else { down.max(right) };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while j < after.len() {
        if i < before.len() && before[i] == after[j] {
            (i, j) = (i + 1, j + 1);
            if lines.last().is_some_and(|it: &String| !it.is_empty()) {
                lines.push(String::new());
            }
        } else if i < before.len() && common[(i + 1) * width + j] >= common[i * width + j + 1] {
            i += 1;
        } else {
            lines.push(after[j].clone());
            j += 1;
        }
    }
    lines
}

fn bytecode(case: &str) -> String {
    let bare = programs(&compiled(&["cluster.yaml"], "asm"));
    let full = programs(&compiled(&["cluster.yaml", case], "asm"));
    let mut text = String::new();
    for ((name, before), (_, after)) in bare.iter().zip(&full) {
        text.push_str(&format!("{name}:\n{}\n", added(before, after).join("\n").trim_end()));
    }
    text
}

/// `END -> END PROTOCOL[/PORT] = …`; an end with an address is written as that address.
fn explained(case: &str) -> String {
    let text = std::fs::read_to_string(corpus().join(case)).expect("a case");
    let mut explained = String::new();
    for row in text.lines().filter_map(|line| line.strip_prefix("# flow: ")).take(MOST_ROWS) {
        let words: Vec<&str> = row.split(' ').collect();
        let end = |word: &str| word.split_once('@').map_or(word, |(_, address)| address).to_owned();
        let (protocol, port) = words[3].split_once('/').unwrap_or((words[3], "1"));
        let (from, to) = (end(words[0]), end(words[2]));
        let arguments =
            ["explain", "-v", "cluster.yaml", case, "--from", &from, "--to", &to, "--proto", protocol, "--port", port];
        explained.push_str(&format!("$ weir {}\n{}\n", arguments.join(" "), weir(&arguments)));
    }
    explained
}

#[test]
fn snapshots_are_up_to_date() {
    for case in CASES {
        let yaml = format!("{case}.yaml");
        let made =
            [("ir", compiled(&["cluster.yaml", &yaml], "ir")), ("bpf", bytecode(&yaml)), ("explain", explained(&yaml))];
        for (extension, fresh) in made {
            let path = corpus().join(format!("{case}.{extension}"));
            let known = std::fs::read_to_string(&path).unwrap_or_default();
            if std::env::var_os("BLESS").is_some() && known != fresh {
                std::fs::write(&path, fresh).expect("a writable snapshot");
            } else {
                assert_eq!(known, fresh, "{}: BLESS=1 writes what is made", path.display());
            }
        }
    }
}

#[test]
fn only_the_chosen_cases_have_snapshots() {
    let mut found = BTreeSet::new();
    for area in std::fs::read_dir(corpus()).expect("the corpus").map(|it| it.expect("an entry").path()) {
        for file in std::fs::read_dir(&area).into_iter().flatten().map(|it| it.expect("an entry").path()) {
            if file.extension().is_some_and(|it| it != "yaml") {
                let case = file.strip_prefix(corpus()).expect("in the corpus").with_extension("");
                found.insert(case.display().to_string());
            }
        }
    }
    assert_eq!(found, CASES.map(str::to_owned).into());
}

#[test]
fn added_lines_are_missing_in_the_other_text() {
    let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(added(&lines("a b c"), &lines("x a y b c z")), ["x", "", "y", "", "z"]);
    assert!(added(&lines("a b c"), &lines("a c")).is_empty());
    assert_eq!(instruction("      24: if r1 <= r8 goto L1"), Some("if r1 <= r8 goto …".to_owned()));
    assert_eq!(instruction("L35:"), None);
}
