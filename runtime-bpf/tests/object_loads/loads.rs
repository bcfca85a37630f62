//! Loads the object file with aya, `bpftool prog load` and `tc filter … bpf da obj`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weir_ebpf::target::Target;
use weir_runtime::skip;
use weir_runtime::sys::{BpfKernel, kernel_version};

use crate::cluster;

/// Enough entries for a look-up structure, and denied to all pods, so that there is a program for the edge.
const LISTED: u32 = 20;

/// A directory, and a network namespace and pins of the same name; all gone at the end.
struct Place {
    name: String,
    directory: PathBuf,
}

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("weir-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&directory).unwrap();
        Self { name, directory }
    }

    fn object(&self, target: Target) -> PathBuf {
        let path = self.directory.join("weir.o");
        std::fs::write(&path, cluster::artifact(target, LISTED).to_bytes().unwrap()).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
        let _ = run("ip", &["netns", "delete", &self.name]);
    }
}

fn run(program: &str, arguments: &[&str]) -> std::io::Result<Output> {
    // These tools live in directories that may be root's alone.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    Command::new(program).args(arguments).env("PATH", path).output()
}

/// Standard output of a command that works.
#[track_caller]
fn good(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments).unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {out}{error}");
    out.into_owned()
}

/// The first requirement that is missing, if any.
fn missing(tools: &[(&str, &str)]) -> Option<String> {
    if let Err(error) = BpfKernel::open() {
        return Some(format!("no bpf system call: {error}"));
    }
    let absent = |(tool, version): &&(&str, &str)| !run(tool, &[version]).is_ok_and(|output| output.status.success());
    tools.iter().find(absent).map(|(tool, _)| format!("no {tool}"))
}

/// Where pins can be made: a `bpf` file system of our own, in a mount namespace of our own.
fn with_bpffs(directory: &Path, script: &str) -> String {
    let mount = format!("mount -t bpf bpf {} && {script}", directory.display());
    good("unshare", &["--mount", "sh", "-ec", &mount])
}

#[test]
fn aya_loads_each_program_of_the_object() {
    if let Some(reason) = missing(&[]) {
        skip!("{reason}");
    }
    let mut loaded = aya::Ebpf::load(&cluster::artifact(Target::BASE, LISTED).to_bytes().unwrap()).unwrap();
    for name in ["to_pod", "from_pod"] {
        let program: &mut aya::programs::SchedClassifier = loaded.program_mut(name).unwrap().try_into().unwrap();
        program.load().unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(program.info().unwrap().name_as_str(), Some(name));
    }
    let edge: &mut aya::programs::Xdp = loaded.program_mut("at_edge").unwrap().try_into().unwrap();
    edge.load().unwrap_or_else(|error| panic!("at_edge: {error:?}"));
}

/// How often the verifier may walk an instruction of this artifact, in the mean. It was 3 on Linux 6.18, and 6 while it
/// knew which numbers on the stack are zero.
const MOST_WALKS: u32 = 5;
/// The kernel on which it was counted. Earlier ones merge fewer paths.
const COUNTED_ON: (u16, u16) = (6, 18);

// A load is most of the time of a change that needs other programs, and of a start.
#[test]
fn the_verifier_walks_each_instruction_a_few_times() {
    if let Some(reason) = missing(&[]) {
        skip!("{reason}");
    }
    if kernel_version().unwrap() < COUNTED_ON {
        skip!("the kernel is older than {COUNTED_ON:?}");
    }
    let mut loaded = aya::Ebpf::load(&cluster::artifact(Target::BASE, LISTED).to_bytes().unwrap()).unwrap();
    for name in ["to_pod", "from_pod"] {
        let program: &mut aya::programs::SchedClassifier = loaded.program_mut(name).unwrap().try_into().unwrap();
        program.load().unwrap();
        let info = program.info().unwrap();
        let (walked, bytes) = (info.verified_instruction_count().unwrap(), info.size_translated().unwrap());
        assert!(walked < MOST_WALKS * bytes / 8, "{name}: {walked} of {}", bytes / 8);
    }
}

#[test]
fn bpftool_loads_the_object_and_shows_policy_lines() {
    if let Some(reason) = missing(&[("bpftool", "version"), ("unshare", "--version")]) {
        skip!("{reason}");
    }
    for (target, table) in cluster::TARGETS.into_iter().zip(["weir_bss"; 2]) {
        if target.kernel <= kernel_version().unwrap() {
            bpftool_loads(target, table);
        }
    }
}

fn bpftool_loads(target: Target, table: &str) {
    let place = Place::new("bpftool");
    let object = place.object(target);
    let pins = place.directory.join("pins");
    std::fs::create_dir_all(&pins).unwrap();
    let (object, at) = (object.display(), pins.display());
    let script = format!(
        "bpftool prog load {object} {at}/one && bpftool prog loadall {object} {at}/all pinmaps {at}/maps && \
         ls {at}/all {at}/maps && bpftool prog dump xlated pinned {at}/all/to_pod linum && \
         bpftool map dump pinned {at}/maps/_data_config"
    );
    let shown = with_bpffs(&pins, &script);
    for name in [
        "from_pod",
        "to_pod",
        "at_edge",
        "local4",
        "_data_edge",
        "_data_rows",
        "events",
        "_data_prefixes4",
        "_data_config",
        table,
    ] {
        assert!(shown.lines().any(|line| line == name), "no {name} in {shown}");
    }
    assert!(shown.contains("\"config\": [1,0,0,0,0,"), "generation 1 in {shown}");
    let line = format!("; {} [file:{} line_num:", cluster::RULE, cluster::FILE);
    assert!(shown.contains(&line), "no {line} in {shown}");
    assert!(shown.contains("[file:weir/datapath line_num:1 "), "{shown}");
}

#[test]
fn tc_loads_each_program_of_the_object() {
    if let Some(reason) = missing(&[("tc", "-V"), ("ip", "-V")]) {
        skip!("{reason}");
    }
    for target in cluster::TARGETS {
        if target.kernel <= kernel_version().unwrap() {
            tc_loads(target);
        }
    }
}

fn tc_loads(target: Target) {
    let place = Place::new("tc");
    let object = place.object(target).display().to_string();
    if let Err(error) = run("ip", &["netns", "add", &place.name]).and_then(worked) {
        skip!("no network namespace: {error}");
    }
    let inside = |command: &str| {
        let words = ["netns", "exec", place.name.as_str()].into_iter().chain(command.split(' '));
        good("ip", &words.collect::<Vec<_>>())
    };
    inside("ip link add pod0 type veth peer name pod1");
    inside("tc qdisc add dev pod0 clsact");
    inside("tc qdisc add dev pod1 clsact");
    inside(&format!("tc filter add dev pod0 ingress bpf da obj {object} sec classifier program from_pod"));
    inside(&format!("tc filter add dev pod0 egress bpf da obj {object} program to_pod"));
    inside(&format!("tc filter add dev pod1 ingress bpf da obj {object} sec classifier"));
    inside(&format!("ip link set dev pod1 xdpgeneric obj {object} sec xdp"));
    let link = inside("ip -d link show dev pod1");
    assert!(link.contains("xdpgeneric") && link.contains("name at_edge"), "{link}");
    let shown = ["pod0 ingress", "pod0 egress", "pod1 ingress"].map(|at| inside(&format!("tc filter show dev {at}")));
    for (shown, program) in shown.iter().zip(["from_pod", "to_pod", "to_pod"]) {
        assert!(shown.contains(&format!(" name {program} ")), "no {program} in {shown}");
    }
}

fn worked(output: Output) -> std::io::Result<()> {
    match output.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}
