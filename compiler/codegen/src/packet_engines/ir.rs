//! Engine `ir`: interprets the decision before and after the passes; both verdicts must be equal.

use super::world::transport;
use super::{Broken, Decide, Make, PacketQuestion};
use crate::compile::Compiled;
use crate::ir::{self, DecisionProgram, DecisionTables, PacketFacts};
use weir_artifact::layout::direction_number;
use weir_model::Direction;
use weir_model::eval::Verdict;

/// The decisions of one compile.
#[derive(Debug)]
pub struct Interpreter {
    general: [DecisionProgram; 2],
    decisions: [DecisionProgram; 2],
    tables: DecisionTables,
}

impl Interpreter {
    /// An interpreter of the decisions in `compiled`.
    pub fn new(compiled: &Compiled) -> Self {
        // Both: the general program states the decision, the other one is its form after the passes, specialised to
        // this input.
        let (general, decisions) = (compiled.general.clone(), compiled.decisions.clone());
        Self { general, decisions, tables: compiled.tables.clone() }
    }

    /// For [`super::ClusterEngine::new`].
    pub fn make() -> Box<Make> {
        Box::new(|compiled| Ok(Box::new(Self::new(compiled))))
    }
}

impl Decide for Interpreter {
    fn decide(&mut self, question: &PacketQuestion) -> Result<Verdict, Broken> {
        let facts = PacketFacts {
            subject: question.subject.0,
            remote: question.remote,
            protocol: transport(question.protocol),
            port: question.port,
            itself: question.own == question.remote,
            // On egress the programs know the node by its address, so the fact is about ingress only: there the address
            // alone proves nothing, and the packet must have been sent by this host.
            own_node: question.own_node && question.direction == Direction::Ingress,
            // A question is about a new flow, and an ICMP error never begins one.
            icmp_error: false,
        };
        let direction = direction_number(question.direction) as usize;
        let run =
            |program: &DecisionProgram| ir::run(program, &self.tables, &facts).map_err(|it| Broken(it.to_string()));
        let (general, narrowed) = (run(&self.general[direction])?, run(&self.decisions[direction])?);
        match general == narrowed {
            true => Ok(general.0),
            // An error and not one of the two verdicts: returning either would decide which of them is right, and the
            // comparison with other engines might accept it.
            false => Err(Broken(format!("the passes changed a verdict: {question:?}"))),
        }
    }
}
