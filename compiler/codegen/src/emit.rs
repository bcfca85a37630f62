//! The datapath: emits the two programs at the pods, around the decision of [`crate::ir`], and the program at the edge
//! of the node ([`emit_edge`]).
//!
//! Problem: every packet needs the same checks, and their order matters. The target language has eleven registers and a
//! verifier. Strategy: one function per check, in the order in which a packet meets them:
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
//! The emitted code depends on the input's features (families, prefixes, port ranges), never on the number of objects.
//! Registers and stack are in [`frame`]; the kernel objects are in [`weir_artifact::layout`]. What several checks need
//! is emitted in one place: [`header`] reads IP headers, [`flows`] has one reader of a slot for the fast and the slow
//! path, [`hash`] hashes, and [`access`] loads and stores numbers by name.

mod access;
mod account;
mod decide;
mod edge;
mod flows;
mod fragments;
mod frame;
mod hash;
mod header;
mod icmp;
mod lookup;
mod neighbours;
mod options;
mod parse;
pub mod shapes;
mod verdict;

use std::collections::BTreeMap;
use weir_artifact::layout::{AT_EDGE, MapName, Outcome, config, direction_number, mark, program_name};

use crate::ir::{DecisionProgram, Inst, Value};
use frame::{StackFrame, skb};
use parse::family_number;
use shapes::TableShapes;
use weir_classes::AddressMap;
use weir_classes::edge_denials::EdgeDenials;
use weir_ebpf::asm::{Asm, AsmError, Assembled, Label, MapRef};
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_ebpf::target::Target;
use weir_model::Direction;
use weir_objects::address::Family;

/// The input that the programs are specialised to. Equal plans give equal programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<'a> {
    /// The oldest kernel that the programs must load on.
    pub target: Target,
    /// The decisions, ingress first, then egress.
    pub decisions: [&'a DecisionProgram; 2],
    /// The shapes of the tables that the decisions read.
    pub shapes: TableShapes,
    /// The address families of local endpoints.
    pub families: Vec<Family>,
}

/// Why no program was emitted. Each variant is a limit of the emitter: the compile reports it and does not work around
/// it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The assembler reported an error.
    #[error(transparent)]
    Asm(#[from] AsmError),
    /// A decision with more values than the stack frame has room for.
    #[error("the decision has {0}, the stack frame has room for {max}", max = StackFrame::MOST_VALUES)]
    TooManyValues(Value),
    /// A look-up whose set has no table because the cost model chose compares. A pass should have replaced it.
    #[error("a look-up was not turned into compares: {0}")]
    NotCompared(Inst),
    /// The decision jumps to a block that does not exist.
    #[error("the decision goes on to a block that is not there")]
    Decision,
}

/// Emits the program of one hook: `to_pod` for ingress, `from_pod` for egress.
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

/// Emits the program at the edge of the node. It drops packets from peers that deny lists block for every local pod.
/// Without a table of single addresses, it compares those of `addresses`.
pub fn emit_edge(plan: &Plan<'_>, addresses: &AddressMap, edge: &EdgeDenials) -> Result<Assembled, EmitError> {
    let asm = Asm::new(plan.target, AT_EDGE);
    let mut emitter = Emitter { asm, ..Emitter::new(plan, Direction::Ingress) };
    emitter.edge(addresses, edge);
    Ok(emitter.asm.assemble()?)
}

/// Emits a program that consists of one look-up, for tests and benchmarks. `address` emits code that stores an address,
/// as on the wire, at `r10 + REMOTE`; the program returns the address's class.
pub fn emit_look_up(plan: &Plan<'_>, family: Family, address: impl FnOnce(&mut Asm)) -> Result<Assembled, EmitError> {
    let mut emitter = Emitter::new(plan, Direction::Ingress);
    address(&mut emitter.asm);
    emitter.class(family, StackFrame::VALUES);
    emitter.load_number(Reg::R0, StackFrame::VALUES);
    emitter.asm.exit();
    Ok(emitter.asm.assemble()?)
}

/// The stack offset from r10 where [`emit_look_up`] expects the address.
pub const REMOTE: i16 = frame::FlowKey::REMOTE;

struct Emitter<'a> {
    asm: Asm,
    plan: &'a Plan<'a>,
    hook: Direction,
    /// The label at which packets with an outcome end. Created when it is first needed.
    ends: BTreeMap<Outcome, Label>,
    /// For an outcome, the label that drops if the endpoint filters this direction and passes otherwise.
    unless_open: BTreeMap<Outcome, Label>,
    /// Start of the slow path's policy decision, in the family that is being emitted.
    judge: Label,
}

impl<'a> Emitter<'a> {
    fn new(plan: &'a Plan<'a>, hook: Direction) -> Self {
        let mut asm = Asm::new(plan.target, program_name(hook));
        let judge = asm.label("judge");
        Self { asm, plan, hook, ends: BTreeMap::new(), unless_open: BTreeMap::new(), judge }
    }

    /// The label at which packets with this outcome end.
    fn end(&mut self, outcome: Outcome) -> Label {
        let asm = &mut self.asm;
        *self.ends.entry(outcome).or_insert_with(|| asm.label(outcome.name()))
    }

    /// The label for packets with this outcome that are dropped only if the endpoint filters this direction.
    fn drop_unless_open(&mut self, outcome: Outcome) -> Label {
        let asm = &mut self.asm;
        *self.unless_open.entry(outcome).or_insert_with(|| asm.label(outcome.name()))
    }

