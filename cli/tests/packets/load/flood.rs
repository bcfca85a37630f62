//! Established connections must survive a flood of new ones.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::{QUIET, address, asked, generation, lay_out, policy};
use crate::enforce::attach;
use crate::wire::Wire;
use weir_testing::packet::{Packet, SYN};

const FLOWS: usize = 1_000;

/// The server may only answer, and after the flood it sends first. If its flow had been evicted, the packet would begin
/// a new flow, which the server may not do.
#[test]
fn established_flows_survive_a_syn_flood() {
    weir_runtime::skip!(unless crate::privilege());
    let _alone = QUIET.write().unwrap_or_else(|it| it.into_inner());
    weir_runtime::sys::raise_descriptor_limit().unwrap();
    let (net, place) = lay_out(2);
    let policies =
        [policy(1, "Ingress", "ingress: [{ports: [{port: 80}]}]"), policy(1, "Egress", "egress: []")].concat();
    let artifact = generation(&net, &place, "open", 2, &policies);
    attach(&net.nodes[0], &place, &artifact, &[]).unwrap();

    let at = SocketAddr::new(address(1, false), 80);
    let [client, server] = [0, 1].map(|pod| &net.nodes[0].pods[pod].space);
    let listener = server.enter(|| TcpListener::bind(at)).unwrap().unwrap();
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let near = client.enter(|| TcpStream::connect(at)).unwrap().unwrap();
        let (mut far, _) = listener.accept().unwrap();
        // The flow becomes established when the client sends after the answer.
        (&near).write_all(b"?").unwrap();
        far.read_exact(&mut [0]).unwrap();
        flows.push((near, far));
    }
    let syns = asked("WEIR_LOAD_SYNS", 100_000);
    flood(&net, at, syns);
    let alive = flows.iter().filter(|(near, far)| is_alive(near, far)).count();
    println!("{alive} of {FLOWS} flows alive after {syns} SYNs");
    assert_eq!(alive, FLOWS);
}

fn is_alive(mut near: &TcpStream, mut far: &TcpStream) -> bool {
    near.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    far.write_all(b"!").is_ok() && near.read_exact(&mut [0]).is_ok()
}

/// From outside, with ever different addresses and ports.
fn flood(net: &crate::topology::Net, to: SocketAddr, syns: u64) {
    // The outside must not forward the answers.
    net.outside.set("ipv4/ip_forward", "0").unwrap();
    let wire = Wire::outside(net).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..syns {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let [a, b, c, d, e, f, ..] = random.to_le_bytes();
        let source = [20 + a % 80, b, c, d];
        let packet =
            Packet::tcp((source.into(), 1_024 + u16::from_le_bytes([e, f]) % 60_000), (to.ip(), to.port()), SYN);
        // The queue may be full for a moment.
        while wire.send(&packet).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
