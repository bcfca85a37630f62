//! Finds pods, workloads and services by name and address, and makes them the ends of a flow: [`FlowEnd`]s of one
//! family.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_model::controllers::{VOLATILE_LABELS, controller_of};
use weir_model::directory::Directory;
use weir_model::eval::{FlowEnd, FlowProtocol};
use weir_model::labels::{SelectorId, matches};
use weir_model::{Cluster, Endpoint, EndpointId, Peer, Protocol, ServiceId, Standing, TierPeer};
use weir_objects::address::Family;

use crate::similar_name::most_similar;

/// Kinds that endpoints may have, with the names that kubectl takes for them.
const KINDS: [(&str, &[&str]); 8] = [
    ("Pod", &["pod", "pods", "po"]),
    ("Deployment", &["deployment", "deployments", "deploy"]),
    ("StatefulSet", &["statefulset", "statefulsets", "sts"]),
    ("DaemonSet", &["daemonset", "daemonsets", "ds"]),
    ("ReplicaSet", &["replicaset", "replicasets", "rs"]),
    ("ReplicationController", &["replicationcontroller", "replicationcontrollers", "rc"]),
    ("Job", &["job", "jobs"]),
    ("CronJob", &["cronjob", "cronjobs", "cj"]),
];
const SERVICE: &[&str] = &["service", "services", "svc"];

/// The object that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedObject {
    /// A pod or a workload.
    Endpoint(EndpointId),
    /// A service.
    Service(ServiceId),
}

/// Finds ends by name and address.
#[derive(Clone, Copy)]
pub struct EndpointLookup<'c> {
    /// The cluster that is searched.
    pub cluster: &'c Cluster,
    /// The namespace of names without one.
    pub default_namespace: &'c str,
}

