use super::*;
use weir_classes::{AtomId, AtomSet, AtomSetId, PortSpec, Row, SingleAddress};
use weir_objects::k8s::Protocol;

fn range(first: &str, last: &str, peer: u32) -> ClassRange {
    let parse = |text: &str| text.parse().expect("an address");
    ClassRange { first: parse(first), last: parse(last), peer: PeerId(peer) }
}

fn singles(count: u32) -> AddressMap {
    singles_that_move(count, 0..0)
}

/// Single addresses. Those of these numbers are added and removed alone.
fn singles_that_move(count: u32, moving: std::ops::Range<u32>) -> AddressMap {
    let single = |it: u32| {
        let address = IpAddr::from((0x0a00_0000 + it).to_be_bytes());
        SingleAddress { address, peer: PeerId(it % 7 + 1), moves: moving.contains(&it) }
    };
    AddressMap::new(&(0..count).map(single).collect::<Vec<_>>(), Vec::new())
}

const NO_ROWS: DirectionRows<'_> = DirectionRows { directions: [&[], &[]], sets: &[], words: 1, room: Room::Exact };

#[track_caller]
fn check(addresses: &AddressMap, options: &StructureOptions, expected: &[&str]) {
    let built = Structures::build(addresses, &[], NO_ROWS, options);
    let chosen: Vec<String> =
        built.notes.iter().map(|it| format!("{}={}", it.place.name(), it.structure.name())).collect();
    let chosen: Vec<&str> = chosen.iter().map(String::as_str).filter(|it| !it.ends_with("=none")).collect();
    assert_eq!(chosen, expected, "{:#?}", built.notes);
}

#[test]
fn few_addresses_are_compared_and_many_hashed() {
    check(&singles(3), &StructureOptions::default(), &["exact4=compares"]);
    check(&singles(100), &StructureOptions::default(), &["exact4=perfect"]);
}

#[test]
fn a_million_single_addresses_are_no_trie() {
    let million = singles(1_000_000);
    check(&million, &StructureOptions::default(), &["exact4=hash"]);
    check(
        &million,
        &StructureOptions { most_value_bytes: 64 << 20, ..StructureOptions::default() },
        &["exact4=perfect"],
    );
}

/// Which tables are those of the last structures: listed addresses, IPv4 prefixes, IPv6 prefixes.
#[test]
fn tables_are_made_again_only_if_their_content_changes() {
    let forced = vec![(LookupSet::Exact4, Structure::Layered)];
    let options = StructureOptions { forced, ..StructureOptions::default() };
    let ranges = [range("192.168.0.0", "192.168.9.9", 9), range("2001:db8::", "2001:db8::9", 9)];
    let singles: Vec<SingleAddress> = singles_that_move(400, 0..100).singles(Family::V4).iter().copied().collect();
    let build = |singles: &[SingleAddress], ranges: &[ClassRange], options, last: Option<&AddressStructures>| {
        AddressStructures::build(&Arc::new(AddressMap::new(singles, ranges.to_vec())), options, last)
    };
    let last = build(&singles, &ranges, &options, None);
    let kept = |singles: &[SingleAddress], ranges: &[ClassRange], options| {
        let made = build(singles, ranges, options, Some(&last));
        assert_eq!(made, build(singles, ranges, options, None), "the last structures must not matter");
        [
            Arc::ptr_eq(made.exact(Family::V4), last.exact(Family::V4)),
            Arc::ptr_eq(made.prefixes(Family::V4), last.prefixes(Family::V4)),
            Arc::ptr_eq(made.prefixes(Family::V6), last.prefixes(Family::V6)),
        ]
    };
    let with_single = |at: usize, change: fn(&mut SingleAddress)| {
        let mut singles = singles.clone();
        change(&mut singles[at]);
        singles
    };
    let with_range = |at: usize| {
        let mut ranges = ranges;
        ranges[at].peer = PeerId(8);
        ranges
    };
    assert_eq!(kept(&singles, &ranges, &options), [true; 3]);
    assert_eq!(kept(&singles[1..], &ranges, &options), [true; 3], "a pod has gone");
    assert_eq!(kept(&with_single(50, |it| it.peer = PeerId(20)), &ranges, &options), [true; 3], "a pod is another");
    let others = [with_single(150, |it| it.peer = PeerId(20)), with_single(150, |it| it.moves = true)];
    for other in others.iter().map(Vec::as_slice).chain([&singles[..399], &singles[..200]]) {
        assert_eq!(kept(other, &ranges, &options), [false, true, true], "the list has changed");
    }
    assert_eq!(kept(&singles, &with_range(0), &options), [true, false, true]);
    assert_eq!(kept(&singles, &with_range(1), &options), [true, true, false]);
    let other = StructureOptions { most_value_bytes: 1 << 20, ..options.clone() };
    assert_eq!(kept(&singles, &ranges, &other), [false; 3], "other options");
}

