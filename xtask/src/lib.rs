//! Developer tasks, as far as tests share them.

pub mod apiserver;
pub mod debian;
pub mod deploy;
pub mod image;
pub mod process;
pub mod simulated;
