//! Checks the protocol of `layout::buckets` exhaustively: threads that read, insert, change, touch and remove flows in
//! one slot, two and three at the same time, in every order of their steps.
//!
//! A step is one memory access. A thread's steps are ordered only as far as the protocol requires, so the model
//! includes every reordering that a processor may do. Each rule of the protocol can be left out, and then the check
//! must find an order in which a thread mistakes one flow for another. This shows that the check can fail, and that
//! every rule is needed.

mod machine;

use machine::{Flow, Rule, Rules, Task, Violation, explore};

const OURS: Flow = Flow { ends: 0, remote: 0 };
/// Each shares one part of the key with ours, so that a mix of both could be mistaken for ours.
const OTHERS: [Flow; 2] = [Flow { ends: 0, remote: 1 }, Flow { ends: 1, remote: 0 }];

/// All operations on a flow.
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

/// An empty slot, or one with a flow. The second of the other flows would make no difference.
const STARTS: [Option<Flow>; 3] = [None, Some(OURS), Some(OTHERS[0])];

/// Every start with every three operations; their order does not matter.
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
fn no_program_takes_one_flow_for_another() {
    let states = all_ways(Rules { broken: None }).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(states > 1_000_000, "{states} states are not all there are");
}

/// Each rule for itself: if the threads break it, one of them mistakes a flow for another.
#[test]
fn every_rule_of_the_protocol_is_needed() {
    for rule in Rule::ALL {
        assert!(all_ways(Rules { broken: Some(rule) }).is_err(), "nothing goes wrong without {rule:?}");
    }
}
