//! Loads an artifact into the kernel: makes and fills its maps, loads and pins its programs.
//!
//! There are two kinds of maps. All generations share the maps that packets write (flows, counters, records); they are
//! created once. Each generation has its own maps for the compiler's output. Apart from endpoints, addresses, a few
//! configuration values and additions ([`extension`]), these do not change while the generation is in force. A
//! generation that is no longer in force may lend its maps and programs to a later one: [`spare`].

mod extension;
mod file;
pub(crate) mod flows;
mod spare;
mod written;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;

use weir_artifact::Artifact;
use weir_artifact::layout::{AT_EDGE, MapName, config, endpoint, mark};
use weir_artifact::map_image::{MapImage, bucket_family};
use weir_ebpf::asm::Assembled;
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::vm::{MapKind, MapSpec};

use crate::error::{Doing as _, Error};
use crate::names;
use crate::pins::{Age, Pins};
use crate::point::ProgramSide;
use crate::record::{EnforcementRecord, KernelGeneration, SinglePods};
use crate::runtime::{HeldObjects, OWN, OwnAddresses, of};
use crate::sys::{KernelMap, KernelProgram, MapDefinition, MapType, errno};
use crate::system::{System, TypedHash};
pub(crate) use extension::extend;
pub(crate) use file::{is_kept, keep_file, kept_file};
use flows::FlowTables;
pub(crate) use spare::{ReusedMaps, is_prepared, reusable, take_over};
pub(crate) use written::{TableDifference, WrittenTable, WrittenTables};

/// The map with the generation's own artifact file, for names and comparisons.
pub(crate) const FILE: &str = "artifact";
/// Number of entries per batch.
pub(crate) const BATCH: usize = 8_192;

/// A generation with its open descriptors.
#[derive(Debug)]
pub(crate) struct LoadedGeneration {
    pub(crate) generation: KernelGeneration,
    pub(crate) maps: BTreeMap<String, KernelMap>,
    /// The map `endpoints`, already open: if a hook fails because there are no descriptors left, its endpoint must
    /// still lose its entry.
    endpoints: Option<TypedHash<u32, endpoint::Value>>,
    pub(crate) programs: [KernelProgram; 2],
    /// `at_edge`, if the generation has one.
    pub(crate) edge: Option<KernelProgram>,
}

impl LoadedGeneration {
    pub(crate) fn program(&self, side: ProgramSide) -> &KernelProgram {
        let [to_pod, from_pod] = &self.programs;
        match side {
            ProgramSide::ToPod => to_pod,
            ProgramSide::FromPod => from_pod,
        }
    }

    /// The number of a program.
    pub(crate) fn number(&self, side: ProgramSide) -> u32 {
        self.generation.programs[side as usize]
    }

    pub(crate) fn map(&self, name: MapName) -> Option<&KernelMap> {
        self.maps.get(name.name())
    }

    /// The map `endpoints`, and its entries with their types.
    pub(crate) fn endpoints(&self) -> Option<(&KernelMap, &TypedHash<u32, endpoint::Value>)> {
        self.map(MapName::Endpoints).zip(self.endpoints.as_ref())
    }
}

fn endpoints(
    system: &System,
    maps: &BTreeMap<String, KernelMap>,
) -> Result<Option<TypedHash<u32, endpoint::Value>>, Error> {
    let map = maps.get(MapName::Endpoints.name());
    map.map(|map| system.typed(map)).transpose().doing("open the map endpoints")
}

/// Whether all generations share this map.
pub(crate) fn is_shared(name: MapName) -> bool {
    use MapName::*;
    matches!(name, Counters | Events | EventLimit | Fragments | EdgeDrops | FlowBuckets4 | FlowBuckets6)
}

/// Whether only the XDP program at the uplinks uses this map.
pub(crate) fn is_of_edge(name: MapName) -> bool {
    matches!(name, MapName::Edge | MapName::Local4 | MapName::Local6 | MapName::EdgeDrops)
}

/// Key and value.
type Entry<'a> = (&'a [u8], &'a [u8]);

