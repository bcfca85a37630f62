//! A service of whose backends a pod may reach only some.
//!
//! Strategy: a rule treats all backends of a service port alike unless one of its peers *cuts* it (matches only some of
//! the backends) or the port is *uneven* (its backends differ in number or name of the port). Cuts are computed once
//! for each different peer. Only service ports that are cut or uneven are judged, backend by backend, as the reference
//! does. Address lists are ignored here: another lint reports lists that contain the cluster's own addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use super::cohorts::Cohort;
use super::context::LintContext;
use super::groups::{GroupId, is_on_host};
use super::words;
use weir_model::{
    Backend, Direction, EndpointId, IpBlockPods, NamespaceId, Peer, PolicyId, PortRule, Rule, ServiceId, ServicePort,
};
use weir_objects::address::{Family, Prefix};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::k8s::{PortMatch, Protocol};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code =
    Code::lint("service-partly-allowed", Severity::Warning, include_str!("service_partly_allowed.diff"))
        .what("A pod may reach some of a service's backends, but not all.")
        .why(
            "Weir sees a packet to a service's address before the service proxy chooses a backend, so it allows the \
          address only if every ready backend is allowed. Here it denies the address. An implementation that \
          decides after the choice would drop some of the connections, seemingly at random.",
        );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let mut service_ports = ServicePorts::new(context);
    let cohorts = context.cohorts();
    if service_ports.sizes.is_empty() || !cohorts.are_known(context) {
        return;
    }
    let mut partly: BTreeMap<ServicePortId, PartlyAllowed> = BTreeMap::new();
    for cohort in cohorts.all() {
        let Some(first) = cohort.egress.first() else { continue };
        if context.is_spent(context.cluster.policies[first.index()].object) {
            break;
        }
        for port_id in service_ports.doubtful(context, cohort) {
            add_finding(context, &service_ports, cohort, port_id, &mut partly);
        }
    }
    for (port_id, finding) in partly {
        found.push(finding.describe(context, port_id));
    }
}

/// A service and the index of one of its ports.
type ServicePortId = (ServiceId, usize);

/// The service ports that could be partly allowed: those with two backends or more.
struct ServicePorts {
    /// The number of backends of each service port.
    sizes: BTreeMap<ServicePortId, usize>,
    /// For each group, the number of its pods among the backends of each service port.
    by_group: BTreeMap<GroupId, BTreeMap<ServicePortId, usize>>,
    by_address: BTreeMap<IpAddr, BTreeSet<ServicePortId>>,
    uneven: BTreeSet<ServicePortId>,
    group_of: BTreeMap<EndpointId, GroupId>,
    cuts: HashMap<PeerKey, Rc<[ServicePortId]>>,
}

/// Identifies peers that match the same pods: with the policy's namespace if they match only there.
type PeerKey = (Option<NamespaceId>, Peer);

impl ServicePorts {
    fn new(context: &LintContext<'_>) -> Self {
        let mut it = Self {
            sizes: BTreeMap::new(),
            by_group: BTreeMap::new(),
            by_address: BTreeMap::new(),
            uneven: BTreeSet::new(),
            group_of: BTreeMap::new(),
            cuts: HashMap::new(),
        };
        for (service, body) in context.cluster.services.iter().enumerate() {
            for (index, port) in body.ports.iter().enumerate() {
                if port.backends.len() > 1 {
                    it.add(context, (ServiceId(service as u32), index), port);
                }
            }
        }
        it
    }

    fn add(&mut self, context: &LintContext<'_>, port_id: ServicePortId, port: &ServicePort) {
        self.sizes.insert(port_id, port.backends.len());
        for backend in &port.backends {
            if let Some(id) = member(context, backend)
                && let Some(group) = context.group_of(id)
            {
                *self.by_group.entry(group).or_default().entry(port_id).or_default() += 1;
                self.group_of.insert(id, group);
            }
            if let Some(address) = backend.address {
                self.by_address.entry(address).or_default().insert(port_id);
            }
        }
        let mut ports = port.backends.iter().map(|backend| (backend.port, port_names(context, port.protocol, backend)));
        let first = ports.next();
        if ports.any(|other| Some(&other) != first.as_ref()) {
            self.uneven.insert(port_id);
        }
    }

