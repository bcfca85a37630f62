//! The kernel of this machine, through the runtime.

use std::net::IpAddr;
use std::path::PathBuf;

use weir_compiler::classify::PeerId;
use weir_runtime::runtime::{Access, Attached, Request, Runtime};
use weir_runtime::{Error, Now, Way};

use super::{Enforce, Installed, Survey, Trouble, Wanted};
use crate::watch::follow::chain;

/// Enforcement under a directory of pins. What is there already is adopted, and stays when the agent ends.
#[derive(Debug)]
pub(crate) struct Kernel {
    bpffs: PathBuf,
    way: Option<Way>,
    /// Opened with the first use, and again after a failure: until then another agent may hold it.
    runtime: Option<Runtime>,
}

impl Kernel {
    pub(crate) fn new(bpffs: PathBuf, way: Option<Way>) -> Self {
        Self { bpffs, way, runtime: None }
    }

    fn runtime(&mut self) -> Result<&Runtime, Error> {
        match &mut self.runtime {
            Some(runtime) => Ok(runtime),
            none => Ok(none.insert(Runtime::open(&self.bpffs, Access::Change)?)),
        }
    }

    /// Endpoints of pods that the artifact does not know (they went while no agent was there) are given up first.
    fn attach(&mut self, wanted: &Wanted<'_>, file: &[u8]) -> Result<Attached, Error> {
        let request = Request {
            artifact: wanted.artifact,
            file,
            endpoints: wanted.endpoints.to_vec(),
            uplinks: Vec::new(),
            way: self.way,
            keep: None,
        };
        let runtime = self.runtime()?;
        loop {
            match runtime.attach(&request) {
                Err(Error::UnknownPod(pod)) => _ = runtime.detach(Some(&pod))?,
                result => return result,
            }
        }
    }

    fn epoch(&mut self) -> Result<u32, Error> {
        Ok(self.runtime()?.status()?.generation.map_or(0, |generation| generation.epoch))
    }
}

impl Enforce for Kernel {
    fn install(&mut self, wanted: &Wanted<'_>) -> Result<Installed, Trouble> {
        let file = wanted.artifact.to_bytes().map_err(|error| Trouble(error.to_string()))?;
        let attached = self.attach(wanted, &file);
        if matches!(attached, Ok(_) | Err(Error::Partial(_))) {
            self.runtime().and_then(Runtime::open_held).map_err(trouble)?;
        }
        match attached {
            Ok(Attached { generation, .. }) => Ok(Installed { epoch: generation.epoch, failed: Vec::new() }),
            Err(Error::Partial(failures)) => {
                // A pod whose interface has gone needs nothing any more.
                let failed = failures.into_iter().filter(|it| it.now != Now::Gone).map(|it| (it.pod, it.why)).collect();
                Ok(Installed { epoch: self.epoch().map_err(trouble)?, failed })
            }
            Err(error) => Err(trouble(error)),
        }
    }

    fn write(&mut self, changes: &[(IpAddr, Option<PeerId>)], again: bool) -> Result<(), Trouble> {
        let changes: Vec<_> = changes.iter().map(|(address, class)| (*address, class.map(|class| class.0))).collect();
        self.runtime().and_then(|runtime| runtime.write_addresses(&changes, again)).map_err(trouble)
    }

    fn rest(&mut self) -> Result<(), Trouble> {
        self.runtime().and_then(Runtime::reap).map_err(trouble)
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        let runtime = self.runtime().map_err(trouble)?;
        let repaired = runtime.mend().map_err(trouble)?;
        let status = runtime.status().map_err(trouble)?;
        let maps = status.maps.into_iter().map(|it| (it.name, it.entries, u64::from(it.max_entries))).collect();
        let counters = runtime.counters().map_err(trouble)?;
        let packets = counters.into_iter().map(|it| (it.direction, it.outcome, it.dropped, it.packets)).collect();
        let memory = runtime.memory().map_err(trouble)?;
        let lost = runtime.lost_records().map_err(trouble)?;
        Ok(Survey { repaired, drift: status.drift, packets, maps, memory, lost })
    }
}

fn trouble(error: Error) -> Trouble {
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    Trouble(format!("{}{hint}", chain(&error)))
}
