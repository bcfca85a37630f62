//! `cargo xtask fuzz`: runs the generators and oracles in a loop, without a fuzzing engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use weir_fuzz::generators::hostile::{self, Shape};
use weir_fuzz::generators::sequences::{self, Abilities};
use weir_fuzz::generators::{Random, change, cluster, documents, texts};
use weir_fuzz::oracles::datapath::compare::{self, Sequence, Tally as Packets};
use weir_fuzz::oracles::datapath::machine::InVm;
use weir_fuzz::oracles::datapath::worlds::{World, worlds};
use weir_fuzz::oracles::engines::{Effort, agree, scopes};
use weir_fuzz::oracles::readers::{Tally as Readings, libyaml, serde};
use weir_fuzz::oracles::{bounds, decoding, difference, shrink};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, HostNetworkPods, Icmp};
use weir_objects::decode::InputKind;
use weir_objects::k8s::Object;

/// At least one text in this many must be valid. With fewer, the mutations are too strong to test any code after the
/// reader.
const VALID_ONE_IN: usize = 20;
/// With fewer texts or changes than this, the share is left to chance.
const ENOUGH: usize = 500;
/// Sequences of packets for each cluster.
const SEQUENCES: u64 = 200;
/// After this number of sequences, every rule of the datapath has occurred.
const ENOUGH_SEQUENCES: usize = 4_000;

/// Clusters for each hostile tenant, because a hostile tenant takes as long as a hundred of them.
const HOSTILE_ONE_IN: usize = 4;
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
}

