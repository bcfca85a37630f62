//! Random sides: a few policies, lists and namespaces with few keys, so that selectors overlap often.

use proptest::prelude::*;

pub(crate) const NAMESPACES: [&str; 4] = ["shop", "ops", "dev", "unknown"];
const BLOCKS: [&str; 7] = [
    "{cidr: 10.0.0.0/8}",
    "{cidr: 10.0.0.0/16, except: [10.0.1.0/24]}",
    "{cidr: 0.0.0.0/0}",
    "{cidr: '::/0'}",
    "{cidr: 10.0.0.5/32}",
    "{cidr: 'fd00::/112'}",
    "{cidr: 'fd00::/16', except: ['fd00::6/128']}",
];
const SELECTORS: [&str; 8] = [
    "{}",
    "{matchLabels: {app: web}}",
    "{matchLabels: {app: db}}",
    "{matchLabels: {app: web, tier: front}}",
    "{matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
    "{matchExpressions: [{key: app, operator: In, values: [web, db]}]}",
    "{matchExpressions: [{key: tier, operator: Exists}]}",
    "{matchExpressions: [{key: tier, operator: DoesNotExist}, {key: app, operator: Exists}]}",
];
const NAMESPACE_SELECTORS: [&str; 7] = [
    "{}",
    "{matchLabels: {team: a}}",
    "{matchLabels: {kubernetes.io/metadata.name: shop}}",
    "{matchLabels: {kubernetes.io/metadata.name: ops, team: b}}",
    "{matchExpressions: [{key: team, operator: NotIn, values: [a]}]}",
    "{matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [shop, dev]}]}",
    "{matchExpressions: [{key: team, operator: Exists}]}",
];
const PORTS: [&str; 7] = [
    "{port: 80}",
    "{port: 5432}",
    "{port: 53, protocol: UDP}",
    "{port: http}",
    "{port: 80, endPort: 6000}",
    "{}",
    "{port: dns, protocol: UDP}",
];

const NETWORKS: [&str; 5] = ["10.0.0.0/8", "10.0.1.0/24", "0.0.0.0/0", "::/0", "203.0.113.0/24"];
const PROTOCOLS: [&str; 6] = [
    "{tcp: {destinationPort: {number: 80}}}",
    "{tcp: {destinationPort: {number: 5432}}}",
    "{udp: {destinationPort: {number: 53}}}",
    "{tcp: {destinationPort: {range: {start: 80, end: 6000}}}}",
    "{destinationNamedPort: http}",
    "{destinationNamedPort: dns}",
];

/// Choices that proptest makes and shrinks.
pub(crate) struct Choices<'c> {
    pub(crate) numbers: std::slice::Iter<'c, u32>,
}

