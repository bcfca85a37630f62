//! Rows agree with the reference oracle about the endpoints of the input too, also where these are no possible pods
//! like any other: with addresses of both families, in a namespace that one side alone declares, or with an address
//! that a service claims.

use std::net::IpAddr;

use proptest::prelude::*;
use weir_analysis::diff::{Diff, DiffRow, RowEnd, RowProduct, VerdictChange, compare_open};
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::{Cluster, Direction, Protocol};
use weir_objects::address::Family;
use weir_testing::yaml::cluster;

use crate::cases::{Choices, NAMESPACES, numbers};

const OUTSIDE: [&str; 4] = ["10.0.0.99", "10.9.0.1", "203.0.113.99", "fd00::99"];
const IPV4: [&str; 4] = ["10.0.0.", "10.0.1.", "10.7.0.", "203.0.113."];
const IPV6: [&str; 2] = ["fd00::", "fd00::1:"];

/// Two sides with the same pods, but for a few.
fn sides(numbers: &[u32]) -> [String; 2] {
    let mut it = Choices { numbers: numbers.iter() };
    let mut sides = [String::new(), String::new()];
    for name in NAMESPACES {
        let namespace = it.namespace(name);
        match it.below(4) {
            0 => sides.iter_mut().for_each(|side| side.push_str(&namespace)),
            1 => sides.iter_mut().for_each(|side| side.push_str(&it.namespace(name))),
            2 => sides[it.below(2)].push_str(&namespace),
            _ => {}
        }
    }
    for index in 0..5 {
        let pod = pod(&mut it, index);
        let other = if it.below(6) == 0 { self::pod(&mut it, index) } else { pod.clone() };
        sides[0].push_str(&pod);
        sides[1].push_str(&other);
    }
    for index in 0..1 + it.below(3) {
        let policy = it.policy(index);
        match it.below(4) {
            0 => sides[0].push_str(&policy),
            1 => sides[1].push_str(&policy),
            2 => {
                sides[0].push_str(&policy);
                sides[1].push_str(&it.policy(index));
            }
            _ => sides.iter_mut().for_each(|side| side.push_str(&policy)),
        }
    }
    for index in 0..it.below(2) {
        let list = it.list(index);
        match it.below(2) {
            0 => sides[it.below(2)].push_str(&list),
            _ => sides.iter_mut().for_each(|side| side.push_str(&list)),
        }
    }
    sides
}

pub(crate) fn pod(it: &mut Choices<'_>, index: usize) -> String {
    let namespace = it.pick(&NAMESPACES);
    let mut labels: Vec<&str> = Vec::new();
    labels.extend(["app: web", "app: db"].get(it.below(3)));
    labels.extend(["tier: front"].get(it.below(2)));
    let labels = labels.join(", ");
    let v4 = format!("{}{}", it.pick(&IPV4), index + 5);
    let v6 = format!("{}{}", it.pick(&IPV6), index + 5);
    let addresses = match it.below(3) {
        0 => vec![v4, v6],
        1 => vec![v6],
        _ => vec![v4],
    };
    let ips: Vec<String> = addresses.iter().map(|it| format!("{{ip: '{it}'}}")).collect();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: pod{index}, namespace: {namespace}, labels: \
         {{{labels}}}}}\nspec: {{containers: [{{name: c, image: i, ports: [{{name: http, containerPort: \
         80}}]}}]}}\nstatus: {{phase: Running, podIP: '{}', podIPs: [{}]}}\n",
        addresses[0],
        ips.join(", ")
    )
}

/// An end of a flow: an endpoint of the comparison, or an address outside.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Endpoint(u32, IpAddr),
    Address(IpAddr),
}

impl End {
    fn address(self) -> IpAddr {
        match self {
            Self::Endpoint(_, address) | Self::Address(address) => address,
        }
    }
}

