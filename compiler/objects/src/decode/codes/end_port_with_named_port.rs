//! A range that begins with a name.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("end-port-with-named-port", include_str!("end_port_with_named_port.diff"))
    .what("`endPort` is used with a named `port`.")
    .why(
        "The API server refuses it: a name can mean another number on each pod, so it cannot be the start of a \
         range.",
    );

/// Points at the end port.
pub(crate) fn at(origin: FieldOrigin, name: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("`endPort` cannot be used with the named port {}", quote(name)))
        .help("write the number of the first port, or remove `endPort`")
}
