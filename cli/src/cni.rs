//! `weir-cni`: a chained CNI plug-in that holds a pod back until its policy is in force.
//!
//! ```text
//!  runtime ──env, JSON──▶ CniCall ──add──▶ agent's socket: is it in force? ──yes──▶ prevResult, unchanged
//!                           │                                           └──no──▶ error, or closed interface
//!                           └──del, gc──▶ nothing to do: the agent sees that the interface is gone
//! ```
//!
//! Problem: a pod can send and receive packets as soon as its interface exists.
//! Strategy: the plug-in is the last one in the chain. It reports the pod's interface to the agent, and returns when
//! the agent answers that policy is in force there. It decides nothing else.
//! Invariants: the result of the previous plug-ins is passed on byte for byte. After a fault, the pod starts without
//! policy only if the configuration says so (`onTimeout: allow`).

mod call;
mod result;
pub(crate) mod wire;

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::page::{self, OutputPage};
use call::{CniCall, CniCommand, TimeoutAction};
pub(crate) use result::CniResult;
use wire::{CniQuestion, Verb};

/// The name of the binary under which it acts as the plug-in.
pub(crate) const NAME: &str = "weir-cni";

/// Where the agent listens, unless the configuration names another socket.
pub(crate) const SOCKET: &str = "/run/weir/cni.sock";

/// The name of a pod's main interface inside the pod. containerd and CRI-O always use this name.
const MAIN: &str = "eth0";

/// The CNI versions in which the fields that we read have the same meaning.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The error that the runtime receives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    /// A code of the CNI specification; from 100 on, a code of Weir.
    code: u32,
    message: String,
    details: String,
}

impl Refusal {
    fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new() }
    }
}

const BAD_VERSION: u32 = 1;
const BAD_ENVIRONMENT: u32 = 4;
const BAD_JSON: u32 = 6;
const BAD_CONFIGURATION: u32 = 7;
const TRY_LATER: u32 = 11;
const NOT_AVAILABLE: u32 = 50;
const NOT_ENFORCED: u32 = 100;

/// Answers one call of a container runtime.
pub(crate) fn main() -> ExitCode {
    let mut text = String::new();
    // Input that cannot be read is reported as invalid JSON.
    _ = std::io::stdin().take(wire::LONGEST).read_to_string(&mut text);
    let result = CniCall::read(|name| std::env::var(name).ok(), &text).and_then(|call| answer(&call));
    // Printing fails if the runtime has closed its end. Then it does not need the answer.
    match result {
        Ok(output) => {
            _ = page::print_bytes(output.as_bytes());
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            _ = error_page(&refusal, &text).and_then(|page| page.print());
            ExitCode::FAILURE
        }
    }
}

fn error_page(refusal: &Refusal, configuration: &str) -> anyhow::Result<OutputPage> {
    let configuration: serde_json::Value = serde_json::from_str(configuration).unwrap_or_default();
    let version = configuration["cniVersion"].as_str().unwrap_or("1.0.0");
    let Refusal { code, message, details } = refusal;
    let mut page = OutputPage::new();
    page.json(&json!({"cniVersion": version, "code": code, "msg": format!("weir: {message}"), "details": details}))?;
    Ok(page)
}

/// The text to print.
fn answer(call: &CniCall) -> Result<String, Refusal> {
    match call.command {
        CniCommand::Version => Ok(json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS}).to_string() + "\n"),
        CniCommand::Delete | CniCommand::Collect => Ok(String::new()),
        CniCommand::Status => ask_status(call).map(|()| String::new()),
        CniCommand::Add => add(call).map(|()| call.previous.text.clone()),
        CniCommand::Check => check(call).map(|()| String::new()),
    }
}

/// The subject of a call.
enum CallSubject {
    /// A pod's interface: the plug-in asks the agent about it.
    CniPod(CniQuestion),
    /// A further interface of a pod. Weir enforces policy on the first one only.
    Secondary,
    /// An interface without a pod's name, so the agent cannot be asked.
    Unnamed,
}

fn subject(call: &CniCall, verb: Verb) -> CallSubject {
    if call.interface != MAIN && has_main_interface(&call.netns) {
        return CallSubject::Secondary;
    }
    let Some(pod) = call.pod.clone() else { return CallSubject::Unnamed };
    let (interfaces, addresses) = (call.previous.interfaces.clone(), call.previous.addresses.clone());
    CallSubject::CniPod(CniQuestion { verb, pod, interfaces, addresses, wait: call.patience })
}

