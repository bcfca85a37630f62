//! Netlink messages as bytes: writes requests, and collects the answer to one request.
//!
//! Problem: a socket can still hold the end of an answer that was given up, and the kernel sends a list in several
//! datagrams, between which the listed objects change. Strategy: messages with another sequence number are skipped, and
//! an answer that the kernel marks as interrupted is read to its end and then asked for again ([`complete`]).
//! Invariants: an answer is complete, or there is an error; no byte is read beyond the end of a message or attribute.
//!
//! The crate netlink-packet-route would decode the messages, but neither checks sequence numbers nor reads the text of
//! an error. It decodes every attribute of a message, and fails if one of them has another length than expected, so a
//! newer kernel can make a whole list unreadable:
//! <https://github.com/rust-netlink/netlink-packet-route/issues/54>,
//! <https://github.com/rust-netlink/netlink-packet-route/pull/332>. Here, only the attributes that are used are read.

use std::io;
use std::mem::offset_of;

use aya_obj::generated::nlmsgerr_attrs::NLMSGERR_ATTR_MSG;
use aya_obj::generated::{ifinfomsg, tcmsg};
use libc::{NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, nlmsghdr};

const HEADER: usize = size_of::<nlmsghdr>();
/// Kinds below are netlink's own, `NLMSG_MIN_TYPE`.
const FIRST_KIND: i32 = 0x10;
/// Bytes of a message about an interface or tc up to the end of the interface's number.
pub(in crate::sys) const TO_INTERFACE: usize = HEADER + offset_of!(tcmsg, tcm_ifindex) + 4;
// Both kinds of messages have the number at the same place.
const _: () = assert!(offset_of!(tcmsg, tcm_ifindex) == offset_of!(ifinfomsg, ifi_index));
/// Number of times that an interrupted list is read.
const ATTEMPTS: usize = 8;

/// A request.
pub(super) struct NetlinkRequest(Vec<u8>);