impl<'c> EndpointLookup<'c> {
    /// The pod or workload of this name. A workload that is not in the input is one of its pods.
    pub fn endpoint(&self, directory: &Directory<'c>, text: &str) -> Result<EndpointId, String> {
        let text = &*as_typed(text);
        if text.split_once('/').is_some_and(|(address, _)| address.parse::<IpAddr>().is_ok()) {
            return Err(format!("`{text}` is a block of addresses: name one address of it"));
        }
        let mut parts = text.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(name), None, ..) => self.any_kind(directory, self.default_namespace, name),
            (Some(first), Some(name), None, _) => self.any_kind(directory, first, name).or_else(|reason| {
                // kubectl's way to write it: deploy/web.
                let kind = kind_named(first).ok_or(reason)?;
                self.of_kind(directory, kind, self.default_namespace, name)
            }),
            (Some(kind), Some(namespace), Some(name), None) => {
                let known = kind_named(kind).ok_or_else(|| format!("`{kind}` is not a kind of pod or workload"))?;
                self.of_kind(directory, known, namespace, name)
            }
            _ => Err(format!("`{text}` is not a name: write namespace/name")),
        }
    }

    /// The pod, workload or service of this name; an endpoint before a service.
    pub fn named(&self, directory: &Directory<'c>, text: &str) -> Result<NamedObject, String> {
        let text = &*as_typed(text);
        let parts: Vec<&str> = text.split('/').collect();
        let is_service = |kind: &str| SERVICE.iter().any(|it| kind.eq_ignore_ascii_case(it));
        let service = |namespace, name| directory.service_named(namespace, name).map(NamedObject::Service);
        let by_kind = match parts[..] {
            [kind, namespace, name] if is_service(kind) => Some((namespace, name)),
            [kind, name] if is_service(kind) && service(kind, name).is_none() => Some((self.default_namespace, name)),
            _ => None,
        };
        if let Some((namespace, name)) = by_kind {
            return service(namespace, name).ok_or_else(|| format!("there is no service {namespace}/{name}"));
        }
        let found = self.endpoint(directory, text).map(NamedObject::Endpoint);
        found.or_else(|reason| {
            let service = match parts[..] {
                [name] => service(self.default_namespace, name),
                [namespace, name] => service(namespace, name),
                _ => None,
            };
            service.ok_or(reason)
        })
    }

    /// The service with the same name as the endpoint that a text refers to.
    pub fn namesake(&self, directory: &Directory<'c>, text: &str) -> Option<ServiceId> {
        let Ok(NamedObject::Endpoint(_)) = self.named(directory, text) else { return None };
        match text.split('/').collect::<Vec<_>>()[..] {
            [name] => directory.service_named(self.default_namespace, name),
            [namespace, name] => directory.service_named(namespace, name),
            _ => None,
        }
    }

    /// The name of an endpoint or service that is most similar to this one, or the same name in another namespace.
    pub fn similar_name(&self, text: &str) -> Option<String> {
        let name = text.rsplit('/').next().unwrap_or(text);
        let wanted = if text.contains('/') { text.to_owned() } else { format!("{}/{text}", self.default_namespace) };
        let endpoints = (0..self.cluster.endpoints.len() as u32).map(|id| self.cluster.endpoint_name(EndpointId(id)));
        let services = (0..self.cluster.services.len() as u32).map(|id| self.cluster.service_name(ServiceId(id)));
        let workloads = self.cluster.endpoints.iter().filter_map(|endpoint| {
            let namespace = &self.cluster.namespaces[endpoint.namespace.index()].name;
            Some(format!("{namespace}/{}", controller_of(self.cluster, endpoint)?.name))
        });
        let known: BTreeSet<String> = endpoints.chain(services).chain(workloads).collect();
        let elsewhere = || known.iter().find(|it| it.rsplit('/').next() == Some(name)).map(String::as_str);
        most_similar(&wanted, known.iter().map(String::as_str)).or_else(elsewhere).map(str::to_owned)
    }

    /// `did you mean `shop/web`?`, for a name that is not found; `None` if no known name is similar.
    pub fn did_you_mean(&self, text: &str) -> Option<String> {
        Some(format!("did you mean `{}`?", self.similar_name(text)?))
    }

    fn any_kind(&self, directory: &Directory<'c>, namespace: &str, name: &str) -> Result<EndpointId, String> {
        let kind = |id: &EndpointId| self.cluster.endpoints[id.index()].kind.as_ref();
        match directory.endpoints_named(namespace, name) {
            [] => self.pod_of_workload(directory, None, namespace, name),
            [only] => Ok(*only),
            // If a pod and a workload have the same name, the pod is meant.
            [first, ..] if kind(first) == "Pod" => Ok(*first),
            several => {
                let names = several.iter().map(|id| format!("{}/{namespace}/{name}", kind(id).to_lowercase()));
                Err(format!("{namespace}/{name} is ambiguous: it may be {}", names.collect::<Vec<_>>().join(" or ")))
            }
        }
    }

    fn of_kind(
        &self,
        directory: &Directory<'c>,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<EndpointId, String> {
        let mut named = directory.endpoints_named(namespace, name).iter();
        let found = named.find(|id| self.cluster.endpoints[id.index()].kind == kind).copied();
        found.map_or_else(|| self.pod_of_workload(directory, Some(kind), namespace, name), Ok)
    }

    /// One pod of a workload that is not in the input, or of pods without a controller that tables show together, by the
    /// beginning of their names or a label. The pods must be alike, so that the answer for one of them is the answer for each.
    fn pod_of_workload(
        &self,
        directory: &Directory<'c>,
        kind: Option<&str>,
        namespace: &str,
        name: &str,
    ) -> Result<EndpointId, String> {
        let endpoint = |id: EndpointId| &self.cluster.endpoints[id.index()];
        let mut pods = match (name.strip_suffix("-*"), name.split_once('=')) {
            (Some(stem), _) => self.pods_without_controller(namespace, |pod| {
                pod.name.strip_prefix(stem).is_some_and(|rest| rest.starts_with('-'))
            }),
            (None, Some((key, value))) => self.pods_without_controller(namespace, |pod| {
                self.cluster.labels.labels(pod.labels).get(key).is_some_and(|it| it == value)
            }),
            (None, None) => directory.controlled_by(namespace, name).to_vec(),
        };
        let controller = |id: &EndpointId| controller_of(self.cluster, endpoint(*id)).map(|it| it.kind);
        pods.retain(|id| kind.is_none_or(|kind| controller(id) == Some(kind)));
        let kinds: BTreeSet<&str> = pods.iter().filter_map(controller).collect();
        if kinds.len() > 1 {
            let names = kinds.iter().map(|kind| format!("{}/{namespace}/{name}", kind.to_lowercase()));
            return Err(format!(
                "{namespace}/{name} is ambiguous: it may be {}",
                names.collect::<Vec<_>>().join(" or ")
            ));
        }
        // Pods that have ended or have no address yet are used only if there are no others.
        let is_live = |id: &EndpointId| {
            endpoint(*id).standing == Standing::Member
                && !endpoint(*id).addresses.is_empty()
                && !endpoint(*id).terminating
        };
        if pods.iter().any(is_live) {
            pods.retain(is_live);
        }
        let Some(first) = pods.first().copied() else {
            return Err(match kind {
                Some(kind) => format!("there is no {} {namespace}/{name}", kind.to_lowercase()),
                None => format!("there is no pod or workload {namespace}/{name}"),
            });
        };
        match pods.iter().find(|id| !self.are_alike(first, **id)) {
            None => Ok(first),
            Some(other) => {
                let [first, other] = [first, *other].map(|id| self.cluster.endpoint_name(id));
                Err(format!(
                    "the pods of {namespace}/{name} differ in labels, ports or blocks of addresses: name one, such as {first} or {other}"
                ))
            }
        }
    }

    fn pods_without_controller(&self, namespace: &str, is_one: impl Fn(&Endpoint) -> bool) -> Vec<EndpointId> {
        let endpoints = (0..).map(EndpointId).zip(&self.cluster.endpoints);
        let is_one = |(_, pod): &(EndpointId, &Endpoint)| {
            let is_in = self.cluster.namespaces[pod.namespace.index()].name == namespace;
            is_in && pod.kind == "Pod" && pod.owner.is_none() && is_one(pod)
        };
        endpoints.filter(is_one).map(|(id, _)| id).collect()
    }

    /// Whether two pods differ only in labels that controllers give to single pods, and no policy selects such a label.
    fn are_alike(&self, a: EndpointId, b: EndpointId) -> bool {
        let [a, b] = [a, b].map(|id| &self.cluster.endpoints[id.index()]);
        let labels = |of: &Endpoint| {
            let labels = self.cluster.labels.labels(of.labels).iter();
            labels.filter(|(key, _)| !VOLATILE_LABELS.contains(key)).collect::<Vec<_>>()
        };
        a.standing == b.standing
            && a.named_ports == b.named_ports
            && (a.labels == b.labels || labels(a) == labels(b))
            && !self.selectors_tell_apart(a, b)
            && !self.blocks_tell_apart(a, b)
    }

    fn selectors_tell_apart(&self, a: &Endpoint, b: &Endpoint) -> bool {
        let labelling = &self.cluster.labels;
        let [a_has, b_has] = [a, b].map(|it| labelling.labels(it.labels));
        let mut selectors = (0..labelling.selector_count() as u32).map(|id| labelling.selector(SelectorId(id)));
        a.labels != b.labels && selectors.any(|it| matches(it, a_has) != matches(it, b_has))
    }

    /// Whether a block of a policy contains addresses of only one of the pods. Lists are left out: they may have
    /// too many entries.
    fn blocks_tell_apart(&self, a: &Endpoint, b: &Endpoint) -> bool {
        let differ = |is_in: &dyn Fn(IpAddr) -> bool| {
            let [a, b] = [a, b].map(|it| it.addresses.iter().any(|address| is_in(*address)));
            a != b
        };
        let Cluster { policies, audit, tiers, .. } = self.cluster;
        let rules = policies.iter().chain(audit).flat_map(|it| it.ingress.iter().chain(&it.egress).flatten());
        let in_policies = rules.flat_map(|it| &it.peers).any(|peer| match peer {
            Peer::Block { cidr, except } => {
                differ(&|it| cidr.contains(it) && !except.iter().any(|hole| hole.contains(it)))
            }
            Peer::Pods { .. } => false,
        });
        let matched =
            tiers.iter().flat_map(|it| it.ingress.iter().chain(&it.egress)).filter_map(|it| it.matched.as_ref());
        in_policies
            || matched.flat_map(|it| &it.peers).any(|peer| match peer {
                TierPeer::Networks(networks) => differ(&|it| networks.iter().any(|network| network.contains(it))),
                TierPeer::Pods { .. } | TierPeer::Nodes(_) => false,
            })
    }

    /// An end by name, by address, or by both; the address must then be one of the endpoint's, if it has any.
    pub fn end(&self, directory: &Directory<'c>, pod: Option<&str>, ip: Option<&str>) -> Result<FlowEnd, String> {
        let address = ip.map(parse_ip).transpose()?;
        let endpoint = match (pod, address) {
            (Some(name), _) => Some(self.endpoint(directory, name)?),
            (None, Some(address)) => directory.endpoint_at(address),
            (None, None) => return Err("neither `pod` nor `ip` is given (a service has an `ip` too)".to_owned()),
        };
        if let (Some(name), Some(id), Some(address)) = (pod, endpoint, address) {
            let addresses = &self.cluster.endpoints[id.index()].addresses;
            if !addresses.is_empty() && !addresses.contains(&address) {
                return Err(format!("{address} is not an address of {name}"));
            }
        }
        Ok(FlowEnd { endpoint, address })
    }

    /// Gives an address to ends that are only named, so that both ends have one family: a packet has only one, and
    /// `ipBlock` rules are about addresses.
    pub fn choose_addresses(&self, source: FlowEnd, destination: FlowEnd) -> Result<(FlowEnd, FlowEnd), String> {
        let (from, to) = (self.addresses(&source), self.addresses(&destination));
        let family = match (source.address, destination.address) {
            (Some(a), _) if to.is_empty() => Family::of(a),
            (_, Some(b)) if from.is_empty() => Family::of(b),
            _ => {
                let both = |at: &&IpAddr| to.is_empty() || to.iter().any(|it| Family::of(*it) == Family::of(**at));
                match from.iter().find(both).or(to.first().filter(|_| from.is_empty())) {
                    Some(address) => Family::of(*address),
                    None if from.is_empty() => return Ok((source, destination)),
                    None => return Err("source and destination have no address family in common".to_owned()),
                }
            }
        };
        let choose = |end: FlowEnd, addresses: &[IpAddr]| {
            let of_family = addresses.iter().copied().find(|it| Family::of(*it) == family);
            FlowEnd { address: end.address.or(of_family), ..end }
        };
        Ok((choose(source, from), choose(destination, to)))
    }

    /// The addresses that an end may use.
    fn addresses<'e>(&self, end: &'e FlowEnd) -> &'e [IpAddr]
    where
        'c: 'e,
    {
        match (&end.address, end.endpoint) {
            (Some(address), _) => std::slice::from_ref(address),
            (None, Some(id)) => &self.cluster.endpoints[id.index()].addresses,
            (None, None) => &[],
        }
    }
}

