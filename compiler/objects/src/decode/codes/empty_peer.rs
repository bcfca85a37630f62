//! A peer without any content.

use crate::diagnostic::{Code, Diagnostic, Example, Severity};
use crate::origin::FieldOrigin;

/// Documentation of the finding.
pub static CODE: Code = Code {
    name: "empty-peer",
    severity: Severity::Error,
    lint: false,
    what: "A peer has neither a selector nor an ipBlock.",
    why: "The API server refuses it, because it could mean \"every peer\" or \"no peer\". For every peer, leave \
          `from` or `to` empty; for every pod of the namespace, write `podSelector: {}`.",
    example: Example(include_str!("empty_peer.diff")),
};

/// Points at the peer.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "the peer is empty").label("selects no peer").help(
        "write `podSelector: {}` for every pod of this namespace, `namespaceSelector: {}` for every pod, \
         or remove the whole list to match every peer",
    )
}
