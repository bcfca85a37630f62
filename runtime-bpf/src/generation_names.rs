//! The names of the generations whose numbers appear in records and flows, for commands that read them continuously.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::generation;
use crate::names::ArtifactNames;
use crate::pins::Age;
use crate::runtime::Runtime;

/// The number of generations whose names are kept. A record is at most as old as the ring buffer, in which few switches
/// fit. Without a limit, a monitor that runs for days would keep the names of every generation.
const MOST: usize = 8;
/// For this time, what the record says about interfaces counts: the kernel uses the numbers of interfaces again.
const FRESH: Duration = Duration::from_secs(1);

/// The names of recent generations, and the pods of interfaces.
pub(crate) struct GenerationNames<'a> {
    runtime: &'a Runtime,
    names: BTreeMap<u32, ArtifactNames>,
    pods: BTreeMap<u32, String>,
    /// When the record was read last.
    read: Option<Instant>,
    /// The number of the map with the file of the generation in force, at that time.
    file: Option<u32>,
}

impl<'a> GenerationNames<'a> {
    pub(crate) fn new(runtime: &'a Runtime) -> Self {
        Self { runtime, names: BTreeMap::new(), pods: BTreeMap::new(), read: None, file: None }
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
        let is_fresh = self.read.is_some_and(|read| read.elapsed() < FRESH);
        if is_fresh && self.names.contains_key(&generation) && self.pods.contains_key(&ifindex) {
            return Ok(());
        }
        self.read = Some(Instant::now());
        let runtime = self.runtime;
        let record = runtime.record_here()?;
        let is_known = |ifindex, pod: &String| self.pods.get(&ifindex) == Some(pod);
        let has_new = record.endpoints.iter().any(|it| !is_known(it.ifindex, &it.pod));
        self.pods.extend(record.endpoints.iter().map(|it| (it.ifindex, it.pod.clone())));
        let file = record.current.as_ref().and_then(|current| current.maps.get(generation::FILE).copied());
        let has_other_file = std::mem::replace(&mut self.file, file) != file;
        if let Some(current) = record.current.as_ref().filter(|_| has_new || has_other_file) {
            // A pod can come without a new generation, and policies can get other names. The names are in the artifact
            // of the generation in force.
            self.names.remove(&current.epoch);
        }
        let current = record.current.iter().map(|it| (it, Age::Current));
        let all = current.chain(record.next.iter().map(|it| (it, Age::Next)));
        for (it, age) in all.chain(record.retired.iter().map(|(it, _)| (it, Age::Old))) {
            if let Entry::Vacant(unknown) = self.names.entry(it.epoch) {
                let names = generation::open(&runtime.objects(), &record, it, age).and_then(|loaded| {
                    let artifact = loaded.map(|loaded| runtime.artifact(&loaded)).transpose()?;
                    Ok(artifact.map(|artifact| ArtifactNames::new(&artifact)))
                });
                match names {
                    // Its file was replaced after the record was read: the next event looks again.
                    Ok(None) if age == Age::Current => self.read = None,
                    Ok(names) => _ = unknown.insert(names.unwrap_or_default()),
                    Err(error) if runtime.is_outdated(&record, &error)? => self.read = None,
                    Err(error) if age == Age::Current => return Err(error),
                    // The agent may remove an old generation, or write the next one, while this process reads it.
                    Err(_) => {}
                }
            }
        }
        while self.names.len() > MOST {
            self.names.pop_first();
        }
        Ok(())
    }
}
