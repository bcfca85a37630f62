//! Makes a generation from the objects of the index and puts it into force.
//!
//! Problem: this takes a tenth of a second or more, and pods come and go in the meantime.
//! Strategy: between the steps, the agent handles the messages that have arrived. It writes changes of single entries
//! into the generation that is still in force, and the new generation contains them from its first moment on.
//! Invariant: single entries are written only while the generation in force is the index's.

use std::time::{Duration, Instant};

use weir_artifact::Artifact;
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::fit::Fit;
use weir_classes::index::Generation;
use weir_classes::{ClassifyError, Exceeded};
use weir_codegen::compile::{self, CompileError, CompileOptions, Compiled};

use super::local::Interfaces;
use super::{Agent, InForce, Inbox, Pod, REST, Value, back_off};
use crate::watch::enforce::{Enforce, Installed, Wanted};
use crate::watch::follow::chain;

/// The structures for exact addresses: a kernel hash, which can be changed in place, in front of the compiled table
/// of listed addresses. All other structures are chosen by cost.
const WRITTEN: [(LookupSet, Structure); 2] =
    [(LookupSet::Exact4, Structure::Layered), (LookupSet::Exact6, Structure::Layered)];

impl<E: Enforce> Agent<E> {
    /// Compiles and installs a generation. In the meantime, single entries of the previous generation are still
    /// written.
    pub(super) fn generation(&mut self, now: Instant, inbox: &mut Inbox<'_>) {
        self.judge_newcomers_first(now);
        let begun = self.pending.begin(now);
        match self.make(now, inbox) {
            Ok(installed) => {
                self.time_new_pods();
                self.in_force = Some(installed.epoch);
                self.rest_at = Some(now + REST);
                self.is_indexed = true;
                self.pending.retry = None;
                self.failure = None;
                self.in_force_now(begun.whole, Instant::now());
                if installed.is_new {
                    self.pending.writes.judged(now);
                    self.pending.writes.forget_failure();
                } else if begun.judge_again {
                    // The same generation as before, under the same number, judges no flow again.
                    self.pending.writes.judge_again(now);
                }
                // The new generation contains the entries of late changes. This raises the epoch if that is due, and
                // records the times of the late changes.
                self.write(now);
                self.end_departed(now);
            }
            Err((stage, error)) => {
                self.index.abandon();
                self.pending.begin_again(begun);
                self.failed(stage, error, now);
            }
        }
        // Freeing memory comes last: no pod waits for it.
        self.index.settle();
    }

    /// Compiles the present objects, with fewer rules if they exceed the budget, and installs the result.
    fn make(&mut self, now: Instant, inbox: &mut Inbox<'_>) -> Result<Installed, (&'static str, String)> {
        let options = CompileOptions {
            forced: WRITTEN.to_vec(),
            target: self.target,
            budgets: self.budgeted.budgets.clone(),
            ..CompileOptions::default()
        };
        let mut watch = Stopwatch::default();
        let started = Instant::now();
        let (generation, compiled, fit) = loop {
            let at = now + started.elapsed();
            let (made, fit) = self.attempt(&options, at, &mut watch, inbox);
            match made {
                Ok((generation, compiled)) => break (generation, compiled, fit),
                Err(error) if is_size(&error) && self.budgeted.exceeded(&fit, at) => {
                    let fields = [("error", Value::from(chain(&error))), ("so", Value::from("it is tried with less"))];
                    self.log.warn("a generation costs more than was expected", &fields);
                }
                Err(error) => return Err(("compile", chain(&error))),
            }
        };
        self.catch_up(inbox, now + started.elapsed());
        self.find(&generation, now);
        let artifact = watch.time(|| self.adopt(generation, compiled, &options, now));
        self.metrics.observe("weir_compile_seconds", watch.elapsed);
        let installed = self.install(&artifact?, now)?;
        self.tell_held(&fit, now);
        Ok(installed)
    }

    /// Removes rules from policies until the objects of the index fit the budget, then compiles them.
    fn attempt(
        &mut self,
        options: &CompileOptions,
        now: Instant,
        watch: &mut Stopwatch,
        inbox: &mut Inbox<'_>,
    ) -> (Result<(Generation, Compiled), CompileError>, Fit) {
        let started = Instant::now();
        let limits = self.budgeted.limits();
        let mut draft = watch.time(|| self.index.begin());
        let highest = self.budgeted.highest(now);
        let fit = watch.time(|| draft.fit(limits, highest));
        self.catch_up(inbox, now + started.elapsed());
        let generation = match watch.time(|| draft.classify_within(limits)) {
            Ok(generation) => generation,
            Err(error) => return (Err(error.into()), fit),
        };
        self.catch_up(inbox, now + started.elapsed());
        let compiled = watch.time(|| compiled(&generation, options));
        (compiled.map(|compiled| (generation, compiled)), fit)
    }

