//! The interface between the agent and the kernel: installing generations, and reading the kernel's state.

mod kernel;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use weir_artifact::Artifact;
use weir_artifact::entries::MapEntries;
use weir_classes::departed::EndedService;
use weir_classes::{PeerId, SubjectId};
use weir_runtime::observe::Counter;
use weir_runtime::runtime::Fill;
use weir_runtime::sys::ChangedInterfaces;

use crate::output_file;

pub(crate) use kernel::KernelEnforcer;

/// A generation, and the interfaces on which it should be in force.
#[derive(Debug)]
pub(crate) struct InstallRequest<'r> {
    pub(crate) artifact: &'r Artifact,
    /// The row table in force, if the artifact's only adds to it.
    pub(crate) extends: Option<&'r MapEntries>,
    /// All local pods whose interface is known. An attached interface that is not listed is closed, unless it certainly
    /// belongs to a pod in `uids`.
    pub(crate) endpoints: &'r [PodAtInterface],
    /// Interfaces to close: the pod has no rules of its own, or the interface may belong to several pods.
    pub(crate) closed: &'r [PodAtInterface],
    /// The UIDs of all local pods by `namespace/name`, including pods whose interface is not known.
    pub(crate) uids: &'r BTreeMap<String, String>,
}

/// A pod, and the name of its interface on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodAtInterface {
    /// `namespace/name`
    pub(crate) pod: String,
    pub(crate) interface: String,
}

/// A pod on which policy is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodFailure {
    /// `namespace/name`
    pub(crate) pod: String,
    pub(crate) why: String,
}

impl fmt::Display for PodFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}: {}", self.pod, self.why)
    }
}

/// A pod at an interface, as the kernel's record has it from the previous agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedPod {
    /// `namespace/name`
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) interface: String,
    pub(crate) ifindex: u32,
}

/// The result of an installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The number of the generation in force.
    pub(crate) epoch: u32,
    /// Whether this number differs from that of the previous generation. If so, all flows are judged again.
    pub(crate) is_new: bool,
    /// Whether the previous generation was extended, instead of replaced by other programs and tables.
    pub(crate) is_extended: bool,
    /// Pods on which the generation is not in force.
    pub(crate) failed: Vec<PodFailure>,
    /// Deviations of the kernel's state that were repaired on the way, in words.
    pub(crate) repaired: Vec<String>,
}

/// A change of one entry of the exact address tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressChange {
    pub(crate) address: IpAddr,
    /// `None` removes the entry.
    pub(crate) class: Option<PeerId>,
}

/// A pod of this node that the generation in force does not contain, and a pod that it contains and that has the same
/// policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewPod {
    pub(crate) at: PodAtInterface,
    pub(crate) uid: Option<String>,
    pub(crate) ifindex: u32,
    pub(crate) addresses: Vec<IpAddr>,
    /// `namespace/name`
    pub(crate) like: String,
    pub(crate) subject: SubjectId,
}

/// A pod whose interface is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GonePod {
    /// `namespace/name`
    pub(crate) pod: String,
    /// Whether the API has deleted it.
    pub(crate) is_deleted: bool,
}

/// The result of a check of all hooks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckedHooks {
    /// Deviations that were found and repaired.
    pub(crate) repaired: Vec<String>,
    /// Pods without our programs, or with another program before them.
    pub(crate) astray: Vec<PodFailure>,
}

/// The state of the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KernelSnapshot {
    /// Deviations that were found and repaired.
    pub(crate) repaired: Vec<String>,
    pub(crate) packets: Vec<Counter>,
    /// Deviations that could not be repaired.
    pub(crate) drift: Vec<String>,
    /// Whether a table has other content than the agent has written: a new generation writes it again.
    pub(crate) wrong_tables: bool,
    pub(crate) maps: Vec<Fill>,
    /// The bytes that the kernel charges for each map.
    pub(crate) memory: Vec<(String, u64)>,
    /// Records of dropped packets that were not written.
    pub(crate) lost_records: u32,
}

/// Why the kernel could not carry out a request of the agent. Pods that were enforced stay enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnforceError {
    pub(crate) message: String,
}

impl EnforceError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// Puts generations into force. Implemented by the kernel, by the dry run, and by tests.
pub(crate) trait Enforce {
    /// Whether generations are only compiled. Then "in force" means "compiled" in the agent's log and pages.
    fn is_dry_run(&self) -> bool {
        false
    }

    /// The endpoints that the previous agent left enforced. Entries that cannot be read are left out: those pods are
    /// found again by other means.
    fn recorded_pods(&mut self) -> Vec<RecordedPod> {
        Vec::new()
    }

    /// Whether a previous agent has left a generation in force.
    fn has_generation(&mut self) -> bool {
        false
    }

