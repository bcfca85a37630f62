//! The packet and its context, as a tc program sees them through `struct __sk_buff`.
//!
//! The context is not memory: the verifier rewrites each access to an access of the kernel's own structure. So reads
//! and writes are checked against the rules for tc programs (which fields, which widths, which may be written), and
//! [`Skb`] provides the values.

use super::trap::AccessFault;
use crate::context as field;

/// A packet and the kernel's metadata about it. Numbers are in host order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skb {
    /// All bytes from the Ethernet header on.
    pub packet: Vec<u8>,
    /// The number of bytes that programs may read directly; the rest is in fragments.
    pub linear: usize,
    /// The offset of the network header.
    pub network_offset: usize,
    /// The packet type: PACKET_HOST and so on.
    pub pkt_type: u32,
    /// The firewall mark.
    pub mark: u32,
    /// The queue number.
    pub queue_mapping: u32,
    /// The EtherType.
    pub protocol: u16,
    /// The VLAN tag that the device has removed, if any.
    pub vlan_tci: Option<u16>,
    /// The tag's EtherType.
    pub vlan_proto: u16,
    /// The priority.
    pub priority: u32,
    /// The interface that the packet came in through; 0 if none is known.
    pub ingress_ifindex: u32,
    /// Whether a socket of some network namespace owns the packet.
    pub has_socket: bool,
    /// The interface on whose hook the program runs.
    pub ifindex: u32,
    /// The traffic control index.
    pub tc_index: u32,
    /// Scratch space that programs share.
    pub cb: [u32; 5],
    /// The flow hash, 0 if not computed.
    pub hash: u32,
    /// The traffic control class.
    pub tc_classid: u32,
    /// NAPI id.
    pub napi_id: u32,
    /// The time stamp.
    pub tstamp: u64,
    /// The length on the wire.
    pub wire_len: u32,
    /// The number of segments, for offloads.
    pub gso_segs: u32,
    /// The bytes of a segment, for offloads.
    pub gso_size: u32,
}

impl Skb {
    /// A linear Ethernet packet; the protocol is taken from its header.
    pub fn new(packet: Vec<u8>) -> Self {
        // As the kernel does when a packet arrives (`eth_type_trans`). Programs read the field, not the header, so it
        // must agree.
        let protocol = packet.get(12..14).and_then(|bytes| bytes.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b));
        Self {
            linear: packet.len(),
            wire_len: u32::try_from(packet.len()).unwrap_or(u32::MAX),
            packet,
            network_offset: 14,
            pkt_type: 0,
            mark: 0,
            queue_mapping: 0,
            protocol,
            vlan_tci: None,
            vlan_proto: 0,
            priority: 0,
            ingress_ifindex: 0,
            has_socket: false,
            ifindex: 1,
            tc_index: 0,
            cb: [0; 5],
            hash: 0,
            tc_classid: 0,
            napi_id: 0,
            tstamp: 0,
            gso_segs: 0,
            gso_size: 0,
        }
    }
}

/// The size of `struct __sk_buff`.
pub(super) const END: u64 = 192;
// In no region, so a program that follows it traps. The kernel gives out a pointer that may be NULL; programs here ask
// only whether there is one.
/// The value of a non-null socket pointer. Programs may only compare it with 0.
const SOCKET: u64 = 0xffff_8880_0000_0000;
// `NO_QUEUE_MAPPING`: the store is skipped, not cut to 16 bits.
// https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c (`bpf_convert_ctx_access`)
/// The kernel ignores writes of a queue number from here on.
const NO_QUEUE: u32 = 0xffff;

/// The packet's length and current addresses, which the [`Skb`] does not have.
#[derive(Clone, Copy)]
pub(super) struct Pointers {
    pub(super) len: u32,
    pub(super) data: u64,
    pub(super) data_end: u64,
}

