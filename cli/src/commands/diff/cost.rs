//! The cost of enforcing each side: both are compiled, and the results are measured.

use std::borrow::Cow;
use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use weir_artifact::memory::{self, MemorySize};
use weir_classes::{Scope, stand_ins};
use weir_codegen::compile::{self, Budget, BudgetError, Budgets, CompileError, CompileOptions, Compiled};
use weir_model::Cluster;
use weir_policy::answers::{Cost, Costs, MapCost};

use super::super::compile::{cpus, unknown_node};
use crate::page;

/// The result of [`measure`].
pub(super) struct MeasuredCosts {
    pub(super) costs: Costs,
    /// The budget that the head exceeds.
    pub(super) exceeded: Option<BudgetError>,
}

pub(super) fn measure(clusters: [&Cluster; 2], node: Option<&str>, budgets: &[(Budget, u64)]) -> Result<MeasuredCosts> {
    if let Some(name) = node.filter(|name| clusters.iter().all(|it| Scope::node(it, name).is_none())) {
        if !budgets.is_empty() {
            // A node without pods would fit every budget.
            return Err(unknown_node(&clusters, name));
        }
        page::print_to_stderr(format_args!(
            "warning: {:#}; its cost is that of no pods",
            unknown_node(&clusters, name)
        ));
    }
    let has_addresses = |it: &&Cluster| it.endpoints.iter().any(|endpoint| !endpoint.addresses.is_empty());
    let assumed_pods = !clusters.iter().any(has_addresses);
    let base = compiled(clusters[0], node, assumed_pods);
    let head = compiled(clusters[1], node, assumed_pods)
        .map_err(|error| anyhow!(error).context("the head cannot be compiled"))?;
    let exceeded = Budgets(budgets.to_vec()).check(&head).err();
    let costs = Costs {
        base: base.ok().as_ref().map(cost),
        head: cost(&head),
        cpus: cpus(),
        assumed_pods,
        node: node.map(str::to_owned),
    };
    Ok(MeasuredCosts { costs, exceeded })
}

fn compiled(cluster: &Cluster, node: Option<&str>, assumed_pods: bool) -> Result<Compiled, CompileError> {
    let mut cluster = Cow::Borrowed(cluster);
    if assumed_pods {
        stand_ins(&mut cluster);
    }
    let scope = match node {
        // A node that only one side knows has no pods on the other.
        Some(name) => Scope::node(&cluster, name).unwrap_or_else(Scope::nothing),
        None => Scope::everything(&cluster),
    };
    compile::compile(&cluster, &scope, &CompileOptions::default())
}

fn cost(compiled: &Compiled) -> Cost {
    let classes = &compiled.classes;
    let total: MemorySize = compiled.maps.iter().map(memory::full).sum();
    let map = |map: &weir_artifact::map_image::MapImage| {
        let (entries, bytes) = (map.entries.len() as u64, memory::full(map).on(cpus()));
        (map.name.name().to_owned(), MapCost { entries, bytes })
    };
    Cost {
        endpoints: classes.subject_of.len() as u64,
        subject_classes: classes.subjects.len() as u64,
        peer_classes: classes.peers.len() as u64,
        port_atoms: classes.atoms.count() as u64,
        instructions: Budget::Instructions.spent(compiled),
        entries: Budget::Entries.spent(compiled),
        map_bytes: Budget::MapBytes.spent(compiled),
        memory: total.on(cpus()),
        maps: compiled.maps.iter().map(map).collect(),
    }
}

/// The assumption under which the costs hold, in words.
pub(super) fn condition(costs: &Costs) -> String {
    let whose = match &costs.node {
        Some(node) => format!(", on node {node}"),
        None => ", on a node that has every pod".to_owned(),
    };
    let assumed = if costs.assumed_pods { " (counting every workload as one pod)" } else { "" };
    format!("{whose}{assumed}")
}

/// The lines of the table: name, cost before, cost after, change. There is one for each total and each map that
/// changes.
pub(super) fn lines(costs: &Costs) -> Vec<[String; 4]> {
    let of = |cost: &Cost| {
        [
            ("instructions", cost.instructions),
            ("classes of endpoints", cost.subject_classes),
            ("classes of addresses", cost.peer_classes),
            ("port atoms", cost.port_atoms),
            ("entries", cost.entries),
            ("bytes", cost.memory),
        ]
    };
    let head = of(&costs.head);
    let base = costs.base.as_ref().map(of);
    let mut lines: Vec<[String; 4]> = head
        .iter()
        .enumerate()
        .map(|(index, (what, after))| line(what, base.as_ref().map(|it| it[index].1), *after))
        .collect();
    let Some(before) = &costs.base else { return lines };
    let names: BTreeSet<&str> = before.maps.keys().chain(costs.head.maps.keys()).map(String::as_str).collect();
    for name in names {
        let [was, is] = [before, &costs.head].map(|it| it.maps.get(name).copied().unwrap_or_default());
        if was != is {
            lines.push(line(&format!("{name}: entries"), Some(was.entries), is.entries));
            lines.push(line(&format!("{name}: bytes"), Some(was.bytes), is.bytes));
        }
    }
    lines
}

fn line(what: &str, before: Option<u64>, after: u64) -> [String; 4] {
    let change = match before {
        Some(before) if after > before => format!("+{}", after - before),
        Some(before) if after < before => format!("-{}", before - after),
        _ => String::new(),
    };
    [what.to_owned(), before.map_or_else(|| "?".to_owned(), |it| it.to_string()), after.to_string(), change]
}
