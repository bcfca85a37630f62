//! Prefixes against a definition of their own: two numbers and a length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use weir_objects::address::{Family, Prefix, to_address, to_number};

/// A prefix as its first number, its last number and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Numbers {
    family: Family,
    first: u128,
    len: u8,
}

impl Numbers {
    fn of(address: IpAddr, len: u8) -> Self {
        let (family, number) = to_number(address);
        let all = Self { family, first: 0, len: len.min(family.bits()) };
        // A prefix of all addresses begins at 0, also if its size is no number.
        Self { first: all.size().map_or(0, |size| number - number % size), ..all }
    }

    /// The number of addresses; `None` for 2^128.
    fn size(self) -> Option<u128> {
        2_u128.checked_pow(u32::from(self.family.bits() - self.len))
    }

    fn last(self) -> u128 {
        self.size().map_or(u128::MAX, |size| self.first + (size - 1))
    }

    fn has(self, address: IpAddr) -> bool {
        let (family, number) = to_number(address);
        family == self.family && (self.first..=self.last()).contains(&number)
    }
}

/// Addresses of both families, many of them near each other or at an end.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = prop_oneof![any::<u32>(), 0..4_u32, u32::MAX - 3..=u32::MAX, 0x0a00_0000..0x0a00_0010_u32];
    let net = 0x2001_0db8_u128 << 96;
    let v6 = prop_oneof![any::<u128>(), 0..4_u128, u128::MAX - 3..=u128::MAX, net..net + 16];
    prop_oneof![
        v4.prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        v6.prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
    ]
}

fn len() -> impl Strategy<Value = u8> {
    prop_oneof![0..=130_u8, 0..=1_u8, 24..=32_u8, 120..=128_u8]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn a_prefix_is_the_addresses_from_its_first_to_its_last(address in address(), len in len(), other in address()) {
        let (prefix, numbers) = (Prefix::new(address, len), Numbers::of(address, len));
        prop_assert_eq!(to_number(prefix.address()), (numbers.family, numbers.first));
        prop_assert_eq!(to_number(prefix.last()), (numbers.family, numbers.last()));
        prop_assert_eq!((prefix.len(), prefix.family()), (numbers.len, numbers.family));
        prop_assert!(prefix.contains(address));
        prop_assert_eq!(prefix.contains(other), numbers.has(other));
        prop_assert_eq!(Prefix::host(address), Prefix::new(address, 128));
    }

    #[test]
    fn a_prefix_covers_what_it_contains_both_ends_of(a in address(), b in address(), a_len in len(), b_len in len()) {
        // The second pair is nested as often as not.
        for (a, b) in [(Prefix::new(a, a_len), Prefix::new(b, b_len)), (Prefix::new(a, a_len), Prefix::new(a, b_len))] {
            let numbers = Numbers::of(a.address(), a.len());
            prop_assert_eq!(a.covers(b), numbers.has(b.address()) && numbers.has(b.last()), "{} {}", a, b);
        }
    }

    #[test]
    fn prefixes_are_sorted_by_family_first_address_and_length(
        a in address(), b in address(), a_len in len(), b_len in len()
    ) {
        for (b, b_len) in [(b, b_len), (a, b_len)] {
            let prefixes = Prefix::new(a, a_len).cmp(&Prefix::new(b, b_len));
            prop_assert_eq!(prefixes, Numbers::of(a, a_len).cmp(&Numbers::of(b, b_len)));
        }
    }

    #[test]
    fn a_prefix_is_printed_as_its_address_and_length(address in address(), len in len()) {
        let prefix = Prefix::new(address, len);
        let numbers = Numbers::of(address, len);
        let expected = format!("{}/{}", to_address(numbers.family, numbers.first), numbers.len);
        prop_assert_eq!(prefix.to_string(), expected.clone());
        prop_assert_eq!(Prefix::read_strictly(&expected), Some(prefix));
    }

    #[test]
    fn a_range_is_the_fewest_prefixes(a in address(), b in address(), near in 0..200_u128, shortest in 0..=1_u8) {
        for (first, last) in [(a, b), (b, a), (a, after(a, near)), (a, a)] {
            let prefixes: Vec<Prefix> = Prefix::of_range(first, last, shortest).collect();
            if Family::of(first) != Family::of(last) || last < first {
                prop_assert_eq!(prefixes, []);
                prop_assert_eq!(Prefix::exactly(first, last), None);
                continue;
            }
            let ends: Vec<(u128, u128)> =
                prefixes.iter().map(|it| (to_number(it.address()).1, to_number(it.last()).1)).collect();
            prop_assert_eq!(ends.first().map(|it| it.0), Some(to_number(first).1));
            prop_assert_eq!(ends.last().map(|it| it.1), Some(to_number(last).1));
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{:?}", prefixes);
            // Two neighbours that are the halves of one prefix would be one prefix too many.
            for pair in prefixes.windows(2) {
                let halves = pair[0].len() == pair[1].len() && Prefix::new(pair[0].address(), pair[0].len() - 1).last() == pair[1].last();
                prop_assert!(!halves || pair[0].len() == shortest, "{:?}", pair);
            }
            if shortest == 0 {
                let one = (prefixes.len() == 1).then(|| prefixes[0]);
                prop_assert_eq!(Prefix::exactly(first, last), one);
            }
        }
    }
}

/// The address `distance` further, or the family's last one.
fn after(address: IpAddr, distance: u128) -> IpAddr {
    let (family, number) = to_number(address);
    let most = if family == Family::V4 { u128::from(u32::MAX) } else { u128::MAX };
    to_address(family, number.saturating_add(distance).min(most))
}

#[test]
fn only_plain_spellings_are_read_strictly() {
    let read = |text: &str| Prefix::read_strictly(text).map(|prefix| prefix.to_string());
    assert_eq!(read("10.0.0.1"), Some("10.0.0.1/32".to_owned()));
    assert_eq!(read("2001:db8::1/32"), Some("2001:db8::/32".to_owned()));
    for text in ["", "10.0.0.0/33", "::/129", "010.0.0.0/8", "10.0.0.0/", "10.0.0.0/8/8", " 10.0.0.0/8"] {
        assert_eq!(read(text), None, "{text}");
    }
}
