//! `weir detach`: removes enforcement.

use super::Runtime;
use crate::closed;
use crate::error::{Doing as _, Error};
use crate::record::{EnforcedEndpoint, EnforcementRecord};

impl Runtime {
    /// Removes a pod's endpoints, or all. With the last endpoint, everything that is pinned is removed.
    pub fn detach(&self, pod: Option<&str>) -> Result<Vec<EnforcedEndpoint>, Error> {
        let leaving = self.kept_during(|| self.detach_here(pod))?;
        if EnforcementRecord::read(&self.system, &self.pins)?.is_none() {
            self.forget_kept();
        }
        Ok(leaving)
    }

    fn detach_here(&self, pod: Option<&str>) -> Result<Vec<EnforcedEndpoint>, Error> {
        let Some(mut record) = EnforcementRecord::read(&self.system, &self.pins)? else {
            return self.nothing(pod);
        };
        self.check_namespace(&record)?;
        let (leaving, staying) = record.endpoints.drain(..).partition(|it| pod.is_none_or(|pod| it.pod == pod));
        record.endpoints = staying;
        if let (Some(pod), true) = (pod, Vec::is_empty(&leaving)) {
            return Err(Error::NotAttached(pod.to_owned()));
        }
        record.leaving.extend(leaving.iter().cloned());
        // From here on, the next operation continues the removal if this one fails.
        record.write(&self.system, &self.pins)?;
        if record.endpoints.is_empty() {
            self.remove_everything(&mut record)?;
        } else {
            self.reconcile(&mut record, None)?;
        }
        Ok(leaving)
    }

    /// Handles a missing record: links may still be pinned.
    fn nothing(&self, pod: Option<&str>) -> Result<Vec<EnforcedEndpoint>, Error> {
        let links = self.pins.links();
        let names = self.system.list(&links).doing("list links")?;
        if let Some(pod) = pod {
            return Err(Error::NotAttached(pod.to_owned()));
        }
        for name in names {
            self.system.unpin(&links.join(name)).doing("remove a link")?;
        }
        self.remove_pins()?;
        Ok(Vec::new())
    }

    /// Removes the programs first: without them, the other objects have no effect.
    fn remove_everything(&self, record: &mut EnforcementRecord) -> Result<(), Error> {
        self.leave_uplinks(record, |_| true)?;
        self.remove_leaving(record, None, &[])?;
        self.remove_pins()
    }

    fn remove_pins(&self) -> Result<(), Error> {
        for directory in self.pins.directories() {
            let names = self.system.list(&directory).doing(format!("list {}", directory.display()))?;
            for name in names {
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
