//! `weir watch`: the agent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::CommandOutcome;
use crate::args::{GlobalArgs, LogArgs, WatchArgs};
use crate::cni;
use crate::read;
use crate::watch::enforce::{DryRun, KernelEnforcer};
use crate::watch::log::{self, Log, LogFilter};
use crate::watch::serve::PageAddress;
use crate::watch::uninstall::wait::WaitOptions;
use crate::watch::uninstall::{self, Uninstaller};
use crate::watch::{self, CniOptions, PageOptions, WatchOptions, probe};

pub(crate) fn run(global: &GlobalArgs, arguments: &WatchArgs) -> Result<CommandOutcome> {
    start_log(&arguments.logging)?;
    let uninstalling = &arguments.mode.uninstalling;
    if let Some((namespace, name)) = &uninstalling.wait_for_uninstall {
        let waiting = WaitOptions {
            kubeconfig: arguments.kubeconfig.as_deref(),
            namespace,
            name,
            patience: Duration::from_secs(uninstalling.wait_seconds),
            log: Log,
        };
        uninstall::wait::run(&waiting)?;
        return Ok(CommandOutcome::Clean);
    }
    if arguments.mode.uninstall {
        uninstall::run(&Uninstaller {
            bpffs: &arguments.pinned.bpffs,
            by_hand_too: uninstalling.by_hand_too,
            sockets: sockets(arguments),
            cni_plugins: &uninstalling.cni_bin_dir,
            cni_chains: &uninstalling.cni_conf_dir,
            keep_cni_plugin: uninstalling.keep_cni_plugin,
            installed_file: uninstalling.installed_file.as_deref(),
            patience: Duration::from_secs(uninstalling.wait_for_agent),
            stay: uninstalling.stay,
            log: Log,
        })?;
        return Ok(CommandOutcome::Clean);
    }
    if let Some(page) = arguments.mode.probe {
        let answer = probe::ask(&arguments.http.health_addr, page.path())?;
        return Ok(if answer.is_ok() { CommandOutcome::Clean } else { CommandOutcome::Findings });
    }
    let options = WatchOptions {
        kubeconfig: arguments.kubeconfig.as_deref(),
        files: arguments.files.as_deref(),
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
        log: Log,
    };
    if arguments.mode.dry_run {
        watch::run(options, DryRun { artifact: arguments.mode.artifact.clone(), epoch: 0 })?;
    } else {
        watch::run(options, KernelEnforcer::new(arguments.pinned.bpffs.clone(), arguments.hook.way()))?;
    }
    Ok(CommandOutcome::Clean)
}

/// The agent's Unix sockets.
fn sockets(arguments: &WatchArgs) -> Vec<&Path> {
    let health = match &arguments.http.health_addr {
        PageAddress::Unix(path) => Some(path.as_path()),
        PageAddress::Tcp(_) => None,
    };
    let cni = arguments.cni.cni_socket.as_deref().unwrap_or(Path::new(cni::SOCKET));
    [cni].into_iter().chain(health).collect()
}

/// Starts the log of this process.
pub(super) fn start_log(arguments: &LogArgs) -> Result<()> {
    log::start(arguments.log_format, &level(arguments)?);
    Ok(())
}

/// The log filter: from `--log-level`, else from `WEIR_LOG`.
fn level(arguments: &LogArgs) -> Result<LogFilter> {
    if let Some(level) = &arguments.log_level {
        return Ok(level.clone());
    }
    let level = std::env::var("WEIR_LOG").unwrap_or_default();
    level.parse().map_err(anyhow::Error::msg).context("the environment variable WEIR_LOG")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::{Cli, CliCommand, EnforcementCommand};

    #[test]
    fn the_systemd_unit_has_arguments_that_are_known() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd/weir.service");
        let unit = std::fs::read_to_string(path).expect("it is in the tree");
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts a program");
        let parsed = Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{error}"));
        let CliCommand::Enforcement(EnforcementCommand::Watch(arguments)) = parsed.command else {
            panic!("not the agent")
        };
        assert_eq!(arguments.files.as_deref(), Some(std::path::Path::new("/etc/weir/policies")));
    }
}
