//! Answers about described pods agree with the reference oracle: a verdict is in the answer if and only if a pod that
//! fits the description gets it.
//!
//! Each case makes a cluster with pods, workloads, a service, policies and lists, and asks about flows with one or two
//! described ends. Descriptions leave out every part that they need not have. The test completes them in random ways, adds the pods to the
//! cluster and judges the flow: the answer must contain that verdict. Each verdict of an answer comes with an example,
//! which must fit the description and get this verdict.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use weir_analysis::world::{
    AskedEnd, AskedTarget, DescribedPod, FlowExample, OpenAnswer, OpenQuestion, OpenQuestionError, ask,
};
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{AddedPod, Cluster, EndpointId, NamedPort, Protocol};
use weir_objects::address::Family;
use weir_objects::k8s::{Labels, NAMESPACE_NAME_LABEL};
use weir_testing::yaml::cluster;

use crate::cases::{Choices, NAMESPACES};

/// Addresses at both sides of the bounds of the blocks that policies have.
const ADDRESSES: [&str; 14] = [
    "10.0.0.5",
    "10.0.0.7",
    "10.0.1.7",
    "10.0.255.255",
    "10.1.0.0",
    "10.255.255.255",
    "11.0.0.0",
    "9.255.255.255",
    "192.0.2.77",
    "fd00::6",
    "fd00::ffff",
    "fd00::1:0",
    "fd00:1::",
    "2001:db8::77",
];
const OUTSIDE: [&str; 5] = ["10.0.0.99", "203.0.113.99", "fd00::99", "10.96.0.1", "10.96.0.2"];

fn labels(it: &mut Choices<'_>, of: &[(&str, &[&str])]) -> Labels {
    let mut labels = Labels::new();
    for (key, values) in of {
        if let Some(value) = values.get(it.below(values.len() + 1)) {
            labels.insert(key, value);
        }
    }
    labels
}

fn namespace_labels(it: &mut Choices<'_>) -> Labels {
    labels(it, &[("team", &["a", "b", "zzz"]), ("zone", &["x"])])
}

fn names(it: &mut Choices<'_>, protocol: FlowProtocol, port: u16) -> Vec<NamedPort> {
    let FlowProtocol::Transport(protocol) = protocol else { return Vec::new() };
    let all = ["http", "dns", "zzz"].into_iter().filter(|_| it.below(2) == 0);
    all.map(|name| NamedPort { name: name.to_owned(), protocol, number: port }).collect()
}

fn described(it: &mut Choices<'_>, protocol: FlowProtocol, port: u16) -> DescribedPod {
    DescribedPod {
        namespace: it.pick(&["shop", "ops", "dev", "unknown", "elsewhere"]).to_owned(),
        labels: labels(it, &[("app", &["web", "db", "zzz"]), ("tier", &["front", "zzz"])]),
        namespace_labels: (it.below(5) == 0).then(|| namespace_labels(it)),
        ports: (it.below(3) == 0).then(|| names(it, protocol, port)),
        address: (it.below(3) == 0).then(|| it.pick(&ADDRESSES).parse().unwrap()),
    }
}

fn text(it: &mut Choices<'_>) -> String {
    let mut text = String::new();
    for name in NAMESPACES {
        let namespace = it.namespace(name);
        text.push_str(if it.below(3) == 0 { &namespace } else { "" });
    }
    for index in 0..2 + it.below(3) {
        text.push_str(&it.policy(index));
    }
    for index in 0..it.below(3) {
        text.push_str(&it.list(index));
    }
    for index in 0..it.below(3) {
        text.push_str(&it.cluster_policy(index));
    }
    for index in 0..3 {
        text.push_str(&crate::mixed::pod(it, index));
    }
    let namespace = it.pick(&NAMESPACES);
    text + &format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: work, namespace: {namespace}}}\nspec: {{selector: \
         {{matchLabels: {{app: web}}}}, template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{{name: c, \
         image: i, ports: [{{name: http, containerPort: 80}}]}}]}}}}}}\n---\napiVersion: v1\nkind: Service\nmetadata: \
         {{name: web, namespace: {namespace}}}\nspec: {{clusterIP: 10.96.0.1, selector: {{app: web}}, ports: [{{port: \
         80}}, {{port: 5432, targetPort: 80, name: pg}}]}}\n---\napiVersion: \
         v1\nkind: Service\nmetadata: {{name: empty, namespace: {namespace}}}\nspec: {{clusterIP: 10.96.0.2, selector: \
         {{app: nothing}}, ports: [{{port: 80}}]}}\n"
    )
}

/// An end that the cluster knows: a pod, a workload, an address, or the address of a service.
fn known(it: &mut Choices<'_>, cluster: &Cluster) -> AskedEnd {
    let count = cluster.endpoints.len();
    let chosen = it.below(count + OUTSIDE.len());
    match OUTSIDE.get(chosen.wrapping_sub(count)) {
        Some(address) => AskedEnd::Known(None, vec![address.parse().unwrap()]),
        None => AskedEnd::Known(Some(EndpointId(chosen as u32)), cluster.endpoints[chosen].addresses.clone()),
    }
}

