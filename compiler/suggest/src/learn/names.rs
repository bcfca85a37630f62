//! Names of learned policies.
//!
//! Invariant: no learned policy has the name of a NetworkPolicy of the input. `kubectl apply` would replace that policy
//! with one in audit mode, which denies nothing.

use std::collections::BTreeSet;

use weir_objects::k8s::{Body, Object};

/// Names in use, with their namespaces.
#[derive(Default)]
pub(crate) struct PolicyNames(BTreeSet<(String, String)>);

impl PolicyNames {
    /// The names of the NetworkPolicies of the input.
    pub(crate) fn of(objects: &[Object]) -> Self {
        let policies = objects.iter().filter(|it| matches!(it.body, Body::NetworkPolicy(_)));
        Self(policies.map(|it| (it.meta.namespace.to_string(), it.meta.name.clone())).collect())
    }

    /// A name that is not in use, with a number if needed. From now on it is in use.
    pub(crate) fn free(&mut self, namespace: &str, workload: &str) -> String {
        let base = format!("learned-{workload}");
        let numbered = std::iter::once(base.clone()).chain((2..).map(|number| format!("{base}-{number}")));
        let mut free = numbered.filter(|name| self.0.insert((namespace.to_owned(), name.clone())));
        free.next().unwrap_or(base)
    }
}