impl Choices<'_> {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.numbers.next().map_or(0, |number| *number as usize % bound)
    }

    pub(crate) fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len())]
    }

    /// Up to `most` results, separated by commas.
    pub(crate) fn several(&mut self, most: usize, mut one: impl FnMut(&mut Self) -> String) -> String {
        let count = self.below(most + 1);
        (0..count).map(|_| one(self)).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn policy(&mut self, name: usize) -> String {
        let namespace = self.pick(&NAMESPACES[..3]);
        let subjects = self.pick(&SELECTORS);
        let types = self.pick(&["[Ingress]", "[Egress]", "[Ingress, Egress]"]);
        let ingress = self.several(3, |it| it.rule("from"));
        let egress = self.several(3, |it| it.rule("to"));
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p{name}, namespace: \
             {namespace}}}\nspec: {{podSelector: {subjects}, policyTypes: {types}, ingress: [{ingress}], egress: \
             [{egress}]}}\n"
        )
    }

    pub(crate) fn rule(&mut self, peers: &str) -> String {
        let of_peers = self.several(3, Self::peer);
        let ports = self.several(2, |it| it.pick(&PORTS).to_owned());
        format!("{{{peers}: [{of_peers}], ports: [{ports}]}}")
    }

    pub(crate) fn peer(&mut self) -> String {
        match self.below(4) {
            0 => format!("{{ipBlock: {}}}", self.pick(&BLOCKS)),
            1 => format!("{{podSelector: {}}}", self.pick(&SELECTORS)),
            2 => format!("{{namespaceSelector: {}}}", self.pick(&NAMESPACE_SELECTORS)),
            _ => format!(
                "{{namespaceSelector: {}, podSelector: {}}}",
                self.pick(&NAMESPACE_SELECTORS),
                self.pick(&SELECTORS)
            ),
        }
    }

    pub(crate) fn list(&mut self, name: usize) -> String {
        let action = self.pick(&["Deny", "Allow"]);
        let directions = self.pick(&["[Ingress]", "[Egress]", "[Ingress, Egress]"]);
        let (namespaces, pods) = (self.pick(&NAMESPACE_SELECTORS), self.pick(&SELECTORS));
        let cidrs = self.pick(&["10.0.0.0/16", "10.0.0.5", "0.0.0.0/0"]);
        format!(
            "---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: l{name}}}\nspec: {{action: {action}, \
             order: {name}, directions: {directions}, appliesTo: {{namespaceSelector: {namespaces}, podSelector: \
             {pods}}}, cidrs: [{cidrs}]}}\n"
        )
    }

    pub(crate) fn cluster_policy(&mut self, name: usize) -> String {
        let tier = self.pick(&["Admin", "Baseline"]);
        let priority = self.below(3);
        let subject = match self.below(2) {
            0 => format!("namespaces: {}", self.pick(&NAMESPACE_SELECTORS)),
            _ => self.pods_peer(),
        };
        let mut rules = |peers: &str| {
            let rules: Vec<String> = (0..self.below(4)).map(|_| self.cluster_rule(peers)).collect();
            rules.join(", ")
        };
        let (ingress, egress) = (rules("from"), rules("to"));
        format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: \
             t{name}}}\nspec: {{tier: {tier}, priority: {priority}, subject: {{{subject}}}, ingress: [{ingress}], \
             egress: [{egress}]}}\n"
        )
    }

    fn cluster_rule(&mut self, peers: &str) -> String {
        let action = self.pick(&["Accept", "Deny", "Deny", "Pass"]);
        let of_peers: Vec<String> = (0..1 + self.below(2)).map(|_| self.cluster_peer(peers == "to")).collect();
        let has_addresses = of_peers.iter().any(|it| it.contains("networks") || it.contains("nodes"));
        // A port's name has no meaning beside addresses.
        let known = if has_addresses { &PROTOCOLS[..4] } else { &PROTOCOLS[..] };
        let ports: Vec<&str> = (0..self.below(3)).map(|_| self.pick(known)).collect();
        let protocols = if ports.is_empty() { String::new() } else { format!(", protocols: [{}]", ports.join(", ")) };
        format!("{{action: {action}, {peers}: [{}]{protocols}}}", of_peers.join(", "))
    }

    fn cluster_peer(&mut self, is_egress: bool) -> String {
        match self.below(if is_egress { 4 } else { 2 }) {
            0 => format!("{{namespaces: {}}}", self.pick(&NAMESPACE_SELECTORS)),
            1 => format!("{{{}}}", self.pods_peer()),
            2 => format!("{{networks: ['{}']}}", self.pick(&NETWORKS)),
            _ => format!("{{nodes: {}}}", self.pick(&["{}", "{matchLabels: {zone: a}}"])),
        }
    }

    fn pods_peer(&mut self) -> String {
        let (namespaces, pods) = (self.pick(&NAMESPACE_SELECTORS), self.pick(&SELECTORS));
        format!("pods: {{namespaceSelector: {namespaces}, podSelector: {pods}}}")
    }

    pub(crate) fn namespace(&mut self, name: &str) -> String {
        let labels = self.pick(&["{}", "{team: a}", "{team: b}", "{team: c, zone: x}"]);
        format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {labels}}}\n")
    }

    pub(crate) fn pod(&mut self, index: usize, namespaces: &[&str]) -> String {
        let namespace = self.pick(namespaces).to_owned();
        let mut labels: Vec<&str> = Vec::new();
        labels.extend(["app: web", "app: db", "app: zzz"].get(self.below(4)));
        labels.extend(["tier: front", "tier: zzz"].get(self.below(3)));
        let port = self.pick(&[
            "{name: http, containerPort: 80}",
            "{name: http, containerPort: 5432}",
            "{containerPort: 80}",
            "{name: dns, containerPort: 53, protocol: UDP}",
        ]);
        // Two pods cannot share an address, so each has a last byte of its own, or a third byte of its own.
        let (block, last) = (index / 200, index % 200 + 5);
        let address = match (self.below(4), block) {
            (0, 0) => format!("10.0.0.{last}"),
            (1, 0) => format!("10.0.1.{last}"),
            (0 | 1, _) => format!("10.0.{}.{last}", block + 1),
            (2, _) => format!("10.7.{block}.{last}"),
            _ => format!("203.0.{}.{last}", 113 - block),
        };
        let labels = labels.join(", ");
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: pod{index}, namespace: {namespace}, labels: \
             {{{labels}}}}}\nspec: {{containers: [{{name: c, image: i, ports: [{port}]}}]}}\nstatus: {{phase: Running, \
             podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
        )
    }
}

