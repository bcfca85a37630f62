//! `weir compile`, `inspect` and `verify`, and the engines of `query` that need a compile.

use crate::support::{Place, SHOP};

#[test]
fn a_compile_writes_what_verify_accepts() {
    let place = Place::shop();
    let compiled = place.run("compile shop.yaml -o shop.o").exits(0).says("endpoints     2 local, 2 in the cluster");
    compiled.says("verified ").says("written to shop.o");
    place.run("verify shop.o shop.yaml").exits(0).says("verified ");
    place.run("inspect shop.o").exits(0).says("generation").says("rows");
    place.run("inspect shop.o --emit manifest").exits(0).says("shop/db");
}

#[test]
fn the_oldest_kernel_is_named_and_older_ones_are_refused() {
    let place = Place::shop();
    place.run("compile shop.yaml -o shop.o").exits(0).says("kernel        Linux 5.14 and later");
    place.run("compile shop.yaml -o shop.o --target 6.12").exits(0).says("kernel        Linux 6.12 and later");
    let refused = place.run("compile shop.yaml -o old.o --target 5.10");
    refused.exits(2).complains("Linux 5.14 is the oldest kernel");
    assert!(!place.path().join("old.o").exists());
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let place = Place::shop();
    place.run("compile shop.yaml -o one.o").exits(0);
    place.run("compile shop.yaml -o two.o").exits(0);
    let read = |name| std::fs::read(place.path().join(name)).expect("written");
    assert_eq!(read("one.o"), read("two.o"));
}

#[test]
fn an_artifact_of_other_policies_differs_with_a_witness() {
    let place = Place::shop().file("other.yaml", SHOP.replace("5432", "5433"));
    place.run("compile shop.yaml -o shop.o").exits(0);
    place.run("verify shop.o other.yaml").exits(1).complains("differs: ").complains("packet: 02 ");
}

#[test]
fn a_damaged_artifact_cannot_be_read() {
    let place = Place::shop();
    place.run("compile shop.yaml -o shop.o").exits(0);
    let path = place.path().join("shop.o");
    let mut bytes = std::fs::read(&path).expect("written");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    place.run("verify shop.o shop.yaml").exits(2).complains("error: shop.o is not a usable artifact");
    place.run("inspect none.o").exits(2).complains("cannot read none.o");
}

#[test]
fn a_device_is_written_directly() {
    use std::os::unix::fs::FileTypeExt;
    let place = Place::shop();
    let pipe = place.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    let from = pipe.clone();
    let reader = std::thread::spawn(move || std::fs::read(from).expect("read"));
    place.run("compile shop.yaml -o pipe").exits(0);
    assert!(std::fs::symlink_metadata(&pipe).expect("still there").file_type().is_fifo());
    place.run("compile shop.yaml -o shop.o").exits(0);
    assert_eq!(reader.join().expect("it ends"), std::fs::read(place.path().join("shop.o")).expect("written"));
}

#[test]
fn a_budget_that_is_exceeded_writes_nothing() {
    let place = Place::shop();
    place
        .run("compile shop.yaml -o shop.o --budget instructions=10")
        .exits(1)
        .complains("budget instructions is exceeded by ");
    assert!(!place.path().join("shop.o").exists());
    place.run("compile shop.yaml -o shop.o --budget rules=1").exits(2).complains("there is no budget `rules`");
}

#[test]
fn an_unknown_node_exits_with_2() {
    Place::shop().run("compile shop.yaml --node none -o shop.o").exits(2).complains("the input has no node none");
}

#[test]
fn every_stage_can_be_printed() {
    let place = Place::shop();
    for (what, text) in [
        ("ir", "b0"),
        ("asm", "to_pod:"),
        ("maps", "endpoints"),
        ("manifest", "\"generation\""),
        ("iptables", "*filter"),
        ("summary", "from_pod"),
    ] {
        place.run(&format!("compile shop.yaml --emit {what}")).exits(0).says(text);
    }
}

#[test]
fn all_engines_agree_with_the_reference() {
    let flows = concat!(
        r#"{"id": 1, "src": {"pod": "shop/web"}, "dst": {"pod": "shop/db"}, "proto": "TCP", "port": 5432}"#,
        "\n",
        r#"{"id": 2, "src": {"pod": "shop/web"}, "dst": {"pod": "shop/db"}, "proto": "UDP", "port": 5432}"#,
        "\n",
        r#"{"id": 3, "src": {"ip": "192.0.2.1"}, "dst": {"pod": "shop/db"}, "proto": "ICMP"}"#,
        "\n",
    );
    let place = Place::shop();
    let expected = place.run_with_input("query shop.yaml --flows -", flows).exits(0).out;
    for engine in ["iptables", "ir", "vm"] {
        let ran = place.run_with_input(&format!("query shop.yaml --flows - --engine {engine}"), flows).exits(0);
        assert_eq!(ran.out, expected, "{engine}");
    }
    let kernel = place.run_with_input("query shop.yaml --flows - --engine kernel", flows);
    match kernel.code {
        Some(0) => assert_eq!(kernel.out, expected),
        _ => _ = kernel.exits(2).complains("it needs CAP_BPF"),
    }
}

const OPEN_AND_CLOSED: &str = "\
{apiVersion: v1, kind: Pod, metadata: {name: open, labels: {app: open}}, status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: closed}, status: {phase: Running, podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed}, spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open}
spec:
  podSelector: {matchLabels: {app: open}}
  ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}]}]
  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}]}]
";

#[test]
fn no_engine_allows_a_flow_because_of_the_previous_one() {
    let place = Place::new().file("cluster.yaml", OPEN_AND_CLOSED);
    let mut flows = String::new();
    for (outside, [open, closed]) in [("192.0.2.1", ["10.0.0.1", "10.0.0.2"]), ("2001:db8::1", ["fd00::1", "fd00::2"])]
    {
        for proto in ["TCP", "UDP", "SCTP", "ICMP"] {
            for [src, dst] in [[outside, open], [outside, closed], [open, outside], [closed, outside]] {
                let (src, dst) = (format!(r#"{{"ip": "{src}"}}"#), format!(r#"{{"ip": "{dst}"}}"#));
                let port = if proto == "ICMP" { "" } else { r#", "port": 80"# };
                flows += &format!("{{\"id\": 1, \"src\": {src}, \"dst\": {dst}, \"proto\": \"{proto}\"{port}}}\n");
            }
        }
    }
    let expected = place.run_with_input("query cluster.yaml --flows -", &flows).exits(0).out;
    assert_eq!(expected.matches(r#""verdict":"allow""#).count(), 16);
    for engine in ["iptables", "ir", "vm", "kernel"] {
        let ran = place.run_with_input(&format!("query cluster.yaml --flows - --engine {engine}"), &flows);
        match ran.code {
            Some(0) => assert_eq!(ran.out, expected, "{engine}"),
            _ => _ = ran.exits(2).complains("it needs CAP_BPF"),
        }
    }
}
