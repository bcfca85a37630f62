//! Denials of one flow in clusters of one and of two address families: everything else stays allowed where rules can
//! express it, and a note names the exceptions.

use std::net::IpAddr;

use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, EndpointId, IpBlockPods, Protocol};
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::k8s::Object;
use weir_suggest::change::{Change, change};
use weir_suggest::note::Note;

const PORT: u16 = 5432;
/// Addresses that no pod has.
const OUTSIDE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// The pods web, job and db, with these addresses.
fn pods(addresses: [&[&str]; 3]) -> String {
    let pod = |(name, addresses): (&str, &[&str])| {
        let ips: Vec<String> = addresses.iter().map(|it| format!("{{ip: '{it}'}}")).collect();
        let first =
            addresses.first().map_or(String::new(), |it| format!("podIP: '{it}', podIPs: [{}]", ips.join(", ")));
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\n\
             status: {{phase: Running, {first}}}\n---\n"
        )
    };
    ["web", "job", "db"].into_iter().zip(addresses).map(pod).collect()
}

fn one_family() -> String {
    pods([&["10.0.0.1"], &["10.0.0.3"], &["10.0.0.2"]])
}

fn two_families() -> String {
    pods([&["10.0.0.1", "fd00::1"], &["10.0.0.3", "fd00::3"], &["10.0.0.2", "fd00::2"]])
}

/// The same pods as Deployments, which have no addresses.
fn workloads() -> String {
    let workload = |name| {
        let labels = format!("{{app: {name}}}");
        format!(
            "kind: Deployment\napiVersion: apps/v1\nmetadata: {{name: {name}}}\nspec:\n  selector: {{matchLabels: \
             {labels}}}\n  template: {{metadata: {{labels: {labels}}}, spec: {{containers: [{{name: c, image: x}}]}}}}\
             \n---\n"
        )
    };
    ["web", "job", "db"].map(workload).concat()
}

/// A policy for db with this text as its ingress rules.
fn policy(ingress: &str) -> String {
    format!(
        "kind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {{name: db}}\n\
         spec: {{podSelector: {{matchLabels: {{app: db}}}}, policyTypes: [Ingress], ingress: {ingress}}}\n"
    )
}

fn objects(text: &str) -> Vec<Object> {
    let options = DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
    let input = Input { name: "x".to_owned(), bytes: text.into(), kind: InputKind::Manifest };
    let (read, found) = decode(vec![input], &options);
    assert!(!found.has_errors(), "{found:?}\n{text}");
    read.objects
}

fn pod(cluster: &Cluster, name: &str) -> FlowEnd {
    let at = cluster.endpoints.iter().position(|it| it.name == name).expect("a pod of the cluster");
    let address = cluster.endpoints[at].addresses.first().copied();
    FlowEnd { endpoint: Some(EndpointId(at as u32)), address }
}

fn outside(address: &str) -> FlowEnd {
    FlowEnd { endpoint: None, address: Some(address.parse::<IpAddr>().expect("an address")) }
}

fn tcp(source: FlowEnd, destination: FlowEnd, port: u16) -> Flow {
    Flow { source, destination, protocol: FlowProtocol::Transport(Protocol::Tcp), port }
}

/// A change after which web does not reach db, and the cluster with it.
fn denied(text: &str, assume: Assumptions) -> (Change, Cluster) {
    let objects = objects(text);
    let (cluster, _) = resolve(&objects, assume);
    let flow = tcp(pod(&cluster, "web"), pod(&cluster, "db"), PORT);
    let change = change(&objects, assume, &[flow], Verdict::Deny).expect("a change");
    let (cluster, _) = resolve(&change.objects, assume);
    assert_eq!(to_db(&cluster, pod(&cluster, "web"), PORT), Verdict::Deny);
    (change, cluster)
}

fn to_db(cluster: &Cluster, source: FlowEnd, port: u16) -> Verdict {
    Oracle::new(cluster).judge(&tcp(source, pod(cluster, "db"), port)).verdict()
}

#[test]
fn a_denial_is_as_narrow_in_two_families_as_in_one() {
    for text in [one_family(), two_families(), workloads()] {
        let (_, cluster) = denied(&text, Assumptions::default());
        assert_eq!(to_db(&cluster, pod(&cluster, "job"), PORT), Verdict::Allow, "{text}");
        assert_eq!(to_db(&cluster, pod(&cluster, "web"), PORT + 1), Verdict::Allow, "{text}");
        for address in OUTSIDE {
            assert_eq!(to_db(&cluster, outside(address), PORT + 1), Verdict::Allow, "{text}");
        }
    }
}

#[test]
fn a_rule_is_narrowed_in_two_families_too() {
    let rule = policy(&format!("[{{ports: [{{port: {PORT}}}]}}]"));
    for text in [one_family(), two_families(), workloads()] {
        let (_, cluster) = denied(&(text.clone() + &rule), Assumptions::default());
        assert_eq!(to_db(&cluster, pod(&cluster, "job"), PORT), Verdict::Allow, "{text}");
    }
}

#[test]
fn a_note_says_that_outside_addresses_are_denied_too() {
    for text in [one_family(), two_families(), workloads()] {
        let (change, cluster) = denied(&text, Assumptions::default());
        assert_eq!(change.notes, [Note::OutsideDenied], "{text}");
        for address in OUTSIDE {
            assert_eq!(to_db(&cluster, outside(address), PORT), Verdict::Deny, "{text}");
        }
    }
    let narrow = one_family() + &policy("[{from: [{podSelector: {}}]}]");
    assert_eq!(denied(&narrow, Assumptions::default()).0.notes, []);
}

#[test]
fn outside_addresses_stay_allowed_if_blocks_match_no_pods() {
    let assume = Assumptions { ipblock_pods: IpBlockPods::Ignore, ..Assumptions::default() };
    for text in [one_family(), two_families(), workloads()] {
        for text in [text.clone(), text + &policy("[{}]")] {
            let (change, cluster) = denied(&text, assume);
            assert_eq!(change.notes, [], "{text}");
            assert_eq!(to_db(&cluster, pod(&cluster, "job"), PORT), Verdict::Allow, "{text}");
            for address in OUTSIDE {
                assert_eq!(to_db(&cluster, outside(address), PORT), Verdict::Allow, "{text}");
            }
        }
    }
}

#[test]
fn notes_name_an_excepted_pod_address_and_the_other_family() {
    let blocks = policy("[{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}]}]");
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let excepted = Note::PodAddress { pod: "default/web".to_owned(), address: address("10.0.0.1") };
    let (change, _) = denied(&(one_family() + &blocks), Assumptions::default());
    assert_eq!(change.notes, std::slice::from_ref(&excepted));
    let other = Note::OtherFamily { ends: [address("fd00::1"), address("fd00::2")], verdict: Verdict::Allow };
    let (change, cluster) = denied(&(two_families() + &blocks), Assumptions::default());
    let web = FlowEnd { address: Some(address("fd00::1")), ..pod(&cluster, "web") };
    let db = FlowEnd { address: Some(address("fd00::2")), ..pod(&cluster, "db") };
    assert_eq!(Oracle::new(&cluster).judge(&tcp(web, db, PORT)).verdict(), Verdict::Allow);
    assert_eq!(change.notes, [excepted, other]);
}
