//! Routes to single addresses, from `/proc/net/route` and `/proc/net/ipv6_route`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::HostRoute;

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask …`, numbers as the machine has them in memory.
pub(super) fn v4(text: &str) -> Vec<HostRoute> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, _, _, _, _, _, mask, ..] = fields[..] else { return None };
        let address = u32::from_str_radix(destination, 16).ok()?.to_ne_bytes();
        let (address, interface) = (IpAddr::from(Ipv4Addr::from(address)), name.to_owned());
        (mask == "FFFFFFFF").then_some(HostRoute { address, interface })
    };
    text.lines().skip(1).filter_map(route).collect()
}

/// `destination length source length gateway metric refcnt use flags name`, addresses as on the wire.
pub(super) fn v6(text: &str) -> Vec<HostRoute> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, .., name] = fields[..] else { return None };
        let address = u128::from_str_radix(destination, 16).ok()?;
        let single = length == "80" && address != 0;
        let (address, interface) = (IpAddr::from(Ipv6Addr::from(address)), name.to_owned());
        single.then_some(HostRoute { address, interface })
    };
    text.lines().filter_map(route).collect()
}