#[test]
fn pod_addresses_stay_apart_from_listed_addresses() {
    let of = |listed: u32, moving: u32, most_value_bytes| {
        let addresses = singles_that_move(listed + moving, 1..moving + 1);
        let forced = vec![(LookupSet::Exact4, Structure::Layered)];
        let options = StructureOptions { forced, most_value_bytes, room: Room::Exact };
        check(&addresses, &options, &["exact4=layered"]);
        let built = Structures::build(&addresses, &[], NO_ROWS, &options);
        let ExactTable::Layered(table) = built.exact(Family::V4) else { panic!("{:?}", built.notes) };
        let found = |it: IpAddr| table.as_ref().is_some_and(|table| table.find(key(it)).is_some());
        for it in addresses.singles(Family::V4).iter() {
            assert_eq!(found(it.address), table.is_some() && !it.moves, "{it:?}");
        }
        table.is_some()
    };
    assert!(of(LEAST_LISTED as u32, 100, 1 << 20));
    assert!(!of(LEAST_LISTED as u32 - 1, 100, 1 << 20), "few are worth no second look-up");
    assert!(!of(LEAST_LISTED as u32, 100, 1 << 10), "the table is too large for the target");
}

#[test]
fn table_larger_than_a_map_value_is_a_kernel_map() {
    let small = StructureOptions { most_value_bytes: 500, ..StructureOptions::default() };
    check(&singles(100), &small, &["exact4=hash"]);
    let built = Structures::build(&singles(100), &[], NO_ROWS, &small);
    assert!(built.notes[0].why.contains("perfect is larger than the target's map values"), "{}", built.notes[0]);
}

#[test]
fn an_override_is_followed_where_it_can_be() {
    let options = |text: &str| text.parse::<StructureOptions>().expect("overrides");
    check(&singles(3), &options("exact4=hash"), &["exact4=hash"]);
    check(&singles(100), &options("exact4=compares"), &["exact4=perfect"]);
    let mut both = singles(3);
    both.ranges = [range("192.168.0.0", "192.168.255.255", 9)].into();
    check(&both, &options("prefixes4=lpm, exact4=perfect"), &["exact4=perfect", "prefixes4=lpm"]);
    check(&both, &options("prefixes4=dxr"), &["exact4=compares", "prefixes4=dxr"]);
}

#[test]
fn invalid_override_is_refused() {
    for text in ["exact4", "exact4=lpm", "exact5=hash", "rows=dxr,", "prefixes6=matrix"] {
        assert!(text.parse::<StructureOptions>().is_err(), "{text}");
    }
}

#[test]
fn cuts_are_where_the_class_changes() {
    let ranges = [
        range("10.0.0.0", "10.0.0.255", 1),
        range("10.0.1.0", "10.0.1.255", 1),
        range("10.0.2.0", "10.0.2.0", 2),
        range("255.0.0.0", "255.255.255.255", 3),
        range("::1", "::2", 4),
    ];
    let at = |text: &str| to_number(text.parse().expect("an address")).1;
    let expected = [(at("10.0.0.0"), 1), (at("10.0.2.0"), 2), (at("10.0.2.1"), 0), (at("255.0.0.0"), 3)];
    assert_eq!(cuts(&ranges, Family::V4), expected);
    assert_eq!(cuts(&ranges, Family::V6), [(1, 4), (3, 0)]);
}

#[test]
fn rows_in_both_forms_say_what_the_rows_say() {
    let row = |default, entries: &[(u32, u32)]| Row {
        default: AtomSetId(default),
        entries: entries.iter().map(|(peer, set)| (PeerId(*peer), AtomSetId(*set))).collect(),
    };
    let ingress = [row(0, &[(1, 2), (5, 1)]), row(1, &[])];
    let egress = [row(2, &[(0, 1), (4, 0)]), row(0, &[(5, 2)])];
    let sets = [AtomSet::none(70), AtomSet::all(70), AtomSet::all(70)];
    let rows = |room| DirectionRows { directions: [&ingress, &egress], sets: &sets, words: 2, room };
    let tables = [Room::Exact, Room::Rounded].map(rows).map(|rows| [rows::matrix(rows), rows::hash(rows)]);
    let rows = rows(Room::Exact);
    for table in tables.into_iter().flatten().map(|it| it.expect("a table")) {
        for (direction, of_direction) in rows.directions.iter().enumerate() {
            for (subject, row) in of_direction.iter().enumerate() {
                for peer in 0..9 {
                    let found = table.find(direction, subject as u32, peer);
                    assert_eq!(found, Some(row.find(PeerId(peer)).0), "{direction} {subject} {peer}");
                }
            }
        }
        if table.shape.subjects > 2 {
            let found = table.find(0, 2, 0).expect("a place without a subject class");
            assert!(found >= table.shape.sets, "a packet of no subject class is dropped: {found}");
        }
    }
}

