//! Objects → [`Cluster`]: every name becomes a number, everything is sorted.

use crate::diagnostic::Diagnostics;
use crate::k8s::Object;
use crate::model::{Assumptions, Cluster};

/// Puts the objects together. Reports everything and stops at nothing.
pub fn resolve(objects: &[Object], assume: Assumptions) -> (Cluster, Diagnostics) {
    let _ = objects;
    (Cluster { assume, ..Cluster::default() }, Diagnostics::new())
}
