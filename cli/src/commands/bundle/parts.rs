//! The parts of a bundle: each is collected by itself, and is either there or says why not.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use weir_runtime::observe::ObservedFlow;
use weir_runtime::runtime::{PinAccess, Runtime};

use super::host;
use super::pseudonyms::Pseudonyms;
use crate::args::BundleArgs;
use crate::build_info;
use crate::commands::{monitor, status};
use crate::failure::chain;
use crate::watch::probe;
use crate::watch::serve::PageAddress;

/// The most events of dropped packets.
const MOST_EVENTS: usize = 200;

/// The part whose records are taken from the kernel.
pub(super) const EVENTS: &str = "events.json";

/// A file of the bundle.
pub(super) struct BundlePart {
    pub(super) name: &'static str,
    /// Its contents, described for people.
    pub(super) about: &'static str,
    /// Its bytes, or why it is missing.
    pub(super) contents: Result<Vec<u8>, String>,
}

/// Collects all parts.
pub(super) fn collect(arguments: &BundleArgs) -> Vec<BundlePart> {
    let mut parts = Parts { is_anonymous: arguments.anonymize, pseudonyms: Pseudonyms::default(), list: Vec::new() };
    parts.words("version.json", "version, commit and platform of this command", Ok(version()));
    parts.words("host.json", "kernel, its settings, memory, privileges of this command", Ok(host::facts()));
    let interfaces = host::interfaces().map_err(|error| error.to_string());
    parts.json("interfaces.json", "interfaces and addresses of this network namespace", interfaces);
    parts.named(
        "agent.json",
        "command lines of the agents, without their environment",
        host::agents().map(|it| pretty(&it)),
    );
    parts.runtime(arguments);
    parts.agent(arguments);
    parts.list
}

struct Parts {
    is_anonymous: bool,
    pseudonyms: Pseudonyms,
    list: Vec<BundlePart>,
}

impl Parts {
    fn add(&mut self, name: &'static str, about: &'static str, contents: Result<Vec<u8>, String>) {
        self.list.push(BundlePart { name, about, contents });
    }

    /// A part without names and addresses.
    fn words(&mut self, name: &'static str, about: &'static str, value: Result<Value, String>) {
        self.add(name, about, value.map(|it| pretty(&it)));
    }

    /// A part with names or addresses.
    fn json(&mut self, name: &'static str, about: &'static str, value: Result<Value, String>) {
        let value = value.map(|mut value| {
            if self.is_anonymous {
                self.pseudonyms.replace(&mut value);
            }
            pretty(&value)
        });
        self.add(name, about, value);
    }

    /// A part whose names cannot be replaced.
    fn named(&mut self, name: &'static str, about: &'static str, contents: Result<Vec<u8>, String>) {
        let contents = if self.is_anonymous { Err("left out by --anonymize".to_owned()) } else { contents };
        self.add(name, about, contents);
    }

    /// The parts that the kernel has.
    fn runtime(&mut self, arguments: &BundleArgs) {
        let opened = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read).map_err(|error| chain(&error));
        let asked = |ask: fn(&Runtime) -> Result<Value, weir_runtime::Error>| {
            opened.as_ref().map_err(Clone::clone).and_then(|runtime| ask(runtime).map_err(|error| chain(&error)))
        };
        let state = asked(|runtime| Ok(status::json(&runtime.status()?)));
        self.json("status.json", "`weir status`: endpoints, deviations, maps, other programs at the hooks", state);
        let counters = asked(|runtime| Ok(json!({"counters": runtime.counters()?})));
        self.words("counters.json", "`weir counters`: packets by direction and outcome", counters);
        let memory = asked(|runtime| Ok(runtime.memory()?.into_iter().collect()));
        self.words("memory.json", "bytes that the kernel charges for each map", memory);
        let flows = asked(|runtime| Ok(flow_counts(&runtime.flows()?)));
        self.words("flows.json", "numbers of flows, by protocol, direction and state", flows);
        let events = asked(|runtime| {
            let read = runtime.events()?.read(Duration::ZERO)?;
            let first = read.events.len().saturating_sub(MOST_EVENTS);
            let events: Vec<Value> = read.events[first..].iter().map(monitor::json).collect();
            Ok(json!({"events": events, "lost": read.lost}))
        });
        self.json(EVENTS, "the last dropped packets that no monitor has read: headers, no contents", events);
        let record = asked(Runtime::record_for_report).map(|it| pretty(&it));
        self.named("record.json", "the record that the kernel's state is compared with, without its seeds", record);
        let artifact = opened.as_ref().map_err(Clone::clone);
        let artifact = artifact.and_then(|runtime| runtime.artifact_in_force().map_err(|error| chain(&error)));
        let artifact = artifact.and_then(|it| it.ok_or("no generation is in force".to_owned()));
        let manifest = artifact.as_ref().map(|it| it.manifest.clone().into_bytes()).map_err(Clone::clone);
        self.named(
            "manifest.json",
            "`weir inspect --emit manifest`: names of policies and their rules' places",
            manifest,
        );
        if arguments.with_policies {
            let file = artifact.and_then(|it| it.to_bytes().map_err(|error| error.to_string()));
            self.named("artifact.weir", "the artifact in force, with the policies", file);
        }
    }

    /// The pages of the agent.
    fn agent(&mut self, arguments: &BundleArgs) {
        let addresses = health_addresses(arguments);
        let page = |path| page(&addresses, path);
        self.named("metrics.txt", "the agent's metrics", page("/metrics"));
        self.named("livez.txt", "whether the agent makes progress", page("/livez"));
        self.named("readyz.txt", "whether policy is in force on every pod, and why not", page("/readyz"));
    }
}