/// Reads a field or a part of one.
pub(super) fn read(skb: &Skb, at: Pointers, offset: u64, bytes: u64) -> Result<u64, AccessFault> {
    // Before alignment, so that a field behind the end is "outside" at every width, as in `bpf_skb_is_valid_access`.
    if offset >= END {
        return Err(AccessFault::Outside);
    }
    // Aligned to its own width: https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c
    // (`bpf_skb_is_valid_access`, `off % size != 0`).
    if !offset.is_multiple_of(bytes) {
        return Err(AccessFault::Misaligned);
    }
    // Nearly all fields have four bytes, and most may be read in part.
    let (field, rest) = ((offset & !3) as i16, offset & 3);
    match (field, bytes) {
        // Four bytes in the context, but the load yields a pointer of eight: the verifier replaces it by a load of
        // `skb->data`. Without meta data in front of the packet, both are equal.
        (field::DATA | field::DATA_META, 4) => return Ok(at.data),
        (field::DATA_END, 4) => return Ok(at.data_end),
        // Half a pointer would be a number, and pointers must not become numbers.
        (field::DATA | field::DATA_META | field::DATA_END, _) => return Err(AccessFault::NotAllowed),
        (field::TSTAMP, 8) => return Ok(skb.tstamp),
        (field::SK, 8) => return Ok(if skb.has_socket { SOCKET } else { 0 }),
        // `cb[0]` and `cb[2]`: the pairs that begin at a multiple of eight. `cb[4]` has no partner.
        (field::CB | 56, 8) => {
            let (low, high) = (word(skb, at, field)?, word(skb, at, field + 4)?);
            return Ok(u64::from(high) << 32 | u64::from(low));
        }
        (_, 8) => return Err(AccessFault::NotAllowed),
        // The kernel reads the whole short field and shifts it. Beyond its width the result would be data of the wrong
        // place, so this machine is stricter.
        (field, _) if rest >= u64::from(field::kept_bytes(field)) => return Err(AccessFault::NotAllowed),
        _ => {}
    }
    let shifted = u64::from(word(skb, at, field)?) >> (rest * 8);
    Ok(shifted & (u64::MAX >> (64 - bytes * 8)))
}

/// A plain field of four bytes.
fn word(skb: &Skb, at: Pointers, field: i16) -> Result<u32, AccessFault> {
    Ok(match field {
        field::LEN => at.len,
        field::PKT_TYPE => skb.pkt_type,
        field::MARK => skb.mark,
        field::QUEUE_MAPPING => skb.queue_mapping,
        // In network order as in `skb->protocol`, on a little-endian machine. Programs compare with a swapped constant.
        field::PROTOCOL => u32::from(skb.protocol.swap_bytes()),
        field::VLAN_PRESENT => u32::from(skb.vlan_tci.is_some()),
        field::VLAN_TCI => u32::from(skb.vlan_tci.unwrap_or(0)),
        field::VLAN_PROTO => u32::from(skb.vlan_proto.swap_bytes()),
        field::PRIORITY => skb.priority,
        field::INGRESS_IFINDEX => skb.ingress_ifindex,
        field::IFINDEX => skb.ifindex,
        field::TC_INDEX => skb.tc_index,
        // `cb` is the only array of the context.
        48 | 52 | 56 | 60 | 64 => skb.cb.get((field - field::CB) as usize / 4).copied().unwrap_or(0),
        field::HASH => skb.hash,
        field::TC_CLASSID => skb.tc_classid,
        field::NAPI_ID => skb.napi_id,
        field::WIRE_LEN => skb.wire_len,
        field::GSO_SEGS => skb.gso_segs,
        field::GSO_SIZE => skb.gso_size,
        // Among others the addresses and ports of the socket: `tc_cls_act_is_valid_access` in
        // https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c excludes `family` to `local_port`.
        _ => return Err(AccessFault::NotAllowed),
    })
}

/// Writes a field that tc programs may write.
pub(super) fn write(skb: &mut Skb, offset: u64, bytes: u64, value: u64) -> Result<(), AccessFault> {
    if offset >= END {
        return Err(AccessFault::Outside);
    }
    if !offset.is_multiple_of(bytes) {
        return Err(AccessFault::Misaligned);
    }
    // The fields that `tc_cls_act_is_valid_access` lists, at full width only:
    // https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c
    let target = match (offset as i16, bytes) {
        (field::TSTAMP, 8) => {
            skb.tstamp = value;
            return Ok(());
        }
        (48..68, _) => return write_cb(skb, offset - 48, bytes, value),
        (field::MARK, 4) => &mut skb.mark,
        (field::QUEUE_MAPPING, 4) if value as u32 >= NO_QUEUE => return Ok(()),
        (field::QUEUE_MAPPING, 4) => &mut skb.queue_mapping,
        (field::PRIORITY, 4) => &mut skb.priority,
        (field::TC_INDEX, 4) => &mut skb.tc_index,
        (field::TC_CLASSID, 4) => &mut skb.tc_classid,
        _ => return Err(AccessFault::NotAllowed),
    };
    *target = value as u32;
    if matches!(offset as i16, field::TC_INDEX | field::TC_CLASSID) {
        // The kernel stores these fields in 16 bits.
        *target &= 0xffff;
    }
    Ok(())
}

fn write_cb(skb: &mut Skb, offset: u64, bytes: u64, value: u64) -> Result<(), AccessFault> {
    // Through a copy of its bytes: `cb` may be written at any width, and a write of eight bytes covers two words.
    let mut flat = [0; 20];
    for (to, word) in flat.chunks_exact_mut(4).zip(skb.cb) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let target = flat.get_mut(offset as usize..(offset + bytes) as usize).ok_or(AccessFault::NotAllowed)?;
    target.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
    for (word, from) in skb.cb.iter_mut().zip(flat.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*from);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