    /// The service ports whose backends the cohort's rules may treat differently.
    fn doubtful(&mut self, context: &LintContext<'_>, cohort: &Cohort) -> BTreeSet<ServicePortId> {
        let mut doubtful = BTreeSet::new();
        for (own, rule) in egress_rules(context, &cohort.egress) {
            if rule.peers.is_empty() && rule.ports.is_empty() {
                return BTreeSet::new();
            }
            if !rule.ports.is_empty() {
                doubtful.extend(&self.uneven);
            }
            for peer in &rule.peers {
                let cut = self.cut_by(context, own, peer);
                context.spend(1 + cut.len());
                doubtful.extend(cut.iter());
            }
        }
        doubtful
    }

    /// The service ports of which a peer matches only some backends, as far as addresses show.
    fn cut_by(&mut self, context: &LintContext<'_>, own: NamespaceId, peer: &Peer) -> Rc<[ServicePortId]> {
        let at_home = matches!(peer, Peer::Pods { namespaces: None, .. });
        let key = (at_home.then_some(own), peer.clone());
        if let Some(known) = self.cuts.get(&key) {
            return known.clone();
        }
        let mut matched: BTreeMap<ServicePortId, usize> = BTreeMap::new();
        match peer {
            Peer::Pods { .. } => {
                let groups = context.peer_groups(own, peer);
                context.spend(groups.len());
                for (port_id, backends) in groups.iter().filter_map(|id| self.by_group.get(id)).flatten() {
                    *matched.entry(*port_id).or_default() += backends;
                }
            }
            Peer::Block { cidr, except } => {
                let inside = self.by_address.range(cidr.address()..=cidr.last());
                for (_, service_ports) in inside.filter(|(at, _)| in_block(*cidr, except, **at)) {
                    context.spend(service_ports.len());
                    service_ports.iter().for_each(|port_id| *matched.entry(*port_id).or_default() += 1);
                }
            }
        }
        let is_cut = |(port_id, backends): &(ServicePortId, usize)| self.sizes.get(port_id) != Some(backends);
        let cut: Rc<[ServicePortId]> = matched.into_iter().filter(is_cut).map(|(port_id, _)| port_id).collect();
        self.cuts.insert(key, cut.clone());
        cut
    }
}

/// The names by which a rule may refer to a backend's port.
fn port_names<'c>(context: &LintContext<'c>, protocol: Protocol, backend: &Backend) -> BTreeSet<&'c str> {
    let endpoint = member(context, backend).and_then(|id| context.cluster.endpoints.get(id.index()));
    let ports = endpoint.map_or(&[][..], |it| &*it.named_ports);
    let same = ports.iter().filter(|port| port.protocol == protocol && port.number == backend.port);
    same.map(|port| port.name.as_str()).collect()
}

/// The details of a service port that is partly allowed.
struct PartlyAllowed {
    allowed: usize,
    backends: usize,
    /// One of the pods that may reach only some backends, and the number of all such pods.
    asker: EndpointId,
    pods: usize,
    denied: Backend,
    by: PolicyId,
    rule: usize,
}

fn add_finding(
    context: &LintContext<'_>,
    service_ports: &ServicePorts,
    cohort: &Cohort,
    port_id: ServicePortId,
    partly: &mut BTreeMap<ServicePortId, PartlyAllowed>,
) {
    let Some(port) = service_port(context, port_id) else { return };
    for family in [Family::V4, Family::V6] {
        let of_family = |it: &&Backend| it.address.map_or(family == Family::V4, |at| Family::of(at) == family);
        let backends: Vec<&Backend> = port.backends.iter().filter(of_family).collect();
        let allowed: Vec<Option<(PolicyId, usize)>> = backends
            .iter()
            .map(|backend| allowing_rule(context, service_ports, cohort, port.protocol, backend))
            .collect();
        let first_denied = allowed.iter().position(Option::is_none).and_then(|index| backends.get(index));
        let (Some(denied), Some((by, rule))) = (first_denied, allowed.iter().flatten().next()) else { continue };
        let pods: usize = cohort.groups.iter().map(|id| context.group(*id).pods).sum();
        let Some(asker) = cohort.groups.first().map(|id| context.group(*id).first) else { continue };
        let finding = partly.entry(port_id).or_insert_with(|| PartlyAllowed {
            allowed: allowed.iter().flatten().count(),
            backends: backends.len(),
            asker,
            pods: 0,
            denied: (*denied).clone(),
            by: *by,
            rule: *rule,
        });
        finding.pods += pods;
        return;
    }
}

