//! All output goes through `cli/src/page.rs`, which escapes text from outside.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Code that writes to a terminal or a log without the page.
const DIRECT_OUTPUT: [&str; 11] = [
    "print!(",
    "println!(",
    "dbg!(",
    "io::stdout",
    "io::stderr",
    "io::Stdout",
    "io::Stderr",
    "/dev/std",
    "/dev/tty",
    "Stdio::inherit",
    "\\x1b",
];

/// Files that may print lines of a composed text: everything in it is Weir's own or was escaped before.
const COMPOSERS: [&str; 11] = [
    "panic_report.rs",
    "commands/compile.rs",
    "commands/compile/summary.rs",
    "commands/diff/md.rs",
    "commands/explain_code.rs",
    "commands/inspect.rs",
    "commands/suggest/output.rs",
    "views/dot.rs",
    "views/html.rs",
    "views/mermaid.rs",
    "views/svg.rs",
];

/// A module that exists only in tests.
const TEST_MODULE: &str = "documented_commands.rs";

/// Files that may print bytes as they are, for programs that do not show them.
const PRINT_BYTES: [&str; 3] = ["cni.rs", "commands/bundle.rs", "commands/completions.rs"];

fn sources(package: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(package).join("src")
}

/// Every source file with its code, without comments and unit tests.
fn files(root: &Path, directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        let is_test = path.file_stem().is_some_and(|it| it == "tests");
        if path.is_dir() && !is_test {
            found.extend(files(root, &path));
        } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let name = path.strip_prefix(root).expect("below the root").display().to_string();
            found.push((name, code(&text)));
        }
    }
    found.sort();
    found
}

fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.to_owned() + "\n").collect()
}

fn is_page(name: &str) -> bool {
    name == "page.rs" || name.starts_with("page/")
}

fn direct_output(code: &str) -> Vec<&'static str> {
    DIRECT_OUTPUT.into_iter().filter(|it| code.contains(it)).collect()
}

fn callers(of: &str) -> BTreeSet<String> {
    let root = sources("cli");
    let all = files(&root, &root).into_iter();
    all.filter(|(name, code)| !is_page(name) && code.contains(of)).map(|(name, _)| name).collect()
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn all_output_goes_through_the_page() {
    let compiler = std::fs::read_dir(sources("compiler").with_file_name("")).expect("a readable directory");
    let crates = compiler.map(|entry| entry.expect("a readable entry").file_name().display().to_string());
    let crates = crates.filter(|it| it != "corpus").map(|it| (format!("compiler/{it}"), "-"));
    let others = [("cli".to_owned(), "page"), ("runtime-bpf".to_owned(), "skip.rs")];
    for (package, exempt) in crates.chain(others) {
        let package = package.as_str();
        let root = sources(package);
        for (name, code) in files(&root, &root) {
            if (package == "cli" && (is_page(&name) || name == TEST_MODULE)) || name == exempt {
                continue;
            }
            assert_eq!(direct_output(&code), [""; 0], "{package}/src/{name} prints, or colours, past cli/src/page.rs");
        }
    }
}

#[test]
fn only_known_files_print_composed_lines() {
    assert_eq!(callers(".lines(&"), names(COMPOSERS), "does everything in these lines pass an escaping function?");
    assert_eq!(callers("print_bytes("), names(PRINT_BYTES), "are these bytes never shown on a terminal?");
}

#[test]
fn direct_prints_are_found() {
    assert_eq!(direct_output("    eprintln!(\"x\");\n"), ["println!("]);
    assert_eq!(direct_output("write!(std::io::stderr(), \"\\r\")"), ["io::stderr"]);
    assert_eq!(code("// println!(\nlet a;\n#[cfg(test)]\nmod tests {\n println!("), "let a;\n");
}
