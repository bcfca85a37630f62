//! Programs of another installation of weir at the same interfaces.
//!
//! Problem: each installation has its own directory of pins, and its record names only its own programs. With TCX, the
//! programs of two installations run one after the other, so a packet must pass the policies of both. With clsact, the
//! second installation takes the place of the first one, whose record still says that it enforces.
//! Strategy: before interfaces are attached that the record does not have, Weir's programs are looked for there, by
//! their names. A program that only closes an interface does not count: `weir-cni` and the agent close new interfaces,
//! and attaching takes over their programs.

use std::collections::BTreeSet;

use super::Runtime;
use crate::error::{Doing as _, Error};
use crate::point::{self, HookKind, HookNeighbour, Point, ProgramSide};

impl Runtime {
    /// Weir's programs that enforce at interfaces which are not in this record. `way` is how they are to be attached.
    pub fn other_installations(
        &self,
        interfaces: &[String],
        way: Option<HookKind>,
    ) -> Result<Vec<HookNeighbour>, Error> {
        let record = self.shared_record()?;
        // Those that leave may still have their programs, if a process has died.
        let recorded = record.iter().flat_map(|it| it.endpoints.iter().chain(&it.leaving));
        let recorded: BTreeSet<u32> = recorded.map(|it| it.ifindex).collect();
        let way = point::choose(&self.system, way)?;
        let mut others = Vec::new();
        for name in interfaces {
            let interface = self.system.interface_named(name).doing(format!("ask for the interface {name}"))?;
            let Some(ifindex) = interface.map(|it| it.ifindex).filter(|it| !recorded.contains(it)) else { continue };
            for side in ProgramSide::BOTH {
                let point = Point { system: &self.system, pins: &self.pins, ifindex, side, way, held: None };
                others.extend(point.enforcing(name)?);
            }
        }
        Ok(others)
    }
}