/// A name in a form that tables and reports print, as a user would type it: `web (Deployment)` and `Deployment
/// shop/web` are `deployment/shop/web`, and `web-* (web-1 and 2 more)` is the pod `web-1`.
fn as_typed(text: &str) -> Cow<'_, str> {
    if let Some((kind, name)) = text.split_once(' ')
        && !name.contains(' ')
        && let Some(kind) = kind_named(kind)
    {
        return format!("{kind}/{name}").into();
    }
    let Some((name, note)) = text.strip_suffix(')').and_then(|it| it.rsplit_once(" (")) else { return text.into() };
    match (kind_named(note), name.rsplit_once('/')) {
        (Some(kind), _) => format!("{kind}/{name}").into(),
        (None, _) if note == "template" => name.into(),
        (None, Some((namespace, _))) => format!("{namespace}/{}", note.split(' ').next().unwrap_or(note)).into(),
        (None, None) => note.split(' ').next().unwrap_or(note).into(),
    }
}

fn kind_named(text: &str) -> Option<&'static str> {
    KINDS.iter().find(|(_, names)| names.iter().any(|it| text.eq_ignore_ascii_case(it))).map(|(kind, _)| *kind)
}

/// The name of an endpoint as commands take it: `shop/web` for a pod, `deployment/shop/web` for a workload.
pub fn reference(kind: &str, name: &str) -> String {
    if kind == "Pod" { name.to_owned() } else { format!("{}/{name}", kind.to_lowercase()) }
}

