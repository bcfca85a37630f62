//! Every engine says what the reference oracle says, with the same reasons, on clusters by the seed.

use weir_compiler::engine::{Engine, EngineError, Interpreter, Machine, Make, NoAnswer};
use weir_compiler::model::Cluster;
use weir_compiler::model::eval::{Basis, Flow, Judgement, Oracle, RuleId, Side, Verdict};
use weir_compiler::resolve;

use weir_fuzz::generators::{Random, cluster, flows};

const SEEDS: std::ops::Range<u64> = 0..150;
const FLOWS: usize = 120;

/// What an answer shows of a side.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    verdict: Verdict,
    because: Vec<String>,
}

fn shown(side: &Side) -> Shown {
    let mut because = reasons(side);
    because.sort();
    because.dedup();
    Shown { verdict: side.verdict, because }
}

fn reasons(side: &Side) -> Vec<String> {
    match &side.basis {
        Basis::Rules(rules) => rules.iter().map(|RuleId { policy, rule }| format!("{policy} {rule}")).collect(),
        Basis::Isolated(policies) => policies.iter().map(ToString::to_string).collect(),
        Basis::List(list) => vec![list.to_string()],
        Basis::Service(service) => {
            service.backends.iter().filter(|it| it.verdict == side.verdict).flat_map(reasons).collect()
        }
        _ => Vec::new(),
    }
}

fn show(judgement: &Judgement) -> [Shown; 2] {
    [shown(&judgement.egress), shown(&judgement.ingress)]
}

/// How many flows had an answer, and how many clusters cannot be compiled.
fn ask(make: fn() -> Box<Make>) -> (usize, usize) {
    let (mut answered, mut refused) = (0, 0);
    for seed in SEEDS {
        let mut random = Random::new(seed);
        let objects = cluster::objects(&mut random);
        let (cluster, _) = resolve::resolve(&objects, cluster::assumptions(&mut random));
        let flows = flows::flows(&cluster, FLOWS, &mut random);
        match Engine::new(&cluster, make()) {
            Ok(mut engine) => answered += flows.iter().filter(|flow| agrees(seed, &cluster, &mut engine, flow)).count(),
            Err(EngineError::Compile(_)) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    (answered, refused)
}

#[track_caller]
fn agrees(seed: u64, cluster: &Cluster, engine: &mut Engine<'_>, flow: &Flow) -> bool {
    let expected = Oracle::new(cluster).judge(flow);
    match engine.judge(flow) {
        Ok(judgement) => {
            assert_eq!(
                show(&judgement),
                show(&expected),
                "seed {seed}, {flow:?}\nengine {judgement:?}\noracle {expected:?}"
            );
            true
        }
        Err(NoAnswer::Skip(reason)) => {
            let families = [flow.source.address, flow.destination.address].map(|it| it.map(|it| it.is_ipv4()));
            assert!(families[0] != families[1], "seed {seed}, {flow:?}: {reason}");
            false
        }
        Err(error) => panic!("seed {seed}, {flow:?}: {error}"),
    }
}

#[track_caller]
fn check(make: fn() -> Box<Make>) {
    let (answered, refused) = ask(make);
    assert!(answered > 5_000, "only {answered} flows were answered");
    assert!(refused < 100, "{refused} clusters were refused");
}

#[test]
fn the_interpreter_says_what_the_oracle_says() {
    check(Interpreter::make);
}

#[test]
fn the_machine_says_what_the_oracle_says() {
    check(Machine::make);
}
