//! A second verifier judges the emitted programs: PREVAIL, in this process and without privileges.
//!
//! Problem: whether a program is safe is otherwise decided by the kernel's verifier alone. It needs privileges, and its
//! answer depends on the kernel's version. Strategy: PREVAIL (abstract interpretation, written by other authors) must
//! accept every program for the corpus and for every structure, and must refuse programs with one mistake. It reads all
//! instructions, helpers and maps that the programs use; [`translation`] lists the five places where it needs
//! more information than the kernel's verifier.
//!
//! By default a few programs of each kind are judged, which takes about half a minute on two processors.
//! `WEIR_SECOND_VERIFIER=all` judges every program and every mutant, for an hour or more.

#[path = "second_verifier/mutants.rs"]
mod mutants;
#[path = "second_verifier/prevail.rs"]
mod prevail;
#[path = "second_verifier/translation.rs"]
mod translation;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mutants::{Mistake, mutants};
use prevail::{Opinion, descriptor, judge};
use translation::Translation;
use weir_artifact::layout::{AT_EDGE, MapName, program_name};
use weir_artifact::map_image::MapImage;
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, compile};
use weir_ebpf::asm::Assembled;
use weir_ebpf::insn::Insn;
use weir_model::{Cluster, Direction};
use weir_testing::case::Case;
use weir_testing::yaml::{self, SHOP};

/// A program that is to be judged, with its maps' descriptors filled in.
#[derive(Clone)]
struct Subject {
    name: String,
    section: &'static str,
    insns: Vec<Insn>,
    maps: Vec<MapImage>,
}

/// Both families, or IPv4 alone: with blocks, ranges of ports, and lists that the program at the edge can apply.
fn many(families: usize) -> Cluster {
    let text = SHOP.replace("policyTypes: [Ingress]", "policyTypes: [Ingress, Egress]");
    let egress = "  egress:\n  - ports: [{port: 53, protocol: UDP}, {port: 53}]\n";
    let octets = (0..20).map(|it| format!("11.0.{it}.0/25, 12.0.{it}.7/32, '2001:{it:x}::/48', 'fd00::{it:x}/128'"));
    let cidrs = octets.collect::<Vec<_>>().join(", ");
    let list = format!(
        "---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: many}}\nspec:\n  action: Deny\n  \
         cidrs: [{cidrs}]\n"
    );
    let text = match families {
        1 => text.replace(", {ip: 'fd00::1'}", ""),
        _ => text.replace("fd00::1", "fd10::1"),
    };
    yaml::cluster(&(text + egress + &list))
}

fn is_long() -> bool {
    std::env::var("WEIR_SECOND_VERIFIER").is_ok_and(|it| it == "all")
}

/// The programs of a cluster; with these structures, where they can be forced.
fn subjects(name: &str, cluster: &Cluster, forced: &[(LookupSet, Structure)]) -> Vec<Subject> {
    let options = CompileOptions { forced: forced.to_vec(), ..CompileOptions::default() };
    let compiled = compile(cluster, &Scope::everything(cluster), &options).unwrap();
    let subject = |program: &str, section, code: &Assembled| Subject {
        name: format!("{name}: {program}"),
        section,
        insns: code.link(|map| descriptor(MapName::ALL[map.0 as usize])),
        maps: compiled.maps.clone(),
    };
    let at_pods = Direction::ALL.into_iter().zip(&compiled.programs);
    let at_pods = at_pods.map(|(hook, code)| subject(program_name(hook), "classifier", code));
    at_pods.chain(compiled.edge.iter().map(|(code, _)| subject(AT_EDGE, "xdp", code))).collect()
}

/// Judges all on all processors. The opinions are in the order of the subjects.
fn opinions(subjects: &[Subject]) -> Vec<(Opinion, [usize; 3])> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some((at, subject)) = next_of(subjects, &next) {
            let translation = Translation::of(&subject.insns, &subject.maps);
            let opinion = judge(&translation.insns, subject.section, &subject.maps);
            found.lock().unwrap().insert(at, (opinion, translation.replaced));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |it| it.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    found.into_inner().unwrap().into_values().collect()
}

