//! Checks the documents: links have targets, mentioned names exist, and quoted output is the real output. A unit test of
//! the program (`cli/src/documented_commands.rs`) parses the command lines that are not quoted with an output.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_model::Assumptions;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files under a directory with an extension, sorted; build output and hidden directories are left out.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("a readable directory")
        .map(|entry| entry.expect("a readable entry").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found
}

/// The text without fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn between<'t>(text: &'t str, open: &'t str, close: char) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(inside, _)| inside))
}

/// A heading as GitHub makes an anchor of it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    prose(text).lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// The error of a link, if it is broken.
fn broken(document: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, fragment) = link.split_once('#').map_or((link, None), |(path, fragment)| (path, Some(fragment)));
    let target = match path.is_empty() {
        true => document.to_owned(),
        false => document.parent().expect("a file has a directory").join(path),
    };
    if !target.exists() {
        return Some(format!("{}: no file {link}", document.display()));
    }
    let fragment = fragment?;
    let known = target.is_file() && anchors(&read(&target)).contains(fragment);
    (!known).then(|| format!("{}: no heading {link}", document.display()))
}

#[test]
fn every_relative_link_has_a_target() {
    let documents = files(&root(), "md");
    assert!(documents.len() > 5, "the documents are found: {documents:?}");
    let mut found = Vec::new();
    for document in &documents {
        let text = prose(&read(document));
        found.extend(between(&text, "](", ')').filter_map(|link| broken(document, link)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_broken_link_is_found() {
    let document = root().join("README.md");
    assert!(broken(&document, "no-such-file.md").is_some());
    assert!(broken(&document, "#no-such-heading").is_some());
    assert!(broken(&document, "docs/semantics.md#traffic").is_none());
}

/// The words in backticks of ARCHITECTURE.md, outside of fenced blocks.
fn code_words(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    prose.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// Whether a source file defines the name.
fn defines(text: &str, name: &str) -> bool {
    const BEFORE: [&str; 9] = ["fn", "struct", "enum", "const", "static", "type", "trait", "mod", "macro_rules!"];
    let is_name = |it: char| it.is_alphanumeric() || it == '_';
    text.match_indices(name).any(|(start, _)| {
        let (before, after) = (&text[..start], &text[start + name.len()..]);
        let whole = !before.ends_with(is_name) && !after.starts_with(is_name);
        let word = before.trim_end().rsplit(char::is_whitespace).next().unwrap_or_default();
        // A variant or a method: `Name {`, `Name(`, `Name,` at the beginning of its line; or made by our `id!` macros.
        let alone = before.rsplit('\n').next().is_some_and(|line| line.trim().is_empty() && !line.is_empty());
        whole && (BEFORE.contains(&word) || alone)
    })
}

/// The files that a module path may refer to, in any of the crates.
fn module_files(modules: &[&str]) -> Vec<PathBuf> {
    let tail = modules.join("/");
    let directories = [
        "runtime-bpf/src",
        "runtime-bpf/tests",
        "runtime-bpf/tests/vm_against_kernel",
        "runtime-bpf/tests/object_loads",
        "runtime-bpf/tests/enforce",
        "cli/tests/packets",
        "cli/tests/watch",
        "cli/tests/cli",
        "cli/tests/kubectl_apply",
        "compiler/classes/tests/index",
        "compiler/classes/tests/incremental",
        "compiler/codegen/tests/properties",
        "xtask/tests",
        "cli/src",
        "cli/tests",
        "xtask/src",
        "testing/src",
        "fuzz/tests",
    ];
    let mut candidates: Vec<PathBuf> =
        directories.iter().map(|directory| root().join(directory).join(format!("{tail}.rs"))).collect();
    for entry in std::fs::read_dir(root().join("compiler")).expect("a readable directory") {
        let krate = entry.expect("a readable entry").path();
        candidates.extend(["src", "tests"].map(|folder| krate.join(folder).join(format!("{tail}.rs"))));
        // The tests of the binary `incremental` may be a folder: `tests/incremental/main.rs`.
        candidates.push(krate.join("tests").join(&tail).join("main.rs"));
        // A path may begin with the crate's own name: `model::eval` is `compiler/model/src/eval.rs`.
        if let Some((_, rest)) = modules.split_first().filter(|(first, _)| krate.ends_with(first)) {
            let file = if rest.is_empty() { "lib.rs".to_owned() } else { format!("{}.rs", rest.join("/")) };
            candidates.push(krate.join("src").join(file));
        }
    }
    candidates.into_iter().filter(|path| path.is_file()).collect()
}

/// `a::b::Name` is defined in `a/b.rs`, or `Name` of the type `b` in `a.rs`, or in the module `b` inside of `a.rs`.
fn is_symbol(path: &str) -> bool {
    let steps: Vec<&str> = path.trim_end_matches("()").split("::").collect();
    let Some((name, modules)) = steps.split_last() else { return false };
    if !module_files(&steps).is_empty() {
        return true;
    }
    (1..=modules.len()).rev().any(|depth| {
        let rest = &modules[depth..];
        module_files(&modules[..depth]).iter().any(|file| {
            let text = read(file);
            defines(&text, name) && rest.iter().all(|module| defines(&text, module))
        })
    })
}

#[test]
fn every_symbol_and_file_that_the_architecture_names_exists() {
    let documents = ["ARCHITECTURE.md", "docs/decisions.md", "docs/invariants.md"];
    let words: BTreeSet<String> = documents.iter().flat_map(|it| code_words(&read(&root().join(it)))).collect();
    let (mut symbols, mut missing) = (0, Vec::new());
    for word in words {
        let is_path = word.contains('/') && !word.contains(' ') && word.contains('.');
        if word.contains("::") && !word.contains(' ') {
            symbols += 1;
            missing.extend((!is_symbol(&word)).then_some(word));
        } else if is_path && !root().join(&word).exists() {
            missing.push(word);
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(symbols > 20, "only {symbols} symbols");
}

#[test]
fn a_missing_symbol_is_found() {
    assert!(is_symbol("model::eval::Oracle"));
    assert!(is_symbol("model::eval::Oracle::judge"));
    assert!(!is_symbol("model::eval::Oracles"));
    assert!(!is_symbol("model::nowhere::Oracle"));
    assert!(!is_symbol("model::eval::Nobody::judge"));
}

#[test]
fn the_architecture_fits_in_three_hundred_lines() {
    let text = read(&root().join("ARCHITECTURE.md"));
    assert!(text.lines().count() <= 300, "{} lines", text.lines().count());
    let long = text.lines().find(|line| line.chars().count() > 120);
    assert_eq!(long, None, "a line has at most 120 characters");
}

#[test]
fn the_semantics_list_every_assumption_with_its_values() {
    let text = read(&root().join("docs/semantics.md"));
    for (key, values) in Assumptions::KEYS {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        let row = format!("| `{key}` | {} |", values.join(", "));
        assert!(text.contains(&row), "no row {row}");
        assert!(text.contains(&format!("### `{key}`")), "no section on {key}");
    }
}

/// The line of a quote for the rest of the output.
const ELLIPSIS: &str = "…";

/// The part of an output that a document quotes: its end after an ellipsis, its beginning before one, or all of it. The
/// number of lines is that of the quote.
fn excerpt<'o>(output: &[&'o str], quoted: &[&str]) -> Vec<&'o str> {
    let shown = quoted.len().saturating_sub(1);
    match (quoted.first(), quoted.last()) {
        _ if shown >= output.len() => output.to_vec(),
        (Some(&ELLIPSIS), _) => [&[ELLIPSIS], &output[output.len() - shown..]].concat(),
        (_, Some(&ELLIPSIS)) => [&output[..shown], &[ELLIPSIS]].concat(),
        _ => output.to_vec(),
    }
}

/// A document with what its commands print now: in every ```console block, after each line that begins with `$ weir `.
fn requoted(text: &str, print: impl Fn(&[&str]) -> String) -> String {
    let mut console = false;
    let mut fresh = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            console = line == "```console";
        }
        fresh.push_str(line);
        fresh.push('\n');
        let Some(command) = line.strip_prefix("$ weir ").filter(|_| console) else { continue };
        let mut quoted = Vec::new();
        while let Some(line) = lines.next_if(|it| !it.starts_with("```") && !it.starts_with("$ weir ")) {
            quoted.push(line);
        }
        let arguments: Vec<&str> = command.split_whitespace().collect();
        let output = print(&arguments);
        let output: Vec<&str> = output.trim_end().lines().collect();
        for line in excerpt(&output, &quoted) {
            fresh.push_str(line);
            fresh.push('\n');
        }
    }
    fresh
}

/// A directory with the files that are beside the program in the tar file of a release, and nothing else. Quoted
/// commands run there, without a home directory and other programs.
struct Unpacked(PathBuf);

impl Unpacked {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("weir-docs-{}", std::process::id()));
        for path in xtask::dist::examples(&root()).expect("the list of the tar file") {
            let copy = directory.join(&path);
            std::fs::create_dir_all(copy.parent().expect("a directory")).expect("a writable directory");
            std::fs::copy(root().join(&path), copy).expect("a readable file");
        }
        Self(directory)
    }

    fn printed(&self, arguments: &[&str]) -> String {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.current_dir(&self.0).env_clear().env("PATH", "").env("COLUMNS", "100").args(arguments);
        let output = weir.output().expect("weir starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "weir {}: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// With `BLESS=1`, writes the real output into the documents, for review.
#[test]
fn quoted_output_equals_real_output() {
    let unpacked = Unpacked::new();
    let mut quoting = 0;
    for document in files(&root(), "md") {
        let text = read(&document);
        quoting += text.matches("\n$ weir ").count();
        let fresh = requoted(&text, |arguments| unpacked.printed(arguments));
        if std::env::var_os("BLESS").is_some() && fresh != text {
            std::fs::write(&document, fresh).expect("a writable document");
        } else {
            let differs = text.lines().zip(fresh.lines()).find(|(old, new)| old != new);
            assert!(text == fresh, "{}: BLESS=1 writes what is printed; {differs:?}", document.display());
        }
    }
    assert!(quoting > 20, "only {quoting} quotes found");
}

#[test]
fn every_command_of_the_quick_start_is_quoted_with_its_output() {
    let text = read(&root().join("docs/quickstart.md"));
    let mut block = "";
    let mut quoted = 0;
    for line in text.lines() {
        if line.starts_with("```") {
            block = line.trim_start_matches('`');
        }
        assert!(block != "sh" || !line.starts_with("weir "), "the output of this command is not compared: {line}");
        quoted += usize::from(block == "console" && line.starts_with("$ weir "));
    }
    assert!(quoted >= 6, "only {quoted} commands");
}

/// The lines of all `sh` blocks of a document.
fn shell_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut block = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        block = if fence { line.trim_start() == "```sh" } else { block };
        block && !fence
    })
}

