//! Short texts for ranges of addresses and ports: a list, or "all but" a list, whichever is shorter.

use super::{AddressRange, RowTraffic};
use weir_classes::PortSpec;
use weir_model::Protocol;
use weir_objects::address::{Family, Prefix, to_address, to_number};

/// At most this many ranges are listed.
const MOST: usize = 6;

/// Outside addresses, in words.
pub(super) fn text(ranges: &[AddressRange]) -> String {
    let of = |family| -> Vec<(u128, u128)> {
        let of_family = ranges.iter().filter(|it| Family::of(it.first) == family);
        of_family.map(|it| (to_number(it.first).1, to_number(it.last).1)).collect()
    };
    let (v4, v6) = (of(Family::V4), of(Family::V6));
    let everything = |family| vec![(0, most(family))];
    // "any outside IPv4 address, any outside IPv6 address" would say the same in more words.
    if v4 == everything(Family::V4) && v6 == everything(Family::V6) {
        return "any outside address".to_owned();
    }
    let families = [(Family::V4, v4), (Family::V6, v6)].into_iter().filter(|(_, ranges)| !ranges.is_empty());
    families.map(|(family, ranges)| of_family(family, &ranges)).collect::<Vec<_>>().join(", ")
}

/// Addresses of pods or outside: `in 10.0.0.0/8`, `any IPv4 address but 192.0.2.0/24`.
pub(crate) fn plain(ranges: &[AddressRange]) -> String {
    let text = text(ranges);
    match text.strip_prefix("any outside ") {
        Some(rest) => format!("any {rest}"),
        None => format!("in {text}"),
    }
}

fn of_family(family: Family, ranges: &[(u128, u128)]) -> String {
    let others = complement(ranges, 0, most(family));
    if others.is_empty() {
        return format!("any outside {family} address");
    }
    // If both texts have the same number of parts, the one without "but" is easier to read.
    if others.len() < ranges.len() {
        return format!("any outside {family} address but {}", listed(family, &others));
    }
    // A block with holes is how the author has written `except`, so it is recognized in the policy's text.
    if let [(first, _), .., (_, last)] = ranges
        && let Some(around) = Prefix::exactly(to_address(family, *first), to_address(family, *last))
    {
        return format!("{around} but {}", listed(family, &complement(ranges, *first, *last)));
    }
    listed(family, ranges)
}

fn listed(family: Family, ranges: &[(u128, u128)]) -> String {
    let mut texts: Vec<String> = ranges.iter().take(MOST).map(|it| range(family, *it)).collect();
    // Every range is in the JSON output. A line of text with hundreds of ranges is not read.
    if ranges.len() > MOST {
        texts.push(format!("{} more ranges", ranges.len() - MOST));
    }
    texts.join(", ")
}

fn range(family: Family, (first, last): (u128, u128)) -> String {
    AddressRange { first: to_address(family, first), last: to_address(family, last) }.to_string()
}

/// As a prefix, if the range is one.
impl std::fmt::Display for AddressRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { first, last } = self;
        match Prefix::exactly(*first, *last) {
            // A single address without `/32`: that is how people and `weir query` write it.
            _ if first == last => write!(f, "{first}"),
            Some(prefix) => write!(f, "{prefix}"),
            None => write!(f, "{first}-{last}"),
        }
    }
}

fn most(family: Family) -> u128 {
    if family == Family::V4 { u128::from(u32::MAX) } else { u128::MAX }
}

/// The gaps between sorted ranges.
fn complement(ranges: &[(u128, u128)], least: u128, most: u128) -> Vec<(u128, u128)> {
    let mut rest = Vec::new();
    let mut next = Some(least);
    for (first, last) in ranges {
        if let Some(from) = next.filter(|from| from < first) {
            rest.push((from, first - 1));
        }
        // `None` after the last address of IPv6; the filter does the same for IPv4, whose numbers have room above.
        next = last.checked_add(1).filter(|it| *it <= most);
    }
    rest.extend(next.map(|from| (from, most)));
    rest
}

const PROTOCOLS: [(Protocol, &str); 3] = [(Protocol::Tcp, "TCP"), (Protocol::Udp, "UDP"), (Protocol::Sctp, "SCTP")];

impl RowTraffic {
    /// Whether it contains all traffic.
    pub fn is_everything(&self) -> bool {
        self.portless && PROTOCOLS.iter().all(|(protocol, _)| self.is_all_of(*protocol))
    }

    fn is_all_of(&self, protocol: Protocol) -> bool {
        // From port 1, because rows leave out port 0, and adjacent ranges have been joined.
        self.ranges.iter().any(|it| (it.protocol, it.first, it.last) == (protocol, 1, u16::MAX))
    }
}

