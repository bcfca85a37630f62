use super::super::Vm;
use super::*;

fn vm(kind: MapKind, max_entries: u32) -> (Vm, MapId) {
    let flags = if kind == MapKind::LpmTrie { MapFlags::NO_PREALLOC } else { MapFlags::default() };
    let key_size = if kind == MapKind::LpmTrie { 8 } else { 4 };
    let mut vm = Vm::new(2);
    let map = vm.create_map(MapSpec { kind, key_size, value_size: 4, max_entries, flags }).unwrap();
    (vm, map)
}

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

#[test]
fn update_flags_have_their_errors() {
    let (mut vm, map) = vm(MapKind::Hash, 2);
    assert_eq!(vm.map_update(map, &key(1), &[0; 4], EXIST), Err(Errno::NoEnt));
    assert_eq!(vm.map_update(map, &key(1), &[1; 4], NOEXIST), Ok(()));
    assert_eq!(vm.map_update(map, &key(1), &[2; 4], NOEXIST), Err(Errno::Exist));
    assert_eq!(vm.map_update(map, &key(1), &[3; 4], EXIST), Ok(()));
    assert_eq!(vm.map_update(map, &key(1), &[4; 4], 4), Err(Errno::Inval));
    assert_eq!(vm.map_lookup(map, &key(1)), Ok(vec![3; 4]));
    assert_eq!(vm.map_update(map, &key(2), &[5; 4], ANY), Ok(()));
    assert_eq!(vm.map_update(map, &key(3), &[5; 4], ANY), Err(Errno::TooBig));
    assert_eq!(vm.map_delete(map, &key(1)), Ok(()));
    assert_eq!(vm.map_delete(map, &key(1)), Err(Errno::NoEnt));
    assert_eq!(vm.map_update(map, &key(3), &[5; 4], ANY), Ok(()));
}

#[test]
fn an_array_neither_grows_nor_shrinks() {
    let (mut vm, map) = vm(MapKind::Array, 2);
    assert_eq!(vm.map_lookup(map, &key(1)), Ok(vec![0; 4]));
    assert_eq!(vm.map_lookup(map, &key(2)), Err(Errno::NoEnt));
    assert_eq!(vm.map_update(map, &key(2), &[0; 4], ANY), Err(Errno::TooBig));
    assert_eq!(vm.map_update(map, &key(1), &[0; 4], NOEXIST), Err(Errno::Exist));
    assert_eq!(vm.map_delete(map, &key(1)), Err(Errno::Inval));
}

#[test]
fn the_longest_prefix_wins() {
    let (mut vm, map) = vm(MapKind::LpmTrie, 3);
    let prefix = |length: u8, address: [u8; 4]| [[length, 0, 0, 0], address].concat();
    vm.map_update(map, &prefix(0, [9, 9, 9, 9]), &[0; 4], ANY).unwrap();
    vm.map_update(map, &prefix(8, [10, 1, 2, 3]), &[8; 4], ANY).unwrap();
    vm.map_update(map, &prefix(25, [10, 1, 2, 200]), &[25; 4], ANY).unwrap();
    let look = |length, address| vm.map_lookup(map, &prefix(length, address)).map(|value| value[0]);
    assert_eq!(look(32, [10, 1, 2, 129]), Ok(25));
    assert_eq!(look(32, [10, 1, 2, 127]), Ok(8));
    assert_eq!(look(24, [10, 1, 2, 129]), Ok(8));
    assert_eq!(look(32, [11, 1, 2, 129]), Ok(0));
    assert_eq!(look(33, [10, 1, 2, 129]), Err(Errno::NoEnt));
    assert_eq!(vm.map_update(map, &prefix(32, [1; 4]), &[0; 4], ANY), Err(Errno::NoSpc));
    assert_eq!(vm.map_update(map, &prefix(33, [1; 4]), &[0; 4], ANY), Err(Errno::Inval));
}

#[test]
fn a_per_cpu_value_has_room_for_each_cpu() {
    let (mut vm, map) = vm(MapKind::PercpuArray, 1);
    let value = [[1; 4], [0; 4], [2; 4], [0; 4]].concat();
    assert_eq!(vm.map_update(map, &key(0), &value[..4], ANY), Err(Errno::Inval));
    assert_eq!(vm.map_update(map, &key(0), &value, ANY), Ok(()));
    assert_eq!(vm.map_lookup(map, &key(0)), Ok(value));
}

#[test]
fn keys_of_another_size_are_refused() {
    let (mut vm, map) = vm(MapKind::Hash, 1);
    assert_eq!(vm.map_update(map, &[0; 3], &[0; 4], ANY), Err(Errno::Inval));
    assert_eq!(vm.map_lookup(map, &[0; 5]), Err(Errno::Inval));
    assert_eq!(vm.map_delete(map, &[]), Err(Errno::Inval));
}
