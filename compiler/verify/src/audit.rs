//! Verification of audit policies and lists, as if they were enforced.
//!
//! A program computes both verdicts of a new flow and reports where they differ. A word of its configuration makes it
//! act on the audit verdict instead. With that word set, the checks of enforced rules also check audit ones.

use weir_artifact::Artifact;
use weir_artifact::layout::{AUDIT_SHIFT, MapName, config, endpoint};
use weir_ebpf::bytes::put;

/// Whether audit policies would filter any endpoint of the artifact.
pub(super) fn is_in(artifact: &Artifact) -> bool {
    artifact.endpoints.iter().any(|local| flags(&local.value) >> AUDIT_SHIFT != 0)
}

/// A copy of the artifact whose programs act on the audit verdict.
pub(super) fn deciding(artifact: &Artifact) -> Artifact {
    let mut deciding = artifact.clone();
    let maps = deciding.maps.iter_mut().filter(|map| map.name == MapName::Config);
    // A word of the configuration, so the verified programs are byte by byte those that will run. A second pair of
    // programs for verification would prove something about programs that are never loaded.
    maps.for_each(|map| map.entries.edit_values(|_, value| put(value, config::AUDIT as usize, &1_u32.to_le_bytes())));
    for local in &mut deciding.endpoints {
        // An endpoint may be filtered by audit policies alone. Its flags in force would let every packet pass before
        // the audit verdict is computed.
        let flags = flags(&local.value) >> AUDIT_SHIFT;
        put(&mut local.value, endpoint::FLAGS as usize, &flags.to_le_bytes());
    }
    deciding
}

fn flags(value: &[u8]) -> u32 {
    let bytes = value.get(endpoint::FLAGS as usize..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
