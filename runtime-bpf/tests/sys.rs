//! The wrapper of the system call: values that are written can be read back, and lengths are checked before the system
//! call.

use weir_runtime::skip;
use weir_runtime::sys::{BpfKernel, KernelMap, MapDefinition, MapType};

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
