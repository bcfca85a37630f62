//! The implementations that enforce rules between client and server.
//!
//! All enforce the same policy: the client may send to the server, and the server may receive from the client, on any
//! TCP or UDP port from 5000 to 5999. The other rules are for addresses that no pod has. Half of the rules are the
//! client's (egress) and half the server's (ingress). The matching rule is the last one, so a new connection is
//! compared with all of them.
//!
//! The netfilter rules are written as in projects that enforce policies with them (Calico's Felix, kube-router): first
//! accept connections that conntrack knows as established, then drop packets that it finds invalid, then jump to the
//! pod's chain by interface. So only the first packet of a connection walks the rules.
//! The *stateless* variant has no conntrack and repeats the rules in reverse for replies, so every packet walks the
//! rules.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use super::paths::{CLIENT, PathNamespace, PodPath, SERVER, TO_CLIENT, TO_SERVER, run};

pub(super) const PORTS: (u16, u16) = (5000, 5999);
/// Ports of the other rules, in rotation.
const OTHER_PORTS: usize = 100;

/// An implementation of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enforcer {
    Nothing,
    /// Weir's programs.
    Tcx,
    Clsact,
    /// iptables with one rule per address, with either back end.
    Legacy,
    Nft,
    /// The same rules without conntrack.
    LegacyStateless,
    NftStateless,
    /// iptables (legacy back end) with one rule and an ipset.
    Ipset,
    /// nftables with one rule and a set.
    Sets,
}

impl Enforcer {
    pub(super) const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Tcx,
        Self::Clsact,
        Self::Legacy,
        Self::Nft,
        Self::LegacyStateless,
        Self::NftStateless,
        Self::Ipset,
        Self::Sets,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Tcx => "weir, TCX",
            Self::Clsact => "weir, clsact",
            Self::Legacy => "iptables-legacy",
            Self::Nft => "iptables-nft",
            Self::LegacyStateless => "iptables-legacy, stateless",
            Self::NftStateless => "iptables-nft, stateless",
            Self::Ipset => "iptables-legacy + ipset",
            Self::Sets => "nftables sets",
        }
    }
}

/// The path of the weir binary, and a directory for files.
pub(super) struct EnforceTools<'a> {
    pub(super) weir: &'a Path,
    /// The directory; it has a bpf file system in `bpf`.
    pub(super) directory: &'a Path,
}

/// Puts `rules` rules in force on a path.
pub(super) fn enforce(by: Enforcer, path: &PodPath, rules: usize, means: &EnforceTools<'_>) -> Result<()> {
    let node = |program: &str, arguments: &[&str], input: &str| {
        run(path.command(PathNamespace::Node, program).args(arguments), input).map(drop)
    };
    match by {
        Enforcer::Nothing => Ok(()),
        Enforcer::Tcx => attach(path, rules, means, "tcx"),
        Enforcer::Clsact => attach(path, rules, means, "clsact"),
        Enforcer::Legacy => node("iptables-legacy-restore", &[], &chains(&listed(rules))),
        Enforcer::Nft => node("iptables-nft-restore", &[], &chains(&listed(rules))),
        Enforcer::LegacyStateless => node("iptables-legacy-restore", &[], &stateless(&listed(rules))),
        Enforcer::NftStateless => node("iptables-nft-restore", &[], &stateless(&listed(rules))),
        Enforcer::Ipset => {
            node("ipset", &["restore"], &ipsets(rules))?;
            node("iptables-legacy-restore", &[], &chains(&in_sets()))
        }
        Enforcer::Sets => node("nft", &["-f", "-"], &nftables(rules)),
    }
}

/// Address and port of the other rules of one side.
fn others(rules: usize) -> impl Iterator<Item = (String, usize)> {
    let (from, to) = (1, (rules / 2).max(1));
    (from..to).map(|it| (format!("198.{}.{}.{}", 18 + it / 65_536, it / 256 % 256, it % 256), 8_000 + it % OTHER_PORTS))
}

/// The rules of both sides. Each begins with the words that select its chain.
struct RuleTexts {
    egress: String,
    ingress: String,
}

