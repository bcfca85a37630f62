//! Valid, and probably not what was meant.

use crate::diagnostic::Diagnostics;
use crate::k8s::Object;
use crate::model::Cluster;

/// Runs every lint.
pub fn lint(objects: &[Object], cluster: &Cluster) -> Diagnostics {
    let _ = (objects, cluster);
    Diagnostics::new()
}
