//! ICMP queries and errors.
//!
//! A query (such as an echo request) and its replies are a flow. In its key the identifier takes the place of one port;
//! the query's type and the side that asked take the place of the other. Without the side, the queried host could send
//! a query of its own with the same identifier, and the query would pass as a reply.
//!
//! An error belongs to the flow of the packet that it quotes. Any router on the path may send it, because routers must
//! be able to report that a packet is too big. So an error lets its sender past policy, and it is kept as narrow as
//! path MTU discovery allows:
//! * the flow must be alive, allowed by the generation in force, and not cut;
//! * no list may deny its sender (`lower/icmp_errors.rs` says how this is decided);
//! * from the pod, it must go to the sender of the quoted packet, with which the pod may communicate anyway;
//! * it is at most as long as RFC 1812 (IPv4: 576 bytes) and RFC 4443 (IPv6: 1,280 bytes) allow, including the frame's
//!   padding.

use super::Emitter;
use super::frame::{FlowKey, StackFrame, skb};
use super::header::{IpHeader, OFFSET, OFFSET_V6, extension};
use super::parse::{ETHERNET, FARTHEST, FRAGMENT, OPTIONS, ROUTING, address_bytes, key};
use weir_artifact::layout::{Outcome, direction_number};
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_model::Direction;
use weir_objects::address::Family;

/// The distance from the packet's flow key to the key that is built for the quoted packet.
const MOVED: i16 = StackFrame::QUOTED - StackFrame::KEY;

/// Queries and their replies, which have an identifier: echo, timestamp, information, address mask.
const QUESTIONS_V4: [(i32, i32); 4] = [(8, 0), (13, 14), (15, 16), (17, 18)];
const QUESTIONS_V6: [(i32, i32); 1] = [(128, 129)];
/// Unreachable, source quench, time exceeded, parameter problem.
const ERRORS_V4: [i32; 4] = [3, 4, 11, 12];
/// Unreachable, too big, time exceeded, parameter problem.
const ERRORS_V6: [i32; 4] = [1, 2, 3, 4];
/// The maximum length of an error, with its IP header.
const LONGEST_V4: i32 = 576;
const LONGEST_V6: i32 = 1_280;

fn questions(family: Family) -> &'static [(i32, i32)] {
    match family {
        Family::V4 => &QUESTIONS_V4,
        Family::V6 => &QUESTIONS_V6,
    }
}

fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Ingress => Direction::Egress,
        Direction::Egress => Direction::Ingress,
    }
}

