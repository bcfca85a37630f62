//! Who is where on the link: ARP, IPv6 neighbour discovery, multicast listener reports.
//!
//! Problem: these must work before anything else does, so policy cannot judge them. An attacker uses them in two ways: to carry data
//! past policy, and to take over another's address, where pods share a bridge. Strategy: a pod may say where it is itself, and
//! ask where others are; nothing else, and to the link alone.
//!
//! * A message about the pod itself must have the pod's own IP address and hardware address: the hardware address of the frame and, where
//!   the runtime knows it, of the pod's interface. Router advertisements and redirects from pods are dropped as forged.
//! * The frame is as long as the kernel makes it, with one option at most and no header between, so that there is no room for data.
//! * It goes to a group or to an address of the link. Answers to a neighbour's global address are the exception: Linux asks with the
//!   address that it is going to use. They go to neighbours that have asked. The question had a hop limit of 255, so no router has passed
//!   it on, and the address is on the link; it is remembered as a flow.
//! * A pod hears questions about itself, and answers. The rest, which a bridge sends to every port, is counted as stray.

use super::Emitter;
use super::frame::{Frame, Key, skb};
use super::parse::{ETHERNET, key};
use super::verdict::own_address;
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::layout::{MapName, Outcome, endpoint};
use crate::model::Direction;

const ROUTER_SOLICITATION: i32 = 133;
const ROUTER_ADVERTISEMENT: i32 = 134;
const SOLICITATION: i32 = 135;
const ADVERTISEMENT: i32 = 136;
const REDIRECT: i32 = 137;
/// All of these have this hop limit, which proves that no router has passed them on.
const ON_LINK: i32 = 255;
/// A router asks who listens.
const LISTENER_QUERY: i32 = 130;
/// Reports, and the end of listening.
const LISTENER: [i32; 3] = [131, 132, 143];
const LISTENER_HOP_LIMIT: i32 = 1;
/// A report of this length has eight groups; a host has one for each address.
const LONGEST_REPORT: i32 = 168;
/// Bytes of the hop-by-hop header that a report has.
const ROUTER_ALERT: i32 = 8;
/// A solicitation or an advertisement, with two options.
const LONGEST_ANSWER: i32 = 40;

/// Options of neighbour discovery, as their first two bytes: the type, and one unit of length.
const SOURCE_ADDRESS: i32 = 0x0101;
const TARGET_ADDRESS: i32 = 0x0102;
const NONCE: i32 = 0x010e;
/// Bytes of an option.
const OPTION: i32 = 8;

/// Where copies of the packet's parts are, for comparing them with the endpoint: the frame's source, the option's, the target.
const FRAME_SOURCE: i16 = Frame::SCRATCH;
const TARGET: i16 = Frame::SCRATCH + 8;

/// Offsets in an ARP packet behind its Ethernet header, and its length.
mod arp {
    pub(super) const TYPES: i16 = 0;
    pub(super) const LENGTHS: i16 = 4;
    pub(super) const OPERATION: i16 = 6;
    pub(super) const SENDER_HARDWARE: i16 = 8;
    pub(super) const SENDER: i16 = 14;
    pub(super) const TARGET: i16 = 24;
    pub(super) const BYTES: i32 = 28;
}
/// An ARP frame with the padding of the shortest Ethernet frame, and a tag's worth more.
const LONGEST_ARP: i32 = 64;