/// Two sides, and what both need so that possible pods can be added.
pub(crate) struct Case {
    pub(crate) sides: [String; 2],
    /// Namespace objects for namespaces that no side declares, and pods.
    pub(crate) added: String,
}

/// The kinds that a case has besides namespaces and NetworkPolicies.
#[derive(Clone, Copy)]
pub(crate) struct With {
    pub(crate) lists: bool,
    pub(crate) tiers: bool,
}

pub(crate) fn case(numbers: &[u32], with: With) -> Case {
    let mut it = Choices { numbers: numbers.iter() };
    let mut sides = [String::new(), String::new()];
    let mut added = String::new();
    for name in NAMESPACES {
        match it.below(5) {
            0 => sides.iter_mut().for_each(|side| side.push_str(&Choices { numbers: numbers.iter() }.namespace(name))),
            1 => sides.iter_mut().for_each(|side| side.push_str(&it.namespace(name))),
            2 => {
                // One side alone declares it: its labels hold for both.
                let side = it.below(2);
                let namespace = it.namespace(name);
                sides[side].push_str(&namespace);
            }
            _ => added.push_str(&it.namespace(name)),
        }
    }
    for index in 0..1 + it.below(4) {
        let policy = it.policy(index);
        match it.below(5) {
            0 => sides[0].push_str(&policy),
            1 => sides[1].push_str(&policy),
            2 => {
                sides[0].push_str(&policy);
                sides[1].push_str(&it.policy(index));
            }
            // Renamed: no difference.
            3 => {
                sides[0].push_str(&policy);
                sides[1].push_str(&policy.replace(&format!("name: p{index}"), &format!("name: renamed-{index}")));
            }
            _ => sides.iter_mut().for_each(|side| side.push_str(&policy)),
        }
    }
    for index in 0..it.below(3) * usize::from(with.lists) {
        let list = it.list(index);
        match it.below(3) {
            0 => sides[it.below(2)].push_str(&list),
            1 => {
                sides[0].push_str(&list);
                sides[1].push_str(&it.list(index));
            }
            _ => sides.iter_mut().for_each(|side| side.push_str(&list)),
        }
    }
    if with.tiers {
        tiers(&mut it, &mut sides);
    }
    for index in 0..4 {
        added.push_str(&it.pod(index, &NAMESPACES));
    }
    let more = more_numbers(numbers, 6 * pods_of_a_case().saturating_sub(4));
    let mut it = Choices { numbers: more.iter() };
    for index in 4..pods_of_a_case() {
        added.push_str(&it.pod(index, &NAMESPACES));
    }
    Case { sides, added }
}

/// Cluster-wide policies, a part of which differs, and a node.
fn tiers(it: &mut Choices<'_>, sides: &mut [String; 2]) {
    let node = |zone: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-1, labels: {{zone: {zone}}}}}\nstatus: {{addresses: \
             [{{type: InternalIP, address: 203.0.113.9}}]}}\n"
        )
    };
    sides[0].push_str(&node("a"));
    sides[1].push_str(&node(it.pick(&["a", "a", "b"])));
    for index in 0..1 + it.below(4) {
        let policy = it.cluster_policy(index);
        match it.below(6) {
            0 => sides[0].push_str(&policy),
            1 => sides[1].push_str(&policy),
            2 => {
                sides[0].push_str(&policy);
                sides[1].push_str(&it.cluster_policy(index));
            }
            // Another place in the tier.
            3 => {
                sides[0].push_str(&policy);
                let (before, after) = policy.split_once("priority: ").unwrap();
                sides[1].push_str(&format!("{before}priority: 1{after}"));
            }
            _ => sides.iter_mut().for_each(|side| side.push_str(&policy)),
        }
    }
}

/// The choices of a case.
pub(crate) fn numbers() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(any::<u32>(), 160)
}

/// The choices of a case with cluster-wide policies.
pub(crate) fn numbers_with_tiers() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(any::<u32>(), 320)
}

/// The number of pods of a case: `WEIR_POSSIBLE_PODS` for a long run.
pub(crate) fn pods_of_a_case() -> usize {
    std::env::var("WEIR_POSSIBLE_PODS").ok().and_then(|it| it.parse().ok()).unwrap_or(4)
}

/// Numbers that follow from those of the case: so many would make shrinking slow.
fn more_numbers(numbers: &[u32], count: usize) -> Vec<u32> {
    const FACTOR: u64 = 6_364_136_223_846_793_005;
    let mut state = numbers.iter().fold(1u64, |state, it| state.wrapping_mul(FACTOR).wrapping_add(u64::from(*it) | 1));
    let mut next = || {
        state = state.wrapping_mul(FACTOR).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..count).map(|_| next()).collect()
}
