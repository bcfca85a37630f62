//! Numbers for addresses in diagrams, and the numbers that read well in examples.
//!
//! Unlike a comparison's, these diagrams test single addresses: a described pod cannot have an address that an object of
//! the input has.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::addresses::AddressSet;
use crate::world::WorldError;
use crate::world::diagram::{Diagram, Diagrams};
use crate::world::examples::{familiar, readable_number};
use crate::world::variables::{FAMILY, Meaning, Role, Variables};
use weir_objects::address::{Family, to_address, to_number};

/// The flows with an end's address in a set.
pub(super) fn address_diagram(
    diagrams: &mut Diagrams,
    variables: &Variables,
    set: &AddressSet,
    role: Role,
) -> Result<Diagram, WorldError> {
    let var = variables.address(role);
    let mut of_family = [Vec::new(), Vec::new()];
    for range in set.iter() {
        let ((family, first), (_, last)) = (to_number(range.first), to_number(range.last));
        of_family[family as usize].push(address_numbers(family, first, last));
    }
    let [v4, v6] = of_family;
    let v4 = diagrams.within(var, &v4)?;
    let v6 = diagrams.within(var, &v6)?;
    diagrams.node(FAMILY, [(Family::V4 as u128, v4), (Family::V6 as u128, v6)])
}

/// IPv4 addresses are shifted up, so that in both families "every address" is every number, and a node for it vanishes.
fn address_numbers(family: Family, first: u128, last: u128) -> (u128, u128) {
    match family {
        Family::V4 => (first << 96, last << 96 | u128::MAX >> 32),
        Family::V6 => (first, last),
    }
}

/// The address with a number.
pub(super) fn address_of(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => to_address(family, number >> 96),
        Family::V6 => to_address(family, number),
    }
}

/// The number in one of the intervals that reads best. Notes the family, which comes before addresses.
pub(super) fn chosen(
    taken: &HashSet<IpAddr>,
    meaning: Meaning<'_>,
    family: &mut Family,
    intervals: &[(u128, u128)],
) -> u128 {
    let Meaning::Address(role) = meaning else { return readable_number(meaning, family, intervals) };
    let has = |number: &u128| intervals.iter().any(|(first, last)| (first..=last).contains(&number));
    let usual = addresses(taken, *family, role, intervals).into_iter().find(has);
    usual.or(intervals.iter().map(|(first, _)| *first).min()).unwrap_or_default()
}

/// Addresses that read well in an example: reserved for documentation, or the second address of an interval.
fn addresses(taken: &HashSet<IpAddr>, family: Family, role: Role, intervals: &[(u128, u128)]) -> Vec<u128> {
    let (shift, step) = match family {
        Family::V4 => (96, 1 << 96),
        Family::V6 => (0, 1),
    };
    let usual = match familiar(family, role) {
        IpAddr::V4(it) => u128::from(u32::from(it)) << shift,
        IpAddr::V6(it) => it.into(),
    };
    let in_interval = intervals.iter().flat_map(|(first, last)| {
        let numbers = (0..1024u128).filter_map(move |index| first.checked_add((index + 1) * step));
        numbers.take_while(move |it| it <= last).chain([*first])
    });
    let is_free = |number: &u128| !taken.contains(&address_of(family, *number));
    std::iter::once(usual).chain(in_interval).filter(is_free).take(1025).collect()
}
