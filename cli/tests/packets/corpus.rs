//! Every row of the corpus with real packets: pods at the addresses that the case names, and a connection for each row.
//!
//! Addresses alone decide where an end is: at a pod, at a node, or outside if neither a pod, a node nor a service has
//! the address. The control is the same topology with the same policies as iptables rules. Rows that no packet can
//! test are skipped, counted and printed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_model as model;
use weir_model::directory::Directory;
use weir_model::eval::{FlowEnd, FlowProtocol, Verdict};
use weir_model::{Cluster, Direction, EndpointId, NodeId, Standing};

use crate::enforce::{By, enforce};
use crate::namespace::Error;
use crate::place::Place;
use crate::probe::{self, Protocol, Try};
use crate::services::{self, Frontend};
use crate::topology::{Layout, Net, NodePlan, Plan, PodPlan};
use weir_testing::case::{Case, Row};

/// The number of cases that run at the same time.
const AT_ONCE: usize = 3;

/// The results of all rows.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) dropped: usize,
    pub(crate) skipped: BTreeMap<&'static str, usize>,
    pub(crate) wrong: Vec<String>,
}

/// The files of all cases, and the cluster that they are added to.
pub(crate) fn files() -> (PathBuf, Vec<PathBuf>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compiler/corpus/verdicts");
    let mut cases = Vec::new();
    for area in std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        cases.extend(std::fs::read_dir(area).unwrap().map(|entry| entry.unwrap().path()));
    }
    // The directories also contain snapshots of the compiler's output for the cases.
    cases.retain(|path: &PathBuf| path.extension().is_some_and(|it| it == "yaml"));
    cases.sort();
    (directory.join("cluster.yaml"), cases)
}

/// Runs all cases.
pub(crate) fn run(by: By, layout: Layout) -> Tally {
    let (base, cases) = files();
    let text = std::fs::read_to_string(&base).unwrap();
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(path) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case = Case::read(path.clone(), &text);
                    let done = one(by, layout, &case, &[base.clone(), path.clone()]);
                    tally.lock().unwrap().add(&case, done);
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

/// The result of a row.
enum Fate {
    Reached(bool),
    Skipped(&'static str),
}

impl Tally {
    fn add(&mut self, case: &Case, done: Result<Vec<Fate>, Error>) {
        let fates = match done {
            Ok(fates) => fates,
            Err(error) => return self.wrong.push(format!("{}: {error}", case.path.display())),
        };
        for (row, fate) in case.rows.iter().zip(fates) {
            match fate {
                Fate::Skipped(reason) => *self.skipped.entry(reason).or_default() += 1,
                Fate::Reached(true) => self.passed += 1,
                Fate::Reached(false) => self.dropped += 1,
            }
            if matches!(fate, Fate::Reached(reached) if reached != allowed(row)) {
                let what = if allowed(row) { "did not get through" } else { "got through" };
                self.wrong.push(format!("{}: {} — {what}", case.path.display(), row.text));
            }
        }
    }
}

fn allowed(row: &Row) -> bool {
    Direction::ALL.into_iter().all(|direction| row.expected(direction) == Verdict::Allow)
}

fn one(by: By, layout: Layout, case: &Case, files: &[PathBuf]) -> Result<Vec<Fate>, Error> {
    // A node cannot route one of its own addresses to a pod, so this network cannot be built.
    let pods = case.cluster.endpoints.iter().filter(|it| it.standing == Standing::Member);
    if pods.flat_map(|it| &it.addresses).any(|address| is_a_nodes(&case.cluster, address)) {
        return Ok(case
            .rows
            .iter()
            .map(|_| Fate::Skipped("a case in which a pod has the address of a node"))
            .collect());
    }
    let place = Place::new()?;
    let net = Net::new(layout, plan(case))?;
    for (index, node) in net.nodes.iter().enumerate() {
        services::translate(node, &services::frontends(&case.cluster, index, &node_addresses(&case.cluster, index)))?;
    }
    enforce(by, &net, &place, files)?;
    let tries: Vec<Result<Try<'_>, &'static str>> = case.rows.iter().map(|row| attempt(by, &net, case, row)).collect();
    let possible: Vec<Try<'_>> = tries.iter().filter_map(|it| it.as_ref().ok()).cloned().collect();
    let mut reached = probe::reach(&possible)?.into_iter();
    let fate = |it: Result<Try<'_>, _>| match it {
        Ok(_) => reached.next().map_or(Fate::Skipped("not tried"), Fate::Reached),
        Err(reason) => Fate::Skipped(reason),
    };
    Ok(tries.into_iter().map(fate).collect())
}

/// The cluster's nodes with their pods. Addresses of the rows and backends that are not the cluster's are outside.
fn plan(case: &Case) -> Plan {
    let cluster = &case.cluster;
    let mut plan = Plan::default();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let pods = pods(cluster, Some(NodeId(index as u32)));
        plan.nodes.push(NodePlan {
            name: node.name.clone(),
            addresses: node.addresses.clone(),
            pods,
            ..NodePlan::default()
        });
    }
    let directory = Directory::new(cluster);
    let mut others: Vec<IpAddr> =
        case.rows.iter().flat_map(|row| [row.flow.source.address, row.flow.destination.address]).flatten().collect();
    others.extend(
        cluster.services.iter().flat_map(|it| &it.ports).flat_map(|it| &it.backends).filter_map(|it| it.address),
    );
    others.sort();
    others.dedup();
    let of_cluster = |address: &IpAddr| {
        is_a_nodes(cluster, address)
            || directory.endpoint_at(*address).is_some()
            || cluster.services.iter().any(|it| it.addresses.contains(address))
    };
    plan.outside = others.into_iter().filter(|address| !of_cluster(address) && is_a_hosts(address)).collect();
    plan
}

