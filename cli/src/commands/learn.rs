//! `weir learn`: policies and expectations from recorded flows.

mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;
use weir_model::eval::{Flow, FlowProtocol, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Cluster, Protocol};
use weir_policy::endpoint_lookup::{EndpointLookup, parse_protocol, reference};
use weir_policy::rule_mismatch::protocol_name;
use weir_suggest::learn::{Allowed, LearnOptions, Learned, Observation, allowed, learn};

use super::CommandOutcome;
use crate::args::{GlobalArgs, LearnArgs};
use crate::failure::with_hint;
use crate::output_file;
use crate::page::OutputPage;
use crate::page::Style::Bold;
use crate::read::{self, ReadInput};
use crate::render::text::count;
use records::{Record, RecordedEnd};

/// Flows that would be denied, of which this many are listed.
const MOST_DENIED: usize = 20;

/// The recorded flows of all files.
#[derive(Default)]
struct Recorded {
    observations: Vec<Observation>,
    records: usize,
    /// Records without an end or protocol that the input knows, by reason.
    unused: BTreeMap<String, usize>,
}

pub(crate) fn run(global: &GlobalArgs, arguments: &LearnArgs) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, &arguments.input)? else { return Ok(CommandOutcome::Failed) };
    let recorded = recorded(&read, arguments)?;
    if recorded.observations.is_empty() {
        let hint = "the pods of the flows must be in the input: `kubectl get namespaces,nodes,pods,services,endpointslices,networkpolicies -A -o yaml`";
        return Err(with_hint("the files record no accepted flow of a pod of the input", hint));
    }
    let options = LearnOptions { longest: [arguments.cidr_floor, arguments.cidr_floor_v6] };
    let learned = learn(&read.objects, read.cluster.assume, &recorded.observations, options);
    let files = write(arguments, &read.cluster, &learned)?;
    let mut page = report(global, &read, arguments, &recorded, &learned, &files)?;
    read.left_out.mark(&mut page, crate::args::TextOrJson::Text)?;
    page.print()?;
    Ok(if learned.denied.is_empty() { CommandOutcome::Clean } else { CommandOutcome::Findings })
}

fn recorded(read: &ReadInput, arguments: &LearnArgs) -> Result<Recorded> {
    let lookup = EndpointLookup { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    let mut recorded = Recorded::default();
    let mut times: Vec<(Flow, u64)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for path in &arguments.flows {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        for record in records::parse(&path.display().to_string(), &text)? {
            recorded.records += 1;
            match flow(&lookup, &mut oracle, &record) {
                Ok(flow) => {
                    let index = *known.entry(format!("{flow:?}")).or_insert(times.len());
                    if index == times.len() {
                        times.push((flow, 0));
                    }
                    times[index].1 += 1;
                }
                Err(reason) => *recorded.unused.entry(reason).or_default() += 1,
            }
        }
    }
    recorded.observations = times.into_iter().map(|(flow, times)| Observation { flow, times }).collect();
    Ok(recorded)
}

/// The flow of a record. An address that the input gives to no pod is an address outside of the cluster.
fn flow<'c>(lookup: &EndpointLookup<'c>, oracle: &mut Oracle<'c>, record: &Record) -> Result<Flow, String> {
    let protocol = parse_protocol(&record.protocol)?;
    let end = |end: &RecordedEnd| {
        let by_name = lookup.end(oracle.directory(), end.pod.as_deref(), end.ip.as_deref());
        match (by_name, &end.ip) {
            (Err(_), Some(ip)) if end.pod.is_some() => lookup.end(oracle.directory(), None, Some(ip)),
            (found, _) => found,
        }
    };
    let (source, destination) = lookup.choose_addresses(end(&record.from)?, end(&record.to)?)?;
    let port = match protocol {
        FlowProtocol::Icmp => 0,
        FlowProtocol::Transport(_) => u16::try_from(record.port).map_err(|_| "not a port".to_owned())?,
    };
    if source.endpoint.is_none()
        && destination.endpoint.is_none()
        && oracle.services_behind(&Flow { source, destination, protocol, port }).is_none()
    {
        return Err("neither end is a pod of the input".to_owned());
    }
    let flow = Flow { source, destination, protocol, port };
    // Each node records what it accepts itself. A policy must not open what the other end drops, however often a client
    // tries.
    if oracle.judge(&flow).verdict() == Verdict::Deny {
        return Err("the input's policies deny it: only one end accepted it, or it is older than they are".to_owned());
    }
    Ok(flow)
}

