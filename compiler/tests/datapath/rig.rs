//! One pod behind one interface, and either machine to send packets through its two hooks.
//!
//! Every packet is asked for its verdict and for the one counter that it moved; flows are read back as text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_compiler::address::Family;
use weir_compiler::classify::{Scope, classify};
use weir_compiler::decode::{Input, InputKind, Options, decode};
use weir_compiler::ebpf::asm::Assembled;
use weir_compiler::ebpf::limits::check;
use weir_compiler::ebpf::target::Target;
use weir_compiler::emit::{Plan, emit};
use weir_compiler::image::{MapImage, Sizes, endpoints, has_family, maps, with_few_flows};
use weir_compiler::layout::buckets;
use weir_compiler::layout::{MapName, OUTCOMES, Outcome, State, config, direction_number, endpoint, flow};
use weir_compiler::model::{Assumptions, Direction};
use weir_compiler::resolve::resolve;
use weir_compiler::structures::{Options as Structures, Place, Structure};
use weir_compiler::{lower, passes};

use crate::packet::Packet;

/// The pod's interface. The only one that every kernel has.
pub(crate) const INTERFACE: u32 = 1;
/// Where packets of others come in.
pub(crate) const UPLINK: u32 = 2;

pub(crate) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// What runs the programs.
pub(crate) trait Machine {
    /// The verdict; `arrived` is the interface through which the packet came to this host.
    fn run(&mut self, hook: Direction, packet: &[u8], arrived: u32) -> i32;
    /// All of a map; none if there is no such map.
    fn entries(&self, map: MapName) -> Entries;
    /// One value; a per-CPU one is of all CPUs.
    fn read(&self, map: MapName, key: &[u8]) -> Vec<u8>;
    fn write(&mut self, map: MapName, key: &[u8], value: &[u8]);
    fn remove(&mut self, map: MapName, key: &[u8]);
    /// Whether it can say that a packet came in through an interface; else every packet is this host's own.
    fn knows_arrivals(&self) -> bool {
        true
    }
    /// Lets time pass; only the VM can.
    fn advance(&mut self, seconds: u64);
}

/// What a machine is made from.
pub(crate) struct Parts {
    pub(crate) maps: Vec<MapImage>,
    /// `to_pod`, `from_pod`.
    pub(crate) programs: [Assembled; 2],
    /// Pod's name → value in `endpoints`.
    pub(crate) pods: Vec<(String, Vec<u8>)>,
}

/// Compiles a cluster for all of its endpoints on one node, with one of the two flow tables.
pub(crate) fn compile(yaml: &str, node: &str, flows: Structure) -> Parts {
    let input = Input { name: "cluster".into(), bytes: yaml.into(), kind: InputKind::Manifest };
    let (decoded, found) = decode(vec![input], &Options { default_namespace: "default".into() });
    assert!(!found.has_errors(), "the cluster is sound");
    let (cluster, _) = resolve(&decoded.objects, Assumptions::default());
    let scope = Scope::node(&cluster, node).unwrap();
    let classes = classify(&cluster, &scope).unwrap();
    let target = if flows == Structure::Buckets { WITH_ATOMICS } else { Target::BASE };
    let forced = vec![(Place::Flows, flows)];
    let options = Structures { has_atomics: true, forced, ..Structures::default() };
    let tables = lower::tables_with(&classes, &options);
    let decisions = Direction::ALL.map(|direction| {
        let mut program = lower::lower(direction, tables.is_staged);
        passes::optimize(&mut program, &tables).unwrap();
        program
    });
    let families = FAMILIES.into_iter().filter(|family| has_family(&cluster, &scope, *family)).collect();
    let plan = Plan { target, decisions: [&decisions[0], &decisions[1]], tables: &tables, families };
    let programs = [Direction::Ingress, Direction::Egress].map(|hook| emit(&plan, hook).unwrap());
    for program in &programs {
        assert!(check(&program.link(|_| 0)).violations.is_empty(), "the verifier would refuse it");
    }
    let name = |id: weir_compiler::model::EndpointId| cluster.endpoint_name(id).to_string();
    let entries = endpoints(&cluster, &classes, &tables);
    let pods = entries.into_iter().map(|entry| (name(entry.endpoint), entry.value)).collect();
    Parts { maps: maps(&cluster, &scope, &tables, Sizes::default(), target), programs, pods }
}

/// The first kernel with compare-and-swap.
const WITH_ATOMICS: Target = Target { kernel: (5, 12) };

/// The cluster of the facts.
pub(crate) fn parts(flows: Structure) -> Parts {
    compile(include_str!("cluster.yaml"), "here", flows)
}

/// The same, with policies that are only reported.
pub(crate) fn staged(flows: Structure) -> Parts {
    compile(concat!(include_str!("cluster.yaml"), include_str!("staged.yaml")), "here", flows)
}

