//! Witness packets: the packets of a flow, with the verdicts of the emitted programs and the classes involved.
//!
//! Strategy: the engine `vm` translates the flow into packets at endpoints. A recorder around the machine notes each
//! packet, its verdict and its classes. Only the endpoints in question are compiled, so the cost in a large cluster
//! is that of its classes, not that of its rows. The class numbers are those of this compile.

mod describe;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weir_classes::Classes;
use weir_codegen::packet_engines::{ClusterEngine, Decide, EngineError, Make, NoVerdict, PacketQuestion, VmEngine};
use weir_machine::Broken;
use weir_model::directory::Directory;
use weir_model::eval::{Basis, Flow, Judgement, Verdict};
use weir_model::{Cluster, EndpointId, ServiceId};

use describe::ClassDescriber;
pub use describe::{ClassDescription, PacketClasses, summary};

/// One packet at one endpoint.
#[derive(Clone, Debug)]
pub struct WitnessPacket {
    /// The question to the program.
    pub question: PacketQuestion,
    /// The endpoint at whose interface the packet is.
    pub endpoint: EndpointId,
    /// The program's verdict.
    pub verdict: Verdict,
    /// The classes that the program finds.
    pub classes: PacketClasses,
    /// The packet's bytes, from the Ethernet header on.
    pub packet: Vec<u8>,
}

/// The packets of a judged flow, or the reason why the engine has no answer for it.
pub fn of(cluster: &Cluster, flow: &Flow, judgement: &Judgement) -> Result<Vec<WitnessPacket>, String> {
    let seen: Rc<RefCell<Vec<RecordedQuestion>>> = Rc::default();
    let asked = endpoints(cluster, flow, judgement);
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let mut engine = ClusterEngine::among(cluster, recorder(Rc::clone(&seen)), asked).map_err(|it| reason(&it))?;
    match engine.judge(flow) {
        Ok(_) => Ok(seen.borrow().iter().filter_map(|it| witness(cluster, it)).collect()),
        Err(NoVerdict::Skip(reason)) => Err(reason),
        Err(NoVerdict::Engine(error)) => Err(reason(&error)),
    }
}

fn reason(error: &EngineError) -> String {
    match error {
        EngineError::Compile(error) => format!("the input cannot be compiled: {error}"),
        EngineError::Broken(broken) => format!("the engine failed, which is a bug in weir: {broken}"),
    }
}

/// The endpoints that take part: both ends, and the backends of services and host ports. The engine compiles only
/// these, so that one question does not cost the rows of the whole cluster.
fn endpoints(cluster: &Cluster, flow: &Flow, judgement: &Judgement) -> BTreeSet<EndpointId> {
    let directory = Directory::new(cluster);
    let mut found: BTreeSet<EndpointId> = BTreeSet::new();
    for end in [&flow.source, &flow.destination] {
        found.extend(end.endpoint.or_else(|| directory.endpoint_at(end.address?)));
    }
    for side in [&judgement.egress, &judgement.ingress] {
        if let Basis::HostPorts(basis) = &side.basis {
            let backends = basis.claims.iter().filter_map(|(index, _)| Some(&cluster.host_ports.get(*index)?.backend));
            found.extend(backends.clone().filter_map(|it| it.endpoint));
            found.extend(backends.filter_map(|it| directory.endpoint_at(it.address?)));
        }
        let claims: Vec<(ServiceId, u32)> = match &side.basis {
            Basis::Service(basis) => basis.port.map(|port| (basis.service, port)).into_iter().collect(),
            Basis::Claims(basis) => basis.claims.iter().map(|(claim, _)| *claim).collect(),
            _ => Vec::new(),
        };
        for (service, port) in claims {
            let port = cluster.services[service.index()].ports.get(port as usize);
            let backends = port.map_or(&[][..], |port| &port.backends);
            found.extend(backends.iter().filter_map(|it| it.endpoint));
            found.extend(backends.iter().filter_map(|it| directory.endpoint_at(it.address?)));
        }
    }
    found
}

fn recorder(seen: Rc<RefCell<Vec<RecordedQuestion>>>) -> Box<Make> {
    Box::new(move |compiled| {
        let classes = Rc::new(compiled.classes.clone());
        Ok(Box::new(Recorder { machine: VmEngine::new(compiled)?, classes, seen: Rc::clone(&seen) }))
    })
}

struct Recorder {
    machine: VmEngine,
    classes: Rc<Classes>,
    seen: Rc<RefCell<Vec<RecordedQuestion>>>,
}

/// A question to the machine, its answer, and the classes of the compile.
struct RecordedQuestion {
    question: PacketQuestion,
    verdict: Verdict,
    classes: Rc<Classes>,
}

impl Decide for Recorder {
    fn decide(&mut self, question: &PacketQuestion) -> Result<Verdict, Broken> {
        let verdict = self.machine.decide(question)?;
        let classes = Rc::clone(&self.classes);
        self.seen.borrow_mut().push(RecordedQuestion { question: *question, verdict, classes });
        Ok(verdict)
    }
}

fn witness(cluster: &Cluster, seen: &RecordedQuestion) -> Option<WitnessPacket> {
    let RecordedQuestion { question, verdict, classes } = seen;
    let (endpoint, _) = *classes.subject_of.get(question.place)?;
    let classes = ClassDescriber { cluster, classes }.packet(question);
    let packet = question.first_packet()?;
    Some(WitnessPacket { question: *question, endpoint, verdict: *verdict, classes, packet })
}
