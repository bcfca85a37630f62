//! Ports of fragmented packets: the first fragment writes them when it passes, the fragments after it read them.
//! [`weir_artifact::layout::fragments`] has the layout.

use super::Emitter;
use super::access::EndpointField;
use super::frame::{FlowKey, StackFrame, StackNumber};
use super::hash::HashPart;
use super::parse::{address_bytes, family_number, key};
use weir_artifact::layout::{MapName, Outcome, direction_number, fragments};
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_objects::address::Family;

/// Where the hash is kept while the endpoint's places are looked up.
const HASH: StackNumber = StackNumber::double(StackFrame::SCRATCH + 8);

impl Emitter<'_> {
    /// Copies the first fragment's ports into the key and jumps to `parsed`.
    pub(super) fn recall_fragment(&mut self, family: Family, parsed: Label) {
        let fragment = self.drop_unless_open(Outcome::Fragment);
        // If a later fragment overtakes the first one, it is dropped, as if the network had lost it. Weir stores no
        // packets: a pod could fill any memory with fragments whose first one never comes.
        self.look_up_place(family, fragment);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 0);
        self.load_frame(Reg::R2, HASH);
        self.asm.alu(AluOp::Xor, Reg::R2, Reg::R1);
        self.asm.alu(AluOp::Rsh, Reg::R2, 32);
        // The tag is 32 bits of the hash. The place alone has six, so fragments could easily get the ports of another
        // packet.
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, fragment);
        self.store_frame(key(family).remote_port, Reg::R1);
        self.asm.jump(parsed);
    }

    /// Stores the ports of the flow's key for the packet's later fragments.
    pub(super) fn remember_fragment(&mut self, family: Family) {
        let no_place = self.asm.label("no place for ports");
        self.look_up_place(family, no_place);
        self.load_frame(Reg::R1, HASH);
        self.asm.alu(AluOp::Rsh, Reg::R1, 32);
        self.asm.alu(AluOp::Lsh, Reg::R1, 32);
        self.load_frame(Reg::R2, key(family).remote_port);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        // Tag and ports are stored in one piece: a reader on another CPU gets both of one packet, and needs no protocol
        // as slots do.
        self.asm.store(Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.bind(no_place);
    }

    /// r0 = the place of this packet's ports, `HASH` = the packet's hash. Goes to `nowhere` if the endpoint has no
    /// places.
    fn look_up_place(&mut self, family: Family, nowhere: Label) {
        self.hash_fragment(family);
        self.store_frame(HASH, Reg::R0);
        self.look_up_or(MapName::Endpoints, FlowKey::IFINDEX, nowhere);
        // Each endpoint has its own places, so a pod that floods with fragments overwrites only its own.
        self.load_endpoint(Reg::R1, Reg::R0, EndpointField::Number);
        // The endpoint's number comes from the runtime. Verifier: a look-up by index needs no bound; an index beyond
        // the array finds nothing.
        self.asm.alu(AluOp::Mul, Reg::R1, fragments::PLACES as i32);
        self.load_frame(Reg::R2, HASH);
        self.asm.alu(AluOp::And, Reg::R2, fragments::PLACES as i32 - 1);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R2);
        self.store_frame(StackFrame::SCRATCH, Reg::R1);
        self.look_up_or(MapName::Fragments, StackFrame::SCRATCH, nowhere);
    }

    /// r0 = the hash of all fields that the fragments of this packet share.
    fn hash_fragment(&mut self, family: Family) {
        const PARTS: [HashPart; 2] = [HashPart::Spent(Reg::R1), HashPart::Spent(Reg::R2)];
        self.load_seeds();
        // The direction is part of the hash, or a fragment from the pod could find the ports of one to the pod. The
        // protocol is in the lowest byte, the rest of the word is free.
        let kind = family_number(family) << 16 | direction_number(self.hook) << 8;
        self.load_frame(Reg::R1, StackFrame::FRAGMENT_ID);
        self.load_frame(Reg::R2, StackFrame::PROTOCOL);
        self.asm.alu(AluOp::Or, Reg::R2, kind as i32);
        self.asm.mov(Reg::R0, 0);
        self.add_product(0, PARTS, Reg::R3);
        // IPv6 addresses are hashed in halves of eight bytes. Fragments are rare, but their hash must be as hard to
        // guess as that of flows.
        let (size, step) = if family == Family::V4 { (Size::W, 4) } else { (Size::Dw, 8) };
        for (pair, offset) in (1..).zip((0..address_bytes(family)).step_by(step)) {
            self.asm.load(size, Reg::R1, Reg::R10, FlowKey::REMOTE + offset);
            self.asm.load(size, Reg::R2, Reg::R10, StackFrame::LOCAL + offset);
            self.add_product(pair, PARTS, Reg::R3);
        }
        self.mix_sum(Reg::R1);
        // A product's best mixed bits are the upper ones. They are the tag, and the lowest of them also choose the
        // place.
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu(AluOp::Rsh, Reg::R1, 32);
        self.asm.alu(AluOp::Xor, Reg::R0, Reg::R1);
    }
}
