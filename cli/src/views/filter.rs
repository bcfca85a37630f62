//! `--focus`, `--from`, `--to`, `--port`, `--selector`, `--namespace` and `--direction`: the part of an answer that is shown.
//!
//! Invariants: a filter removes rows and never changes one; each output says that it is filtered; exit codes and gates
//! are about the whole input.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Result, anyhow};
use weir_analysis::reach::edges::PairFilter;
use weir_analysis::reach::{CellCache, Passes, Reach, ReachEnd, workload_of};
use weir_analysis::world::DescribedPod;
use weir_classes::Atoms;
use weir_model::directory::Directory;
use weir_model::eval::FlowProtocol;
use weir_model::labels::matches;
use weir_model::{Cluster, EndpointId, NamespaceId, Protocol, Service};
use weir_objects::k8s::LabelSelector;
use weir_policy::answers::ShownPart;
use weir_policy::endpoint_lookup::{EndpointLookup, NamedObject, parse_ip, parse_protocol};
use weir_policy::possible_pods;
use weir_policy::similar_name::most_similar;

use crate::args::{FilterArgs, FilterDirection, GlobalArgs, InputOptions};
use crate::failure::with_hint;
use crate::views::label_filter;

/// The chosen part of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct ViewFilter {
    pub(crate) focus: Option<SelectedEnds>,
    pub(crate) from: Option<SelectedEnds>,
    pub(crate) to: Option<SelectedEnds>,
    pub(crate) selector: Option<SelectedEnds>,
    pub(crate) namespaces: Vec<String>,
    pub(crate) port: Option<FilterPort>,
    pub(crate) direction: Option<FilterDirection>,
    /// The options as they were written.
    options: String,
}

/// The ends that an option names.
#[derive(Clone, Debug, Default)]
pub(crate) struct SelectedEnds {
    /// The endpoints of each cluster of the answer.
    pub(crate) endpoints: Vec<BTreeSet<EndpointId>>,
    /// A selector of labels, for pods that could exist.
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) namespace: Option<String>,
    /// The address outside that was named.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The addresses of the service that was named.
    pub(crate) services: BTreeSet<IpAddr>,
    pub(crate) described: Option<DescribedPod>,
}

/// A destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterPort {
    Transport(Protocol, u16),
    /// Protocols without ports.
    Portless,
}

impl ViewFilter {
    /// The filter of a command about these clusters. A name has to exist in one of them.
    ///
    /// `-n` names the namespace that is shown, as in kubectl. With `-A` it is only that of names without one.
    pub(crate) fn new(
        global: &GlobalArgs,
        input: &InputOptions,
        asked: &FilterArgs,
        clusters: &[&Cluster],
        default: &str,
    ) -> Result<Self> {
        let shown = if input.all_namespaces { &[][..] } else { &global.namespace };
        let ends = |option: &str, text: &Option<String>| -> Result<Option<SelectedEnds>> {
            let resolver = EndResolver { clusters, default_namespace: default };
            let found = text.as_deref().map(|it| resolver.ends(it)).transpose();
            found.map_err(|error| error.context(format!("--{option} cannot be followed")))
        };
        let resolver = EndResolver { clusters, default_namespace: default };
        let namespaces = shown.iter().map(|it| resolver.namespace(it)).collect::<Result<_>>()?;
        let mut options = Vec::new();
        let written = [("focus", &asked.focus), ("from", &asked.from), ("to", &asked.to), ("port", &asked.port)];
        options.extend(written.iter().filter_map(|(name, text)| Some(format!("--{name} {}", text.as_deref()?))));
        options.extend(asked.selector.iter().map(|it| format!("--selector {it}")));
        options.extend(shown.iter().map(|it| format!("--namespace {it}")));
        options.extend(asked.direction.map(|it| match it {
            FilterDirection::Ingress => "--direction ingress".to_owned(),
            FilterDirection::Egress => "--direction egress".to_owned(),
        }));
        Ok(Self {
            focus: ends("focus", &asked.focus)?,
            from: ends("from", &asked.from)?,
            to: ends("to", &asked.to)?,
            selector: asked.selector.as_deref().map(|it| resolver.selected(it)).transpose()?,
            namespaces,
            port: asked.port.as_deref().map(parse_port).transpose()?,
            direction: asked.direction,
            options: options.join(" "),
        })
    }

