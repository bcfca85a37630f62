//! A service claims an address that another object has or claims too.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::context::LintContext;
use super::words;
use weir_model::ServiceId;
use weir_model::directory::Directory;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::origin::FieldOrigin;

pub(super) static CODE: Code =
    Code::lint("service-address-contested", Severity::Warning, include_str!("service_address_contested.diff"))
        .what(
            "A service claims an address and port that another service claims too, or the address of a pod or another \
          service.",
        )
        .why(
            "Everybody who can create a Service can write any address into `externalIPs`, and the service proxy then \
          sends packets for other services and pods to this service. If there are several claims, which one the \
          proxy uses is chance. Policies treat a ClusterIP as an address of its own service. Any other port that \
          is claimed twice is allowed only if all of the services and the address itself are allowed.",
        );

/// The most claimants to name. Further claimants are only counted.
const MOST_NAMES: usize = 5;

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let directory = Directory::new(context.cluster);
    for (index, service) in context.cluster.services.iter().enumerate() {
        if context.is_spent(service.object) {
            return;
        }
        let id = ServiceId(index as u32);
        let rivals = |address: &IpAddr| Some((*address, rivals(context, &directory, id, *address)?));
        if let Some((address, rivals)) = service.addresses.iter().find_map(rivals) {
            found.push(describe(context, id, address, &rivals));
        }
    }
}

/// The other objects that have or claim an address of a service, in words; `None` if no other object does.
fn rivals(context: &LintContext<'_>, directory: &Directory<'_>, id: ServiceId, address: IpAddr) -> Option<Vec<String>> {
    let cluster = context.cluster;
    let at = cluster.frontend(address)?;
    context.spend(1 + at.ports.len());
    let owner = at.owner.filter(|owner| *owner != id);
    let pod = directory.endpoint_at(address).map(|pod| format!("{} has it", words::endpoint(cluster, pod)));
    let mut claimants: BTreeSet<ServiceId> = BTreeSet::new();
    for port in at.ports.iter().filter(|port| port.claims.iter().any(|(claimant, _)| *claimant == id)) {
        context.spend(port.claims.len());
        claimants
            .extend(port.claims.iter().map(|(claimant, _)| *claimant).filter(|it| *it != id && Some(*it) != owner));
    }
    let owner = owner.map(|it| format!("it is the ClusterIP of service {}", cluster.service_name(it)));
    let more = claimants.len().saturating_sub(MOST_NAMES);
    let named = claimants.iter().take(MOST_NAMES).map(|it| format!("service {} claims it", cluster.service_name(*it)));
    let mut found: Vec<String> = pod.into_iter().chain(owner).chain(named).collect();
    found.extend((more > 0).then(|| format!("{} more claim it", words::count(more, "service"))));
    (!found.is_empty()).then_some(found)
}

fn describe(context: &LintContext<'_>, id: ServiceId, address: IpAddr, rivals: &[String]) -> Diagnostic {
    let service = &context.cluster.services[id.index()];
    let name = context.cluster.service_name(id);
    let message = format!("service {name} shares {address} with others: {}", rivals.join(", "));
    Diagnostic::at(&CODE, FieldOrigin::object(service.object), message)
        .label(format!("claims {address}"))
        .note(
            "the service proxy may send packets for this address to any of these services. Policies treat a ClusterIP \
             as an address of its own service; another address is allowed only if all of the services and the address \
             itself are allowed",
        )
        .help("give each service its own addresses; the admission plug-in DenyServiceExternalIPs refuses `externalIPs`")
}
