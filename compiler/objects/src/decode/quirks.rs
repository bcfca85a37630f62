//! Warnings about addresses that the server accepts but that a reader may misread.

use std::fmt;

use crate::address::Quirk;
use crate::origin::FieldOrigin;

use super::codes;
use super::report::ObjectFindings;
use super::trail::Trail;

/// Warns about a quirk, if there is one.
pub(super) fn warn(
    text: &str,
    meant: impl fmt::Display,
    quirk: Option<Quirk>,
    at: &Trail<'_>,
    report: &mut ObjectFindings,
) {
    let build: fn(FieldOrigin, &str, &str) -> _ = match quirk {
        None => return,
        Some(Quirk::HostBits) => codes::cidr_host_bits::at,
        Some(Quirk::LeadingZeros) => codes::cidr_leading_zeros::at,
        Some(Quirk::Ipv4Mapped) => codes::cidr_ipv4_mapped::at,
    };
    report.warn(at, |origin| build(origin, text, &meant.to_string()));
}
