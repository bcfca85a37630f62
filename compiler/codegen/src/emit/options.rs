//! The options of an IPv4 header, to find source routes: with one, the packet does not go where its destination address
//! says.
//!
//! Problem: under a source route the destination address is only the next hop. A packet that policy allows to that hop
//! may end anywhere, and replies to a packet that came through a hop go back through it. Strategy: the program walks
//! the options one by one, as a router does, and drops a packet with a source route where the direction is filtered,
//! even if the route is used up. A walk has at most [`MOST`] steps, each over one option or four bytes of padding; a
//! packet that needs more is malformed.

use super::Emitter;
use super::frame::StackFrame;
use super::header::IpHeader;
use super::parse::ETHERNET;
use weir_artifact::layout::Outcome;
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_objects::address::Family;

/// Enough for a header that is full of padding.
const MOST: usize = 10;
/// The length of a header without options, and of the longest header.
const HEADER: i32 = IpHeader::bytes(Family::V4);
const LONGEST: i32 = 60;

const END: i32 = 0;
const PADDING: i32 = 1;
const LOOSE_ROUTE: i32 = 131;
const STRICT_ROUTE: i32 = 137;

/// The walk's position, from the packet's start.
const AT: Reg = Reg::R2;
/// The end of the IP header.
const HEADER_END: Reg = Reg::R4;

impl Emitter<'_> {
    /// r9 is the header's length and r2 the protocol; both have the same values afterwards.
    pub(super) fn options_v4(&mut self) {
        let [none, over] = ["no options", "options are over"].map(|it| self.asm.label(it));
        // Nearly all packets: no options.
        self.asm.jump_if(Cond::Eq, Reg::R9, HEADER, none);
        self.asm.alu(AluOp::Add, Reg::R9, ETHERNET);
        // The whole header must be linear, up to its last option.
        self.need_at(0);
        self.asm.mov(HEADER_END, Reg::R9);
        // Verifier: HEADER_END must not be linked to r9 (6.10 and later would track both as one), so that compares of
        // it do not narrow r9.
        self.asm.alu(AluOp::And, HEADER_END, 127);
        self.asm.alu(AluOp::Sub, Reg::R9, ETHERNET);
        self.asm.mov(AT, ETHERNET + HEADER);
        for _ in 0..MOST {
            self.option(over);
        }
        let malformed = self.drop_unless_open(Outcome::Malformed);
        self.asm.jump_if(Cond::Ne, AT, HEADER_END, malformed);
        self.asm.bind(over);
        // The walk has overwritten r2, and a pull in `need_at` has moved the packet: the fields that follow are read
        // through r7 again.
        self.need_linear(ETHERNET + HEADER);
        self.load_frame(Reg::R2, StackFrame::PROTOCOL);
        self.asm.bind(none);
    }

    /// Emits one step of the walk. Goes to `over` at the end.
    fn option(&mut self, over: Label) {
        let [four, next] = ["four of padding", "next option"].map(|it| self.asm.label(it));
        let malformed = self.drop_unless_open(Outcome::Malformed);
        let source_route = self.drop_unless_open(Outcome::SourceRoute);
        self.asm.jump_if(Cond::Eq, AT, HEADER_END, over);
        self.asm.jump_if(Cond::Gt, AT, HEADER_END, malformed);
        // Verifier: old kernels learn no bounds from a compare of two registers.
        self.asm.jump_if(Cond::Gt, AT, ETHERNET + LONGEST, malformed);
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R1, AT);
        // Without this step, a header that is full of single bytes of padding would need 40 steps. Each step is emitted
        // code and more work for the verifier.
        self.if_four_of_padding(four);
        self.option_byte(0, malformed);
        self.asm.jump_if(Cond::Eq, Reg::R5, END, over);
        self.asm.alu(AluOp::Add, AT, 1);
        self.asm.jump_if(Cond::Eq, Reg::R5, PADDING, next);
        for route in [LOOSE_ROUTE, STRICT_ROUTE] {
            self.asm.jump_if(Cond::Eq, Reg::R5, route, source_route);
        }
        self.option_byte(1, malformed);
        // The length includes the type and length bytes themselves.
        self.asm.jump_if(Cond::Lt, Reg::R5, 2, malformed);
        self.asm.alu(AluOp::Add, AT, Reg::R5);
        self.asm.alu(AluOp::Sub, AT, 1);
        self.asm.jump(next);
        self.asm.bind(four);
        self.asm.alu(AluOp::Add, AT, 4);
        self.asm.bind(next);
        self.forget_where();
    }

    // Verifier: the next step is walked only once, wherever it starts. Kernels up to 6.18 at least track no number
    // except zero in the upper half of a slot. Otherwise they would walk the rest once for each position at which an
    // option may end.
    fn forget_where(&mut self) {
        self.store_frame(StackFrame::SCRATCH + 4, AT);
        self.load_frame(AT, StackFrame::SCRATCH + 4);
    }

    /// Goes to `four` if r1 points to four bytes of padding.
    fn if_four_of_padding(&mut self, four: Label) {
        let one = self.asm.label("one option");
        self.asm.mov(Reg::R3, AT);
        self.asm.alu(AluOp::Add, Reg::R3, 4);
        self.asm.jump_if(Cond::Gt, Reg::R3, HEADER_END, one);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(AluOp::Add, Reg::R3, 4);
        self.asm.jump_if(Cond::Gt, Reg::R3, Reg::R8, one);
        self.asm.load(Size::W, Reg::R5, Reg::R1, 0);
        self.asm.jump_if32(Cond::Eq, Reg::R5, PADDING * 0x0101_0101, four);
        self.asm.bind(one);
    }

    /// r5 = the byte at `offset` of the option that r1 points to.
    fn option_byte(&mut self, offset: i32, malformed: Label) {
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(AluOp::Add, Reg::R3, offset + 1);
        self.asm.jump_if(Cond::Gt, Reg::R3, Reg::R8, malformed);
        self.asm.load(Size::B, Reg::R5, Reg::R1, offset as i16);
    }
}