/// The same, with all flows in one bucket.
pub(crate) fn one_bucket() -> Parts {
    let mut parts = parts(Structure::Buckets);
    parts.maps = parts.maps.iter().map(|image| with_few_flows(image, buckets::WAYS).into_owned()).collect();
    parts
}

pub(crate) const FLOW_TABLES: [Structure; 2] = [Structure::Lru, Structure::Buckets];

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A pod under test.
pub(crate) struct Rig {
    machine: Box<dyn Machine>,
    pods: Vec<(String, Vec<u8>)>,
}

/// What became of a packet.
#[derive(Debug)]
pub(crate) struct Seen {
    verdict: i32,
    /// Outcomes whose counter moved.
    counted: Vec<Outcome>,
}

#[expect(clippy::wrong_self_convention, reason = "from and to the pod: the packet's way")]
impl Rig {
    /// `server` is plugged in.
    pub(crate) fn new(machine: Box<dyn Machine>, pods: Vec<(String, Vec<u8>)>) -> Self {
        let mut rig = Self { machine, pods };
        rig.plug("server");
        rig
    }

    /// Puts another pod behind the interface.
    pub(crate) fn plug(&mut self, pod: &str) {
        let found = self.pods.iter().find(|(name, _)| name.ends_with(pod));
        let value = &found.unwrap_or_else(|| panic!("no {pod} in {:?}", self.pods)).1;
        self.machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), value);
    }

    /// `pod` keeps its addresses and is filtered as `like` is.
    pub(crate) fn plug_as(&mut self, like: &str, pod: &str) {
        let value = |name: &str| self.pods.iter().find(|(at, _)| at.ends_with(name)).unwrap().1.clone();
        let mut mixed = value(pod);
        mixed[..endpoint::NODE as usize].copy_from_slice(&value(like)[..endpoint::NODE as usize]);
        self.machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), &mixed);
    }

    /// Nothing behind the interface.
    pub(crate) fn unplug(&mut self) {
        self.machine.remove(MapName::Endpoints, &INTERFACE.to_le_bytes());
    }

    /// A packet that leaves the pod.
    pub(crate) fn from_pod(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Egress, &packet.bytes(), INTERFACE)
    }

    /// A packet that comes to the pod from outside of this host.
    pub(crate) fn to_pod(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Ingress, &packet.bytes(), UPLINK)
    }

    /// A packet that the pod sent, and that comes back to it.
    pub(crate) fn from_itself(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Ingress, &packet.bytes(), INTERFACE)
    }

    /// A packet that this host itself sends to the pod.
    pub(crate) fn from_host(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Ingress, &packet.bytes(), 0)
    }

    pub(crate) fn send(&mut self, hook: Direction, packet: &[u8], arrived: u32) -> Seen {
        let before = self.counters(hook);
        let verdict = self.machine.run(hook, packet, arrived);
        let after = self.counters(hook);
        let mut counted = Vec::new();
        for (outcome, (before, after)) in Outcome::ALL.into_iter().zip(before.into_iter().zip(after)) {
            counted.extend((before..after).map(|_| outcome));
        }
        Seen { verdict, counted }
    }

    fn counters(&self, hook: Direction) -> Vec<u64> {
        let packets = |outcome: Outcome| {
            let key = (direction_number(hook) * OUTCOMES + outcome as u32).to_le_bytes();
            let value = self.machine.read(MapName::Counters, &key);
            value.chunks(16).map(|cpu| u64::from_le_bytes(*cpu.first_chunk().unwrap())).sum()
        };
        Outcome::ALL.into_iter().map(packets).collect()
    }

    /// Whether a packet that comes to the pod can be one that did not begin on this host.
    pub(crate) fn knows_arrivals(&self) -> bool {
        self.machine.knows_arrivals()
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        self.machine.advance(seconds);
    }

    pub(crate) fn entries(&self, map: MapName) -> usize {
        self.machine.entries(map).len()
    }

    /// The next generation: flows of the last one are to be judged again.
    pub(crate) fn next_epoch(&mut self) {
        let mut value = self.machine.entries(MapName::Config).remove(0).1;
        value[config::EPOCH as usize] += 1;
        self.machine.write(MapName::Config, &[0; 4], &value);
    }

    /// Flows of older generations go on.
    pub(crate) fn keep_established(&mut self) {
        let mut value = self.machine.entries(MapName::Config).remove(0).1;
        value[config::KEEP_ESTABLISHED as usize] = 1;
        self.machine.write(MapName::Config, &[0; 4], &value);
    }

    /// What is only reported decides.
    pub(crate) fn decide_by_staged(&mut self) {
        let mut value = self.machine.entries(MapName::Config).remove(0).1;
        value[config::STAGED as usize] = 1;
        self.machine.write(MapName::Config, &[0; 4], &value);
    }

    /// Records of drops in this second, and those that were not written.
    pub(crate) fn recorded(&self) -> (u32, u32) {
        let value = self.machine.read(MapName::EventLimit, &[0; 4]);
        let word = |at: usize| u32::from_le_bytes(*value[at..].first_chunk().unwrap());
        (word(8), word(12))
    }

    /// Flows as text: `fresh egress TcpFresh 10.8.0.1:443 from 40000`.
    pub(crate) fn flows(&self) -> Vec<String> {
        let maps = [
            (MapName::Flows4, "open"),
            (MapName::Fresh4, "fresh"),
            (MapName::Flows6, "open"),
            (MapName::Fresh6, "fresh"),
        ];
        let mut flows = Vec::new();
        for (map, place) in maps {
            let entries = self.machine.entries(map);
            flows.extend(entries.iter().map(|(key, value)| format!("{place} {}", show_flow(key, value))));
        }
        for (map, family) in [(MapName::FlowBuckets4, Family::V4), (MapName::FlowBuckets6, Family::V6)] {
            for (_, table) in self.machine.entries(map) {
                flows.extend(buckets::live(family, &table).map(|slot| {
                    let (key, value) = slot.entry();
                    let place = if slot.is_confirmed() { "open" } else { "fresh" };
                    format!("{place} {}", show_flow(&key, &value))
                }));
            }
        }
        flows.sort();
        flows
    }
}

