//! Hostile names and values, through every command and format.
//!
//! Rules for every output: the only hidden characters are line breaks, no line is a command to a CI system, and the
//! number of lines is the same as for an input without line breaks in its names.

use serde_json::{Value, json};
use weir_testing::Random;

use crate::support::{Place, Ran};

/// Hostile texts. [`tame`] replaces the line breaks in them.
const HOSTILE: [&str; 12] = [
    "\n::error file=a.yaml,line=1::pwned",
    "\r\n::add-mask::a",
    "::stop-commands::x",
    "##[error]pwned",
    "a##vso[task.setvariable variable=x]y",
    "\u{1b}[2J\u{1b}[1;1Hclean",
    "\u{9b}31m\u{7f}\u{8}",
    "\u{202e}txet\u{202c}\u{2066}x\u{2069}",
    "a\u{200b}b\u{feff}c\u{ad}d\u{2060}",
    "\u{2028}::warning::x\u{2029}",
    "\t\u{b}\u{c}\u{0}\u{85}",
    "\u{e0041}\u{fe0f}</script><img src=x>|`*\"';\\",
];

/// A name; one in `odds` is hostile.
fn name(random: &mut Random, odds: usize) -> String {
    let plain = random.pick(&["web", "db", "shop", "a1"]);
    match random.below(odds) {
        0 => format!("{plain}{}{plain}", random.pick(&HOSTILE)),
        _ => plain.to_owned(),
    }
}

/// The same text as hostile, but on one line.
fn tame(text: &str) -> String {
    text.replace(['\n', '\r', '\u{2028}', '\u{2029}', '\u{b}', '\u{c}', '\u{85}'], "!")
}

/// Names in every field that is printed; `odds` says how many are hostile.
fn objects(random: &mut Random, odds: usize) -> Vec<Value> {
    let mut objects = Vec::new();
    for number in 1..4 {
        let labels = json!({"app": name(random, odds), format!("{}{number}", name(random, odds)): "x"});
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("{}{number}", name(random, odds)), "namespace": name(random, odds), "labels": labels,
                "annotations": {name(random, odds): name(random, odds)},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": name(random, odds), "name": name(random, odds), "controller": true, "uid": "u"}],
            },
            "spec": {"nodeName": name(random, odds), "containers": [{"name": name(random, odds), "ports": [{"name": "http", "containerPort": 80}]}]},
            "status": {"phase": "Running", "podIP": format!("10.0.0.{number}")},
        });
        if random.below(odds) == 0 {
            pod["status"]["podIP"] = name(random, 1).into();
        }
        objects.push(pod);
        objects.push(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": format!("{}{number}", name(random, odds)), "namespace": name(random, odds), "annotations": {if random.below(odds) == 0 { "weir.dev/mode" } else { "note" }: name(random, odds)}},
            "spec": {
                "podSelector": {"matchLabels": {"app": name(random, odds)}},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {name(random, odds): name(random, odds)}}}], "ports": [{"port": name(random, odds)}]}],
            },
        }));
    }
    objects.push(
        json!({"apiVersion": "example.org/v1", "kind": name(random, odds), "metadata": {"name": name(random, odds)}}),
    );
    objects.push(json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "CidrList", "metadata": {"name": name(random, odds)},
        "spec": {"action": "Deny", "order": 1, "directions": ["Ingress"], "cidrs": ["192.0.2.0/24", if random.below(odds) == 0 { name(random, 1) } else { "192.0.2.7".to_owned() }]},
    }));
    let named = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name(random, odds), "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "web"}, "ports": [{"name": name(random, odds), "port": 80}]}});
    objects.push(named);
    objects
}

/// As hostile as YAML lets a comment be.
const COMMENT: &str = "##[error]x \u{202e}::error::x\u{200b}";

/// Manifests: on one line of JSON, and as YAML whose lines are shown.
fn written(objects: &[Value]) -> [(&'static str, String); 2] {
    let json = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let yaml = objects.iter().map(|it| format!("--- # {COMMENT}\n{it:#}\n# {COMMENT}\n")).collect();
    [("json", json), ("yaml", yaml)]
}

fn is_hidden(letter: char) -> bool {
    // The test has its own list, not the compiler's table.
    let code = u32::from(letter);
    letter.is_control()
        || [0xad, 0x61c, 0x180e, 0xfeff, 0x3164].contains(&code)
        || [(0x200b, 0x200f), (0x2028, 0x202e), (0x2060, 0x206f), (0xfe00, 0xfe0f), (0xe0000, 0xe0fff)]
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&code))
}

