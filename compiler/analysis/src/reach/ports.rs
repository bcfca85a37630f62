//! Sets of port atoms, in words: `everything`, `TCP 80, 443`, `everything but UDP 53`.

use weir_classes::{AtomSet, Atoms, PortSpec};
use weir_model::Protocol;

/// The ranges of ports whose atoms are in the set (or, with `wanted` false, are not); adjacent ranges are joined.
fn joined(atoms: &Atoms, set: &AtomSet, wanted: bool) -> Vec<PortSpec> {
    let mut found: Vec<PortSpec> = Vec::new();
    for interval in atoms.intervals.iter().filter(|it| set.contains(it.atom) == wanted) {
        match found.last_mut() {
            Some(before)
                if before.protocol == interval.spec.protocol
                    && before.last.checked_add(1) == Some(interval.spec.first) =>
            {
                before.last = interval.spec.last;
            }
            _ => found.push(interval.spec),
        }
    }
    found
}

/// Whether a set contains traffic without ports and all ports outside of any range; and the ranges for which that
/// differs.
pub fn parts(atoms: &Atoms, set: &AtomSet) -> (bool, Vec<PortSpec>) {
    // Atom 0 decides which text is short: with it, the set contains nearly everything, and the exceptions are listed.
    let rest = set.contains(Atoms::REST);
    (rest, joined(atoms, set, !rest))
}

/// The set in words.
pub fn words(atoms: &Atoms, set: &AtomSet) -> String {
    match parts(atoms, set) {
        (true, except) if except.is_empty() => "everything".to_owned(),
        (true, except) => format!("everything but {}", list(&except)),
        (false, only) if only.is_empty() => "nothing".to_owned(),
        (false, only) => list(&only),
    }
}

fn list(specs: &[PortSpec]) -> String {
    let of_protocol = |protocol| {
        let specs: Vec<&PortSpec> = specs.iter().filter(|it| it.protocol == protocol).collect();
        let numbers: Vec<String> = specs.iter().map(|it| numbers(it)).collect();
        let text = match specs.as_slice() {
            // From 0 or 1: the API has no port 0.
            [only] if only.last == u16::MAX && only.first <= 1 => format!("all {}", name(protocol)),
            _ => format!("{} {}", name(protocol), numbers.join(", ")),
        };
        (!specs.is_empty()).then_some(text)
    };
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().filter_map(of_protocol);
    all.collect::<Vec<_>>().join("; ")
}

fn numbers(spec: &PortSpec) -> String {
    if spec.first == spec.last { spec.first.to_string() } else { format!("{}-{}", spec.first, spec.last) }
}

/// The protocol's name in the API.
pub fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}
