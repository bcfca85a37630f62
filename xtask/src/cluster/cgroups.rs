//! The parent control groups of each node's pods. They belong to the machine, so they are made before the node and
//! removed after it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::process::wait;

const ROOT: &str = "/sys/fs/cgroup";
const PATIENCE: Duration = Duration::from_secs(20);

/// The name of a node's group.
pub(super) fn name(number: usize) -> String {
    format!("weir-{}", super::node::name(number))
}

/// The hierarchies that are mounted: one of version 2, or one for each controller.
fn hierarchies() -> Vec<PathBuf> {
    if Path::new(ROOT).join("cgroup.procs").exists() {
        return vec![ROOT.into()];
    }
    let mounted = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
    mounted.filter(|path| path.join("cgroup.procs").exists()).collect()
}

/// Makes an empty group.
pub(super) fn make(name: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        fs::create_dir_all(&group).with_context(|| format!("cannot make {}; this needs root", group.display()))?;
        // In version 1 these files are empty at first, and no process can join the group.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let (true, Ok(all)) = (group.join("cgroup.clone_children").exists(), fs::read(hierarchy.join(file))) {
                fs::write(group.join(file), all)?;
            }
        }
        // In version 2 a group's children get only the controllers that the group enables.
        if let Ok(controllers) = fs::read_to_string(group.join("cgroup.controllers")) {
            let wanted: String = controllers.split_whitespace().map(|it| format!("+{it} ")).collect();
            fs::write(group.join("cgroup.subtree_control"), wanted.trim_end())?;
        }
    }
    Ok(())
}

/// Removes the group with all groups below it. Killed processes take a moment to leave their group, so this waits.
pub(super) fn remove(name: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        wait(&format!("the end of {}", group.display()), PATIENCE, || {
            remove_below(&group);
            !group.exists()
        })?;
    }
    Ok(())
}

fn remove_below(group: &Path) {
    let inside = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    inside.filter(|path| path.is_dir()).for_each(|path| remove_below(&path));
    // A group that is not empty yet is removed on the next try.
    _ = fs::remove_dir(group);
}