fn next_of<'s>(subjects: &'s [Subject], next: &AtomicUsize) -> Option<(usize, &'s Subject)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, subjects.get(at)?))
}

/// PREVAIL reads and accepts each of the programs, and reaches nearly all of their instructions.
#[track_caller]
fn accepts(subjects: &[Subject]) {
    let (mut wrong, mut total) = (Vec::new(), [0; 3]);
    for (subject, (opinion, replaced)) in subjects.iter().zip(opinions(subjects)) {
        total = [0, 1, 2].map(|at| total[at] + replaced[at]);
        match opinion {
            // Some instructions are out of reach because a register has one value only in this input.
            Opinion::Accepted { reached: 90.. } => {}
            other => wrong.push(format!("{}: {other}", subject.name)),
        }
    }
    let insns: usize = subjects.iter().map(|subject| subject.insns.len()).sum();
    let [sizes, differences, words] = total;
    println!(
        "{} programs, {insns} instructions; replaced: {sizes} loads of sizes, {differences} differences of pointers, \
         {words} results of four bytes",
        subjects.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(subjects.len() >= 5 && subjects.iter().any(|it| it.section == "xdp"), "too few programs");
    // A replacement that occurs nowhere is no longer needed, or no longer finds its instructions.
    assert!(total.iter().all(|number| *number > 0), "{total:?}");
}

#[test]
fn prevail_accepts_the_programs_of_the_corpus() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/verdicts");
    let base = fs::read_to_string(directory.join("cluster.yaml")).unwrap();
    let entries = |directory: &Path| -> Vec<PathBuf> {
        let mut entries: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries
    };
    let areas = entries(&directory).into_iter().filter(|path| path.is_dir());
    let mut files: Vec<PathBuf> = areas.flat_map(|area| entries(&area)).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    assert!(files.len() > 60, "{} cases", files.len());
    if !is_long() {
        // One with lists, which have a program at the edge, and one without.
        files = [files.swap_remove(0), files.swap_remove(files.len() / 2)].into();
    }
    let cases = files.into_iter().map(|path| Case::read(path, &base));
    let all = cases.flat_map(|case| subjects(&case.path.display().to_string(), &case.cluster, &[]));
    accepts(&all.collect::<Vec<_>>());
}

#[test]
fn prevail_accepts_every_structure() {
    let families = if is_long() { 2 } else { 1 };
    let cluster = many(families);
    let most = LookupSet::ALL.map(|set| set.structures().len()).into_iter().max().unwrap();
    let round = |round: usize| {
        let of = |set: LookupSet| (set, set.structures()[round % set.structures().len()]);
        subjects(&format!("structures {round}"), &cluster, &LookupSet::ALL.map(of))
    };
    accepts(&(0..most).flat_map(round).collect::<Vec<_>>());
}

#[test]
fn prevail_refuses_programs_with_a_mistake() {
    let mut all = Vec::new();
    for subject in subjects("mutant", &many(1), &[]) {
        for mistake in Mistake::ALL {
            let mut mutants = mutants(&subject.insns, &subject.maps, mistake);
            // The program at the edge is short: all of its mutants are judged.
            if !is_long() && subject.section != "xdp" {
                mutants.truncate(1);
            }
            all.extend(mutants.into_iter().map(|(at, insns)| {
                let name = format!("{}, {mistake:?} at {at}", subject.name);
                (mistake, Subject { name, insns, ..subject.clone() })
            }));
        }
    }
    let (mistakes, subjects): (Vec<Mistake>, Vec<Subject>) = all.into_iter().unzip();
    let mut refused: BTreeMap<Mistake, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for ((mistake, subject), (opinion, _)) in mistakes.into_iter().zip(&subjects).zip(opinions(&subjects)) {
        match opinion {
            Opinion::Refused(_) => *refused.entry(mistake).or_default() += 1,
            other => wrong.push(format!("{}: {other}", subject.name)),
        }
    }
    println!("refused: {refused:?}");
    assert!(wrong.is_empty(), "not refused: {wrong:#?}");
    assert_eq!(refused.len(), Mistake::ALL.len(), "a mistake occurs in no program: {refused:?}");
}
