//! A policy in an API version that is not served.

use super::*;

/// Documentation of the finding.
pub static CODE: Code = Code::error("unserved-version", include_str!("unserved_version.diff"))
    .what("The object names an API version that is not served.")
    .why(
        "An API server refuses such an object, so the policy would not be in force. Skipping the object would \
         hide that.",
    );

/// `served` is the version to write instead.
pub(crate) fn at(origin: FieldOrigin, kind: &str, version: &str, served: &str) -> Diagnostic {
    Diagnostic::at(&CODE, origin, format!("`{kind}` is not served in `{version}`"))
        .label(format!("not an API version of {kind}"))
        .help(format!("write `apiVersion: {served}`"))
}