    /// Refuses a direction without anything that it is a direction of.
    pub(crate) fn check_direction(&self) -> Result<()> {
        if self.direction.is_some() && self.focus.is_none() && self.selector.is_none() && self.namespaces.is_empty() {
            return Err(with_hint(
                "--direction says nothing by itself: ingress to what, or egress from what?",
                "add --focus or --namespace or --selector, or use --from or --to",
            ));
        }
        Ok(())
    }

    pub(crate) fn is_active(&self) -> bool {
        !self.options.is_empty()
    }

    /// Whether single ends are asked about, and not only a namespace.
    pub(crate) fn names_ends(&self) -> bool {
        let is_small = |it: &Option<SelectedEnds>| it.as_ref().is_some_and(|it| it.namespace.is_none());
        is_small(&self.focus) || is_small(&self.from) || is_small(&self.to)
    }

    /// `shown: 12 of 340 rows (--focus shop/db)`
    pub(crate) fn sentence(&self, shown: usize, all: usize, what: &str) -> String {
        format!("shown: {shown} of {all} {what} ({})", self.options)
    }

    /// The same for programs.
    pub(crate) fn json(&self, shown: usize, all: usize) -> ShownPart {
        ShownPart { options: self.options.clone(), shown, of: all }
    }

    /// Whether traffic between two ends is shown. `is` says whether an end is among the selected ones, `lives_in`
    /// whether it is in a namespace.
    pub(crate) fn takes<E: ?Sized>(
        &self,
        from: &E,
        to: &E,
        is: &dyn Fn(&SelectedEnds, &E) -> bool,
        lives_in: &dyn Fn(&str, &E) -> bool,
    ) -> bool {
        let touches = |wanted: &dyn Fn(&E) -> bool| match self.direction {
            None => wanted(from) || wanted(to),
            Some(FilterDirection::Ingress) => wanted(to),
            Some(FilterDirection::Egress) => wanted(from),
        };
        self.from.as_ref().is_none_or(|it| is(it, from))
            && self.to.as_ref().is_none_or(|it| is(it, to))
            && self.focus.as_ref().is_none_or(|it| touches(&|end| is(it, end)))
            && self.selector.as_ref().is_none_or(|it| touches(&|end| is(it, end)))
            && (self.namespaces.is_empty() || touches(&|end| self.namespaces.iter().any(|it| lives_in(it, end))))
    }

    /// Whether an end is what `--to`, `--focus` or `--namespace` names.
    pub(crate) fn takes_subject<E: ?Sized>(
        &self,
        end: &E,
        is: &dyn Fn(&SelectedEnds, &E) -> bool,
        lives_in: &dyn Fn(&str, &E) -> bool,
    ) -> bool {
        self.to.as_ref().is_none_or(|it| is(it, end))
            && self.focus.as_ref().is_none_or(|it| is(it, end))
            && self.selector.as_ref().is_none_or(|it| is(it, end))
            && (self.namespaces.is_empty() || self.namespaces.iter().any(|it| lives_in(it, end)))
    }

    /// Whether all traffic to the ends that the filter names is shown, so that a missing source is a fact about them.
    fn shows_all_ingress(&self) -> bool {
        self.from.is_none() && self.port.is_none() && self.direction != Some(FilterDirection::Egress)
    }
}

/// A filter on the ends of a [`Reach`].
#[derive(Clone, Copy)]
pub(crate) struct ReachFilter<'f> {
    pub(crate) filter: &'f ViewFilter,
    pub(crate) reach: &'f Reach<'f>,
}