fn listed(rules: usize) -> RuleTexts {
    let side = |own: &str, side: &str, verdict: &str| {
        let mut text = String::new();
        let flag = if side == "egress" { "-d" } else { "-s" };
        for (address, port) in others(rules) {
            _ = writeln!(text, "-A {side} {flag} {address}/32 -p tcp -m tcp --dport {port} -j {verdict}");
        }
        for protocol in ["tcp", "udp"] {
            let (low, high) = PORTS;
            _ = writeln!(
                text,
                "-A {side} {flag} {own}/32 -p {protocol} -m {protocol} --dport {low}:{high} -j {verdict}"
            );
        }
        text
    };
    RuleTexts { egress: side(SERVER, "egress", "RETURN"), ingress: side(CLIENT, "ingress", "ACCEPT") }
}

fn in_sets() -> RuleTexts {
    let side =
        |side: &str, ends: &str, verdict: &str| format!("-A {side} -m set --match-set {side} {ends} -j {verdict}\n");
    RuleTexts { egress: side("egress", "dst,dst", "RETURN"), ingress: side("ingress", "src,dst", "ACCEPT") }
}

/// The iptables rules. A packet that the egress chain allows continues with the ingress chain.
fn chains(RuleTexts { egress, ingress }: &RuleTexts) -> String {
    format!(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:egress - [0:0]\n:ingress - [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -i {TO_CLIENT} -j egress\n-A FORWARD -o {TO_SERVER} -j ingress
{egress}-A egress -j DROP\n{ingress}-A ingress -j DROP\nCOMMIT\n"
    )
}

/// The stateless rules. Replies have chains of their own: the same rules with source and destination swapped.
fn stateless(RuleTexts { egress, ingress }: &RuleTexts) -> String {
    let turned = |rules: &str| {
        let words = rules.split_inclusive([' ', '\n']).map(|word| match word {
            "egress " => "reply-ingress ",
            "ingress " => "reply-egress ",
            "-d " => "-s ",
            "-s " => "-d ",
            "--dport " => "--sport ",
            "RETURN\n" => "ACCEPT\n",
            "ACCEPT\n" => "RETURN\n",
            other => other,
        });
        words.collect::<String>()
    };
    let (reply_egress, reply_ingress) = (turned(ingress), turned(egress));
    format!(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:egress - [0:0]\n:ingress - [0:0]
:reply-egress - [0:0]\n:reply-ingress - [0:0]
-A FORWARD -i {TO_CLIENT} -j egress\n-A FORWARD -o {TO_SERVER} -j ingress
-A FORWARD -i {TO_SERVER} -j reply-egress\n-A FORWARD -o {TO_CLIENT} -j reply-ingress
{egress}-A egress -j DROP\n{ingress}-A ingress -j DROP
{reply_egress}-A reply-egress -j DROP\n{reply_ingress}-A reply-ingress -j DROP\nCOMMIT\n"
    )
}

/// Sets cannot hold a range of ports for an address, so each matching port is an entry.
fn ipsets(rules: usize) -> String {
    let most = 131_072;
    let mut text = String::new();
    for (set, own) in [("egress", SERVER), ("ingress", CLIENT)] {
        _ = writeln!(text, "create {set} hash:ip,port family inet maxelem {most}");
        for (address, port) in others(rules) {
            _ = writeln!(text, "add {set} {address},tcp:{port}");
        }
        for protocol in ["tcp", "udp"] {
            MATCHED.iter().for_each(|port| _ = writeln!(text, "add {set} {own},{protocol}:{port}"));
        }
    }
    text
}

/// The ports that the traffic uses.
pub(super) const MATCHED: [u16; 3] = [5201, 5300, 5301];

fn nftables(rules: usize) -> String {
    let mut text = "table ip weir {\n".to_owned();
    for (set, own) in [("egress", SERVER), ("ingress", CLIENT)] {
        let mut elements: Vec<String> =
            others(rules).map(|(address, port)| format!("{address} . tcp . {port}")).collect();
        for protocol in ["tcp", "udp"] {
            elements.extend(MATCHED.iter().map(|port| format!("{own} . {protocol} . {port}")));
        }
        let elements = elements.join(", ");
        _ = writeln!(text, "set {set} {{ type ipv4_addr . inet_proto . inet_service; elements = {{ {elements} }} }}");
    }
    _ = write!(
        text,
        "chain forward {{ type filter hook forward priority 0; policy drop;
ct state vmap {{ established : accept, related : accept, invalid : drop }}
iifname {TO_CLIENT} ip daddr . meta l4proto . th dport != @egress drop
oifname {TO_SERVER} ip saddr . meta l4proto . th dport @ingress accept\n}}\n}}\n"
    );
    text
}

