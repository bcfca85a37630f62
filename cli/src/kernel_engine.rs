//! Engine `kernel`: the emitted programs in this machine's kernel, one BPF_PROG_TEST_RUN a packet.
//!
//! Problem: a test run needs an existing interface, and the maps remember flows. Strategy: all packets run as if on one
//! interface ([`weir_runtime::trial`]). Its entry in `endpoints` is rewritten when the endpoint changes, and the flows
//! that allowed packets create are removed.

use std::rc::Rc;

use anyhow::Result;
use weir_codegen::compile::Compiled;
use weir_codegen::packet_engines::{Decide, Make, PacketQuestion};
use weir_machine::{Broken, DROP, NEXT};
use weir_model::eval::Verdict;
use weir_objects::address::Family;
use weir_runtime::sys::BpfKernel;
use weir_runtime::trial::{ELSEWHERE, INTERFACE, Trial, context};

use crate::failure::with_hint;

/// The maps are allocated at once, and there is never more than one flow.
const MOST_FLOWS: u32 = 64;

/// Returns the function with which an `Engine` loads compiled programs into the kernel.
pub(crate) fn make() -> Result<Box<Make>> {
    let kernel = open("`--engine vm` runs the same programs without these rights")?;
    let kernel = Rc::new(kernel);
    Ok(Box::new(move |compiled| Ok(Box::new(KernelPrograms::new(&kernel, compiled)?))))
}

/// Opens the bpf system call; the error contains `instead`, an alternative without it.
pub(crate) fn open(instead: &str) -> Result<BpfKernel> {
    BpfKernel::open().map_err(|error| {
        let hint = format!("it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (or root); {instead}");
        with_hint(format!("the kernel's bpf system call cannot be used: {error}"), hint)
    })
}

struct KernelPrograms {
    trial: Trial,
    endpoints: Vec<Vec<u8>>,
    /// The endpoint whose entry `lo` has now. Rewriting the entry costs a
    /// system call, so it is rewritten only for another endpoint.
    place: Option<usize>,
}

impl KernelPrograms {
    fn new(kernel: &BpfKernel, compiled: &Compiled) -> Result<Self, Broken> {
        let [to_pod, from_pod] = &compiled.programs;
        let trial = Trial::load(kernel, &compiled.maps, [to_pod, from_pod], MOST_FLOWS).map_err(broken)?;
        let endpoints = compiled.endpoints.iter().map(|it| it.value.to_vec()).collect();
        Ok(Self { trial, endpoints, place: None })
    }

    /// Makes `lo` the endpoint's interface.
    fn stand_at(&mut self, place: usize) -> Result<(), Broken> {
        if self.place != Some(place) {
            let value = self.endpoints.get(place).ok_or_else(|| Broken(format!("there is no endpoint {place}")))?;
            self.trial.stand_at(value).map_err(broken)?;
            self.place = Some(place);
        }
        Ok(())
    }
}

impl Decide for KernelPrograms {
    fn decide(&mut self, question: &PacketQuestion) -> Result<Verdict, Broken> {
        self.stand_at(question.place)?;
        let packet = question
            .first_packet()
            .ok_or_else(|| Broken("the addresses of the packet differ in their family".to_owned()))?;
        let came_in = match (question.own_node, question.remote == question.own) {
            (true, _) => 0,
            (_, true) => INTERFACE,
            _ => ELSEWHERE,
        };
        let program = self.trial.program(question.direction);
        let run = program.test_run(&packet, &context(came_in), 1);
        match run.map_err(|error| Broken(format!("a test run: {error}")))?.verdict as i32 {
            NEXT => {
                let forgotten = self.trial.forget_flows(Family::of(question.remote));
                forgotten.map(|()| Verdict::Allow).map_err(broken)
            }
            DROP => Ok(Verdict::Deny),
            other => Err(Broken(format!("a program returned {other}"))),
        }
    }
}

/// Converts an error with its causes.
fn broken(error: weir_runtime::Error) -> Broken {
    Broken(format!("{:#}", anyhow::Error::new(error)))
}
