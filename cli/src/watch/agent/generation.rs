//! Makes a generation from the objects of the index and puts it into force.
//!
//! Problem: this takes a tenth of a second or more, and pods come and go in the meantime.
//! Strategy: changes are applied to the generation in force, if they need no compile from scratch
//! ([`weir_classes::index::Index::begin_changes`]). Otherwise the agent compiles all objects. Between the steps of this,
//! the agent handles the messages that have arrived, except those about slices, which wait until no generation is
//! half made. It writes changes of single entries into the generation that is still in force, and the new
//! generation contains them from its first moment on.
//! Invariant: single entries are written only while the generation in force is the index's.

use std::time::{Duration, Instant};

use weir_artifact::entries::MapEntries;
use weir_artifact::{Artifact, Description};
use weir_classes::fit::Fit;
use weir_classes::index::{Draft, Generation, NeedsWhole};
use weir_classes::{ClassifyError, Exceeded};
use weir_codegen::compile::{self, CompileError, CompileOptions, Compiled};
use weir_codegen::last::LastArtifact;
use weir_ebpf::target::Target;

use super::budget::BudgetState;
use super::local::GenerationInterfaces;
use super::pending::BegunGeneration;
use super::{Inbox, NodeAgent, Value};
use crate::failure::chain;
use crate::watch::annotate::{AnnotatedPod, PublishedGeneration};
use crate::watch::enforce::{Enforce, InstallRequest, Installed, PodFailure};

/// How generations are compiled.
#[derive(Debug)]
pub(super) struct CompileSettings {
    /// The kernel that programs are compiled for.
    pub(super) target: Target,
    pub(super) budget: BudgetState,
    /// Parts of the last artifact, for the next one.
    pub(super) last: LastArtifact,
}

impl CompileSettings {
    fn options(&self) -> CompileOptions {
        CompileOptions { budgets: self.budget.budgets().clone(), ..CompileOptions::for_changes(self.target) }
    }
}

/// The step at which a generation failed, as the label `stage` of `weir_failures_total` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GenerationStage {
    Compile,
    Install,
}

impl GenerationStage {
    fn label(self) -> &'static str {
        match self {
            Self::Compile => "compile",
            Self::Install => "install",
        }
    }
}

/// Why a generation did not come into force.
#[derive(Debug)]
struct GenerationError {
    stage: GenerationStage,
    message: String,
}

impl GenerationError {
    fn compile(message: String) -> Self {
        Self { stage: GenerationStage::Compile, message }
    }
}

/// A compiled generation that the index has not adopted yet.
struct CompiledGeneration {
    generation: Generation,
    compiled: Compiled,
}

/// A generation that has come into force.
struct NewGeneration {
    generation: Generation,
    artifact: Artifact,
    installed: Installed,
}

/// The result of compiling objects, and the policies that lost their rules for it.
struct CompileAttempt {
    result: Result<CompiledGeneration, CompileError>,
    fit: Fit,
}

impl<E: Enforce> NodeAgent<E> {
    /// Compiles and installs a generation. In the meantime, single entries of the previous generation are still
    /// written, and slices wait.
    pub(super) fn make_generation(&mut self, now: Instant, inbox: &mut Inbox<'_>) {
        self.try_generation(now, inbox);
        self.handle_waiting_slices();
    }

    /// Handles the events about slices that came while a generation was made. None is being made now.
    fn handle_waiting_slices(&mut self) {
        for (event, at) in std::mem::take(&mut self.slices) {
            self.handle_event(event, at);
        }
    }

    /// Compiles and installs a generation. Slices that come meanwhile wait afterwards, too.
    fn try_generation(&mut self, now: Instant, inbox: &mut Inbox<'_>) {
        self.close_newcomers_first(now);
        self.end_preparation();
        let (started, mut watch) = (Instant::now(), Stopwatch::default());
        let options = self.compile.options();
        let changes = self.compile_changes(&options, &mut watch);
        let is_whole = changes.is_none();
        let (begun, made) = match changes {
            Some(new) => {
                // A cluster-wide policy may have been the last one with a `nodes` peer.
                self.order_needed(new.generation.needs(), now);
                let begun = self.pending.begin(now);
                self.catch_up(inbox, now + started.elapsed());
                (begun, self.adopt_and_install(new, &options, watch, now))
            }
            None => {
                if self.must_wait_for_lists(now) {
                    return self.objects.index_mut().abandon();
                }
                let draft = watch.time(|| self.objects.index_mut().begin());
                let Some(draft) = self.meet_needs(draft, now) else { return self.objects.index_mut().abandon() };
                let mut begun = self.pending.begin(now);
                let made = self.compile_and_install(draft, &options, watch, now, (&mut begun, inbox));
                (begun, made)
            }
        };
        self.pace.made(now, (self.read_cpu)(), started.elapsed(), is_whole);
        match made {
            // The generation is dropped at the end of this arm. Freeing its memory comes last: no pod waits for it.
            Ok(NewGeneration { generation, artifact, installed }) => {
                self.prepare_later(artifact, &installed, is_whole, now + started.elapsed());
                self.time_new_pods();
                self.enforcement.index_is_in_force(installed.epoch);
                if !installed.is_extended {
                    self.upkeep.generation_replaced(now + started.elapsed(), self.enforce.pause());
                }
                self.pending.succeed();
                let judge_again = begun.judge_again;
                self.reports.time_changes(begun.times, Instant::now());
                if installed.is_new {
                    self.pending.writes.generation_began(now);
                } else if judge_again {
                    // The same generation as before, under the same number, judges no flow again.
                    self.pending.writes.judge_again(now);
                }
                // The new generation contains the entries of late changes. This raises the epoch if that is due, and
                // records the times of the late changes.
                self.write_entries(now);
                // While services are not known, no backend can be seen to leave.
                self.take_moved_backends();
                if self.scopes.knows_services() {
                    self.end_flows_to_departed(&generation, now);
                }
            }
            Err(GenerationError { stage, message }) => {
                self.objects.index_mut().abandon();
                self.objects.index_mut().distrust();
                self.reports.metrics.add("weir_failures_total", &[("stage", stage.label())], 1.0);
                // The index has classes then that the kernel's tables do not have.
                let holds_entries = !self.enforcement.is_writable();
                if self.pending.fail(begun, message.clone(), holds_entries, now + started.elapsed()) {
                    let so = "the previous generation stays in force";
                    let fields = [("error", Value::from(message.as_str())), ("so", Value::from(so))];
                    self.reports.log.error("no new generation; retrying", &fields);
                }
                self.report_failed_generation(&message, now);
            }
        }
    }

