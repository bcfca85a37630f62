//! The cluster in which the scenes run, with policies in force.
//!
//! `server` is isolated in both directions. Three pods may reach it: `client` and `far` on TCP 80, UDP 53 and SCTP 90,
//! `friend` on everything. It may reach addresses in 198.51.100.0/24 and 2001:db8::/64 outside. `sealed` may neither
//! send nor receive. The other pods are not isolated. `far` and `stranger` run on another node.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use crate::enforce::{By, enforce};
use crate::namespace::Namespace;
use crate::place::Place;
use crate::probe::{Protocol, Try, reach};
use crate::topology::{Layout, Net, NodePlan, Plan, PodPlan};

/// A cluster that is built and enforced.
pub(crate) struct Stage {
    pub(crate) net: Net,
    pub(crate) place: Place,
    pub(crate) by: By,
    /// The family: each test runs once per family.
    pub(crate) v6: bool,
}

/// The addresses of `here`'s bridge, in the layout with a bridge.
pub(crate) const BRIDGE: [&str; 2] = ["10.0.0.254", "fd00::fe"];
pub(crate) const OUTSIDE: [&str; 2] = ["198.51.100.7", "2001:db8::7"];
pub(crate) const ELSEWHERE: [&str; 2] = ["203.0.113.7", "2001:db8:1::7"];
pub(crate) const NODES: [[&str; 2]; 2] = [["192.168.0.1", "fd00:c0::1"], ["192.168.0.2", "fd00:c0::2"]];
pub(crate) const SERVICE: [&str; 2] = ["10.96.0.1", "fd02::1"];

const PODS: [(&str, usize, &str, &str); 7] = [
    ("default/server", 0, "10.0.0.1", "fd00::1"),
    ("default/client", 0, "10.0.0.2", "fd00::2"),
    ("default/other", 0, "10.0.0.3", "fd00::3"),
    ("default/friend", 0, "10.0.0.4", "fd00::4"),
    ("default/sealed", 0, "10.0.0.5", "fd00::5"),
    ("default/far", 1, "10.0.1.1", "fd00:0:0:1::1"),
    ("default/stranger", 1, "10.0.1.2", "fd00:0:0:1::2"),
];

impl Stage {
    pub(crate) fn new(by: By, layout: Layout) -> Self {
        let place = Place::new().unwrap();
        let net = Net::new(layout, plan(layout)).unwrap();
        let file = place.file("cluster.yaml");
        std::fs::write(&file, include_str!("cluster.yaml")).unwrap();
        let stage = Self { net, place, by, v6: false };
        stage.enforce(&[file]);
        stage
    }

    pub(crate) fn enforce(&self, files: &[PathBuf]) {
        enforce(self.by, &self.net, &self.place, files).unwrap();
    }

    /// A pod's namespace.
    pub(crate) fn pod(&self, name: &str) -> &Namespace {
        &self.net.pod_named(&format!("default/{name}")).space
    }

    /// A pod's address.
    pub(crate) fn address(&self, name: &str) -> IpAddr {
        crate::wire::of_family(&self.net.pod_named(&format!("default/{name}")).addresses, self.v6)
    }

    /// A UDP socket of a pod, whose reads end after `patience`.
    pub(crate) fn bind_udp(&self, pod: &str, port: u16, patience: Duration) -> UdpSocket {
        let at = SocketAddr::new(self.address(pod), port);
        let socket = self.pod(pod).enter(|| UdpSocket::bind(at)).unwrap().unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        socket
    }

    /// One of two texts, by family.
    pub(crate) fn either(&self, texts: [&str; 2]) -> IpAddr {
        texts[usize::from(self.v6)].parse().unwrap()
    }

    /// Tries a new connection between addresses; a server listens at the destination.
    pub(crate) fn reaches(&self, source: IpAddr, protocol: Protocol, to: IpAddr, port: u16, expected: bool) -> bool {
        let to = SocketAddr::new(to, port);
        self.reaches_behind(source, protocol, to, to, expected)
    }

