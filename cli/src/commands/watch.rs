//! `weir watch`: the agent.

use anyhow::Result;
use weir_runtime::runtime::{PinAccess, Runtime};

use super::CommandOutcome;
use crate::args::{GlobalArgs, WatchArgs};
use crate::read;
use crate::watch::enforce::{DryRun, KernelEnforcer};
use crate::watch::log::{Log, Value};
use crate::watch::{self, CniOptions, PageOptions, WatchOptions};

pub(crate) fn run(global: &GlobalArgs, arguments: &WatchArgs) -> Result<CommandOutcome> {
    if arguments.mode.uninstall {
        let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Change)?;
        let endpoints = runtime.detach(None)?.len();
        log(arguments).info("uninstalled: nothing is enforced any more", &[("endpoints", Value::from(endpoints))]);
        return Ok(CommandOutcome::Clean);
    }
    let options = WatchOptions {
        kubeconfig: arguments.kubeconfig.as_deref(),
        node: watch::node_name(arguments.node.as_deref())?,
        pages: PageOptions {
            metrics: arguments.http.metrics_addr,
            health: (!arguments.http.no_health).then(|| arguments.http.health_addr.clone()),
        },
        cni: CniOptions { socket: arguments.cni.cni_socket.clone(), results: arguments.cni.cni_results.clone() },
        annotate_pods: arguments.annotate_pods,
        unknown_pods: arguments.cni.unknown_pods,
        assume: read::chosen_assumptions(global)?,
        budgets: arguments.budget.clone(),
        cpu: arguments.cpu_budget,
        log: log(arguments),
    };
    if arguments.mode.dry_run {
        watch::run(options, DryRun { artifact: arguments.mode.artifact.clone(), epoch: 0 })?;
    } else {
        watch::run(options, KernelEnforcer::new(arguments.pinned.bpffs.clone(), arguments.hook.way()))?;
    }
    Ok(CommandOutcome::Clean)
}

fn log(arguments: &WatchArgs) -> Log {
    Log { format: arguments.log_format }
}