/// The input from which a generation is made.
pub(crate) struct GenerationSource<'a> {
    pub(crate) artifact: &'a Artifact,
    pub(crate) file: &'a [u8],
    pub(crate) digest: String,
    /// The digest of the artifact's programs.
    pub(crate) code: String,
    pub(crate) keep: bool,
    pub(crate) epoch: u32,
    pub(crate) stamp: u8,
    /// How many endpoints there will be.
    pub(crate) endpoints: u32,
    /// The entries of the map `endpoints` before the switch, by the interface's number.
    pub(crate) open: BTreeMap<[u8; 4], endpoint::Value>,
    /// Whether there are uplinks.
    pub(crate) has_uplinks: bool,
    /// This host's addresses.
    pub(crate) own: OwnAddresses,
    /// The content that an agent has written to tables; `None` for commands.
    pub(crate) written: Option<&'a WrittenTables>,
}

impl GenerationSource<'_> {
    /// The entries of a map whose content is entries, sorted: the image's, and those that only this machine knows.
    fn entries<'s>(&'s self, image: &'s MapImage) -> Vec<Entry<'s>> {
        let mut entries: Vec<Entry<'_>> = image.entries.iter().collect();
        if image.name == MapName::Endpoints {
            entries.extend(self.open.iter().map(|(key, value)| (key.as_slice(), value.as_slice())));
        }
        let compiled = entries.len();
        entries.extend(of(&self.own, image.name).map(|key| (key, OWN.as_slice())));
        if entries.len() > compiled {
            entries.sort_unstable();
            entries.dedup();
        }
        entries
    }

    /// The remembered content of tables, if this table's is remembered.
    fn written_to(&self, name: MapName) -> Option<&WrittenTables> {
        self.written.filter(|_| WrittenTables::is_kept(name))
    }

    /// The maps to make. Without uplinks, the XDP program's maps are left out.
    fn images(&self) -> impl Iterator<Item = &MapImage> {
        self.artifact.maps.iter().filter(|image| self.has_uplinks || !is_of_edge(image.name))
    }

    /// Whether there will be a program at uplinks.
    fn has_edge(&self) -> bool {
        self.has_uplinks && self.artifact.edge.is_some()
    }
}

/// Makes a generation and pins it under `next`, apart from the maps of the spare that it reuses. No hook uses it yet.
pub(crate) fn load(
    objects: &ObjectSource<'_>,
    record: &mut EnforcementRecord,
    source: &GenerationSource<'_>,
    mut reused: ReusedMaps,
) -> Result<LoadedGeneration, Error> {
    let ObjectSource { system, pins, .. } = *objects;
    let mut maps = shared_maps(objects, record, source)?;
    let shared = maps.keys().filter_map(|name| Some((name.clone(), *record.shared.get(name)?))).collect();
    let flows = FlowTables::new(system, record, &maps)?;
    for image in source.images().filter(|image| !is_shared(image.name)) {
        let map = match reused.remove(&image.name) {
            Some(map) => {
                spare::renew(system, source, image, &map, Some(number_of(system, &map)?), &flows)?;
                map
            }
            None => own(system, pins, image, source, &flows)?,
        };
        maps.insert(image.name.name().to_owned(), map);
    }
    let programs = programs(system, source, &maps)?;
    for (side, program) in ProgramSide::BOTH.into_iter().zip(&programs) {
        let pinning = format!("pin the program {}", side.program());
        system.pin(program.as_fd(), &pins.program(Age::Next, side)).doing(pinning)?;
    }
    let number =
        |program: &KernelProgram| Ok::<_, Error>(system.program_info(program).doing("ask for a program's number")?.id);
    let numbers = [number(&programs[0])?, number(&programs[1])?];
    let edge = edge(system, source, &maps)?;
    if let Some(edge) = &edge {
        system.pin(edge.as_fd(), &pins.edge_program(Age::Next)).doing("pin the program at_edge")?;
    }
    let file = keep_file(system, pins, (source.artifact, source.file), None)?;
    let mut own = BTreeMap::from([(FILE.to_owned(), number_of(system, &file)?)]);
    for (name, map) in maps.iter().filter(|(name, _)| !record.shared.contains_key(*name)) {
        own.insert(name.clone(), number_of(system, map)?);
    }
    maps.insert(FILE.to_owned(), file);
    let generation = KernelGeneration {
        epoch: source.epoch,
        digest: source.digest.clone(),
        code: source.code.clone(),
        shared,
        keep: source.keep,
        stamp: source.stamp,
        programs: numbers,
        edge: edge.as_ref().map(number).transpose()?,
        maps: own,
        patched: false,
        pods: SinglePods::default(),
    };
    let endpoints = endpoints(system, &maps)?;
    Ok(LoadedGeneration { generation, maps, endpoints, programs, edge })
}

