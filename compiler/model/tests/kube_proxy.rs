//! Compares the model of services with kube-proxy's own code.
//!
//! `kube_proxy/record.go` asks the packages of kube-proxy which addresses of random services its proxies translate, and
//! to which endpoints, on every node and in both families. The answers were recorded with the release that is named
//! below. The model may have more backends than any node uses, because all of them must be allowed. It must never have
//! fewer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use weir_model::{Cluster, FrontendPort};
use weir_objects::k8s::Protocol;

/// Recorded by `record.go 300 7` with v1.35.4.
const RECORDED: &str = include_str!("kube_proxy/recorded.txt");

/// The external addresses and those of load balancers that the recorder gives to services.
const EXTERNAL: [&str; 6] =
    ["198.51.100.1", "198.51.100.2", "2001:db8::1", "203.0.113.1", "203.0.113.2", "2001:db8::2"];

#[derive(Default, Debug)]
struct Counts {
    translated: usize,
    untranslated: usize,
    endpoints: usize,
    exact: usize,
    more: usize,
}

#[test]
fn every_backend_that_kube_proxy_uses_is_known() {
    let mut counts = Counts::default();
    for (number, case) in RECORDED.split("\n\n").filter(|case| !case.trim().is_empty()).enumerate() {
        let cluster = cluster(case);
        let translated = translated(case);
        compare(&cluster, &translated, &mut counts).unwrap_or_else(|error| panic!("case {number}: {error}\n{case}"));
        count_untranslated(case, &cluster, &translated, &mut counts);
    }
    // Each kind of answer occurs, and the model is mostly exact.
    let Counts { translated, untranslated, endpoints, exact, more } = counts;
    assert!(translated > 1_000 && untranslated > 1_000 && endpoints > 500, "{counts:?}");
    assert!(exact > 8 * more && more > 0, "{counts:?}");
}

type Translated = BTreeMap<(IpAddr, Protocol, u16), BTreeMap<String, BTreeSet<SocketAddr>>>;

fn translated(case: &str) -> Translated {
    let mut found = Translated::new();
    for line in case.lines().filter_map(|line| line.strip_prefix("T ")) {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap();
        let front = (word().parse().unwrap(), Protocol::Tcp, word().parse().unwrap());
        let service = word().to_owned();
        let endpoints = words.map(|it| it.parse().unwrap()).collect();
        found.entry(front).or_default().insert(service, endpoints);
    }
    found
}

fn cluster(case: &str) -> Cluster {
    let objects: Vec<&str> = case.lines().filter_map(|line| line.strip_prefix("O ")).collect();
    weir_testing::yaml::cluster(&objects.join("\n---\n"))
}

/// The claims on a port in the model.
fn claims(cluster: &Cluster, (address, protocol, port): (IpAddr, Protocol, u16)) -> Option<&FrontendPort> {
    cluster.frontend(address)?.port(protocol, port)
}

fn compare(cluster: &Cluster, translated: &Translated, counts: &mut Counts) -> Result<(), String> {
    for (front, services) in translated {
        counts.translated += 1;
        let port = claims(cluster, *front).ok_or_else(|| format!("{front:?} is not known"))?;
        let mut known: BTreeMap<String, BTreeSet<SocketAddr>> = BTreeMap::new();
        for (service, index) in &port.claims {
            let backends = &cluster.services[service.index()].ports[*index as usize].backends;
            let of_family = |at: &SocketAddr| at.is_ipv4() == front.0.is_ipv4();
            let backends = backends.iter().filter_map(|it| Some(SocketAddr::new(it.address?, it.port)));
            known.insert(cluster.service_name(*service), backends.filter(of_family).collect());
        }
        for (service, used) in services {
            let known = known.get(service).ok_or_else(|| format!("{front:?} is not known to be {service}'s"))?;
            if !used.is_subset(known) {
                return Err(format!("{front:?} of {service}: kube-proxy uses {used:?}, the model has {known:?}"));
            }
            counts.endpoints += used.len();
            *if used == known { &mut counts.exact } else { &mut counts.more } += 1;
        }
        if services.len() > 1 && !port.contested {
            return Err(format!("{front:?} is not contested, but several services have it: {services:?}"));
        }
    }
    Ok(())
}

/// In the model, no service claims an external address that kube-proxy does not translate.
fn count_untranslated(case: &str, cluster: &Cluster, translated: &Translated, counts: &mut Counts) {
    for address in EXTERNAL.iter().filter(|address| case.contains(&format!("\"{address}\""))) {
        for port in [80, 81] {
            let front = (address.parse().unwrap(), Protocol::Tcp, port);
            if !translated.contains_key(&front) {
                counts.untranslated += 1;
                assert_eq!(claims(cluster, front), None, "{front:?} is not translated\n{case}");
            }
        }
    }
}