/// Rows also ask about addresses that no host can have.
fn is_a_hosts(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !is_broadcast
}

fn is_a_nodes(cluster: &Cluster, address: &IpAddr) -> bool {
    cluster.nodes.iter().any(|node| node.addresses.contains(address))
}

fn pods(cluster: &Cluster, node: Option<NodeId>) -> Vec<PodPlan> {
    let directory = Directory::new(cluster);
    // A node cannot route one of its own addresses to a pod.
    let has_own =
        |id: EndpointId, address: &IpAddr| directory.endpoint_at(*address) == Some(id) && !is_a_nodes(cluster, address);
    let mut pods = Vec::new();
    for (index, endpoint) in cluster.endpoints.iter().enumerate() {
        let id = EndpointId(index as u32);
        let addresses: Vec<IpAddr> = endpoint.addresses.iter().filter(|it| has_own(id, it)).copied().collect();
        if endpoint.standing == Standing::Member && endpoint.node == node && !addresses.is_empty() {
            pods.push(PodPlan { name: cluster.endpoint_name(id), addresses });
        }
    }
    pods
}

fn node_addresses(cluster: &Cluster, index: usize) -> Vec<IpAddr> {
    cluster.nodes.get(index).map(|node| node.addresses.clone()).unwrap_or_default()
}

/// The connection that tests a row, or the reason why the row is skipped.
fn attempt<'n>(by: By, net: &'n Net, case: &Case, row: &Row) -> Result<Try<'n>, &'static str> {
    let flow = &row.flow;
    let to = flow.destination.address.ok_or("an end without an address")?;
    if ![flow.source.address, flow.destination.address].iter().flatten().all(is_a_hosts) {
        return Err("an address that no host can have");
    }
    let source = address(&case.cluster, &flow.source, to.is_ipv6())?;
    let from = net.holder(source).ok_or("no endpoint of the test network has the address")?;
    let (protocol, name) = match flow.protocol {
        FlowProtocol::Icmp => (Protocol::Icmp, "icmp"),
        FlowProtocol::Transport(model::Protocol::Tcp) => (Protocol::Tcp, "tcp"),
        FlowProtocol::Transport(model::Protocol::Udp) => (Protocol::Udp, "udp"),
        FlowProtocol::Transport(model::Protocol::Sctp) => (Protocol::Sctp, "sctp"),
    };
    let to = SocketAddr::new(to, flow.port);
    let proxy =
        net.node_of(source).map(|node| services::frontends(&case.cluster, node, &node_addresses(&case.cluster, node)));
    // A packet to the sender's own address does not leave the host, so no node translates it.
    let is_to_itself = to.ip() == source;
    let mut translated = proxy.unwrap_or_default().into_iter().filter(|_| !is_to_itself);
    let behind = translated.find(|it| it.at == to && it.protocol == name);
    let is_service = case.cluster.services.iter().any(|it| it.addresses.contains(&to.ip()));
    let denied_at = |direction| row.expected(direction) == Verdict::Deny;
    if denied_at(Direction::Ingress)
        && !denied_at(Direction::Egress)
        && behind.as_ref().is_some_and(|it| it.backends.len() > 1)
    {
        return Err("several backends with different verdicts, of which one is chosen at random");
    }
    let is_behind = behind.as_ref().is_some_and(|it| it.backends.iter().any(|at| at.ip() == source));
    if by == By::Programs && net.layout == Layout::Bridge && is_behind {
        return Err("itself through a service, masqueraded: on a bridge it looks like any other pod");
    }
    let is_host_port = |it: &model::HostPort| it.port == to.port() && it.is_at(&case.cluster, to.ip());
    if by == By::Rules && case.cluster.host_ports.iter().any(is_host_port) {
        return Err("a hostPort, which the rules do not cover");
    }
    let served = match (&behind, net.holder(to.ip())) {
        (Some(_), _) if by == By::Rules => return Err("a service address, which the rules see as its backends"),
        (Some(frontend), _) => backends(net, frontend),
        (None, Some(space)) if !is_service || is_to_itself => vec![(space, to)],
        _ if allowed(row) => return Err("no endpoint can answer"),
        _ => Vec::new(),
    };
    Ok(Try { from, source, protocol, to, served, expected: allowed(row) })
}

fn backends<'n>(net: &'n Net, frontend: &Frontend) -> Vec<(&'n crate::namespace::Namespace, SocketAddr)> {
    frontend.backends.iter().filter_map(|at| Some((net.holder(at.ip())?, *at))).collect()
}

/// The address of an end in the given family.
fn address(cluster: &Cluster, end: &FlowEnd, v6: bool) -> Result<IpAddr, &'static str> {
    let named = end.endpoint.map(|id| cluster.endpoints[id.index()].addresses.as_slice()).unwrap_or_default();
    let mut all = end.address.iter().chain(named);
    all.find(|it| it.is_ipv6() == v6).copied().ok_or("an end without an address of the family")
}
