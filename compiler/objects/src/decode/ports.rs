//! Protocols and port numbers, which all kinds write in the same way.

use crate::k8s::Protocol;

use super::codes;
use super::report::ObjectFindings;
use super::trail::Trail;
use super::view::ValueView;

/// A protocol; TCP if absent.
pub(super) fn protocol(protocol: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<Protocol> {
    match protocol.str().unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        other => {
            report.error(at, |origin| codes::bad_protocol::at(origin, other));
            None
        }
    }
}

/// Like [`protocol`], for pods and services, where the server treats an empty text as TCP as well.
pub(super) fn protocol_or_default(
    written: ValueView<'_, '_>,
    at: &Trail<'_>,
    report: &mut ObjectFindings,
) -> Option<Protocol> {
    match written.str() {
        Some("") => Some(Protocol::Tcp),
        _ => protocol(written, at, report),
    }
}

/// A port between 1 and 65535.
pub(super) fn number(number: i64, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<u16> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    if port.is_none() {
        report.error(at, |origin| codes::port_out_of_range::at(origin, number));
    }
    port
}