/// Writes the policies of each namespace, and the expectations. Returns the names of the files.
fn write(arguments: &LearnArgs, cluster: &Cluster, learned: &Learned) -> Result<Vec<String>> {
    let files = files(&arguments.output, cluster, learned);
    if !arguments.force {
        let hint = "`--force` overwrites files, or choose another directory with `-o`";
        output_file::refuse_existing(files.keys().map(PathBuf::as_path), hint)?;
    }
    for (path, text) in &files {
        let parent = path.parent().unwrap_or(&arguments.output);
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        output_file::replace(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(files.keys().map(|it| it.display().to_string()).collect())
}

/// The texts of the files, by path.
fn files(directory: &Path, cluster: &Cluster, learned: &Learned) -> BTreeMap<PathBuf, String> {
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    for policy in &learned.policies {
        let path = directory.join(format!("policies/{}.yaml", policy.policy.namespace));
        let text = files.entry(path).or_default();
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&policy.yaml);
    }
    files.insert(directory.join("expectations.yaml"), expectations(cluster, learned));
    files
}

/// An expectation for each pair of workloads and port.
fn expectations(cluster: &Cluster, learned: &Learned) -> String {
    let end = |end: &weir_model::eval::FlowEnd| match (end.endpoint, end.address) {
        (Some(id), _) => {
            let kind = cluster.endpoints[id.index()].kind.to_lowercase();
            format!("{kind}/{}", cluster.endpoint_name(id))
        }
        (None, address) => address.map_or_else(String::new, |it| it.to_string()),
    };
    let mut text = "# Connections that were recorded: weir test PATH… --expectations THIS\nexpectations:\n".to_owned();
    let mut written = BTreeSet::new();
    for Observation { flow, .. } in &learned.pairs {
        let FlowProtocol::Transport(protocol) = flow.protocol else { continue };
        let port = format!("{}/{}", flow.port, protocol_name(protocol));
        let (from, to) = (json!(end(&flow.source)), json!(end(&flow.destination)));
        let entry = format!("  - {{from: {from}, to: {to}, port: {port}, expect: allow}}\n");
        if written.insert(entry.clone()) {
            text.push_str(&entry);
        }
    }
    text
}

fn report(
    global: &GlobalArgs,
    read: &ReadInput,
    arguments: &LearnArgs,
    recorded: &Recorded,
    learned: &Learned,
    files: &[String],
) -> Result<OutputPage> {
    let mut page = OutputPage::for_stdout(global.color);
    let (policies, flows) =
        (count(learned.policies.len(), "policy"), count(recorded.observations.len(), "different flow"));
    let namespaces: BTreeSet<String> = learned.policies.iter().map(|it| it.policy.namespace.clone()).collect();
    let head = format!(
        "{policies} in {} from {flows} ({})",
        count(namespaces.len(), "namespace"),
        count(recorded.records, "record")
    );
    page.folded(2, &[(Bold, &head)]);
    let once = recorded.observations.iter().filter(|it| it.times == 1).count();
    if once > 0 {
        page.folded_line(
            2,
            format_args!("{} seen only once: look for `seen only once` in the policies", count(once, "flow")),
        );
    }
    for (reason, number) in &recorded.unused {
        page.folded_line(2, format_args!("not used: {}: {reason}", count(*number, "record")));
    }
    page.blank();
    denied(&mut page, &read.cluster, learned);
    let (after, _) = resolve(&learned.enforced, read.cluster.assume);
    let objects = [(&read.objects, &read.cluster), (&learned.enforced, &after)];
    let [today, then] = objects.map(|(objects, cluster)| allowed(objects, cluster, &namespaces));
    page.line(format_args!("allowed from or to their workloads today: {}", words(&today?)));
    page.line(format_args!("with these policies alone:                {}", words(&then?)));
    let others = read.cluster.namespaces.iter().filter(|it| !namespaces.contains(&it.name)).count();
    if others > 0 {
        page.folded_line(
            2,
            format_args!(
                "{} without a policy: no recorded flow is from or to a pod there",
                count(others, "other namespace")
            ),
        );
    }
    if !read.cluster.policies.is_empty() {
        page.folded_line(
            2,
            "The policies of the input stay as they are: the new ones have other names, and policies only add up.",
        );
    }
    page.blank();
    files.iter().for_each(|it| page.line(format_args!("wrote {it}")));
    let directory = arguments.output.display();
    page.folded_line(
        2,
        format_args!(
            "The policies are in audit mode: see what they would deny with `kubectl apply -f {directory}/policies`."
        ),
    );
    Ok(page)
}

fn words(allowed: &Allowed) -> String {
    format!("{}, {}", count(allowed.pairs, "pair"), count(allowed.ports, "port"))
}

/// Lists the recorded flows that the policies would deny.
fn denied(page: &mut OutputPage, cluster: &Cluster, learned: &Learned) {
    if learned.denied.is_empty() {
        return page.folded_line(
            2,
            format_args!("they deny none of the recorded flows ({} asked again)", count(learned.allowed, "flow")),
        );
    }
    page.line(format_args!("they deny {} of the recorded ones:", count(learned.denied.len(), "flow")));
    for (flow, reason) in learned.denied.iter().take(MOST_DENIED) {
        let mut text = String::new();
        for (end, between) in [(&flow.source, " -> "), (&flow.destination, "")] {
            let name =
                end.endpoint.map(|id| reference(&cluster.endpoints[id.index()].kind, &cluster.endpoint_name(id)));
            let address = end.address.map(|it| it.to_string());
            _ = write!(text, "{}{between}", name.or(address).unwrap_or_default());
        }
        let protocol = match flow.protocol {
            FlowProtocol::Transport(protocol @ (Protocol::Tcp | Protocol::Udp | Protocol::Sctp)) => {
                protocol_name(protocol)
            }
            FlowProtocol::Icmp => "icmp",
        };
        page.folded_line(4, format_args!("  {text} {protocol} {}: {reason}", flow.port));
    }
    if learned.denied.len() > MOST_DENIED {
        page.line(format_args!("  … and {} more", learned.denied.len() - MOST_DENIED));
    }
}