    /// Emits the fast path, clears the stack slots that only some paths write, and branches by family. Returns the
    /// label for ARP.
    fn entry(&mut self) -> Label {
        self.asm.mov(Reg::R6, Reg::R1);
        match self.hook {
            Direction::Egress => self.stamp(),
            Direction::Ingress => self.honour_stamp(),
        }
        // The fast path comes before the first use of the stack. Clearing the stack alone is more work than all that
        // the fast path does for a packet of an established flow.
        self.pass_at_once();
        self.load_context(Reg::R2, skb::IFINDEX);
        self.hidden_zero(Reg::R1, Reg::R2);
        // Verifier: it refuses a read of stack that was not written on every path. Numbers that only some paths write
        // are cleared here, once. A store wherever a path may leave a number out would cost more instructions, and one
        // forgotten store would make a program that does not load.
        for offset in [StackFrame::PEER.at]
            .into_iter()
            .chain((StackFrame::CLEARED..StackFrame::SCRATCH).step_by(8))
            .chain((StackFrame::FLOW..0).step_by(8))
        {
            self.asm.store(Size::Dw, Reg::R10, offset, Reg::R1);
        }
        self.store_frame(frame::FlowKey::IFINDEX, Reg::R2);
        if self.hook == Direction::Egress {
            // Ingress is 0, as just cleared.
            self.store_constant(StackFrame::JUDGED, direction_number(self.hook));
        }
        // Tagged packets from a pod are always dropped. Behind this hook the kernel removes a tag with VLAN id 0 and
        // then treats the packet as untagged, although its addresses were not checked.
        let unknown = match self.hook {
            Direction::Egress => self.end(Outcome::Unknown),
            Direction::Ingress => self.drop_unless_open(Outcome::Unknown),
        };
        let arp = self.asm.label("arp");
        // The device has removed a VLAN tag. Policies do not cover the network inside it.
        self.load_context(Reg::R1, skb::VLAN_PRESENT);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, unknown);
        self.load_context(Reg::R1, skb::PROTOCOL);
        self.asm.jump_if(Cond::Eq, Reg::R1, i32::from(0x0806u16.to_be()), arp);
        arp
    }

    /// `zero = 0`, computed from a number that the verifier does not know, which may be in the same register.
    // Verifier: a state that was accepted with an unknown number also covers zero, but not the other way round, and the
    // verifier often meets the path with zero first. It tracks zeros on the stack wherever they are, unlike other
    // constants: with known zeros it walked twice to three times the instructions. Kernels up to 6.18 at least do not
    // see that `x ^ x` is zero.
    fn hidden_zero(&mut self, zero: Reg, unknown: Reg) {
        if zero != unknown {
            self.asm.mov(zero, unknown);
        }
        self.asm.alu(AluOp::Xor, zero, unknown);
    }

    /// Like [`Self::hidden_zero`], where no register has such a number.
    fn hidden_zero_of_key(&mut self, zero: Reg) {
        self.load_frame(zero, frame::FlowKey::REMOTE);
        self.hidden_zero(zero, zero);
    }

    /// Marks the packet as seen by this generation.
    fn stamp(&mut self) {
        self.load_config(Reg::R1, config::STAMP);
        self.store_context(skb::TC_INDEX, Reg::R1);
    }

    /// While two generations are in force, tail-calls the other generation's program if that generation's `from_pod`
    /// stamped the packet.
    fn honour_stamp(&mut self) {
        let ours = self.asm.label("this generation's");
        // Outside of a switch the parameter is `mark::NONE`, which no stamp equals: the usual packet pays for one
        // compare.
        self.load_config(Reg::R2, config::OTHER);
        self.load_context(Reg::R1, skb::TC_INDEX);
        self.asm.alu(AluOp::And, Reg::R1, mark::STAMP as i32);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, ours);
        self.asm.mov(Reg::R1, Reg::R6);
        // If the other generation is already gone, the array holds no program. The tail call then falls through, and
        // this generation decides.
        self.asm.load_map(Reg::R2, map_ref(MapName::Other));
        self.asm.mov(Reg::R3, 0);
        self.asm.call(Helper::TAIL_CALL);
        self.asm.bind(ours);
    }

    /// Emits everything for one family. Packets of other families fall through.
    fn family(&mut self, family: Family) -> Result<(), EmitError> {
        let next = self.asm.label("another family");
        self.asm.jump_if(Cond::Ne, Reg::R1, ether_type(family), next);
        // Each family has its own copy of the decision. The places of its addresses and ports are known at emit time,
        // and no instruction asks for the family again.
        self.judge = self.asm.label("judge");
        let current = self.parse_and_find(family);
        self.asm.bind(self.judge);
        self.judge(family, current)?;
        self.asm.bind(next);
        // The verifier forgets r1 where paths join, and the next compare needs it.
        self.load_context(Reg::R1, skb::PROTOCOL);
        Ok(())
    }

    /// Drops packets from the pod in families of which it has no address: the pod could pose as a router or as another
    /// pod.
    fn absent_families(&mut self) {
        let absent = [Family::V4, Family::V6].into_iter().filter(|it| !self.plan.families.contains(it));
        for family in absent.collect::<Vec<_>>() {
            // Only the pod is restricted. A packet of such a family to the pod falls through and is `Unknown`.
            if self.hook == Direction::Egress {
                let (spoofed, other) = (self.end(Outcome::Source), self.asm.label("not an absent family"));
                self.asm.jump_if(Cond::Ne, Reg::R1, ether_type(family), other);
                // The record has the family and no addresses: by the family, a monitor distinguishes the router
                // solicitations of every pod without IPv6 from forged ARP.
                self.store_constant(StackFrame::FAMILY, family_number(family));
                self.asm.jump(spoofed);
                self.asm.bind(other);
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
}

/// A family's EtherType as programs load it (network byte order).
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
