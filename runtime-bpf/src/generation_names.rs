//! The names of the generations whose numbers appear in records and flows, for commands that read them continuously.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::error::Error;
use crate::generation::{self, LoadedGeneration};
use crate::names::ArtifactNames;
use crate::pins::Age;
use crate::runtime::Runtime;

/// The number of generations whose names are kept. A record is at most as old as the ring buffer, in which few switches
/// fit. Without a limit, a monitor that runs for days would keep the names of every generation.
const MOST: usize = 8;

/// The names of recent generations, and the pods of interfaces.
pub(crate) struct GenerationNames<'a> {
    runtime: &'a Runtime,
    names: BTreeMap<u32, ArtifactNames>,
    pods: BTreeMap<u32, String>,
}

impl<'a> GenerationNames<'a> {
    pub(crate) fn new(runtime: &'a Runtime) -> Self {
        Self { runtime, names: BTreeMap::new(), pods: BTreeMap::new() }
    }

    /// The pod behind an interface, if it is known.
    pub(crate) fn pod(&self, ifindex: u32) -> Option<&str> {
        self.pods.get(&ifindex).map(String::as_str)
    }

    /// The names of a generation, if they are known.
    pub(crate) fn of(&self, generation: u32) -> Option<&ArtifactNames> {
        self.names.get(&generation)
    }

    /// Loads the names of a generation and of an interface that appeared after the reader started.
    pub(crate) fn learn(&mut self, generation: u32, ifindex: u32) -> Result<(), Error> {
        if self.names.contains_key(&generation) && self.pods.contains_key(&ifindex) {
            return Ok(());
        }
        let runtime = self.runtime;
        let record = runtime.record()?;
        let known = self.pods.len();
        self.pods.extend(record.endpoints.iter().map(|it| (it.ifindex, it.pod.clone())));
        if let Some(current) = record.current.as_ref().filter(|_| self.pods.len() > known) {
            // A pod can come without a new generation. Its name is in the artifact of the generation in force.
            self.names.remove(&current.epoch);
        }
        let current = record.current.iter().map(|it| (it, Age::Current));
        let all = current.chain(record.next.iter().map(|it| (it, Age::Next)));
        for (it, age) in all.chain(record.retired.iter().map(|(it, _)| (it, Age::Old))) {
            if let Entry::Vacant(unknown) = self.names.entry(it.epoch) {
                let loaded: Option<LoadedGeneration> = generation::open(&runtime.objects(), &record, it, age)?;
                let names =
                    loaded.map(|it| runtime.artifact(&it).map(|artifact| ArtifactNames::new(&artifact))).transpose()?;
                unknown.insert(names.unwrap_or_default());
            }
        }
        self.names.entry(generation).or_default();
        while self.names.len() > MOST {
            self.names.pop_first();
        }
        Ok(())
    }
}