pub(crate) fn number_of(system: &System, map: &KernelMap) -> Result<u32, Error> {
    Ok(system.map_info(map).doing("ask for a map's number")?.id)
}

/// Finds objects by number: among the agent's descriptors, then at the paths of their pins, then by asking the kernel.
pub(crate) struct ObjectSource<'a> {
    pub(crate) system: &'a System,
    pub(crate) pins: &'a Pins,
    pub(crate) held: Arc<HeldObjects>,
}

impl ObjectSource<'_> {
    fn map(&self, name: &str, number: u32, age: Age) -> Result<Option<KernelMap>, Error> {
        if let Some(held) = self.held.map(number) {
            return Ok(Some(held));
        }
        let opening = format!("open the map {name}");
        for age in age.places() {
            let pinned = self.system.pinned_map(&self.pins.map(*age, name)).doing(&opening)?;
            let right = pinned.filter(|map| self.system.map_info(map).is_ok_and(|info| info.id == number));
            if right.is_some() {
                return Ok(right);
            }
        }
        self.system.numbered_map(number).doing(opening)
    }

    fn program(
        &self,
        name: &str,
        number: u32,
        age: Age,
        place: impl Fn(Age) -> PathBuf,
    ) -> Result<Option<KernelProgram>, Error> {
        if let Some(held) = self.held.program(number) {
            return Ok(Some(held));
        }
        let opening = format!("open the program {name}");
        for age in age.places() {
            let pinned = self.system.pinned_program(&place(*age)).doing(&opening)?;
            let right = pinned.filter(|it| self.system.program_info(it).is_ok_and(|info| info.id == number));
            if right.is_some() {
                return Ok(right);
            }
        }
        self.system.numbered_program(number).doing(opening)
    }
}

/// Opens a generation's objects, wherever they are pinned; `None` if one of them no longer exists.
pub(crate) fn open(
    objects: &ObjectSource<'_>,
    record: &EnforcementRecord,
    generation: &KernelGeneration,
    age: Age,
) -> Result<Option<LoadedGeneration>, Error> {
    let ObjectSource { system, pins, .. } = *objects;
    let mut maps = BTreeMap::new();
    let shared = record.shared.iter().map(|entry| (entry, Age::Current));
    let own = generation.maps.iter().map(|entry| (entry, age));
    for ((name, number), age) in shared.chain(own) {
        let Some(map) = objects.map(name, *number, age)? else { return Ok(None) };
        maps.insert(name.clone(), map);
    }
    let mut programs = Vec::new();
    for (side, number) in ProgramSide::BOTH.into_iter().zip(generation.programs) {
        let program = objects.program(side.program(), number, age, |age| pins.program(age, side))?;
        let Some(program) = program else { return Ok(None) };
        programs.push(program);
    }
    let edge = match generation.edge {
        Some(number) => match objects.program(AT_EDGE, number, age, |age| pins.edge_program(age))? {
            None => return Ok(None),
            found => found,
        },
        None => None,
    };
    let Ok(programs) = programs.try_into() else { return Ok(None) };
    let endpoints = endpoints(system, &maps)?;
    Ok(Some(LoadedGeneration { generation: generation.clone(), maps, endpoints, programs, edge }))
}

/// The maps that all generations share, by name.
fn shared_maps(
    objects: &ObjectSource<'_>,
    record: &mut EnforcementRecord,
    source: &GenerationSource<'_>,
) -> Result<BTreeMap<String, KernelMap>, Error> {
    let images = source.images().filter(|image| is_shared(image.name));
    images.map(|image| Ok((image.name.name().to_owned(), shared(objects, record, image, source)?))).collect()
}

