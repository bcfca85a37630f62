//! The digest of an artifact's programs, which decides whether programs in the kernel are those of an artifact.
//!
//! Problem: most artifacts of an agent have the programs of the one before, and the digest is a part of the CPU time of
//! a small change. Strategy: an agent keeps the programs of the last artifact. The next one shares their instructions
//! (`weir_codegen::last`), so only the pointers to these are compared, and the short tables of lines and map uses.

use std::sync::{Mutex, PoisonError};

use weir_artifact::{Artifact, ArtifactProgram, LineTable};
use weir_ebpf::asm::Assembled;

use super::Runtime;

/// The parts of an artifact that [`Artifact::code_digest`] depends on, and the digest.
#[derive(Debug)]
struct DigestedCode {
    programs: [ArtifactProgram; 2],
    edge: Option<Assembled>,
    lines: LineTable,
    digest: String,
}

impl DigestedCode {
    fn is_of(&self, artifact: &Artifact) -> bool {
        self.programs == artifact.programs && self.edge == artifact.edge && self.lines == artifact.lines
    }
}

/// The programs of the last artifact.
#[derive(Debug, Default)]
pub(crate) struct LatestCode(Mutex<Option<DigestedCode>>);

impl Runtime {
    /// The digest of the artifact's programs.
    pub(super) fn code_of(&self, artifact: &Artifact) -> String {
        let digest = || artifact.code_digest().to_string();
        let Some(latest) = &self.latest_code else { return digest() };
        let mut latest = latest.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = latest.as_ref().filter(|known| known.is_of(artifact)) {
            return known.digest.clone();
        }
        let digest = digest();
        let (programs, edge, lines) = (artifact.programs.clone(), artifact.edge.clone(), artifact.lines.clone());
        *latest = Some(DigestedCode { programs, edge, lines, digest: digest.clone() });
        digest
    }
}
