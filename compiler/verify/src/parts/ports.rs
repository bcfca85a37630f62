//! For every port, the bit of a set that the program reads for it.
//!
//! Problem: a program's result does not show a port's atom. Strategy: find the set for one class and one subject class,
//! overwrite its bytes where the program reads them, and look at the verdicts. Six runs show which bit of eight bytes
//! decides, for any meaning of the words.

use std::collections::HashMap;

use super::super::prober::{Instance, ProbeStop};
use super::super::slots::SlotPort;
use super::{PartsVerifier, Stopped, VerifyPart};
use weir_ebpf::vm::MapByte;
use weir_model::eval::Verdict;

/// How a program decides about a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asks {
    /// By a bit: the offset of its eight bytes, relative to those read for packets without ports, and the bit's number.
    Bit(i64, u32),
    /// Without a set, or not by a single bit: the verdict with all bits set, and with none.
    Other(Verdict, Verdict),
}

/// One port for each pair of deciding bit and oracle slot, with that bit; `None` if the program never reads a set.
pub(super) fn classify(
    parts: &mut PartsVerifier<'_, '_>,
    instance: Instance,
) -> Result<Vec<(SlotPort, Option<Asks>)>, Stopped> {
    let mut known = HashMap::new();
    let mut ports = Vec::new();
    // One set is enough to learn which bit belongs to a port: the way from a port to its bit does not depend on the
    // set.
    let place = place(parts, instance)?;
    for port in parts.ports {
        let asks = match place {
            Some(place) => Some(asks(parts, instance, place, *port)?),
            // No row is ever looked up, so a port has only its slot.
            None => None,
        };
        let number = ports.len();
        // By slot and bit together. Two ports of one slot with different bits are a boundary that only the programs
        // have; two slots with one bit are a boundary that they lack.
        if *known.entry((parts.expected.slots.of(*port), asks)).or_insert(number) == number {
            ports.push((*port, asks));
        }
        // Nothing is compared yet: a wrong bit shows when the sets are.
        parts.report.count(VerifyPart::Ports, 1, 1);
    }
    Ok(ports)
}

/// An address for which a set is read, and the place of that read for packets without ports. Leaves the prober's
/// endpoint at a subject class for which this holds.
fn place(
    parts: &mut PartsVerifier<'_, '_>,
    instance: Instance,
) -> Result<Option<(std::net::IpAddr, MapByte)>, Stopped> {
    let classes = parts.survey.classes.get(&instance).map_or(&[][..], Vec::as_slice);
    // Subject classes whose rows read no set are rare, so the first endpoints decide. The limit keeps programs that
    // never read one from costing every endpoint times every class.
    for local in parts.locals.iter().take(8) {
        parts.prober.set_subject(local.subject)?;
        for class in classes {
            if let ProbeStop::Row(_) = class.reach
                && let Some(spot) = spot(parts, instance, class.address, (None, 0))?
            {
                return Ok(Some((class.address, spot)));
            }
        }
    }
    Ok(None)
}

/// The place where the program reads the set for a port.
fn spot(
    parts: &mut PartsVerifier<'_, '_>,
    instance: Instance,
    address: std::net::IpAddr,
    port: SlotPort,
) -> Result<Option<MapByte>, Stopped> {
    match parts.prober.reach(instance, address, port, None, &mut Vec::new())? {
        ProbeStop::Row(state) => Ok(parts.prober.set(&state)?),
        ProbeStop::Settled(_) => Ok(None),
    }
}

fn asks(
    parts: &mut PartsVerifier<'_, '_>,
    instance: Instance,
    (address, origin): (std::net::IpAddr, MapByte),
    port: SlotPort,
) -> Result<Asks, Stopped> {
    // The program decided about this port without a set. The same verdict twice says that no bit matters.
    let Some(spot) = spot(parts, instance, address, port)? else {
        let verdict = parts.prober.verdict(instance, address, port)?;
        return Ok(Asks::Other(verdict, verdict));
    };
    let bytes = parts.prober.bytes(spot);
    // Eight bytes at most: behind the last word of a table there are fewer, and a write beyond its end is an error.
    let before: Vec<u8> = bytes.iter().skip(spot.offset as usize).take(8).copied().collect();
    let mut with = |word: u64| -> Result<Verdict, Stopped> {
        parts.prober.poke(spot, word.to_le_bytes().get(..before.len()).unwrap_or_default())?;
        Ok(parts.prober.verdict(instance, address, port)?)
    };
    // These two first. If the verdict does not follow the word, or follows it upside down, the six patterns would still
    // give some number, and it would mean nothing.
    let (all, none) = (with(u64::MAX)?, with(0)?);
    let mut bit = 0;
    if (all, none) == (Verdict::Allow, Verdict::Deny) {
        for (index, pattern) in PATTERNS.into_iter().enumerate() {
            // Each pattern asks for one bit of the deciding bit's number: six runs instead of sixty-four.
            bit |= u32::from(with(pattern)? == Verdict::Allow) << index;
        }
    }
    // The set belongs to other ports and classes too, and they are read from it later.
    parts.prober.poke(spot, &before)?;
    match (all, none) {
        // Relative to the read for packets without ports: the same set is elsewhere for other rows, but its words keep
        // their distances.
        (Verdict::Allow, Verdict::Deny) => Ok(Asks::Bit(spot.offset as i64 - origin.offset as i64, bit)),
        other => Ok(Asks::Other(other.0, other.1)),
    }
}

/// Bit `b` is set in the pattern of index `i` if bit `i` is set in `b`.
const PATTERNS: [u64; 6] = [
    0xaaaa_aaaa_aaaa_aaaa,
    0xcccc_cccc_cccc_cccc,
    0xf0f0_f0f0_f0f0_f0f0,
    0xff00_ff00_ff00_ff00,
    0xffff_0000_ffff_0000,
    0xffff_ffff_0000_0000,
];