/// A map that all generations share: the existing one, or a new one.
fn shared(
    objects: &ObjectSource<'_>,
    record: &mut EnforcementRecord,
    image: &MapImage,
    source: &GenerationSource<'_>,
) -> Result<KernelMap, Error> {
    let name = image.name.name();
    let making = format!("make the map {name}");
    let ObjectSource { system, pins, .. } = *objects;
    let wanted = flows::sized(image, source, MapDefinition::from(&image.spec));
    if let Some(number) = record.shared.get(name) {
        let map = objects.map(name, *number, Age::Current)?;
        // Counters from a version with fewer outcomes have too few entries. They are made anew and start at zero.
        let is_of_use =
            |map: &KernelMap| image.name != MapName::Counters || map.definition().max_entries == wanted.max_entries;
        if let Some(map) = map.filter(is_of_use) {
            let MapDefinition { value_size, max_entries, .. } = wanted;
            let mut there = MapDefinition { max_entries, ..map.definition() };
            if bucket_family(image.name).is_some() {
                there.value_size = value_size;
            }
            // Only the definition can be compared: a ring's definition says nothing about the layout of its records.
            return if there == wanted { Ok(map) } else { Err(Error::OtherVersion(name.to_owned())) };
        }
    }
    let map = flows::create(system, image, wanted).doing(&making)?;
    // A process that died here left a pin that is not in the record.
    system.unpin(&pins.map(Age::Current, name)).doing(&making)?;
    system.pin(map.as_fd(), &pins.map(Age::Current, name)).doing(making)?;
    record.shared.insert(name.to_owned(), number_of(system, &map)?);
    Ok(map)
}

/// Makes a map of this generation and fills it.
fn own(
    system: &System,
    pins: &Pins,
    image: &MapImage,
    source: &GenerationSource<'_>,
    flows: &FlowTables,
) -> Result<KernelMap, Error> {
    let name = image.name.name();
    let making = format!("make the map {name}");
    let map = system.create_map(name, &definition(source, image)).doing(&making)?;
    match image.name {
        MapName::Config => {
            for (key, value) in image.entries.iter() {
                let value = configured(system, value, source, &flows.seeds)?;
                system.update(&map, key, &value).doing("fill the map config")?;
            }
        }
        MapName::FlowShape => system.update(&map, &[0; 4], &flows.shape).doing("fill the map flow_shape")?,
        _ => {
            write(system, &map, image.name, &source.entries(image), source.artifact)?;
            if let Some(written) = source.written_to(image.name) {
                written.put(number_of(system, &map)?, WrittenTable::new(image.entries.clone()));
            }
        }
    }
    if is_frozen(image.name) {
        system.freeze(&map).doing(format!("freeze the map {name}"))?;
    }
    system.pin(map.as_fd(), &pins.map(Age::Next, name)).doing(making)?;
    Ok(map)
}

/// The definition of a map of this generation.
fn definition(source: &GenerationSource<'_>, image: &MapImage) -> MapDefinition {
    let mut definition = MapDefinition::from(&image.spec);
    if matches!(image.name, MapName::Endpoints | MapName::Local4 | MapName::Local6) {
        definition.max_entries = definition.max_entries.max(source.endpoints.saturating_mul(2));
    }
    // Room for this host's own addresses and for the same number again: the host may get more before the next
    // generation.
    let own = of(&source.own, image.name).count() as u32;
    definition.max_entries = definition.max_entries.saturating_add(2 * own);
    definition
}

/// Whether a map's content never changes. The verifier takes the sizes of flow tables as constants. No program may
/// write the compiled tables, but they are not frozen: a later generation may reuse the map.
pub(crate) fn is_frozen(name: MapName) -> bool {
    name == MapName::FlowShape
}

/// The configuration from the image, completed with values that only this machine knows.
fn configured(system: &System, image: &[u8], source: &GenerationSource<'_>, seeds: &[u64]) -> Result<Vec<u8>, Error> {
    let mut value = image.to_vec();
    let word =
        |at: i32| image.get(at as usize..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u32::from_le_bytes(*it));
    let tick = system.tick().doing("ask for the kernel's tick")?;
    let ticks = (1_000_000_000 + tick.as_nanos() as u64 / 2) / (tick.as_nanos() as u64).max(1);
    let mut put = |at: i32, number: u64| {
        let number = u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        value.iter_mut().skip(at as usize).zip(number).for_each(|(to, from)| *to = from);
    };
    let of_image = u64::from(word(config::TICKS)).max(1);
    for at in (config::TIMEOUTS..config::TICKS).step_by(4) {
        put(at, u64::from(word(at)) * ticks / of_image);
    }
    put(config::TICKS, ticks);
    put(config::EPOCH, source.epoch.into());
    put(config::KEEP_ESTABLISHED, source.keep.into());
    put(config::STAMP, source.stamp.into());
    put(config::OTHER, mark::NONE.into());
    let places = value.iter_mut().skip(config::SEEDS as usize);
    places.zip(seeds.iter().flat_map(|seed| seed.to_le_bytes())).for_each(|(to, from)| *to = from);
    Ok(value)
}

