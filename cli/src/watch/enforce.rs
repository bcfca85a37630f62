//! The seam between the agent and the kernel: what comes into force, and what is known of it.

mod kernel;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use weir_compiler::artifact::Artifact;
use weir_compiler::classify::PeerId;
use weir_compiler::departed::EndedService;
pub(crate) use weir_runtime::runtime::Looked;

pub(crate) use kernel::Kernel;

/// A generation, and where it is to be in force.
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

/// What an installation came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The number of the generation in force.
    pub(crate) epoch: u32,
    /// Whether it has another number than what was in force before, so that all flows are judged again.
    pub(crate) is_new: bool,
    /// Pods on which it is not, and why.
    pub(crate) failed: Vec<(String, String)>,
}

/// The state of the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Survey {
    /// What was not as it should be, and is again.
    pub(crate) repaired: Vec<String>,
    /// Packets since the beginning, by direction and outcome, and whether they were dropped.
    pub(crate) packets: Vec<(&'static str, &'static str, bool, u64)>,
    /// What is still not as it should be.
    pub(crate) drift: Vec<String>,
    /// Name, entries, room.
    pub(crate) maps: Vec<(String, u64, u64)>,
    /// Name and bytes of every map.
    pub(crate) memory: Vec<(String, u64)>,
    /// Records of drops that were not written.
    pub(crate) lost: u32,
}

/// Why the kernel is not as it should be. What was in force before stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble(pub(crate) String);

/// Who enforces.
pub(crate) trait Enforce {
    /// The endpoints that the previous agent left enforced. Entries that cannot be read are left out: those pods are
    /// found again by other means.
    fn left(&mut self) -> Vec<Left> {
        Vec::new()
    }

    /// Puts a generation into force. When it returns, it is.
    fn install(&mut self, wanted: &Wanted<'_>) -> Result<Installed, Trouble>;

    /// Changes single entries of the exact address tables of the generation in force; `None` takes an entry out.
    /// Flows that were judged before are judged again if `again` says so, also if nothing changes.
    fn write(&mut self, changes: &[(IpAddr, Option<PeerId>)], again: bool) -> Result<(), Trouble>;

    /// Ends flows to services in the generation in force; says how many there were.
    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, Trouble>;

    /// Throws away what the last generation has replaced, once no packet can be under way in it.
    fn rest(&mut self) -> Result<(), Trouble>;

    /// Checks every hook and repairs deviations. Reports the state after the repair.
    fn look(&mut self) -> Result<Looked, Trouble>;

    /// Closes an interface until a generation is in force on it.
    fn close(&mut self, interface: &str) -> Result<(), Trouble>;

    /// Compares the kernel with what should be, mends it, and counts.
    fn survey(&mut self) -> Result<Survey, Trouble>;
}

/// Enforces nothing: what would be in force is written to a file, if one is named.
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

    /// The file is of a generation as a whole.
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

    fn look(&mut self) -> Result<Looked, Trouble> {
        Ok(Looked::default())
    }

    fn close(&mut self, _: &str) -> Result<(), Trouble> {
        Ok(())
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        Ok(Survey::default())
    }
}