    /// Applies the changes since the generation in force to it; `None` if a compile from scratch is needed, whose reason
    /// is counted.
    fn compile_changes(&mut self, options: &CompileOptions, watch: &mut Stopwatch) -> Option<CompiledGeneration> {
        let limits = self.compile.budget.limits();
        let made: Result<_, &'static str> = watch.time(|| {
            let draft = self.objects.index_mut().begin_changes().map_err(NeedsWhole::label)?;
            let generation = draft.classify_within(limits).map_err(NeedsWhole::label)?;
            // If it exceeds a budget, the compile from scratch finds out which policies are held.
            let compiled = compiled(&generation, options, &mut self.compile.last).map_err(|_| "limits")?;
            Ok(CompiledGeneration { generation, compiled })
        });
        made.inspect_err(|why| self.reports.metrics.add("weir_whole_generations_total", &[("reason", why)], 1.0)).ok()
    }

    /// Compiles the present objects, with fewer rules if they exceed the budget, and installs the result.
    fn compile_and_install(
        &mut self,
        draft: Draft,
        options: &CompileOptions,
        mut watch: Stopwatch,
        now: Instant,
        (begun, inbox): (&mut BegunGeneration, &mut Inbox<'_>),
    ) -> Result<NewGeneration, GenerationError> {
        let started = Instant::now();
        let mut draft = Some(draft);
        let (new, fit) = loop {
            let at = now + started.elapsed();
            let draft = draft.take().map_or_else(|| self.begin_again(begun, &mut watch, at), Ok)?;
            let CompileAttempt { result, fit } = self.compile(draft, options, at, &mut watch, inbox);
            match result {
                Ok(new) => break (new, fit),
                Err(error) if is_size(&error) && self.compile.budget.exceeded(&fit, at) => {
                    let so = "compiling again with fewer rules: heavier policies isolate their pods and allow nothing";
                    let fields = [("error", Value::from(chain(&error))), ("so", Value::from(so))];
                    self.reports.log.warn("a generation costs more than estimated", &fields);
                }
                Err(error) => return Err(GenerationError::compile(chain(&error))),
            }
        };
        self.catch_up(inbox, now + started.elapsed());
        let made = self.adopt_and_install(new, options, watch, now)?;
        // Changes are never applied to a generation with held policies, so this is not needed after changes.
        self.report_held_policies(&made.generation.cluster, &fit, now);
        Ok(made)
    }

    fn adopt_and_install(
        &mut self,
        new: CompiledGeneration,
        options: &CompileOptions,
        mut watch: Stopwatch,
        now: Instant,
    ) -> Result<NewGeneration, GenerationError> {
        let CompiledGeneration { mut generation, mut compiled } = new;
        self.find_interfaces(&generation, now);
        // After a compile from scratch, classes have other numbers.
        let extends = compiled.extended_rows.take().filter(|_| generation.is_incremental);
        let artifact = watch.time(|| self.adopt(&mut generation, compiled, options, now));
        self.reports.metrics.observe("weir_compile_seconds", watch.elapsed);
        let artifact = artifact?;
        let installed = self.install(&artifact, extends.as_ref(), now)?;
        self.reports.metrics.add("weir_generations_total", &[], 1.0);
        self.reports.metrics.add("weir_incremental_generations_total", &[], f64::from(generation.is_incremental));
        self.reports.metrics.add("weir_extended_generations_total", &[], f64::from(installed.is_extended));
        Ok(NewGeneration { generation, artifact, installed })
    }

    /// Begins a draft after one that did not fit the budget. Its objects may be others, with other needs.
    fn begin_again(
        &mut self,
        begun: &mut BegunGeneration,
        watch: &mut Stopwatch,
        now: Instant,
    ) -> Result<Draft, GenerationError> {
        // The draft before is dropped, so slices need not wait for it.
        self.objects.index_mut().abandon();
        self.handle_waiting_slices();
        self.pending.begin_again(begun, now);
        let draft = watch.time(|| self.objects.index_mut().begin());
        let draft = self.meet_needs(draft, now);
        draft.ok_or_else(|| GenerationError::compile("waiting for lists that its policies need".to_owned()))
    }

    /// Removes rules from policies until the objects of the index fit the budget, then compiles them.
    fn compile(
        &mut self,
        mut draft: Draft,
        options: &CompileOptions,
        now: Instant,
        watch: &mut Stopwatch,
        inbox: &mut Inbox<'_>,
    ) -> CompileAttempt {
        let started = Instant::now();
        let limits = self.compile.budget.limits();
        let highest = self.compile.budget.highest(now);
        let fit = watch.time(|| draft.fit(limits, highest));
        self.catch_up(inbox, now + started.elapsed());
        let generation = match watch.time(|| draft.classify_within(limits)) {
            Ok(generation) => generation,
            Err(error) => return CompileAttempt { result: Err(error.into()), fit },
        };
        self.catch_up(inbox, now + started.elapsed());
        let compiled = watch.time(|| compiled(&generation, options, &mut self.compile.last));
        CompileAttempt { result: compiled.map(|compiled| CompiledGeneration { generation, compiled }), fit }
    }

    /// Handles the messages that have arrived in the meantime, closes interfaces of new pods, and writes single
    /// entries.
    pub(super) fn catch_up(&mut self, inbox: &mut Inbox<'_>, now: Instant) {
        while let Some(message) = inbox() {
            self.handle(message);
        }
        self.close_newcomers_first(now);
        self.write_entries(now);
    }

    /// Makes the compiled generation the index's. Changes since its beginning are not compiled in: changes of
    /// addresses are added to its tables here, and any other change requests another generation.
    fn adopt(
        &mut self,
        generation: &mut Generation,
        mut compiled: Compiled,
        options: &CompileOptions,
        now: Instant,
    ) -> Result<Artifact, GenerationError> {
        // An installation that fails may still have put the generation into force, and its classes have other
        // numbers. So no entries are written until an installation succeeds.
        self.enforcement.index_is_newer();
        self.pending.writes.forget_entries();
        let late = self.objects.index_mut().adopt(generation);
        if late.judge_again {
            self.pending.writes.judge_again(now);
        }
        if !compiled.write_addresses(&late.addresses) || late.is_more {
            self.pending.move_entries_to_generation();
            self.pending.need_generation_and_judging(now);
        }
        let node = self.node.clone();
        let last = &mut self.compile.last;
        let node = |description: &mut Description| description.node = Some(node);
        let artifact = compiled.into_artifact(&generation.cluster, options, last, node);
        artifact.map_err(|error| GenerationError::compile(chain(&error)))
    }

    fn install(
        &mut self,
        artifact: &Artifact,
        extends: Option<&MapEntries>,
        now: Instant,
    ) -> Result<Installed, GenerationError> {
        let started = Instant::now();
        let (GenerationInterfaces { endpoints, closed }, uids) = (self.local.of_generation(), self.local.uids());
        let request = InstallRequest { artifact, extends, endpoints: &endpoints, closed: &closed, uids: &uids };
        let installed = self.enforce.install(&request);
        let installed =
            installed.map_err(|error| GenerationError { stage: GenerationStage::Install, message: error.message })?;
        self.reports.metrics.observe("weir_install_seconds", started.elapsed());
        self.reports.repaired(&installed.repaired);
        let fields = [
            ("generation", Value::from(installed.epoch)),
            ("endpoints", Value::from(endpoints.len())),
            ("closed", Value::from(closed.len())),
            ("missing", Value::from(self.local.interfaces().missing().len())),
        ];
        let is_dry = self.enforce.is_dry_run();
        let message = if is_dry { "generation compiled; a dry run does not enforce it" } else { "generation in force" };
        self.reports.log.info(message, &fields);
        for PodFailure { pod, why } in &installed.failed {
            let fields = [("pod", Value::from(pod.as_str())), ("error", Value::from(why.as_str()))];
            self.reports.log.error("policy is not enforced on the pod", &fields);
        }
        self.report_pods(&installed.failed, now);
        self.report_pods(&self.local.closed().collect::<Vec<_>>(), now);
        self.enforcement.set_pods(&self.local, &installed.failed, now);
        let pods = self.enforcement.pods().keys().map(AnnotatedPod::from).collect();
        self.reports.published.send_replace(PublishedGeneration { generation: installed.epoch, pods });
        Ok(installed)
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

fn compiled(
    generation: &Generation,
    options: &CompileOptions,
    last: &mut LastArtifact,
) -> Result<Compiled, CompileError> {
    let Generation { cluster, scope, classes, .. } = generation;
    compile::compile_after(cluster, scope, classes.clone(), options, last)
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
