//! The kernel of this machine, through the runtime.

use std::net::IpAddr;
use std::path::PathBuf;

use weir_classes::PeerId;
use weir_classes::departed::EndedService;
use weir_runtime::runtime::{Attached, EndedFlows, ExactPods, PinAccess, Request, Runtime};
use weir_runtime::{EnforcedEndpoint, Error, HookKind, KernelGeneration, StateAfterFailure};

use super::{Enforce, HookCheck, Installed, Left, Survey, Trouble, Wanted};
use crate::watch::follow::chain;

/// Enforcement with pins under a directory. Existing pins are adopted, and all pins stay when the agent ends.
#[derive(Debug)]
pub(crate) struct Kernel {
    bpffs: PathBuf,
    way: Option<HookKind>,
    /// Opened on first use. If that fails, the next use tries again: another agent may have held the directory.
    runtime: Option<Runtime>,
}

impl Kernel {
    pub(crate) fn new(bpffs: PathBuf, way: Option<HookKind>) -> Self {
        Self { bpffs, way, runtime: None }
    }

    fn runtime(&mut self) -> Result<&Runtime, Error> {
        match &mut self.runtime {
            Some(runtime) => Ok(runtime),
            none => Ok(none.insert(Runtime::open(&self.bpffs, PinAccess::Change)?.one_by_one().keeping()?)),
        }
    }

    fn attach(&mut self, wanted: &Wanted<'_>, file: &[u8]) -> Result<Attached, Error> {
        let request = Request {
            artifact: wanted.artifact,
            file,
            endpoints: wanted.endpoints.to_vec(),
            uplinks: Vec::new(),
            way: self.way,
            keep: None,
            exact: Some(ExactPods { closed: wanted.closed.to_vec(), uids: wanted.uids.clone() }),
        };
        self.runtime()?.attach(&request)
    }

    fn epoch(&mut self) -> Result<u32, Error> {
        self.runtime()?.epoch()
    }
}

impl Enforce for Kernel {
    fn left(&mut self) -> Vec<Left> {
        let attached = self.runtime().and_then(Runtime::attached).unwrap_or_default();
        let known = |it: EnforcedEndpoint| {
            let EnforcedEndpoint { pod, uid, interface, ifindex, closed, .. } = it;
            Some(Left { pod, uid: uid.filter(|_| !closed)?, interface, ifindex })
        };
        attached.into_iter().filter_map(known).collect()
    }

    fn install(&mut self, wanted: &Wanted<'_>) -> Result<Installed, Trouble> {
        let file = wanted.artifact.to_bytes().map_err(|error| Trouble(error.to_string()))?;
        let before = self.epoch().map_err(trouble)?;
        let attached = self.attach(wanted, &file);
        if matches!(attached, Ok(_) | Err(Error::Partial(_))) {
            self.runtime().and_then(Runtime::open_closed_interfaces).map_err(trouble)?;
        }
        match attached {
            Ok(Attached { generation: KernelGeneration { epoch, .. }, .. }) => {
                Ok(Installed { epoch, is_new: epoch != before, failed: Vec::new() })
            }
            Err(Error::Partial(failures)) => {
                // A pod whose interface is gone needs no enforcement any more.
                let failed = failures
                    .into_iter()
                    .filter(|it| it.now != StateAfterFailure::Gone)
                    .map(|it| (it.pod, it.why))
                    .collect();
                let epoch = self.epoch().map_err(trouble)?;
                Ok(Installed { epoch, is_new: epoch != before, failed })
            }
            Err(error) => Err(trouble(error)),
        }
    }

    fn write(&mut self, changes: &[(IpAddr, Option<PeerId>)], again: bool) -> Result<(), Trouble> {
        let changes: Vec<_> = changes.iter().map(|(address, class)| (*address, class.map(|class| class.0))).collect();
        self.runtime().and_then(|runtime| runtime.write_addresses(&changes, again)).map_err(trouble)
    }

    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, Trouble> {
        let flows = |it: &EndedService| EndedFlows {
            pod: it.pod.clone(),
            remote: it.address,
            port: it.port,
            protocol: it.protocol.number(),
        };
        let ended: Vec<EndedFlows> = ended.iter().map(flows).collect();
        self.runtime().and_then(|runtime| runtime.end_flows(&ended)).map_err(trouble)
    }

    fn rest(&mut self) -> Result<(), Trouble> {
        self.runtime().and_then(Runtime::reap).map_err(trouble)
    }

    fn look(&mut self) -> Result<HookCheck, Trouble> {
        self.runtime().and_then(Runtime::check_hooks).map_err(trouble)
    }

    fn close(&mut self, interface: &str) -> Result<(), Trouble> {
        weir_runtime::closed::close_interface(&self.bpffs, interface).map_err(trouble)
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        let runtime = self.runtime().map_err(trouble)?;
        let repaired = runtime.repair().map_err(trouble)?;
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
