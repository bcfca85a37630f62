//! Field offsets in the contexts of tc programs (`struct __sk_buff`) and XDP programs (`struct xdp_md`). They never
//! change.
//!
//! The emitter and the VM share this list.

#![expect(missing_docs, reason = "the kernel's names")]

pub const LEN: i16 = 0;
pub const PKT_TYPE: i16 = 4;
pub const MARK: i16 = 8;
pub const QUEUE_MAPPING: i16 = 12;
pub const PROTOCOL: i16 = 16;
pub const VLAN_PRESENT: i16 = 20;
pub const VLAN_TCI: i16 = 24;
pub const VLAN_PROTO: i16 = 28;
pub const PRIORITY: i16 = 32;
pub const INGRESS_IFINDEX: i16 = 36;
pub const IFINDEX: i16 = 40;
pub const TC_INDEX: i16 = 44;
// Five words, up to 67.
pub const CB: i16 = 48;
pub const HASH: i16 = 68;
pub const TC_CLASSID: i16 = 72;
// Pointers, although their fields have four bytes: the verifier gives a load of them the type of a packet pointer.
pub const DATA: i16 = 76;
pub const DATA_END: i16 = 80;
// Between this field and `DATA_META` are the addresses and ports of the socket, which tc programs may not read.
pub const NAPI_ID: i16 = 84;
pub const DATA_META: i16 = 140;
pub const TSTAMP: i16 = 152;
pub const WIRE_LEN: i16 = 160;
pub const GSO_SEGS: i16 = 164;
pub const SK: i16 = 168;
pub const GSO_SIZE: i16 = 176;

/// The number of bytes that the kernel really has of a four-byte field. A narrow load beyond them gives wrong data (a
/// load of the upper half of `protocol` gives the lower half), so the VM does not allow it.
pub const fn kept_bytes(field: i16) -> u8 {
    match field {
        // Bit fields of `struct sk_buff`: https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c
        // (`bpf_convert_ctx_access`).
        PKT_TYPE | VLAN_PRESENT => 1,
        QUEUE_MAPPING | PROTOCOL | VLAN_TCI | VLAN_PROTO | TC_INDEX | TC_CLASSID | GSO_SEGS | GSO_SIZE => 2,
        _ => 4,
    }
}

/// Field offsets in `struct xdp_md`; each field has four bytes.
pub mod xdp {
    pub const DATA: i16 = 0;
    pub const DATA_END: i16 = 4;
    pub const DATA_META: i16 = 8;
    pub const INGRESS_IFINDEX: i16 = 12;
    pub const RX_QUEUE_INDEX: i16 = 16;
}
