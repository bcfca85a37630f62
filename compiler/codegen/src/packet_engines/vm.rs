//! Engine `vm`: sends a packet through the emitted programs with the emitted maps.

use super::{Broken, Decide, Make, PacketQuestion};
use crate::compile::Compiled;
use weir_machine::LoadedPrograms;
use weir_model::eval::Verdict;

/// The emitted programs of one compile, in the userspace machine.
#[derive(Debug)]
pub struct VmEngine(LoadedPrograms);

impl VmEngine {
    /// Loads the compiled programs and maps.
    pub fn new(compiled: &Compiled) -> Result<Self, Broken> {
        let endpoints: Vec<&[u8]> = compiled.endpoints.iter().map(|it| it.value.as_slice()).collect();
        LoadedPrograms::new(compiled.programs.each_ref(), &compiled.maps, &endpoints).map(Self)
    }

    /// For [`super::ClusterEngine::new`].
    pub fn make() -> Box<Make> {
        Box::new(|compiled| Ok(Box::new(Self::new(compiled)?)))
    }
}

impl Decide for VmEngine {
    fn decide(&mut self, question: &PacketQuestion) -> Result<Verdict, Broken> {
        // The subject class of the question is not passed on: the program reads it from the endpoint's value, so this
        // engine tests that value too.
        let packet = question.first_packet().ok_or_else(|| Broken("a packet of two families".to_owned()))?;
        self.0.run(question.direction, question.place, packet, question.own_node)
    }
}
