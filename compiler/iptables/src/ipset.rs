//! Reads `ipset save` text, and evaluates sets as the kernel does.
//!
//! Three types are supported: `hash:ip`, `hash:net` (the longest prefix decides, and `nomatch` inverts it) and
//! `hash:ip,port`. Anything else, and everything that `ipset restore` would refuse, is an error.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::parse::{Problem, TableParseError, protocol_number};
use super::walk::ForwardedPacket;
use weir_objects::address::{Family, Prefix};

/// The largest number of elements if a set has no `maxelem`.
pub(super) const DEFAULT_MAX_ELEMENTS: usize = 65_536;

/// The most characters in a set's name.
pub(super) const MAX_SET_NAME: usize = 31;

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) name: String,
    pub(super) family: Family,
    elements: SetElements,
    max_elements: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SetElements {
    /// `hash:ip`
    Addresses(HashSet<IpAddr>),
    /// `hash:net`
    Nets(Nets),
    /// `hash:ip,port`, with the protocol's number.
    Ports(HashSet<(IpAddr, u8, u16)>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Nets {
    /// For each prefix, whether it matches; false for `nomatch`.
    matches: HashMap<Prefix, bool>,
    /// The lengths in use, the longest first.
    lengths: Vec<u8>,
}

/// The address of the packet that a set is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressSide {
    Source,
    Destination,
}

impl Set {
    /// The number of flags that `--match-set` needs: 1 for `dst`, 2 for `dst,dst`.
    pub(super) fn dimensions(&self) -> usize {
        match self.elements {
            SetElements::Addresses(_) | SetElements::Nets(_) => 1,
            SetElements::Ports(_) => 2,
        }
    }

    pub(super) fn contains(&self, side: AddressSide, packet: &ForwardedPacket) -> bool {
        let address = packet.address(side);
        match &self.elements {
            SetElements::Addresses(addresses) => addresses.contains(&address),
            SetElements::Nets(nets) => nets.contains(address),
            SetElements::Ports(ports) => {
                packet.port.is_some_and(|port| ports.contains(&(address, packet.protocol, port)))
            }
        }
    }

    fn len(&self) -> usize {
        match &self.elements {
            SetElements::Addresses(addresses) => addresses.len(),
            SetElements::Nets(nets) => nets.matches.len(),
            SetElements::Ports(ports) => ports.len(),
        }
    }
}

impl Nets {
    fn contains(&self, address: IpAddr) -> bool {
        let found = self.lengths.iter().find_map(|len| self.matches.get(&Prefix::new(address, *len)));
        found.copied().unwrap_or(false)
    }

    fn insert(&mut self, prefix: Prefix, matches: bool) -> bool {
        if let Err(place) = self.lengths.binary_search_by(|len| prefix.len().cmp(len)) {
            self.lengths.insert(place, prefix.len());
        }
        self.matches.insert(prefix, matches).is_none()
    }
}

/// Sets by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IpSets {
    pub(super) sets: Vec<Set>,
    by_name: HashMap<String, usize>,
}

impl IpSets {
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Reads `create` and `add` lines.
    pub(super) fn parse(text: &str) -> Result<Self, TableParseError> {
        let mut sets = Self::default();
        for (index, line) in text.lines().enumerate() {
            sets.line(line).map_err(|problem| TableParseError { part: "sets", line: index + 1, problem })?;
        }
        Ok(sets)
    }

    fn line(&mut self, line: &str) -> Result<(), Problem> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            [] => Ok(()),
            [word, ..] if word.starts_with('#') => Ok(()),
            ["create", name, kind, options @ ..] => self.create(name, kind, options),
            ["add", name, element] => self.add(name, element, true),
            ["add", name, element, "nomatch"] => self.add(name, element, false),
            _ => Err(Problem::Unknown(line.to_owned())),
        }
    }

    fn create(&mut self, name: &str, kind: &str, options: &[&str]) -> Result<(), Problem> {
        if name.len() > MAX_SET_NAME {
            return Err(Problem::NameTooLong(name.to_owned(), MAX_SET_NAME));
        }
        let elements = match kind {
            "hash:ip" => SetElements::Addresses(HashSet::new()),
            "hash:net" => SetElements::Nets(Nets::default()),
            "hash:ip,port" => SetElements::Ports(HashSet::new()),
            _ => return Err(Problem::Unknown(kind.to_owned())),
        };
        let mut set = Set { name: name.to_owned(), family: Family::V4, elements, max_elements: DEFAULT_MAX_ELEMENTS };
        for option in options.chunks(2) {
            match option {
                ["family", "inet"] => set.family = Family::V4,
                ["family", "inet6"] => set.family = Family::V6,
                ["maxelem", most] => set.max_elements = most.parse().map_err(|_| Problem::unknown(most))?,
                // Parameters of the kernel's memory layout, which `ipset save` adds.
                ["hashsize" | "bucketsize" | "initval", _] => {}
                _ => return Err(Problem::Unknown(option.join(" "))),
            }
        }
        if self.by_name.insert(name.to_owned(), self.sets.len()).is_some() {
            return Err(Problem::Twice(name.to_owned()));
        }
        self.sets.push(set);
        Ok(())
    }

    fn add(&mut self, name: &str, element: &str, matches: bool) -> Result<(), Problem> {
        let unknown = || Problem::unknown(element);
        let set = self.find(name).and_then(|index| self.sets.get_mut(index));
        let set = set.ok_or_else(|| Problem::Undefined(name.to_owned()))?;
        let new = match &mut set.elements {
            SetElements::Addresses(addresses) if matches => {
                addresses.insert(read_address(element, set.family).ok_or_else(unknown)?)
            }
            SetElements::Nets(nets) => nets.insert(read_net(element, set.family).ok_or_else(unknown)?, matches),
            SetElements::Ports(ports) if matches => {
                ports.insert(read_address_port(element, set.family).ok_or_else(unknown)?)
            }
            _ => return Err(Problem::unknown("nomatch")),
        };
        if !new {
            return Err(Problem::Twice(element.to_owned()));
        }
        if set.len() > set.max_elements {
            return Err(Problem::Full(name.to_owned(), set.max_elements));
        }
        Ok(())
    }
}

fn read_address(text: &str, family: Family) -> Option<IpAddr> {
    text.parse().ok().filter(|address| Family::of(*address) == family)
}

/// The kernel's `hash:net` does not support a prefix of length 0.
fn read_net(text: &str, family: Family) -> Option<Prefix> {
    Prefix::read_strictly(text).filter(|prefix| prefix.family() == family && prefix.len() > 0)
}

/// `10.0.0.1,tcp:80`
fn read_address_port(text: &str, family: Family) -> Option<(IpAddr, u8, u16)> {
    let (address, port) = text.split_once(',')?;
    let (protocol, number) = port.split_once(':')?;
    let protocol = matches!(protocol, "tcp" | "udp" | "sctp").then(|| protocol_number(protocol))??;
    Some((read_address(address, family)?, protocol, number.parse().ok()?))
}
