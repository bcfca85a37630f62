//! The demo in the kernel: network namespaces, sockets, and Weir's programs at the pods' interfaces.

mod sandbox;
mod signals;
mod topology;
mod traffic;

use std::net::TcpStream;

use anyhow::{Context as _, Error, Result, ensure};
use weir_ebpf::target::Target;
use weir_model::eval::Verdict;
use weir_runtime::runtime::{PinAccess, Request, Runtime};

use super::shop::{API, Attempt, CLUSTER, DB, DNS, DemoEnd, FILES, Shop, ShopPrograms, WEB};
use super::{DemoNetwork, DemoScript, OpenConnection, next_commands};
use crate::args::{DemoArgs, GlobalArgs};
use crate::commands::CommandOutcome;
use crate::failure;
use crate::page::{self, Style};
use sandbox::{RemovedDemos, Sandbox};
use signals::StopSignals;
use traffic::EchoServers;

/// The pods, in the order of their interfaces.
const PODS: [DemoEnd; 4] = [WEB, API, DB, DNS];

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs the demo, and removes it however it ends.
pub(super) fn run(global: &GlobalArgs, arguments: &DemoArgs) -> Result<CommandOutcome> {
    if arguments.keep && !weir_runtime::sys::roots_outside().is_empty() {
        return Err(failure::with_hint(
            "nothing can be kept: this process has a mount namespace of its own, and its mounts end with it",
            "run `weir demo --keep` outside of `unshare`, `ip netns exec` and services with private mounts",
        ));
    }
    // From now on a signal is only noted, and each step looks at the note: so nothing is left half-made.
    let signals = StopSignals::note()?;
    let RemovedDemos { removed, failed } = sandbox::remove_all(None, false);
    match removed.len() {
        0 => {}
        count => page::print(format_args!("removed the leftovers of {count} killed demo{}", plural(count)))?,
    }
    // They have other names than the new demo, and are not in its way.
    failed.iter().for_each(|error| page::print_to_stderr(format_args!("note: {error:#}")));
    let kernel = weir_runtime::sys::kernel_version().unwrap_or(Target::BASE.kernel);
    let target = Target { kernel }.max(Target::BASE);
    let mut network = KernelNetwork::build(signals).map_err(with_alternative)?;
    let told = DemoScript { network: &mut network, global, target, step: 0 }.run();
    let KernelNetwork { sandbox, servers, open, .. } = network;
    drop((servers, open));
    if arguments.keep && told.is_ok() {
        print_kept(global, &sandbox)?;
        sandbox.keep()?;
        return Ok(CommandOutcome::Clean);
    }
    let removed = sandbox.remove();
    told.map_err(with_alternative)?;
    removed?;
    let mut page = super::page(global);
    page.blank();
    page.line("Removed: the namespaces, their interfaces, and the programs in the kernel.");
    next_commands(&mut page);
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// `weir demo --remove`
pub(super) fn remove(which: Option<&str>) -> Result<CommandOutcome> {
    ensure!(is_root(), "only root can remove a demo: run `weir demo --remove` as root");
    let RemovedDemos { removed, failed } = sandbox::remove_all(which, true);
    if let Some(error) = failed.into_iter().next() {
        return Err(error);
    }
    match (&removed[..], which) {
        ([], None) => page::print("there is nothing to remove")?,
        ([], Some(which)) => {
            let known = "`weir demo --remove` without a name removes every demo that was kept";
            return Err(failure::with_hint(format!("no demo {which} was kept, or it still runs"), known));
        }
        (removed, _) => page::print(format_args!("removed {}", removed.join(", ")))?,
    }
    Ok(CommandOutcome::Clean)
}

/// An error with the demo that needs no kernel, unless the error has a hint of its own.
fn with_alternative(error: Error) -> Error {
    if error.downcast_ref::<signals::Stopped>().is_some() || failure::has_hint(&error) {
        return error;
    }
    failure::caused(
        error,
        "the demo cannot run in this kernel; everything that it had made is removed",
        "it needs network namespaces, tc and eBPF (Linux 5.14 or later, CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN); \
         `weir demo --vm` shows the same without the kernel",
    )
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Says how to look at a demo that was kept.
fn print_kept(global: &GlobalArgs, sandbox: &Sandbox) -> Result<()> {
    let inside = |role: &str| format!("ip netns exec {}", sandbox.namespace(role));
    let pins = sandbox.pins();
    let weir = |command: &str| format!("{} weir {command} --bpffs {}", inside("node"), pins.display());
    let directory = sandbox.directory();
    let dialled = format!("{} bash -c 'timeout 2 bash -c \"</dev/tcp/10.0.0.13/5432\"; echo $?'", inside("web"));
    let mut page = super::page(global);
    page.blank();
    page.pieces(&[(Style::Bold, &format_args!("Kept as {}", sandbox.id()))]);
    page.line(format_args!("   its files are in {}", directory.display()));
    let commands = [
        ("the pods and whether the kernel agrees with the record", weir("status")),
        ("dropped packets, with the policies", weir("monitor --last 20")),
        ("the flows in the kernel's tables", weir("flows")),
        ("dial the database from web: 124 is dropped, 1 is refused (no server is left)", dialled),
        ("why", format!("weir explain {} --from shop/web-1 --to shop/db-0 --port 5432", directory.display())),
        ("remove it", format!("weir demo --remove {}", sandbox.id())),
    ];
    for (purpose, command) in commands {
        page.pieces(&[(Style::Dim, &format_args!("   {purpose}"))]);
        // One line, so that it can be copied.
        page.line(format_args!("     {command}"));
    }
    page.print()
}

/// The namespaces with servers in them.
struct KernelNetwork {
    // Before the sandbox, because its sockets are in the sandbox's namespaces.
    servers: EchoServers,
    open: Option<TcpStream>,
    sandbox: Sandbox,
    signals: StopSignals,
}

impl KernelNetwork {
    fn build(signals: StopSignals) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        topology::build(&sandbox, &signals)?;
        let servers = EchoServers::start(&sandbox)?;
        Ok(Self { servers, open: None, sandbox, signals })
    }
}

impl DemoNetwork for KernelNetwork {
    fn description(&self) -> Vec<String> {
        let text = format!(
            "Each pod, the node between them and the internet is a network namespace of this machine \
             (weir-demo-{}-*). Packets are real: \"passes\" means that a server has answered.",
            self.sandbox.id()
        );
        vec![text]
    }

    fn enforce(&mut self, shop: &Shop, programs: &ShopPrograms) -> Result<String> {
        self.signals.check()?;
        std::fs::write(self.sandbox.directory().join(FILES[0]), &shop.text)?;
        std::fs::write(self.sandbox.directory().join(FILES[1]), CLUSTER)?;
        let file = programs.artifact.to_bytes().context("the artifact cannot be written")?;
        let endpoints = PODS.iter().enumerate().filter_map(|(index, end)| Some((end.pod?, topology::interface(index))));
        let request = Request {
            artifact: &programs.artifact,
            file: &file,
            endpoints: endpoints.map(|(pod, interface)| (pod.to_owned(), interface)).collect(),
            uplinks: Vec::new(),
            way: None,
            keep: None,
            exact: None,
            extends: None,
        };
        let pins = self.sandbox.pins();
        let attached = self.sandbox.enter("node", || {
            let runtime = Runtime::open(&pins, PinAccess::Change)?;
            let attached = runtime.attach(&request)?;
            runtime.reap()?;
            Ok::<_, weir_runtime::Error>(attached)
        })??;
        let (now, count) = (attached.generation.epoch, attached.endpoints.len());
        Ok(match attached.before {
            Some(before) => {
                format!(
                    "generation {now} is in force at {count} pods, in place of {}: one switch for all",
                    before.epoch
                )
            }
            None => format!("generation {now} is in force at the interfaces of {count} pods"),
        })
    }

    fn connect(&mut self, _: &Shop, attempts: &[Attempt]) -> Result<Vec<Verdict>> {
        self.signals.check()?;
        let reached = std::thread::scope(|scope| {
            let begun: Vec<_> = attempts.iter().map(|it| scope.spawn(|| traffic::reaches(&self.sandbox, it))).collect();
            let ended = begun.into_iter().map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            ended.collect::<Result<Vec<bool>>>()
        });
        self.signals.check()?;
        let verdict = |reached| if reached { Verdict::Allow } else { Verdict::Deny };
        Ok(reached?.into_iter().map(verdict).collect())
    }

    fn open(&mut self, attempt: &Attempt) -> Result<()> {
        self.signals.check()?;
        self.open = traffic::connect(&self.sandbox, attempt)?;
        Ok(())
    }

    fn continues(&mut self, _: &ShopPrograms, _: OpenConnection<'_>) -> Result<bool> {
        let carries = self.open.as_mut().map_or(Ok(false), traffic::answers);
        self.signals.check()?;
        Ok(carries?)
    }
}
