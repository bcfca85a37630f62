//! The measurements, and how they are printed.

use std::net::IpAddr;

use serde_json::{Value, json};
use weir_artifact::layout::direction_number;
use weir_model::Direction;
use weir_objects::address::Family;
use weir_runtime::sys::{BpfKernel, KernelProgram};

use weir_runtime::trial::driver::{Driver, DriverTraffic};

use crate::{OUTSIDE, PORT};

/// `TC_ACT_SHOT`
const DROPPED: u32 = 2;
/// Numbers of established flows that packets cycle through. The flow table has at least two slots for each flow.
const FLOWS: [u32; 4] = [1, 1_024, 1 << 16, 1 << 19];
/// Slots of the flow table for all but the last number of flows.
const SLOTS: u32 = 1 << 17;
/// Number of rounds; `NEW` flows begin in each.
const ROUNDS: u32 = 8;
const NEW: u32 = 1 << 13;
const RUNS: usize = 20;
/// Number of times that a table is filled with new flows, if it can be emptied in between.
const FILLED: u32 = 12;
/// Packets per run: enough for the clock's resolution, and to touch most of the flows.
const REPEAT: u32 = 100_000;

/// The pod's address and the addresses that it talks to.
pub(super) struct Ends {
    pub(super) own: IpAddr,
    pub(super) allowed: Vec<IpAddr>,
    pub(super) denied: Vec<IpAddr>,
    pub(super) outside: Vec<IpAddr>,
}

/// Nanoseconds per packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) established: [f64; FLOWS.len()],
    pub(super) new_pod: f64,
    pub(super) new_outside: f64,
    pub(super) denied: f64,
}

/// Programs that can be measured.
pub(super) trait Subject {
    /// Loads `to_pod` and `from_pod`, with a flow table of `slots` slots.
    fn load(&mut self, slots: u32);
    fn programs(&self) -> &[KernelProgram];
    /// Empties the flow table; returns false if it has flows that cannot be removed.
    fn forget_flows(&self) -> bool;
}

impl Figures {
    /// The lesser of the two, for each figure.
    pub(super) fn least(&self, other: &Self) -> Self {
        self.with(other, f64::min)
    }

    /// Subtracts the figures of a program that does nothing.
    pub(super) fn over(&self, base: &Self) -> Self {
        self.with(base, |whole, nothing| whole - nothing)
    }

    fn with(&self, other: &Self, both: impl Fn(f64, f64) -> f64) -> Self {
        let mut established = self.established;
        established.iter_mut().zip(other.established).for_each(|(one, other)| *one = both(*one, other));
        Self {
            established,
            new_pod: both(self.new_pod, other.new_pod),
            new_outside: both(self.new_outside, other.new_outside),
            denied: both(self.denied, other.denied),
        }
    }
}

impl Ends {
    fn traffic(&self, hook: Direction, others: &[IpAddr]) -> DriverTraffic {
        let port = if hook == Direction::Ingress { PORT } else { OUTSIDE };
        DriverTraffic { hook, own: self.own, others: others.to_vec(), port }
    }
}

fn of(programs: &[KernelProgram], hook: Direction) -> &KernelProgram {
    &programs[direction_number(hook) as usize]
}

fn drive(kernel: &BpfKernel, traffic: &DriverTraffic, target: &KernelProgram) -> Driver {
    Driver::new(kernel, traffic, target).expect("it can be driven")
}

fn least(measured: impl Iterator<Item = f64>) -> f64 {
    measured.fold(f64::INFINITY, f64::min)
}

/// Mean cost of flows that begin in an empty table until it is half full, least of several fillings.
fn begin(driver: &Driver, forget: impl Fn() -> bool) -> f64 {
    let fill = || least((0..ROUNDS).map(|round| driver.begin(round * NEW, NEW).expect("it runs")));
    least((0..FILLED).map_while(|_| forget().then(&fill)))
}

fn go_on(driver: &Driver, flows: u32) -> f64 {
    least((0..RUNS).map(|_| driver.go_on(flows, REPEAT).expect("it runs")))
}

/// The cost of the driver alone.
pub(super) fn baseline(kernel: &BpfKernel, ends: &Ends, empty: &KernelProgram) -> Figures {
    let driver = |hook, others: &[IpAddr]| drive(kernel, &ends.traffic(hook, others), empty);
    let to_pod = driver(Direction::Ingress, &ends.allowed);
    let from_pod = driver(Direction::Egress, &ends.outside);
    let (new_pod, new_outside) = (begin(&to_pod, || true), begin(&from_pod, || true));
    Figures { established: FLOWS.map(|flows| go_on(&to_pod, flows)), new_pod, new_outside, denied: new_pod }
}

