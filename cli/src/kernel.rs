//! Engine `kernel`: the emitted programs in this machine's kernel, one BPF_PROG_TEST_RUN a packet.
//!
//! Problem: a test run needs an interface that exists, and the maps remember flows.
//! Strategy: all packets run as if on interface 1 (`lo`, which every network namespace has), whose entry in `endpoints` is
//! rewritten when the endpoint changes; what an allowed packet leaves in the flow table is removed. Nothing is
//! attached or pinned: everything is gone when the command ends.

use std::rc::Rc;

use anyhow::Result;
use weir_compiler::address::Family;
use weir_compiler::compile::Compiled;
use weir_compiler::ebpf::code::{self, ByteOrder};
use weir_compiler::engine::machine::{DROP, NEXT};
use weir_compiler::engine::{Broken, Decide, Make, Question, packet};
use weir_compiler::image::{self, MapImage};
use weir_compiler::layout::{MapName, direction_number};
use weir_compiler::model::eval::Verdict;
use weir_compiler::vm::{MapFlags, MapKind};
use weir_runtime::sys::{Kernel, Map, MapDefinition, MapType, Program};

use crate::failure::with_hint;

/// `lo`
const INTERFACE: u32 = 1;
/// Flows are allocated at once, and here there is never more than one.
const MOST_FLOWS: u32 = 64;
/// Some other interface; it need not be there.
const ELSEWHERE: u32 = 2;
/// Bytes of `struct __sk_buff`.
const CONTEXT: usize = 192;
const INGRESS_IFINDEX: usize = 36;
const IFINDEX: usize = 40;

/// For `weir_compiler::engine::Engine::new`.
pub(crate) fn make() -> Result<Box<Make>> {
    let kernel = Kernel::open().map_err(|error| {
        let hint = "it needs CAP_BPF and CAP_NET_ADMIN (or root); `--engine vm` runs the same programs without";
        with_hint(format!("the kernel's bpf system call cannot be used: {error}"), hint)
    })?;
    let kernel = Rc::new(kernel);
    Ok(Box::new(move |compiled| Ok(Box::new(Loaded::new(&kernel, compiled)?))))
}

struct Loaded {
    maps: Vec<(MapName, Map)>,
    programs: [Program; 2],
    endpoints: Vec<Vec<u8>>,
    /// The endpoint that `lo` stands for now.
    place: Option<usize>,
}

impl Loaded {
    fn new(kernel: &Kernel, compiled: &Compiled) -> Result<Self, Broken> {
        let fill = |image| fill(kernel, &image::with_few_flows(image, MOST_FLOWS));
        let maps = compiled.maps.iter().map(|image| Ok((image.name, fill(image)?)));
        let maps = maps.collect::<Result<Vec<_>, Broken>>()?;
        let descriptor = |name: u32| {
            let found = maps.iter().find(|(known, _)| *known as u32 == name);
            found.map_or(-1, |(_, map)| map.descriptor())
        };
        let load = |program: usize| {
            let linked = compiled.programs[program].link(|map| descriptor(map.0));
            kernel.load(&code::encode(&linked, ByteOrder::Little)).map_err(|error| {
                let last = error.log.lines().rev().find(|line| !line.starts_with("processed")).unwrap_or_default();
                Broken(format!("{error}: {last}"))
            })
        };
        let programs = [load(0)?, load(1)?];
        let endpoints = compiled.endpoints.iter().map(|it| it.value.clone()).collect();
        Ok(Self { maps, programs, endpoints, place: None })
    }

    fn map(&self, name: MapName) -> Result<&Map, Broken> {
        let found = self.maps.iter().find(|(known, _)| *known == name);
        found.map(|(_, map)| map).ok_or_else(|| Broken(format!("there is no map {}", name.name())))
    }

    /// Makes `lo` the endpoint's interface.
    fn stand_at(&mut self, place: usize) -> Result<(), Broken> {
        if self.place != Some(place) {
            let value = self.endpoints.get(place).ok_or_else(|| Broken(format!("there is no endpoint {place}")))?;
            let written = self.map(MapName::Endpoints)?.update(&INTERFACE.to_le_bytes(), value, 0);
            written.map_err(|error| Broken(format!("map endpoints: {error}")))?;
            self.place = Some(place);
        }
        Ok(())
    }

    /// Removes what an allowed packet has left behind: whatever it is, it is all that is there.
    fn forget(&self, is_v4: bool) -> Result<(), Broken> {
        let (family, table, fresh) = match is_v4 {
            true => (Family::V4, MapName::FlowBuckets4, MapName::Fresh4),
            false => (Family::V6, MapName::FlowBuckets6, MapName::Fresh6),
        };
        let refused = |error: std::io::Error| Broken(format!("the flow table: {error}"));
        if let Ok(map) = self.map(table) {
            map.flow_table(family).map_err(refused)?.remove(|_| true);
            return Ok(());
        }
        let map = self.map(fresh)?;
        while let Some(key) = map.next_key(None).map_err(refused)? {
            map.delete(&key).map_err(refused)?;
        }
        Ok(())
    }
}

impl Decide for Loaded {
    fn decide(&mut self, question: &Question) -> Result<Verdict, Broken> {
        self.stand_at(question.place)?;
        let packet = packet::first(question).ok_or_else(|| Broken("a packet of two families".to_owned()))?;
        let mut context = [0; CONTEXT];
        let came_in = match (question.own_node, question.remote == question.own) {
            (true, _) => 0,
            (_, true) => INTERFACE,
            _ => ELSEWHERE,
        };
        context[IFINDEX..IFINDEX + 4].copy_from_slice(&INTERFACE.to_le_bytes());
        context[INGRESS_IFINDEX..INGRESS_IFINDEX + 4].copy_from_slice(&came_in.to_le_bytes());
        let program = &self.programs[direction_number(question.direction) as usize];
        let run = program.test_run(&packet, &context, 1).map_err(|error| Broken(format!("a test run: {error}")))?;
        match run.verdict as i32 {
            NEXT => self.forget(question.remote.is_ipv4()).map(|()| Verdict::Allow),
            DROP => Ok(Verdict::Deny),
            other => Err(Broken(format!("a program returned {other}"))),
        }
    }
}

fn fill(kernel: &Kernel, image: &MapImage) -> Result<Map, Broken> {
    let refused = |error: std::io::Error| Broken(format!("map {}: {error}", image.name.name()));
    let spec = &image.spec;
    let definition = MapDefinition {
        map_type: map_type(spec.kind)
            .ok_or_else(|| Broken(format!("map {} is of no known type", image.name.name())))?,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags: spec.flags.0,
    };
    let map = kernel.create_map(&definition, None).map_err(refused)?;
    for (key, value) in &image.entries {
        map.update(key, value, 0).map_err(refused)?;
    }
    if spec.flags.contains(MapFlags::RDONLY_PROG) {
        map.freeze().map_err(refused)?;
    }
    Ok(map)
}

fn map_type(kind: MapKind) -> Option<MapType> {
    Some(match kind {
        MapKind::Array => MapType::Array,
        MapKind::PercpuArray => MapType::PercpuArray,
        MapKind::Hash => MapType::Hash,
        MapKind::PercpuHash => MapType::PercpuHash,
        MapKind::LruHash => MapType::LruHash,
        MapKind::LpmTrie => MapType::LpmTrie,
        MapKind::RingBuf => MapType::RingBuf,
        MapKind::ProgArray => MapType::ProgArray,
        MapKind::ArrayOfMaps | MapKind::HashOfMaps => return None,
    })
}
