//! The kernel of this machine, through the runtime.

use std::path::PathBuf;
use std::time::Duration;

use weir_artifact::Artifact;
use weir_classes::departed::EndedService;
use weir_runtime::runtime::{
    Attached, ComingPod, Deviations, EndedFlows, ExactPods, GRACE, LeavingPod, PinAccess, Request, Runtime,
};
use weir_runtime::sys::ChangedInterfaces;
use weir_runtime::{EnforcedEndpoint, Error, HookKind, KernelGeneration, StateAfterFailure};

use super::{
    AddressChange, CheckedHooks, Enforce, EnforceError, GonePod, InstallRequest, Installed, KernelSnapshot, NewPod,
    PodAtInterface, PodFailure, RecordedPod,
};
use crate::failure::chain;

/// Enforcement with pins under a directory. Existing pins are adopted, and all pins stay when the agent ends.
#[derive(Debug)]
pub(crate) struct KernelEnforcer {
    bpffs: PathBuf,
    way: Option<HookKind>,
    /// Opened on first use. If that fails, the next use tries again: another agent may have held the directory.
    runtime: Option<Runtime>,
    /// The last artifact's file, whose memory the next one takes.
    file: Vec<u8>,
}

impl KernelEnforcer {
    pub(crate) fn new(bpffs: PathBuf, way: Option<HookKind>) -> Self {
        Self { bpffs, way, runtime: None, file: Vec::new() }
    }

    fn runtime(&mut self) -> Result<&Runtime, Error> {
        match &mut self.runtime {
            Some(runtime) => Ok(runtime),
            none => Ok(none.insert(Runtime::open(&self.bpffs, PinAccess::Change)?.one_by_one().keeping()?)),
        }
    }

    fn attach(&mut self, request: &InstallRequest<'_>) -> Result<Attached, Error> {
        let pairs = |pods: &[PodAtInterface]| -> Vec<(String, String)> {
            pods.iter().map(|it| (it.pod.clone(), it.interface.clone())).collect()
        };
        let file = std::mem::take(&mut self.file);
        let attach = Request {
            artifact: request.artifact,
            file: &file,
            endpoints: pairs(request.endpoints),
            uplinks: Vec::new(),
            way: self.way,
            keep: None,
            exact: Some(ExactPods { closed: pairs(request.closed), uids: request.uids.clone() }),
            extends: request.extends,
        };
        let attached = self.runtime().and_then(|runtime| runtime.attach(&attach));
        self.file = file;
        attached
    }

    fn epoch(&mut self) -> Result<u32, Error> {
        self.runtime()?.epoch()
    }
}

impl Enforce for KernelEnforcer {
    fn recorded_pods(&mut self) -> Vec<RecordedPod> {
        let attached = self.runtime().and_then(Runtime::attached).unwrap_or_default();
        let known = |it: EnforcedEndpoint| {
            let EnforcedEndpoint { pod, uid, interface, ifindex, closed, .. } = it;
            Some(RecordedPod { pod, uid: uid.filter(|_| !closed)?, interface, ifindex })
        };
        attached.into_iter().filter_map(known).collect()
    }

    fn has_generation(&mut self) -> bool {
        // If the record cannot be read, there is one: nothing may take it out of force by mistake.
        self.epoch().map_or(true, |epoch| epoch != 0)
    }

    fn install(&mut self, request: &InstallRequest<'_>) -> Result<Installed, EnforceError> {
        request.artifact.write_to(&mut self.file).map_err(|error| EnforceError::new(error.to_string()))?;
        let before = self.epoch().map_err(enforce_error)?;
        let attached = self.attach(request);
        if matches!(attached, Ok(_) | Err(Error::Partial(_))) {
            self.runtime().and_then(Runtime::open_closed_interfaces).map_err(enforce_error)?;
        }
        match attached {
            Ok(Attached { generation: KernelGeneration { epoch, .. }, is_extended, repaired, .. }) => {
                Ok(Installed { epoch, is_new: epoch != before, is_extended, failed: Vec::new(), repaired })
            }
            Err(Error::Partial(failures)) => {
                // A pod whose interface is gone needs no enforcement any more.
                let failures = failures.into_iter().filter(|it| it.now != StateAfterFailure::Gone);
                let failed = failures.map(|it| PodFailure { pod: it.pod, why: it.why }).collect();
                let epoch = self.epoch().map_err(enforce_error)?;
                Ok(Installed { epoch, is_new: epoch != before, is_extended: false, failed, repaired: Vec::new() })
            }
            Err(error) => Err(enforce_error(error)),
        }
    }

