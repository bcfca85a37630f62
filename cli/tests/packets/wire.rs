//! Packets by hand: a pod without a network stack, whose frames are all written and read here.
//!
//! The pod's addresses are removed from its interface, so that its kernel answers nothing. Its neighbours get static
//! entries for it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::namespace::{Error, Namespace};
use crate::sys;
use crate::topology::{Layout, Net};
use weir_testing::packet::Packet;

/// Waiting time for packets that should not arrive.
const WAIT: Duration = Duration::from_millis(150);
/// Waiting time for packets that should arrive.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(1);

/// One end of a connection by hand.
pub(crate) struct Wire {
    frames: File,
    own: [u8; 6],
    gateway: [u8; 6],
}

impl Wire {
    /// Takes over a pod's interface.
    pub(crate) fn pod(net: &Net, name: &str) -> Result<Self, Error> {
        let node = net.nodes.iter().find(|node| node.pods.iter().any(|pod| pod.name == name)).ok_or("no such pod")?;
        let pod = net.pod_named(name);
        let own = mac(&pod.space, "eth0")?;
        let via = if net.layout == Layout::Bridge { "br0" } else { &pod.interface };
        let gateway = mac(&node.space, via)?;
        pod.space.ip("addr flush dev eth0\n")?;
        // Stops router solicitations and similar packets of the kernel.
        pod.space.set("ipv6/conf/eth0/disable_ipv6", "1")?;
        let commands: String =
            pod.addresses.iter().map(|it| format!("neigh replace {it} lladdr {} dev {via}\n", text(own))).collect();
        node.space.ip(&commands)?;
        Ok(Self { frames: pod.space.enter(|| sys::frames("eth0"))??, own, gateway })
    }

    /// The outside's interface; its kernel still answers for its own addresses.
    pub(crate) fn outside(net: &Net) -> Result<Self, Error> {
        let (own, gateway) = (mac(&net.outside, "eth0")?, mac(&net.fabric, "ext")?);
        Ok(Self { frames: net.outside.enter(|| sys::frames("eth0"))??, own, gateway })
    }

    /// Sends a packet to the gateway.
    pub(crate) fn send(&self, packet: &Packet) -> Result<(), Error> {
        self.send_frame(&self.framed(packet, self.gateway))
    }

    /// Sends a packet to a neighbour on the same bridge.
    pub(crate) fn send_to(&self, neighbour: &Self, packet: &Packet) -> Result<(), Error> {
        self.send_frame(&self.framed(packet, neighbour.own))
    }

    pub(crate) fn send_frame(&self, frame: &[u8]) -> Result<(), Error> {
        (&self.frames).write_all(frame).map_err(|error| format!("a frame of {} bytes: {error}", frame.len()).into())
    }

    /// Sends a packet to a hardware address on the same link.
    pub(crate) fn send_at(&self, to: [u8; 6], packet: &Packet) -> Result<(), Error> {
        self.send_frame(&self.framed(packet, to))
    }

    /// Whether a frame that contains these bytes arrives. Waits longer if it is expected.
    pub(crate) fn sees(&self, marker: &[u8], expected: bool) -> bool {
        let wait = if expected { PATIENCE } else { WAIT };
        self.find(wait, |frame| frame.windows(marker.len()).any(|it| it == marker))
    }

    fn framed(&self, packet: &Packet, to: [u8; 6]) -> Vec<u8> {
        let mut bytes = packet.bytes();
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&self.own);
        if packet.source.is_ipv4() {
            let length = 4 * usize::from(bytes[14] & 0xf);
            let sum = checksum(&bytes[14..14 + length]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// Waits for a packet like the one that was sent; returns whether it arrived.
    pub(crate) fn gets(&self, packet: &Packet) -> bool {
        self.comes(PATIENCE, packet)
    }

    /// Waits for a packet that should not arrive; returns whether it stayed away.
    pub(crate) fn misses(&self, packet: &Packet) -> bool {
        !self.comes(WAIT, packet)
    }

    fn comes(&self, wait: Duration, packet: &Packet) -> bool {
        let end = likeness(&packet.bytes());
        self.find(wait, |frame| likeness(frame) == end)
    }

    /// Reads frames until `is_it` is true for one of them.
    pub(crate) fn find(&self, wait: Duration, is_it: impl Fn(&[u8]) -> bool) -> bool {
        let begun = Instant::now();
        let mut buffer = [0; 2_048];
        loop {
            match (&self.frames).read(&mut buffer) {
                Ok(length) if is_it(&buffer[..length]) => return true,
                _ if begun.elapsed() > wait => return false,
                Ok(_) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    pub(crate) fn own_mac(&self) -> [u8; 6] {
        self.own
    }
}

/// The bytes that routers do not change: everything after the Ethernet header except hop limit and header checksum.
fn likeness(frame: &[u8]) -> Vec<u8> {
    let mut rest = frame.get(12..).unwrap_or_default().to_vec();
    let changes: &[usize] = if rest.first() == Some(&8) { &[10, 12, 13] } else { &[9] };
    for at in changes {
        if let Some(byte) = rest.get_mut(*at) {
            *byte = 0;
        }
    }
    rest
}

/// The Internet checksum.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], *it.get(1).unwrap_or(&0)])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// An ICMP message with its checksum, which netfilter and receiving kernels check.
pub(crate) fn with_checksum(mut packet: Packet) -> Packet {
    packet.payload[2..4].copy_from_slice(&[0, 0]);
    let mut summed = Vec::new();
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination) {
        summed.extend(source.octets());
        summed.extend(destination.octets());
        summed.extend((packet.payload.len() as u32).to_be_bytes());
        summed.extend([0, 0, 0, 58]);
    }
    summed.extend(&packet.payload);
    let sum = checksum(&summed);
    packet.payload[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// An interface's hardware address.
pub(crate) fn mac(space: &Namespace, interface: &str) -> Result<[u8; 6], Error> {
    let line = space.run("ip", &["-o", "link", "show", "dev", interface], "")?;
    let after = line.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).ok_or("no address")?;
    let bytes: Vec<u8> = after.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.try_into().map_err(|_| "an odd address".into())
}

/// A hardware address as `ip` prints it.
pub(crate) fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The address of a family.
pub(crate) fn of_family(addresses: &[IpAddr], v6: bool) -> IpAddr {
    addresses.iter().find(|it| it.is_ipv6() == v6).copied().unwrap_or_else(|| panic!("no address of the family"))
}
