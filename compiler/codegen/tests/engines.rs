//! Every engine gives the reference oracle's verdicts, with the same reasons, on random clusters.

use weir_codegen::packet_engines::{ClusterEngine, EngineError, Interpreter, Make, NoVerdict, VmEngine};
use weir_model::eval::{Basis, EndVerdict, Flow, Judgement, Oracle, RuleId, Verdict};
use weir_model::{Cluster, resolve};

use weir_fuzz::generators::cluster::{self, clusters};
use weir_fuzz::generators::{Random, flows, for_each};

const CLUSTERS: u32 = 150;
const FLOWS: usize = 120;

/// The part of a side that is compared.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    verdict: Verdict,
    because: Vec<String>,
}

fn shown(side: &EndVerdict) -> Shown {
    let mut because = reasons(side);
    because.extend(side.passed.iter().map(|rule| format!("{rule:?} passes")));
    because.sort();
    because.dedup();
    Shown { verdict: side.verdict, because }
}

fn reasons(side: &EndVerdict) -> Vec<String> {
    match &side.basis {
        Basis::Rules(rules) => rules.iter().map(|RuleId { policy, rule }| format!("{policy} {rule}")).collect(),
        Basis::Isolated(policies) => policies.iter().map(ToString::to_string).collect(),
        Basis::List(list) => vec![list.to_string()],
        Basis::Tier(rule) => vec![format!("{rule:?}")],
        Basis::Service(service) => {
            service.backends.iter().filter(|it| it.verdict == side.verdict).flat_map(reasons).collect()
        }
        Basis::Claims(claimed) => claimed.deciding(side.verdict).flat_map(reasons).collect(),
        Basis::HostPorts(claimed) => claimed.deciding(side.verdict).flat_map(reasons).collect(),
        _ => Vec::new(),
    }
}

fn show(judgement: &Judgement) -> [Shown; 2] {
    [shown(&judgement.egress), shown(&judgement.ingress)]
}

/// Makes an engine for a cluster.
type Begin = dyn Fn(&Cluster) -> Result<ClusterEngine<'_>, EngineError>;

/// Returns how many flows had an answer, and how many clusters cannot be compiled.
#[track_caller]
fn ask(cases: u32, begin: &Begin) -> (usize, usize) {
    let (mut answered, mut refused) = (0, 0);
    for_each(cases, &clusters(), |case| {
        let (cluster, _) = resolve::resolve(&case.objects, case.assume);
        let flows = flows::flows(&cluster, FLOWS, &mut case.random());
        match begin(&cluster) {
            Ok(mut engine) => answered += flows.iter().filter(|flow| agrees(&cluster, &mut engine, flow)).count(),
            Err(EngineError::Compile(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    });
    (answered, refused)
}

#[track_caller]
fn agrees(cluster: &Cluster, engine: &mut ClusterEngine<'_>, flow: &Flow) -> bool {
    let expected = Oracle::new(cluster).judge(flow);
    match engine.judge(flow) {
        Ok(judgement) => {
            assert_eq!(show(&judgement), show(&expected), "{flow:?}\nengine {judgement:?}\noracle {expected:?}");
            true
        }
        Err(NoVerdict::Skip(reason)) => {
            let families = [flow.source.address, flow.destination.address].map(|it| it.map(|it| it.is_ipv4()));
            assert!(families[0] != families[1] || reason.contains("the port is a node port"), "{flow:?}: {reason}");
            false
        }
        Err(error) => panic!("{flow:?}: {error}"),
    }
}

#[track_caller]
fn check(make: fn() -> Box<Make>) {
    let (answered, refused) = ask(CLUSTERS, &move |cluster| ClusterEngine::new(cluster, make()));
    assert!(answered > 5_000, "only {answered} flows were answered");
    assert!(refused < 100, "{refused} clusters were refused");
}

#[test]
fn the_interpreter_says_what_the_oracle_says() {
    check(Interpreter::make);
}

#[test]
fn the_machine_says_what_the_oracle_says() {
    check(VmEngine::make);
}

#[test]
fn a_cluster_compiled_in_parts_gives_the_same_answers() {
    for most in [1, 3] {
        let (answered, _) = ask(25, &move |cluster| ClusterEngine::in_parts(cluster, VmEngine::make(), most));
        assert!(answered > 1_000, "only {answered} flows were answered");
    }
}

#[test]
fn a_part_takes_flows_in_their_order_until_it_is_full() {
    const MOST: usize = 2;
    let make = |seed| {
        let mut random = Random::new(seed);
        let (cluster, _) = resolve::resolve(&cluster::objects(&mut random), cluster::assumptions(&mut random));
        let flows = flows::flows(&cluster, FLOWS, &mut random);
        (cluster, flows)
    };
    // A cluster of a few endpoints is a single part.
    let mut clusters = (0..).map(make).filter(|(cluster, _)| ClusterEngine::new(cluster, VmEngine::make()).is_ok());
    let (cluster, flows) = clusters.find(|(cluster, _)| cluster.endpoints.len() > 8).expect("a larger one");
    let mut engine = ClusterEngine::in_parts(&cluster, VmEngine::make(), MOST).expect("the cluster compiles");
    let (mut done, mut parts) = (0, 0);
    while done < flows.len() {
        let taken = engine.prepare(&flows[done..]);
        assert!(taken > 0, "no flow fits");
        for flow in &flows[done..done + taken] {
            agrees(&cluster, &mut engine, flow);
        }
        done += taken;
        parts += 1;
    }
    assert!(parts > 1 && parts < flows.len(), "{parts} parts for {} flows", flows.len());
}
