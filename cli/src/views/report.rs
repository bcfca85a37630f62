//! The parts of the HTML report (`views/html.rs` puts them together).
//!
//! The first screen and the list are HTML, so they can be read at once and without scripts ([`head`], [`list`]). The
//! matrix and the graph are drawn by the page's script from tables ([`tables`]), only as far as they are visible.

pub(crate) mod ends;
pub(crate) mod exposure;
pub(crate) mod head;
pub(crate) mod list;
pub(crate) mod markup;
pub(crate) mod source_links;
pub(crate) mod tables;