/// Whether a shell line uses only tasks of `cargo xtask`, and files of the repository, that exist.
fn is_known(line: &str, tasks: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let task = words.windows(3).find(|it| it[..2] == ["cargo", "xtask"]).map(|it| it[2]);
    let ours = ["deploy/", "policies/examples", "policies/changes", "policies/expectations", "docs/"];
    let files = words.iter().filter(|word| ours.iter().any(|it| word.starts_with(it)));
    task.is_none_or(|it| tasks.contains(&format!("Some({it:?})")))
        && files.into_iter().all(|it| root().join(it).exists())
}

#[test]
fn tasks_and_files_in_shell_blocks_exist() {
    let tasks = read(&root().join("xtask/src/main.rs"));
    let (mut lines, mut unknown) = (0, Vec::new());
    for document in files(&root(), "md") {
        let text = read(&document);
        lines += shell_lines(&text).count();
        let found = shell_lines(&text).filter(|line| !is_known(line, &tasks));
        unknown.extend(found.map(|line| format!("{}: {line}", document.display())));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(lines > 50, "only {lines} lines");
    assert!(!is_known("cargo xtask no-such-task", &tasks) && is_known("cargo xtask ci", &tasks));
    assert!(!is_known("helm install weir deploy/no-such-chart", &tasks));
}

#[test]
fn only_quoted_output_is_replaced() {
    let text = "a\n```console\n$ weir x\nold\n\nold\n```\n$ weir y\nb\n```sh\n$ weir z\nc\n```\n";
    let expected = "a\n```console\n$ weir x\nnew x\n```\n$ weir y\nb\n```sh\n$ weir z\nc\n```\n";
    assert_eq!(requoted(text, |arguments| format!("new {}\n\n", arguments.join(" "))), expected);
}

#[test]
fn excerpts_are_compared_as_far_as_they_are_quoted() {
    let quoted = |lines: &str| format!("```console\n$ weir x\n{lines}```\n");
    let print = |_: &[&str]| "1\n2\n3\n4\n".to_owned();
    assert_eq!(requoted(&quoted("…\nold\nold\n"), print), quoted("…\n3\n4\n"));
    assert_eq!(requoted(&quoted("old\n…\n"), print), quoted("1\n…\n"));
    assert_eq!(requoted(&quoted("old\n"), print), quoted("1\n2\n3\n4\n"));
    assert_eq!(requoted(&quoted("…\na\nb\nc\nd\n"), print), quoted("1\n2\n3\n4\n"));
}