fn show_flow(key: &[u8], value: &[u8]) -> String {
    let (remote, rest): (IpAddr, _) = match key.len() {
        16 => (Ipv4Addr::from(*key[4..].first_chunk::<4>().unwrap()).into(), &key[8..]),
        _ => (Ipv6Addr::from(*key[4..].first_chunk::<16>().unwrap()).into(), &key[20..]),
    };
    let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    let states = [
        State::TcpFresh,
        State::TcpOpen,
        State::TcpClosing,
        State::UdpFresh,
        State::UdpOpen,
        State::OtherFresh,
        State::OtherOpen,
    ];
    let state = states.into_iter().find(|state| *state as u8 == value[flow::STATE as usize]).unwrap();
    let begun = if value[flow::BEGUN as usize] == 1 { "egress" } else { "ingress" };
    format!("{begun} {state:?} {}", format_args!("{remote}:{} {}", port(0), port(2)))
}

impl Seen {
    /// The packet was counted once, as this, and treated accordingly.
    #[track_caller]
    pub(crate) fn is(self, outcome: Outcome) {
        assert_eq!((self.verdict, self.counted), (if outcome.drops() { 2 } else { -1 }, vec![outcome]));
    }

    pub(crate) fn verdict(&self) -> i32 {
        self.verdict
    }

    pub(crate) fn counted(&self) -> &[Outcome] {
        &self.counted
    }
}

/// Ends of the facts' packets.
pub(crate) fn server(family: Family) -> IpAddr {
    address(family, "10.0.0.1", "fd00::1")
}

/// May reach some of the server's ports.
pub(crate) fn client(family: Family) -> IpAddr {
    address(family, "10.0.0.2", "fd00::2")
}

pub(crate) fn listener(family: Family) -> IpAddr {
    address(family, "10.0.0.3", "fd00::3")
}

pub(crate) fn open(family: Family) -> IpAddr {
    address(family, "10.0.0.4", "fd00::4")
}

/// The server may reach it, for everything.
pub(crate) fn friend(family: Family) -> IpAddr {
    address(family, "10.8.0.1", "fd08::1")
}

/// No policy speaks of it.
pub(crate) fn stranger(family: Family) -> IpAddr {
    address(family, "203.0.113.7", "2001:db8::7")
}

/// The pods' own node.
pub(crate) fn node(family: Family) -> IpAddr {
    address(family, "192.168.0.1", "fd00:c0::1")
}

pub(crate) fn other_node(family: Family) -> IpAddr {
    address(family, "192.168.0.2", "fd00:c0::2")
}

pub(crate) fn address(family: Family, v4: &str, v6: &str) -> IpAddr {
    match family {
        Family::V4 => v4.parse().unwrap(),
        Family::V6 => v6.parse().unwrap(),
    }
}

/// Facts, each a function of a rig and a family, and a test for each family and flow table.
macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident($rig:ident, $family:ident) $body:block)*) => {
        $($(#[$doc])* mod $name {
            use super::*;
            fn fact($rig: &mut $crate::rig::Rig, $family: weir_compiler::address::Family) $body
            use weir_compiler::address::Family::{V4, V6};
            use weir_compiler::structures::Structure::{Buckets, Lru};
            #[test]
            fn v4() {
                $crate::on_one(Lru, |rig| fact(rig, V4));
            }
            #[test]
            fn v6() {
                $crate::on_one(Lru, |rig| fact(rig, V6));
            }
            #[test]
            fn v4_in_buckets() {
                $crate::on_one(Buckets, |rig| fact(rig, V4));
            }
            #[test]
            fn v6_in_buckets() {
                $crate::on_one(Buckets, |rig| fact(rig, V6));
            }
        })*
    };
}
pub(crate) use facts;
