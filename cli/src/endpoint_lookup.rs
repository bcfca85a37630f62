//! Finds pods, workloads and services by name and address, and makes them the ends of a flow: [`FlowEnd`]s of one
//! family.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_model::directory::Directory;
use weir_model::eval::{FlowEnd, FlowProtocol};
use weir_model::{Cluster, EndpointId, Protocol, ServiceId};
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
pub(crate) enum NamedObject {
    Endpoint(EndpointId),
    Service(ServiceId),
}

/// Finds ends by name and address.
#[derive(Clone, Copy)]
pub(crate) struct EndpointLookup<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) default_namespace: &'c str,
}

impl<'c> EndpointLookup<'c> {
    /// The pod or workload of this name.
    pub(crate) fn endpoint(&self, directory: &Directory<'c>, text: &str) -> Result<EndpointId, String> {
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
    pub(crate) fn named(&self, directory: &Directory<'c>, text: &str) -> Result<NamedObject, String> {
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
    pub(crate) fn namesake(&self, directory: &Directory<'c>, text: &str) -> Option<ServiceId> {
        let Ok(NamedObject::Endpoint(_)) = self.named(directory, text) else { return None };
        match text.split('/').collect::<Vec<_>>()[..] {
            [name] => directory.service_named(self.default_namespace, name),
            [namespace, name] => directory.service_named(namespace, name),
            _ => None,
        }
    }

    /// The name of an endpoint or service that is most similar to this one, or the same name in another namespace.
    pub(crate) fn similar_name(&self, text: &str) -> Option<String> {
        let name = text.rsplit('/').next().unwrap_or(text);
        let wanted = if text.contains('/') { text.to_owned() } else { format!("{}/{text}", self.default_namespace) };
        let endpoints = (0..self.cluster.endpoints.len() as u32).map(|id| self.cluster.endpoint_name(EndpointId(id)));
        let services = (0..self.cluster.services.len() as u32).map(|id| self.cluster.service_name(ServiceId(id)));
        let known: BTreeSet<String> = endpoints.chain(services).collect();
        let elsewhere = || known.iter().find(|it| it.rsplit('/').next() == Some(name)).map(String::as_str);
        most_similar(&wanted, known.iter().map(String::as_str)).or_else(elsewhere).map(str::to_owned)
    }

    fn any_kind(&self, directory: &Directory<'c>, namespace: &str, name: &str) -> Result<EndpointId, String> {
        let kind = |id: &EndpointId| self.cluster.endpoints[id.index()].kind.as_ref();
        match directory.endpoints_named(namespace, name) {
            [] => Err(format!("there is no pod or workload {namespace}/{name}")),
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
        found.ok_or_else(|| format!("there is no {} {namespace}/{name}", kind.to_lowercase()))
    }

    /// An end by name, by address, or by both; the address must then be one of the endpoint's, if it has any.
    pub(crate) fn end(
        &self,
        directory: &Directory<'c>,
        pod: Option<&str>,
        ip: Option<&str>,
    ) -> Result<FlowEnd, String> {
        let address = ip.map(parse_ip).transpose()?;
        let endpoint = match (pod, address) {
            (Some(name), _) => Some(self.endpoint(directory, name)?),
            (None, Some(address)) => directory.endpoint_at(address),
            (None, None) => return Err("neither `pod` nor `ip` is given".to_owned()),
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
    pub(crate) fn choose_addresses(&self, source: FlowEnd, destination: FlowEnd) -> Result<(FlowEnd, FlowEnd), String> {
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

fn kind_named(text: &str) -> Option<&'static str> {
    KINDS.iter().find(|(_, names)| names.iter().any(|it| text.eq_ignore_ascii_case(it))).map(|(kind, _)| *kind)
}

/// The name of an endpoint as commands take it: `shop/web` for a pod, `deployment/shop/web` for a workload.
pub(crate) fn reference(kind: &str, name: &str) -> String {
    if kind == "Pod" { name.to_owned() } else { format!("{}/{name}", kind.to_lowercase()) }
}

/// An address; an IPv4-mapped one is that IPv4 address.
pub(crate) fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map(|ip: IpAddr| ip.to_canonical()).map_err(|_| format!("`{text}` is not an address"))
}

/// A protocol by its name in any case.
pub(crate) fn parse_protocol(text: &str) -> Result<FlowProtocol, String> {
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
