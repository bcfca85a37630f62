//! Valid, and probably not what was meant.

use crate::diagnostic::{Code, Diagnostics};
use crate::k8s::Object;
use crate::model::Cluster;

/// The codes of this stage.
pub const CODES: &[&Code] = &[];

/// Runs every lint.
pub fn lint(objects: &[Object], cluster: &Cluster) -> Diagnostics {
    let _ = (objects, cluster);
    Diagnostics::new()
}
