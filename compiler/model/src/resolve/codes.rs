//! Findings about objects that contradict each other.

pub(super) mod duplicate_address;
