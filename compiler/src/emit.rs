//! The datapath: instructions for the two programs at pods, around the decision that [`crate::ir`] is, and for the one at the
//! edge of the node ([`emit_edge`]).
//!
//! Problem: the same questions for every packet, in an order that matters, in a language with eleven registers and a
//! verifier. Strategy: one function here a question, in the order in which a packet meets them:
//!
//! ```text
//!  usual ──▶ pass
//!    │
//!    ▼
//!  family ─▶ parse ─▶ flow look-up ──hit──────────────▶ direction, epoch, state ─▶ pass
//!    │         │            │ miss                            │ older epoch
//!    │         │            ▼                                 ▼
//!    │         │       endpoint ─▶ source ─▶ decision ◀───────┘
//!    ▼         ▼                               │ allow: remember the flow, pass; deny: record, drop
//!  drop where the endpoint is isolated
//! ```
//!
//! What is emitted depends on the input's features (families, prefixes, port ranges), never on how much of them there is.
//! Registers and stack are in [`frame`]; the kernel objects are in [`crate::layout`].

mod account;
mod decide;
mod edge;
mod flows;
mod fragments;
mod frame;
mod icmp;
mod lookup;
mod neighbours;
mod options;
mod parse;
mod verdict;

use std::collections::BTreeMap;

use crate::address::Family;
use crate::ebpf::asm::{Asm, AsmError, Assembled, Label, MapRef};
use crate::ebpf::helper::Helper;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::ebpf::target::Target;
use crate::edge::Edge;
use crate::ir::{Inst, Program, Tables, Value};
use crate::layout::{MapName, Outcome, config, direction_number, mark};
use crate::model::Direction;
use frame::{Frame, skb};

/// What the programs are specialised to.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The oldest kernel they must load on.
    pub target: Target,
    /// The decisions: ingress, egress.
    pub decisions: [&'a Program; 2],
    /// What the decisions look into.
    pub tables: &'a Tables,
    /// Families that local endpoints have.
    pub families: Vec<Family>,
}

/// Why nothing was emitted. Each is a limit of ours that a compile reports, never works around.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The assembler refused.
    #[error(transparent)]
    Asm(#[from] AsmError),
    /// A decision with more values than the stack frame has room for.
    #[error("the decision has {0}, the stack frame has room for {max}", max = Frame::MOST_VALUES)]
    TooManyValues(Value),
    /// A look-up that stands for compares; a pass turns it into them.
    #[error("a look-up was not turned into compares: {0}")]
    NotCompared(Inst),
    /// A program that is none.
    #[error("the decision goes on to a block that is not there")]
    Decision,
}

/// The program of one hook: `to_pod` for ingress, `from_pod` for egress.
pub fn emit(plan: &Plan<'_>, hook: Direction) -> Result<Assembled, EmitError> {
    let mut emitter = Emitter::new(plan, hook);
    let arp = emitter.entry();
    for family in &plan.families {
        emitter.family(*family)?;
    }
    emitter.absent_families();
    let unknown = emitter.drop_unless_open(Outcome::Unknown);
    emitter.asm.jump(unknown);
    emitter.arp(arp);
    emitter.ends();
    Ok(emitter.asm.assemble()?)
}

/// The program at the edge of the node, which drops what is denied to everybody.
pub fn emit_edge(plan: &Plan<'_>, edge: &Edge) -> Result<Assembled, EmitError> {
    let asm = Asm::new(plan.target, AT_EDGE);
    let mut emitter = Emitter { asm, ..Emitter::new(plan, Direction::Ingress) };
    emitter.edge(edge);
    Ok(emitter.asm.assemble()?)
}