fn service_port<'c>(context: &LintContext<'c>, (service, index): ServicePortId) -> Option<&'c ServicePort> {
    context.cluster.services.get(service.index())?.ports.get(index)
}

fn egress_rules<'c>(context: &LintContext<'c>, policies: &[PolicyId]) -> impl Iterator<Item = (NamespaceId, &'c Rule)> {
    let policies = policies.iter().filter_map(|id| context.cluster.policies.get(id.index()));
    policies.flat_map(|policy| policy.egress.iter().flatten().map(|rule| (policy.namespace, rule)))
}

fn allowing_rule(
    context: &LintContext<'_>,
    service_ports: &ServicePorts,
    cohort: &Cohort,
    protocol: Protocol,
    backend: &Backend,
) -> Option<(PolicyId, usize)> {
    for id in &cohort.egress {
        let policy = &context.cluster.policies[id.index()];
        for (index, rule) in policy.egress.iter().flatten().enumerate() {
            context.spend(1 + rule.peers.len() + rule.ports.len());
            let ports =
                rule.ports.is_empty() || rule.ports.iter().any(|it| port_matches(context, it, protocol, backend));
            if ports && peers_match(context, service_ports, policy.namespace, rule, backend) {
                return Some((*id, index));
            }
        }
    }
    None
}

fn port_matches(context: &LintContext<'_>, rule: &PortRule, protocol: Protocol, backend: &Backend) -> bool {
    rule.protocol == protocol
        && match &rule.port {
            PortMatch::Any => true,
            PortMatch::Range(first, last) => (*first..=*last).contains(&backend.port),
            PortMatch::Named(name) => port_names(context, protocol, backend).contains(name.as_str()),
        }
}

/// The backend's pod, unless policies ignore it.
fn member(context: &LintContext<'_>, backend: &Backend) -> Option<EndpointId> {
    backend.endpoint.filter(|id| !is_on_host(context.cluster, &context.cluster.endpoints[id.index()]))
}

fn peers_match(
    context: &LintContext<'_>,
    service_ports: &ServicePorts,
    own: NamespaceId,
    rule: &Rule,
    backend: &Backend,
) -> bool {
    let group = backend.endpoint.and_then(|id| service_ports.group_of.get(&id));
    rule.peers.is_empty()
        || rule.peers.iter().any(|peer| match peer {
            Peer::Pods { .. } => group.is_some_and(|group| context.peer_groups(own, peer).binary_search(group).is_ok()),
            Peer::Block { cidr, except } => {
                let open = group.is_none() || context.cluster.assume.ipblock_pods == IpBlockPods::Match;
                // A pod that is only a manifest has no address yet: the rule is assumed to match it.
                open && backend.address.is_none_or(|address| in_block(*cidr, except, address))
            }
        })
}

fn in_block(cidr: Prefix, except: &[Prefix], address: IpAddr) -> bool {
    cidr.contains(address) && !except.iter().any(|hole| hole.contains(address))
}

impl PartlyAllowed {
    fn describe(self, context: &LintContext<'_>, (service, index): ServicePortId) -> Diagnostic {
        let cluster = context.cluster;
        let (name, body) = (cluster.service_name(service), &cluster.services[service.index()]);
        let number = body.ports.get(index).map_or(0, |port| port.port);
        let policy = &cluster.policies[self.by.index()];
        let denied = match (self.denied.endpoint, self.denied.address) {
            (Some(id), _) => words::endpoint(cluster, id),
            (None, Some(address)) => address.to_string(),
            (None, None) => "another backend".to_owned(),
        };
        let (allowed, backends, port) = (self.allowed, self.backends, self.denied.port);
        let asker = words::endpoint(cluster, self.asker);
        let message =
            format!("port {number} of service {name} is only partly allowed: {allowed} of {backends} backends");
        let path = FieldPath::root().field("spec").field("ports").index(index);
        Diagnostic::at(&CODE, policy.rule_origin(Direction::Egress, self.rule), message)
            .label("allows some of the backends")
            .also(FieldOrigin::new(body.object, path), "the service's address is denied as a whole")
            .note(format!(
                "{} may not reach {denied} on port {port}; for example {asker}",
                words::count(self.pods, "pod")
            ))
            .help(format!("allow {denied} too, or make a separate service for the allowed backends"))
    }
}
