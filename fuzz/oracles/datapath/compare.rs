//! Sends a sequence through the model and a machine, packet by packet.

use std::collections::BTreeMap;
use std::fmt;

use weir_model::Direction;

use super::machine::{Machine, Seen};
use super::model::{Model, Outcome};
use super::packet::Packet;
use super::rules::Rule;
use super::worlds::{InForce, PODS, World, endpoint};

/// Number of times that a sequence is sent if its fragments may share a slot. The chance that two share one every time
/// is at most 1 in 2²⁰.
const TURNS: u64 = 5;

/// A test sequence: one pod, the first generation, and the steps.
#[derive(Clone)]
pub struct Sequence {
    /// Of [`super::worlds::PODS`].
    pub pod: usize,
    /// The first generation.
    pub world: usize,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, world, steps } = self;
        write!(f, "pod \"{}\", generation {world}", PODS[*pod])?;
        steps.iter().enumerate().try_for_each(|(at, step)| write!(f, "\n{at}: {step:?}"))
    }
}

/// A step of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A packet at one of the hooks.
    Packet(Packet),
    /// This number of seconds passes.
    Wait(u64),
    /// Another generation comes into force.
    Switch(usize),
    /// The interface has no pod any more.
    Unplug,
    /// It has its pod again.
    Plug,
}

/// The packets and rules that occurred.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Packets.
    pub packets: usize,
    /// Packets that met each rule.
    pub rules: BTreeMap<Rule, usize>,
    /// Number of packets with each outcome at each hook: `true` is `from_pod`.
    pub outcomes: BTreeMap<(bool, Outcome), usize>,
}

impl Tally {
    /// Rules that no packet met.
    pub fn idle(&self) -> Vec<Rule> {
        Rule::ALL.iter().copied().filter(|rule| !self.rules.contains_key(rule)).collect()
    }

    fn count(&mut self, packet: &Packet, outcome: Outcome, rules: &[Rule]) {
        self.packets += 1;
        for rule in rules {
            *self.rules.entry(*rule).or_default() += 1;
        }
        *self.outcomes.entry((packet.hook == Direction::Egress, outcome)).or_default() += 1;
    }
}

/// Where model and machine differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The step.
    pub at: usize,
    /// The expectation and the observation, as text.
    pub text: String,
    /// The outcome that the model expected, and the observed one as text.
    pub outcomes: (Outcome, String),
    /// The rules that the packet met.
    pub rules: Vec<Rule>,
    /// A later fragment whose slot for ports may belong to another packet: see [`agree`].
    place_is_shared: bool,
}

/// The model on its way through a sequence.
struct Walk<'w> {
    pod: usize,
    worlds: &'w [World],
    world: usize,
    policy: InForce<'w>,
    model: Model,
}

impl<'w> Walk<'w> {
    fn new(sequence: &Sequence, worlds: &'w [World]) -> Self {
        let Sequence { pod, world, .. } = *sequence;
        Self { pod, worlds, world, policy: worlds[world].policy(pod), model: Model::new(Some(endpoint(pod))) }
    }

    /// The expected outcome of the packet, if the step is a packet.
    fn step(&mut self, step: &Step, tally: &mut Tally) -> Option<Outcome> {
        match step {
            Step::Wait(seconds) => self.model.now += seconds,
            Step::Switch(to) => {
                self.world = *to;
                self.policy = self.worlds[*to].policy(self.pod);
                self.model.generation += 1;
            }
            Step::Unplug => self.model.endpoint = None,
            Step::Plug => self.model.endpoint = Some(endpoint(self.pod)),
            Step::Packet(packet) => {
                let outcome = self.model.receive(packet, &mut self.policy);
                tally.count(packet, outcome, &self.model.noted);
                return Some(outcome);
            }
        }
        None
    }
}

/// Runs the model alone, to see which rules would occur.
pub fn expect(sequence: &Sequence, worlds: &[World], tally: &mut Tally) {
    let mut walk = Walk::new(sequence, worlds);
    for step in &sequence.steps {
        walk.step(step, tally);
    }
}

/// Sends a sequence through the model and the machine.
///
/// Two packets in fragments may share a slot for their ports: then the second packet overwrites the first one's ports,
/// and the first one's later fragments cannot be judged. The model has a slot for each packet. Whether two packets
/// share a slot depends on the seeds of the hash. So a sequence that differs in this way is sent again with other
/// seeds, and must agree once.
pub fn agree(
    sequence: &Sequence,
    worlds: &[World],
    machine: &mut dyn Machine,
    tally: &mut Tally,
) -> Result<(), Box<Difference>> {
    let mut result = turn(0, sequence, worlds, machine, tally);
    for number in 1..TURNS {
        match result {
            Err(difference) if difference.place_is_shared => {
                result = turn(number, sequence, worlds, machine, &mut Tally::default());
            }
            other => return other,
        }
    }
    result
}

/// Sends a sequence through the model and the machine, with the hash seeds of one turn.
fn turn(
    number: u64,
    sequence: &Sequence,
    worlds: &[World],
    machine: &mut dyn Machine,
    tally: &mut Tally,
) -> Result<(), Box<Difference>> {
    let mut walk = Walk::new(sequence, worlds);
    machine.reset(number);
    machine.plug(Some(sequence.pod));
    machine.switch(sequence.world, walk.model.generation);
    for (at, step) in sequence.steps.iter().enumerate() {
        let expected = walk.step(step, tally);
        let seen = match step {
            Step::Wait(seconds) => {
                machine.advance(*seconds);
                continue;
            }
            Step::Switch(to) => {
                machine.switch(*to, walk.model.generation);
                continue;
            }
            Step::Unplug => {
                machine.plug(None);
                continue;
            }
            Step::Plug => {
                machine.plug(Some(sequence.pod));
                continue;
            }
            Step::Packet(packet) => machine.send(packet),
        };
        let Some(expected) = expected else { continue };
        let is_it = |it: &Seen| it.passes == expected.passes() && it.counted == [expected.name()];
        if !seen.as_ref().is_ok_and(is_it) {
            return Err(Box::new(difference(at, step, &walk, expected, seen)));
        }
    }
    Ok(())
}

fn difference(at: usize, step: &Step, walk: &Walk<'_>, expected: Outcome, seen: Result<Seen, String>) -> Difference {
    let seen = match seen {
        Ok(seen) => format!("{}{}", if seen.passes { "passes: " } else { "dropped: " }, seen.counted.join(", ")),
        Err(error) => error,
    };
    let Walk { model, worlds, world, .. } = walk;
    let rules: Vec<_> = model.noted.iter().map(|rule| format!("    {rule:?}: {}", rule.sentence())).collect();
    let flows: Vec<_> = model.flows.iter().map(|flow| format!("    {flow:?}")).collect();
    let text = format!(
        "step {at} under \"{}\": {step:?}\n  model: {}\n  machine: {seen}\n  rules:\n{}\n  flows after it, at {} s:\n{}",
        worlds[*world].name,
        expected.name(),
        rules.join("\n"),
        model.now,
        flows.join("\n")
    );
    let place_is_shared = model.noted.contains(&Rule::LaterFragment) && model.fragmented_packets() > 1;
    Difference { at, text, outcomes: (expected, seen), rules: model.noted.clone(), place_is_shared }
}