fn question(it: &mut Choices<'_>, cluster: &Cluster) -> OpenQuestion {
    let tcp = |port| (FlowProtocol::Transport(Protocol::Tcp), port);
    let asked = [tcp(80), tcp(5432), tcp(7000), (FlowProtocol::Transport(Protocol::Udp), 53), (FlowProtocol::Icmp, 0)];
    let (protocol, port) = asked[it.below(asked.len())];
    let ends = it.below(3);
    let source = if ends == 0 { known(it, cluster) } else { AskedEnd::Described(described(it, protocol, port)) };
    let end = if ends == 1 { known(it, cluster) } else { AskedEnd::Described(described(it, protocol, port)) };
    let target = AskedTarget { end, protocol, port };
    let other = AskedTarget { end: known(it, cluster), ..target.clone() };
    // Two backends of a service.
    let several = ends == 1 && it.below(3) == 0;
    OpenQuestion { source, targets: if several { vec![target, other] } else { vec![target] } }
}

fn pod_of(end: &AskedEnd) -> Option<&DescribedPod> {
    match end {
        AskedEnd::Described(pod) => Some(pod),
        AskedEnd::Known(..) => None,
    }
}

/// The verdict with these pods at the described ends. `None` if they do not fit the descriptions.
fn verdict(cluster: &Cluster, question: &OpenQuestion, added: [Option<AddedPod>; 2]) -> Option<Verdict> {
    let taken = |address: &IpAddr| {
        cluster.endpoints.iter().any(|it| it.addresses.contains(address)) || cluster.frontend(*address).is_some()
    };
    let addresses_added = || added.iter().flatten().filter_map(|it| it.address);
    let mut addresses: Vec<IpAddr> = addresses_added().collect();
    for end in std::iter::once(&question.source).chain(question.targets.iter().map(|it| &it.end)) {
        if let AskedEnd::Known(_, known) = end {
            addresses.extend(known.iter().filter(|_| addresses_added().any(|it| known.contains(&it))));
        }
    }
    let is_double = (1..addresses.len()).any(|index| addresses[..index].contains(&addresses[index]));
    if is_double || addresses_added().any(|it| taken(&it)) {
        return None;
    }
    let family = addresses_added().map(Family::of).next()?;
    if addresses_added().any(|it| Family::of(it) != family) {
        return None;
    }
    let mut with_pods = cluster.clone();
    let [source, destination] = added.map(|pod| {
        let pod = pod?;
        let address = pod.address;
        Some(FlowEnd { endpoint: Some(with_pods.add_pod(pod)), address })
    });
    let of = |found: Option<FlowEnd>, end: &AskedEnd| match (found, end) {
        (Some(found), _) => Some(found),
        (None, AskedEnd::Known(endpoint, addresses)) => {
            let address = addresses.iter().copied().find(|it| Family::of(*it) == family);
            (address.is_some() || addresses.is_empty()).then_some(FlowEnd { endpoint: *endpoint, address })
        }
        (None, AskedEnd::Described(_)) => None,
    };
    let mut oracle = Oracle::new(&with_pods);
    let mut worst = Verdict::Allow;
    for target in &question.targets {
        let source = of(source, &question.source)?;
        let destination = of(destination, &target.end)?;
        let flow = Flow { source, destination, protocol: target.protocol, port: target.port };
        worst = worst.max(oracle.judge(&flow).verdict());
    }
    Some(worst)
}

fn declared<'c>(cluster: &'c Cluster, name: &str) -> Option<&'c Labels> {
    let found = cluster.namespaces.iter().find(|it| it.name == name && it.object.is_some());
    found.map(|it| cluster.labels.labels(it.labels))
}

/// Any pods that fit the descriptions.
fn completed(it: &mut Choices<'_>, cluster: &Cluster, question: &OpenQuestion) -> [Option<AddedPod>; 2] {
    let target = &question.targets[0];
    let pods = [pod_of(&question.source), pod_of(&target.end)];
    let mut shared: Option<(String, Labels)> = None;
    // The labels that one description gives hold for the other end in the same namespace.
    for pod in pods.iter().flatten() {
        if let Some(given) = &pod.namespace_labels {
            shared = shared.or_else(|| Some((pod.namespace.clone(), given.clone())));
        }
    }
    pods.map(|pod| {
        let pod = pod?;
        let namespace_labels = match (&pod.namespace_labels, &shared) {
            _ if declared(cluster, &pod.namespace).is_some() => None,
            (Some(given), _) => Some(given.clone()),
            (None, Some((name, labels))) if *name == pod.namespace => Some(labels.clone()),
            _ => {
                let labels = namespace_labels(it);
                shared = shared.take().or_else(|| Some((pod.namespace.clone(), labels.clone())));
                Some(labels)
            }
        };
        Some(AddedPod {
            namespace: pod.namespace.clone(),
            namespace_labels,
            labels: pod.labels.clone(),
            ports: pod.ports.clone().unwrap_or_else(|| names(it, target.protocol, target.port)),
            address: Some(pod.address.unwrap_or_else(|| it.pick(&ADDRESSES).parse().unwrap())),
        })
    })
}

