//! `weir watch`: the agent.

use anyhow::Result;
use weir_runtime::runtime::{Access, Runtime};

use super::Outcome;
use crate::args::{Global, Watch};
use crate::read;
use crate::watch::enforce::{DryRun, KernelEnforcer};
use crate::watch::log::{Log, Value};
use crate::watch::{self, CniOptions, PageOptions, WatchOptions};

pub(crate) fn run(global: &Global, arguments: &Watch) -> Result<Outcome> {
    if arguments.uninstall {
        let runtime = Runtime::open(&arguments.pinned.bpffs, Access::Change)?;
        let endpoints = runtime.detach(None)?.len();
        log(arguments).info("uninstalled: nothing is enforced any more", &[("endpoints", Value::from(endpoints))]);
        return Ok(Outcome::Clean);
    }
    let options = WatchOptions {
        kubeconfig: arguments.kubeconfig.as_deref(),
        node: watch::node_name(arguments.node.as_deref())?,
        pages: PageOptions {
            metrics: arguments.metrics_addr,
            health: (!arguments.no_health).then(|| arguments.health_addr.clone()),
        },
        cni: CniOptions { socket: arguments.cni_socket.clone(), results: arguments.cni_results.clone() },
        annotate_pods: arguments.annotate_pods,
        unknown_pods: arguments.unknown_pods,
        assume: read::chosen_assumptions(global)?,
        budgets: arguments.budget.clone(),
        log: log(arguments),
    };
    if arguments.dry_run {
        watch::run(options, DryRun { artifact: arguments.artifact.clone(), epoch: 0 })?;
    } else {
        watch::run(options, KernelEnforcer::new(arguments.pinned.bpffs.clone(), arguments.hook.way()))?;
    }
    Ok(Outcome::Clean)
}

fn log(arguments: &Watch) -> Log {
    Log { format: arguments.log_format }
}
