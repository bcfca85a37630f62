//! The register and stack contract of the emitted programs.
//!
//! | register | holds |
//! | --- | --- |
//! | r6 | the context, throughout |
//! | r7 | packet start while parsing; from the flow look-up on, the flow's slot, or 0 |
//! | r8 | packet end while parsing; from the flow look-up on, the time in ticks |
//! | r9 | while parsing, the transport header's offset; then the flow's last time; in the decision, the endpoint |
//! | r0–r5 | scratch, lost at every call |
//!
//! The stack frame is laid out by [`StackFrame`]; every byte that a program may read is written on every path before
//! (the verifier insists on this). The entry clears the slots that only some paths write; `SCRATCH` is written
//! completely before every use.

use weir_ebpf::insn::Size;

/// A number on the stack: its offset from r10, and its size.
#[derive(Clone, Copy)]
pub(super) struct StackNumber {
    pub(super) at: i16,
    pub(super) size: Size,
}

impl StackNumber {
    /// Four bytes.
    pub(super) const fn word(at: i16) -> Self {
        Self { at, size: Size::W }
    }

    /// Eight bytes.
    pub(super) const fn double(at: i16) -> Self {
        Self { at, size: Size::Dw }
    }
}

/// An offset by itself is that of four bytes.
impl From<i16> for StackNumber {
    fn from(at: i16) -> Self {
        Self::word(at)
    }
}

/// Stack offsets, from r10 down.
pub(super) struct StackFrame;

impl StackFrame {
    /// The flow key: interface, remote address, remote port, local port, protocol. 16 bytes for IPv4, 32 for IPv6. Its
    /// start is chosen so that the address is aligned. Only the key of a quoted packet has its protocol; that of the
    /// packet itself is in `PROTOCOL`.
    // The interface comes first in the key: the key of a flow is then the key of its endpoint too. It has four bytes,
    // so the key begins four bytes before an aligned address.
    pub(super) const KEY: i16 = -36;
    /// The pod's address.
    pub(super) const LOCAL: i16 = Self::KEY - 20;
    /// Facts about the flow.
    pub(super) const FLOW: i16 = Self::LOCAL - 24;
    /// The place in the flow table of the flow's slot, or of a new flow's home slot.
    pub(super) const SLOT: StackNumber = StackNumber::double(Self::FLOW);
    /// The slot's word as it was read. A change of the word expects this value.
    pub(super) const WORD: StackNumber = StackNumber::double(Self::FLOW + 8);
    /// The epoch in force when the decision about this packet began. No branch tests it.
    pub(super) const EPOCH: StackNumber = StackNumber::word(Self::FLOW + 16);
    /// For a new flow: 1 if it must get the slot in `SLOT` and no other.
    pub(super) const TAKES: StackNumber = StackNumber::word(Self::FLOW + 20);
    /// A key for the look-up of a prefix, a fragment or a node. The largest is that of an IPv6 fragment.
    // Look-ups, neighbour messages and ICMP errors share these bytes, because their uses do not overlap. The kernel
    // gives 512 bytes, and without sharing there would be less room for the decision's values.
    pub(super) const SCRATCH: i16 = Self::FLOW - 48;
    /// The flow key of the packet that an ICMP error quotes, within `SCRATCH`.
    pub(super) const QUOTED: i16 = Self::SCRATCH + 4;
    // Verifier: values that programs branch on are in the upper half of an eight-byte slot. In lower halves, kernels up
    // to 6.18 at least track constants and the results of compares, and would walk the rest of the program once for
    // each combination. They also distinguish a slot whose lower half was stored last from one whose upper half was, so
    // the halves of a slot are stored in the same order on all paths.
    /// The IP protocol.
    pub(super) const PROTOCOL: StackNumber = StackNumber::word(Self::SCRATCH - 4);
    /// The fragment's identification. No branch tests it.
    pub(super) const FRAGMENT_ID: StackNumber = StackNumber::word(Self::PROTOCOL.at - 4);
    /// TCP's flags; for SCTP the equivalent flag (SYN for INIT); 0 for other protocols.
    pub(super) const TCP_FLAGS: StackNumber = StackNumber::word(Self::PROTOCOL.at - 8);
    /// The direction whose policies decide: that of the packet, or the one in which its flow began.
    pub(super) const JUDGED: StackNumber = StackNumber::word(Self::TCP_FLAGS.at - 8);
    /// Where a packet to the pod originated: [`weir_artifact::layout::Origin`].
    pub(super) const ORIGIN: StackNumber = StackNumber::word(Self::JUDGED.at - 8);
    /// The outcome that is counted at the end.
    pub(super) const OUTCOME: StackNumber = StackNumber::word(Self::ORIGIN.at - 8);
    /// [`Self::FIRST`] for a first fragment, whose ports must be remembered; [`Self::LATER`] for a later fragment and,
    /// in IPv6, for every other packet with a fragment header.
    pub(super) const FRAGMENT: StackNumber = StackNumber::word(Self::OUTCOME.at - 8);
    pub(super) const FIRST: i32 = 1;
    pub(super) const LATER: i32 = 2;
    /// The family, for events: 4 or 6, 0 if unknown.
    pub(super) const FAMILY: StackNumber = StackNumber::word(Self::FRAGMENT.at - 8);
    /// 1 for a packet in the middle of a connection, which needs a decision in both directions.
    pub(super) const BOTH: StackNumber = StackNumber::word(Self::FAMILY.at - 8);
    /// For a packet that needs a decision in both directions: the outcome of the first one.
    pub(super) const FIRST_OUTCOME: StackNumber = StackNumber::word(Self::BOTH.at - 8);
    /// 1 for an ICMP error about a live flow, whose sender is checked against the lists.
    pub(super) const ICMP_ERROR: StackNumber = StackNumber::word(Self::FIRST_OUTCOME.at - 8);
    /// The entry clears everything from here to `SCRATCH`.
    pub(super) const CLEARED: i16 = Self::ICMP_ERROR.at - 4;
    /// IPv6's payload length, in host order.
    pub(super) const PAYLOAD: StackNumber = StackNumber::word(Self::CLEARED - 8);
    /// IPv6's hop limit.
    pub(super) const HOP_LIMIT: StackNumber = StackNumber::word(Self::PAYLOAD.at + 4);
    /// The other end's peer class, after it was looked up. Eight bytes, so that the next slot is aligned.
    pub(super) const PEER: StackNumber = StackNumber::double(Self::PAYLOAD.at - 8);
    /// The decision's values, eight bytes each.
    // A value has eight bytes although most are numbers of four: sets are pointers, and the verifier keeps a pointer
    // only in a whole, aligned slot.
    pub(super) const VALUES: i16 = Self::PEER.at - 8;
    /// The maximum number of values in a decision.
    pub(super) const MOST_VALUES: u32 = 24;

