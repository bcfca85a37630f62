//! `cargo xtask fuzz`: runs the generators and oracles in a loop, without a fuzzing engine.

use std::cell::RefCell;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use proptest::strategy::Strategy as _;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner, contextualize_config};
use weir_fuzz::generators::change::{self, ChangeCase, changes};
use weir_fuzz::generators::cluster::{ClusterCase, enforceable};
use weir_fuzz::generators::sequences::{Abilities, sequences};
use weir_fuzz::generators::strategy::MOST_CANDIDATES;
use weir_fuzz::generators::{Generated, Random, documents, hostile, texts};
use weir_fuzz::oracles::datapath::compare::{self, Sequence, Tally as Packets};
use weir_fuzz::oracles::datapath::machine::InVm;
use weir_fuzz::oracles::datapath::worlds::{World, worlds};
use weir_fuzz::oracles::engines::{Effort, agree, scopes};
use weir_fuzz::oracles::readers::{Tally as Readings, libyaml, serde};
use weir_fuzz::oracles::{bounds, decoding, difference};
use weir_model::Assumptions;
use weir_model::resolve::resolve;
use weir_objects::decode::InputKind;
use weir_objects::k8s::Object;

/// At least one text in this many must be valid. With fewer, the mutations are too strong to test any code after the
/// reader.
const VALID_ONE_IN: usize = 20;
/// With fewer texts or changes than this, the share is left to chance.
const ENOUGH: usize = 500;
/// After this number of sequences, every rule of the datapath has occurred.
const ENOUGH_SEQUENCES: usize = 4_000;

/// The kinds of cases, and the number of each in a round. A hostile tenant takes as long as a hundred clusters.
const KINDS: [(&str, usize); 6] =
    [("texts", 200), ("readings", 200), ("clusters", 4), ("changes", 4), ("hostile", 1), ("sequences", 800)];
/// The longest time for shrinking, in milliseconds.
const MOST_SHRINKING: u32 = 120_000;

/// After this number of hostile tenants, at least one policy has been held.
const ENOUGH_HOSTILE: usize = 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    time: Duration,
    seed: u64,
    cases: u64,
    /// Only cases of this kind.
    only: Option<String>,
}

#[derive(Debug, Default)]
struct Tally {
    texts: usize,
    valid: usize,
    /// Texts that our readers and others read.
    readings: Readings,
    clusters: usize,
    questions: usize,
    changes: usize,
    flows: usize,
    sequences: usize,
    packets: Packets,
    hostile: usize,
    /// Policies that were held because they did not fit.
    held: usize,
}

fn run() -> Result<()> {
    let options = options()?;
    let worlds = worlds().map_err(anyhow::Error::msg)?;
    let tests = Tests::new(&worlds)?;
    let (start, mut cases) = (Instant::now(), 0);
    let asked = |kind: &str| options.only.as_ref().is_none_or(|only| only == kind);
    let round = || KINDS.iter().filter(|it| asked(it.0)).flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count));
    let mut kinds = std::iter::repeat_with(round).flatten();
    while start.elapsed() < options.time && cases < options.cases {
        let kind = kinds.next().context("no kind of cases")?;
        tests.test(kind, options.seed.wrapping_add(cases)).with_context(|| format!("case {}", cases + 1))?;
        cases += 1;
    }
    let Tally { texts, valid, readings, clusters, questions, changes, flows, sequences, packets, hostile, held } =
        tests.tally.into_inner();
    println!(
        "fuzz: {texts} texts, {valid} of them valid; {} texts for two readers; {clusters} clusters, {questions} questions; {changes} changes, \
         {flows} flows that differ; {hostile} hostile tenants, {held} of their policies held; {sequences} sequences of {} packets; \
         from seed {}",
        readings.texts(),
        packets.packets,
        options.seed
    );
    if sequences >= ENOUGH_SEQUENCES && !packets.idle().is_empty() {
        bail!("rules of the datapath that no packet met: {:?}", packets.idle());
    }
    if changes >= ENOUGH && flows < changes {
        bail!("too few of the changes changed anything");
    }
    if hostile >= ENOUGH_HOSTILE && held == 0 {
        bail!("no hostile tenant was too large");
    }
    if texts >= ENOUGH && valid * VALID_ONE_IN < texts {
        bail!("too few of the texts were valid");
    }
    Ok(())
}

