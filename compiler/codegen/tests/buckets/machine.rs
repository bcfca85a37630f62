//! A model of one slot, and of threads whose steps are accesses to it.
//!
//! A thread is a set of steps, each with the steps that must precede it; any step whose predecessors are done can be
//! next. This models a processor with a single copy of memory (x86, arm64): it keeps dependencies, fences, and the
//! order of accesses to one address, and nothing else. Stores are not moved before the branches that decide about them.

use std::collections::HashSet;
use std::fmt;

/// A flow, identified by the two parts of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(crate) ends: u8,
    pub(crate) remote: u8,
}

/// The operation of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Reads the slot, and updates the time if the flow is in it.
    Touch(Flow),
    /// Reads the slot, and changes the flow's state if the flow is in it.
    Change(Flow),
    /// Reads the slot, and removes the flow if it is in it.
    Remove(Flow),
    Insert(Flow),
}

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Claim,
    WriteAfterClaim,
    PublishAfterWrite,
    ReadWordFirst,
    ReadWordLast,
    CompareNumbers,
    ChangeByCompare,
    TouchByCompare,
    CountRemoval,
}

impl Rule {
    pub(crate) const ALL: [Self; 9] = [
        Self::Claim,
        Self::WriteAfterClaim,
        Self::PublishAfterWrite,
        Self::ReadWordFirst,
        Self::ReadWordLast,
        Self::CompareNumbers,
        Self::ChangeByCompare,
        Self::TouchByCompare,
        Self::CountRemoval,
    ];
}

/// All rules, except one that the threads of a test break.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) broken: Option<Rule>,
}

impl Rules {
    fn keep(self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }
}

/// A slot's word. The model knows its flow (`of`), but threads cannot read that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Word {
    number: u8,
    is_live: bool,
    is_busy: bool,
    changes: u8,
    of: Option<Flow>,
}

impl Word {
    fn seen(self) -> (u8, bool, bool, u8) {
        (self.number, self.is_live, self.is_busy, self.changes)
    }
}

/// The flow that was seen last, and the thread that wrote the time; 9 is the initial state.
type Time = (Option<Flow>, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    word: Word,
    ends: u8,
    remote: u8,
    time: Time,
}

/// The state of a thread: the steps that are done, and the values that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Thread {
    task: Task,
    done: u8,
    word: Option<Word>,
    ends: u8,
    remote: u8,
    time: Time,
    again: Option<Word>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    slot: Slot,
    threads: Vec<Thread>,
}

/// The violation, and the state in which it occurred.
#[derive(Debug)]
pub(crate) struct Violation {
    what: &'static str,
    state: State,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:#?}", self.what, self.state)
    }
}

/// The steps of a reader; the last one only exists for operations that write.
const WORD: u8 = 0;
const ENDS: u8 = 1;
const REMOTE: u8 = 2;
const TIME: u8 = 3;
const AGAIN: u8 = 4;
const ACT: u8 = 5;
/// The steps of an insertion; the publication follows them.
const CHOOSE: u8 = 0;
const CLAIM: u8 = 1;
const WRITE_ENDS: u8 = 2;
const WRITE_REMOTE: u8 = 3;
const WRITE_TIME: u8 = 4;
const ALL_DONE: u8 = (1 << 6) - 1;

fn steps(steps: &[u8]) -> u8 {
    steps.iter().fold(0, |all, step| all | 1 << step)
}

