//! The wrapper of the system call: values that are written can be read back, by this wrapper and by aya, and lengths
//! are checked before the system call.

use std::fmt::Debug;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_artifact::layout::buckets::{self, Slot, Tuple};
use weir_ebpf::vm::MapFlags;
use weir_objects::address::Family;
use weir_objects::k8s::Direction;
use weir_runtime::skip;
use weir_runtime::sys::{BpfKernel, KernelMap, MapDefinition, MapType, raise_descriptor_limit};
use weir_runtime::system::{Operation, System, TypedCell, TypedHash, TypedPerCpu};

fn map(kernel: &BpfKernel, map_type: MapType, max_entries: u32) -> KernelMap {
    let definition = MapDefinition { map_type, key_size: 4, value_size: 8, max_entries, flags: 0 };
    kernel.create_map(&definition, None).unwrap()
}

fn entry(number: u32) -> (Vec<u8>, Vec<u8>) {
    (number.to_le_bytes().to_vec(), (u64::from(number) * 3).to_le_bytes().to_vec())
}

#[track_caller]
fn check_batches(map_type: MapType, count: u32) {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    let map = map(&kernel, map_type, count);
    let entries: Vec<_> = (0..count).map(entry).collect();
    let keys: Vec<u8> = entries.iter().flat_map(|(key, _)| key.clone()).collect();
    let values: Vec<u8> = entries.iter().flat_map(|(_, value)| value.clone()).collect();
    assert_eq!(map.update_batch(&keys, &values, 0).unwrap(), count);
    let mut read = map.entries().unwrap();
    read.sort_by_key(|(key, _)| u32::from_le_bytes(key.as_slice().try_into().unwrap()));
    assert!(read == entries, "{} of {count} entries", read.len());
    if map_type == MapType::Hash {
        assert_eq!(map.delete_batch(&keys[4..]).unwrap(), count - 1);
        assert_eq!(map.entries().unwrap(), [entry(0)]);
    }
}

#[test]
fn batches_write_read_and_remove_every_entry() {
    check_batches(MapType::Hash, 1);
    check_batches(MapType::Hash, 10_000);
    check_batches(MapType::Array, 5_000);
}

#[test]
fn wrong_lengths_never_reach_the_kernel() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    let map = map(&kernel, MapType::Hash, 4);
    for error in [
        map.update(&[0; 3], &[0; 8], 0).unwrap_err(),
        map.update(&[0; 4], &[0; 7], 0).unwrap_err(),
        map.lookup(&[0; 5]).unwrap_err(),
        map.delete(&[]).unwrap_err(),
        map.next_key(Some(&[0; 3])).unwrap_err(),
        map.update_batch(&[0; 6], &[0; 8], 0).map(|_| ()).unwrap_err(),
        map.update_batch(&[0; 8], &[0; 8], 0).map(|_| ()).unwrap_err(),
        map.delete_batch(&[0; 7]).map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}

#[test]
fn a_refused_program_comes_with_the_verifiers_log() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    let exit_without_verdict = [0x95, 0, 0, 0, 0, 0, 0, 0];
    let error = kernel.load(&exit_without_verdict).unwrap_err();
    assert!(error.log.contains("R0 !read_ok"), "{error}: {}", error.log);
}

#[test]
fn a_log_that_is_longer_than_the_first_buffer_is_complete() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    // The log has a line for each instruction on the way to the last one, which reads a register without a value.
    let mut instructions = [0xb7, 0, 0, 0, 0, 0, 0, 0].repeat(50_000);
    instructions.extend([0xbf, 0x50, 0, 0, 0, 0, 0, 0]);
    instructions.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
    let error = kernel.load(&instructions).unwrap_err();
    assert_eq!(error.error.raw_os_error(), Some(libc::EACCES));
    assert!(error.log.len() > 1 << 20 && error.log.contains("R5 !read_ok"), "{} bytes", error.log.len());
    assert!(error.log.starts_with("0: "), "{:.80}", error.log);
}

fn made(map_type: MapType, key_size: u32, value_size: u32) -> Option<KernelMap> {
    let flags = if map_type == MapType::LpmTrie { aya_obj::generated::BPF_F_NO_PREALLOC } else { 0 };
    let definition = MapDefinition { map_type, key_size, value_size, max_entries: 8, flags };
    BpfKernel::open().ok().map(|kernel| kernel.create_map(&definition, None).unwrap())
}