impl NetlinkRequest {
    /// A request whose header is followed by a structure `T`, of zeros for now.
    pub(super) fn new<T>(kind: u16, flags: i32) -> Self {
        let mut bytes = vec![0; HEADER + size_of::<T>()];
        put(&mut bytes, offset_of!(nlmsghdr, nlmsg_type), kind.to_ne_bytes());
        put(&mut bytes, offset_of!(nlmsghdr, nlmsg_flags), ((NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        Self(bytes)
    }

    /// Sets a member of the structure after the header.
    pub(super) fn set(&mut self, at: usize, word: u32) {
        put(&mut self.0, HEADER + at, word.to_ne_bytes());
    }

    pub(super) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.0.extend((payload.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(payload);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Adds an attribute that contains attributes.
    pub(super) fn nested(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let mut inner = Self(Vec::new());
        inside(&mut inner);
        self.attribute(kind, &inner.0);
    }

    pub(super) fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, &[text.as_bytes(), &[0]].concat());
    }

    /// The bytes to send, and the answer to wait for.
    pub(super) fn numbered(&mut self, sequence: u32) -> (&[u8], NetlinkAnswer) {
        let length = self.0.len() as u32;
        put(&mut self.0, offset_of!(nlmsghdr, nlmsg_len), length.to_ne_bytes());
        put(&mut self.0, offset_of!(nlmsghdr, nlmsg_seq), sequence.to_ne_bytes());
        let flags = half(&self.0, offset_of!(nlmsghdr, nlmsg_flags)).map_or(0, i32::from);
        let has_end = flags & NLM_F_DUMP == NLM_F_DUMP || flags & NLM_F_ACK != 0;
        (&self.0, NetlinkAnswer { sequence, has_end, interrupted: false, payloads: Vec::new() })
    }
}

/// The answer to one request.
#[derive(Debug)]
pub(super) struct NetlinkAnswer {
    sequence: u32,
    /// Whether a message without payload ends the answer. Otherwise it is a single message.
    has_end: bool,
    /// Whether the listed objects changed while the kernel listed them.
    interrupted: bool,
    payloads: Vec<Vec<u8>>,
}

impl NetlinkAnswer {
    /// Takes the messages of a datagram. Returns whether the answer is at its end.
    pub(super) fn take(&mut self, mut datagram: &[u8]) -> io::Result<bool> {
        while !datagram.is_empty() {
            let length = word(datagram, offset_of!(nlmsghdr, nlmsg_len)).map(|it| it as usize);
            let message = length.filter(|it| *it >= HEADER).and_then(|length| datagram.get(..length));
            let message = message.ok_or_else(|| io::Error::other("the kernel's netlink message is cut off"))?;
            datagram = datagram.get(message.len().next_multiple_of(4)..).unwrap_or_default();
            if word(message, offset_of!(nlmsghdr, nlmsg_seq)) == Some(self.sequence) && self.take_message(message)? {
                return Ok(true);
            }
        }
        Ok(!self.has_end && !self.payloads.is_empty())
    }

    fn take_message(&mut self, message: &[u8]) -> io::Result<bool> {
        let kind = half(message, offset_of!(nlmsghdr, nlmsg_type)).map_or(0, i32::from);
        let flags = half(message, offset_of!(nlmsghdr, nlmsg_flags)).map_or(0, i32::from);
        let payload = &message[HEADER..];
        self.interrupted |= flags & NLM_F_DUMP_INTR != 0;
        // The size of the request's copy in an error message; the end of a list has none.
        let copy = match kind {
            libc::NLMSG_DONE => 0,
            libc::NLMSG_ERROR if flags & NLM_F_CAPPED != 0 => HEADER,
            libc::NLMSG_ERROR => word(payload, 4).map_or(HEADER, |length| length as usize),
            ..FIRST_KIND => return Ok(false),
            _ => {
                self.payloads.push(payload.to_vec());
                return Ok(false);
            }
        };
        // A list that failed midway ends with the reason.
        let number = word(payload, 0).map_or(0, |it| it as i32);
        if number >= 0 {
            return Ok(true);
        }
        let details = payload.get(4 + copy.next_multiple_of(4)..).filter(|_| flags & NLM_F_ACK_TLVS != 0);
        let mut details = attributes(details.unwrap_or_default());
        let said = details.find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG as u16).map(|(_, value)| text(value));
        Err(refusal(-number, said))
    }
}

/// The payloads of an answer, which is asked for until the kernel does not mark it as interrupted.
pub(super) fn complete(mut ask: impl FnMut() -> io::Result<NetlinkAnswer>) -> io::Result<Vec<Vec<u8>>> {
    for _ in 0..ATTEMPTS {
        let answer = ask()?;
        if !answer.interrupted {
            return Ok(answer.payloads);
        }
    }
    Err(io::Error::other(format!("the list changed while the kernel sent it, {ATTEMPTS} times in a row; try again")))
}

/// From `linux/rtnetlink.h`: the first and the last filter of a chain send these too.
const RTM_NEWCHAIN: u16 = 100;
const RTM_DELCHAIN: u16 = 101;

/// The interface of a message about an interface, its qdiscs or its filters. `None` for any other message, and for one
/// about filters that several interfaces share: those have no interface, and the kernel sends a number that none has.
pub(in crate::sys) fn interface_of(start: &[u8]) -> Option<u32> {
    let has_interface = matches!(
        half(start, offset_of!(nlmsghdr, nlmsg_type))?,
        libc::RTM_NEWLINK
            | libc::RTM_DELLINK
            | libc::RTM_NEWQDISC
            | libc::RTM_DELQDISC
            | libc::RTM_NEWTFILTER
            | libc::RTM_DELTFILTER
            | RTM_NEWCHAIN
            | RTM_DELCHAIN
    );
    let interface = word(start, HEADER + offset_of!(tcmsg, tcm_ifindex)).filter(|_| has_interface)?;
    // `TCM_IFINDEX_MAGIC_BLOCK` is -1.
    i32::try_from(interface).is_ok_and(|it| it > 0).then_some(interface)
}

/// Whether this message says that an interface is there. The first message about each interface does. A bridge sends
/// messages of another family about its ports, also while they end.
pub(in crate::sys) fn is_there(start: &[u8]) -> bool {
    half(start, offset_of!(nlmsghdr, nlmsg_type)) == Some(libc::RTM_NEWLINK)
        && start.get(HEADER).is_some_and(|family| i32::from(*family) == libc::AF_UNSPEC)
}

/// An error that the kernel explains.
#[derive(Debug, thiserror::Error)]
#[error("{}: {said}", io::Error::from_raw_os_error(*.number))]
pub(in crate::sys) struct NetlinkError {
    pub(in crate::sys) number: i32,
    said: String,
}

fn refusal(number: i32, said: Option<String>) -> io::Error {
    let plain = io::Error::from_raw_os_error(number);
    match said {
        Some(said) => io::Error::new(plain.kind(), NetlinkError { number, said }),
        None => plain,
    }
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes.iter_mut().skip(at).zip(value).for_each(|(to, from)| *to = from);
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|it| u16::from_ne_bytes(*it))
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|it| u32::from_ne_bytes(*it))
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// Kind and value of each attribute.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?);
        let found = (half(bytes, 2)? & libc::NLA_TYPE_MASK as u16, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(found)
    })
}

#[cfg(test)]
mod tests;