/// Whether a pod's network namespace already has its main interface. Runtimes make that one first, before any process
/// of the pod runs. So no pod can pretend that its main interface is a secondary one. If the namespace cannot be read,
/// the interface counts as the main one.
fn has_main_interface(netns: &str) -> bool {
    let inside = weir_runtime::sys::links::inside(Path::new(netns));
    inside.is_ok_and(|inside| inside.interfaces.iter().any(|it| it.name == MAIN))
}

fn unnamed(call: &CniCall) -> Refusal {
    let details = format!("CNI_ARGS of {} has no K8S_POD_NAMESPACE and K8S_POD_NAME", call.interface);
    Refusal { details, ..Refusal::new(BAD_ENVIRONMENT, "the container runtime does not name the pod") }
}

fn add(call: &CniCall) -> Result<(), Refusal> {
    let (asked, name) = match subject(call, Verb::Add) {
        CallSubject::Secondary => {
            page::print_to_stderr(format_args!(
                "weir: no policy is enforced on {}: it is a secondary interface",
                call.interface
            ));
            return Ok(());
        }
        CallSubject::Unnamed => (Err(unnamed(call)), call.interface.clone()),
        CallSubject::CniPod(question) => (ask(call, &question), question.pod.path()),
    };
    match asked {
        Err(refusal) if call.on_timeout == TimeoutAction::Deny => close(call, &name, &refusal),
        Err(refusal) if call.on_timeout == TimeoutAction::Allow => {
            page::print_to_stderr(format_args!(
                "weir: {name} starts without policy (onTimeout: allow): {}: {}",
                refusal.message, refusal.details
            ));
            Ok(())
        }
        result => result,
    }
}

fn check(call: &CniCall) -> Result<(), Refusal> {
    match subject(call, Verb::Check) {
        CallSubject::CniPod(question) => ask(call, &question),
        CallSubject::Unnamed if call.on_timeout != TimeoutAction::Allow => {
            Err(Refusal { code: NOT_ENFORCED, ..unnamed(call) })
        }
        CallSubject::Unnamed | CallSubject::Secondary => Ok(()),
    }
}

fn ask(call: &CniCall, question: &CniQuestion) -> Result<(), Refusal> {
    let pod = question.pod.path();
    let answer = wire::ask(Path::new(&call.socket), question).map_err(|error| Refusal {
        code: TRY_LATER,
        message: format!("the agent did not answer whether policy is in force on {pod}"),
        details: format!(
            "{}: {error}; if Weir was uninstalled, run `weir watch --uninstall` on this node",
            call.socket
        ),
    })?;
    answer.map(|_| ()).map_err(|why| {
        let code = if question.verb == Verb::Check { NOT_ENFORCED } else { TRY_LATER };
        Refusal { code, message: format!("policy is not in force on {pod}"), details: why }
    })
}

/// Closes the pod's interfaces: they drop all packets until the agent has put policy in force.
fn close(call: &CniCall, name: &str, refusal: &Refusal) -> Result<(), Refusal> {
    let own = veths(&call.previous.interfaces).map_err(|error| Refusal {
        details: format!("{}; and the host's interfaces cannot be listed: {error}", refusal.details),
        ..refusal.clone()
    })?;
    if own.is_empty() {
        let named = call.previous.interfaces.join(", ");
        let details =
            format!("{}; and none of these interfaces is a veth that can be closed: {named}", refusal.details);
        return Err(Refusal { details, ..refusal.clone() });
    }
    for interface in &own {
        let closed = weir_runtime::closed::close_interface(Path::new(&call.bpffs), interface);
        closed.map_err(|error| Refusal {
            details: format!("{}; and {interface} cannot be closed: {error}", refusal.details),
            ..refusal.clone()
        })?;
    }
    page::print_to_stderr(format_args!(
        "weir: {name} ({}) is closed until policy is in force on it: {}",
        own.join(", "),
        refusal.details
    ));
    Ok(())
}

/// The veths among the interfaces that a result names. Only these belong to the pod alone: all pods share a bridge.
fn veths(named: &[String]) -> std::io::Result<Vec<String>> {
    let here = weir_runtime::sys::links::interfaces_here()?;
    let is_veth = |name: &&String| here.iter().any(|it| it.kind == "veth" && it.name == **name);
    Ok(named.iter().filter(is_veth).cloned().collect())
}

fn ask_status(call: &CniCall) -> Result<(), Refusal> {
    let question = CniQuestion::status(call.patience);
    match wire::ask(Path::new(&call.socket), &question) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(why)) => Err(Refusal { details: why, ..Refusal::new(NOT_AVAILABLE, "the agent is not ready") }),
        Err(error) => {
            let details = format!("{}: {error}", call.socket);
            Err(Refusal { details, ..Refusal::new(NOT_AVAILABLE, "the agent does not answer") })
        }
    }
}