/// An address; an IPv4-mapped one is that IPv4 address.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map(|ip: IpAddr| ip.to_canonical()).map_err(|_| format!("`{text}` is not an address"))
}

/// A protocol by its name in any case.
pub fn parse_protocol(text: &str) -> Result<FlowProtocol, String> {
    const NAMES: [(&str, FlowProtocol); 5] = [
        ("TCP", FlowProtocol::Transport(Protocol::Tcp)),
        ("UDP", FlowProtocol::Transport(Protocol::Udp)),
        ("SCTP", FlowProtocol::Transport(Protocol::Sctp)),
        ("ICMP", FlowProtocol::Icmp),
        ("ICMPv6", FlowProtocol::Icmp),
    ];
    let found = NAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, protocol)| *protocol);
    found.ok_or_else(|| format!("`{text}` is not a protocol: write TCP, UDP, SCTP or ICMP"))
}

#[cfg(test)]
mod tests {
    use weir_model::resolve::resolve;
    use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};

    use super::*;

    const OBJECTS: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"},
       "status": {"phase": "Running", "podIPs": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old", "namespace": "shop"},
       "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.2"}]}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "namespace": "shop"},
       "status": {"phase": "Running", "podIPs": [{"ip": "fd00::3"}]}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart-7c9d-a", "namespace": "shop",
         "labels": {"app": "cart", "pod-template-hash": "7c9d"},
         "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-7c9d", "controller": true,
           "uid": "u1"}]},
       "status": {"phase": "Succeeded"}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart-7c9d-b", "namespace": "shop",
         "labels": {"app": "cart", "pod-template-hash": "7c9d"},
         "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-7c9d", "controller": true,
           "uid": "u1"}]},
       "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.5"}]}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pair-0", "namespace": "shop", "labels": {"app": "pair"}}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pair-1", "namespace": "shop", "labels": {"app": "pair"}}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mixed-0", "namespace": "shop", "labels": {"a": "1"},
         "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "mixed", "controller": true,
           "uid": "u2"}]}},
      {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mixed-1", "namespace": "shop", "labels": {"a": "2"},
         "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "mixed", "controller": true,
           "uid": "u2"}]}},
      {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
       "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}},
      {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "api", "namespace": "shop"},
       "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}},
      {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "api", "namespace": "shop"},
       "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}}
    ]}"#;

    fn cluster() -> Cluster {
        let input = Input { name: "-".to_owned(), bytes: OBJECTS.into(), kind: InputKind::Manifest };
        let (decoded, found) =
            decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
        assert!(!found.has_errors(), "{found:?}");
        resolve(&decoded.objects, weir_model::Assumptions::default()).0
    }

    #[track_caller]
    fn check_name(text: &str, expected: Result<&str, &str>) {
        let cluster = cluster();
        let lookup = EndpointLookup { cluster: &cluster, default_namespace: "shop" };
        let found = lookup.endpoint(&Directory::new(&cluster), text);
        let kind = |id: EndpointId| format!("{} {}", cluster.endpoints[id.index()].kind, cluster.endpoint_name(id));
        assert_eq!(found.map(kind).as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn a_name_means_the_pod_before_the_workload() {
        check_name("shop/web", Ok("Pod shop/web"));
        check_name("web", Ok("Pod shop/web"));
        check_name("deployment/shop/web", Ok("Deployment shop/web"));
        check_name("deploy/web", Ok("Deployment shop/web"));
    }

    #[test]
    fn a_printed_name_is_taken() {
        check_name("shop/web (Deployment)", Ok("Deployment shop/web"));
        check_name("Deployment shop/web", Ok("Deployment shop/web"));
        check_name("shop/web (Pod)", Ok("Pod shop/web"));
        check_name("shop/app=a (old and 2 more)", Ok("Pod shop/old"));
        check_name("shop/pair-*", Ok("Pod shop/pair-0"));
        check_name("shop/app=pair", Ok("Pod shop/pair-0"));
        check_name("shop/app=pear", Err("there is no pod or workload shop/app=pear"));
        check_name("shop/web (template)", Ok("Pod shop/web"));
    }

    #[test]
    fn the_pods_of_a_workload_that_is_not_in_the_input_stand_for_it() {
        check_name("shop/cart", Ok("Pod shop/cart-7c9d-b"));
        check_name("deployment/shop/cart", Ok("Pod shop/cart-7c9d-b"));
        check_name("deploy/cart", Ok("Pod shop/cart-7c9d-b"));
        check_name("statefulset/shop/cart", Err("there is no statefulset shop/cart"));
        check_name("replicaset/shop/cart-7c9d", Err("there is no replicaset shop/cart-7c9d"));
        check_name(
            "shop/mixed",
            Err(
                "the pods of shop/mixed differ in labels, ports or blocks of addresses: name one, such as shop/mixed-0 or shop/mixed-1",
            ),
        );
    }

    #[test]
    fn several_workloads_of_one_name_need_their_kind() {
        check_name("shop/api", Err("shop/api is ambiguous: it may be deployment/shop/api or statefulset/shop/api"));
        check_name("sts/shop/api", Ok("StatefulSet shop/api"));
        check_name("shop/none", Err("there is no pod or workload shop/none"));
    }

    #[track_caller]
    fn check_addresses(
        from: (Option<&str>, Option<&str>),
        to: (Option<&str>, Option<&str>),
        expected: Result<&str, &str>,
    ) {
        let cluster = cluster();
        let directory = Directory::new(&cluster);
        let lookup = EndpointLookup { cluster: &cluster, default_namespace: "shop" };
        let end = |(pod, ip)| lookup.end(&directory, pod, ip);
        let found = end(from).and_then(|source| lookup.choose_addresses(source, end(to)?));
        let show = |end: FlowEnd| end.address.map_or("-".to_owned(), |at| at.to_string());
        let found = found.map(|(source, destination)| format!("{} {}", show(source), show(destination)));
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn named_ends_use_the_first_family_of_the_source_that_both_have() {
        check_addresses((Some("web"), None), (Some("web"), None), Ok("fd00::1 fd00::1"));
        check_addresses((Some("web"), None), (Some("old"), None), Ok("10.0.0.1 10.0.0.2"));
        check_addresses((Some("old"), None), (Some("web"), None), Ok("10.0.0.2 10.0.0.1"));
        check_addresses(
            (Some("old"), None),
            (Some("new"), None),
            Err("source and destination have no address family in common"),
        );
        check_addresses((Some("deploy/web"), None), (Some("web"), None), Ok("- fd00::1"));
        check_addresses((Some("deploy/web"), None), (Some("deploy/api"), None), Ok("- -"));
    }

    #[test]
    fn an_address_sets_the_family_of_the_other_end() {
        check_addresses((Some("web"), None), (None, Some("192.0.2.1")), Ok("10.0.0.1 192.0.2.1"));
        check_addresses((None, Some("2001:db8::1")), (Some("web"), None), Ok("2001:db8::1 fd00::1"));
        check_addresses(
            (Some("old"), None),
            (None, Some("2001:db8::1")),
            Err("source and destination have no address family in common"),
        );
        check_addresses((None, Some("::ffff:192.0.2.1")), (Some("web"), None), Ok("192.0.2.1 10.0.0.1"));
        check_addresses(
            (None, Some("192.0.2.1")),
            (None, Some("::1")),
            Err("source and destination have no address family in common"),
        );
    }

    #[test]
    fn a_pod_has_only_its_own_addresses() {
        check_addresses((Some("web"), Some("10.0.0.9")), (Some("web"), None), Err("10.0.0.9 is not an address of web"));
        check_addresses((Some("deploy/web"), Some("10.0.0.9")), (Some("web"), None), Ok("10.0.0.9 10.0.0.1"));
    }
}
