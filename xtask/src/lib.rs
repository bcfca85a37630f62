//! The parts of the developer tasks that tests use too.

pub mod apiserver;
pub mod book;
pub mod chart;
pub mod debian;
pub mod deploy;
pub mod dist;
pub mod generate;
pub mod helm;
pub mod image;
pub mod process;
pub mod simulated;
