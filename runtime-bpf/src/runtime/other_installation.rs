//! Programs of another installation of weir at the same interfaces.
//!
//! Problem: each installation has its own directory of pins, and TCX runs any number of programs. A second installation
//! at an interface works: a packet must pass the policies of both. But no command of one of them knows the other, so a
//! user who named the wrong directory sees packets dropped that the policies in force allow.
//! Strategy: before interfaces are attached that the record does not have, programs with our names are looked for there.

use std::collections::BTreeSet;

use super::Runtime;
use crate::error::{Doing as _, Error};
use crate::point::{self, HookKind, HookNeighbour, Point, ProgramSide};

impl Runtime {
    /// Programs with the names of ours at interfaces that are not in this record. `way` is how ours will be attached
    /// there. A filter in the place of ours is not one of them, because attaching replaces it.
    pub fn other_installations(
        &self,
        interfaces: &[String],
        way: Option<HookKind>,
    ) -> Result<Vec<HookNeighbour>, Error> {
        let record = self.shared_record()?;
        let recorded = record.iter().flat_map(|it| &it.endpoints);
        let recorded: BTreeSet<u32> = recorded.map(|it| it.ifindex).collect();
        let way = point::choose(&self.system, way)?;
        let mut others = Vec::new();
        for name in interfaces {
            let interface = self.system.interface_named(name).doing(format!("ask for the interface {name}"))?;
            let Some(ifindex) = interface.map(|it| it.ifindex).filter(|it| !recorded.contains(it)) else { continue };
            for side in ProgramSide::BOTH {
                let point = Point { system: &self.system, pins: &self.pins, ifindex, side, way, held: None };
                others.extend(point.neighbours(name)?.into_iter().filter(|it| point::is_own_name(side, &it.name)));
            }
        }
        Ok(others)
    }
}
