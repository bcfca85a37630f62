//! Prepares the spare while there is nothing else to do.
//!
//! Problem: the first change after a start, or after a change of the programs, finds no spare with the same code. To
//! load a second copy of the programs takes a tenth of a second, for which that change and all others wait. The spare
//! of an earlier process is slow too: its tables must be read from the kernel, because their content is not known.
//! Strategy: when an agent has nothing else to do, it makes a spare with the content of the generation in force. The
//! next change writes a difference into it, as into any other spare.
//! Invariants: the generation in force and its hooks are not touched, and no packet meets the spare. If the process
//! dies before the record names the new spare, its pins belong to no generation, and `place_pins` removes them. The
//! spare that the record names then may lack pins or have other content, as after a switch that died. Tests:
//! `runtime-bpf/tests/enforce/prepared.rs`.

use weir_artifact::Artifact;

use super::attach::{digest, open_entries};
use super::{EdgeState, Runtime};
use crate::error::Error;
use crate::generation::{self, GenerationSource};
use crate::record::{EnforcementRecord, KernelGeneration};

impl Runtime {
    /// For an agent: makes a spare with the content of the generation in force, whose artifact this is, if the next
    /// change could not use the present one as it is. Returns whether one was made. After an error, the next change
    /// loads its programs.
    pub fn prepare_spare(&self, artifact: &Artifact, file: &[u8]) -> Result<bool, Error> {
        if !self.spares || self.written.is_none() {
            return Ok(false);
        }
        self.kept_during(|| self.prepare_spare_here(artifact, file))
    }

    fn prepare_spare_here(&self, artifact: &Artifact, file: &[u8]) -> Result<bool, Error> {
        let mut record = self.record()?;
        let restored = self.reap_retired(&mut record)?;
        self.report_later(restored);
        let digest = digest(artifact)?;
        let of_artifact = |it: &&KernelGeneration| it.digest == digest && !it.code.is_empty();
        let Some(current) = record.current.as_ref().filter(of_artifact) else { return Ok(false) };
        if record.next.is_some() || self.may_drop_spare(&record)? {
            return Ok(false);
        }
        let source = GenerationSource {
            artifact,
            file,
            digest,
            code: current.code.clone(),
            keep: current.keep,
            epoch: record.last_epoch,
            stamp: KernelGeneration::free_stamp(&record),
            endpoints: record.endpoints.len() as u32,
            has_uplinks: !record.uplinks.is_empty(),
            own: self.own_addresses(&artifact.endpoints, &record.endpoints)?,
            open: open_entries(&record, artifact, &record.endpoints),
            written: self.written.as_ref(),
        };
        if matches!(generation::is_prepared(&self.objects(), &mut record, &source), Ok(true)) {
            return Ok(false);
        }
        let made = self.make(&mut record, &source);
        // After an error too: the spare before may be gone, and the pins of an unfinished one are removed.
        record.spare = made.as_ref().ok().map(|it| it.generation.clone());
        self.write_record(&record)?;
        let restored = self.place_pins_or_drop_spare(&mut record)?;
        if !restored.is_empty() {
            record.repaired += restored.len() as u64;
            self.report_later(restored);
            self.write_record(&record)?;
        }
        made.map(|_| true)
    }

    /// Whether the next change may drop the spare: it does if it cannot repair an uplink. See `adopt`.
    fn may_drop_spare(&self, record: &EnforcementRecord) -> Result<bool, Error> {
        let is_right = |state: EdgeState| matches!(state, EdgeState::Enforced | EdgeState::Idle);
        Ok(!self.uplink_states(record)?.iter().all(|it| is_right(it.state)))
    }
}
