use super::*;

const LINK: u16 = libc::RTM_NEWLINK;
const DONE: u16 = libc::NLMSG_DONE as u16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const INTERRUPTED: u16 = NLM_F_DUMP_INTR as u16;
const EXPLAINED: u16 = NLM_F_ACK_TLVS as u16;
const CAPPED: u16 = NLM_F_CAPPED as u16;

/// The bytes of a message of the kernel: the length of everything, kind, flags, sequence number, port, payload.
fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = (16 + payload.len() as u32).to_ne_bytes();
    let mut bytes = [&length, &kind.to_ne_bytes()[..], &flags.to_ne_bytes(), &sequence.to_ne_bytes(), &[0; 4]].concat();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn list(sequence: u32) -> NetlinkAnswer {
    NetlinkRequest::new::<[u8; 16]>(libc::RTM_GETLINK, NLM_F_DUMP).numbered(sequence).1
}

fn done(flags: u16, sequence: u32) -> Vec<u8> {
    message(DONE, flags, sequence, &[0; 4])
}

/// `struct nlattr` and a text that ends with a zero.
fn explanation(text: &str) -> Vec<u8> {
    let mut request = NetlinkRequest(Vec::new());
    request.text(NLMSGERR_ATTR_MSG as u16, text);
    request.0
}

#[test]
fn answers_to_other_requests_are_skipped() {
    let mut answer = list(7);
    let late = [message(LINK, 0, 6, b"late"), done(0, 6)].concat();
    assert!(!answer.take(&late).unwrap());
    assert!(!answer.take(&message(LINK, 0, 7, b"ours")).unwrap());
    assert!(!answer.take(&message(ERROR, 0, 6, &[(-libc::EPERM).to_ne_bytes(), [0; 4]].concat())).unwrap());
    assert!(answer.take(&[message(LINK, 0, 8, b"early"), done(0, 7)].concat()).unwrap());
    assert_eq!(answer.payloads, [b"ours"]);
}

#[test]
fn an_interrupted_list_is_read_again() {
    for flags in [[INTERRUPTED, 0], [0, INTERRUPTED]] {
        let mut asked = 0;
        let payloads = complete(|| {
            asked += 1;
            let [first, last] = if asked < ATTEMPTS { flags } else { [0, 0] };
            let mut answer = list(asked as u32);
            // The list is read to its end: before that, the kernel accepts no other request for a list.
            assert!(!answer.take(&message(LINK, first, asked as u32, b"half")).unwrap());
            assert!(answer.take(&done(last, asked as u32)).unwrap());
            Ok(answer)
        });
        assert_eq!((payloads.unwrap(), asked), (vec![b"half".to_vec()], ATTEMPTS));
    }
}

#[test]
fn a_list_that_is_always_interrupted_is_an_error() {
    let mut asked = 0;
    let result = complete(|| {
        asked += 1;
        let mut answer = list(1);
        assert!(answer.take(&done(INTERRUPTED, 1)).unwrap());
        Ok(answer)
    });
    assert_eq!(asked, ATTEMPTS);
    assert!(result.unwrap_err().to_string().contains("changed while the kernel sent it"));
}