/// The error for an entry that the kernel refused.
pub(crate) fn refused(map: &KernelMap, name: MapName, about: Option<String>, error: std::io::Error) -> Error {
    let (room, map) = (map.definition().max_entries, name.name().to_owned());
    match errno(&error) {
        Some(libc::E2BIG | libc::ENOSPC) => Error::Full { map, room, about },
        _ => Error::Kernel { doing: format!("write into the map {map}"), error },
    }
}

/// Writes entries of a map.
fn write(
    system: &System,
    map: &KernelMap,
    name: MapName,
    entries: &[Entry<'_>],
    artifact: &Artifact,
) -> Result<(), Error> {
    for batch in entries.chunks(BATCH) {
        let keys = batch.iter().map(|(key, _)| *key).collect::<Vec<_>>().concat();
        let values = batch.iter().map(|(_, value)| *value).collect::<Vec<_>>().concat();
        let done = batch.len() > 1 && system.update_batch(map, &keys, &values).is_ok();
        // If the batch failed, this kernel has no batches for this map type, or it refused one of the entries. Writing
        // them one by one finds out which.
        for (key, value) in batch.iter().filter(|_| !done) {
            let about = || names::about(artifact, name, key);
            system.update(map, key, value).map_err(|error| refused(map, name, about(), error))?;
        }
    }
    Ok(())
}

/// Loads both programs in parallel: most of the time of a switch is spent in the verifier.
fn programs(
    system: &System,
    source: &GenerationSource<'_>,
    maps: &BTreeMap<String, KernelMap>,
) -> Result<[KernelProgram; 2], Error> {
    let [to_pod, from_pod] = ProgramSide::BOTH;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| program(system, source, maps, from_pod));
        let program = program(system, source, maps, to_pod);
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok([program?, other?])
    })
}

fn program(
    system: &System,
    source: &GenerationSource<'_>,
    maps: &BTreeMap<String, KernelMap>,
    side: ProgramSide,
) -> Result<KernelProgram, Error> {
    let [to_pod, from_pod] = &source.artifact.programs;
    let (code, direction) = match side {
        ProgramSide::ToPod => (&to_pod.code, to_pod.hook),
        ProgramSide::FromPod => (&from_pod.code, from_pod.hook),
    };
    let refused = |error| Error::Refused { program: side.program(), error };
    system.load(side.program(), &linked(code, maps), Some(&source.artifact.debug_info(direction))).map_err(refused)
}

/// The XDP program for the uplinks, if the artifact has one and there are uplinks.
fn edge(
    system: &System,
    source: &GenerationSource<'_>,
    maps: &BTreeMap<String, KernelMap>,
) -> Result<Option<KernelProgram>, Error> {
    let Some(code) = source.artifact.edge.as_ref().filter(|_| source.has_uplinks) else { return Ok(None) };
    let refused = |error| Error::Refused { program: AT_EDGE, error };
    system.load_xdp(AT_EDGE, &linked(code, maps)).map(Some).map_err(refused)
}

/// A program's bytes, with the descriptors of these maps.
fn linked(code: &Assembled, maps: &BTreeMap<String, KernelMap>) -> Vec<u8> {
    let descriptor = |number: u32| {
        let name = MapName::ALL.into_iter().find(|name| *name as u32 == number);
        name.and_then(|name| maps.get(name.name())).map_or(-1, KernelMap::descriptor)
    };
    encode(code.link(|map| descriptor(map.0)), ByteOrder::Little)
}

impl From<&MapSpec> for MapDefinition {
    fn from(spec: &MapSpec) -> Self {
        let map_type = match spec.kind {
            MapKind::Array => MapType::Array,
            MapKind::PercpuArray => MapType::PercpuArray,
            MapKind::Hash => MapType::Hash,
            MapKind::LpmTrie => MapType::LpmTrie,
            MapKind::RingBuf => MapType::RingBuf,
            MapKind::ProgArray => MapType::ProgArray,
        };
        let MapSpec { key_size, value_size, max_entries, flags, .. } = *spec;
        Self { map_type, key_size, value_size, max_entries, flags: flags.0 }
    }
}
