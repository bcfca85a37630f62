//! A deny list that contains addresses of the cluster itself.

use std::net::IpAddr;

use super::context::LintContext;
use super::cover::selects_all;
use super::words;
use weir_model::{AddressRanges, CidrList, EndpointId, ListAction, NodeId, ServiceId, Standing};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};

pub(super) static CODE: Code =
    Code::lint("list-hits-cluster", Severity::Warning, include_str!("list_hits_cluster.diff"))
        .what("A deny list for every pod contains addresses of the cluster's own pods, nodes or services.")
        .why(
            "Lists apply before policies, so no policy can allow what a list denies: pods may lose each other, or the \
         cluster's name servers. Public lists of bogus networks contain the private ranges that clusters use. The \
         lint ignores lists for selected pods, and addresses that an earlier list exempts.",
        );

/// The owner of an address. Ordered as in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressHolder {
    Endpoint(EndpointId),
    Node(NodeId),
    Service(ServiceId),
}

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let lists = &context.cluster.lists;
    if !lists.iter().any(|list| list.action == ListAction::Deny) {
        return;
    }
    let addresses = addresses(context);
    let mut exemptions: Vec<(&CidrList, AddressRanges)> = Vec::new();
    for list in lists {
        if context.is_spent(list.object) {
            return;
        }
        let ranges = AddressRanges::of(list).joined();
        match (list.action, applies_to_all(context, list)) {
            (_, false) => {}
            (ListAction::Allow, true) => exemptions.push((list, ranges)),
            (ListAction::Deny, true) => {
                let hits = hits(context, list, &ranges, &addresses, &exemptions);
                if let Some(diagnostic) = describe(context, list, &hits) {
                    found.push(diagnostic);
                }
            }
        }
    }
}

fn applies_to_all(context: &LintContext<'_>, list: &CidrList) -> bool {
    let labels = &context.cluster.labels;
    selects_all(labels, list.namespaces) && selects_all(labels, list.pods)
}

/// Every address of the cluster, sorted.
fn addresses(context: &LintContext<'_>) -> Vec<(IpAddr, AddressHolder)> {
    let cluster = context.cluster;
    let mut all = Vec::new();
    for (index, endpoint) in cluster.endpoints.iter().enumerate() {
        if endpoint.standing == Standing::Member {
            all.extend(endpoint.addresses.iter().map(|at| (*at, AddressHolder::Endpoint(EndpointId(index as u32)))));
        }
    }
    for (index, node) in cluster.nodes.iter().enumerate() {
        all.extend(node.addresses.iter().map(|at| (*at, AddressHolder::Node(NodeId(index as u32)))));
    }
    for (index, service) in cluster.services.iter().enumerate() {
        all.extend(service.addresses.iter().map(|at| (*at, AddressHolder::Service(ServiceId(index as u32)))));
    }
    all.sort_unstable();
    all
}

fn hits(
    context: &LintContext<'_>,
    list: &CidrList,
    ranges: &AddressRanges,
    addresses: &[(IpAddr, AddressHolder)],
    exemptions: &[(&CidrList, AddressRanges)],
) -> Vec<(IpAddr, AddressHolder)> {
    let exempt = |at: IpAddr| {
        exemptions.iter().any(|(allow, inside)| {
            let as_wide = (allow.ingress || !list.ingress) && (allow.egress || !list.egress);
            as_wide && inside.contains(at)
        })
    };
    let mut hits = Vec::new();
    for (first, last) in ranges.iter() {
        let start = addresses.partition_point(|(at, _)| at < first);
        let inside = addresses.iter().skip(start).take_while(|(at, _)| at <= last);
        hits.extend(inside.inspect(|_| context.spend(1)).filter(|(at, _)| !exempt(*at)));
    }
    hits
}

fn describe(context: &LintContext<'_>, list: &CidrList, hits: &[(IpAddr, AddressHolder)]) -> Option<Diagnostic> {
    let (address, holder) = hits.first()?;
    let entry = list.entries.iter().find(|entry| entry.contains(*address))?;
    let pods = hits.iter().filter(|(_, holder)| matches!(holder, AddressHolder::Endpoint(_))).count();
    let nodes = hits.iter().filter(|(_, holder)| matches!(holder, AddressHolder::Node(_))).count();
    let services = hits.len() - pods - nodes;
    let parts = [(pods, "pod"), (nodes, "node"), (services, "service")];
    let parts = parts.iter().filter(|(number, _)| *number > 0).map(|(number, noun)| words::count(*number, noun));
    let whose = parts.collect::<Vec<_>>().join(", ");
    let message = format!("deny list {} contains addresses of the cluster: of {whose}", list.name);
    Some(
        Diagnostic::at(&CODE, words::entry_origin(list, entry.position), message)
            .label(format!("contains {address} of {}", name(context, *holder)))
            .note("lists apply before policies: no policy can allow what this list denies")
            .help("exempt the cluster's addresses with an Allow list of a smaller order, or take them out of this one"),
    )
}

fn name(context: &LintContext<'_>, holder: AddressHolder) -> String {
    let cluster = context.cluster;
    match holder {
        AddressHolder::Endpoint(id) => words::endpoint(cluster, id),
        AddressHolder::Node(id) => format!("node {}", cluster.nodes[id.index()].name),
        AddressHolder::Service(id) => format!("service {}", cluster.service_name(id)),
    }
}
