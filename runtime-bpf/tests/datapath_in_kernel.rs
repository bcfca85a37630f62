//! The datapath's facts, asked of the running kernel: the same files as the compiler's own test, on another machine.
//!