fn options() -> Result<Options> {
    let mut options = Options { time: Duration::from_secs(10), seed: 1, cases: u64::MAX, only: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().with_context(|| format!("{name} {value}"));
        match name.as_str() {
            "--secs" => options.time = Duration::from_secs(number()?),
            "--seed" => options.seed = number()?,
            // The number of cases is the only limit then.
            "--cases" => (options.cases, options.time) = (number()?, Duration::MAX),
            "--only" if KINDS.iter().any(|it| it.0 == value) => options.only = Some(value),
            "--only" => bail!("--only {value}: there are {:?}", KINDS.map(|it| it.0)),
            _ => bail!("unknown option {name}; there are --secs, --seed, --cases and --only"),
        }
    }
    Ok(options)
}

/// The YAML files of the compiler's corpus.
fn corpus() -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../compiler/corpus")];
    while let Some(directory) = open.pop() {
        let entries = std::fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
        paths.sort();
        for path in paths {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|it| it == "yaml") {
                texts.push(std::fs::read_to_string(path)?);
            }
        }
    }
    Ok(texts)
}

/// The strategies, and all that their tests need.
struct Tests<'w> {
    texts: Generated<String>,
    readings: Generated<[String; 2]>,
    clusters: Generated<ClusterCase>,
    changes: Generated<ChangeCase>,
    hostile: Generated<ClusterCase>,
    sequences: Generated<Sequence>,
    worlds: &'w [World],
    machine: RefCell<InVm<'w>>,
    tally: RefCell<Tally>,
}

impl<'w> Tests<'w> {
    fn new(worlds: &'w [World]) -> Result<Self> {
        let machine = InVm::new(worlds).map_err(anyhow::Error::msg)?;
        Ok(Self {
            texts: texts::mutated(corpus()?),
            readings: Generated::by(|random| [documents::yaml(random), documents::json(random)]),
            clusters: enforceable(),
            changes: changes(change::changed),
            hostile: hostile::tenants(),
            sequences: sequences(worlds.len(), Abilities { waits: true, context: true }),
            worlds,
            machine: RefCell::new(machine),
            tally: RefCell::default(),
        })
    }

    fn test(&self, kind: &str, seed: u64) -> Result<()> {
        match kind {
            "texts" => case(kind, seed, &self.texts, Clone::clone, |it| self.text(it, seed)),
            "readings" => case(kind, seed, &self.readings, |it| it.join("\n---\n"), |it| self.reading(it)),
            "clusters" => case(kind, seed, &self.clusters, shown, |it| self.cluster(it)),
            "changes" => case(kind, seed, &self.changes, shown, |it| self.change(it)),
            "hostile" => case(kind, seed, &self.hostile, shown, |it| self.hostile_tenant(it)),
            _ => case(kind, seed, &self.sequences, shown, |it| self.sequence(it)),
        }
    }

    /// Reads a mutated text; if it is accepted, compares the engines on its objects.
    fn text(&self, text: &str, seed: u64) -> Result<(), String> {
        self.tally.borrow_mut().texts += 1;
        let Some(objects) = decoding::read(text.as_bytes(), InputKind::Manifest) else { return Ok(()) };
        let effort = Effort { questions: 20, packets: 2 };
        let questions = disagreement(&objects, Assumptions::default(), effort, &mut Random::new(seed))?;
        let mut tally = self.tally.borrow_mut();
        (tally.valid, tally.questions) = (tally.valid + 1, tally.questions + questions);
        Ok(())
    }