fn attach(path: &PodPath, rules: usize, means: &EnforceTools<'_>, hook: &str) -> Result<()> {
    let [policies, artifact] = ["yaml", "o"].map(|suffix| means.directory.join(format!("{rules}.{suffix}")));
    std::fs::write(&policies, objects(rules))?;
    let mut compile = std::process::Command::new(means.weir);
    compile.args(["-q", "compile", "--no-verify", "--target", "6.1", "-o"]).arg(&artifact).arg(&policies);
    run(&mut compile, "")?;
    let mut attach = path.command(PathNamespace::Node, means.weir);
    attach.args(["-q", "attach", "--hook", hook, "--bpffs"]);
    attach.arg(means.directory.join("bpf").join(format!("{hook}-{rules}"))).arg(&artifact);
    attach.args(["--endpoint", &format!("default/client={TO_CLIENT}"), &format!("default/server={TO_SERVER}")]);
    run(&mut attach, "").map(drop)
}

/// The pods, and one policy per rule.
fn objects(rules: usize) -> String {
    let mut text = String::new();
    for (name, address) in [("client", CLIENT), ("server", SERVER)] {
        _ = writeln!(
            text,
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}}}, \
             status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}}}"
        );
    }
    for (name, word, kind, peer) in [("client", "to", "Egress", SERVER), ("server", "from", "Ingress", CLIENT)] {
        let mut policy = |number: usize, address: &str, ports: &str| {
            _ = writeln!(
                text,
                "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}-{number}}}, \
                 spec: {{podSelector: {{matchLabels: {{app: {name}}}}}, policyTypes: [{kind}], {}: [{{{word}: \
                 [{{ipBlock: {{cidr: {address}/32}}}}], ports: [{ports}]}}]}}}}",
                kind.to_lowercase()
            );
        };
        for (number, (address, port)) in others(rules).enumerate() {
            policy(number + 1, &address, &format!("{{protocol: TCP, port: {port}}}"));
        }
        let (low, high) = PORTS;
        let ports = ["TCP", "UDP"].map(|it| format!("{{protocol: {it}, port: {low}, endPort: {high}}}"));
        policy(0, peer, &ports.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matching_rule_is_the_last_of_the_requested_number() {
        for size in [10, 100, 1_000] {
            let text = chains(&listed(size));
            for (side, own) in [("egress", SERVER), ("ingress", CLIENT)] {
                let mut rules: Vec<&str> =
                    text.lines().filter(|line| line.starts_with(&format!("-A {side} "))).collect();
                assert_eq!(rules.pop(), Some(format!("-A {side} -j DROP").as_str()));
                // The last rule allows TCP and UDP; in a policy this is one rule.
                assert_eq!(rules.len(), size / 2 + 1, "{side} of {size}");
                let is_ours = |rule: &&str| rule.contains(&format!(" {own}/32 "));
                assert_eq!(rules.iter().position(is_ours), Some(size / 2 - 1), "{side} of {size}");
            }
            assert_eq!(objects(size).matches("kind: NetworkPolicy").count(), size, "policies");
        }
    }

    #[test]
    fn reply_rules_mirror_the_forward_rules() {
        let text = stateless(&listed(100));
        let there = text.lines().find(|line| line.starts_with("-A ingress ")).expect("a rule");
        let back = there.replace("ingress", "reply-egress").replace("-s ", "-d ").replace("--dport", "--sport");
        assert!(text.contains(&back.replace("ACCEPT", "RETURN")), "{back}\n{text}");
        assert_eq!(text.matches("-A reply-ingress ").count(), text.matches("-A egress ").count());
    }
}