impl std::fmt::Display for RowTraffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_everything() {
            return f.write_str("all traffic");
        }
        let others = self.complement();
        // Named ports have no complement that is shorter to say.
        if self.named.is_empty() && pieces(&others) < pieces(self) {
            return write!(f, "all traffic but {}", spelled(&others).join(" and "));
        }
        f.write_str(&spelled(self).join("; "))
    }
}

impl RowTraffic {
    fn complement(&self) -> Self {
        let mut ranges = Vec::new();
        for (protocol, _) in PROTOCOLS {
            let own: Vec<(u128, u128)> = self
                .ranges
                .iter()
                .filter(|it| it.protocol == protocol)
                .map(|it| (u128::from(it.first), u128::from(it.last)))
                .collect();
            let rest = complement(&own, 1, u128::from(u16::MAX)).into_iter();
            ranges.extend(rest.map(|(first, last)| PortSpec { protocol, first: first as u16, last: last as u16 }));
        }
        // Traffic without ports is a part like the ranges: "all traffic but TCP 80" includes ICMP, and must not hide
        // that it does.
        Self { ranges, portless: !self.portless, named: Vec::new() }
    }
}

fn pieces(traffic: &RowTraffic) -> usize {
    traffic.ranges.len() + usize::from(traffic.portless)
}

fn spelled(traffic: &RowTraffic) -> Vec<String> {
    let mut parts = Vec::new();
    for (protocol, name) in PROTOCOLS {
        let ports: Vec<String> = traffic.ranges.iter().filter(|it| it.protocol == protocol).map(ports).collect();
        if traffic.is_all_of(protocol) {
            parts.push(format!("all {name}"));
        } else if !ports.is_empty() {
            parts.push(format!("{name} {}", ports.join(", ")));
        }
    }
    parts.extend(traffic.named.iter().map(|(spec, names)| {
        let protocol = PROTOCOLS.iter().find(|(protocol, _)| *protocol == spec.protocol).map_or("", |(_, name)| *name);
        let names: Vec<String> = names.iter().map(|it| format!("`{it}`")).collect();
        format!("{protocol} port {}", names.join(" that is also "))
    }));
    parts.extend(traffic.portless.then(|| "ICMP and whatever else has no ports".to_owned()));
    parts
}

fn ports(spec: &PortSpec) -> String {
    if spec.first == spec.last { spec.first.to_string() } else { format!("{}-{}", spec.first, spec.last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ranges: &[(&str, &str)], expected: &str) {
        let address = |text: &str| text.parse().expect("an address");
        let ranges: Vec<AddressRange> =
            ranges.iter().map(|(first, last)| AddressRange { first: address(first), last: address(last) }).collect();
        assert_eq!(text(&ranges), expected);
    }

    #[test]
    fn addresses_are_written_the_shorter_way() {
        let (v4, v6) = (("0.0.0.0", "255.255.255.255"), ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        check(&[v4, v6], "any outside address");
        check(&[v4], "any outside IPv4 address");
        check(&[("10.0.0.0", "10.255.255.255")], "10.0.0.0/8");
        check(&[("10.0.0.1", "10.0.0.1"), ("10.0.0.4", "10.0.0.6")], "10.0.0.1, 10.0.0.4-10.0.0.6");
        check(&[("10.0.0.0", "10.0.255.255"), ("10.2.0.0", "10.255.255.255")], "10.0.0.0/8 but 10.1.0.0/16");
        let around = [("0.0.0.0", "9.255.255.255"), ("11.0.0.0", "255.255.255.255")];
        check(&around, "any outside IPv4 address but 10.0.0.0/8");
    }

    #[track_caller]
    fn check_traffic(ranges: &[(Protocol, u16, u16)], portless: bool, expected: &str) {
        let spec = |(protocol, first, last): &(Protocol, u16, u16)| PortSpec {
            protocol: *protocol,
            first: *first,
            last: *last,
        };
        let traffic = RowTraffic { ranges: ranges.iter().map(spec).collect(), portless, named: Vec::new() };
        assert_eq!(traffic.to_string(), expected);
    }

    #[test]
    fn ports_are_written_the_shorter_way() {
        use Protocol::{Sctp, Tcp, Udp};
        let all = [(Tcp, 1, 65535), (Udp, 1, 65535), (Sctp, 1, 65535)];
        check_traffic(&all, true, "all traffic");
        check_traffic(&all, false, "all traffic but ICMP and whatever else has no ports");
        check_traffic(&[(Tcp, 80, 80), (Tcp, 8000, 8100), (Udp, 53, 53)], false, "TCP 80, 8000-8100; UDP 53");
        let but = [(Tcp, 1, 79), (Tcp, 81, 65535), (Udp, 1, 65535), (Sctp, 1, 65535)];
        check_traffic(&but, true, "all traffic but TCP 80");
    }
}
