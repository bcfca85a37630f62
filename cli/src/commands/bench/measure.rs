//! Sends packets of established, new and denied flows, and measures the time of each.

use anyhow::{Context as _, Result, ensure};
use weir_artifact::Artifact;
use weir_machine::DROP;
use weir_model::Direction;
use weir_objects::address::Family;
use weir_runtime::sys::{BpfKernel, KernelProgram};
use weir_runtime::trial::driver::{Driver, DriverTraffic};
use weir_runtime::trial::{self, Trial};

use super::find::{FlowPair, MeasuredFlow};

/// Numbers of established flows that packets cycle through.
pub(super) const FLOWS: [u32; 2] = [1, 1_024];
/// Slots for flows: twice the number that begin.
const SLOTS: u32 = 1 << 16;
/// Number of rounds; `NEW` flows begin in each.
const ROUNDS: u32 = 4;
const NEW: u32 = 1 << 13;
/// Number of times that the table is filled.
const FILLED: u32 = 4;
const RUNS: usize = 20;
/// Packets per run.
const REPEAT: u32 = 50_000;

/// Nanoseconds; `None` where there is no such flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketTimes {
    pub(super) established: [Option<f64>; FLOWS.len()],
    pub(super) new: Option<f64>,
    pub(super) denied: Option<f64>,
}

/// The loaded programs, and a program that does nothing.
pub(super) struct PacketBench<'a> {
    kernel: &'a BpfKernel,
    trial: Trial,
    empty: KernelProgram,
    /// The least time of the empty program, including the driver that makes the packets.
    pub(super) nothing: f64,
}

impl<'a> PacketBench<'a> {
    pub(super) fn new(kernel: &'a BpfKernel, artifact: &Artifact) -> Result<Self> {
        let programs = Direction::ALL.map(|hook| &artifact.program(hook).code);
        let trial = Trial::load(kernel, &artifact.maps, programs, SLOTS)?;
        Ok(Self { kernel, trial, empty: trial::empty(kernel)?, nothing: f64::INFINITY })
    }

    pub(super) fn measure(&mut self, pair: &FlowPair, endpoint: &[u8]) -> Result<PacketTimes> {
        self.trial.stand_at(endpoint)?;
        let mut figures = PacketTimes::default();
        if let Some(flow) = &pair.denied {
            let [ours, empty] = self.drivers(pair, flow)?;
            ensure!(ours.verdict()? as i32 == DROP, "{}", disagrees(flow, "denied"));
            figures.denied = Some(self.over(&empty, |driver| driver.begin(0, NEW), || ours.begin(0, NEW))?);
        }
        if let Some(flow) = &pair.allowed {
            let [ours, empty] = self.drivers(pair, flow)?;
            ensure!(ours.verdict()? as i32 != DROP, "{}", disagrees(flow, "allowed"));
            let family = Family::of(pair.own);
            let begin = || self.begin(&ours, family);
            let begun = least(FILLED as usize, begin)?;
            figures.new = Some(begun - least(RUNS, || empty.begin(0, NEW))?);
            for (figure, flows) in figures.established.iter_mut().zip(FLOWS) {
                let go_on = |driver: &Driver| driver.go_on(flows, REPEAT);
                *figure = Some(self.over(&empty, go_on, || go_on(&ours))?);
            }
        }
        Ok(figures)
    }

    fn drivers(&self, pair: &FlowPair, flow: &MeasuredFlow) -> Result<[Driver; 2]> {
        let MeasuredFlow { others, port } = flow.clone();
        let traffic = DriverTraffic { hook: pair.direction, own: pair.own, others, port };
        let drive = |program| Driver::new(self.kernel, &traffic, program).context("packets cannot be sent");
        Ok([drive(self.trial.program(pair.direction))?, drive(&self.empty)?])
    }

    /// Flows that begin in an empty table, until it is half full.
    fn begin(&self, ours: &Driver, family: Family) -> Result<f64, weir_runtime::Error> {
        self.trial.forget_flows(family)?;
        let mut round = 0..ROUNDS;
        least(ROUNDS as usize, || ours.begin(round.next().unwrap_or_default() * NEW, NEW))
    }

    /// The time that our program takes in addition to the empty one, measured in turns.
    fn over(
        &mut self,
        empty: &Driver,
        nothing: impl Fn(&Driver) -> Result<f64, weir_runtime::Error>,
        mut ours: impl FnMut() -> Result<f64, weir_runtime::Error>,
    ) -> Result<f64> {
        let (mut base, mut whole) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            base = base.min(nothing(empty)?);
            whole = whole.min(ours()?);
        }
        self.nothing = self.nothing.min(base);
        Ok(whole - base)
    }
}

fn least(
    times: usize,
    mut measured: impl FnMut() -> Result<f64, weir_runtime::Error>,
) -> Result<f64, weir_runtime::Error> {
    (0..times).try_fold(f64::INFINITY, |least, _| Ok(least.min(measured()?)))
}

fn disagrees(flow: &MeasuredFlow, should: &str) -> String {
    let other = flow.others.first().map(ToString::to_string).unwrap_or_default();
    format!(
        "by the programs, port {} with {other} is not {should}: did another version of weir compile the artifact?",
        flow.port
    )
}