    /// The stack offset of a value of the decision.
    pub(super) fn value(index: u32) -> i16 {
        Self::VALUES - 8 * index as i16
    }
}

const _: () =
    assert!(-(StackFrame::VALUES as i32 - 8 * StackFrame::MOST_VALUES as i32) <= 512, "the kernel gives 512 bytes");
const _: () = assert!(
    StackFrame::VALUES % 8 == 0
        && StackFrame::SCRATCH % 8 == 0
        && StackFrame::CLEARED % 8 == 0
        && StackFrame::FLOW % 8 == 0
        && StackFrame::LOCAL % 8 == 0,
    "eight-byte slots are aligned"
);

const _: () = assert!(FlowKey::REMOTE % 8 == 0 && (StackFrame::QUOTED - StackFrame::KEY) % 8 == 0, "so are addresses");

/// The offsets of ports and protocol in a family's flow key.
pub(super) struct FlowKey {
    pub(super) remote_port: i16,
    pub(super) local_port: i16,
    pub(super) protocol: i16,
}

impl FlowKey {
    pub(super) const IFINDEX: i16 = StackFrame::KEY;
    pub(super) const REMOTE: i16 = StackFrame::KEY + 4;

    pub(super) fn of(address_bytes: i16) -> Self {
        let ports = Self::REMOTE + address_bytes;
        Self { remote_port: ports, local_port: ports + 2, protocol: ports + 4 }
    }
}

/// Fields of `struct __sk_buff`.
pub(super) mod skb {
    use weir_ebpf::insn::Size;

    /// A field: its offset, and its size.
    #[derive(Clone, Copy)]
    pub(crate) struct ContextField {
        pub(crate) at: i16,
        pub(crate) size: Size,
    }

    const fn word(at: i16) -> ContextField {
        ContextField { at, size: Size::W }
    }

    pub(crate) const LEN: ContextField = word(0);
    pub(crate) const PROTOCOL: ContextField = word(16);
    pub(crate) const VLAN_PRESENT: ContextField = word(20);
    pub(crate) const INGRESS_IFINDEX: ContextField = word(36);
    pub(crate) const IFINDEX: ContextField = word(40);
    pub(crate) const TC_INDEX: ContextField = word(44);
    pub(crate) const SK: ContextField = ContextField { at: 168, size: Size::Dw };
    pub(crate) const DATA: ContextField = word(76);
    pub(crate) const DATA_END: ContextField = word(80);
}