/// Where the agent may serve its pages: by default, where `weir watch` does, and where the systemd unit's agent does.
fn health_addresses(arguments: &BundleArgs) -> Vec<PageAddress> {
    match &arguments.health_addr {
        Some(address) => vec![address.clone()],
        None => vec![
            PageAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 9346))),
            PageAddress::Unix("/run/weir/health.sock".into()),
        ],
    }
}

/// A page of the first agent that answers.
fn page(addresses: &[PageAddress], path: &str) -> Result<Vec<u8>, String> {
    let mut errors = Vec::new();
    for address in addresses {
        match probe::body(address, path) {
            Ok(body) => return Ok(body.into_bytes()),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    Err(errors.join("; "))
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn version() -> Value {
    json!({
        "version": build_info::VERSION, "commit": build_info::COMMIT, "target": build_info::target(),
        "debug": cfg!(debug_assertions),
    })
}

fn flow_counts(flows: &[ObservedFlow]) -> Value {
    let mut counts: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for flow in flows {
        *counts.entry((&flow.protocol, flow.direction, flow.state)).or_default() += 1;
    }
    let counts = counts.into_iter().map(|((protocol, direction, state), flows)| {
        json!({"protocol": protocol, "direction": direction, "state": state, "flows": flows})
    });
    json!({"total": flows.len(), "counts": counts.collect::<Vec<_>>()})
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::args::{Cli, CliCommand, EnforcementCommand};

    pub(in crate::commands::bundle) fn arguments(options: &[&str]) -> BundleArgs {
        use clap::Parser as _;
        let words = ["weir", "bundle"].iter().chain(options);
        match Cli::try_parse_from(words).expect("valid").command {
            CliCommand::Enforcement(EnforcementCommand::Bundle(arguments)) => arguments,
            _ => panic!("not the command"),
        }
    }

    #[test]
    fn parts_that_need_privilege_or_an_agent_are_missing_alone() {
        let nowhere = ["--bpffs", "/nonexistent/bpf", "--health-addr", "unix:/nonexistent/health.sock"];
        let parts = collect(&arguments(&nowhere));
        let state = |name: &str| parts.iter().find(|it| it.name == name).map(|it| it.contents.is_ok());
        for (name, is_there) in [("version.json", true), ("host.json", true), ("interfaces.json", true)] {
            assert_eq!(state(name), Some(is_there), "{name}");
        }
        for name in ["status.json", "counters.json", "record.json", "manifest.json", "metrics.txt", "readyz.txt"] {
            assert_eq!(state(name), Some(false), "{name}");
        }
        assert_eq!(state("artifact.weir"), None, "only with --with-policies");
    }

    #[test]
    fn pages_are_of_the_first_agent_that_answers() {
        let words = |options: &[&str]| health_addresses(&arguments(options)).iter().map(ToString::to_string).collect();
        let both: Vec<String> = words(&[]);
        assert_eq!(both, ["127.0.0.1:9346", "unix:/run/weir/health.sock"]);
        let one: Vec<String> = words(&["--health-addr", "unix:/x"]);
        assert_eq!(one, ["unix:/x"]);
        let nowhere = ["/nonexistent/a", "/nonexistent/b"].map(|path| PageAddress::Unix(path.into()));
        let error = page(&nowhere, "/livez").expect_err("no one answers");
        assert!(error.contains("/nonexistent/a") && error.contains("/nonexistent/b"), "{error}");
    }

    #[test]
    fn anonymous_bundle_has_no_part_that_cannot_be_anonymous() {
        let parts = collect(&arguments(&["--anonymize", "--bpffs", "/nonexistent/bpf"]));
        for name in ["agent.json", "record.json", "manifest.json", "metrics.txt", "livez.txt", "readyz.txt"] {
            let part = parts.iter().find(|it| it.name == name).expect("it is listed");
            assert_eq!(part.contents, Err("left out by --anonymize".to_owned()), "{name}");
        }
        let interfaces = parts.iter().find(|it| it.name == "interfaces.json").expect("it is listed");
        let text = String::from_utf8_lossy(interfaces.contents.as_ref().expect("it needs no privilege"));
        assert!(!text.contains("127.0.0.1") && text.contains("address-"), "{text}");
    }
}
