use super::*;

const AT: Pointers = Pointers { len: 60, data: 0x1000, data_end: 0x103c };

fn skb() -> Skb {
    Skb { mark: 0x1122_3344, protocol: 0x86dd, cb: [1, 2, 3, 4, 5], ..Skb::new(vec![0; 60]) }
}

#[track_caller]
fn check(field: i16, bytes: u64, expected: Result<u64, AccessFault>) {
    assert_eq!(read(&skb(), AT, field as u64, bytes), expected, "{bytes} bytes at {field}");
}

#[test]
fn pointers_are_whole_though_their_fields_have_four_bytes() {
    check(field::DATA, 4, Ok(0x1000));
    check(field::DATA_END, 4, Ok(0x103c));
    check(field::DATA, 8, Err(AccessFault::Misaligned));
    check(field::DATA_END, 8, Err(AccessFault::NotAllowed));
    check(field::DATA, 2, Err(AccessFault::NotAllowed));
}

#[test]
fn fields_can_be_read_in_part() {
    check(field::MARK, 4, Ok(0x1122_3344));
    check(field::MARK, 2, Ok(0x3344));
    check(field::MARK + 2, 2, Ok(0x1122));
    check(field::MARK + 3, 1, Ok(0x11));
    check(field::MARK + 1, 2, Err(AccessFault::Misaligned));
    check(field::MARK, 8, Err(AccessFault::NotAllowed));
    check(field::CB + 8, 8, Ok(4 << 32 | 3));
}

#[test]
fn the_protocol_is_in_network_order() {
    check(field::PROTOCOL, 4, Ok(0xdd86));
    check(field::PROTOCOL + 2, 2, Err(AccessFault::NotAllowed));
}

#[test]
fn context_fields_hidden_from_tc_programs_are_refused() {
    for field in [88, 92, 96, 100, 132, 136, 144, 168] {
        check(field, 4, Err(AccessFault::NotAllowed));
    }
    check(192, 4, Err(AccessFault::Outside));
    check(-4, 4, Err(AccessFault::Outside));
}

#[test]
fn only_some_fields_can_be_written() {
    let mut skb = skb();
    assert_eq!(write(&mut skb, field::MARK as u64, 4, 7), Ok(()));
    assert_eq!(write(&mut skb, field::MARK as u64, 2, 8), Err(AccessFault::NotAllowed));
    assert_eq!(write(&mut skb, field::LEN as u64, 4, 9), Err(AccessFault::NotAllowed));
    assert_eq!(write(&mut skb, field::CB as u64 + 6, 2, 0xabcd), Ok(()));
    assert_eq!(write(&mut skb, field::CB as u64 + 20, 4, 1), Err(AccessFault::NotAllowed));
    assert_eq!((skb.mark, skb.cb), (7, [1, 0xabcd_0002, 3, 4, 5]));
}