    /// Reads a text of YAML and one of JSON with our readers and with others.
    fn reading(&self, [yaml, json]: &[String; 2]) -> Result<(), String> {
        let mut tally = self.tally.borrow_mut();
        libyaml::agree(yaml, &mut tally.readings)?;
        serde::agree(json, &mut tally.readings)
    }

    fn cluster(&self, case: &ClusterCase) -> Result<(), String> {
        let effort = Effort { questions: 1_000, packets: 100 };
        let questions = disagreement(&case.objects, case.assume, effort, &mut case.random())?;
        let mut tally = self.tally.borrow_mut();
        (tally.clusters, tally.questions) = (tally.clusters + 1, tally.questions + questions);
        Ok(())
    }

    /// Compares a cluster with a changed version of it, and checks the rows against the reference oracle's verdicts on
    /// both.
    fn change(&self, ChangeCase { base, head }: &ChangeCase) -> Result<(), String> {
        let [before, after] = [&base.objects, head].map(|objects| resolve(objects, base.assume).0);
        let asked = difference::agree(&before, &after, &mut base.random())?;
        let mut tally = self.tally.borrow_mut();
        (tally.changes, tally.flows) = (tally.changes + 1, tally.flows + asked.differing);
        Ok(())
    }

    /// Tests a hostile namespace beside harmless ones, with limits on memory and steps.
    fn hostile_tenant(&self, case: &ClusterCase) -> Result<(), String> {
        let held = bounds::keep(&case.objects, &mut case.random())?;
        let mut tally = self.tally.borrow_mut();
        (tally.hostile, tally.held) = (tally.hostile + 1, tally.held + held);
        Ok(())
    }

    /// Packets through the programs of several generations, beside the model of the datapath.
    fn sequence(&self, sequence: &Sequence) -> Result<(), String> {
        let mut tally = self.tally.borrow_mut();
        tally.sequences += 1;
        let machine = &mut *self.machine.borrow_mut();
        compare::agree(sequence, self.worlds, machine, &mut tally.packets).map_err(|it| it.text)
    }
}

fn shown<T: Debug>(value: &T) -> String {
    format!("{value:?}")
}

/// Tests the strategy's value for a seed. A value that fails is shrunk and written to a file.
fn case<T: Debug>(
    kind: &str,
    seed: u64,
    strategy: &Generated<T>,
    show: impl Fn(&T) -> String,
    test: impl Fn(&T) -> Result<(), String>,
) -> Result<()> {
    let limits = Config {
        max_shrink_iters: MOST_CANDIDATES,
        max_shrink_time: MOST_SHRINKING,
        failure_persistence: None,
        ..Config::default()
    };
    let config = Config { rng_seed: RngSeed::Fixed(seed), ..contextualize_config(limits) };
    let mut runner = TestRunner::new(config);
    let tree = strategy.new_tree(&mut runner).map_err(|reason| anyhow::anyhow!("{reason}"))?;
    match runner.run_one(tree, |value| test(&value).map_err(TestCaseError::fail)) {
        Ok(_) => Ok(()),
        Err(TestError::Fail(reason, value)) => {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz");
            std::fs::create_dir_all(&directory)?;
            let path = directory.join(format!("{kind}-{seed}.txt"));
            std::fs::write(&path, show(&value))?;
            bail!("{kind}, seed {seed}: {reason}\nthe smallest case that was found is in {}", path.display())
        }
        Err(error) => bail!("{kind}, seed {seed}: {error}"),
    }
}

fn disagreement(objects: &[Object], assume: Assumptions, effort: Effort, random: &mut Random) -> Result<usize, String> {
    let (cluster, diagnostics) = resolve(objects, assume);
    if diagnostics.has_errors() {
        return Ok(0);
    }
    scopes(&cluster).into_iter().map(|scope| agree(&cluster, scope, effort, random)).sum()
}
