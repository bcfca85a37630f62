//! The interface between the agent and the kernel: installing generations, and reading the kernel's state.

mod kernel;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use weir_artifact::Artifact;
use weir_classes::PeerId;
use weir_classes::departed::EndedService;
pub(crate) use weir_runtime::runtime::HookCheck;

pub(crate) use kernel::Kernel;

/// A generation, and the interfaces on which it should be in force.
#[derive(Debug)]
pub(crate) struct Wanted<'w> {
    pub(crate) artifact: &'w Artifact,
    /// All local pods whose interface is known, as `namespace/name`, with the interface. An attached interface that is
    /// not listed is closed, unless it certainly belongs to a pod in `uids`.
    pub(crate) endpoints: &'w [(String, String)],
    /// Interfaces to close, each with a pod: the pod has no rules of its own, or the interface may belong to several
    /// pods.
    pub(crate) closed: &'w [(String, String)],
    /// The UIDs of all local pods, including those whose interface is not known.
    pub(crate) uids: &'w BTreeMap<String, String>,
}

/// A pod at an interface, as the previous agent left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
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
    /// Pods on which the generation is not in force, and why.
    pub(crate) failed: Vec<(String, String)>,
}

/// The state of the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Survey {
    /// Deviations that were found and repaired.
    pub(crate) repaired: Vec<String>,
    /// Packets since the beginning, by direction and outcome, and whether they were dropped.
    pub(crate) packets: Vec<(&'static str, &'static str, bool, u64)>,
    /// Deviations that could not be repaired.
    pub(crate) drift: Vec<String>,
    /// Name, number of entries, and size of each map.
    pub(crate) maps: Vec<(String, u64, u64)>,
    /// Name and bytes of every map.
    pub(crate) memory: Vec<(String, u64)>,
    /// Records of drops that were not written.
    pub(crate) lost: u32,
}

/// Why the kernel could not carry out a request of the agent. Pods that were enforced stay enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble(pub(crate) String);

/// Puts generations into force. Implemented by the kernel, by the dry run, and by tests.
pub(crate) trait Enforce {
    /// The endpoints that the previous agent left enforced. Entries that cannot be read are left out: those pods are
    /// found again by other means.
    fn left(&mut self) -> Vec<Left> {
        Vec::new()
    }

    /// Puts a generation into force. When this returns without an error, it is in force on all pods except the failed
    /// ones in the result.
    fn install(&mut self, wanted: &Wanted<'_>) -> Result<Installed, Trouble>;

    /// Changes single entries of the exact address tables of the generation in force; `None` removes an entry. If
    /// `again` is set, flows that were judged before are judged again, even if `changes` is empty.
    fn write(&mut self, changes: &[(IpAddr, Option<PeerId>)], again: bool) -> Result<(), Trouble>;

    /// Ends flows to services in the generation in force, and returns their number.
    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, Trouble>;

    /// Removes the programs and maps that the last generation has replaced. The caller waits until no packet can be
    /// under way in them.
    fn rest(&mut self) -> Result<(), Trouble>;

    /// Checks every hook and repairs deviations. Reports the state after the repair.
    fn look(&mut self) -> Result<HookCheck, Trouble>;

    /// Closes an interface until a generation is in force on it.
    fn close(&mut self, interface: &str) -> Result<(), Trouble>;

    /// Compares the kernel's state with the record, repairs deviations, and reads the counters.
    fn survey(&mut self) -> Result<Survey, Trouble>;
}

/// Enforces nothing. If a file is named, each generation's artifact is written to it.
#[derive(Debug, Default)]
pub(crate) struct DryRun {
    pub(crate) artifact: Option<PathBuf>,
    pub(crate) epoch: u32,
}

impl Enforce for DryRun {
    fn install(&mut self, wanted: &Wanted<'_>) -> Result<Installed, Trouble> {
        if let Some(path) = &self.artifact {
            let bytes = wanted.artifact.to_bytes().map_err(|error| Trouble(error.to_string()))?;
            let mut beside = path.clone().into_os_string();
            beside.push(".part");
            let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
            written.map_err(|error| Trouble(format!("cannot write {}: {error}", path.display())))?;
        }
        self.epoch += 1;
        Ok(Installed { epoch: self.epoch, is_new: true, ..Installed::default() })
    }

    /// The file contains a whole generation. If there is one, single entries are refused, and the agent makes a new
    /// generation instead.
    fn write(&mut self, changes: &[(IpAddr, Option<PeerId>)], _: bool) -> Result<(), Trouble> {
        match &self.artifact {
            Some(_) if !changes.is_empty() => Err(Trouble("the artifact is to be written".to_owned())),
            _ => Ok(()),
        }
    }

    fn end_flows(&mut self, _: &[EndedService]) -> Result<usize, Trouble> {
        Ok(0)
    }

    fn rest(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn look(&mut self) -> Result<HookCheck, Trouble> {
        Ok(HookCheck::default())
    }

    fn close(&mut self, _: &str) -> Result<(), Trouble> {
        Ok(())
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        Ok(Survey::default())
    }
}
