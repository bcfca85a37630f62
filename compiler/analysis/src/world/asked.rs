//! One question about pods that are described: the verdicts of every pod that a description fits.
//!
//! Problem: a description may leave out the pod's address, the labels of its namespace, and the names of its ports, and
//! policies may test each of them. These properties are then unknown, not absent.
//! Strategy: evaluate the flow as the reference does, with a diagram in place of each test whose result is unknown
//! ([`sides`]). Labels, declared namespaces and the other end are known and tested directly, so the diagrams are over
//! the unknown properties alone, and are small.
//! Invariants: a verdict is in the answer if and only if a pod that fits the description gets it. The reference has
//! confirmed an example of each. Tests: `compiler/analysis/tests/world/asked.rs`.

mod numbers;
mod sides;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use super::diagram::{Diagram, Diagrams, Var};
use super::examples::{PossiblePod, familiar};
use super::variables::{FAMILY, Labelled, Meaning, Role, Variables};
use super::{MOST_NODES, WorldError};
use crate::addresses::{AddressRange, AddressSet};
use numbers::{address_diagram, address_of, chosen};
use sides::AskedParty;
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::{AddedPod, Cluster, EndpointId, NamedPort, Standing};
use weir_objects::address::Family;
use weir_objects::k8s::{Labels, NAMESPACE_NAME_LABEL};

/// At most this many conditions are listed.
const MOST_CONDITIONS: usize = 6;

/// A pod that is described instead of named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its labels; every other label is absent.
    pub labels: Labels,
    /// The labels of its namespace. Without them, a namespace that the input does not declare may have any labels.
    pub namespace_labels: Option<Labels>,
    /// Names of its ports. Without them, the pod may give its ports any names.
    pub ports: Option<Vec<NamedPort>>,
    /// Its address. Without it, the pod may have any address that no object of the input has.
    pub address: Option<IpAddr>,
}

/// An end of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedEnd {
    /// A pod, a workload, or an address, with the addresses that it may use; none for a workload.
    Known(Option<EndpointId>, Vec<IpAddr>),
    /// A pod that is described.
    Described(DescribedPod),
}

/// A destination of a question, with protocol and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedTarget {
    /// The receiver.
    pub end: AskedEnd,
    /// The protocol.
    pub protocol: FlowProtocol,
    /// The destination port; 0 if the protocol has none.
    pub port: u16,
}

/// Is a connection allowed from a source to each of some targets? At least one end is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenQuestion {
    /// The sender.
    pub source: AskedEnd,
    /// The backends of a service that is asked about, or one destination.
    pub targets: Vec<AskedTarget>,
}

/// The verdicts of the pods that the descriptions fit.
#[derive(Clone, Debug)]
pub struct OpenAnswer {
    /// Pods of which all flows are allowed; `None` if there are no such pods.
    pub allowed: Option<FlowExample>,
    /// Pods of which a flow is denied; `None` if there are no such pods.
    pub denied: Option<FlowExample>,
    /// The properties that the verdict depends on; none if there is only one verdict.
    pub depends_on: BTreeSet<OpenProperty>,
    /// Conditions under which all flows are allowed, as text; none if there is only one verdict.
    pub allowed_if: Vec<String>,
    /// Whether more conditions exist than are listed.
    pub has_more_conditions: bool,
}

impl OpenAnswer {
    /// The verdict; `None` if it depends on properties that the descriptions leave out.
    pub fn verdict(&self) -> Option<Verdict> {
        match (&self.allowed, &self.denied) {
            (Some(_), None) => Some(Verdict::Allow),
            (None, Some(_)) => Some(Verdict::Deny),
            _ => None,
        }
    }

    /// One example for each verdict.
    pub fn examples(self) -> impl Iterator<Item = FlowExample> {
        self.allowed.into_iter().chain(self.denied)
    }
}

/// Something that a description leaves out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenProperty {
    /// The address of the source.
    SourceAddress,
    /// The address of the destination.
    DestinationAddress,
    /// The labels of the namespace with this name.
    NamespaceLabels(String),
    /// Names that the destination gives to the port.
    PortNames,
}

/// Pods that fit the descriptions, as pods of a cluster.
#[derive(Clone, Debug)]
pub struct FlowExample {
    /// The cluster with the pods, which are its last endpoints.
    pub cluster: Cluster,
    /// For each target the flow to it, and the verdict of the reference.
    pub flows: Vec<(Flow, Judgement)>,
    /// The pods, if source and destination are described ones.
    pub pods: [Option<PossiblePod>; 2],
}

