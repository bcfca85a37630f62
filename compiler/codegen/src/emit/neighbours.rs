//! Address resolution on the link: ARP, IPv6 neighbour discovery, multicast listener reports.
//!
//! Problem: these protocols must work before any other traffic can, so policies cannot decide about them. An attacker
//! can use them to carry data past the policies and, where pods share a bridge, to take over another pod's address.
//! Strategy: a pod may announce its own address and ask for others' addresses. All else is refused, and all of it must
//! stay on the link.
//!
//! * A message about the pod itself must contain the pod's own IP address and hardware address. The hardware address
//!   must be that of the frame and, if the runtime knows it, that of the pod's interface. Router advertisements and
//!   redirects from pods are dropped as forged.
//! * The message has the length that the kernel gives it, with at most one option and no extension header, so that
//!   there is no room for data.
//! * The destination is a multicast group or a link-local address. Answers to a neighbour's global address are the
//!   exception, because Linux sends a solicitation from the address that it is going to use. Such an answer may go only
//!   to a neighbour that has asked. The solicitation had a hop limit of 255, so no router forwarded it, and its source
//!   is on the link. The solicitation is remembered as a flow.
//! * A pod receives solicitations for its own address, and advertisements. Others, which a bridge floods to every port,
//!   are counted as stray.

use super::Emitter;
use super::frame::{FlowKey, StackFrame, skb};
use super::header::IpHeader;
use super::parse::{ETHERNET, key};
use super::verdict::own_address;
use weir_artifact::layout::{MapName, Outcome, endpoint};
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_model::Direction;
use weir_objects::address::Family;

const ROUTER_SOLICITATION: i32 = 133;
const ROUTER_ADVERTISEMENT: i32 = 134;
const SOLICITATION: i32 = 135;
const ADVERTISEMENT: i32 = 136;
const REDIRECT: i32 = 137;
/// The hop limit of all these messages. It proves that no router forwarded them.
const ON_LINK: i32 = 255;
/// A router's query for multicast listeners.
const LISTENER_QUERY: i32 = 130;
/// Listener reports, and the message that ends listening.
const LISTENER: [i32; 3] = [131, 132, 143];
const LISTENER_HOP_LIMIT: i32 = 1;
/// The longest report that may pass: eight groups. A host joins one group for each of its addresses.
const LONGEST_REPORT: i32 = 168;
/// The length of the hop-by-hop header in front of a report.
const ROUTER_ALERT: i32 = 8;
/// The length of a solicitation or an advertisement with two options.
const LONGEST_ANSWER: i32 = 40;

/// Options of neighbour discovery, as their first two bytes: the type, and one unit of length.
const SOURCE_ADDRESS: i32 = 0x0101;
const TARGET_ADDRESS: i32 = 0x0102;
const NONCE: i32 = 0x010e;
/// Bytes of an option.
const OPTION: i32 = 8;

/// Where copies of the frame's source (or the option's hardware address) and of the target are, to compare them with
/// the endpoint.
const FRAME_SOURCE: i16 = StackFrame::SCRATCH;
const TARGET: i16 = StackFrame::SCRATCH + 8;

/// The length of an ARP packet, and offsets behind the Ethernet header.
mod arp {
    pub(super) const TYPES: i16 = 0;
    pub(super) const LENGTHS: i16 = 4;
    pub(super) const OPERATION: i16 = 6;
    pub(super) const SENDER_HARDWARE: i16 = 8;
    pub(super) const SENDER: i16 = 14;
    pub(super) const TARGET: i16 = 24;
    pub(super) const BYTES: i32 = 28;
}
/// The length of an ARP frame that is padded to the shortest Ethernet frame, with room for a VLAN tag.
const LONGEST_ARP: i32 = 64;