/// A program that is one look-up, for tests and benchmarks: `address` leaves an address, as on the wire, at `r10 +
/// REMOTE`; the program returns its class.
pub fn emit_look_up(plan: &Plan<'_>, family: Family, address: impl FnOnce(&mut Asm)) -> Result<Assembled, EmitError> {
    let mut emitter = Emitter::new(plan, Direction::Ingress);
    address(&mut emitter.asm);
    emitter.class(family, Frame::VALUES);
    emitter.load_number(Reg::R0, Frame::VALUES);
    emitter.asm.exit();
    Ok(emitter.asm.assemble()?)
}

/// Where [`emit_look_up`] wants the address, from r10.
pub const REMOTE: i16 = frame::Key::REMOTE;

/// The name of a hook's program.
pub fn program_name(hook: Direction) -> &'static str {
    match hook {
        Direction::Ingress => "to_pod",
        Direction::Egress => "from_pod",
    }
}

/// The name of the program at the edge of the node.
pub const AT_EDGE: &str = "at_edge";

struct Emitter<'a> {
    asm: Asm,
    plan: &'a Plan<'a>,
    hook: Direction,
    /// Where a packet ends, by what is counted. Made when first needed.
    ends: BTreeMap<Outcome, Label>,
    /// Drop if the endpoint filters this direction, else pass.
    unless_open: BTreeMap<Outcome, Label>,
    /// The beginning of the judgement in the family that is being emitted.
    judge: Label,
}

impl<'a> Emitter<'a> {
    fn new(plan: &'a Plan<'a>, hook: Direction) -> Self {
        let mut asm = Asm::new(plan.target, program_name(hook));
        let judge = asm.label("judge");
        Self { asm, plan, hook, ends: BTreeMap::new(), unless_open: BTreeMap::new(), judge }
    }

    /// Where packets with this outcome go.
    fn end(&mut self, outcome: Outcome) -> Label {
        let asm = &mut self.asm;
        *self.ends.entry(outcome).or_insert_with(|| asm.label(outcome.name()))
    }

    /// Where packets go that are dropped only where this direction is filtered.
    fn drop_unless_open(&mut self, outcome: Outcome) -> Label {
        let asm = &mut self.asm;
        *self.unless_open.entry(outcome).or_insert_with(|| asm.label(outcome.name()))
    }