impl FlowExample {
    fn verdict(&self) -> Verdict {
        self.flows.iter().map(|(_, judgement)| judgement.verdict()).max().unwrap_or(Verdict::Allow)
    }
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenQuestionError {
    /// The description contradicts the input.
    #[error("{0}")]
    Description(String),
    /// The diagrams are too large, or contradict the reference.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// Asks for the verdicts of all pods that the descriptions fit.
pub fn ask(cluster: &Cluster, question: &OpenQuestion) -> Result<OpenAnswer, OpenQuestionError> {
    let mut asked = Asked::new(cluster, question)?;
    let allowed = asked.allowed(question)?;
    let all = asked.possible()?;
    let (yes, no) = (asked.diagrams.and(all, allowed)?, asked.diagrams.and_not(all, allowed)?);
    let allowed_example = asked.example(question, yes, Verdict::Allow)?;
    let denied = asked.example(question, no, Verdict::Deny)?;
    let mut answer = OpenAnswer {
        allowed: allowed_example,
        denied,
        depends_on: BTreeSet::new(),
        allowed_if: Vec::new(),
        has_more_conditions: false,
    };
    if answer.verdict().is_none() {
        asked.explain_conditions(allowed, &mut answer);
    }
    Ok(answer)
}

/// The labels of a namespace that a description names.
#[derive(Clone, Debug)]
enum NamespaceLabels {
    /// They are declared, or given by a description.
    Known(Labels),
    /// The variables of this end's namespace stand for them.
    Unknown(Role),
}

/// A question, prepared for its evaluation.
struct Asked<'c> {
    cluster: &'c Cluster,
    variables: Variables,
    diagrams: Diagrams,
    /// Namespaces of described pods.
    namespaces: BTreeMap<String, NamespaceLabels>,
    source: AskedParty,
    targets: Vec<AskedParty>,
    /// The addresses of each list.
    lists: Vec<AddressSet>,
    /// The families that all known ends have.
    families: Vec<Family>,
    /// Addresses that no described pod can have: objects of the input have them.
    taken: HashSet<IpAddr>,
}

impl<'c> Asked<'c> {
    fn new(cluster: &'c Cluster, question: &OpenQuestion) -> Result<Self, OpenQuestionError> {
        let directory = Directory::new(cluster);
        let source = AskedParty::new(cluster, &directory, Role::Source, &question.source);
        let targets: Vec<AskedParty> = question
            .targets
            .iter()
            .map(|it| AskedParty::new(cluster, &directory, Role::Destination, &it.end))
            .collect();
        let pods =
            cluster.endpoints.iter().filter(|it| matches!(it.standing, Standing::Member | Standing::HostNetwork));
        let mut taken: HashSet<IpAddr> = pods.flat_map(|it| it.addresses.iter().copied()).collect();
        taken.extend(cluster.nodes.iter().flat_map(|it| it.addresses.iter().copied()));
        taken.extend(cluster.frontends.iter().map(|it| it.address));
        let ends = || std::iter::once(&question.source).chain(question.targets.iter().map(|it| &it.end));
        taken.extend(ends().flat_map(|end| match end {
            AskedEnd::Known(_, addresses) => addresses.clone(),
            AskedEnd::Described(_) => Vec::new(),
        }));
        for address in ends().filter_map(described).filter_map(|pod| pod.address) {
            if !taken.insert(address) {
                let is_pods = directory.endpoint_at(address).is_some();
                let owner = if is_pods { "a pod" } else { "a node, a service or the other end" };
                return Err(OpenQuestionError::Description(format!("{owner} already has the address {address}")));
            }
        }
        let families = families(std::iter::once(&source).chain(&targets));
        if families.is_empty() {
            let reason = "source and destination have no address family in common";
            return Err(OpenQuestionError::Description(reason.to_owned()));
        }
        Ok(Self {
            cluster,
            variables: Variables::of([cluster, cluster]),
            diagrams: Diagrams::new(MOST_NODES),
            namespaces: namespaces(cluster, question)?,
            source,
            targets,
            lists: cluster.lists.iter().map(AddressSet::of_list).collect(),
            families,
            taken,
        })
    }