impl ReachFilter<'_> {
    /// Whether an end is among the selected ones.
    pub(crate) fn is(&self, selected: &SelectedEnds, end: ReachEnd) -> bool {
        match end {
            ReachEnd::Party(index) => {
                let party = &self.reach.parties[index as usize];
                selected.namespace.as_deref() == Some(self.reach.namespace(party.namespace))
                    || selected.endpoints.iter().any(|of| party.members.iter().any(|it| of.contains(it)))
            }
            ReachEnd::Zone(index) => {
                let ranges = &self.reach.zones[index as usize].ranges;
                selected.addresses.iter().any(|at| {
                    ranges.iter().any(|(first, last)| at.is_ipv4() == first.is_ipv4() && first <= at && at <= last)
                })
            }
        }
    }

    pub(crate) fn lives_in(&self, namespace: &str, end: ReachEnd) -> bool {
        match end {
            ReachEnd::Party(index) => self.reach.namespace(self.reach.parties[index as usize].namespace) == namespace,
            ReachEnd::Zone(_) => false,
        }
    }

    /// Whether an end's exposure is shown.
    pub(crate) fn takes_subject(&self, end: ReachEnd) -> bool {
        self.filter.takes_subject(&end, &|it, end| self.is(it, *end), &|it, end| self.lives_in(it, *end))
    }

    /// Whether traffic between two groups of ends is shown.
    pub(crate) fn takes_places(&self, from: &[ReachEnd], to: &[ReachEnd]) -> bool {
        let is = |selected: &SelectedEnds, ends: &[ReachEnd]| ends.iter().any(|it| self.is(selected, *it));
        let lives_in = |namespace: &str, ends: &[ReachEnd]| ends.iter().any(|it| self.lives_in(namespace, *it));
        self.filter.takes(from, to, &is, &lives_in)
    }

    /// Whether traffic contains the port that is asked about.
    pub(crate) fn has_port(&self, cells: &CellCache<'_>, passes: Passes) -> bool {
        let Some(port) = self.filter.port else { return true };
        let atom = match port {
            FilterPort::Transport(protocol, port) => self.reach.classes.atoms.find(protocol, port),
            FilterPort::Portless => Atoms::REST,
        };
        match passes {
            Passes::Cell(cell) => cells.set(cell).contains(atom),
            Passes::ByFamily(v4, v6) => cells.set(v4).contains(atom) || cells.set(v6).contains(atom),
        }
    }
}

impl PairFilter for ReachFilter<'_> {
    fn takes(&self, cells: &CellCache<'_>, from: ReachEnd, to: ReachEnd, passes: Passes) -> bool {
        let is_asked = self.filter.takes(&from, &to, &|it, end| self.is(it, *end), &|it, end| self.lives_in(it, *end));
        is_asked && self.has_port(cells, passes)
    }

    fn takes_destination(&self, to: ReachEnd) -> bool {
        self.filter.shows_all_ingress() && self.takes_subject(to)
    }
}

/// `80`, `53/udp`, `icmp`
fn parse_port(text: &str) -> Result<FilterPort> {
    let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    if let Ok(FlowProtocol::Icmp) = parse_protocol(text) {
        return Ok(FilterPort::Portless);
    }
    match (number.parse::<u16>(), parse_protocol(protocol)) {
        (Ok(number), Ok(FlowProtocol::Transport(protocol))) if number > 0 => {
            Ok(FilterPort::Transport(protocol, number))
        }
        _ => Err(with_hint(
            format!("--port: `{text}` is not a port"),
            "a port is 1 to 65535, with its protocol if that is not TCP: 80, 53/udp; icmp stands for traffic without ports",
        )),
    }
}

/// Finds ends by the names that users write.
struct EndResolver<'r> {
    clusters: &'r [&'r Cluster],
    default_namespace: &'r str,
}

