//! Tables that all pods of a node share: the entries of one pod must not evict those of another.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::{EVERYWHERE, Findings, attack, from, generation, policy, send, switch, wire};
use crate::stage::{OUTSIDE, Stage};
use crate::wire::Wire;
use weir_testing::packet::Packet;

/// Waiting time for answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// More flows than the table has slots.
const FLOOD: u16 = 64_000;
/// Fewer packets than the outside's queue and the node's backlog hold.
const BURST: usize = 64;
const VICTIMS: u16 = 20;
/// More first fragments than any table has slots for.
const FRAGMENTS: u16 = 2_000;

struct Scene<'s> {
    stage: &'s Stage,
    client: Wire,
    server: Wire,
    other: Wire,
    outside: Wire,
    /// Receives the packets that are sent to the outside, so that its kernel sends no errors.
    _sink: UdpSocket,
}

/// `other` is isolated too, and may send to the outside.
fn policies() -> String {
    let egress = "  egress: [{to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8::/64'}}]}]\n";
    let server = policy("server", "Ingress, Egress", &(from("client") + egress));
    server + &policy("other", "Ingress, Egress", &format!("  ingress: []\n{egress}"))
}

impl<'s> Scene<'s> {
    fn new(stage: &'s Stage) -> Self {
        switch(stage, &generation(stage, "open", &policies()));
        let [client, server, other] = ["client", "server", "other"].map(|it| wire(stage, it));
        let at = SocketAddr::new(stage.either(OUTSIDE), 7);
        let sink = stage.net.outside.enter(|| UdpSocket::bind(at)).unwrap().unwrap();
        Self { stage, client, server, other, outside: Wire::outside(&stage.net).unwrap(), _sink: sink }
    }

    fn ask(&self, port: u16) -> Packet {
        Packet::udp((self.stage.address("client"), port), (self.stage.address("server"), 53))
    }

    fn answer(&self, port: u16) -> Packet {
        Packet::udp((self.stage.address("server"), 53), (self.stage.address("client"), port))
    }

    /// Makes flows from `client` to `server`: one packet from the client; if `confirmed`, also an answer and another
    /// packet.
    fn victims(&self, ports: std::ops::Range<u16>, confirmed: bool) {
        for port in ports {
            send(self.stage, &self.client, &self.server, &self.ask(port));
            assert!(self.server.gets(&self.ask(port)), "{}", self.stage.name());
            if confirmed {
                send(self.stage, &self.server, &self.client, &self.answer(port));
                assert!(self.client.gets(&self.answer(port)), "{}", self.stage.name());
                send(self.stage, &self.client, &self.server, &self.ask(port));
            }
        }
    }

    /// Number of these flows that still allow answers, which the server may not send otherwise.
    fn alive(&self, ports: std::ops::Range<u16>) -> usize {
        let expected = ports.len();
        ports.clone().for_each(|port| send(self.stage, &self.server, &self.client, &self.answer(port)));
        let come = RefCell::new(BTreeSet::new());
        // Behind Ethernet and IP header and the source port.
        let at = 14 + if self.stage.v6 { 40 } else { 20 } + 2;
        self.client.find(PATIENCE, |frame| {
            let port = frame.get(at..at + 2).map_or(0, |it| u16::from_be_bytes([it[0], it[1]]));
            come.borrow_mut().extend(ports.contains(&port).then_some(port));
            come.borrow().len() == expected
        });
        come.into_inner().len()
    }

    /// Flows of `other`, each from a port of its own.
    fn flood(&self, confirmed: bool) {
        let (own, to) = (self.stage.address("other"), self.stage.either(OUTSIDE));
        let ports: Vec<u16> = (1_000..=u16::MAX).take(usize::from(FLOOD)).collect();
        for burst in ports.chunks(BURST) {
            let ask = || burst.iter().for_each(|port| persist(&self.other, &Packet::udp((own, *port), (to, 7))));
            ask();
            if confirmed {
                burst.iter().for_each(|port| persist(&self.outside, &Packet::udp((to, 7), (own, *port))));
                ask();
            }
        }
    }
}

/// Sends a packet, and retries while the queue is full.
fn persist(wire: &Wire, packet: &Packet) {
    while wire.send(packet).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes victims, floods the table with another pod's flows, and counts the victims that remain.
fn flooded(scene: &Scene<'_>, findings: &mut Findings, first_port: u16, by_confirmed: bool) {
    let (established, fresh) = (first_port..first_port + VICTIMS, first_port + 1_000..first_port + 1_000 + VICTIMS);
    scene.victims(established.clone(), true);
    // The fresh flows are made last: they must be less than 30 s old when they are answered.
    scene.victims(fresh.clone(), false);
    scene.flood(by_confirmed);
    let flood = if by_confirmed { "confirmed" } else { "fresh" };
    for (ports, name) in [(fresh, "fresh"), (established, "established")] {
        let alive = scene.alive(ports);
        let what = format!("after {FLOOD} {flood} flows of another pod, {alive} of {VICTIMS} {name} ones are left");
        findings.expect(alive == usize::from(VICTIMS), what);
    }
}

/// Fresh flows used to be evicted by any fresh flow, and confirmed ones by any flow that became confirmed.
#[test]
fn flood_of_one_pod_evicts_no_flow_of_other_pods() {
    attack(EVERYWHERE, |stage, findings| {
        let scene = Scene::new(stage);
        flooded(&scene, findings, 40_000, false);
        flooded(&scene, findings, 50_000, true);
    });
}

/// One table used to store the first fragments of all pods.
#[test]
fn fragment_flood_of_one_pod_loses_no_datagram_of_other_pods() {
    attack(EVERYWHERE, |stage, findings| {
        let scene = Scene::new(stage);
        let (own, to) = (stage.address("other"), stage.either(OUTSIDE));
        let first = scene.ask(40_000).with_fragment(1, 0, true);
        let later = Packet::new(first.source, first.destination, 17, vec![9; 16]).with_fragment(1, 3, false);
        send(stage, &scene.client, &scene.server, &first);
        assert!(scene.server.gets(&first), "{}", stage.name());
        for number in 0..FRAGMENTS {
            persist(&scene.other, &Packet::udp((own, 7), (to, 7)).with_fragment(number, 0, true));
        }
        send(stage, &scene.client, &scene.server, &later);
        findings.expect(scene.server.gets(&later), "the rest of a datagram is lost");
    });
}