/// Changes each byte of a table that adds to another one. Only places that no known class leads to may differ.
#[test]
fn a_table_that_only_adds_says_the_same_of_all_known_classes() {
    let row = |default, entries: &[(u32, u32)]| Row {
        default: AtomSetId(default),
        entries: entries.iter().map(|(peer, set)| (PeerId(*peer), AtomSetId(*set))).collect(),
    };
    let set = |atoms: &[usize]| {
        let mut set = AtomSet::none(70);
        atoms.iter().for_each(|atom| set.insert(weir_classes::AtomId(*atom as u32)));
        set
    };
    let all_sets = [set(&[1]), set(&[2, 69]), set(&[3])];
    let made = |entries: [&[(u32, u32)]; 2], sets: usize, room| {
        let (ingress, egress) = ([row(0, entries[0]), row(1, &[])], [row(1, &[(0, 1)]), row(0, entries[1])]);
        let rows = DirectionRows { directions: [&ingress, &egress], sets: &all_sets[..sets], words: 2, room };
        rows::matrix(rows).expect("a table")
    };
    let (sets, peers) = (2, 4);
    let before = made([&[(1, 1), (3, 1)], &[(2, 1)]], sets, Room::Rounded);
    let after = made([&[(1, 1), (3, 1), (4, 2)], &[(2, 1), (5, 1)]], 3, Room::Rounded);
    let known = |bytes: &[u8]| {
        let table = rows::RowTableBytes { bytes: bytes.to_vec(), shape: before.shape };
        let of = |peer| (0..2).flat_map(|side| (0..8).map(move |subject| (side, subject, peer))).collect::<Vec<_>>();
        let found = (0..peers).chain([99]).flat_map(of).map(|(side, subject, peer)| table.find(side, subject, peer));
        (found.collect::<Vec<_>>(), bytes[..8 * 2 * sets].to_vec())
    };
    let adds = |bytes: &[u8]| before.shape.only_adds((&before.bytes, sets, peers as usize), bytes);
    assert!(before.shape == after.shape && before.bytes != after.bytes && adds(&after.bytes));
    let mut free = 0;
    for place in 0..after.bytes.len() {
        let mut bytes = after.bytes.clone();
        bytes[place] ^= 0x40;
        assert_eq!(adds(&bytes), known(&bytes) == known(&before.bytes), "byte {place}");
        free += usize::from(adds(&bytes));
    }
    assert!(free > 100 && free < after.bytes.len() - 100, "{free} of {}", after.bytes.len());
    assert!(!adds(&after.bytes[1..]) && !adds(&[]));
}

#[test]
fn few_ranges_of_ports_are_compared_and_many_searched() {
    let interval = |number: u16, protocol| PortInterval {
        spec: PortSpec { protocol, first: 3 * number, last: 3 * number + 1 },
        atom: AtomId(u32::from(number) + 1),
    };
    let ports = |count| -> Vec<_> { (0..count).map(|it| interval(it, Protocol::Tcp)).collect() };
    let build = |ports: &[PortInterval], text: &str| {
        Structures::build(&AddressMap::default(), ports, NO_ROWS, &text.parse().expect("overrides")).ports
    };
    assert_eq!(build(&ports(3), ""), PortTable::Compares);
    assert_eq!(build(&ports(500), "ports=compares"), PortTable::Compares);
    let mixed = [ports(500), vec![interval(0, Protocol::Sctp), interval(9, Protocol::Udp)]].concat();
    let PortTable::Search(table) = build(&mixed, "") else { panic!("searched") };
    for protocol in [0, 6, 17, 132, 255] {
        for port in (0..2_000).chain([u16::MAX]) {
            let holds = |it: &&PortInterval| {
                u32::from(it.spec.protocol.number()) == protocol && (it.spec.first..=it.spec.last).contains(&port)
            };
            let expected = mixed.iter().find(holds).map_or(0, |it| it.atom.0);
            assert_eq!(table.find(port_key(protocol, port).into()), Some(expected), "{protocol} {port}");
        }
    }
}
