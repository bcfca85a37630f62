//! A test: clap accepts every command line that the documents show.
//!
//! Problem: most command lines of the documents cannot run in a test, because they need a cluster, root or another file.
//! Strategy: they are parsed as the program parses its arguments, so that every command, option and kind of value
//! exists. Command lines in a sentence may leave arguments out; for them, only unknown names are errors.
//! `cli/tests/docs.rs` also runs those that are quoted with their output.

use std::path::{Path, PathBuf};

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::args::Cli;

/// Where a command line was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a block of `sh` or `console`: it is complete.
    Block,
    /// In backticks in a sentence: arguments may be left out.
    Sentence,
}

/// The command lines of `weir` in a Markdown text, as their arguments.
fn commands(text: &str) -> Vec<(Place, Vec<String>)> {
    let (mut block, mut sentences, mut continued) = (None, String::new(), String::new());
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_none() { Some(language) } else { None };
            continue;
        }
        match block {
            None => sentences.push_str(&format!("{} ", line.trim())),
            Some("sh" | "console") => {
                continued.push_str(line.trim().trim_start_matches("$ "));
                if continued.ends_with('\\') {
                    continued.pop();
                } else {
                    found.extend(in_line(&continued).map(|it| (Place::Block, it)));
                    continued.clear();
                }
            }
            Some(_) => {}
        }
    }
    for span in sentences.split('`').skip(1).step_by(2) {
        found.extend(in_line(span).map(|it| (Place::Sentence, it)));
    }
    found
}

/// The arguments of each `weir` in a line of a shell: after pipes and `&&`, after `kubectl`, `cargo run` and
/// `kubectl exec … --`.
fn in_line(line: &str) -> impl Iterator<Item = Vec<String>> {
    let commands =
        words(line).split(|it| it == "|" || it == "&&" || it == ";").map(<[String]>::to_vec).collect::<Vec<_>>();
    commands.into_iter().filter_map(|command| {
        let is_weir = |at: usize| {
            let before = at.checked_sub(1).map(|it| command[it].as_str());
            let starts = matches!(before, None | Some("kubectl" | "--"));
            starts && Path::new(&command[at]).file_name().is_some_and(|it| it == "weir")
        };
        let cargo = command.starts_with(&["cargo".to_owned(), "run".to_owned()]);
        let first = match cargo {
            true => command.iter().position(|it| it == "--")?,
            false => (0..command.len()).find(|at| is_weir(*at))?,
        };
        let left_out = |it: &String| matches!(it.as_str(), "…" | "...");
        let arguments: Vec<String> = command[first + 1..].iter().filter(|it| !left_out(it)).cloned().collect();
        (!arguments.is_empty()).then_some(arguments)
    })
}

/// The words of a shell's line, without comments and redirections.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut redirected) = (None::<String>, None, false);
    for letter in line.chars().chain([' ']) {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '>' | '<') => redirected = true,
            (None, letter) if letter.is_whitespace() => {
                let Some(word) = word.take() else { continue };
                if !std::mem::take(&mut redirected) {
                    words.push(word);
                }
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words
}

/// The error of a command line.
fn refused(place: Place, arguments: &[String]) -> Option<String> {
    let error = Cli::try_parse_from(["weir".to_owned()].iter().chain(arguments)).err()?;
    let harmless = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => false,
        _ => place == Place::Sentence,
    };
    (!harmless).then(|| error.to_string())
}

/// The Markdown files of the repository.
fn documents(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            documents(&path, found);
        } else if path.extension().is_some_and(|it| it == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_command_line_of_the_documents_is_accepted() {
    let mut files = Vec::new();
    documents(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut files);
    let (mut blocks, mut sentences, mut errors) = (0, 0, Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a readable document");
        for (place, arguments) in commands(&text) {
            *(if place == Place::Block { &mut blocks } else { &mut sentences }) += 1;
            let line = arguments.join(" ");
            errors.extend(refused(place, &arguments).map(|error| format!("{}: weir {line}\n{error}", file.display())));
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    println!("{blocks} command lines in blocks and {sentences} in sentences are accepted");
    assert!(blocks >= 50 && sentences >= 50, "only {blocks} and {sentences} command lines found");
}

#[test]
fn unknown_names_are_found() {
    let unknown = |place, line: &str| refused(place, &words(line)).is_some();
    assert!(unknown(Place::Block, "explian a.yaml"));
    assert!(unknown(Place::Sentence, "explain a.yaml --form a"));
    assert!(unknown(Place::Block, "attach"), "a required argument is missing");
    assert!(!unknown(Place::Sentence, "attach"));
    assert!(!unknown(Place::Block, "check a.yaml"));
}

#[test]
fn command_lines_are_found_with_their_arguments() {
    let text = "Run `weir check\nPATH…` or `weir-cni`.\n```sh\nweir flows -o json > a.json  # all\nkubectl weir \\\n  check 'a b'\n\
                x | weir learn - && cargo run --release -- version\nkubectl exec ds/weir -- weir status …\n```\n\
                ```yaml\nweir: no\n```\n";
    let found: Vec<String> = commands(text).into_iter().map(|(_, arguments)| arguments.join(",")).collect();
    assert_eq!(found, ["flows,-o,json", "check,a b", "learn,-", "version", "status", "check,PATH…"]);
}
