//! All diagnostic codes, for `weir explain-code` and for the tests that check their documentation.

use weir_objects::diagnostic::Code;
use crate as lint;
use weir_model::resolve;
use weir_objects::decode;

/// All codes, sorted by name.
pub fn all() -> Vec<&'static Code> {
    let mut all = [decode::CODES, resolve::CODES, lint::CODES].concat();
    all.sort_by_key(|code| code.name);
    all
}
