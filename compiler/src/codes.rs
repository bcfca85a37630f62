//! Every code there is, for `weir explain-code` and for the tests that hold the documentation true.

use crate::diagnostic::Code;

/// All codes, sorted by name.
pub const ALL: &[&Code] = &[];
