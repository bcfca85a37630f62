//! ICMP errors as a tunnel: an error that quoted a live flow used to pass with any payload and to any destination.

use std::net::IpAddr;

use super::{EVERYWHERE, Findings, attack_tracked, from, generation, policy, send, switch, wire};
use crate::stage::{ELSEWHERE, OUTSIDE, Stage};
use crate::wire::{Wire, with_checksum};
use weir_testing::packet::Packet;

/// More bytes than every link must carry, and fewer than the links here carry.
const LONG: usize = 1_400;

/// An ICMP error that quotes a packet, to any destination, with a marker at its end and at least `bytes` bytes.
fn error(source: IpAddr, destination: IpAddr, quoted: &Packet, marker: &[u8], bytes: usize) -> Packet {
    let mut packet = Packet::unreachable(source, quoted);
    packet.destination = destination;
    let header = if source.is_ipv4() { 20 } else { 40 };
    let missing = bytes.saturating_sub(header + packet.payload.len() + marker.len());
    packet.payload.extend(vec![0; missing]);
    packet.payload.extend(marker);
    with_checksum(packet)
}

struct Scene<'s> {
    stage: &'s Stage,
    outside: Wire,
    server: Wire,
    client: Wire,
    other: Wire,
}

impl<'s> Scene<'s> {
    fn new(stage: &'s Stage) -> Self {
        let [server, client, other] = ["server", "client", "other"].map(|it| wire(stage, it));
        Self { stage, outside: Wire::outside(&stage.net).unwrap(), server, client, other }
    }

    /// A live flow from `client` to `server`, as its packet.
    fn incoming(&self) -> Packet {
        let live = Packet::udp((self.stage.address("client"), 40_000), (self.stage.address("server"), 53));
        send(self.stage, &self.client, &self.server, &live);
        assert!(self.server.gets(&live), "{}: an allowed packet arrives", self.stage.name());
        live
    }

    /// A live flow from `server` to the outside, as its packet.
    fn outgoing(&self) -> Packet {
        let live = Packet::udp((self.stage.address("server"), 40_001), (self.stage.either(OUTSIDE), 443));
        self.server.send(&live).unwrap();
        assert!(self.outside.gets(&live), "{}: an allowed packet arrives outside", self.stage.name());
        live
    }
}

#[test]
fn icmp_errors_about_a_live_flow_cannot_carry_data() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        let scene = Scene::new(stage);
        let live = scene.incoming();
        to_others(&scene, findings, &live);
        long_ones(&scene, findings, &live);
    });
}

/// An error goes to the sender of the quoted packet. Its destination used to be ignored, so an isolated pod reached
/// every address.
fn to_others(scene: &Scene<'_>, findings: &mut Findings, live: &Packet) {
    let (stage, own) = (scene.stage, scene.stage.address("server"));
    send(stage, &scene.server, &scene.other, &error(own, stage.address("other"), live, b"to-other", 0));
    findings.expect(!scene.other.sees(b"to-other", false), "an isolated pod's error reaches another pod");
    scene.server.send(&error(own, stage.either(ELSEWHERE), live, b"to-elsewhere", 0)).unwrap();
    findings.expect(!scene.outside.sees(b"to-elsewhere", false), "an isolated pod's error reaches the outside");
    send(stage, &scene.server, &scene.client, &error(own, live.source, live, b"to-client", 0));
    findings.expect(scene.client.sees(b"to-client", true), "a genuine error does not arrive");
}

/// Genuine errors are at most 576 bytes (RFC 1812) or 1280 bytes (RFC 4443). Every router on the way may send them, so
/// their source proves nothing: an outsider who could guess a flow sent an isolated pod as much as fits into a packet.
fn long_ones(scene: &Scene<'_>, findings: &mut Findings, incoming: &Packet) {
    let (stage, outgoing) = (scene.stage, scene.outgoing());
    let (own, router) = (stage.address("server"), stage.either(ELSEWHERE));
    send(stage, &scene.server, &scene.client, &error(own, incoming.source, incoming, b"long-out", LONG));
    findings.expect(!scene.client.sees(b"long-out", false), "an isolated pod's long error reaches its client");
    scene.outside.send(&error(router, own, &outgoing, b"long-in", LONG)).unwrap();
    findings.expect(!scene.server.sees(b"long-in", false), "an outsider's long error reaches an isolated pod");
    let most = if stage.v6 { 1_280 } else { 576 };
    scene.outside.send(&error(router, own, &outgoing, b"just-fits", most)).unwrap();
    findings.expect(scene.server.sees(b"just-fits", true), "the longest genuine error does not arrive");
    scene.outside.send(&error(router, own, &outgoing, b"one-more", most + 1)).unwrap();
    findings.expect(!scene.server.sees(b"one-more", false), "an error of a byte more arrives");
}

