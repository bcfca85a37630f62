//! aya's typed maps behind the seam: single entries of maps whose keys and values have the same size in every
//! generation.
//!
//! Strategy: [`TypedMap`] hides the aya map, so only the operations below can call it, and each of them asks for an
//! injected fault first. Opening compares the sizes of the types with those of the kernel's map. It needs a descriptor
//! of its own, because aya's maps own theirs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;

use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};

use super::{Operation, System, absent};
use crate::sys::KernelMap;

/// A map of aya. Writes need `&mut` there, although the kernel orders them: hence the cell.
#[derive(Debug)]
pub struct TypedMap<M>(RefCell<M>);

/// A hash map.
pub type TypedHash<K, V> = TypedMap<HashMap<MapData, K, V>>;
/// An array with one element.
pub type TypedCell<V> = TypedMap<Array<MapData, V>>;
/// An array with elements for each CPU.
pub type TypedPerCpu<V> = TypedMap<PerCpuArray<MapData, V>>;

impl System {
    /// Opens a map for typed access. Fails if the kernel's map is of another type, or if its keys or values have other
    /// sizes.
    pub fn typed<M: TryFrom<Map, Error = MapError>>(&self, map: &KernelMap) -> io::Result<TypedMap<M>> {
        Ok(TypedMap(RefCell::new(self.open_with_aya(map)?)))
    }

    /// The reader of a ring buffer. It reads from memory, without kernel calls.
    pub fn ring(&self, map: &KernelMap) -> io::Result<RingBuf<MapData>> {
        self.open_with_aya(map)
    }

    fn open_with_aya<M: TryFrom<Map, Error = MapError>>(&self, map: &KernelMap) -> io::Result<M> {
        let _operation = self.ask(Operation::Typed)?;
        let data = MapData::from_fd(map.as_fd().try_clone_to_owned()?);
        data.and_then(Map::from_map_data).and_then(M::try_from).map_err(cause)
    }

    /// Writes an entry.
    pub fn insert<K: Pod, V: Pod>(&self, map: &TypedHash<K, V>, key: &K, value: &V) -> io::Result<()> {
        let _operation = self.ask(Operation::Update)?;
        map.0.borrow_mut().insert(key, value, 0).map_err(cause)
    }

    /// Removes an entry; a missing entry is not an error.
    pub fn remove<K: Pod, V: Pod>(&self, map: &TypedHash<K, V>, key: &K) -> io::Result<()> {
        let _operation = self.ask(Operation::Delete)?;
        absent(map.0.borrow_mut().remove(key).map_err(cause)).map(|_| ())
    }

    /// `None` if there is no such entry.
    pub fn get<K: Pod, V: Pod>(&self, map: &TypedHash<K, V>, key: &K) -> io::Result<Option<V>> {
        let _operation = self.ask(Operation::Lookup)?;
        absent(map.0.borrow().get(key, 0).map_err(cause))
    }

    /// All keys, with one kernel call for each: only for maps with few entries.
    pub fn keys<K: Pod + Ord, V: Pod>(&self, map: &TypedHash<K, V>) -> io::Result<BTreeSet<K>> {
        let _operation = self.ask(Operation::Entries)?;
        map.0.borrow().keys().collect::<Result<_, _>>().map_err(cause)
    }

    /// The array's only element.
    pub fn load_cell<V: Pod>(&self, map: &TypedCell<V>) -> io::Result<V> {
        let _operation = self.ask(Operation::Lookup)?;
        map.0.borrow().get(&0, 0).map_err(cause)
    }

    /// Writes the array's only element.
    pub fn store_cell<V: Pod>(&self, map: &TypedCell<V>, value: &V) -> io::Result<()> {
        let _operation = self.ask(Operation::Update)?;
        map.0.borrow_mut().set(0, value, 0).map_err(cause)
    }

    /// An element's values, one for each CPU.
    pub fn of_cpus<V: Pod>(&self, map: &TypedPerCpu<V>, index: u32) -> io::Result<Vec<V>> {
        let _operation = self.ask(Operation::Lookup)?;
        map.0.borrow().get(&index, 0).map(|values| values.to_vec()).map_err(cause)
    }
}

/// The kernel's error without aya's name of the call: [`crate::error::Doing`] adds the operation.
fn cause(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::IoError(error) => error,
        MapError::KeyNotFound => io::Error::from_raw_os_error(libc::ENOENT),
        other => io::Error::other(other),
    }
}
