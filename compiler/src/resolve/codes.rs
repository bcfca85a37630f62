//! What can be wrong with how objects fit together.

pub(super) mod duplicate_address;