/// The cost of the programs, including the driver.
pub(super) fn measure(kernel: &BpfKernel, ends: &Ends, subject: &mut dyn Subject) -> Figures {
    let mut figures = Figures::default();
    subject.load(SLOTS);
    {
        let driver = |hook, others: &[IpAddr]| drive(kernel, &ends.traffic(hook, others), of(subject.programs(), hook));
        let denied = driver(Direction::Ingress, &ends.denied);
        assert_eq!(denied.verdict().expect("it runs"), DROPPED, "it is denied");
        figures.denied = least((0..RUNS).map(|_| denied.begin(0, NEW).expect("it runs")));
        let outside = driver(Direction::Egress, &ends.outside);
        assert_ne!(outside.verdict().expect("it runs"), DROPPED, "the pod may begin it");
        figures.new_outside = begin(&outside, || subject.forget_flows());
        let allowed = driver(Direction::Ingress, &ends.allowed);
        assert_ne!(allowed.verdict().expect("it runs"), DROPPED, "others may begin it");
        figures.new_pod = begin(&allowed, || subject.forget_flows());
        for (index, flows) in FLOWS.into_iter().enumerate().filter(|(_, flows)| *flows <= ROUNDS * NEW) {
            figures.established[index] = go_on(&allowed, flows);
        }
    }
    let most = FLOWS[FLOWS.len() - 1];
    subject.load(2 * most);
    let allowed =
        drive(kernel, &ends.traffic(Direction::Ingress, &ends.allowed), of(subject.programs(), Direction::Ingress));
    allowed.begin(0, most).expect("it runs");
    figures.established[FLOWS.len() - 1] = go_on(&allowed, most);
    figures
}

pub(super) fn header() -> String {
    let flows: String = FLOWS.iter().map(|flows| format!(" {:>13}", format!("{flows} flows"))).collect();
    let names = format!(
        "{:<12} {:>2} {:>8} {:>8} {:>8} {:>6} {:>8} {:>7}",
        "flows in", "ip", "policies", "tiers", "listed", "insns", "walked", "load ms"
    );
    format!("{names}{flows} {:>13} {:>13} {:>13}", "new, pod", "new, outside", "denied")
}

fn list(figures: &Figures) -> Vec<f64> {
    let Figures { established, new_pod, new_outside, denied } = figures;
    established.iter().chain([new_pod, new_outside, denied]).copied().collect()
}

/// A program and its figures.
pub(super) struct MeasuredProgram<'a> {
    pub(super) name: &'a str,
    pub(super) family: Family,
    /// Policies of namespaces and of the cluster, listed addresses, instructions, and instructions that the verifier walked.
    pub(super) numbers: [usize; 5],
    /// Milliseconds that the kernel took to load it.
    pub(super) load: f64,
    pub(super) figures: &'a Figures,
    pub(super) by_hand: &'a Figures,
}

/// Nanoseconds, and how many times those of the program by hand.
pub(super) fn row(measured: &MeasuredProgram<'_>) -> String {
    let MeasuredProgram {
        name,
        family,
        numbers: [policies, cluster_wide, listed, insns, walked],
        load,
        figures,
        by_hand,
    } = *measured;
    let number = if family == Family::V4 { 4 } else { 6 };
    let figures = list(figures).into_iter().zip(list(by_hand));
    let cells: String = figures.map(|(ns, hand)| format!(" {:>13}", format!("{ns:.1} ({:.2})", ns / hand))).collect();
    format!(
        "{name:<12} {number:>2} {policies:>8} {cluster_wide:>8} {listed:>8} {insns:>6} {walked:>8} {load:>7.2}{cells}"
    )
}

pub(super) fn json(measured: &MeasuredProgram<'_>) -> Value {
    let MeasuredProgram {
        name,
        family,
        numbers: [policies, cluster_wide, listed, insns, walked],
        load,
        figures,
        by_hand,
    } = *measured;
    let names = ["established_1", "established_1024", "established_65536", "established_524288"];
    let names = names.into_iter().chain(["new_pod", "new_outside", "denied"]);
    let rounded = |it: f64| (it * 100.0).round() / 100.0;
    let each = list(figures).into_iter().zip(list(by_hand));
    let figures: serde_json::Map<String, Value> = names
        .zip(each)
        .map(|(name, (ns, hand))| (name.to_owned(), json!({"ns": rounded(ns), "ratio": rounded(ns / hand)})))
        .collect();
    json!({
        "flows": name,
        "family": if family == Family::V4 { 4 } else { 6 },
        "policies": policies,
        "cluster_wide": cluster_wide,
        "listed": listed,
        "instructions": insns,
        "walked": walked,
        "load_ms": rounded(load),
        "figures": figures,
    })
}