/// The example fits the descriptions, and the oracle gives it the verdict.
fn check_example(cluster: &Cluster, question: &OpenQuestion, example: &FlowExample, expected: Verdict) {
    let asked = [pod_of(&question.source), pod_of(&question.targets[0].end)];
    let added = [0, 1].map(|index| {
        assert_eq!(asked[index].is_some(), example.pods[index].is_some());
        let (asked, pod) = (asked[index]?, example.pods[index].clone()?);
        assert_eq!((&asked.namespace, &asked.labels), (&pod.namespace, &pod.labels));
        assert!(asked.address.is_none_or(|it| it == pod.address));
        assert!(asked.ports.as_ref().is_none_or(|it| *it == pod.ports));
        if let Some(mut given) = asked.namespace_labels.clone() {
            given.insert(NAMESPACE_NAME_LABEL, &pod.namespace);
            assert_eq!(pod.namespace_labels.as_ref(), Some(&given));
        }
        if declared(cluster, &pod.namespace).is_some() {
            assert!(pod.namespace_labels.is_none() || asked.namespace_labels.is_some());
        }
        Some(AddedPod {
            namespace: pod.namespace,
            namespace_labels: pod.namespace_labels,
            labels: pod.labels,
            ports: pod.ports,
            address: Some(pod.address),
        })
    });
    assert_eq!(verdict(cluster, question, added), Some(expected), "{question:?}\n{:?}", example.pods);
}

/// Asks one question, and judges completions of it. Returns the answer, if there is one, and the number of completions.
fn check(numbers: &[u32]) -> (Option<OpenAnswer>, usize) {
    let mut it = Choices { numbers: numbers.iter() };
    let text = text(&mut it);
    let cluster = cluster(&text);
    let question = question(&mut it, &cluster);
    let answer = match ask(&cluster, &question) {
        Ok(answer) => answer,
        // The description contradicts the input, or itself.
        Err(OpenQuestionError::Description(_)) => return (None, 0),
        Err(error) => panic!("{error}\n{question:?}\n{text}"),
    };
    for (example, expected) in [(&answer.allowed, Verdict::Allow), (&answer.denied, Verdict::Deny)] {
        if let Some(example) = example {
            check_example(&cluster, &question, example, expected);
        }
    }
    assert_eq!(answer.verdict().is_none(), !answer.depends_on.is_empty(), "{answer:?}");
    let mut judged = 0;
    for _ in 0..60 {
        let added = completed(&mut it, &cluster, &question);
        let Some(verdict) = verdict(&cluster, &question, added.clone()) else { continue };
        judged += 1;
        let is_in = match verdict {
            Verdict::Allow => answer.allowed.is_some(),
            Verdict::Deny => answer.denied.is_some(),
        };
        assert!(is_in, "{verdict:?} is not in the answer {:?}\n{added:?}\n{question:?}\n{text}", answer.verdict());
    }
    (Some(answer), judged)
}

fn numbers() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(any::<u32>(), 400)
}

proptest! {
    #[test]
    fn answers_about_described_pods_agree_with_the_oracle(numbers in numbers()) {
        check(&numbers);
    }
}

/// Two pods never have one address, so a flow that needs it is denied to all.
#[test]
fn two_pods_with_one_address_are_no_example() {
    let text = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: shop}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{ipBlock: {cidr: 10.0.0.5/32}}]}]
  egress: [{to: [{ipBlock: {cidr: 10.0.0.5/32}}]}]
";
    let pod = || AskedEnd::Described(DescribedPod { namespace: "shop".to_owned(), ..DescribedPod::default() });
    let target = AskedTarget { end: pod(), protocol: FlowProtocol::Icmp, port: 0 };
    let answer = |text: &str| {
        let question = OpenQuestion { source: pod(), targets: vec![target.clone()] };
        ask(&cluster(text), &question).unwrap().verdict()
    };
    assert_eq!(answer(text), Some(Verdict::Deny));
    assert_eq!(answer(&text.replacen("10.0.0.5", "10.0.0.6", 1)), None);
}

/// The random cases contain each kind of answer; otherwise they would prove nothing.
#[test]
fn random_questions_have_each_kind_of_answer() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts = [0; 3];
    let (mut completions, mut properties) = (0, [0; 4]);
    for _ in 0..2000 {
        let (answer, judged) = check(&numbers().new_tree(&mut runner).unwrap().current());
        completions += judged;
        let Some(answer) = answer else { continue };
        counts[match answer.verdict() {
            Some(Verdict::Allow) => 0,
            Some(Verdict::Deny) => 1,
            None => 2,
        }] += 1;
        for property in answer.depends_on {
            use weir_analysis::world::OpenProperty::{DestinationAddress, NamespaceLabels, PortNames, SourceAddress};
            properties[match property {
                SourceAddress => 0,
                DestinationAddress => 1,
                NamespaceLabels(_) => 2,
                PortNames => 3,
            }] += 1;
        }
    }
    assert!(completions > 20_000, "{completions}");
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
    assert!(properties.iter().all(|count| *count > 10), "{properties:?}");
}