/// The same map of the kernel, opened by aya.
fn with_aya<M: TryFrom<Map, Error: Debug>>(map: &KernelMap) -> M {
    let data = MapData::from_fd(map.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let (info, ours) = (data.info().unwrap(), map.info().unwrap());
    let theirs = (info.id(), info.map_type().unwrap() as u32, info.key_size(), info.value_size());
    let MapDefinition { map_type, key_size, value_size, max_entries, flags } = ours.definition;
    assert_eq!(theirs, (ours.id, map_type as u32, key_size, value_size));
    assert_eq!((info.max_entries(), info.map_flags()), (max_entries, flags));
    M::try_from(Map::from_map_data(data).unwrap()).unwrap()
}

#[test]
fn aya_and_the_wrapper_disagree_on_no_entry() {
    let Some(ours) = made(MapType::Hash, 16, 4) else { skip!("no bpf system call") };
    let mut theirs: HashMap<_, [u8; 16], u32> = with_aya(&ours);
    ours.update(&[1; 16], &7_u32.to_ne_bytes(), 0).unwrap();
    theirs.insert([2; 16], 8, 0).unwrap();
    assert_eq!((theirs.get(&[1; 16], 0).unwrap(), ours.lookup(&[2; 16]).unwrap()), (7, 8_u32.to_ne_bytes().to_vec()));
    let keys: Vec<Vec<u8>> = theirs.keys().map(|key| key.unwrap().to_vec()).collect();
    assert_eq!(keys, ours.entries().unwrap().into_iter().map(|(key, _)| key).collect::<Vec<_>>());
    ours.delete(&[1; 16]).unwrap();
    theirs.remove(&[2; 16]).unwrap();
    assert_eq!(ours.count().unwrap(), 0);
    assert!(matches!(theirs.get(&[1; 16], 0), Err(MapError::KeyNotFound)));

    let ours = made(MapType::LpmTrie, 8, 4).unwrap();
    let mut theirs: LpmTrie<_, [u8; 4], u32> = with_aya(&ours);
    ours.update(&[8, 0, 0, 0, 10, 0, 0, 0], &7_u32.to_ne_bytes(), 0).unwrap();
    theirs.insert(&Key::new(16, [10, 1, 0, 0]), 8, 0).unwrap();
    let [inside, outside] =
        [[10, 1, 2, 3], [10, 2, 0, 0]].map(|address| theirs.get(&Key::new(32, address), 0).unwrap());
    assert_eq!((inside, outside), (8, 7));
    assert_eq!(ours.lookup(&[32, 0, 0, 0, 10, 1, 2, 3]).unwrap(), 8_u32.to_ne_bytes());

    let ours = made(MapType::Array, 4, 8).unwrap();
    let mut theirs: Array<_, u64> = with_aya(&ours);
    ours.update(&3_u32.to_ne_bytes(), &7_u64.to_ne_bytes(), 0).unwrap();
    theirs.set(4, 8, 0).unwrap();
    assert_eq!((theirs.get(&3, 0).unwrap(), ours.lookup(&[4, 0, 0, 0]).unwrap()), (7, 8_u64.to_ne_bytes().to_vec()));

    let ours = made(MapType::PercpuArray, 4, 8).unwrap();
    let mut theirs: PerCpuArray<_, u64> = with_aya(&ours);
    let values: Vec<u64> = (1..).take(ours.value_bytes() / 8).collect();
    theirs.set(1, PerCpuValues::try_from(values.clone()).unwrap(), 0).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(ours.lookup(&[1, 0, 0, 0]).unwrap(), bytes);
}

#[test]
fn a_typed_map_of_another_kind_or_size_is_refused() {
    let (Some(map), Ok(system)) = (made(MapType::Hash, 4, 8), System::open()) else { skip!("no bpf system call") };
    system.typed::<HashMap<MapData, u32, u64>>(&map).unwrap();
    for (error, text) in [
        (system.typed::<HashMap<MapData, u64, u64>>(&map).unwrap_err(), "invalid key size 8, expected 4"),
        (system.typed::<HashMap<MapData, u32, u32>>(&map).unwrap_err(), "invalid value size 4, expected 8"),
        (system.typed::<Array<MapData, u64>>(&map).map(|_| ()).unwrap_err(), "invalid map type 1"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn each_call_to_a_typed_map_can_be_made_to_fail() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let faults = |operation: Operation| FAILS.load(Ordering::Relaxed).then_some(operation as i32 + 1);
    let Ok(system) = System::with_faults(Box::new(faults)) else { skip!("no bpf system call") };
    let [hash, cell, cpus] = [MapType::Hash, MapType::Array, MapType::PercpuArray].map(|it| made(it, 4, 8).unwrap());
    let typed: TypedHash<u32, u64> = system.typed(&hash).unwrap();
    let typed_cell: TypedCell<u64> = system.typed(&cell).unwrap();
    let typed_cpus: TypedPerCpu<u64> = system.typed(&cpus).unwrap();
    FAILS.store(true, Ordering::Relaxed);
    for (error, operation) in [
        (system.typed::<HashMap<MapData, u32, u64>>(&hash).unwrap_err(), Operation::Typed),
        (system.ring(&hash).map(|_| ()).unwrap_err(), Operation::Typed),
        (system.insert(&typed, &1, &2).unwrap_err(), Operation::Update),
        (system.remove(&typed, &1).unwrap_err(), Operation::Delete),
        (system.get(&typed, &1).unwrap_err(), Operation::Lookup),
        (system.keys(&typed).unwrap_err(), Operation::Entries),
        (system.load_cell(&typed_cell).unwrap_err(), Operation::Lookup),
        (system.store_cell(&typed_cell, &1).unwrap_err(), Operation::Update),
        (system.of_cpus(&typed_cpus, 0).unwrap_err(), Operation::Lookup),
    ] {
        assert_eq!(error.raw_os_error(), Some(operation as i32 + 1), "{operation:?}: {error}");
    }
    FAILS.store(false, Ordering::Relaxed);
    system.insert(&typed, &1, &2).unwrap();
    assert_eq!((system.get(&typed, &1).unwrap(), system.get(&typed, &2).unwrap()), (Some(2), None));
    system.remove(&typed, &2).unwrap();
    system.remove(&typed, &1).unwrap();
    assert!(system.keys(&typed).unwrap().is_empty());
}

/// The environment variable that makes `descriptor_limit_is_raised_to_the_hard_limit` change the limits of its process.
const MAY_CHANGE_LIMITS: &str = "WEIR_TEST_MAY_CHANGE_LIMITS";

/// A table is mapped in parts. Flows at the ends of the parts are found, changed and removed once each.
#[test]
fn flows_of_all_parts_of_a_table_are_found() {
    const PART: usize = 1 << 20;
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    let system = System::open().unwrap();
    for family in [Family::V4, Family::V6] {
        let slot_bytes = buckets::slot_bytes(family) as usize;
        let value_size = (2 * PART + 8 * slot_bytes) as u32;
        let flags = MapFlags::MMAPABLE.0;
        let definition = MapDefinition { map_type: MapType::Array, key_size: 4, value_size, max_entries: 1, flags };
        let map = kernel.create_map(&definition, None).unwrap();
        let ends = [0, PART - slot_bytes, PART, 2 * PART - slot_bytes, 2 * PART, value_size as usize - slot_bytes];
        let mut value = vec![0; value_size as usize];
        for (port, at) in (1..).zip(ends) {
            let [remote, local] = [2, 1].map(|it| match family {
                Family::V4 => IpAddr::from([10, 0, 0, it]),
                Family::V6 => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, u16::from(it)]),
            });
            let tuple = Tuple { ifindex: 1, protocol: 6, remote, local, remote_port: port, local_port: 80 };
            let slot = tuple.begun(Direction::Ingress, 1, 0).slot(1);
            let bytes: Vec<u8> = slot.words().iter().flat_map(|word| word.to_le_bytes()).collect();
            value[at..at + slot_bytes].copy_from_slice(&bytes);
        }
        map.update(&[0; 4], &value, 0).unwrap();
        let port = |slot: &Slot| slot.flow().map(|it| it.tuple.remote_port);
        let ports = || -> Vec<u16> { system.slots(&map, family).unwrap().iter().filter_map(port).collect() };
        assert_eq!(ports(), [1, 2, 3, 4, 5, 6], "{family:?}");
        assert_eq!(system.change_slots(&map, family, |it| port(it) > Some(1), buckets::ended).unwrap(), 5);
        system.remove_slots(&map, family, |it| port(it) != Some(3)).unwrap();
        assert_eq!(ports(), [3], "{family:?}");
    }
}

/// Limits apply to a whole process. So the test runs its own binary again with only this test, and the process of the
/// other tests keeps its limits.
#[test]
fn descriptor_limit_is_raised_to_the_hard_limit() {
    if std::env::var_os(MAY_CHANGE_LIMITS).is_some() {
        return raise_the_limit_of_this_process();
    }
    let before = getrlimit(Resource::Nofile);
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "descriptor_limit_is_raised_to_the_hard_limit", "--nocapture"]).env(MAY_CHANGE_LIMITS, "1");
    let output = again.output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
    assert_eq!(getrlimit(Resource::Nofile), before);
}

fn raise_the_limit_of_this_process() {
    let is_possible = |count: usize| {
        let files: Result<Vec<File>, _> = (0..count).map(|_| File::open("/dev/null")).collect();
        files.is_ok()
    };
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(256) }).unwrap();
    assert!(is_possible(32) && !is_possible(128), "the soft limit is 64");
    raise_descriptor_limit().unwrap();
    assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: Some(256), maximum: Some(256) });
    assert!(is_possible(128) && !is_possible(256), "the soft limit is the hard one");
    // The limit is already the highest.
    raise_descriptor_limit().unwrap();
}