struct Question<'d> {
    diff: &'d Diff,
    head: &'d Cluster,
    ends: [End; 2],
    protocol: FlowProtocol,
    port: u16,
}

impl Question<'_> {
    fn in_row(&self, row: &DiffRow, judgements: &[Judgement; 2]) -> bool {
        let allowing = &judgements[usize::from(row.change == VerdictChange::Added)];
        let given = match row.given {
            None => true,
            Some(Direction::Ingress) => allowing.ingress.verdict == Verdict::Allow,
            Some(Direction::Egress) => allowing.egress.verdict == Verdict::Allow,
        };
        let DiffRow { source, destination, traffic, except, .. } = row;
        let all = RowProduct { source: source.clone(), destination: destination.clone(), traffic: traffic.clone() };
        let family = row.family.is_none_or(|it| it == Family::of(self.ends[0].address()));
        family && given && self.in_product(&all) && !except.iter().any(|it| self.in_product(it))
    }

    fn in_product(&self, product: &RowProduct) -> bool {
        let in_end = |set: &RowEnd, end: End| match end {
            End::Endpoint(index, _) => set.endpoints.contains(&index),
            End::Address(address) => set.ranges.iter().any(|it| it.contains(address)),
        };
        let traffic = match self.protocol {
            FlowProtocol::Icmp => product.traffic.portless,
            FlowProtocol::Transport(protocol) => {
                let is = |first: u16, last: u16, of: Protocol| of == protocol && (first..=last).contains(&self.port);
                product.traffic.ranges.iter().any(|it| is(it.first, it.last, it.protocol))
                    || product.traffic.named.iter().any(|(it, names)| {
                        is(it.first, it.last, it.protocol) && names.iter().all(|it| self.has_name(protocol, it))
                    })
            }
        };
        traffic && in_end(&product.source, self.ends[0]) && in_end(&product.destination, self.ends[1])
    }

    fn has_name(&self, protocol: Protocol, name: &str) -> bool {
        let End::Endpoint(index, _) = self.ends[1] else { return false };
        let Some(id) = self.diff.endpoints[index as usize].ids[1] else { return false };
        let mut ports = self.head.endpoints[id.index()].named_ports.iter();
        ports.any(|it| it.name == name && it.protocol == protocol && it.number == self.port)
    }
}

/// Asks about every flow between ends that both sides have. Returns how many verdicts change.
fn check(texts: &[String; 2]) -> usize {
    let sides = texts.each_ref().map(|text| cluster(text));
    let diff = compare_open(&sides[0], &sides[1], false).unwrap();
    let mut oracles = sides.each_ref().map(Oracle::new);
    let mut ends: Vec<End> = Vec::new();
    for (index, endpoint) in diff.endpoints.iter().enumerate() {
        let [Some(old), Some(new)] = endpoint.ids else { continue };
        let [old, new] = [&sides[0].endpoints[old.index()], &sides[1].endpoints[new.index()]];
        let both = old.addresses.iter().filter(|it| new.addresses.contains(it));
        ends.extend(both.map(|address| End::Endpoint(index as u32, *address)));
    }
    ends.extend(OUTSIDE.iter().map(|it| End::Address(it.parse().unwrap())));
    let tcp = |port| (FlowProtocol::Transport(Protocol::Tcp), port);
    let asked = [tcp(80), tcp(5432), tcp(7000), (FlowProtocol::Transport(Protocol::Udp), 53), (FlowProtocol::Icmp, 0)];
    let mut changed = 0;
    for (source, destination) in ends.iter().flat_map(|it| ends.iter().map(move |other| (*it, *other))) {
        let is_same_family = source.address().is_ipv4() == destination.address().is_ipv4();
        let is_same_end = match (source, destination) {
            (End::Endpoint(one, _), End::Endpoint(other, _)) => one == other,
            (End::Address(_), End::Address(_)) => true,
            _ => false,
        };
        if !is_same_family || is_same_end {
            continue;
        }
        for (protocol, port) in asked {
            let judgements = [0, 1].map(|side| {
                let end = |end: End| match end {
                    End::Endpoint(index, address) => {
                        FlowEnd { endpoint: diff.endpoints[index as usize].ids[side], address: Some(address) }
                    }
                    End::Address(address) => FlowEnd { endpoint: None, address: Some(address) },
                };
                let flow = Flow { source: end(source), destination: end(destination), protocol, port };
                oracles[side].judge(&flow)
            });
            let verdicts = judgements.each_ref().map(Judgement::verdict);
            let question = Question { diff: &diff, head: &sides[1], ends: [source, destination], protocol, port };
            for (change, wanted) in [
                (VerdictChange::Added, verdicts == [Verdict::Deny, Verdict::Allow]),
                (VerdictChange::Removed, verdicts == [Verdict::Allow, Verdict::Deny]),
            ] {
                let of_change = diff.rows.iter().filter(|row| row.change == change);
                let containing: Vec<&DiffRow> = of_change.filter(|row| question.in_row(row, &judgements)).collect();
                assert_eq!(
                    !containing.is_empty(),
                    wanted,
                    "{change:?} {} -> {} {protocol:?} {port}\nverdicts {verdicts:?}\nrows {containing:#?}\nof {}\n{}\n==== \
                     head\n{}",
                    source.address(),
                    destination.address(),
                    diff.rows.len(),
                    texts[0],
                    texts[1]
                );
            }
            changed += usize::from(verdicts[0] != verdicts[1]);
        }
    }
    changed
}