impl Emitter<'_> {
    /// Emits the checks of ARP packets, at the label `arp`.
    pub(super) fn arp(&mut self, arp: Label) {
        self.asm.bind(arp);
        self.need_linear(ETHERNET + arp::BYTES);
        let no_endpoint = self.end(Outcome::NoEndpoint);
        self.look_up_or(MapName::Endpoints, FlowKey::IFINDEX, no_endpoint);
        let refused = self.end(if self.hook == Direction::Egress { Outcome::Source } else { Outcome::Stray });
        self.load_context(Reg::R1, skb::LEN);
        // Bytes behind the ARP packet would reach every host on the link, past all policies.
        self.asm.jump_if(Cond::Gt, Reg::R1, LONGEST_ARP, refused);
        match self.hook {
            Direction::Egress => self.arp_from_pod(),
            Direction::Ingress => self.arp_to_pod(),
        }
    }

    /// r0 is the endpoint, r7 the packet. Passes announcements of the endpoint's own address with its own hardware
    /// address, and requests.
    fn arp_from_pod(&mut self) {
        let (forged, passes) = (self.end(Outcome::Source), self.end(Outcome::Neighbour));
        let probe = self.asm.label("arp probe");
        let field = |at: i16| ETHERNET as i16 + at;
        const REQUEST: i32 = 0x0100;
        const REPLY: i32 = 0x0200;
        // The types are Ethernet and IPv4, the lengths six and four bytes.
        self.asm.load(Size::W, Reg::R1, Reg::R7, field(arp::TYPES));
        self.asm.jump_if(Cond::Ne, Reg::R1, 0x0008_0100, forged);
        self.asm.load(Size::H, Reg::R1, Reg::R7, field(arp::LENGTHS));
        self.asm.jump_if(Cond::Ne, Reg::R1, 0x0406, forged);
        self.same_hardware(Reg::R7, field(arp::SENDER_HARDWARE), forged);
        self.own_hardware(Reg::R7, 6, forged);
        self.asm.load(Size::H, Reg::R2, Reg::R7, field(arp::OPERATION));
        self.asm.load(Size::W, Reg::R1, Reg::R7, field(arp::SENDER));
        // A probe asks for an address before it is used (RFC 5227): its sender address is zero.
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, probe);
        self.asm.load(Size::W, Reg::R3, Reg::R0, own_address(Family::V4));
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R3, forged);
        self.asm.jump_if(Cond::Eq, Reg::R2, REPLY, passes);
        // With a sender address of zero, only a request passes.
        self.asm.bind(probe);
        self.asm.jump_if(Cond::Eq, Reg::R2, REQUEST, passes);
        self.asm.jump(forged);
    }

    /// r0 is the endpoint, r7 the packet: passes ARP about the endpoint's own address, and gratuitous ARP.
    fn arp_to_pod(&mut self) {
        let (stray, passes) = (self.end(Outcome::Stray), self.end(Outcome::Neighbour));
        self.asm.load(Size::W, Reg::R2, Reg::R0, own_address(Family::V4));
        // The endpoint has no IPv4 address, so there is nothing that the packet could be compared with.
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, passes);
        self.asm.load(Size::W, Reg::R1, Reg::R7, ETHERNET as i16 + arp::TARGET);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, passes);
        self.asm.load(Size::W, Reg::R2, Reg::R7, ETHERNET as i16 + arp::SENDER);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, passes);
        self.asm.jump(stray);
    }

    /// r7 is the packet. Goes to `forged` unless the hardware address at `base + at` is the frame's source.
    fn same_hardware(&mut self, base: Reg, at: i16, forged: Label) {
        for (size, offset) in [(Size::W, 0), (Size::H, 4)] {
            self.asm.load(size, Reg::R1, Reg::R7, 6 + offset);
            self.asm.load(size, Reg::R2, base, at + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, forged);
        }
    }

    /// r0 is the endpoint. Goes to `forged` unless its hardware address is at `base + at` or is unknown.
    fn own_hardware(&mut self, base: Reg, at: i16, forged: Label) {
        let [differs, own] = ["other hardware", "own hardware"].map(|it| self.asm.label(it));
        self.asm.load(Size::W, Reg::R1, Reg::R0, endpoint::MAC);
        self.asm.load(Size::W, Reg::R2, base, at);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, differs);
        self.asm.load(Size::H, Reg::R1, Reg::R0, endpoint::MAC + 4);
        self.asm.load(Size::H, Reg::R2, base, at + 4);
        self.asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, own);
        self.asm.bind(differs);
        // Tested only after a difference. Two bytes of zero follow the address in the value, so eight bytes can be read
        // at once.
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, endpoint::MAC);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, forged);
        self.asm.bind(own);
    }

    /// r1 points to the ICMPv6 header, r9 is its offset, r2 its type. Passes neighbour messages that follow the rules
    /// above. All other ICMPv6 goes to `parsed`.
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
        // A pod is no router. Its neighbours would send their traffic through it.
        self.jump_if_any(&[ROUTER_ADVERTISEMENT, REDIRECT], forged);
        self.jump_if_any(&LISTENER, listener);
        self.asm.jump(parsed);
        // The checks are emitted once for each kind. They differ in the length, the options and the addresses, and a
        // test of the kind at each of these places would be more code.
        for (label, kind) in
            [(router, ROUTER_SOLICITATION), (solicitation, SOLICITATION), (advertisement, ADVERTISEMENT)]
        {
            self.asm.bind(label);
            self.neighbour_from_pod(kind, parsed);
        }
        self.asm.bind(listener);
        self.listener_from_pod(parsed);
    }

    /// Checks a neighbour message of this kind from the pod.
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
        // `need_at` may have pulled the packet and changed its pointers. Verifier: pointers into the packet are invalid
        // after a pull.
        self.need_linear(ETHERNET);
        for (size, offset) in [(Size::W, 0), (Size::H, 4)] {
            self.asm.load(size, Reg::R1, Reg::R7, 6 + offset);
            self.asm.store(size, Reg::R10, FRAME_SOURCE + offset, Reg::R1);
        }
        self.look_up_or(MapName::Endpoints, FlowKey::IFINDEX, no_endpoint);
        self.own_hardware(Reg::R10, FRAME_SOURCE, forged);
        self.own_or_link_local(StackFrame::LOCAL, kind != ADVERTISEMENT, forged);
        if kind == ADVERTISEMENT {
            self.own_or_link_local(TARGET, false, forged);
        }
        self.pass_on_the_link(passes);
        match kind {
            ROUTER_SOLICITATION => self.asm.jump(parsed),
            _ => self.pass_if_asked(parsed, passes),
        }
    }

    /// Jumps to `forged` if the message is longer than with one option, or if the option names another hardware address
    /// than the frame has. Such a message does not go through policy like other ICMP: where policy allows the pod
    /// everything, its neighbours would believe the message.
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
        self.load_context(length, skb::LEN);
        self.asm.alu(AluOp::Sub, length, Reg::R9);
    }

    /// Goes to `otherwise` if the extension headers before the message are longer than `most` bytes: they have room for
    /// data too.
    fn unless_headers(&mut self, most: i32, otherwise: Label) {
        self.asm.jump_if(Cond::Gt, Reg::R9, ETHERNET + IpHeader::bytes(Family::V6) + most, otherwise);
    }

    fn unless_hop_limit(&mut self, hop_limit: i32, otherwise: Label) {
        self.load_frame(Reg::R3, StackFrame::HOP_LIMIT);
        self.asm.jump_if(Cond::Ne, Reg::R3, hop_limit, otherwise);
    }

    /// r1 points to a solicitation or an advertisement. `TARGET` = its target address.
    fn copy_target(&mut self) {
        for offset in (0..16).step_by(4) {
            self.asm.load(Size::W, Reg::R2, Reg::R1, 8 + offset);
            self.store_frame(TARGET + offset, Reg::R2);
        }
    }

    /// r0 is the endpoint. Goes to `otherwise` unless the address on the stack is the endpoint's own, link-local, or
    /// (if `unspecified` is set) unspecified.
    fn own_or_link_local(&mut self, address: i16, unspecified: bool, otherwise: Label) {
        let [fine, other] = ["own or local", "not its own"].map(|it| self.asm.label(it));
        self.asm.load(Size::H, Reg::R1, Reg::R10, address);
        self.if_link_local(Reg::R1, fine);
        for offset in (0..16).step_by(4) {
            self.load_frame(Reg::R1, address + offset);
            self.asm.load(Size::W, Reg::R2, Reg::R0, own_address(Family::V6) + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, other);
        }
        // Zeros mean that the endpoint has no address of this family.
        self.load_frame(Reg::R1, address);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, fine);
        self.asm.bind(other);
        if unspecified {
            for offset in (0..16).step_by(4) {
                self.load_frame(Reg::R1, address + offset);
                self.asm.jump_if(Cond::Ne, Reg::R1, 0, otherwise);
            }
        } else {
            self.asm.jump(otherwise);
        }
        self.asm.bind(fine);
    }

    /// Jumps to `passes` if the destination is a multicast group or link-local.
    fn pass_on_the_link(&mut self, passes: Label) {
        let one = self.asm.label("to one");
        self.unless_group(Family::V6, FlowKey::REMOTE, one);
        self.asm.jump(passes);
        self.asm.bind(one);
        self.asm.load(Size::H, Reg::R1, Reg::R10, FlowKey::REMOTE);
        self.if_link_local(Reg::R1, passes);
    }

    /// Goes to `passes` if the destination has sent a solicitation for this endpoint.
    fn pass_if_asked(&mut self, parsed: Label, passes: Label) {
        self.store_neighbour();
        self.look_up_flow(Family::V6, StackFrame::KEY, parsed);
        self.jump_if_expired(parsed);
        self.asm.jump(passes);
    }

    /// Turns the key into that of the flow which remembers a neighbour's solicitation.
    fn store_neighbour(&mut self) {
        let key = key(Family::V6);
        // Like an echo request: the ICMP type and the number of the side that asked (ingress, 0) take the place of the
        // remote port. The local port is 0.
        self.store_constant(key.remote_port, SOLICITATION as u32);
    }

    /// Passes listener reports to a multicast group from a link-local or the unspecified address.
    fn listener_from_pod(&mut self, parsed: Label) {
        let [group, fine] = ["report to one", "listener's source"].map(|it| self.asm.label(it));
        let passes = self.end(Outcome::Neighbour);
        self.unless_hop_limit(LISTENER_HOP_LIMIT, parsed);
        // Reports are sent with a router alert, which is a hop-by-hop header (RFC 2710, RFC 3810). Nothing longer may
        // be before the message.
        self.unless_headers(ROUTER_ALERT, parsed);
        self.message_length(Reg::R3);
        self.asm.jump_if(Cond::Gt, Reg::R3, LONGEST_REPORT, parsed);
        self.unless_group(Family::V6, FlowKey::REMOTE, group);
        self.link_local_or_unspecified(StackFrame::LOCAL, fine, parsed);
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
        self.asm.load(Size::H, Reg::R1, Reg::R10, FlowKey::REMOTE);
        self.if_link_local(Reg::R1, passes);
        self.asm.jump(parsed);
        // Sent to a group, these messages are for routers, and a pod is not one. Sent to the pod alone, they go through
        // policy like any ICMPv6.
        self.asm.bind(of_others);
        self.unless_group(Family::V6, StackFrame::LOCAL, parsed);
        self.asm.jump(stray);
    }

    /// Goes to `link_local` if the IPv6 address on the stack is link-local, and to `otherwise` unless it is unspecified.
    fn link_local_or_unspecified(&mut self, address: i16, link_local: Label, otherwise: Label) {
        self.asm.load(Size::H, Reg::R1, Reg::R10, address);
        self.if_link_local(Reg::R1, link_local);
        for offset in (0..16).step_by(4) {
            self.load_frame(Reg::R1, address + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, 0, otherwise);
        }
    }

    /// Goes to `otherwise` if the solicitation or advertisement is long enough to carry data.
    fn unless_short(&mut self, otherwise: Label) {
        self.unless_headers(0, otherwise);
        self.message_length(Reg::R3);
        self.asm.jump_if(Cond::Gt, Reg::R3, LONGEST_ANSWER, otherwise);
    }

    /// Passes a solicitation for the pod's own address. If its source is a global address, remembers it, so that the
    /// pod may answer there.
    fn solicitation_to_pod(&mut self, stray: Label, passes: Label, parsed: Label) {
        let [one, new] = ["asks with an address", "asks for the first time"].map(|it| self.asm.label(it));
        let no_endpoint = self.end(Outcome::NoEndpoint);
        self.unless_hop_limit(ON_LINK, parsed);
        self.unless_short(parsed);
        self.need_at(24);
        self.copy_target();
        self.look_up_or(MapName::Endpoints, FlowKey::IFINDEX, no_endpoint);
        self.own_or_link_local(TARGET, false, stray);
        // An unspecified source: the neighbour checks whether its own address is free (duplicate address detection).
        self.link_local_or_unspecified(FlowKey::REMOTE, passes, one);
        self.asm.jump(passes);
        self.asm.bind(one);
        self.store_neighbour();
        // A flow towards the pod with origin `Elsewhere`: both facts are 0, as the entry has left them. It gets epoch
        // 0, because no policy decides about the answers.
        self.look_up_flow(Family::V6, StackFrame::KEY, new);
        // The neighbour has asked before: the slot is used again, so that repeated solicitations take one slot only.
        self.take_its_slot(Family::V6);
        self.asm.bind(new);
        self.now();
        self.store_constant(StackFrame::EPOCH, 0);
        self.remember(Family::V6);
        self.asm.jump(passes);
    }
}
