//! Addresses and prefixes, read as the Kubernetes API server reads them.
//!
//! The server's fields are older than today's strict parsers: `010.0.0.0/8` is ten (decimal, not octal), a prefix may
//! carry host bits, and an IPv4-mapped address is that IPv4 address. All of it is accepted here and converted to one
//! canonical form; callers that warn about such spellings use [`Parsed::quirk`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, IpSubnets, Ipv4Net, Ipv4Subnets, Ipv6Net, Ipv6Subnets};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The number of bits in an address.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An address prefix with its host bits cleared. Sorted by family, address and length.
///
/// Invariant: no host bit is set, and never an IPv4-mapped address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(IpNet);

impl Prefix {
    /// The prefix of `len` bits around an address; `len` is cut to the family's bits.
    pub fn new(address: IpAddr, len: u8) -> Self {
        Self(match address {
            IpAddr::V4(v4) => Ipv4Net::new_assert(v4, len.min(32)).trunc().into(),
            IpAddr::V6(v6) => Ipv6Net::new_assert(v6, len.min(128)).trunc().into(),
        })
    }

    /// A single address.
    pub fn host(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// The fewest prefixes of at least `shortest` bits that make up a range, in order. Empty if the addresses are not a
    /// range.
    pub fn of_range(first: IpAddr, last: IpAddr, shortest: u8) -> impl Iterator<Item = Self> {
        let subnets = match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => Some(Ipv4Subnets::new(first, last, shortest).into()),
            (IpAddr::V6(first), IpAddr::V6(last)) => Some(Ipv6Subnets::new(first, last, shortest).into()),
            _ => None,
        };
        subnets.into_iter().flat_map(|subnets: IpSubnets| subnets).map(Self)
    }

    /// A whole range as one prefix, if it is one.
    pub fn exactly(first: IpAddr, last: IpAddr) -> Option<Self> {
        Self::of_range(first, last, 0).next().filter(|prefix| prefix.last() == last)
    }

    /// Reads `10.0.0.0/8` or a single address, with none of the spellings that only the API server accepts.
    pub fn read_strictly(text: &str) -> Option<Self> {
        // Not `IpNet`'s own parser, which accepts leading zeros.
        let Some((address, len)) = text.split_once('/') else { return text.parse().ok().map(Self::host) };
        IpNet::new(address.parse().ok()?, len.parse().ok()?).ok().map(|net| Self(net.trunc()))
    }

    /// The first address.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// The last address.
    pub fn last(self) -> IpAddr {
        self.0.broadcast()
    }

    /// The number of leading bits that count.
    #[expect(clippy::len_without_is_empty, reason = "a prefix length, not a container")]
    pub fn len(self) -> u8 {
        self.0.prefix_len()
    }

    /// IPv4 or IPv6.
    pub fn family(self) -> Family {
        Family::of(self.address())
    }

    /// Whether the address is of this family and inside.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Whether every address of `other` is inside.
    pub fn covers(self, other: Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A parsed value, with a note of anything unusual in its spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The value, in canonical form.
    pub value: T,
    /// The property of the spelling that a reader may misread.
    pub quirk: Option<Quirk>,
}

/// A spelling that the server accepts and that is easily misread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// `203.0.113.77/24`: the host bits are ignored.
    HostBits,
    /// `010.0.0.0/8`: decimal, not octal.
    LeadingZeros,
    /// `::ffff:203.0.113.0/120`: an IPv4 prefix.
    Ipv4Mapped,
}

/// Reads an address as the API server's legacy fields do. `None` if the server refuses it.
pub fn parse_address(text: &str) -> Option<Parsed<IpAddr>> {
    let (address, zeros) = parse_any(text)?;
    let (address, mapped) = unmap(address);
    let quirk = if mapped { Some(Quirk::Ipv4Mapped) } else { zeros.then_some(Quirk::LeadingZeros) };
    Some(Parsed { value: address, quirk })
}

/// Reads `address/length` as the API server's legacy fields do. `None` if the server refuses it.
pub fn parse_cidr(text: &str) -> Option<Parsed<Prefix>> {
    let (address_text, len_text) = text.split_once('/')?;
    let (address, address_zeros) = parse_any(address_text)?;
    let len = decimal(len_text, u32::from(Family::of(address).bits()))? as u8;
    let zeros = address_zeros || (len_text.len() > 1 && len_text.starts_with('0'));
    let host_bits = Prefix::new(address, len).address() != address;
    let (unmapped, mapped) = unmap(address);
    let (value, mapped) = match mapped && len >= 96 {
        true => (Prefix::new(unmapped, len - 96), true),
        false => (Prefix::new(address, len), false),
    };
    let quirk = match (mapped, zeros, host_bits) {
        (true, _, _) => Some(Quirk::Ipv4Mapped),
        (_, true, _) => Some(Quirk::LeadingZeros),
        (_, _, true) => Some(Quirk::HostBits),
        _ => None,
    };
    Some(Parsed { value, quirk })
}

/// Fast path for most list entries: four plain decimal numbers. `None` means that the caller has to use the full
/// parser.
pub(crate) fn parse_plain_v4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut rest = text;
    for (index, octet) in octets.iter_mut().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix(b".")?;
        }
        let digits = rest.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = rest.split_at_checked(digits)?;
        *octet = match *number {
            [a @ b'0'..=b'9'] => a - b'0',
            [a @ b'1'..=b'9', b] => 10 * (a - b'0') + (b - b'0'),
            [a @ b'1'..=b'2', b, c] => (100 * (a - b'0')).checked_add(10 * (b - b'0'))?.checked_add(c - b'0')?,
            _ => return None,
        };
        rest = after;
    }
    rest.is_empty().then_some(Ipv4Addr::from(octets))
}

