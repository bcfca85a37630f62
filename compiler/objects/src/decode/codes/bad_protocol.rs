//! A protocol that policies cannot name.

use super::*;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("bad-protocol", include_str!("bad_protocol.diff")).what("A port has an unknown protocol.").why(
        "The API server accepts TCP, UDP and SCTP, in capitals. ICMP has no name here: a rule without `ports` \
         allows it.",
    );

/// The protocol is not one of the three.
pub(crate) fn at(origin: FieldOrigin, protocol: &str) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("{} is not a protocol with ports", quote(protocol)));
    let upper = protocol.to_ascii_uppercase();
    match &*upper {
        "TCP" | "UDP" | "SCTP" => found.help(format!("write `{upper}`, in capitals")),
        "ICMP" | "ICMPV6" => found.help("leave `ports` out: only a rule without ports allows ICMP"),
        "ANY" | "ALL" | "" => found.help("write an entry for each protocol, or leave `ports` out to allow all"),
        _ => found.help("write `TCP`, `UDP` or `SCTP`"),
    }
}
