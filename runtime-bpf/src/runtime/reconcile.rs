//! Reconciles the kernel with the record: pins, points, entries. Does not touch objects that are as recorded.
//!
//! Order matters: an object in force is removed only after its successor is in place, and an endpoint's entry (without
//! which all packets are dropped) is written only after both of its programs are attached.
//!
//! This file has the order of the steps. The steps are in [`super::recorded_pins`], [`super::retired`],
//! [`super::endpoint_programs`], [`super::edge`], [`super::leaving`] and [`super::endpoint_entries`].

use weir_artifact::Artifact;
use weir_artifact::layout::config;

use super::endpoint_entries::Values;
use super::{EdgeFailure, Runtime};
use crate::error::{Error, Failure};
use crate::record::{EnforcedEndpoint, EnforcementRecord};
use crate::sys::known_interfaces::InterfacesByNumber;

/// The result of reconciling.
#[derive(Debug, Default)]
pub(crate) struct Reconciled {
    /// Endpoints that deviate from the record.
    pub(super) failures: Vec<Failure>,
    /// Endpoints whose interface is gone; they are forgotten.
    pub(super) gone: Vec<EnforcedEndpoint>,
    /// The deviations that were repaired, in words.
    pub(super) repaired: Vec<String>,
    /// The hooks where a switch did not find the programs of the generation before. They are counted already.
    pub(super) met: Vec<String>,
    /// Uplinks that deviate from the record.
    pub(super) edge_failures: Vec<EdgeFailure>,
    /// Uplinks whose drivers did not take the program in this operation, and why.
    pub(super) generic: Vec<EdgeFailure>,
    /// This host's interfaces, if they were listed.
    pub(super) interfaces: InterfacesByNumber,
    /// The error, if the file of the generation in force cannot be read. Entries were not compared then.
    pub(super) unreadable: Option<Error>,
}

impl Reconciled {
    /// Adds the failures of an operation, and the endpoints whose interfaces were gone.
    pub(super) fn add(&mut self, mut done: Self) {
        self.failures.append(&mut done.failures);
        self.gone.append(&mut done.gone);
        self.edge_failures.append(&mut done.edge_failures);
        self.generic.append(&mut done.generic);
    }
}

impl Runtime {
    /// Reconciles the kernel with the record. Changes of the record itself are written.
    pub(super) fn reconcile(
        &self,
        record: &mut EnforcementRecord,
        given: Option<&Artifact>,
    ) -> Result<Reconciled, Error> {
        let mut reconciled = Reconciled::default();
        // The interrupted switch comes first, because it decides which generation all later steps put in force.
        if record.next.is_some() {
            reconciled.repaired.push("a switch that was interrupted".to_owned());
            self.go_forward(record, &mut reconciled)?;
        }
        let loaded = self.current(record)?;
        reconciled.repaired.extend(self.place_pins_or_drop_spare(record)?);
        if let Some(loaded) = &loaded {
            self.pair_with_retired(record, loaded)?;
            self.set_config(loaded, config::EPOCH, loaded.generation.epoch)?;
            self.undo_moves(record, loaded)?;
            let found = self.find_gone(record, &mut reconciled)?;
            self.place_edge(record, loaded, &mut reconciled);
            self.place_programs(record, loaded, &found, &mut reconciled);
        }
        // Entries of leaving endpoints go before entries are written: a new endpoint can have the same interface
        // number.
        self.remove_leaving(record, loaded.as_ref(), &reconciled.failures)?;
        // Entries come after the programs. In the other order, packets in the direction of a program that is not
        // attached yet would pass while the other direction already lets connections through.
        if let Some(loaded) = &loaded {
            match self.open_endpoints(record, loaded, &Values::new(given), &mut reconciled) {
                // Its programs and maps are in force nevertheless.
                Err(unreadable @ Error::Unreadable { .. }) => reconciled.unreadable = Some(unreadable),
                other => other?,
            }
        }
        self.remove_stray_links(record)?;
        if !reconciled.repaired.is_empty() {
            record.repaired += reconciled.repaired.len() as u64;
            self.write_record(record)?;
        }
        let met = std::mem::take(&mut reconciled.met);
        reconciled.repaired.extend(met);
        Ok(reconciled)
    }
}

/// An error with its causes, in one line.
pub(super) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