/// Also says whether an IPv4 part was written with leading zeros.
fn parse_any(text: &str) -> Option<(IpAddr, bool)> {
    if !text.contains(':') {
        let (v4, zeros) = parse_v4(text)?;
        return Some((IpAddr::V4(v4), zeros));
    }
    if let Ok(v6) = text.parse::<Ipv6Addr>() {
        return Some((IpAddr::V6(v6), false));
    }
    // The standard parser refuses leading zeros in an embedded IPv4 part, and a fifth digit; the server does not.
    let groups: Option<Vec<String>> = text.split(':').map(without_leading_zeros).collect();
    let v6 = groups?.join(":").parse::<Ipv6Addr>().ok()?;
    Some((IpAddr::V6(v6), true))
}

/// One group of an IPv6 address, or the IPv4 part at its end.
fn without_leading_zeros(group: &str) -> Option<String> {
    if group.contains('.') {
        return parse_v4(group).map(|(v4, _)| v4.to_string());
    }
    let digits = group.trim_start_matches('0');
    Some(if digits.is_empty() && !group.is_empty() { "0".to_owned() } else { digits.to_owned() })
}

fn parse_v4(text: &str) -> Option<(Ipv4Addr, bool)> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    let mut zeros = false;
    for octet in &mut octets {
        let part = parts.next()?;
        *octet = decimal(part, 255)? as u8;
        zeros |= part.len() > 1 && part.starts_with('0');
    }
    parts.next().is_none().then_some((Ipv4Addr::from(octets), zeros))
}

/// Digits only, at most `max`.
fn decimal(text: &str, max: u32) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.bytes().try_fold(0u32, |value, byte| {
        let value = value * 10 + u32::from(byte - b'0');
        (value <= max).then_some(value)
    })
}

fn unmap(address: IpAddr) -> (IpAddr, bool) {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or((address, false), |v4| (IpAddr::V4(v4), true)),
        IpAddr::V4(_) => (address, false),
    }
}

/// The family, and the address as a number of its width.
pub fn to_number(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(v4) => (Family::V4, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (Family::V6, v6.to_bits()),
    }
}

/// The address of a number of the family's width.
pub fn to_address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_cidr(text: &str, expected: &str, quirk: Option<Quirk>) {
        let parsed = parse_cidr(text).map(|parsed| (parsed.value.to_string(), parsed.quirk));
        assert_eq!(parsed, Some((expected.to_owned(), quirk)), "{text}");
    }

    #[test]
    fn what_the_server_accepts_is_brought_to_one_form() {
        check_cidr("10.0.0.0/8", "10.0.0.0/8", None);
        check_cidr("203.0.113.77/24", "203.0.113.0/24", Some(Quirk::HostBits));
        check_cidr("010.0.0.0/8", "10.0.0.0/8", Some(Quirk::LeadingZeros));
        check_cidr("10.0.0.0/08", "10.0.0.0/8", Some(Quirk::LeadingZeros));
        check_cidr("::ffff:203.0.113.0/120", "203.0.113.0/24", Some(Quirk::Ipv4Mapped));
        check_cidr("::ffff:0:0/90", "::ffc0:0:0/90", Some(Quirk::HostBits));
        check_cidr("2001:db8::1/64", "2001:db8::/64", Some(Quirk::HostBits));
        check_cidr("0.0.0.0/0", "0.0.0.0/0", None);
        check_cidr("2001:00db8::/32", "2001:db8::/32", Some(Quirk::LeadingZeros));
        check_cidr("64:ff9b::01.2.3.4/128", "64:ff9b::102:304/128", Some(Quirk::LeadingZeros));
        check_cidr("::/0", "::/0", None);
    }

    #[test]
    fn what_is_read_at_once_is_what_patience_reads() {
        let numbers = ["0", "9", "10", "99", "100", "199", "249", "255"];
        for (a, b) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
            let text = format!("{a}.{b}.{b}.{a}");
            assert_eq!(
                parse_plain_v4(text.as_bytes()).map(IpAddr::V4),
                parse_address(&text).map(|it| it.value),
                "{text}"
            );
        }
        for text in
            ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.300", "01.2.3.4", "1.2.3.04", "1.2.3.4 ", "1.2.3.4/8", "::1"]
        {
            assert_eq!(parse_plain_v4(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_the_server_refuses_is_refused() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "256.0.0.0/8",
            "10.0.0.0/8 ",
            "::/129",
            "12345::/16",
            "1::2::3/64",
            ":1::/16",
            "fe80::1%eth0/64",
            "1.2.3.4.5/8",
            "0x0a.0.0.0/8",
            "10.0.0.0/8/8",
            "0000000000000000000010.0.0.0/8a",
        ] {
            assert_eq!(parse_cidr(text), None, "{text}");
        }
    }

    #[test]
    fn a_prefix_ends_where_its_host_bits_are_all_set() {
        for (text, last) in [
            ("10.0.0.0/8", "10.255.255.255"),
            ("10.0.0.1/32", "10.0.0.1"),
            ("0.0.0.0/0", "255.255.255.255"),
            ("::/127", "::1"),
        ] {
            assert_eq!(parse_cidr(text).map(|parsed| parsed.value.last().to_string()), Some(last.to_owned()));
        }
    }

    #[test]
    fn a_family_never_contains_the_other() {
        let everything4 = Prefix::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        assert!(!everything4.contains(IpAddr::V6(Ipv6Addr::LOCALHOST)));
        assert!(everything4.contains(IpAddr::V4(Ipv4Addr::BROADCAST)));
    }
}
