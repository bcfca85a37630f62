use super::*;
use std::collections::BTreeMap;

use weir_fuzz::generators::Random;

/// Checks that every key of the table is found, and that neighbouring and random keys are not.
#[track_caller]
fn check(width: KeyWidth, keys: impl IntoIterator<Item = u64>) {
    let key = |low: u64| match width {
        KeyWidth::W4 => [low & 0xffff_ffff, 0],
        KeyWidth::W8 => [low, 0],
        KeyWidth::W16 => [low.rotate_left(17), low],
    };
    let numbered = keys.into_iter().enumerate().map(|(number, low)| (key(low), number as u32));
    let expected: BTreeMap<HashKey, u32> = numbered.collect();
    let entries: Vec<(HashKey, u32)> = expected.iter().map(|(key, number)| (*key, *number)).collect();
    [Room::Exact, Room::Rounded].into_iter().for_each(|room| check_with(room, width, &entries, &expected, key));
}

#[track_caller]
fn check_with(
    room: Room,
    width: KeyWidth,
    entries: &[(HashKey, u32)],
    expected: &BTreeMap<HashKey, u32>,
    key: impl Fn(u64) -> HashKey,
) {
    let table = build(width, entries, room).expect("a table");
    assert_eq!(table.bytes.len(), table.shape.bytes());
    assert_eq!(Some(&table), build(width, entries, room).as_ref(), "the same entries, the same bytes");
    let mut random = Random::new(entries.len() as u64);
    for (found, number) in entries {
        assert_eq!(table.find(*found), Some(*number));
        let [low, high] = *found;
        for other in [[low ^ 1, high], [low.wrapping_add(1), high], [low, high ^ 1], key(random.number())] {
            let other = if width == KeyWidth::W16 { other } else { key(other[0]) };
            assert_eq!(table.find(other), expected.get(&other).copied(), "{other:x?}");
        }
    }
}

#[test]
fn only_the_entries_of_the_table_are_found() {
    for width in [KeyWidth::W4, KeyWidth::W8, KeyWidth::W16] {
        for count in [1, 2, 3, 5, 17, 64, 1_000] {
            let mut random = Random::new(count);
            check(width, (0..count).map(|_| random.number()));
            check(width, 0..count);
            check(width, (0..count).map(|it| it << 8));
            check(width, (0..count).map(|it| u64::MAX - it));
            check(width, (0..count.min(64)).map(|it| 1 << it));
        }
    }
}

#[test]
fn a_hundred_thousand_neighbours_fit_in_ten_bytes_each() {
    check(KeyWidth::W4, 0x0a00_0000..0x0a00_0000 + 100_000);
    assert!(predict(KeyWidth::W4, 100_000, Room::Exact) <= 1_000_000);
    assert!(predict(KeyWidth::W16, 100_000, Room::Exact) <= 2_700_000);
}

#[test]
fn no_entries_and_equal_keys_give_no_table() {
    assert_eq!(build(KeyWidth::W4, &[], Room::Exact), None);
    assert_eq!(build(KeyWidth::W4, &[([7, 0], 1), ([7, 0], 2)], Room::Exact), None);
}