/// Visits every reachable state, and returns their number.
pub(crate) fn explore(rules: Rules, start: Option<Flow>, tasks: &[Task]) -> Result<usize, Violation> {
    let word = Word { number: 1, is_live: start.is_some(), is_busy: false, changes: 0, of: start };
    let flow = start.unwrap_or(Flow { ends: 9, remote: 9 });
    let slot = Slot { word, ends: flow.ends, remote: flow.remote, time: (start, 9) };
    let thread =
        |task: &Task| Thread { task: *task, done: 0, word: None, ends: 9, remote: 9, time: (None, 9), again: None };
    let first = State { slot, threads: tasks.iter().map(thread).collect() };
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        check(&state)?;
        for index in 0..state.threads.len() {
            for step in 0..6 {
                if state.threads[index].can(step, rules) {
                    let mut next = state.clone();
                    take(&mut next, index, step, rules)?;
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
        }
    }
    Ok(seen.len())
}

/// A slot whose word is live must hold one flow completely.
fn check(state: &State) -> Result<(), Violation> {
    let Slot { word, ends, remote, time } = state.slot;
    let Some(of) = word.of.filter(|_| word.is_live) else { return Ok(()) };
    let what = match (of == Flow { ends, remote }, time.0 == Some(of)) {
        (true, true) => return Ok(()),
        (false, _) => "a live slot has parts of two flows",
        (true, false) => "a live slot has the time of another flow",
    };
    Err(Violation { what, state: state.clone() })
}

impl Thread {
    /// Whether a step can be next.
    fn can(&self, step: u8, rules: Rules) -> bool {
        let before = match self.task {
            Task::Insert(_) => match step {
                CHOOSE => 0,
                CLAIM => steps(&[CHOOSE]),
                WRITE_ENDS | WRITE_REMOTE | WRITE_TIME if rules.keep(Rule::WriteAfterClaim) => steps(&[CLAIM]),
                WRITE_ENDS | WRITE_REMOTE | WRITE_TIME => steps(&[CHOOSE]),
                _ if rules.keep(Rule::PublishAfterWrite) => steps(&[CLAIM, WRITE_ENDS, WRITE_REMOTE, WRITE_TIME]),
                _ => steps(&[CLAIM]),
            },
            _ => match step {
                WORD => 0,
                ENDS | REMOTE | TIME if rules.keep(Rule::ReadWordFirst) => steps(&[WORD]),
                ENDS | REMOTE | TIME => 0,
                // Accesses to one address are in order.
                AGAIN if rules.keep(Rule::ReadWordLast) => steps(&[WORD, ENDS, REMOTE, TIME]),
                AGAIN => steps(&[WORD]),
                _ => steps(&[WORD, ENDS, REMOTE, TIME, AGAIN]),
            },
        };
        self.done & 1 << step == 0 && self.done & before == before
    }
}

fn take(state: &mut State, index: usize, step: u8, rules: Rules) -> Result<(), Violation> {
    let (slot, thread) = (&mut state.slot, &mut state.threads[index]);
    thread.done |= 1 << step;
    let who = index as u8;
    match thread.task {
        Task::Insert(flow) => insert(slot, thread, flow, (step, who), rules),
        Task::Touch(flow) | Task::Change(flow) | Task::Remove(flow) => {
            read(slot, thread, step);
            if step != ACT {
                return Ok(());
            }
            let Some(word) = accepted(thread, flow, rules) else { return Ok(()) };
            let whole = word.of == Some(flow) && thread.time.0 == Some(flow);
            act(&mut state.slot, &state.threads[index], (word, flow, who), rules);
            if !whole {
                return Err(Violation { what: "another flow was accepted", state: state.clone() });
            }
        }
    }
    Ok(())
}

fn read(slot: &Slot, thread: &mut Thread, step: u8) {
    match step {
        WORD => thread.word = Some(slot.word),
        ENDS => thread.ends = slot.ends,
        REMOTE => thread.remote = slot.remote,
        TIME => thread.time = slot.time,
        AGAIN => thread.again = Some(slot.word),
        _ => {}
    }
}

/// The flow's word, if the reader found the flow.
fn accepted(thread: &Thread, flow: Flow, rules: Rules) -> Option<Word> {
    let (first, again) = (thread.word?, thread.again?);
    let is_it = first.is_live && (Flow { ends: thread.ends, remote: thread.remote }) == flow;
    let is_same = !rules.keep(Rule::CompareNumbers) || first.number == again.number;
    (is_it && is_same).then_some(again)
}

/// The write of a reader, by its operation.
fn act(slot: &mut Slot, thread: &Thread, (word, flow, who): (Word, Flow, u8), rules: Rules) {
    let is_same = !rules.keep(Rule::ChangeByCompare) || slot.word.seen() == word.seen();
    match thread.task {
        Task::Touch(_) if !rules.keep(Rule::TouchByCompare) || slot.time == thread.time => {
            slot.time = (Some(flow), who)
        }
        Task::Change(_) if is_same => slot.word = Word { changes: word.changes + 1, ..word },
        Task::Remove(_) if is_same => {
            let number = word.number + u8::from(rules.keep(Rule::CountRemoval));
            slot.word = Word { number, is_live: false, is_busy: false, changes: 0, of: None };
        }
        _ => {}
    }
}

/// An insertion that finds the slot busy, or loses the race for it, gives up.
fn insert(slot: &mut Slot, thread: &mut Thread, flow: Flow, (step, who): (u8, u8), rules: Rules) {
    match step {
        CHOOSE => {
            thread.word = Some(slot.word);
            if slot.word.is_busy {
                thread.done = ALL_DONE;
            }
        }
        CLAIM => {
            let Some(word) = thread.word else { return };
            if rules.keep(Rule::Claim) && slot.word.seen() != word.seen() {
                thread.done = ALL_DONE;
                return;
            }
            let number = word.number + 1;
            slot.word = Word { number, is_live: false, is_busy: true, changes: 0, of: Some(flow) };
        }
        WRITE_ENDS => slot.ends = flow.ends,
        WRITE_REMOTE => slot.remote = flow.remote,
        WRITE_TIME => slot.time = (Some(flow), who),
        _ => {
            let number = thread.word.map_or(0, |word| word.number) + 1;
            slot.word = Word { number, is_live: true, is_busy: false, changes: 0, of: Some(flow) };
        }
    }
}
