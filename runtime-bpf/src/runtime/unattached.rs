//! The local endpoints of an artifact that are attached nowhere: nothing filters their packets.

use std::collections::BTreeSet;

use serde::Serialize;
use weir_artifact::layout::{FILTERS_EGRESS, FILTERS_INGRESS, endpoint};
use weir_artifact::{Artifact, NamedEndpoint};

use crate::record::EnforcedEndpoint;

/// A local endpoint that is not attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnattachedEndpoint {
    /// `namespace/name`
    pub pod: String,
    /// Whether the policies can deny packets to it.
    pub ingress: bool,
    /// Whether the policies can deny packets from it.
    pub egress: bool,
}

impl UnattachedEndpoint {
    fn of(endpoint: &NamedEndpoint) -> Self {
        let flags = endpoint.value.get(endpoint::FLAGS as usize..).and_then(|it| it.first_chunk());
        let flags = flags.map_or(0, |it| u32::from(u16::from_le_bytes(*it)));
        Self {
            pod: format!("{}/{}", endpoint.namespace, endpoint.name),
            ingress: flags & FILTERS_INGRESS != 0,
            egress: flags & FILTERS_EGRESS != 0,
        }
    }

    /// Whether the policies can deny packets in any direction.
    pub fn is_isolated(&self) -> bool {
        self.ingress || self.egress
    }
}

/// The local endpoints of the artifact that are not among the attached ones: the isolated ones first, then by name.
pub fn unattached(artifact: &Artifact, attached: &[EnforcedEndpoint]) -> Vec<UnattachedEndpoint> {
    let attached: BTreeSet<&str> = attached.iter().map(|it| it.pod.as_str()).collect();
    let all = artifact.endpoints.iter().map(UnattachedEndpoint::of);
    let mut missing: Vec<UnattachedEndpoint> = all.filter(|it| !attached.contains(it.pod.as_str())).collect();
    missing.sort_by(|a, b| (!a.is_isolated(), &a.pod).cmp(&(!b.is_isolated(), &b.pod)));
    missing
}
