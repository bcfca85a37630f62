//! Counts of objects that have an address.

use std::collections::HashMap;
use std::net::IpAddr;

pub(super) fn more(counts: &mut HashMap<IpAddr, u32>, address: IpAddr) {
    *counts.entry(address).or_default() += 1;
}

/// Over time, many different addresses occur, so counts of zero are removed.
pub(super) fn less(counts: &mut HashMap<IpAddr, u32>, address: IpAddr) {
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
}
