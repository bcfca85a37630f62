//! The protocol of `layout::buckets`, all ways through it: who reads, inserts, changes, touches and removes flows in one slot
//! at the same time, two and three at once, step by step in every order.
//!
//! A step is an access to memory. A thread's steps are in no order but the one that the protocol asks for: what the processor
//! may do early, it does early in some of the ways. Each rule of the protocol can be left out, and then a way is found
//! on which somebody takes one flow for another: so the check can fail, and no rule is idle.

mod machine;

use machine::{Flow, Rules, Task, Violation, explore};

const OURS: Flow = Flow { ends: 0, remote: 0 };
/// Each shares one part with ours: half of the one and half of the other are ours.
const OTHERS: [Flow; 2] = [Flow { ends: 0, remote: 1 }, Flow { ends: 1, remote: 0 }];

/// Everything that can be done about a flow.
const TASKS: [Task; 8] = [
    Task::Touch(OURS),
    Task::Change(OURS),
    Task::Remove(OURS),
    Task::Insert(OURS),
    Task::Insert(OTHERS[0]),
    Task::Change(OTHERS[0]),
    Task::Touch(OTHERS[0]),
    Task::Insert(OTHERS[1]),
];

/// With a slot that is free, or has a flow; the two others differ in nothing that matters.
const STARTS: [Option<Flow>; 3] = [None, Some(OURS), Some(OTHERS[0])];

/// Every start with every three tasks, of which the order does not matter.
fn all_ways(rules: Rules) -> Result<usize, Violation> {
    let mut states = 0;
    for start in STARTS {
        for (first, one) in TASKS.iter().enumerate() {
            for (second, two) in TASKS.iter().enumerate().skip(first) {
                for three in TASKS.iter().skip(second) {
                    states += explore(rules, start, &[*one, *two, *three])?;
                }
            }
        }
    }
    Ok(states)
}

#[test]
fn nobody_takes_one_flow_for_another() {
    let states = all_ways(Rules::ALL).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(states > 1_000_000, "{states} states are not all there are");
}

/// What goes wrong without a rule.
#[track_caller]
fn goes_wrong(without: impl Fn(&mut Rules)) {
    let mut rules = Rules::ALL;
    without(&mut rules);
    assert!(all_ways(rules).is_err(), "nothing goes wrong without it");
}

#[test]
fn a_slot_must_be_claimed() {
    goes_wrong(|rules| rules.claims = false);
}

#[test]
fn a_slot_is_written_only_after_its_claim() {
    goes_wrong(|rules| rules.writes_after_claim = false);
}

#[test]
fn a_slot_is_published_only_after_it_was_written() {
    goes_wrong(|rules| rules.publishes_after_writes = false);
}

#[test]
fn the_word_is_read_before_the_rest() {
    goes_wrong(|rules| rules.reads_word_first = false);
}

#[test]
fn the_word_is_read_again_after_the_rest() {
    goes_wrong(|rules| rules.reads_word_last = false);
}

#[test]
fn the_word_must_be_compared() {
    goes_wrong(|rules| rules.compares_numbers = false);
}

#[test]
fn a_change_must_expect_the_word_that_was_accepted() {
    goes_wrong(|rules| rules.changes_by_comparing = false);
}

#[test]
fn a_touch_must_expect_the_time_that_was_read() {
    goes_wrong(|rules| rules.touches_by_comparing = false);
}

/// Three flows one after the other in a slot: nobody may mistake the third for the first.
#[test]
fn a_slot_that_loses_its_flow_gets_another_number() {
    goes_wrong(|rules| rules.removal_counts = false);
}
