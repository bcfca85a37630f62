//! Kubernetes network policies as a library: [`load`], [`check`], [`ask`], [`diff()`], [`compile`], [`verify`].
//!
//! ```text
//!  texts ──load──▶ Policies ──check──▶ findings with lines
//!                     │
//!                     ├──ask──▶ the verdict on one flow, with the rules that decide
//!                     ├──diff──▶ every connection that a change allows or denies
//!                     └──compile──▶ artifact ──verify──▶ differences from the policies
//! ```
//!
//! Problem: a program that wants an answer about policies would have to run `weir` and read its output, or put the
//! compiler's stages together itself and repeat the refusals that make an answer safe. Strategy: six functions over one
//! value. [`load`] accepts every input; the functions that answer refuse an input with errors, with policies of kinds
//! that Weir does not read, or without objects, because their answer would be about other policies. Modules that only
//! the command line uses are hidden from the documentation: they change without notice.
//! Invariants: nothing here reads a file, the network, a clock or the environment; `weir` answers with the same code
//! ([`question`], [`explanation`], [`findings`]), so both give the same answers. `cli/tests` has the tests of them.
//!
//! ```
//! use weir_policy::{LoadOptions, ask, check, compile, diff, load, manifest, verify};
//!
//! # fn main() -> Result<(), weir_policy::PolicyError> {
//! let text = |port: u16| format!("
//! {{apiVersion: v1, kind: Pod, metadata: {{name: web, namespace: shop, labels: {{app: web}}}}, status: {{podIP: 10.0.0.1}}}}
//! ---
//! {{apiVersion: v1, kind: Pod, metadata: {{name: db, namespace: shop, labels: {{app: db}}}}, status: {{podIP: 10.0.0.2}}}}
//! ---
//! apiVersion: networking.k8s.io/v1
//! kind: NetworkPolicy
//! metadata: {{name: db, namespace: shop}}
//! spec:
//!   podSelector: {{matchLabels: {{app: db}}}}
//!   policyTypes: [Ingress]
//!   ingress:
//!     - from: [{{podSelector: {{matchLabels: {{app: web}}}}}}]
//!       ports: [{{port: {port}}}]
//! ");
//! let before = load(vec![manifest("shop.yaml", text(5432))], &LoadOptions::default());
//! assert_eq!(check(&before)?.summary.severities.errors, 0);
//!
//! // One flow: the verdict, and the lines that decide.
//! let answer = ask(&before, "shop/web", "shop/db", "5433/tcp")?;
//! assert_eq!(answer.verdict, weir_policy::answers::VerdictOrDepends::Deny);
//! assert_eq!(answer.packets[0].ingress.nearest.as_ref().map(Vec::len), Some(1));
//!
//! // A change: what it newly allows, and what it no longer allows.
//! let after = load(vec![manifest("shop.yaml", text(5433))], &LoadOptions::default());
//! assert_eq!(diff(&before, &after)?.rows.len(), 2);
//! assert!(diff(&before, &before)?.rows.is_empty());
//!
//! // The programs and tables for the kernel, and the proof that they enforce these policies and no others.
//! let artifact = compile(&before, None)?;
//! assert!(verify(&artifact, &before)?.is_verified());
//! assert!(!verify(&artifact, &after)?.is_verified());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod answers;
#[cfg(feature = "serde")]
pub mod apply;
#[doc(hidden)]
pub mod endpoint_lookup;
#[doc(hidden)]
pub mod explanation;
#[doc(hidden)]
pub mod findings;
mod library;
#[doc(hidden)]
pub mod locator;
mod policies;
#[doc(hidden)]
pub mod possible_pods;
#[doc(hidden)]
pub mod question;
#[doc(hidden)]
pub mod rule_mismatch;
#[doc(hidden)]
pub mod similar_name;
#[doc(hidden)]
pub mod verdict_reasons;
#[doc(hidden)]
pub mod witness;

pub use library::{ask, check, compile, diff, verify};
pub use policies::{LoadOptions, Policies, PolicyError, load, manifest};
pub use weir_analysis::diff::Diff;
pub use weir_artifact::Artifact;
pub use weir_model::Assumptions;
pub use weir_objects::decode::{Input, InputKind};
pub use weir_verify::VerifyReport;

/// The example of docs/library.md is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryPage;