    fn write_addresses(&mut self, changes: &[AddressChange], judge_again: bool) -> Result<(), EnforceError> {
        let changes: Vec<_> = changes.iter().map(|it| (it.address, it.class.map(|class| class.0))).collect();
        self.runtime().and_then(|runtime| runtime.write_addresses(&changes, judge_again)).map_err(enforce_error)
    }

    fn add_pod(&mut self, pod: &NewPod) -> Result<u32, EnforceError> {
        let NewPod { at, uid, ifindex, addresses, like, subject } = pod.clone();
        let PodAtInterface { pod, interface } = at;
        let pod = ComingPod { pod, uid, interface, ifindex, addresses, like, subject: subject.0 };
        let way = self.way;
        let generation = self.runtime().and_then(|runtime| runtime.add_pod(&pod, way)).map_err(enforce_error)?;
        Ok(generation.epoch)
    }

    fn remove_pods(&mut self, pods: &[GonePod]) -> Result<(), EnforceError> {
        let leaving = |it: &GonePod| LeavingPod { pod: it.pod.clone(), is_gone: it.is_deleted };
        let pods: Vec<LeavingPod> = pods.iter().map(leaving).collect();
        self.runtime().and_then(|runtime| runtime.remove_pods(&pods)).map_err(enforce_error)
    }

    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, EnforceError> {
        let flows = |it: &EndedService| EndedFlows {
            pod: it.pod.clone(),
            remote: it.address,
            port: it.port,
            protocol: it.protocol.number(),
        };
        let ended: Vec<EndedFlows> = ended.iter().map(flows).collect();
        self.runtime().and_then(|runtime| runtime.end_flows(&ended)).map_err(enforce_error)
    }

    fn pause(&self) -> Duration {
        GRACE
    }

    fn is_replaced_in_use(&self) -> bool {
        self.runtime.as_ref().is_some_and(Runtime::is_retired_in_use)
    }

    fn separate_replaced(&mut self) -> Result<(), EnforceError> {
        self.runtime().and_then(Runtime::separate).map_err(enforce_error)
    }

    fn remove_replaced(&mut self) -> Result<(), EnforceError> {
        self.runtime().and_then(Runtime::reap).map_err(enforce_error)
    }

    /// The file is still that of the last installation.
    fn prepare_spare(&mut self, artifact: &Artifact) -> Result<(), EnforceError> {
        let file = std::mem::take(&mut self.file);
        let prepared = self.runtime().and_then(|runtime| runtime.prepare_spare(artifact, &file));
        self.file = file;
        prepared.map(drop).map_err(enforce_error)
    }

    fn check_hooks(&mut self, of: &ChangedInterfaces) -> Result<CheckedHooks, EnforceError> {
        let found = self.runtime().and_then(|runtime| match of {
            ChangedInterfaces::Any => runtime.check_hooks(),
            ChangedInterfaces::These(changed) => runtime.check_hooks_of(changed),
        });
        let found = found.map_err(enforce_error)?;
        let astray = found.astray.into_iter().map(|(pod, why)| PodFailure { pod, why }).collect();
        Ok(CheckedHooks { repaired: found.repaired, astray })
    }

    fn close(&mut self, interface: &str) -> Result<(), EnforceError> {
        let closed = match &self.runtime {
            Some(runtime) => runtime.close_interface(interface),
            // This does not wait for another agent that still holds the directory.
            None => weir_runtime::closed::close_interface(&self.bpffs, interface),
        };
        closed.map_err(enforce_error)
    }

    fn reconcile(&mut self) -> Result<KernelSnapshot, EnforceError> {
        let runtime = self.runtime().map_err(enforce_error)?;
        let repaired = match runtime.repair() {
            // A table that holds a part of it has other content.
            Err(error @ Error::Unreadable { .. }) => {
                return Ok(KernelSnapshot { drift: vec![chain(&error)], wrong_tables: true, ..Default::default() });
            }
            repaired => repaired.map_err(enforce_error)?,
        };
        let Deviations { drift, maps, wrong_tables } = runtime.deviations().map_err(enforce_error)?;
        Ok(KernelSnapshot {
            repaired,
            packets: runtime.counters().map_err(enforce_error)?,
            drift,
            wrong_tables,
            maps,
            memory: runtime.memory().map_err(enforce_error)?,
            lost_records: runtime.lost_records().map_err(enforce_error)?,
        })
    }
}

fn enforce_error(error: Error) -> EnforceError {
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    EnforceError::new(format!("{}{hint}", chain(&error)))
}