/// The colours that Weir has, and nothing else that begins with ESC.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |out, piece| match piece.split_once('m') {
        Some((numbers, rest)) if numbers.chars().all(|it| it.is_ascii_digit() || it == ';') => out + rest,
        _ => out + "\x1b[" + piece,
    })
}

/// The rules that an output breaks.
fn faults(text: &str, format: &str) -> Vec<String> {
    let text = without_colours(text);
    let mut faults = Vec::new();
    if let Some(letter) = text.chars().find(|it| *it != '\n' && is_hidden(*it)) {
        faults.push(format!("U+{:04X} is in it", u32::from(letter)));
    }
    for line in text.lines() {
        let own = ["::error ", "::warning ", "::notice "];
        let is_own = format == "github" && own.iter().any(|it| line.starts_with(it)) && line.contains("title=weir%3A ");
        // `::: FILE` is how the renderer names a second file: no command has an empty name.
        let begins = line.trim_start();
        if begins.starts_with("::") && !begins.starts_with("::: ") && !is_own {
            faults.push(format!("a command: {line}"));
        }
        if line.contains("##[") || line.contains("##vso[") {
            faults.push(format!("a marker: {line}"));
        }
    }
    faults
}

#[track_caller]
fn check(ran: &Ran, command: &str, format: &str) {
    assert_ne!(ran.code, Some(101), "{command} panics: {}", ran.err);
    for text in [&ran.out, &ran.err] {
        assert_eq!(faults(text, format), [""; 0], "{command}:\n{text}");
    }
}

fn lines(ran: &Ran) -> [usize; 2] {
    [&ran.out, &ran.err].map(|it| it.lines().count())
}

/// Every command that reads files, in every format.
const COMMANDS: [&str; 47] = [
    "demo --remove none",
    "check IN",
    "check IN --color always",
    "check IN -v",
    "check IN -o json",
    "check IN -o sarif",
    "check IN -o github",
    "query IN --flows flows.jsonl",
    "query IN --flows flows.jsonl --engine iptables",
    "explain IN --from shop/web --to 10.0.0.2 --port 80/tcp",
    "explain IN --from 10.0.0.1 --to 10.0.0.2 --port 80/tcp --color always",
    "explain IN --from 10.0.0.1 --to 10.0.0.2 --port 80/tcp -o json",
    "test IN --expectations tests.yaml",
    "test IN --expectations tests.yaml -o json",
    "test IN --expectations tests.yaml -o junit",
    "compile IN --emit summary",
    "compile IN --emit ir --no-verify",
    "compile IN --emit asm --no-verify",
    "compile IN --emit iptables --no-verify",
    "compile IN --emit maps --no-verify",
    "compile IN --emit manifest --no-verify",
    "compile IN -o out.o",
    "compile IN -o out.o --node nowhere",
    "inspect out.o",
    "inspect out.o --emit asm",
    "inspect out.o --emit manifest",
    "verify out.o IN",
    "verify out.o base.yaml",
    "diff base.yaml IN",
    "diff base.yaml IN --color always",
    "diff base.yaml IN -o json",
    "diff base.yaml IN -o md",
    "diff base.yaml IN -o sarif",
    "diff base.yaml IN -o github",
    "diff base.yaml IN -o html",
    "diff base.yaml IN -o svg",
    "diff base.yaml IN -o dot",
    "diff IN base.yaml",
    "matrix IN",
    "matrix IN -o md",
    "matrix IN -o csv",
    "matrix IN -o html",
    "graph IN",
    "graph IN -o dot",
    "graph IN -o mermaid",
    "exposure IN",
    "exposure IN -o md",
];

const BASE: &str = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIP: 10.0.0.9}}\n";

/// A place with one input, its flows and its expectations; the names of its files are hostile too.
fn place(objects: &[Value], name: &str, file: usize) -> (Place, String) {
    let (extension, text) = written(objects).into_iter().nth(file).expect("two");
    let path = format!("in/{}.{extension}", name.replace(['/', '\0'], "_"));
    let flow = json!({"id": name, "src": {"pod": name}, "dst": {"ip": "10.0.0.2"}, "proto": "TCP", "port": 80});
    let known =
        json!({"id": {"a": name}, "src": {"ip": "10.0.0.1"}, "dst": {"ip": "10.0.0.2"}, "proto": name, "port": 80});
    let good =
        "{\"id\":\r1, \"src\":{\"ip\":\"10.0.0.1\"},\t\"dst\":{\"ip\":\"10.0.0.2\"},\"proto\":\"TCP\",\"port\":80}";
    let test = json!({"expectations": [
        {"name": name, "from": name, "to": "10.0.0.2", "port": "80/tcp", "expect": "allow"},
        {"name": name, "from": "10.0.0.1", "to": "10.0.0.2", "port": "80/tcp", "expect": "deny"},
    ]});
    let place = Place::new().file(&path, text).file("base.yaml", BASE).file("tests.yaml", test.to_string());
    (place.file("flows.jsonl", format!("{flow}\n{known}\n{good}\n")), path)
}

