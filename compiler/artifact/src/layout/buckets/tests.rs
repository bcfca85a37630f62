use super::*;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn remote(family: Family) -> IpAddr {
    let text = if family == Family::V4 { "192.0.2.7" } else { "2001:db8::1:2:3:7" };
    text.parse().expect("an address")
}

fn tuple(family: Family) -> Tuple {
    let remote = remote(family);
    Tuple { ifindex: 77, protocol: 6, remote, local: other(family, 9), remote_port: 443, local_port: 40_000 }
}

fn flow(family: Family, state: FlowState) -> StoredFlow {
    let last = 0x0102_0304_0506;
    let flow = tuple(family).begun(Direction::Egress, 0x0098_7654, last);
    StoredFlow { state, origin: Origin::Itself, answered: true, fins: [false, true], is_cut: true, ..flow }
}

#[test]
fn a_flow_comes_back_as_it_went_in() {
    for family in FAMILIES {
        for state in FlowState::ALL {
            let flow = flow(family, state);
            let slot = flow.slot(5);
            assert_eq!(slot.flow(), Some(flow));
            assert_eq!((slot.is_live(), slot.ifindex()), (true, 77));
            assert_eq!(slot.word() >> STATE_SHIFT & 1 == 1, state.is_confirmed(), "programs test one bit");
            assert_eq!(slot.words().len() * 8, slot_bytes(family) as usize);
        }
    }
}

#[test]
fn a_dead_slot_is_free_and_has_the_next_number() {
    let slot = flow(Family::V4, FlowState::TcpOpen).slot(5);
    let dead = dead(slot.word());
    assert_eq!((dead & LIVE, dead & 0xffff, dead >> SEQUENCE_SHIFT), (0, 0, 6));
    assert_eq!(super::dead(u64::MAX), 0, "the number begins again");
}

#[test]
fn an_ended_flow_is_cut_and_otherwise_the_same() {
    let flow = StoredFlow { is_cut: false, ..flow(Family::V6, FlowState::UdpOpen) };
    let slot =
        Slot::new(Family::V6, [ended(flow.slot(3).word())].into_iter().chain(flow.slot(3).words()[1..].to_vec()));
    assert_eq!(slot.and_then(|it| it.flow()), Some(StoredFlow { is_cut: true, fins: [true, true], ..flow }));
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

/// A masked hash is always the place of a slot.
#[test]
fn a_hash_within_the_mask_is_a_slot() {
    assert_eq!(mask(Family::V4, 1 << 16), 0xffe0);
    assert_eq!(mask(Family::V6, 1 << 16), 0xffc0);
}

/// Flows that differ in one part of the key spread over a table like random ones.
#[test]
fn no_part_of_a_key_is_without_influence() {
    for family in FAMILIES {
        let bytes = table_bytes(family, 4_096, u64::MAX);
        let home = |it: Tuple| it.begun(Direction::Egress, 1, 0).slot(0).home(&KNOWN_SEEDS, mask(family, bytes));
        let same = tuple(family);
        let vary: [&dyn Fn(u32) -> Tuple; 4] = [
            &|it| Tuple { ifindex: it, ..same },
            &|it| Tuple { remote_port: it as u16, ..same },
            &|it| Tuple { local_port: it as u16, ..same },
            &|it| Tuple { remote: other(family, it), ..same },
        ];
        for of_part in vary {
            let homes: std::collections::BTreeSet<u64> = (0..4_096).map(|it| home(of_part(it))).collect();
            assert!(homes.len() > 2_500, "{family:?}: {} homes of 4,096 flows in 8,192 slots", homes.len());
        }
        let [tcp, udp] = [6, 17].map(|protocol| home(Tuple { protocol, ..same }));
        assert_ne!(tcp, udp);
    }
}

fn other(family: Family, number: u32) -> IpAddr {
    match family {
        Family::V4 => std::net::Ipv4Addr::from(0x0a00_0000 + number).into(),
        Family::V6 => std::net::Ipv6Addr::from(u128::from(number) << 64 | 7).into(),
    }
}
