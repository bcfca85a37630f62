//! Prepares the spare while there is nothing else to do.
//!
//! Problem: the first change after a start, or after a change of the programs, finds no spare with the same code. To load
//! a second copy of the programs takes a tenth of a second, for which that change and all others wait. The spare of an
//! earlier process is slow too: its tables must be read from the kernel, because nobody knows what they contain.
//! Strategy: when an agent has nothing else to do, it makes a spare with the content of the generation in force. The next
//! change writes a difference into it, as into any other spare.
//! Invariants: the generation in force and its hooks are not touched, and no packet meets the spare. If the process dies
//! before the record names the spare, its pins belong to no generation, and `place_pins` removes them. Tests:
//! `runtime-bpf/tests/enforce/prepared.rs`.

use weir_artifact::Artifact;

use super::Runtime;
use super::attach::{digest, open_entries};
use crate::error::Error;
use crate::generation::GenerationSource;
use crate::record::{EnforcementRecord, KernelGeneration};

impl Runtime {
    /// For an agent: makes a spare with the content of the generation in force, whose artifact this is, if there is none
    /// that the next change could use as it is. After an error, the next change loads its programs.
    pub fn prepare_spare(&self, artifact: &Artifact, file: &[u8]) -> Result<(), Error> {
        self.kept_during(|| self.prepare_spare_here(artifact, file))
    }

    fn prepare_spare_here(&self, artifact: &Artifact, file: &[u8]) -> Result<(), Error> {
        let mut record = self.record()?;
        let mut restored = self.reap_retired(&mut record)?;
        let digest = digest(artifact)?;
        let keep = record.current.as_ref().filter(|current| current.digest == digest).map(|current| current.keep);
        if let Some(keep) = keep.filter(|_| record.next.is_none() && self.lacks_spare(&record)) {
            let source = GenerationSource {
                artifact,
                file,
                digest,
                code: artifact.code_digest().to_string(),
                keep,
                epoch: record.last_epoch,
                stamp: KernelGeneration::free_stamp(&record),
                endpoints: record.endpoints.len() as u32,
                has_uplinks: !record.uplinks.is_empty(),
                own: self.own_addresses(&artifact.endpoints, &record.endpoints)?,
                open: open_entries(&record, artifact, &record.endpoints),
                written: self.written.as_ref(),
            };
            let made = self.make(&mut record, &source);
            // After an error too: the spare before may be gone, and what was pinned of the new one is removed.
            record.spare = made.as_ref().ok().map(|it| it.generation.clone());
            self.write_record(&record)?;
            restored.extend(self.place_pins_or_drop_spare(&mut record)?);
            self.report_later(restored);
            return made.map(drop);
        }
        self.report_later(restored);
        Ok(())
    }

    /// Whether the next change would load programs or read tables, even if its programs are those in force.
    pub(super) fn lacks_spare(&self, record: &EnforcementRecord) -> bool {
        let Some(written) = self.written.as_ref().filter(|_| self.spares) else { return false };
        let Some(current) = record.current.as_ref().filter(|it| !it.code.is_empty()) else { return false };
        // A retired generation becomes the spare.
        let spare = record.retired.as_ref().map(|(retired, _)| retired).or(record.spare.as_ref());
        !spare.is_some_and(|spare| spare.code == current.code && written.knows(&spare.maps))
    }
}
