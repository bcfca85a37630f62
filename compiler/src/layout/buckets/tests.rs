use super::*;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn remote(family: Family) -> IpAddr {
    let text = if family == Family::V4 { "192.0.2.7" } else { "2001:db8::1:2:3:7" };
    text.parse().expect("an address")
}

/// A flow as a kernel map would have it.
fn entry(family: Family, state: State) -> (Vec<u8>, Vec<u8>) {
    let mut value = vec![0; flow::BYTES as usize];
    value[..8].copy_from_slice(&0x0102_0304_0506u64.to_le_bytes());
    value[flow::EPOCH as usize] = 9;
    value[flow::BEGUN as usize] = 1;
    value[flow::STATE as usize] = state as u8;
    value[flow::OWN_NODE as usize] = 2;
    value[flow::ANSWERED as usize] = 1;
    let local = address_bytes(remote(family));
    value[flow::LOCAL as usize..][..local.len()].copy_from_slice(&local);
    (key(77, remote(family), [443, 40_000], 6), value)
}

#[test]
fn a_flow_comes_back_as_it_went_in() {
    for family in FAMILIES {
        for state in [State::TcpFresh, State::TcpOpen, State::OtherOpen] {
            let (key, value) = entry(family, state);
            let slot = Slot::of(family, &key, &value, 5).expect("a flow");
            assert_eq!(slot.entry(), (key, value));
            assert_eq!((slot.is_live(), slot.ifindex()), (true, 77));
            assert_eq!(slot.is_confirmed(), state != State::TcpFresh);
            assert_eq!(slot.words().len() * 8, slot_bytes(family) as usize);
        }
    }
}

#[test]
fn what_has_lost_its_flow_is_free_and_has_another_number() {
    let (key, value) = entry(Family::V4, State::TcpOpen);
    let slot = Slot::of(Family::V4, &key, &value, 5).expect("a flow");
    let dead = dead(slot.word());
    assert_eq!((dead & LIVE, dead & 0xffff, dead >> SEQUENCE_SHIFT), (0, 0, 6));
    assert_eq!(super::dead(u64::MAX), 0, "the number begins again");
}

#[test]
fn a_table_has_two_slots_for_a_flow_and_is_no_larger_than_it_may_be() {
    assert_eq!(table_bytes(Family::V4, 1_024, u64::MAX), 2 * 1_024 * 32);
    assert_eq!(table_bytes(Family::V6, 1_025, u64::MAX), 4 * 1_024 * 64);
    assert_eq!(table_bytes(Family::V4, 1 << 40, 4 << 20), 4 << 20);
    assert_eq!(table_bytes(Family::V4, 1 << 40, (4 << 20) + 5), 4 << 20);
    assert_eq!(table_bytes(Family::V4, u64::MAX, u64::MAX), 1 << 29);
    assert_eq!(table_bytes(Family::V4, 0, 0), WAYS * 32);
}

/// The places of slots, and no other numbers.
#[test]
fn a_hash_within_the_mask_is_a_slot() {
    assert_eq!(mask(Family::V4, 1 << 16), 0xffe0);
    assert_eq!(mask(Family::V6, 1 << 16), 0xffc0);
}

/// Flows that differ in one thing fill a table like random ones.
#[test]
fn no_part_of_a_key_is_without_influence() {
    for family in FAMILIES {
        let bytes = table_bytes(family, 4_096, u64::MAX);
        let of = |key: Vec<u8>| Slot::of(family, &key, &[0; 32], 0).expect("a flow");
        let home = |key: Vec<u8>| of(key).home(&KNOWN_SEEDS, mask(family, bytes));
        let vary: [&dyn Fn(u32) -> Vec<u8>; 4] = [
            &|it| key(it, remote(family), [443, 40_000], 6),
            &|it| key(77, remote(family), [it as u16, 40_000], 6),
            &|it| key(77, remote(family), [443, it as u16], 6),
            &|it| key(77, other(family, it), [443, 40_000], 6),
        ];
        for of_part in vary {
            let homes: std::collections::BTreeSet<u64> = (0..4_096).map(|it| home(of_part(it))).collect();
            assert!(homes.len() > 2_500, "{family:?}: {} homes of 4,096 flows in 8,192 slots", homes.len());
        }
        let [tcp, udp] = [6, 17].map(|protocol| home(key(77, remote(family), [443, 40_000], protocol)));
        assert_ne!(tcp, udp);
    }
}

fn other(family: Family, number: u32) -> IpAddr {
    match family {
        Family::V4 => std::net::Ipv4Addr::from(0x0a00_0000 + number).into(),
        Family::V6 => std::net::Ipv6Addr::from(u128::from(number) << 64 | 7).into(),
    }
}