impl Emitter<'_> {
    /// r1 points to the ICMP header, r9 is its offset. Continues at `parsed`, or passes the packet.
    pub(super) fn icmp(&mut self, family: Family, parsed: Label) {
        let [question, quoted] = ["icmp question", "icmp error"].map(|name| self.asm.label(name));
        // Queries first: echo is by far the most common ICMP.
        self.asm.load(Size::B, Reg::R2, Reg::R1, 0);
        self.no_ports(family, Reg::R2);
        self.jump_if_question(family, self.hook, question);
        self.jump_if_any(if family == Family::V4 { &ERRORS_V4 } else { &ERRORS_V6 }, quoted);
        match family {
            Family::V4 => self.asm.jump(parsed),
            // ICMPv6 carries what ARP does for IPv4, so neighbour messages arrive here.
            Family::V6 => self.neighbours_v6(parsed),
        }
        self.asm.bind(question);
        self.store_question(family, 0);
        self.asm.jump(parsed);
        self.asm.bind(quoted);
        self.quoted(family, parsed);
    }

    pub(super) fn jump_if_any(&mut self, types: &[i32], to: Label) {
        for number in types {
            self.asm.jump_if(Cond::Eq, Reg::R2, *number, to);
        }
    }

    /// Goes to `question` if type r2 is a query or a reply, with r3 = the query's type and the side that asked, as two
    /// bytes of the key. `sent` is the direction in which this packet goes.
    fn jump_if_question(&mut self, family: Family, sent: Direction, question: Label) {
        for (ask, answer) in questions(family) {
            // A reply has the key of its query: the query's type, and the other side as the one that asked.
            for (number, asked) in [(*ask, sent), (*answer, opposite(sent))] {
                self.asm.mov(Reg::R3, ask | (direction_number(asked) << 8) as i32);
                self.asm.jump_if(Cond::Eq, Reg::R2, number, question);
            }
        }
    }

    /// r1 points to the ICMP header, r3 holds the query's type and side. Stores identifier and r3 in the key.
    fn store_question(&mut self, family: Family, moved: i16) {
        self.asm.load(Size::H, Reg::R2, Reg::R1, 4);
        // In one piece, like other ports (see `StackFrame`).
        self.asm.alu(AluOp::Lsh, Reg::R2, 16);
        self.asm.alu(AluOp::Or, Reg::R2, Reg::R3);
        self.store_frame(key(family).remote_port + moved, Reg::R2);
    }

    /// r9 is the offset of an ICMP error. Passes it if it is about a live flow, else jumps to `parsed`.
    fn quoted(&mut self, family: Family, parsed: Label) {
        let longest = if family == Family::V4 { LONGEST_V4 } else { LONGEST_V6 };
        self.load_context(Reg::R1, skb::LEN);
        // `skb->len` counts padding too, so an error has no hidden room for data behind its IP length.
        self.asm.jump_if(Cond::Gt, Reg::R1, ETHERNET + longest, parsed);
        self.quoted_addresses(family, parsed);
        self.quoted_ports(family, parsed);
        // Inwards any router may report. Outwards the pod could address an error about its own flow to any host, and so
        // send data to hosts that policy forbids.
        if self.hook == Direction::Egress {
            self.goes_to_the_sender(family, parsed);
        }
        self.look_up_flow(family, StackFrame::QUOTED, parsed);
        self.jump_if_expired(parsed);
        // r1 is the difference of the local addresses, which `look_up_flow` does not refuse by itself.
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, parsed);
        self.unless_in_force(parsed);
        if self.hook == Direction::Ingress && self.plan.shapes.judges_icmp_errors {
            self.judge_sender();
        } else {
            let related = self.end(Outcome::Related);
            self.asm.jump(related);
        }
    }

    /// Continues with the decision, which checks the sender of an ICMP error against the lists. Policies do not apply:
    /// routers must be heard.
    ///
    /// Errors from the pod need no such check: they go to the other end of a flow that the generation in force allows.
    fn judge_sender(&mut self) {
        // `JUDGED` is still ingress, as the entry has set it.
        self.store_constant(StackFrame::ICMP_ERROR, 1);
        // No slot: the decision must neither cut nor adopt the flow that the error is about. Only the sender of the
        // error is judged.
        self.asm.mov(Reg::R7, 0);
        self.asm.jump(self.judge);
    }

    /// Goes to `parsed` unless the packet goes to the other end of the quoted flow.
    fn goes_to_the_sender(&mut self, family: Family, parsed: Label) {
        for offset in (0..address_bytes(family)).step_by(4) {
            self.load_frame(Reg::R1, FlowKey::REMOTE + offset);
            self.load_frame(Reg::R2, FlowKey::REMOTE + MOVED + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, parsed);
        }
    }

    /// Builds the quoted packet's key, without its ports. r9 becomes the offset of its transport header.
    fn quoted_addresses(&mut self, family: Family, parsed: Label) {
        let header = IpHeader::quoted(family, Reg::R1);
        self.need_at(i32::from(header.transport()));
        // An error that comes to the pod quotes a packet that the pod sent, and the other way round.
        let [local, remote] = header.ends(opposite(self.hook));
        for offset in (0..address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R2, Reg::R1, local + offset);
            self.load_frame(Reg::R3, StackFrame::LOCAL + offset);
            self.asm.jump_if(Cond::Ne, Reg::R2, Reg::R3, parsed);
            self.asm.load(Size::W, Reg::R2, Reg::R1, remote + offset);
            self.store_frame(FlowKey::REMOTE + MOVED + offset, Reg::R2);
        }
        self.load_frame(Reg::R2, FlowKey::IFINDEX);
        self.store_frame(FlowKey::IFINDEX + MOVED, Reg::R2);
        self.load_protocol(header, Reg::R2);
        self.store_frame(key(family).protocol + MOVED, Reg::R2);
        // Protocols without ports have zeros in the key. Verifier: the whole key must be written before it is read.
        self.store_frame(key(family).remote_port + MOVED, 0);
        if family == Family::V6 {
            self.store_frame(key(family).protocol + 4 + MOVED, 0);
        }
        match family {
            Family::V6 => {
                self.asm.alu(AluOp::Add, Reg::R9, i32::from(header.transport()));
                self.quoted_extensions(parsed);
            }
            Family::V4 => {
                // A later fragment has no ports.
                self.load_fragment_field(header, Reg::R2);
                self.asm.alu(AluOp::And, Reg::R2, i32::from(OFFSET.to_be()));
                self.asm.jump_if(Cond::Ne, Reg::R2, 0, parsed);
                self.load_version(header, Reg::R2);
                self.header_length(Reg::R2, parsed);
                self.asm.alu(AluOp::Add, Reg::R9, 8);
                self.asm.alu(AluOp::Add, Reg::R9, Reg::R2);
            }
        }
    }

    /// Advances r9 over the quoted packet's extension headers. Real packets have no more than three of them.
    fn quoted_extensions(&mut self, parsed: Label) {
        // Each step is emitted code. A quoted packet with more headers makes the error an ordinary ICMP packet, which
        // policy judges.
        const MOST: usize = 3;
        let protocol = key(Family::V6).protocol + MOVED;
        let done = self.asm.label("quoted upper header");
        for _ in 0..MOST {
            let [header, first, next] =
                ["quoted extension", "quoted first fragment", "next quoted header"].map(|name| self.asm.label(name));
            self.load_frame(Reg::R2, protocol);
            self.jump_if_any(&OPTIONS, header);
            self.jump_if_any(&[ROUTING, FRAGMENT], header);
            self.asm.jump(done);
            self.asm.bind(header);
            self.need_at(extension::BYTES);
            self.load_frame(Reg::R2, protocol);
            self.asm.load(Size::B, Reg::R3, Reg::R1, extension::NEXT_HEADER);
            self.store_frame(protocol, Reg::R3);
            self.asm.jump_if(Cond::Eq, Reg::R2, FRAGMENT, first);
            self.asm.load(Size::B, Reg::R3, Reg::R1, extension::LENGTH);
            self.asm.alu(AluOp::Lsh, Reg::R3, 3);
            self.asm.alu(AluOp::Add, Reg::R9, Reg::R3);
            self.asm.jump(next);
            self.asm.bind(first);
            // A later fragment has no ports.
            self.asm.load(Size::H, Reg::R3, Reg::R1, extension::FRAGMENT);
            self.asm.alu(AluOp::And, Reg::R3, i32::from(OFFSET_V6.to_be()));
            self.asm.jump_if(Cond::Ne, Reg::R3, 0, parsed);
            self.asm.bind(next);
            self.asm.alu(AluOp::Add, Reg::R9, extension::BYTES);
            // Verifier: bounds r9 before the next access to the packet.
            self.asm.jump_if(Cond::Gt, Reg::R9, FARTHEST, parsed);
        }
        self.asm.bind(done);
    }

    fn quoted_ports(&mut self, family: Family, parsed: Label) {
        let [ports, icmp, done] = ["quoted ports", "quoted icmp", "quoted key"].map(|name| self.asm.label(name));
        // Eight bytes are all that an IPv4 error must quote of the transport header (RFC 792); the ports are in the
        // first four.
        self.need_at(8);
        self.load_frame(Reg::R2, key(family).protocol + MOVED);
        self.jump_if_any(&[6, 17, 132], ports);
        let icmp_number = if family == Family::V4 { 1 } else { 58 };
        self.asm.jump_if(Cond::Eq, Reg::R2, icmp_number, icmp);
        self.asm.jump(done);
        self.asm.bind(icmp);
        self.asm.load(Size::B, Reg::R2, Reg::R1, 0);
        let question = self.asm.label("quoted question");
        self.jump_if_question(family, opposite(self.hook), question);
        // An error about an error: hosts must not send those.
        self.asm.jump(parsed);
        self.asm.bind(question);
        self.store_question(family, MOVED);
        self.asm.jump(done);
        self.asm.bind(ports);
        let (source, destination) = match self.hook {
            Direction::Ingress => (key(family).local_port, key(family).remote_port),
            Direction::Egress => (key(family).remote_port, key(family).local_port),
        };
        self.asm.load(Size::H, Reg::R2, Reg::R1, 0);
        self.asm.store(Size::H, Reg::R10, source + MOVED, Reg::R2);
        self.asm.load(Size::H, Reg::R2, Reg::R1, 2);
        self.asm.store(Size::H, Reg::R10, destination + MOVED, Reg::R2);
        self.asm.bind(done);
    }
}