impl EndResolver<'_> {
    /// The namespace of this name.
    fn namespace(&self, name: &str) -> Result<String> {
        if self.clusters.iter().any(|it| it.namespaces.iter().any(|it| it.name == name)) {
            return Ok(name.to_owned());
        }
        let known = self.clusters.iter().flat_map(|it| it.namespaces.iter().map(|it| it.name.as_str()));
        Err(unknown(format!("there is no namespace {name} in the input"), most_similar(name, known)))
    }

    fn ends(&self, text: &str) -> Result<SelectedEnds> {
        if let Ok(address) = parse_ip(text) {
            let at = |cluster: &&Cluster| Directory::new(cluster).endpoint_at(address).into_iter().collect();
            let endpoints: Vec<BTreeSet<EndpointId>> = self.clusters.iter().map(at).collect();
            // Ranges of outside addresses can contain a pod's address, which belongs to the pod alone.
            let is_outside = endpoints.iter().any(BTreeSet::is_empty);
            let addresses = is_outside.then_some(address).into_iter().collect();
            let services = BTreeSet::from([address]);
            return Ok(SelectedEnds { endpoints, addresses, services, ..SelectedEnds::default() });
        }
        if let Some(described) = possible_pods::parse(text) {
            let described = described.map_err(|reason| anyhow!(reason))?;
            self.namespace(&described.namespace)?;
            let endpoints = self.clusters.iter().map(|it| labelled(it, &described)).collect();
            return Ok(SelectedEnds { endpoints, described: Some(described), ..SelectedEnds::default() });
        }
        if let Some((kind, name)) = text.split_once('/')
            && ["namespace", "namespaces", "ns"].contains(&kind)
        {
            return Ok(SelectedEnds { namespace: Some(self.namespace(name)?), ..SelectedEnds::default() });
        }
        let found: Vec<SelectedEnds> = self.clusters.iter().map(|it| self.named(it, text)).collect();
        let mut all = SelectedEnds::default();
        for it in found {
            all.endpoints.extend(it.endpoints);
            all.services.extend(it.services);
        }
        if all.endpoints.iter().any(|it| !it.is_empty()) || !all.services.is_empty() {
            return Ok(all);
        }
        if let Ok(namespace) = self.namespace(text) {
            return Ok(SelectedEnds { namespace: Some(namespace), ..SelectedEnds::default() });
        }
        let known: BTreeSet<String> = self.clusters.iter().flat_map(|it| self.known(it)).collect();
        let similar = most_similar(text, known.iter().map(String::as_str));
        Err(unknown(format!("there is no pod, workload, service or namespace {text} in the input"), similar))
    }

    /// The pods and workloads that a selector of labels matches, and the services in front of them.
    fn selected(&self, text: &str) -> Result<SelectedEnds> {
        let selector = label_filter::parse(text).map_err(|reason| anyhow!("--selector: {reason}"))?;
        let mut selected = SelectedEnds::default();
        for cluster in self.clusters {
            let has = |id: &EndpointId| {
                let labels = cluster.labels.labels(cluster.endpoints[id.index()].labels);
                matches(&selector, labels)
            };
            let endpoints: BTreeSet<EndpointId> = ids(cluster).filter(has).collect();
            let is_in_front = |it: &&Service| {
                let mut backends = it.ports.iter().flat_map(|it| &it.backends).filter_map(|it| it.endpoint);
                backends.any(|it| endpoints.contains(&it))
            };
            let services = cluster.services.iter().filter(is_in_front).flat_map(|it| it.addresses.iter().copied());
            selected.services.extend(services);
            selected.endpoints.push(endpoints);
        }
        Ok(SelectedEnds { selector: Some(selector), ..selected })
    }

    /// The pod, service or workload of a name in one cluster.
    fn named(&self, cluster: &Cluster, text: &str) -> SelectedEnds {
        let lookup = EndpointLookup { cluster, default_namespace: self.default_namespace };
        match lookup.named(&Directory::new(cluster), text) {
            Ok(NamedObject::Endpoint(id)) => {
                SelectedEnds { endpoints: vec![BTreeSet::from([id])], ..SelectedEnds::default() }
            }
            Ok(NamedObject::Service(id)) => {
                let service = &cluster.services[id.index()];
                let backends = service.ports.iter().flat_map(|it| &it.backends).filter_map(|it| it.endpoint);
                let services = service.addresses.iter().copied().collect();
                SelectedEnds { endpoints: vec![backends.collect()], services, ..SelectedEnds::default() }
            }
            Err(_) => {
                let members = ids(cluster).filter(|id| self.is_workload(cluster, *id, text)).collect();
                SelectedEnds { endpoints: vec![members], ..SelectedEnds::default() }
            }
        }
    }

    /// Whether a pod belongs to the workload `NAME`, `NAMESPACE/NAME` or `KIND/NAMESPACE/NAME`.
    fn is_workload(&self, cluster: &Cluster, id: EndpointId, text: &str) -> bool {
        let endpoint = &cluster.endpoints[id.index()];
        let Some((kind, name)) = workload_of(cluster, endpoint) else { return false };
        let namespace = namespace_name(cluster, endpoint.namespace);
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [wanted] => namespace == self.default_namespace && wanted == name,
            [place, wanted] => {
                let is_kind = place.eq_ignore_ascii_case(&kind) && namespace == self.default_namespace;
                (place == namespace || is_kind) && wanted == name
            }
            [of, place, wanted] => of.eq_ignore_ascii_case(&kind) && place == namespace && wanted == name,
            _ => false,
        }
    }

    fn known(&self, cluster: &Cluster) -> Vec<String> {
        let mut known: Vec<String> = cluster.namespaces.iter().map(|it| it.name.clone()).collect();
        known.extend(ids(cluster).map(|id| cluster.endpoint_name(id)));
        known.extend(cluster.endpoints.iter().filter_map(|it| {
            let (_, name) = workload_of(cluster, it)?;
            Some(format!("{}/{name}", namespace_name(cluster, it.namespace)))
        }));
        known.extend((0..cluster.services.len() as u32).map(|it| cluster.service_name(weir_model::ServiceId(it))));
        known
    }
}