    /// The pods that the descriptions fit, as far as addresses are concerned: they have the family of the known ends,
    /// and no object of the input has them.
    fn possible(&mut self) -> Result<Diagram, WorldError> {
        let mut all = self.within_families(Diagram::ALL)?;
        let taken = AddressSet::new(self.taken.iter().map(|it| AddressRange { first: *it, last: *it }).collect());
        for role in [Role::Source, Role::Destination] {
            let is_open = match role {
                Role::Source => self.source.addresses.is_none(),
                Role::Destination => self.targets.iter().any(|it| it.addresses.is_none()),
            };
            if is_open {
                let used = address_diagram(&mut self.diagrams, &self.variables, &taken, role)?;
                all = self.diagrams.and_not(all, used)?;
            }
        }
        Ok(all)
    }

    fn within_families(&mut self, all: Diagram) -> Result<Diagram, WorldError> {
        let of = |family| if self.families.contains(&family) { all } else { Diagram::NONE };
        let cuts = [(Family::V4 as u128, of(Family::V4)), (Family::V6 as u128, of(Family::V6))];
        self.diagrams.node(FAMILY, cuts)
    }

    /// Pods of a region with the reference's verdict. `None` if the region is empty, or if both pods would have to have
    /// one address.
    fn example(
        &mut self,
        question: &OpenQuestion,
        mut region: Diagram,
        expected: Verdict,
    ) -> Result<Option<FlowExample>, OpenQuestionError> {
        while !region.is_empty() {
            let mut family = self.families.first().copied().unwrap_or(Family::V4);
            let path = self.diagrams.example(region, |var, intervals| {
                chosen(&self.taken, self.variables.meaning(var), &mut family, intervals)
            });
            let pods = self.pods(question, family, &path);
            if let [Some(source), Some(destination)] = &pods
                && source.address == destination.address
            {
                let one = AddressSet::new(vec![AddressRange { first: source.address, last: source.address }]);
                let [source, destination] = [Role::Source, Role::Destination]
                    .map(|role| address_diagram(&mut self.diagrams, &self.variables, &one, role));
                let same = self.diagrams.and(source?, destination?)?;
                region = self.diagrams.and_not(region, same)?;
                continue;
            }
            let example = self.judged(question, family, pods);
            if example.verdict() != expected {
                let reason = format!("{:?}: {:?}, not {expected:?}", example.pods, example.verdict());
                return Err(WorldError::Contradiction(reason).into());
            }
            return Ok(Some(example));
        }
        Ok(None)
    }

    fn pods(&self, question: &OpenQuestion, family: Family, path: &[(Var, u128)]) -> [Option<PossiblePod>; 2] {
        let mut names = Vec::new();
        let mut addresses = [None, None];
        let mut namespace_labels = [Labels::new(), Labels::new()];
        for (var, number) in path {
            match self.variables.meaning(*var) {
                Meaning::PortName(name) => names.extend((*number != 0).then(|| name.to_owned())),
                Meaning::Address(role) => addresses[role as usize] = Some(*number),
                Meaning::Label(role, of, key) => {
                    let value = self.variables.value(of, key, *number).filter(|_| of == Labelled::Namespace);
                    namespace_labels[role as usize].extend(value.map(|value| (key.to_owned(), value)));
                }
                Meaning::Family | Meaning::Protocol | Meaning::Port => {}
            }
        }
        let target = question.targets.first();
        let ends = [(Role::Source, Some(&question.source)), (Role::Destination, target.map(|it| &it.end))];
        ends.map(|(role, end)| {
            let pod = described(end?)?;
            let namespace_labels = match self.namespaces.get(&pod.namespace)? {
                NamespaceLabels::Unknown(role) => Some(namespace_labels[*role as usize].clone()),
                NamespaceLabels::Known(labels) => pod.namespace_labels.as_ref().map(|_| labels.clone()),
            };
            let named = |name: &String| match target?.protocol {
                FlowProtocol::Transport(protocol) if role == Role::Destination => {
                    Some(NamedPort { name: name.clone(), protocol, number: target?.port })
                }
                _ => None,
            };
            let number: Option<u128> = addresses[role as usize];
            let any = || number.map_or_else(|| familiar(family, role), |number| address_of(family, number));
            Some(PossiblePod {
                namespace: pod.namespace.clone(),
                labels: pod.labels.clone(),
                namespace_labels,
                ports: pod.ports.clone().unwrap_or_else(|| names.iter().filter_map(named).collect()),
                address: pod.address.unwrap_or_else(any),
                address_matters: pod.address.is_some(),
            })
        })
    }