    /// Handles the messages that have arrived in the meantime, closes interfaces of new pods, and writes single
    /// entries.
    fn catch_up(&mut self, inbox: &mut Inbox<'_>, now: Instant) {
        while let Some(heard) = inbox() {
            self.hear(heard);
        }
        self.judge_newcomers_first(now);
        self.write(now);
    }

    /// Makes the compiled generation the index's. Changes since its beginning are not compiled in: changes of
    /// addresses are added to its tables here, and any other change requests another generation.
    fn adopt(
        &mut self,
        generation: Generation,
        mut compiled: Compiled,
        options: &CompileOptions,
        now: Instant,
    ) -> Result<Artifact, (&'static str, String)> {
        // An installation that fails may still have put the generation into force, and its classes have other
        // numbers. So no entries are written until an installation succeeds.
        self.is_indexed = false;
        self.pending.writes.forget_entries();
        let late = self.index.adopt(generation);
        if late.judge_again {
            self.pending.writes.judge_again(now);
        }
        if !compiled.write_addresses(&late.addresses) || late.is_more {
            self.pending.whole.append(&mut self.pending.single);
            self.pending.want_generation(now);
            self.pending.judge_with_generation = true;
        }
        let Some(Generation { cluster, .. }) = self.index.generation() else {
            return Err(("compile", "the index has not kept the generation that it was given".to_owned()));
        };
        let node = self.node.clone();
        let artifact = compiled.artifact(cluster, options, |description| description.node = Some(node));
        artifact.map_err(|error| ("compile", chain(&error)))
    }

    fn install(&mut self, artifact: &Artifact, now: Instant) -> Result<Installed, (&'static str, String)> {
        let started = Instant::now();
        let (Interfaces { endpoints, closed }, uids) = (self.interfaces(), self.uids());
        let wanted = Wanted { artifact, endpoints: &endpoints, closed: &closed, uids: &uids };
        let installed = self.enforce.install(&wanted);
        let installed = installed.map_err(|trouble| ("install", trouble.0))?;
        self.metrics.observe("weir_install_seconds", started.elapsed());
        self.metrics.add("weir_generations_total", &[], 1.0);
        let fields = [
            ("generation", Value::from(installed.epoch)),
            ("endpoints", Value::from(endpoints.len())),
            ("closed", Value::from(closed.len())),
            ("missing", Value::from(self.places.missing().len())),
        ];
        self.log.info("in force", &fields);
        for (pod, why) in &installed.failed {
            self.log.error("not enforced", &[("pod", Value::from(pod.as_str())), ("error", Value::from(why.as_str()))]);
        }
        self.tell_pods(&installed.failed, now);
        self.tell_pods(&self.closed_pods(), now);
        self.refused_until = (!installed.failed.is_empty()).then(|| back_off(self.refused_until, now));
        self.refused.clone_from(&installed.failed);
        self.enforced = self.places.found().clone();
        let is_open = |pod: &Pod| !self.unaddressed.contains_key(pod);
        self.enforced.retain(|pod, _| is_open(pod) && self.refused.iter().all(|(refused, _)| *refused != pod.path()));
        let pods = self.enforced.keys().map(|pod| (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())).collect();
        self.told.send_replace(InForce { generation: installed.epoch, pods });
        Ok(installed)
    }

    /// Reports the failure and schedules a retry, later each time. The previous generation stays in force.
    fn failed(&mut self, stage: &'static str, error: String, now: Instant) {
        self.metrics.add("weir_failures_total", &[("stage", stage)], 1.0);
        if self.failure.as_ref() != Some(&error) {
            let stays = "what was in force stays";
            self.log.error("no new generation", &[("error", Value::from(error.as_str())), ("so", Value::from(stays))]);
        }
        self.tell_policies(&error, now);
        self.pending.retry = Some(back_off(self.pending.retry, now));
        self.failure = Some(error);
    }
}

/// Whether the error may disappear if some policies lose their rules.
fn is_size(error: &CompileError) -> bool {
    !matches!(
        error,
        CompileError::Classify(
            ClassifyError::HostNetworkPods | ClassifyError::Icmp | ClassifyError::Exceeded(Exceeded::Services(_))
        ) | CompileError::Pass(_)
    )
}

fn compiled(generation: &Generation, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let Generation { cluster, scope, classes, .. } = generation;
    compile::compile_classes(cluster, scope, classes.clone(), options)
}

/// The total time of several steps.
#[derive(Default)]
struct Stopwatch {
    elapsed: Duration,
}

impl Stopwatch {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = work();
        self.elapsed += started.elapsed();
        result
    }
}