#[derive(Default)]
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
    let corpus = corpus()?;
    let (start, mut tally) = (Instant::now(), Tally::default());
    let mut seed = options.seed;
    let worlds = worlds().map_err(anyhow::Error::msg)?;
    let mut machine = InVm::new(&worlds).map_err(anyhow::Error::msg)?;
    while start.elapsed() < options.time {
        for _ in 0..50 {
            a_text(seed, &corpus, &mut tally)?;
            a_reading(seed, &mut tally)?;
            seed = seed.wrapping_add(1);
        }
        a_cluster(seed, &mut tally)?;
        a_change(seed, &mut tally)?;
        if tally.clusters.is_multiple_of(HOSTILE_ONE_IN) {
            a_hostile_tenant(seed, &mut tally)?;
        }
        for number in 0..SEQUENCES {
            a_sequence(seed.wrapping_mul(SEQUENCES).wrapping_add(number), &worlds, &mut machine, &mut tally)?;
        }
    }
    let Tally { texts, valid, readings, clusters, questions, changes, flows, sequences, packets, hostile, held } =
        tally;
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
    let mut options = Options { time: Duration::from_secs(10), seed: 1 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        let number: u64 = value.parse().with_context(|| format!("{name} {value}"))?;
        match name.as_str() {
            "--secs" => options.time = Duration::from_secs(number),
            "--seed" => options.seed = number,
            _ => bail!("unknown option {name}; there are --secs and --seed"),
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

/// Reads a mutated text; if it is accepted, compares the engines on its objects.
fn a_text(seed: u64, corpus: &[String], tally: &mut Tally) -> Result<()> {
    let mut random = Random::new(seed);
    let text = texts::mutate(&random.pick(corpus), &mut random);
    let asked = caught(|| {
        let Some(objects) = decoding::read(text.as_bytes(), InputKind::Manifest) else { return Ok(None) };
        let effort = Effort { questions: 20, packets: 2 };
        disagreement(&objects, Assumptions::default(), effort, seed).map(Some)
    });
    tally.texts += 1;
    match asked {
        Ok(count) => {
            tally.valid += usize::from(count.is_some());
            tally.questions += count.unwrap_or_default();
            Ok(())
        }
        Err(error) => left(seed, "yaml", &text, &error),
    }
}

/// Reads a text of YAML and one of JSON with our readers and with others.
fn a_reading(seed: u64, tally: &mut Tally) -> Result<()> {
    let (yaml, json) = (documents::yaml(&mut Random::new(seed)), documents::json(&mut Random::new(seed)));
    let read = libyaml::agree(&yaml, &mut tally.readings).map_err(|error| (yaml, error));
    let read = read.and_then(|()| serde::agree(&json, &mut tally.readings).map_err(|error| (json, error)));
    read.or_else(|(text, error)| left(seed, "txt", &text, &error))
}

/// Assumptions that programs can enforce.
fn assumptions(random: &mut Random) -> Assumptions {
    Assumptions { hostnetwork_pods: HostNetworkPods::Node, icmp: Icmp::Policy, ..cluster::assumptions(random) }
}

fn a_cluster(seed: u64, tally: &mut Tally) -> Result<()> {
    let mut random = Random::new(seed);
    let (objects, assume) = (cluster::objects(&mut random), assumptions(&mut random));
    let asked =
        |objects: &[Object]| caught(|| disagreement(objects, assume, Effort { questions: 1_000, packets: 100 }, seed));
    match asked(&objects) {
        Ok(count) => {
            tally.clusters += 1;
            tally.questions += count;
            Ok(())
        }
        Err(_) => {
            let (objects, text) = shrink::smallest(objects, |objects| asked(objects).err());
            left(seed, "txt", &shrink::report(&format!("{assume:?}\n{text}"), &objects), &text)
        }
    }
}

/// Compares a cluster with a changed version of it, and checks the rows against the reference oracle's verdicts on
/// both.
fn a_change(seed: u64, tally: &mut Tally) -> Result<()> {
    let mut random = Random::new(seed);
    let (objects, assume) = (cluster::objects(&mut random), assumptions(&mut random));
    let asked = |base: &[Object]| {
        caught(|| {
            let mut random = Random::new(seed);
            let head = change::changed(base, &mut random);
            difference::agree(&resolve(base, assume).0, &resolve(&head, assume).0, &mut random)
        })
    };
    match asked(&objects) {
        Ok(asked) => {
            tally.changes += 1;
            tally.flows += asked.differing;
            Ok(())
        }
        Err(_) => {
            let (objects, text) = shrink::smallest(objects, |objects| asked(objects).err());
            left(seed, "txt", &shrink::report(&format!("{assume:?}, and its change\n{text}"), &objects), &text)
        }
    }
}

/// Tests a hostile namespace beside harmless ones, with limits on memory and steps.
fn a_hostile_tenant(seed: u64, tally: &mut Tally) -> Result<()> {
    let mut random = Random::new(seed);
    let (shape, size, tenants) = (random.pick(&Shape::ALL), 1 + random.below(12), random.below(4));
    let made = hostile::cluster(shape, size, tenants, &mut random);
    tally.hostile += 1;
    match caught(|| bounds::keep(&made, &mut random)) {
        Ok(held) => {
            tally.held += held;
            Ok(())
        }
        Err(error) => {
            let case = format!("{shape:?}, {size} policies of a hundred items, {tenants} tenants");
            left(seed, "txt", &case, &format!("{case}: {error}"))
        }
    }
}

/// Packets through the programs of several generations, beside the model of the datapath.
fn a_sequence(seed: u64, worlds: &[World], machine: &mut InVm<'_>, tally: &mut Tally) -> Result<()> {
    let abilities = Abilities { waits: true, context: true };
    let sequence = sequences::sequence(&mut Random::new(seed), worlds.len(), abilities);
    tally.sequences += 1;
    if compare::agree(&sequence, worlds, machine, &mut tally.packets).is_ok() {
        return Ok(());
    }
    let mut ask = |it: &Sequence| compare::agree(it, worlds, machine, &mut Packets::default()).err();
    let smaller = compare::smallest(sequence, &mut |it| ask(it).is_some());
    let text = ask(&smaller).map(|it| it.text).unwrap_or_default();
    left(seed, "txt", &compare::report(&smaller, worlds, &text), &text)
}

fn disagreement(objects: &[Object], assume: Assumptions, effort: Effort, seed: u64) -> Result<usize, String> {
    let (cluster, diagnostics) = resolve(objects, assume);
    if diagnostics.has_errors() {
        return Ok(0);
    }
    let mut random = Random::new(seed);
    scopes(&cluster).into_iter().map(|scope| agree(&cluster, scope, effort, &mut random)).sum()
}

/// Turns a panic into an error; its message has been printed.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Writes the failing case to a file.
fn left(seed: u64, kind: &str, case: &str, error: &str) -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("seed-{seed}.{kind}"));
    std::fs::write(&path, case)?;
    bail!("seed {seed}: {error}\nthe case is in {}", path.display())
}
