//! `weir detach`: removes enforcement.

use super::Runtime;
use crate::closed;
use crate::error::{Doing as _, Error};
use crate::record::{EnforcedEndpoint, EnforcementRecord};

impl Runtime {
    /// Removes a pod's endpoints, or all. With the last endpoint, everything that is pinned is removed.
    pub fn detach(&self, pod: Option<&str>) -> Result<Vec<EnforcedEndpoint>, Error> {
        let leaving = self.detached(|| self.detach_here(|it| pod.is_none_or(|pod| it.pod == pod), pod.is_none()))?;
        match (pod, leaving.is_empty()) {
            (Some(pod), true) => Err(Error::NotAttached(pod.to_owned())),
            _ => Ok(leaving),
        }
    }

    /// Removes the endpoints of an agent that has ended, and opens the interfaces that it closed. Endpoints that `weir
    /// attach` attached stay enforced, unless `by_hand_too` is set. If no endpoint stays, everything that is pinned is
    /// removed, also at uplinks.
    pub fn uninstall(&self, by_hand_too: bool) -> Result<Vec<EnforcedEndpoint>, Error> {
        let leaving = self.detached(|| {
            let leaving = self.detach_here(|it| by_hand_too || it.is_agents(), true)?;
            closed::open_all(&self.system, self.pins.root())?;
            Ok(leaving)
        })?;
        // This fails if endpoints stay, or if the directory is a mount point.
        _ = self.system.remove_directory(self.pins.root());
        Ok(leaving)
    }

    fn detached(
        &self,
        operation: impl FnOnce() -> Result<Vec<EnforcedEndpoint>, Error>,
    ) -> Result<Vec<EnforcedEndpoint>, Error> {
        let leaving = self.kept_during(operation)?;
        if self.shared_record()?.is_none() {
            self.forget_kept();
        }
        Ok(leaving)
    }

    /// Removes the endpoints for which `leaves` returns true. If there is nothing to enforce and `is_all` is set, pins
    /// that have no record are removed too.
    fn detach_here(
        &self,
        leaves: impl Fn(&EnforcedEndpoint) -> bool,
        is_all: bool,
    ) -> Result<Vec<EnforcedEndpoint>, Error> {
        let Some(mut record) = self.read_record()? else {
            if is_all {
                self.remove_unrecorded()?;
            }
            return Ok(Vec::new());
        };
        self.check_namespace(&record)?;
        let (leaving, staying): (Vec<_>, Vec<_>) = record.endpoints.iter().cloned().partition(|it| leaves(it));
        if leaving.is_empty() && !(is_all && staying.is_empty()) {
            return Ok(leaving);
        }
        record.endpoints = staying.into();
        record.leaving.extend(leaving.iter().cloned());
        // From here on, the next operation continues the removal if this one fails.
        self.write_record(&record)?;
        if record.endpoints.is_empty() {
            self.remove_everything(&mut record)?;
        } else {
            self.reconcile(&mut record, None)?;
        }
        Ok(leaving)
    }

    /// Handles a missing record: links may still be pinned.
    fn remove_unrecorded(&self) -> Result<(), Error> {
        let links = self.pins.links();
        for name in self.system.list(&links).doing("list links")?.names() {
            self.system.unpin(&links.join(name)).doing("remove a link")?;
        }
        self.remove_pins()
    }

    /// Removes the programs first: without them, the other objects have no effect.
    fn remove_everything(&self, record: &mut EnforcementRecord) -> Result<(), Error> {
        self.leave_uplinks(record, |_| true)?;
        self.remove_leaving(record, None, &[])?;
        self.remove_pins()
    }

    fn remove_pins(&self) -> Result<(), Error> {
        for directory in self.pins.directories() {
            let files = self.system.list(&directory).doing(format!("list {}", directory.display()))?;
            for name in files.names() {
                let path = directory.join(name);
                self.system.unpin(&path).doing(format!("remove {}", path.display()))?;
            }
        }
        closed::open_interfaces(&self.system, self.pins.root(), |_| true)?;
        closed::remove_directories(&self.system, self.pins.root())?;
        // The record goes last: as long as it exists, the next `detach` knows which interfaces to clean.
        for path in [self.pins.new_record(), self.pins.record()] {
            self.system.unpin(&path).doing(format!("remove {}", path.display()))?;
        }
        for directory in self.pins.directories() {
            self.system.remove_directory(&directory).doing(format!("remove {}", directory.display()))?;
        }
        Ok(())
    }
}
