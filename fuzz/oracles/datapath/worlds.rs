//! Generations: small clusters with different policies for one pod, and the reference oracle's verdicts for each.

use std::net::IpAddr;

use weir_artifact::map_image::MapImage;
use weir_classes::Scope;
use weir_codegen::map_images;
use weir_ebpf::asm::Assembled;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Direction, EndpointId, Established, Protocol};
use weir_objects::decode::{DecodeOptions as Decoding, Input, InputKind, decode};

use super::model::{Endpoint, Policy};
use crate::oracles::engines::Compiled;

/// The pods under test: of both families, and of one.
pub const PODS: [&str; 3] = ["dual", "four", "six"];

/// The pods' addresses.
pub fn endpoint(pod: usize) -> Endpoint {
    let address = |text: &str| text.parse().ok();
    match PODS[pod] {
        "dual" => Endpoint { v4: address("10.0.0.1"), v6: address("fd00::1"), hardware: None },
        "four" => Endpoint { v4: address("10.0.0.4"), v6: None, hardware: None },
        _ => Endpoint { v4: None, v6: address("fd00::6"), hardware: None },
    }
}

/// One generation. `ingress` and `egress` are rules in YAML; `None` where no policy selects the pods.
struct Saying {
    name: &'static str,
    ingress: Option<&'static str>,
    egress: Option<&'static str>,
    /// Whether the rules can deny anything: to the pod, from the pod.
    filters: [bool; 2],
    client: &'static str,
    node: [&'static str; 2],
    keeps: bool,
}

const NODE: [&str; 2] = ["192.168.0.1", "fd00:c0::1"];
const MOVED_NODE: [&str; 2] = ["192.168.0.9", "fd00:c0::9"];

const FROM_CLIENT: &str = "[{from: [{podSelector: {matchLabels: {app: client}}}], \
    ports: [{port: 80}, {port: 53, protocol: UDP}, {port: 90, protocol: SCTP}]}, \
    {from: [{ipBlock: {cidr: 10.8.0.0/16}}, {ipBlock: {cidr: 'fd08::/64'}}], ports: [{port: 443}]}]";
const FROM_FRIEND: &str = "[{from: [{ipBlock: {cidr: 10.8.0.0/16}}, {ipBlock: {cidr: 'fd08::/64'}}]}]";
const TO_FRIEND: &str = "[{to: [{ipBlock: {cidr: 10.8.0.0/16}}, {ipBlock: {cidr: 'fd08::/64'}}]}, \
    {to: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 443}, {port: 53, protocol: UDP}]}]";
const TO_CLIENT: &str = "[{to: [{podSelector: {matchLabels: {app: client}}}]}]";
const ALL: &str = "[{}]";
const NOTHING: &str = "[]";

const SAYINGS: [Saying; 12] = [
    saying("no policy", None, None, [false, false]),
    saying("ingress only", Some(FROM_CLIENT), None, [true, false]),
    saying("egress only", None, Some(TO_FRIEND), [false, true]),
    saying("both", Some(FROM_CLIENT), Some(TO_FRIEND), [true, true]),
    saying("the other way round", Some(FROM_FRIEND), Some(TO_CLIENT), [true, true]),
    saying("nothing passes", Some(NOTHING), Some(NOTHING), [true, true]),
    saying("all may come", Some(ALL), Some(TO_FRIEND), [false, true]),
    saying("all may pass", Some(ALL), Some(ALL), [false, false]),
    Saying { client: "stranger", ..saying("the client is another", Some(FROM_CLIENT), Some(TO_FRIEND), [true, true]) },
    Saying { node: MOVED_NODE, ..saying("the node has moved", Some(FROM_CLIENT), Some(TO_FRIEND), [true, true]) },
    Saying { keeps: true, ..saying("both, flows are kept", Some(FROM_CLIENT), Some(TO_FRIEND), [true, true]) },
    Saying { keeps: true, ..saying("nothing begins, flows are kept", Some(NOTHING), Some(NOTHING), [true, true]) },
];

const fn saying(
    name: &'static str,
    ingress: Option<&'static str>,
    egress: Option<&'static str>,
    filters: [bool; 2],
) -> Saying {
    Saying { name, ingress, egress, filters, client: "client", node: NODE, keeps: false }
}

impl Saying {
    fn yaml(&self) -> String {
        let [four, six] = self.node;
        let mut yaml = format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: here}}\n\
             status: {{addresses: [{{type: InternalIP, address: {four}}}, {{type: InternalIP, address: '{six}'}}]}}\n\
             ---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: default}}\n"
        );
        yaml += &pod("dual", "pod", "here", &["10.0.0.1", "fd00::1"]);
        yaml += &pod("four", "pod", "here", &["10.0.0.4"]);
        yaml += &pod("six", "pod", "here", &["fd00::6"]);
        yaml += &pod("client", self.client, "elsewhere", &["10.0.0.2", "fd00::2"]);
        for (kind, rules) in [("Ingress", self.ingress), ("Egress", self.egress)] {
            if let Some(rules) = rules {
                let field = kind.to_lowercase();
                yaml += &format!(
                    "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                     metadata: {{name: {field}, namespace: default}}\n\
                     spec: {{podSelector: {{matchLabels: {{app: pod}}}}, policyTypes: [{kind}], {field}: {rules}}}\n"
                );
            }
        }
        yaml
    }
}

