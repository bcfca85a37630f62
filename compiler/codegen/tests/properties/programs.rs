//! Programs: each pass preserves every verdict, in any order; the text form can be read back; emitted code is within
//! all limits.

use weir_classes::{Scope, classify};
use weir_codegen::ir::{self, DecisionProgram, PacketFacts};
use weir_codegen::passes::PASSES;
use weir_ebpf::limits;
use weir_fuzz::generators::Random;
use weir_fuzz::generators::cluster::objects;
use weir_fuzz::oracles::engines::{Compiled, index, scopes, shown};
use weir_fuzz::oracles::questions::{Boundaries, Question};
use weir_model::Assumptions;

use crate::{for_each_cluster, resolved};

/// Compares two programs for one direction; returns the number of questions.
fn check_same(compiled: &Compiled<'_>, name: &str, program: &DecisionProgram, questions: &[Question]) -> usize {
    ir::verify(program).unwrap_or_else(|error| panic!("{name}: {error}\n{program}"));
    let general = &compiled.general[index(program.direction)];
    let of_direction = questions.iter().filter(|it| it.direction == program.direction);
    let mut asked = 0;
    for question in of_direction {
        let facts: PacketFacts = compiled.facts(question).expect("a local endpoint");
        // The reason must be equal too, because packets are counted by it.
        let expected = ir::run(general, &compiled.tables, &facts);
        let found = ir::run(program, &compiled.tables, &facts);
        let shown = shown(compiled.cluster, question);
        assert_eq!(found, expected, "{name}: {shown}\nbefore:\n{general}\nafter:\n{program}");
        asked += 1;
    }
    asked
}

fn questions(compiled: &Compiled<'_>, random: &mut Random) -> Vec<Question> {
    let boundaries = Boundaries::of(compiled);
    (0..100).filter_map(|_| boundaries.pick(random)).collect()
}

#[test]
fn each_pass_alone_keeps_every_verdict() {
    let mut asked = 0;
    let mut changed = vec![0; PASSES.len()];
    for_each_cluster(120, |objects, assume, mut random| {
        let cluster = resolved(&objects, assume);
        for scope in scopes(&cluster) {
            let compiled = Compiled::new(&cluster, scope).unwrap();
            let questions = questions(&compiled, &mut random);
            for (number, (name, pass)) in PASSES.iter().enumerate() {
                for program in &compiled.general {
                    let mut narrowed = program.clone();
                    pass(&mut narrowed, &compiled.tables);
                    changed[number] += usize::from(narrowed != *program);
                    asked += check_same(&compiled, name, &narrowed, &questions);
                }
            }
        }
    });
    assert!(asked > 50_000, "only {asked} questions");
    // These two passes only clean up after others, and find nothing to do in the general program.
    let idle: Vec<&str> = PASSES.iter().zip(&changed).filter(|it| *it.1 < 10).map(|it| it.0.0).collect();
    assert_eq!(idle, ["jumps", "dead-code"], "passes that changed almost no program: {changed:?}");
}

#[test]
fn passes_in_any_order_keep_every_verdict() {
    let mut asked = 0;
    for_each_cluster(120, |objects, assume, mut random| {
        let cluster = resolved(&objects, assume);
        for scope in scopes(&cluster) {
            let compiled = Compiled::new(&cluster, scope).unwrap();
            let questions = questions(&compiled, &mut random);
            let mut order: Vec<_> = PASSES.iter().chain(PASSES).collect();
            random.shuffle(&mut order);
            let names: Vec<&str> = order.iter().map(|(name, _)| *name).collect();
            for program in &compiled.general {
                let mut narrowed = program.clone();
                order.iter().for_each(|(_, pass)| pass(&mut narrowed, &compiled.tables));
                asked += check_same(&compiled, &names.join(", "), &narrowed, &questions);
            }
        }
    });
    assert!(asked > 20_000, "only {asked} questions");
}

#[test]
fn a_program_s_text_is_read_back() {
    for_each_cluster(100, |objects, assume, _| {
        let cluster = resolved(&objects, assume);
        for scope in scopes(&cluster) {
            let compiled = Compiled::new(&cluster, scope).unwrap();
            for program in compiled.general.iter().chain(&compiled.optimised) {
                assert_eq!(ir::parse(&program.to_string()).as_ref(), Ok(program));
            }
        }
    });
}

#[test]
fn no_emitted_program_is_beyond_a_limit() {
    let mut longest = 0;
    for_each_cluster(150, |objects, assume, _| {
        let cluster = resolved(&objects, assume);
        for scope in scopes(&cluster) {
            for program in Compiled::new(&cluster, scope).unwrap().programs().unwrap() {
                let insns = program.link(|map| map.0 as i32);
                let report = limits::check(&insns);
                assert!(report.violations.is_empty(), "{:?}", report.violations);
                longest = longest.max(insns.len());
            }
        }
    });
    assert!(longest > 300, "the longest program has only {longest} instructions");
}

#[test]
fn questions_that_programs_cannot_answer_are_refused() {
    for (key, value) in [("hostnetwork-pods", "pod"), ("icmp", "allow")] {
        let (objects, mut assume) = (objects(&mut Random::new(1)), Assumptions::default());
        assume.set(key, value).unwrap();
        let cluster = resolved(&objects, assume);
        let refused = classify(&cluster, &Scope::everything(&cluster)).map(|_| ()).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("`{key}={value}` cannot be enforced")), "{refused}");
    }
}