    /// Tries a new connection to one address that is answered at another.
    pub(crate) fn reaches_behind(
        &self,
        source: IpAddr,
        protocol: Protocol,
        to: SocketAddr,
        at: SocketAddr,
        expected: bool,
    ) -> bool {
        let holder = |address| self.net.holder(address).unwrap_or_else(|| panic!("no endpoint has {address}"));
        let (from, served) = (holder(source), vec![(holder(at.ip()), at)]);
        reach(&[Try { from, source, protocol, to, served, expected }]).unwrap()[0]
    }

    /// Tries a new connection from pod to pod.
    #[track_caller]
    pub(crate) fn between(&self, from: &str, to: &str, protocol: Protocol, port: u16, expected: bool) {
        let (source, destination) = (self.address(from), self.address(to));
        let reached = self.reaches(source, protocol, destination, port, expected);
        assert_eq!(reached, expected, "{}: {from} to {to}, {protocol:?} {port}", self.name());
    }

    /// The layout and family, for messages.
    pub(crate) fn name(&self) -> String {
        format!("{:?}, {:?}, IPv{}", self.by, self.net.layout, if self.v6 { 6 } else { 4 })
    }
}

fn plan(layout: Layout) -> Plan {
    let addresses = |texts: [&str; 2]| texts.map(|it| it.parse().unwrap()).to_vec();
    let node = |index: usize, name: &str| {
        let own = PODS.iter().filter(|pod| pod.1 == index);
        let pods = own.map(|pod| PodPlan { name: pod.0.to_owned(), addresses: addresses([pod.2, pod.3]) }).collect();
        let bridge = BRIDGE.map(|it| it.parse().unwrap()).into_iter().zip([24, 112]).collect();
        let has_bridge = layout == Layout::Bridge && index == 0;
        NodePlan {
            name: name.to_owned(),
            addresses: addresses(NODES[index]),
            bridge: if has_bridge { bridge } else { Vec::new() },
            pods,
        }
    };
    Plan {
        nodes: vec![node(0, "here"), node(1, "there")],
        outside: [addresses(OUTSIDE), addresses(ELSEWHERE)].concat(),
    }
}

/// Runs a scene in both families and both layouts, with our programs and with the control.
pub(crate) fn everywhere(scene: impl Fn(&mut Stage)) {
    by_programs(&scene);
    // A guest of `cargo xtask kernels` has no iptables. The control does not depend on the kernel anyway.
    if std::env::var("WEIR_PACKETS_CONTROL").is_ok_and(|it| it == "no") {
        return eprintln!("without the control, as asked");
    }
    if let Err(reason) = crate::control() {
        weir_runtime::skip!("without the control: {reason}");
    }
    [Layout::Routed, Layout::Bridge].into_iter().for_each(|layout| play(By::Rules, layout, &scene));
}

/// Runs a scene in both families and both layouts, only with our programs, because rules cannot enforce it.
pub(crate) fn by_programs(scene: &impl Fn(&mut Stage)) {
    by_programs_in(&[Layout::Routed, Layout::Bridge], &[false, true], scene);
}

/// Runs a scene with our programs, in some layouts and families.
pub(crate) fn by_programs_in(layouts: &[Layout], families: &[bool], scene: &impl Fn(&mut Stage)) {
    weir_runtime::skip!(unless crate::privilege());
    for layout in layouts {
        families.iter().for_each(|v6| play_in(By::Programs, *layout, *v6, scene));
    }
}

fn play(by: By, layout: Layout, scene: &impl Fn(&mut Stage)) {
    [false, true].into_iter().for_each(|v6| play_in(by, layout, v6, scene));
}

fn play_in(by: By, layout: Layout, v6: bool, scene: &impl Fn(&mut Stage)) {
    let _not_alone = crate::load::QUIET.read().unwrap_or_else(|it| it.into_inner());
    let mut stage = Stage::new(by, layout);
    stage.v6 = v6;
    scene(&mut stage);
}