fn run_all(place: &Place) -> Vec<(String, Ran)> {
    let run = |command: &&str| {
        let arguments = command.replace("IN", "in");
        (arguments.clone(), place.run(&arguments))
    };
    COMMANDS.iter().map(run).collect()
}

fn format_of(command: &str) -> &str {
    command.split("-o ").nth(1).and_then(|it| it.split(' ').next()).unwrap_or("text")
}

#[test]
fn no_object_breaks_out_of_any_output() {
    let mut random = Random::new(16);
    let mut answered = 0;
    // Few hostile names give answers, many give errors.
    for (round, odds) in [2, 9, 40, 1_000, 12, 1_000_000].into_iter().enumerate() {
        let objects = objects(&mut random, odds);
        let name = format!("n{}", HOSTILE[(round * 5 + 1) % HOSTILE.len()]);
        let (hostile, _) = place(&objects, &name, round % 2);
        let tamed: Value = serde_json::from_str(&tame_json(&json!(objects))).expect("JSON");
        let (plain, _) = place(tamed.as_array().expect("objects"), &tame(&name), round % 2);
        for ((command, ran), (_, same)) in run_all(&hostile).into_iter().zip(run_all(&plain)) {
            check(&ran, &command, format_of(&command));
            answered += usize::from(ran.code == Some(0));
            assert_eq!((ran.code, lines(&ran)), (same.code, lines(&same)), "{command}: {ran:#?}\nand tame: {same:#?}");
        }
    }
    assert!(answered > COMMANDS.len() / 2, "only {answered} commands had an answer");
}

/// Every string of a value, tame.
fn tame_json(value: &Value) -> String {
    fn walk(value: &Value) -> Value {
        match value {
            Value::String(text) => tame(text).into(),
            Value::Array(items) => items.iter().map(walk).collect(),
            Value::Object(fields) => fields.iter().map(|(key, value)| (tame(key), walk(value))).collect(),
            other => other.clone(),
        }
    }
    walk(value).to_string()
}

#[test]
fn no_argument_breaks_out_of_an_error() {
    let place = Place::shop();
    for text in HOSTILE.map(|it| it.replace('\0', "")) {
        let text = text.as_str();
        for arguments in [
            &["check", text][..],
            &[text],
            &["check", "shop.yaml", "-o", text],
            &["check", "shop.yaml", "--allow", text],
            &["check", "shop.yaml", "--assume", text],
            &["explain-code", text],
            &["explain", "shop.yaml", "--from", text, "--to", "10.0.0.2", "--port", text],
            &["explain", "shop.yaml", "--from", "10.0.0.1", "--to", text],
            &["compile", "shop.yaml", "--node", text, "-o", "out.o"],
            &["diff", &format!("git:{text}:."), "shop.yaml"],
            &["diff", &format!("cluster:{text}"), "shop.yaml"],
            &["attach", text, "--endpoint", text],
            &["attach", text, "--endpoint", "shop/web=eth0", "--key", text],
            &["inspect", text],
            &["detach", "--xdp", text],
        ] {
            let mut command = place.command("");
            let ran = Ran::from(command.args(arguments).output().expect("weir runs"));
            check(&ran, &format!("{arguments:?}"), "text");
            assert!(matches!(ran.code, Some(0..=2)), "{arguments:?}: {ran:#?}");
        }
    }
}

#[test]
fn no_configuration_breaks_out_of_an_error() {
    for text in HOSTILE {
        let key = json!(text).to_string();
        for toml in [
            format!("{key} = 1\n"),
            format!("namespace = {key}\n"),
            format!("[lints]\n{key} = \"deny\"\n"),
            format!("# {text}\n="),
        ] {
            let ran = Place::shop().file("weir.toml", &toml).run("check . -v");
            check(&ran, &toml, "text");
        }
    }
}

#[test]
fn the_checks_find_unescaped_output() {
    for text in ["a\u{1b}[2J", "::error::x", " ::add-mask::x", "x ##[error]", "a\rb", "\u{202e}"] {
        assert!(!faults(text, "text").is_empty(), "{text:?}");
    }
    assert_eq!(faults("\x1b[1ma\x1b[0m\nb", "text"), [""; 0]);
    assert_eq!(faults("::error file=a,title=weir%3A x::y", "github"), [""; 0]);
}
