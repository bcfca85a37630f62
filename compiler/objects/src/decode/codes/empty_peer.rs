//! A peer without any content.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("empty-peer", include_str!("empty_peer.diff"))
    .what("A peer has neither a selector nor an ipBlock.")
    .why(
        "The API server refuses it, because it could mean \"every peer\" or \"no peer\". For every peer, leave \
         `from` or `to` empty; for every pod of the namespace, write `podSelector: {}`.",
    );

/// Points at the peer.
pub(crate) fn at(origin: FieldOrigin) -> Diagnostic {
    Diagnostic::at(&CODE, origin, "the peer is empty").label("selects no peer").help(
        "write `podSelector: {}` for every pod of this namespace, `namespaceSelector: {}` for every pod, \
         or remove the whole list to match every peer",
    )
}