#[test]
fn the_kernels_explanation_is_in_the_error() {
    let number = (-libc::EINVAL).to_ne_bytes();
    let text = explanation("Specified qdisc kind is unknown");
    // The error is followed by the request, here of 22 bytes, or only by its header.
    let request = message(36, 0, 3, &[0; 6]);
    let whole = [&number[..], &request, &text].concat();
    let capped = [&number[..], &request[..16], &text].concat();
    let list = [&number[..], &text].concat();
    for (kind, flags, payload) in [(ERROR, 0, whole), (ERROR, CAPPED, capped), (DONE, 0, list)] {
        let mut request = NetlinkRequest::new::<[u8; 20]>(libc::RTM_NEWQDISC, NLM_F_ACK);
        let error = request.numbered(3).1.take(&message(kind, flags | EXPLAINED, 3, &payload)).unwrap_err();
        assert_eq!(error.to_string(), "Invalid argument (os error 22): Specified qdisc kind is unknown");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        // Without the flag, the bytes after the request have no meaning.
        let error = request.numbered(3).1.take(&message(kind, flags, 3, &payload)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}

#[test]
fn an_acknowledgement_ends_an_answer() {
    let mut answer = NetlinkRequest::new::<[u8; 20]>(libc::RTM_NEWQDISC, NLM_F_ACK).numbered(3).1;
    let acknowledged = [&[0; 4][..], &message(36, 0, 3, &[])].concat();
    assert!(answer.take(&message(ERROR, CAPPED, 3, &acknowledged)).unwrap());
    let mut answer = NetlinkRequest::new::<[u8; 16]>(libc::RTM_GETLINK, 0).numbered(3).1;
    assert!(answer.take(&message(LINK, 0, 3, b"one")).unwrap(), "a request without acknowledgement has one message");
    assert_eq!(answer.payloads, [b"one"]);
}

#[test]
fn a_message_that_is_cut_off_is_an_error() {
    let first = message(LINK, 0, 5, b"whole");
    let second = message(LINK, 0, 5, b"cut off");
    let both = [first.clone(), second].concat();
    for length in first.len() + 1..both.len() - 1 {
        let error = list(5).take(&both[..length]).unwrap_err();
        assert!(error.to_string().contains("cut off"), "{length} bytes");
    }
    // A length below that of the header would never get to the next message.
    let mut endless = both;
    put(&mut endless, 0, 12_u32.to_ne_bytes());
    list(5).take(&endless).unwrap_err();
}

#[test]
fn attributes_end_before_one_that_is_cut_off() {
    let mut request = NetlinkRequest(Vec::new());
    request.attribute(3, b"abcde");
    request.nested(0x8000 | 18, |inner| inner.text(1, "veth"));
    let bytes = request.0;
    let all: Vec<_> = attributes(&bytes).collect();
    assert_eq!(all[0], (3, &b"abcde"[..]));
    assert_eq!((all[1].0, attributes(all[1].1).next()), (18, Some((1, &b"veth\0"[..]))));
    for length in 0..bytes.len() {
        assert!(attributes(&bytes[..length]).count() < 2, "{length} bytes");
    }
    assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0, "shorter than its own header");
}

#[test]
fn only_messages_about_one_interface_name_it() {
    let about = |kind: u16, interface: i32| message(kind, 0, 0, &[[0; 4], interface.to_ne_bytes()].concat());
    assert_eq!(interface_of(&about(libc::RTM_NEWTFILTER, 7)), Some(7));
    assert_eq!(interface_of(&about(libc::RTM_DELLINK, 7)), Some(7));
    assert_eq!(interface_of(&about(RTM_NEWCHAIN, 7)), Some(7));
    assert_eq!(interface_of(&about(RTM_NEWCHAIN, -1)), None);
    assert_eq!(interface_of(&about(libc::RTM_NEWTFILTER, -1)), None, "a block that interfaces share");
    assert_eq!(interface_of(&about(libc::RTM_NEWTFILTER, 0)), None);
    assert_eq!(interface_of(&about(libc::RTM_NEWACTION, 7)), None, "its structure is another one");
    assert_eq!(interface_of(&about(libc::RTM_NEWTFILTER, 7)[..TO_INTERFACE - 1]), None);
}

#[test]
fn only_a_new_link_of_no_family_says_that_an_interface_is_there() {
    let about = |kind: u16, family: i32| message(kind, 0, 0, &[[family as u8, 0, 0, 0], 7_i32.to_ne_bytes()].concat());
    assert!(is_there(&about(libc::RTM_NEWLINK, libc::AF_UNSPEC)));
    assert!(!is_there(&about(libc::RTM_NEWLINK, libc::AF_BRIDGE)));
    assert!(!is_there(&about(libc::RTM_DELLINK, libc::AF_UNSPEC)));
    assert!(!is_there(&about(libc::RTM_NEWLINK, libc::AF_UNSPEC)[..HEADER]));
}