    /// The verdicts of the reference, with the pods in the cluster.
    fn judged(&self, question: &OpenQuestion, family: Family, pods: [Option<PossiblePod>; 2]) -> FlowExample {
        let mut cluster = self.cluster.clone();
        let [source, destination] = pods.each_ref().map(|pod| {
            let pod = pod.as_ref()?;
            let known = match &self.namespaces[&pod.namespace] {
                NamespaceLabels::Known(labels) => Some(labels.clone()),
                NamespaceLabels::Unknown(_) => pod.namespace_labels.clone(),
            };
            let endpoint = cluster.add_pod(AddedPod {
                namespace: pod.namespace.clone(),
                namespace_labels: known,
                labels: pod.labels.clone(),
                ports: pod.ports.clone(),
                address: Some(pod.address),
            });
            cluster.endpoints[endpoint.index()].name = labels_text(&pod.labels);
            Some(FlowEnd { endpoint: Some(endpoint), address: Some(pod.address) })
        });
        let known = |party: &AskedParty| FlowEnd {
            endpoint: party.endpoint,
            address: party.addresses.iter().flatten().copied().find(|it| Family::of(*it) == family),
        };
        let mut oracle = Oracle::new(&cluster);
        let targets = self.targets.iter().zip(&question.targets);
        let flows = targets
            .map(|(party, target)| {
                let source = source.unwrap_or_else(|| known(&self.source));
                let destination = destination.unwrap_or_else(|| known(party));
                let flow = Flow { source, destination, protocol: target.protocol, port: target.port };
                let judgement = oracle.judge(&flow);
                (flow, judgement)
            })
            .collect();
        FlowExample { cluster, flows, pods }
    }
}

/// `app=web,tier=front`; `=` for a pod without labels.
pub fn labels_text(labels: &Labels) -> String {
    match labels.is_empty() {
        true => "=".to_owned(),
        false => labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","),
    }
}

fn described(end: &AskedEnd) -> Option<&DescribedPod> {
    match end {
        AskedEnd::Described(pod) => Some(pod),
        AskedEnd::Known(..) => None,
    }
}

/// The families that a flow between the ends may have.
fn families<'p>(parties: impl Iterator<Item = &'p AskedParty>) -> Vec<Family> {
    let mut families = vec![Family::V4, Family::V6];
    for addresses in parties.filter_map(|it| it.addresses.as_ref()).filter(|it| !it.is_empty()) {
        families.retain(|family| addresses.iter().any(|it| Family::of(*it) == *family));
    }
    families
}

/// The namespaces of described pods. All pods of a namespace see the same labels, so a description may give them for
/// both ends.
fn namespaces(
    cluster: &Cluster,
    question: &OpenQuestion,
) -> Result<BTreeMap<String, NamespaceLabels>, OpenQuestionError> {
    let mut known: BTreeMap<String, NamespaceLabels> = BTreeMap::new();
    let ends =
        [(Role::Source, Some(&question.source)), (Role::Destination, question.targets.first().map(|it| &it.end))];
    let pods = || ends.iter().filter_map(|(role, end)| Some((*role, described((*end)?)?)));
    for (_, pod) in pods() {
        let declared = cluster.namespaces.iter().find(|it| it.name == pod.namespace && it.object.is_some());
        if let Some(declared) = declared {
            let labels = cluster.labels.labels(declared.labels).clone();
            known.insert(pod.namespace.clone(), NamespaceLabels::Known(labels));
        }
    }
    for (_, pod) in pods() {
        let Some(given) = &pod.namespace_labels else { continue };
        let mut given = given.clone();
        given.insert(NAMESPACE_NAME_LABEL, &pod.namespace);
        let is_other = match known.get(&pod.namespace) {
            Some(NamespaceLabels::Known(labels)) => *labels != given,
            _ => false,
        };
        if is_other {
            let reason = format!("the input declares the namespace {} with other labels", pod.namespace);
            let by_two = format!("both ends are in the namespace {}, with different labels of it", pod.namespace);
            let declared = cluster.namespaces.iter().any(|it| it.name == pod.namespace && it.object.is_some());
            return Err(OpenQuestionError::Description(if declared { reason } else { by_two }));
        }
        known.insert(pod.namespace.clone(), NamespaceLabels::Known(given));
    }
    for (role, pod) in pods() {
        known.entry(pod.namespace.clone()).or_insert(NamespaceLabels::Unknown(role));
    }
    Ok(known)
}
