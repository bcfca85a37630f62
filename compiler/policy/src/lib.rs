//! Kubernetes network policies as a library.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod answers;
pub mod endpoint_lookup;
pub mod explanation;
pub mod findings;
pub mod locator;
pub mod possible_pods;
pub mod question;
pub mod rule_mismatch;
pub mod similar_name;
pub mod verdict_reasons;
pub mod witness;