/// After a switch the flow is still in the table until a packet of it is judged again. Errors about it used to pass
/// until then.
#[test]
fn icmp_errors_about_a_denied_flow_are_dropped() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        let scene = Scene::new(stage);
        let live = scene.incoming();
        let about = |marker: &[u8]| error(stage.address("server"), live.source, &live, marker, 0);
        outdate(stage);
        send(stage, &scene.server, &scene.client, &about(b"outdated"));
        findings.expect(!scene.client.sees(b"outdated", false), "an error about a forbidden flow passes");
        still_denied(&scene, findings, &live, &about(b"outdated2"));
    });
}

/// A machine on a deny list used to reach an isolated pod: it put its data into ICMP errors about any live flow.
#[test]
fn icmp_errors_from_listed_addresses_are_dropped() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        let scene = Scene::new(stage);
        deny_elsewhere(stage);
        let live = scene.outgoing();
        let (own, listed) = (stage.address("server"), stage.either(ELSEWHERE));
        scene.outside.send(&error(listed, own, &live, b"listed", 0)).unwrap();
        findings.expect(!scene.server.sees(b"listed", false), "an error from a machine on a deny list arrives");
        scene.outside.send(&error(live.destination, own, &live, b"heard", 0)).unwrap();
        findings.expect(scene.server.sees(b"heard", true), "a genuine error does not arrive");
    });
}

fn deny_elsewhere(stage: &Stage) {
    let policy = policy("server", "Ingress, Egress", "  egress: [{}]\n");
    let list = format!(
        "---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: elsewhere}}\nspec: {{action: Deny, cidrs: {ELSEWHERE:?}}}\n"
    );
    switch(stage, &generation(stage, "listed", &(policy + &list)));
}

fn outdate(stage: &Stage) {
    let tight = policy("server", "Ingress, Egress", &from("none"));
    switch(stage, &generation(stage, "tight", &tight));
}

/// The error must not pass either after a packet of the flow was denied.
fn still_denied(scene: &Scene<'_>, findings: &mut Findings, live: &Packet, error: &Packet) {
    send(scene.stage, &scene.client, &scene.server, live);
    findings.expect(scene.server.misses(live), "a packet of a forbidden flow passes");
    send(scene.stage, &scene.server, &scene.client, error);
    findings.expect(!scene.client.sees(b"outdated2", false), "an error about a cut flow passes");
}

/// Path MTU discovery: a router with a smaller MTU sends genuine errors, and the pod's connection needs them.
#[test]
fn path_mtu_errors_pass_connection_tracking() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        stage.net.fabric.ip("link set ext mtu 1300\n").unwrap();
        let at = std::net::SocketAddr::new(stage.either(OUTSIDE), 443);
        let listener = stage.net.outside.enter(|| std::net::TcpListener::bind(at)).unwrap().unwrap();
        let patience = std::time::Duration::from_secs(5);
        let connect = || std::net::TcpStream::connect_timeout(&at, patience);
        let mut stream = stage.pod("server").enter(connect).unwrap().unwrap();
        let (mut served, _) = listener.accept().unwrap();
        served.set_read_timeout(Some(patience)).unwrap();
        let got = std::thread::scope(|scope| {
            scope.spawn(move || std::io::Write::write_all(&mut stream, &[7; 200_000]));
            std::io::copy(&mut served, &mut std::io::sink()).unwrap_or(0)
        });
        findings.expect(got == 200_000, format!("{got} bytes of 200000 arrive behind a narrow hop"));
    });
}
