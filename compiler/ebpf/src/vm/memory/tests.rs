use super::*;

fn values(count: u64, size: u64) -> (Memory, RegionId) {
    let mut memory = Memory::new();
    let region = memory.add(MemoryRegion::Value(MapId(0)), size, true);
    memory.grow(region, count);
    (memory, region)
}

#[test]
fn an_element_is_readable_to_its_last_byte_and_no_further() {
    for size in [1, 2, 7, 8, 9, 16, 63, 64, 65, 512] {
        let (memory, region) = values(3, size);
        for element in 0..3 {
            let start = memory.element(region, element);
            assert!(memory.load::<1>(start).is_ok());
            assert!(memory.load::<1>(start + size - 1).is_ok());
            assert_eq!(memory.load::<1>(start + size), Err(AccessFault::Outside), "{size}");
            assert_eq!(memory.load::<1>(start.wrapping_sub(1)), Err(AccessFault::Outside), "{size}");
            assert_eq!(memory.load::<2>(start + size - 1), Err(AccessFault::Outside), "{size}");
        }
        assert_eq!(memory.load::<1>(memory.element(region, 3)), Err(AccessFault::Outside));
    }
}

#[test]
fn elements_do_not_share_bytes() {
    let (mut memory, region) = values(2, 8);
    memory.store(memory.element(region, 0), 1_u64.to_le_bytes()).unwrap();
    memory.store(memory.element(region, 1), 2_u64.to_le_bytes()).unwrap();
    assert_eq!(memory.bytes(region, 0), 1_u64.to_le_bytes());
    assert_eq!(memory.bytes(region, 1), 2_u64.to_le_bytes());
}

#[test]
fn null_and_small_numbers_are_nothing() {
    let memory = Memory::new();
    for address in [0, 1, 4096, u64::from(u32::MAX), u64::MAX] {
        assert_eq!(memory.load::<1>(address), Err(AccessFault::Outside));
    }
}

/// A memory with one frame, and the top of the frame.
fn in_frame() -> (Memory, u64) {
    let mut memory = Memory::new();
    memory.enter_frame(1);
    let top = memory.frame_pointer(0);
    (memory, top)
}

#[test]
fn stack_must_be_written_before_it_is_read() {
    let (mut memory, top) = in_frame();
    assert_eq!(memory.load::<4>(top - 8), Err(AccessFault::Uninitialised));
    memory.store(top - 8, [1_u8; 4]).unwrap();
    assert_eq!(memory.load::<4>(top - 8), Ok([1; 4]));
    assert_eq!(memory.load::<8>(top - 8), Err(AccessFault::Uninitialised));
    assert_eq!(memory.slice(top - 8, 5), Err(AccessFault::Uninitialised));
    assert_eq!(memory.slice(top - 8, 4), Ok([1; 4].as_slice()));
    memory.slice_mut(top - 512, 512).unwrap();
    assert!(memory.slice(top - 512, 512).is_ok());
    memory.enter_frame(1);
    assert_eq!(memory.load::<4>(top - 8), Err(AccessFault::Uninitialised));
}

#[test]
fn a_frame_ends_with_its_function() {
    let mut memory = Memory::new();
    memory.enter_frame(1);
    memory.enter_frame(2);
    let inner = memory.frame_pointer(1) - 8;
    memory.store(inner, [0_u8; 8]).unwrap();
    memory.leave_frame(1);
    assert_eq!(memory.load::<8>(inner), Err(AccessFault::Outside));
}

#[test]
fn stack_accesses_are_aligned() {
    let (mut memory, top) = in_frame();
    assert_eq!(memory.store(top - 7, [0_u8; 4]), Err(AccessFault::Misaligned));
    assert_eq!(memory.store(top, [0_u8; 1]), Err(AccessFault::Outside));
    assert_eq!(memory.store(top - 513, [0_u8; 1]), Err(AccessFault::Outside));
}

#[test]
fn bits_of_written_bytes_cross_words() {
    assert_eq!(words(60, 8).collect::<Vec<_>>(), [(0, 0xf << 60), (1, 0xf)]);
    assert_eq!(words(0, 128).collect::<Vec<_>>(), [(0, u64::MAX), (1, u64::MAX)]);
    assert_eq!(words(5, 1).collect::<Vec<_>>(), [(0, 1 << 5)]);
    assert_eq!(words(5, 0).count(), 0);
}

#[test]
fn a_moved_packet_leaves_stale_pointers() {
    let mut memory = Memory::new();
    memory.set_packet(vec![7; 100], 40);
    let (old, end) = memory.packet_pointers();
    assert_eq!(end - old, 40);
    assert_eq!(memory.load::<1>(old + 40), Err(AccessFault::Outside));
    memory.move_packet(100);
    assert_eq!(memory.load::<1>(old), Err(AccessFault::Outside));
    assert_eq!(memory.describe(old).region, MemoryRegion::StalePacket);
    let (new, _) = memory.packet_pointers();
    assert_eq!(memory.load::<1>(new + 99), Ok([7]));
}

#[test]
fn places_are_named_by_the_object_that_was_meant() {
    let (memory, region) = values(2, 16);
    let before = memory.describe(region.base() - 4);
    assert_eq!((before.region, before.offset), (MemoryRegion::Value(MapId(0)), -4));
    let after = memory.describe(memory.element(region, 1) + 16);
    assert_eq!((after.element, after.offset, after.size), (1, 16, 16));
}

#[test]
fn atomics_go_to_values_and_aligned_only() {
    let (mut memory, region) = values(1, 16);
    memory.set_packet(vec![0; 64], 64);
    assert_eq!(memory.check_atomic(region.base() + 8, 8), Ok(()));
    assert_eq!(memory.check_atomic(region.base() + 4, 8), Err(AccessFault::Misaligned));
    assert_eq!(memory.check_atomic(memory.packet_pointers().0, 4), Err(AccessFault::NotAllowed));
}
