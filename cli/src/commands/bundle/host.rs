//! The host: kernel, settings that concern eBPF and forwarding, and the agent's command line.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use weir_runtime::sys;

/// Settings below `/proc/sys` that change how programs are loaded or packets forwarded.
const SETTINGS: [&str; 10] = [
    "kernel/unprivileged_bpf_disabled",
    "kernel/perf_event_paranoid",
    "net/core/bpf_jit_enable",
    "net/core/bpf_jit_harden",
    "net/core/bpf_jit_limit",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/bridge/bridge-nf-call-iptables",
];

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|it| it.trim().to_owned())
}

/// The kernel and its settings. A value that cannot be read is null.
pub(super) fn facts() -> Value {
    let settings: Map<String, Value> =
        SETTINGS.iter().map(|name| ((*name).to_owned(), json!(text(&format!("/proc/sys/{name}"))))).collect();
    let status = text("/proc/self/status").unwrap_or_default();
    let own = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
    let memory = text("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().filter(|line| line.starts_with("MemTotal") || line.starts_with("MemAvailable"));
    let mounts = text("/proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter(|line| [" bpf ", " cgroup2 "].iter().any(|it| line.contains(it)));
    json!({
        "kernel": {
            "release": text("/proc/sys/kernel/osrelease"),
            "version": text("/proc/sys/kernel/version"),
            "parsed": sys::kernel_version().ok().map(|(major, minor)| format!("{major}.{minor}")),
            "architecture": std::env::consts::ARCH,
            "btf": Path::new("/sys/kernel/btf/vmlinux").exists(),
            "security_modules": text("/sys/kernel/security/lsm"),
            "tcx": sys::kernel_version().ok().map(|version| version >= (6, 6)),
        },
        "settings": settings,
        "processors": std::thread::available_parallelism().ok().map(usize::from),
        "memory": memory.collect::<Vec<_>>(),
        "mounts": mounts.collect::<Vec<_>>(),
        "capabilities_of_this_command": own("CapEff:"),
        "user_of_this_command": own("Uid:"),
    })
}

/// The interfaces of this network namespace, with their addresses.
pub(super) fn interfaces() -> std::io::Result<Value> {
    let here = sys::links::here()?;
    let interfaces = here.interfaces.iter().map(|it| {
        let addresses = here.addresses.iter().filter(|(of, _)| *of == it.ifindex).map(|(_, address)| address);
        json!({"interface": it.name, "ifindex": it.ifindex, "kind": it.kind, "peer": it.peer, "addresses": addresses.collect::<Vec<_>>()})
    });
    Ok(Value::from(interfaces.collect::<Vec<_>>()))
}

/// The command lines of the agents that run on this host. Their environment is not read.
pub(super) fn agents() -> Result<Value, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(|error| error.to_string())?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let arguments: Vec<String> = line
            .split(|byte| *byte == 0)
            .filter(|it| !it.is_empty())
            .map(|it| String::from_utf8_lossy(it).into())
            .collect();
        if is_agent(&arguments) {
            found.push(json!({"process": name, "arguments": arguments}));
        }
    }
    if found.is_empty() { Err("no agent is visible here".to_owned()) } else { Ok(Value::from(found)) }
}

fn is_agent(arguments: &[String]) -> bool {
    let program = arguments.first().and_then(|it| Path::new(it).file_name());
    program.is_some_and(|it| it == "weir") && arguments.iter().any(|it| it == "watch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_this_host_are_there() {
        let facts = facts();
        assert!(
            facts["kernel"]["release"].is_string() && facts["settings"]["net/ipv4/ip_forward"].is_string(),
            "{facts}"
        );
        assert!(interfaces().expect("no privilege is needed").as_array().is_some_and(|it| !it.is_empty()));
    }

    #[test]
    fn agents_are_known_by_their_command_line() {
        let is = |line: &str| is_agent(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(is("/usr/bin/weir watch --files /etc/weir") && is("/weir --quiet watch"));
        assert!(!is("/usr/bin/weir status") && !is("vim watch") && !is_agent(&[]));
    }
}