    /// Emits the fast path, clears the stack slots that only some paths write, and branches by family. Returns the label for ARP.
    fn entry(&mut self) -> Label {
        self.asm.mov(Reg::R6, Reg::R1);
        match self.hook {
            Direction::Egress => self.stamp(),
            Direction::Ingress => self.honour_stamp(),
        }
        self.pass_at_once();
        self.asm.load(Size::W, Reg::R2, Reg::R6, skb::IFINDEX);
        self.hidden_zero(Reg::R1, Reg::R2);
        for offset in [Frame::PEER]
            .into_iter()
            .chain((Frame::CLEARED..Frame::SCRATCH).step_by(8))
            .chain((Frame::LOCAL..0).step_by(8))
        {
            self.asm.store(Size::Dw, Reg::R10, offset, Reg::R1);
        }
        self.asm.store(Size::W, Reg::R10, frame::Key::IFINDEX, Reg::R2);
        if self.hook == Direction::Egress {
            self.store_constant(Frame::JUDGED, direction_number(self.hook));
        }
        // From a pod, always: the kernel takes off a tag of network 0 behind this hook, and then takes the packet for one without a tag,
        // whose addresses were not checked.
        let unknown = match self.hook {
            Direction::Egress => self.end(Outcome::Unknown),
            Direction::Ingress => self.drop_unless_open(Outcome::Unknown),
        };
        let arp = self.asm.label("arp");
        // A tag that the device took off: what is inside is not what our rules speak of.
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::VLAN_PRESENT);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, unknown);
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::PROTOCOL);
        self.asm.jump_if(Cond::Eq, Reg::R1, i32::from(0x0806u16.to_be()), arp);
        arp
    }

    /// `zero = 0`, from a number that the verifier does not know.
    // Verifier: what is safe with any number is safe with zero, but not the other way round, and zero is often what it meets
    // first. Up to 6.18 at least it does not see that this is one.
    fn hidden_zero(&mut self, zero: Reg, unknown: Reg) {
        self.asm.mov(zero, unknown);
        self.asm.alu(AluOp::Xor, zero, unknown);
    }

    /// Marks the packet as seen by this generation.
    fn stamp(&mut self) {
        self.asm.load_map_value(Reg::R1, map_ref(MapName::Config), config::STAMP);
        self.asm.load(Size::W, Reg::R1, Reg::R1, 0);
        self.asm.store(Size::W, Reg::R6, skb::TC_INDEX, Reg::R1);
    }

    /// While two generations are in force, a packet that the other has seen on its way out is the other's.
    fn honour_stamp(&mut self) {
        let ours = self.asm.label("this generation's");
        self.asm.load_map_value(Reg::R2, map_ref(MapName::Config), config::OTHER);
        self.asm.load(Size::W, Reg::R2, Reg::R2, 0);
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::TC_INDEX);
        self.asm.alu(AluOp::And, Reg::R1, mark::STAMP as i32);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, ours);
        self.asm.mov(Reg::R1, Reg::R6);
        self.asm.load_map(Reg::R2, map_ref(MapName::Other));
        self.asm.mov(Reg::R3, 0);
        self.asm.call(Helper::TAIL_CALL);
        self.asm.bind(ours);
    }

    /// Everything for one family; packets of others fall through.
    fn family(&mut self, family: Family) -> Result<(), EmitError> {
        let next = self.asm.label("another family");
        self.asm.jump_if(Cond::Ne, Reg::R1, ether_type(family), next);
        self.judge = self.asm.label("judge");
        let current = self.parse_and_find(family);
        self.asm.bind(self.judge);
        self.judge(family, current)?;
        self.asm.bind(next);
        // The verifier forgets r1 at the join with other paths; the next compare needs it.
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::PROTOCOL);
        Ok(())
    }

    /// A pod without an address of a family sends nothing in it: it could say that it is a router, or another pod.
    fn absent_families(&mut self) {
        let absent = [Family::V4, Family::V6].into_iter().filter(|it| !self.plan.families.contains(it));
        for family in absent.collect::<Vec<_>>() {
            if self.hook == Direction::Egress {
                let spoofed = self.end(Outcome::Source);
                self.asm.jump_if(Cond::Eq, Reg::R1, ether_type(family), spoofed);
            }
        }
    }

    fn parse_and_find(&mut self, family: Family) -> Label {
        let parsed = self.asm.label("parsed");
        match family {
            Family::V4 => self.parse_v4(parsed),
            Family::V6 => self.parse_v6(parsed),
        }
        self.asm.bind(parsed);
        self.find_flow(family)
    }

    /// `*(u32 *)(r10 + offset) = number`
    fn store_constant(&mut self, offset: i16, number: u32) {
        self.asm.store(Size::W, Reg::R10, offset, number as i32);
    }

    /// `r = r10 + offset`
    fn stack_pointer(&mut self, reg: Reg, offset: i16) {
        self.asm.mov(reg, Reg::R10);
        self.asm.alu(AluOp::Add, reg, i32::from(offset));
    }

    /// `r0 = value of a map for the key on the stack`, or 0.
    fn look_up(&mut self, map: MapName, key: i16) {
        self.asm.load_map(Reg::R1, map_ref(map));
        self.stack_pointer(Reg::R2, key);
        self.asm.call(Helper::MAP_LOOKUP_ELEM);
    }
}

/// A family's number in Ethernet headers, as programs read it.
fn ether_type(family: Family) -> i32 {
    let number = match family {
        Family::V4 => 0x0800u16,
        Family::V6 => 0x86dd,
    };
    i32::from(number.to_be())
}

fn map_ref(map: MapName) -> MapRef {
    MapRef(map as u32)
}
