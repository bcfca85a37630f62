//! Draws findings for people, for programs, for code scanning and for GitHub, all from one list.

pub(crate) mod github;
pub(crate) mod json;
pub(crate) mod sarif;
pub(crate) mod text;