impl Emitter<'_> {
    /// ARP, at `arp`.
    pub(super) fn arp(&mut self, arp: Label) {
        self.asm.bind(arp);
        self.need_linear(ETHERNET + arp::BYTES);
        self.look_up(MapName::Endpoints, Key::IFINDEX);
        let no_endpoint = self.end(Outcome::NoEndpoint);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no_endpoint);
        let refused = self.end(if self.hook == Direction::Egress { Outcome::Source } else { Outcome::Stray });
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::LEN);
        self.asm.jump_if(Cond::Gt, Reg::R1, LONGEST_ARP, refused);
        match self.hook {
            Direction::Egress => self.arp_from_pod(),
            Direction::Ingress => self.arp_to_pod(),
        }
    }

    /// r0 is the endpoint, r7 the packet: it may say that its own address is at its own interface, and ask.
    fn arp_from_pod(&mut self) {
        let (forged, passes) = (self.end(Outcome::Source), self.end(Outcome::Neighbour));
        let probe = self.asm.label("arp probe");
        let field = |at: i16| ETHERNET as i16 + at;
        const REQUEST: i32 = 0x0100;
        const REPLY: i32 = 0x0200;
        // Ethernet and IPv4; six bytes and four.
        self.asm.load(Size::W, Reg::R1, Reg::R7, field(arp::TYPES));
        self.asm.jump_if(Cond::Ne, Reg::R1, 0x0008_0100, forged);
        self.asm.load(Size::H, Reg::R1, Reg::R7, field(arp::LENGTHS));
        self.asm.jump_if(Cond::Ne, Reg::R1, 0x0406, forged);
        self.same_hardware(Reg::R7, field(arp::SENDER_HARDWARE), forged);
        self.own_hardware(Reg::R7, 6, forged);
        self.asm.load(Size::H, Reg::R2, Reg::R7, field(arp::OPERATION));
        self.asm.load(Size::W, Reg::R1, Reg::R7, field(arp::SENDER));
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, probe);
        self.asm.load(Size::W, Reg::R3, Reg::R0, own_address(Family::V4));
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R3, forged);
        self.asm.jump_if(Cond::Eq, Reg::R2, REPLY, passes);
        self.asm.bind(probe);
        self.asm.jump_if(Cond::Eq, Reg::R2, REQUEST, passes);
        self.asm.jump(forged);
    }

    /// r0 is the endpoint, r7 the packet: passes ARP about the endpoint's own address, and gratuitous ARP.
    fn arp_to_pod(&mut self) {
        let (stray, passes) = (self.end(Outcome::Stray), self.end(Outcome::Neighbour));
        self.asm.load(Size::W, Reg::R2, Reg::R0, own_address(Family::V4));
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, passes);
        self.asm.load(Size::W, Reg::R1, Reg::R7, ETHERNET as i16 + arp::TARGET);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, passes);
        self.asm.load(Size::W, Reg::R2, Reg::R7, ETHERNET as i16 + arp::SENDER);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, passes);
        self.asm.jump(stray);
    }

    /// r7 is the packet: goes to `forged` unless the frame's source is also at `base + at`.
    fn same_hardware(&mut self, base: Reg, at: i16, forged: Label) {
        for (size, offset) in [(Size::W, 0), (Size::H, 4)] {
            self.asm.load(size, Reg::R1, Reg::R7, 6 + offset);
            self.asm.load(size, Reg::R2, base, at + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, forged);
        }
    }

    /// r0 is the endpoint: goes to `forged` unless its hardware address is at `base + at`, or is not known.
    fn own_hardware(&mut self, base: Reg, at: i16, forged: Label) {
        let [differs, own] = ["other hardware", "own hardware"].map(|it| self.asm.label(it));
        self.asm.load(Size::W, Reg::R1, Reg::R0, endpoint::MAC);
        self.asm.load(Size::W, Reg::R2, base, at);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, differs);
        self.asm.load(Size::H, Reg::R1, Reg::R0, endpoint::MAC + 4);
        self.asm.load(Size::H, Reg::R2, base, at + 4);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, own);
        self.asm.bind(differs);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, endpoint::MAC);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, forged);
        self.asm.bind(own);
    }

    /// r1 points to the ICMPv6 header, r9 is its offset, r2 its type: passes messages of the link that follow the rules above. All other
    /// ICMPv6 jumps to `parsed`.
    pub(super) fn neighbours_v6(&mut self, parsed: Label) {
        match self.hook {
            Direction::Egress => self.neighbours_from_pod(parsed),
            Direction::Ingress => self.neighbours_to_pod(parsed),
        }
    }

    fn neighbours_from_pod(&mut self, parsed: Label) {
        let labels = ["router solicitation", "solicitation", "advertisement", "listener"].map(|it| self.asm.label(it));
        let forged = self.end(Outcome::Source);
        let [router, solicitation, advertisement, listener] = labels;
        self.asm.jump_if(Cond::Eq, Reg::R2, ROUTER_SOLICITATION, router);
        self.asm.jump_if(Cond::Eq, Reg::R2, SOLICITATION, solicitation);
        self.asm.jump_if(Cond::Eq, Reg::R2, ADVERTISEMENT, advertisement);
        self.jump_if_any(&[ROUTER_ADVERTISEMENT, REDIRECT], forged);
        self.jump_if_any(&LISTENER, listener);
        self.asm.jump(parsed);
        for (label, kind) in
            [(router, ROUTER_SOLICITATION), (solicitation, SOLICITATION), (advertisement, ADVERTISEMENT)]
        {
            self.asm.bind(label);
            self.neighbour_from_pod(kind, parsed);
        }
        self.asm.bind(listener);
        self.listener_from_pod(parsed);
    }

    /// A message of this kind.
    fn neighbour_from_pod(&mut self, kind: i32, parsed: Label) {
        let (forged, passes, no_endpoint) =
            (self.end(Outcome::Source), self.end(Outcome::Neighbour), self.end(Outcome::NoEndpoint));
        self.unless_hop_limit(ON_LINK, parsed);
        self.unless_headers(0, forged);
        self.neighbour_option(kind, forged);
        if kind == ADVERTISEMENT {
            self.need_at(24);
            self.copy_target();
        }
        self.need_linear(ETHERNET);
        for (size, offset) in [(Size::W, 0), (Size::H, 4)] {
            self.asm.load(size, Reg::R1, Reg::R7, 6 + offset);
            self.asm.store(size, Reg::R10, FRAME_SOURCE + offset, Reg::R1);
        }
        self.look_up(MapName::Endpoints, Key::IFINDEX);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no_endpoint);
        self.own_hardware(Reg::R10, FRAME_SOURCE, forged);
        self.own_or_link_local(Frame::LOCAL, kind != ADVERTISEMENT, forged);
        if kind == ADVERTISEMENT {
            self.own_or_link_local(TARGET, false, forged);
        }
        self.pass_on_the_link(passes);
        match kind {
            ROUTER_SOLICITATION => self.asm.jump(parsed),
            _ => self.pass_if_asked(parsed, passes),
        }
    }

    /// Jumps to `forged` if the message is longer than one option makes it, or if the option names another hardware address than the frame
    /// does. It is not judged as other ICMP then: where policy allows the pod everything, it would be believed.
    fn neighbour_option(&mut self, kind: i32, forged: Label) {
        let plain = if kind == ROUTER_SOLICITATION { 8 } else { 24 };
        let none = self.asm.label("no option");
        self.message_length(Reg::R3);
        self.asm.jump_if(Cond::Eq, Reg::R3, plain, none);
        self.asm.jump_if(Cond::Ne, Reg::R3, plain + OPTION, forged);
        self.need_at(plain + OPTION);
        self.asm.load(Size::H, Reg::R2, Reg::R1, plain as i16);
        if kind == SOLICITATION {
            self.asm.jump_if(Cond::Eq, Reg::R2, NONCE, none);
        }
        let own = if kind == ADVERTISEMENT { TARGET_ADDRESS } else { SOURCE_ADDRESS };
        self.asm.jump_if(Cond::Ne, Reg::R2, own, forged);
        for (size, offset) in [(Size::W, 0), (Size::H, 4)] {
            self.asm.load(size, Reg::R2, Reg::R1, plain as i16 + 2 + offset);
            self.asm.store(size, Reg::R10, FRAME_SOURCE + offset, Reg::R2);
        }
        self.need_linear(ETHERNET);
        self.same_hardware(Reg::R10, FRAME_SOURCE, forged);
        self.asm.bind(none);
    }

    /// `length` = the bytes from the ICMPv6 header to the end of the frame.
    fn message_length(&mut self, length: Reg) {
        self.asm.load(Size::W, length, Reg::R6, skb::LEN);
        self.asm.alu(AluOp::Sub, length, Reg::R9);
    }

    /// Goes to `otherwise` if more extension headers than this many bytes are before the message: they have room for data too.
    fn unless_headers(&mut self, most: i32, otherwise: Label) {
        self.asm.jump_if(Cond::Gt, Reg::R9, ETHERNET + 40 + most, otherwise);
    }

    fn unless_hop_limit(&mut self, hop_limit: i32, otherwise: Label) {
        self.asm.load(Size::W, Reg::R3, Reg::R10, Frame::HOP_LIMIT);
        self.asm.jump_if(Cond::Ne, Reg::R3, hop_limit, otherwise);
    }

    /// r1 points to a solicitation or an advertisement: `TARGET` = the address that it is about.
    fn copy_target(&mut self) {
        for offset in (0..16).step_by(4) {
            self.asm.load(Size::W, Reg::R2, Reg::R1, 8 + offset);
            self.asm.store(Size::W, Reg::R10, TARGET + offset, Reg::R2);
        }
    }

    /// r0 is the endpoint: goes to `otherwise` unless the address on the stack is the endpoint's own, local to the link, or (if that may be)
    /// unspecified.
    fn own_or_link_local(&mut self, address: i16, unspecified: bool, otherwise: Label) {
        let [fine, other] = ["own or local", "not its own"].map(|it| self.asm.label(it));
        self.asm.load(Size::H, Reg::R1, Reg::R10, address);
        self.if_link_local(Reg::R1, fine);
        for offset in (0..16).step_by(4) {
            self.asm.load(Size::W, Reg::R1, Reg::R10, address + offset);
            self.asm.load(Size::W, Reg::R2, Reg::R0, own_address(Family::V6) + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, other);
        }
        // Zeros mean that the endpoint has no address of this family.
        self.asm.load(Size::W, Reg::R1, Reg::R10, address);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, fine);
        self.asm.bind(other);
        if unspecified {
            for offset in (0..16).step_by(4) {
                self.asm.load(Size::W, Reg::R1, Reg::R10, address + offset);
                self.asm.jump_if(Cond::Ne, Reg::R1, 0, otherwise);
            }
        } else {
            self.asm.jump(otherwise);
        }
        self.asm.bind(fine);
    }

    /// Jumps to `passes` if the destination is a group or link-local.
    fn pass_on_the_link(&mut self, passes: Label) {
        let one = self.asm.label("to one");
        self.unless_group(Family::V6, Key::REMOTE, one);
        self.asm.jump(passes);
        self.asm.bind(one);
        self.asm.load(Size::H, Reg::R1, Reg::R10, Key::REMOTE);
        self.if_link_local(Reg::R1, passes);
    }

    /// Goes to `passes` if the destination has asked for this endpoint.
    fn pass_if_asked(&mut self, parsed: Label, passes: Label) {
        self.store_neighbour();
        self.look_up_flow(Family::V6, Frame::KEY, parsed);
        self.jump_if_expired(parsed);
        self.asm.jump(passes);
    }

    /// The key becomes that of the flow that a neighbour's question is.
    fn store_neighbour(&mut self) {
        let key = key(Family::V6);
        self.store_constant(Frame::PROTOCOL, crate::emit::parse::ICMPV6 as u32);
        self.store_constant(key.protocol, crate::emit::parse::ICMPV6 as u32);
        // The type, asked by the side with number 0, and no other port: as of any question.
        self.store_constant(key.remote_port, SOLICITATION as u32);
    }

    /// Reports to a group that the pod listens to.
    fn listener_from_pod(&mut self, parsed: Label) {
        let [group, fine] = ["report to one", "listener's source"].map(|it| self.asm.label(it));
        let passes = self.end(Outcome::Neighbour);
        self.unless_hop_limit(LISTENER_HOP_LIMIT, parsed);
        self.unless_headers(ROUTER_ALERT, parsed);
        self.message_length(Reg::R3);
        self.asm.jump_if(Cond::Gt, Reg::R3, LONGEST_REPORT, parsed);
        self.unless_group(Family::V6, Key::REMOTE, group);
        self.asm.load(Size::H, Reg::R1, Reg::R10, Frame::LOCAL);
        self.if_link_local(Reg::R1, fine);
        for offset in (0..16).step_by(4) {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::LOCAL + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, 0, parsed);
        }
        self.asm.bind(fine);
        self.asm.jump(passes);
        self.asm.bind(group);
        self.asm.jump(parsed);
    }

    fn neighbours_to_pod(&mut self, parsed: Label) {
        let labels = ["solicitation", "advertisement", "of a router", "query", "of other hosts"];
        let labels = labels.map(|it| self.asm.label(it));
        let (stray, passes) = (self.end(Outcome::Stray), self.end(Outcome::Neighbour));
        let [solicitation, advertisement, router, query, of_others] = labels;
        self.asm.jump_if(Cond::Eq, Reg::R2, SOLICITATION, solicitation);
        self.asm.jump_if(Cond::Eq, Reg::R2, ADVERTISEMENT, advertisement);
        self.jump_if_any(&[ROUTER_ADVERTISEMENT, REDIRECT], router);
        self.asm.jump_if(Cond::Eq, Reg::R2, LISTENER_QUERY, query);
        self.asm.jump_if(Cond::Eq, Reg::R2, ROUTER_SOLICITATION, of_others);
        self.jump_if_any(&LISTENER, of_others);
        self.asm.jump(parsed);
        self.asm.bind(solicitation);
        self.solicitation_to_pod(stray, passes, parsed);
        self.asm.bind(advertisement);
        self.unless_short(parsed);
        self.asm.bind(router);
        self.unless_hop_limit(ON_LINK, parsed);
        self.asm.jump(passes);
        self.asm.bind(query);
        self.unless_hop_limit(LISTENER_HOP_LIMIT, parsed);
        self.asm.load(Size::H, Reg::R1, Reg::R10, Key::REMOTE);
        self.if_link_local(Reg::R1, passes);
        self.asm.jump(parsed);
        // Sent to a group, these are for routers, and a pod is not one. Sent to the pod alone, they are judged as any ICMPv6.
        self.asm.bind(of_others);
        self.unless_group(Family::V6, Frame::LOCAL, parsed);
        self.asm.jump(stray);
    }

    /// Goes to `otherwise` with a question or an answer that has room for data.
    fn unless_short(&mut self, otherwise: Label) {
        self.unless_headers(0, otherwise);
        self.message_length(Reg::R3);
        self.asm.jump_if(Cond::Gt, Reg::R3, LONGEST_ANSWER, otherwise);
    }

    /// A question about the pod's own address. A neighbour that asks with a global address may be answered there.
    fn solicitation_to_pod(&mut self, stray: Label, passes: Label, parsed: Label) {
        let [one, new] = ["asks with an address", "asks for the first time"].map(|it| self.asm.label(it));
        let no_endpoint = self.end(Outcome::NoEndpoint);
        self.unless_hop_limit(ON_LINK, parsed);
        self.unless_short(parsed);
        self.need_at(24);
        self.copy_target();
        self.look_up(MapName::Endpoints, Key::IFINDEX);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no_endpoint);
        self.own_or_link_local(TARGET, false, stray);
        self.asm.load(Size::H, Reg::R1, Reg::R10, Key::REMOTE);
        self.if_link_local(Reg::R1, passes);
        // The unspecified address: a neighbour looks whether its own is free.
        for offset in (0..16).step_by(4) {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Key::REMOTE + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, 0, one);
        }
        self.asm.jump(passes);
        self.asm.bind(one);
        self.store_neighbour();
        // A flow that began in the direction to the pod, elsewhere: the entry has cleared what says so. No epoch: its answers are not
        // judged.
        self.look_up_flow(Family::V6, Frame::KEY, new);
        self.take_its_slot(Family::V6);
        self.asm.bind(new);
        self.now();
        self.store_constant(Frame::EPOCH, 0);
        self.remember(Family::V6);
        self.asm.jump(passes);
    }
}
