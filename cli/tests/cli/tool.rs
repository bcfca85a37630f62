//! The standard behaviour of a command-line tool: help, version, completions, closed pipes, exit codes.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::support::{Place, Ran};
use weir_testing::schema::check_schema;

#[test]
fn codes_are_explained() {
    let place = Place::new();
    place.run("explain-code unknown-field").exits(0).says("error[unknown-field]").says("Fixed:");
    place.run("explain-code unknown-feild").exits(2).complains("did you mean `unknown-field`?");
    let list = place.run("explain-code").exits(0).says("duplicate-address").out;
    assert_eq!(list, place.run("explain-code --list").exits(0).out);
    place.run("explain-code source-route").exits(0).says("packets with this reason are dropped");
    place.run("explain-code own-node").exits(0).says("packets with this reason pass");
    check_schema("explain-code", &place.run("explain-code source -o json").exits(0).json());
    check_schema("explain-code", &place.run("explain-code -o json").exits(0).json());
    check_schema("explain-code", &place.run("explain-code unknown-field -o json").exits(0).json());
}

#[test]
fn version_is_for_people_and_programs() {
    let place = Place::new();
    assert_eq!(place.run("version").exits(0).out, place.run("--version").exits(0).out);
    check_schema("version", &place.run("version -o json").exits(0).json());
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        place.run(&format!("completions {shell}")).exits(0).says("explain-code");
    }
    place.run("man pages").exits(0);
    for page in ["weir.1", "weir-check.1", "weir-query.1", "weir-explain-code.1"] {
        assert!(place.path().join("pages").join(page).is_file(), "{page}");
    }
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    let place = Place::new();
    place.run("chekc .").exits(2).complains("check");
    place.run("check").exits(2);
    place.run("query . --flows - --engine guess").exits(2);
    place.run("check . --assume icmp").exits(2).complains("KEY=VALUE");
    place.run("check . --assume icpm=allow").exits(2).complains("no assumption is called `icpm`");
    place.run("--help").exits(0).says("explain-code");
}

#[test]
fn as_a_plug_in_the_help_says_kubectl() {
    let place = Place::new();
    let mut command = place.command("check --help");
    let ran = Ran::from(command.arg0("/usr/local/bin/kubectl-weir").output().expect("runs")).exits(0);
    ran.says("Usage: kubectl weir check");
}

#[track_caller]
fn check_closed_pipe(arguments: &str) {
    let place = Place::shop();
    let mut command = place.command(arguments);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ran = Ran::from(command.stdout(writer).stderr(Stdio::piped()).output().expect("runs")).exits(0);
    assert_eq!(ran.err, "");
}

#[test]
fn a_closed_pipe_is_no_error() {
    for arguments in
        ["--help", "version", "explain-code", "completions bash", "check shop.yaml", "check shop.yaml -o json"]
    {
        check_closed_pipe(arguments);
    }
    check_closed_pipe("explain shop.yaml --from shop/web --to shop/db --port 80");
}

#[test]
fn a_closed_pipe_ends_a_query() {
    let flow = "{\"src\":{\"ip\":\"1.1.1.1\"},\"dst\":{\"ip\":\"1.1.1.2\"},\"proto\":\"ICMP\"}\n";
    let place = Place::shop().file("flows", flow.repeat(20_000));
    let script =
        format!("{} query shop.yaml --flows flows | head -n 1; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_weir"));
    let output = Command::new("bash").arg("-c").arg(script).current_dir(place.path()).output().expect("bash runs");
    let ran = Ran::from(output).exits(0);
    assert_eq!((ran.out.lines().count(), ran.err.as_str()), (1, ""));
}

/// A rule that allows a block, which contains the address of the pod `web`.
const BLOCK: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: block, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80}]}]
";

/// Runs every command that judges, for web to db on port 80.
#[track_caller]
fn check_assumed(place: &Place, flags: &str, verdict: &str) {
    let ask = "explain . --from shop/web --to shop/db --port 80";
    place.run(&format!("{ask} --expect {verdict} {flags}")).exits(0);
    let ran = place.run(&format!("query . --flows flow.jsonl {flags}")).exits(0);
    assert_eq!(ran.json()["verdict"], verdict);
    place.run(&format!("test . --expectations {verdict}.txt {flags}")).exits(0).says("1 passed");
    place.run(&format!("check . {flags}")).exits(0);
}

#[test]
fn an_assumption_holds_in_every_command() {
    let expectation = |verdict| format!("expectations: [{{from: web, to: db, port: 80, expect: {verdict}}}]\n");
    let place = || {
        Place::shop()
            .file("block.yaml", BLOCK)
            .file(
                "flow.jsonl",
                "{\"src\": {\"pod\": \"web\"}, \"dst\": {\"pod\": \"db\"}, \"proto\": \"TCP\", \"port\": 80}\n",
            )
            .file("allow.txt", expectation("allow"))
            .file("deny.txt", expectation("deny"))
    };
    check_assumed(&place(), "-n shop", "allow");
    check_assumed(&place(), "-n shop --assume ipblock-pods=ignore", "deny");
    let configured = place().file("weir.toml", "namespace = \"shop\"\n[assume]\nipblock-pods = \"ignore\"\n");
    check_assumed(&configured, "", "deny");
    check_assumed(&configured, "--assume ipblock-pods=match", "allow");
}