    /// Puts a generation into force. When this returns without an error, it is in force on all pods except the failed
    /// ones in the result.
    fn install(&mut self, request: &InstallRequest<'_>) -> Result<Installed, EnforceError>;

    /// Changes single entries of the exact address tables of the generation in force. If `judge_again` is set, flows
    /// that were judged before are judged again, even if `changes` is empty.
    fn write_addresses(&mut self, changes: &[AddressChange], judge_again: bool) -> Result<(), EnforceError>;

    /// Puts the generation in force on a pod that it does not contain, and returns its number. After an error, the pod
    /// is closed or as before.
    fn add_pod(&mut self, pod: &NewPod) -> Result<u32, EnforceError>;

    /// Removes pods whose interface is gone from the generation in force.
    fn remove_pods(&mut self, pods: &[GonePod]) -> Result<(), EnforceError>;

    /// Ends flows to services in the generation in force, and returns their number.
    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, EnforceError>;

    /// The time after an installation within which another one would wait, because packets may still be under way in
    /// the generation before.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether [`Self::separate_replaced`] and [`Self::remove_replaced`] would wait for packets or programs now.
    fn is_replaced_in_use(&self) -> bool {
        false
    }

    /// Begins to remove the programs and maps that the last generation has replaced, so that
    /// [`Self::remove_replaced`] waits for less.
    fn separate_replaced(&mut self) -> Result<(), EnforceError> {
        Ok(())
    }

    /// Removes the programs and maps that the last generation has replaced. The caller waits until no packet can be
    /// under way in them.
    fn remove_replaced(&mut self) -> Result<(), EnforceError>;

    /// Prepares the next installation, if that makes it faster, while there is nothing else to do. The artifact is that
    /// of the generation in force.
    fn prepare_spare(&mut self, _artifact: &Artifact) -> Result<(), EnforceError> {
        Ok(())
    }

    /// Checks the hooks of these interfaces and repairs deviations. If there are any, reports the state of all hooks
    /// after the repair.
    fn check_hooks(&mut self, of: &ChangedInterfaces) -> Result<CheckedHooks, EnforceError>;

    /// Closes an interface until a generation is in force on it.
    fn close(&mut self, interface: &str) -> Result<(), EnforceError>;

    /// Reconciles the kernel's state with the record, and reads the state and the counters.
    fn reconcile(&mut self) -> Result<KernelSnapshot, EnforceError>;
}

/// Enforces nothing. If a file is named, each generation's artifact is written to it.
#[derive(Debug, Default)]
pub(crate) struct DryRun {
    pub(crate) artifact: Option<PathBuf>,
    pub(crate) epoch: u32,
}

impl Enforce for DryRun {
    fn is_dry_run(&self) -> bool {
        true
    }

    fn install(&mut self, request: &InstallRequest<'_>) -> Result<Installed, EnforceError> {
        if let Some(path) = &self.artifact {
            let bytes = request.artifact.to_bytes().map_err(|error| EnforceError::new(error.to_string()))?;
            output_file::replace(path, &bytes)
                .map_err(|error| EnforceError::new(format!("cannot write {}: {error}", path.display())))?;
        }
        self.epoch += 1;
        Ok(Installed { epoch: self.epoch, is_new: true, ..Installed::default() })
    }

    /// The file contains a whole generation. If there is one, single entries are refused, and the agent makes a new
    /// generation instead.
    fn write_addresses(&mut self, changes: &[AddressChange], _: bool) -> Result<(), EnforceError> {
        match &self.artifact {
            Some(_) if !changes.is_empty() => {
                Err(EnforceError::new("a dry run with --artifact writes whole generations"))
            }
            _ => Ok(()),
        }
    }

    /// Refused if the generation is in a file: see `write_addresses`.
    fn add_pod(&mut self, _: &NewPod) -> Result<u32, EnforceError> {
        match &self.artifact {
            Some(_) => Err(EnforceError::new("a dry run with --artifact writes whole generations")),
            None => Ok(self.epoch),
        }
    }

    fn remove_pods(&mut self, _: &[GonePod]) -> Result<(), EnforceError> {
        match &self.artifact {
            Some(_) => Err(EnforceError::new("a dry run with --artifact writes whole generations")),
            None => Ok(()),
        }
    }

    fn end_flows(&mut self, _: &[EndedService]) -> Result<usize, EnforceError> {
        Ok(0)
    }

    fn remove_replaced(&mut self) -> Result<(), EnforceError> {
        Ok(())
    }

    fn check_hooks(&mut self, _: &ChangedInterfaces) -> Result<CheckedHooks, EnforceError> {
        Ok(CheckedHooks::default())
    }

    fn close(&mut self, _: &str) -> Result<(), EnforceError> {
        Ok(())
    }

    fn reconcile(&mut self) -> Result<KernelSnapshot, EnforceError> {
        Ok(KernelSnapshot::default())
    }
}
