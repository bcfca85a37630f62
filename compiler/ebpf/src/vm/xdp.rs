//! The context of an XDP program, `struct xdp_md`: read-only fields of four bytes.

use super::skb::{Pointers, Skb};
use super::trap::AccessFault;
use crate::context::xdp as field;

/// Bytes of `struct xdp_md`.
const END: u64 = 24;

/// Reads a field.
pub(super) fn read(skb: &Skb, at: Pointers, offset: u64, bytes: u64) -> Result<u64, AccessFault> {
    if offset >= END {
        return Err(AccessFault::Outside);
    }
    if !offset.is_multiple_of(bytes) {
        return Err(AccessFault::Misaligned);
    }
    match (offset as i16, bytes) {
        // No meta data is in front of the packet, so both pointers are equal.
        (field::DATA | field::DATA_META, 4) => Ok(at.data),
        (field::DATA_END, 4) => Ok(at.data_end),
        // An XDP program runs where the packet arrives: the interface of the hook is the one that the packet came in
        // through.
        (field::INGRESS_IFINDEX, 4) => Ok(skb.ifindex.into()),
        (field::RX_QUEUE_INDEX, 4) => Ok(skb.queue_mapping.into()),
        _ => Err(AccessFault::NotAllowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_words_and_end_where_the_kernels_do() {
        let skb = Skb { ifindex: 7, ..Skb::new(vec![0; 60]) };
        let at = Pointers { len: 60, data: 1_000, data_end: 1_060 };
        assert_eq!(read(&skb, at, 0, 4), Ok(1_000));
        assert_eq!(read(&skb, at, 4, 4), Ok(1_060));
        assert_eq!(read(&skb, at, 12, 4), Ok(7));
        assert_eq!(read(&skb, at, 0, 8), Err(AccessFault::NotAllowed));
        assert_eq!(read(&skb, at, 12, 2), Err(AccessFault::NotAllowed));
        assert_eq!(read(&skb, at, 2, 4), Err(AccessFault::Misaligned));
        assert_eq!(read(&skb, at, 24, 4), Err(AccessFault::Outside));
    }
}
