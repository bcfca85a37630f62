//! One entry of an address list: an address, a CIDR, or a range `first-last`.

use std::net::IpAddr;

use crate::address::{self, Family, Parsed, Quirk};

use super::report::ObjectFindings;
use super::trail::Trail;
use super::{codes, quirks};

/// First and last address.
pub(super) type EntryRange = (IpAddr, IpAddr);

/// Reads an entry, and reports errors and unusual spellings.
pub(super) fn read(text: &str, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<EntryRange> {
    if let Some(address) = address::parse_plain_v4(text.as_bytes()) {
        return Some((address.into(), address.into()));
    }
    match parse(text) {
        Ok((range, None)) => Some(range),
        Ok((range, quirk)) => {
            quirks::warn(text, PrintedRange(range, text), quirk, at, report);
            Some(range)
        }
        Err(why) => {
            report.error(at, |origin| codes::bad_list_entry::at(origin, text, why));
            None
        }
    }
}

fn parse(text: &str) -> Result<(EntryRange, Option<Quirk>), &'static str> {
    if let Some((first, last)) = text.split_once('-') {
        return range(first.trim(), last.trim());
    }
    if text.contains('/') {
        let Parsed { value, quirk } = address::parse_cidr(text).ok_or("is not a CIDR")?;
        return Ok(((value.address(), value.last()), quirk));
    }
    let Parsed { value, quirk } = address::parse_address(text).ok_or("is not an address")?;
    Ok(((value, value), quirk))
}

fn range(first: &str, last: &str) -> Result<(EntryRange, Option<Quirk>), &'static str> {
    let [first, last] = [first, last].map(address::parse_address);
    let (first, last) = first.zip(last).ok_or("is not a range of two addresses")?;
    if Family::of(first.value) != Family::of(last.value) {
        return Err("goes from one address family to the other");
    }
    if last.value < first.value {
        return Err("ends before it begins");
    }
    Ok(((first.value, last.value), first.quirk.or(last.quirk)))
}

/// A range, printed in the same form as it was written.
struct PrintedRange<'t>(EntryRange, &'t str);

impl std::fmt::Display for PrintedRange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self((first, last), written) = self;
        match address::parse_cidr(written) {
            Some(cidr) => write!(f, "{}", cidr.value),
            None if first == last => write!(f, "{first}"),
            None => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let found = parse(text).map(|((first, last), _)| format!("{first}-{last}"));
        assert_eq!(found, expected.map(str::to_owned), "{text}");
    }

    #[test]
    fn entries_are_addresses_cidrs_and_ranges() {
        check("192.0.2.7", Ok("192.0.2.7-192.0.2.7"));
        check("192.0.2.7/30", Ok("192.0.2.4-192.0.2.7"));
        check("192.0.2.7-192.0.2.9", Ok("192.0.2.7-192.0.2.9"));
        check("2001:db8::1 - 2001:db8::f", Ok("2001:db8::1-2001:db8::f"));
        check("::/0", Ok("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        check("::ffff:192.0.2.1", Ok("192.0.2.1-192.0.2.1"));
    }

    #[test]
    fn text_that_is_no_address_and_no_range_is_an_error() {
        check("192.0.2.9-192.0.2.7", Err("ends before it begins"));
        check("192.0.2.9-::1", Err("goes from one address family to the other"));
        check("192.0.2.0/33", Err("is not a CIDR"));
        check("192.0.2.0/24-192.0.3.0/24", Err("is not a range of two addresses"));
        check("example.com", Err("is not an address"));
        check("", Err("is not an address"));
    }
}
