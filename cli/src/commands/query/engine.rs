//! The engines that judge flows, behind one interface.

use anyhow::{Error, Result, anyhow};
use weir_codegen::packet_engines::{self, ClusterEngine, EngineError, Interpreter, VmEngine};
use weir_iptables as iptables;
use weir_model::Cluster;
use weir_model::eval::{Flow, Judgement, Oracle};

use crate::args;
use crate::failure::with_hint;
#[cfg(feature = "enforce")]
use crate::kernel_engine;

/// One of the engines.
pub(super) enum QueryEngine<'c> {
    Reference(Oracle<'c>),
    Iptables(iptables::IptablesEngine<'c>),
    Compiled(ClusterEngine<'c>),
}

/// The reason why a flow has no answer.
pub(super) enum QueryError {
    /// The flow is invalid, or the engine cannot judge it; later flows may have answers.
    Skip(String),
    /// The engine failed: no later flow has an answer.
    Failed(Error),
}

impl<'c> QueryEngine<'c> {
    pub(super) fn new(engine: args::EngineChoice, cluster: &'c Cluster) -> Result<Self> {
        let compiled = |make| ClusterEngine::new(cluster, make).map(Self::Compiled).map_err(failed);
        match engine {
            args::EngineChoice::Reference => Ok(Self::Reference(Oracle::new(cluster))),
            args::EngineChoice::Iptables => {
                let engine = iptables::IptablesEngine::new(cluster);
                // The rules that we rendered could not be parsed again.
                Ok(Self::Iptables(engine.unwrap_or_else(|error| panic!("the rendered rules are broken: {error}"))))
            }
            args::EngineChoice::Ir => compiled(Interpreter::make()),
            args::EngineChoice::Vm => compiled(VmEngine::make()),
            #[cfg(feature = "enforce")]
            args::EngineChoice::Kernel => compiled(kernel_engine::make()?),
        }
    }

    /// Prepares for the next flows; returns for how many of them.
    pub(super) fn prepare(&mut self, flows: &[Flow]) -> usize {
        match self {
            Self::Reference(_) | Self::Iptables(_) => flows.len(),
            Self::Compiled(engine) => engine.prepare(flows),
        }
    }

    pub(super) fn judge(&mut self, flow: &Flow) -> Result<Judgement, QueryError> {
        match self {
            Self::Reference(oracle) => Ok(oracle.judge(flow)),
            Self::Iptables(engine) => engine.judge(flow).map_err(|reason| QueryError::Skip(reason.to_string())),
            Self::Compiled(engine) => engine.judge(flow).map_err(|error| match error {
                packet_engines::NoVerdict::Skip(reason) => QueryError::Skip(reason),
                packet_engines::NoVerdict::Engine(error) => QueryError::Failed(failed(error)),
            }),
        }
    }
}

fn failed(error: EngineError) -> Error {
    match error {
        EngineError::Compile(error) => anyhow!(error).context("the input cannot be compiled"),
        EngineError::Broken(broken) => with_hint(
            format!("the engine failed: {broken}"),
            "unless the kernel refused something, this is a bug in weir: please report it with the input",
        ),
    }
}