proptest! {
    #[test]
    fn rows_agree_with_the_oracle_about_endpoints_of_the_input(numbers in numbers()) {
        check(&sides(&numbers));
    }
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {phase: Running, podIP: 10.0.0.5, podIPs: [{ip: 10.0.0.5}, {ip: 'fd00::5'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: ops}
status: {phase: Running, podIP: 10.0.0.6, podIPs: [{ip: 10.0.0.6}, {ip: 'fd00::6'}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: shop}
spec: {podSelector: {}, ingress: [{from: [PEER]}]}
";

/// A block of one family says nothing about a pod's address of the other.
#[test]
fn a_block_of_one_family_changes_flows_of_that_family_alone() {
    let base = POD.replace("PEER", "{ipBlock: {cidr: 192.0.2.0/24}}");
    let head = POD.replace("PEER", "{ipBlock: {cidr: 192.0.2.0/24}}, {ipBlock: {cidr: 10.0.0.0/24}}");
    assert!(check(&[base, head]) > 0);
}

/// The pods of the base are in a namespace without labels there, though possible pods have those of the head.
#[test]
fn a_namespace_that_one_side_declares_changes_what_its_pods_may_do() {
    let base = POD.replace("PEER", "{namespaceSelector: {matchLabels: {team: a}}}");
    let declared = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ops, labels: {team: a}}\n";
    assert!(check(&[base.clone(), format!("{base}{declared}")]) > 0);
}

/// Traffic to the address of a service goes to its backends, also if a pod has the address.
#[test]
fn a_pod_at_the_address_of_a_service_is_no_possible_pod() {
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\nspec: {clusterIP: 10.0.0.5, \
                   clusterIPs: [10.0.0.5], ports: [{port: 80}]}\n";
    let base = POD.replace("PEER", "{ipBlock: {cidr: 192.0.2.0/24}}") + service;
    let head = POD.replace("PEER", "") + service;
    let diff = compare_open(&cluster(&base), &cluster(&head), false).unwrap();
    let web = diff.endpoints.iter().position(|it| it.name == "web").unwrap() as u32;
    let about_possible_pods: Vec<&DiffRow> = diff.rows.iter().filter(|row| !row.destination.pods.is_empty()).collect();
    assert!(!about_possible_pods.is_empty());
    assert!(about_possible_pods.iter().all(|row| !row.destination.endpoints.contains(&web)));
}