fn ids(cluster: &Cluster) -> impl Iterator<Item = EndpointId> + use<> {
    (0..cluster.endpoints.len() as u32).map(EndpointId)
}

fn namespace_name(cluster: &Cluster, id: NamespaceId) -> &str {
    &cluster.namespaces[id.index()].name
}

/// The endpoints of a description: those that have at least its labels.
fn labelled(cluster: &Cluster, described: &DescribedPod) -> BTreeSet<EndpointId> {
    let has = |id: &EndpointId| {
        let endpoint = &cluster.endpoints[id.index()];
        let labels = cluster.labels.labels(endpoint.labels);
        namespace_name(cluster, endpoint.namespace) == described.namespace
            && described.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    ids(cluster).filter(has).collect()
}

/// Whether a selector of namespaces selects the namespace of this name in one of the clusters.
pub(crate) fn selects_namespace(clusters: [&Cluster; 2], selector: &LabelSelector, name: &str) -> bool {
    clusters.into_iter().any(|cluster| {
        let found = cluster.namespaces.iter().find(|it| it.name == name);
        found.is_some_and(|it| matches(selector, cluster.labels.labels(it.labels)))
    })
}

fn unknown(message: String, similar: Option<&str>) -> anyhow::Error {
    match similar {
        Some(name) => with_hint(message, format!("did you mean `{name}`?")),
        None => with_hint(
            message,
            "write a namespace, NAME, NAMESPACE/NAME, KIND/NAMESPACE/NAME, an address, or NAMESPACE/KEY=VALUE",
        ),
    }
}