fn pod(name: &str, app: &str, node: &str, addresses: &[&str]) -> String {
    let all: Vec<String> = addresses.iter().map(|it| format!("{{ip: '{it}'}}")).collect();
    format!(
        "---\napiVersion: v1\nkind: Pod\n\
         metadata: {{name: {name}, namespace: default, labels: {{app: {app}}}}}\n\
         spec: {{nodeName: {node}, containers: [{{name: c, image: i}}]}}\n\
         status: {{phase: Running, podIP: '{}', podIPs: [{}]}}\n",
        addresses[0],
        all.join(", ")
    )
}

/// One generation: its cluster, and the maps and programs compiled from it.
pub struct World {
    /// A description in words.
    pub name: &'static str,
    cluster: Cluster,
    /// For each pod: the same cluster, but a copy of the pod has its addresses, and neither is on a node. In this
    /// cluster, the oracle treats no packet as the pod's own or its node's, so its verdicts are those of policy alone.
    strangers: Vec<Cluster>,
    pods: Vec<EndpointId>,
    filters: [bool; 2],
    keeps: bool,
    /// Maps with their content.
    pub maps: Vec<MapImage>,
    /// `to_pod`, `from_pod`.
    pub programs: [Assembled; 2],
    /// The value in `endpoints`, by pod.
    pub values: Vec<Vec<u8>>,
}

/// Compiles every generation.
pub fn worlds() -> Result<Vec<World>, String> {
    SAYINGS.iter().map(World::new).collect()
}

impl World {
    fn new(saying: &Saying) -> Result<Self, String> {
        let input = Input { name: saying.name.into(), bytes: saying.yaml().into(), kind: InputKind::Manifest };
        let (decoded, found) =
            decode(vec![input], &Decoding { default_namespace: "default".into(), is_from_server: false });
        if found.has_errors() {
            return Err(format!("{}: {found:?}", saying.name));
        }
        let established = if saying.keeps { Established::Keep } else { Established::default() };
        let (cluster, _) = resolve(&decoded.objects, Assumptions { established, ..Assumptions::default() });
        let find = |name: &&str| cluster.endpoints.iter().position(|it| it.name == **name);
        let pods: Option<Vec<_>> = PODS.iter().map(|name| find(name).map(|at| EndpointId(at as u32))).collect();
        let pods = pods.ok_or("a pod is missing")?;
        let strangers = pods.iter().map(|id| seen_by_strangers(&cluster, *id)).collect();
        let scope = Scope::node(&cluster, "here").ok_or("no node")?;
        let compiled = Compiled::new(&cluster, scope)?;
        let (maps, programs) = (compiled.maps(), compiled.programs()?);
        let entries = map_images::endpoints(&cluster, &compiled.classes, &compiled.tables);
        let value = |id: &EndpointId| entries.iter().find(|it| it.endpoint == *id).map(|it| it.value.to_vec());
        let values = pods.iter().map(value).collect::<Option<Vec<_>>>().ok_or("a pod has no entry")?;
        let Saying { name, filters, keeps, .. } = *saying;
        Ok(Self { name, cluster, strangers, pods, filters, keeps, maps, programs, values })
    }

    /// The policy for one of the pods.
    pub fn policy(&self, pod: usize) -> InForce<'_> {
        let (own, strangers) = (Oracle::new(&self.cluster), Oracle::new(&self.strangers[pod]));
        InForce { world: self, pod, own, strangers }
    }
}

/// Moves the pod's addresses to a copy of it with the same labels; both are on no node.
fn seen_by_strangers(cluster: &Cluster, pod: EndpointId) -> Cluster {
    let mut seen = cluster.clone();
    let mut twin = cluster.endpoints[pod.index()].clone();
    twin.node = None;
    twin.name.push_str("-twin");
    let own = &mut seen.endpoints[pod.index()];
    own.addresses.clear();
    own.node = None;
    seen.endpoints.push(twin);
    seen
}

/// One generation's verdicts about one pod.
pub struct InForce<'w> {
    world: &'w World,
    pod: usize,
    own: Oracle<'w>,
    strangers: Oracle<'w>,
}

impl Policy for InForce<'_> {
    fn allows(&mut self, direction: Direction, remote: IpAddr, protocol: u8, port: u16) -> bool {
        let protocol = match protocol {
            6 => FlowProtocol::Transport(Protocol::Tcp),
            17 => FlowProtocol::Transport(Protocol::Udp),
            132 => FlowProtocol::Transport(Protocol::Sctp),
            _ => FlowProtocol::Icmp,
        };
        let own = FlowEnd { endpoint: Some(self.world.pods[self.pod]), address: None };
        let other = FlowEnd { endpoint: None, address: Some(remote) };
        let (oracle, source, destination) = match direction {
            Direction::Egress => (&mut self.own, own, other),
            Direction::Ingress => (&mut self.strangers, other, own),
        };
        let judgement = oracle.judge(&Flow { source, destination, protocol, port });
        judgement.side(direction).verdict == Verdict::Allow
    }

    fn filters(&self, direction: Direction) -> bool {
        self.world.filters[usize::from(direction == Direction::Egress)]
    }

    fn is_own_node(&self, address: IpAddr) -> bool {
        self.world.cluster.nodes.iter().any(|node| node.name == "here" && node.addresses.contains(&address))
    }

    fn keeps_established(&self) -> bool {
        self.world.keeps
    }
}
