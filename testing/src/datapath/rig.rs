//! One pod behind one interface, and a machine (VM or kernel) that runs its two programs.
//!
//! Each packet is checked for its verdict and for the one counter that it changed; flows are read back as text.

use std::net::IpAddr;

use weir_artifact::layout::buckets::{self, StoredFlow, Tuple};
use weir_artifact::layout::{MapName, OUTCOMES, Origin, Outcome, config, direction_number, endpoint};
use weir_artifact::map_image::{MapImage, with_few_flows};
use weir_classes::{Scope, classify};
use weir_codegen::emit::shapes::TableShapes;
use weir_codegen::emit::{Plan, emit};
use weir_codegen::map_images::{Sizes, endpoints, has_family, maps};
use weir_codegen::structures::StructureOptions as Structures;
use weir_codegen::{lower, passes};
use weir_ebpf::asm::Assembled;
use weir_ebpf::limits::check;
use weir_ebpf::target::Target;
use weir_model::Direction;
use weir_objects::address::Family;

use crate::packet::{ACK, Packet, SYN};
use crate::yaml;

/// The pod's interface. It is the only index that exists in every kernel.
pub const INTERFACE: u32 = 1;
/// The interface through which packets from other hosts arrive.
pub const UPLINK: u32 = 2;

/// Keys and values of a map.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Runs the programs.
pub trait Machine {
    /// Runs a packet and returns the verdict.
    fn run(&mut self, hook: Direction, packet: &[u8], arrival: Arrival) -> i32;
    /// All entries of a map; none if there is no such map.
    fn entries(&self, map: MapName) -> Entries;
    /// One value; for a per-CPU map, the values of all CPUs.
    fn read(&self, map: MapName, key: &[u8]) -> Vec<u8>;
    /// Sets one entry.
    fn write(&mut self, map: MapName, key: &[u8], value: &[u8]);
    /// Removes one entry, which must exist.
    fn remove(&mut self, map: MapName, key: &[u8]);
    /// Whether a packet can be without a socket; in the kernel's test runs every packet has one.
    fn knows_sockets(&self) -> bool {
        true
    }
    /// Advances the clock; only the VM can do that.
    fn advance(&mut self, seconds: u64);
}

/// The origin of a packet, as far as the kernel knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// The interface through which it came to this host; 0 if none is known.
    pub interface: u32,
    pub has_socket: bool,
    /// The stamp of an earlier `from_pod`.
    pub stamp: u32,
}

impl Arrival {
    /// A packet that came in through this interface.
    pub fn through(interface: u32) -> Self {
        Self { interface, ..Self::default() }
    }

    /// A packet that a socket of this host sent.
    pub const HERE: Self = Self { interface: 0, has_socket: true, stamp: 0 };
}

/// The parts from which a machine is made.
pub struct Parts {
    pub maps: Vec<MapImage>,
    /// `to_pod`, `from_pod`.
    pub programs: [Assembled; 2],
    /// Values in `endpoints`, by the pods' names.
    pub pods: Vec<(String, Vec<u8>)>,
}

/// Compiles a cluster for all of its endpoints on one node.
pub fn compile(manifest: &str, node: &str) -> Parts {
    let cluster = yaml::cluster(manifest);
    let scope = Scope::node(&cluster, node).unwrap();
    let classes = classify(&cluster, &scope).unwrap();
    let target = Target::BASE;
    let tables = lower::tables_with(&classes, &Structures::default());
    let decisions = Direction::ALL.map(|direction| {
        let mut program = lower::lower(direction, &tables);
        passes::optimize(&mut program, &tables).unwrap();
        program
    });
    let families = FAMILIES.into_iter().filter(|family| has_family(&cluster, &scope, *family)).collect();
    let plan = Plan { target, decisions: [&decisions[0], &decisions[1]], shapes: TableShapes::of(&tables), families };
    let programs = [Direction::Ingress, Direction::Egress].map(|hook| emit(&plan, hook).unwrap());
    for program in &programs {
        let violations = check(&program.link(|_| 0)).violations;
        assert!(violations.is_empty(), "the verifier would refuse it: {violations:?}");
    }
    let name = |id: weir_model::EndpointId| cluster.endpoint_name(id).to_string();
    let entries = endpoints(&cluster, &classes, &tables);
    let pods = entries.into_iter().map(|entry| (name(entry.endpoint), entry.value.to_vec())).collect();
    Parts { maps: maps(&cluster, &scope, &tables, Sizes::default(), target), programs, pods }
}

/// The cluster of the facts.
pub fn parts() -> Parts {
    compile(include_str!("cluster.yaml"), "here")
}

/// The same, with policies in audit mode.
pub fn audit() -> Parts {
    compile(concat!(include_str!("cluster.yaml"), include_str!("audit.yaml")), "here")
}

/// The same, with a list that denies [`denied`].
pub fn listed() -> Parts {
    compile(concat!(include_str!("cluster.yaml"), include_str!("listed.yaml")), "here")
}

/// The same as [`listed`], with policies in audit mode as well.
pub fn listed_and_audit() -> Parts {
    compile(concat!(include_str!("cluster.yaml"), include_str!("listed.yaml"), include_str!("audit.yaml")), "here")
}

/// The same, with all flows in one bucket.
pub fn one_bucket() -> Parts {
    let mut parts = parts();
    parts.maps = parts.maps.iter().map(|image| with_few_flows(image, buckets::WAYS).into_owned()).collect();
    parts
}

/// Both address families, in the order of the tests `v4` and `v6`.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A machine with one pod to test.
pub struct Rig {
    machine: Box<dyn Machine>,
    pods: Vec<(String, Vec<u8>)>,
}

/// The result of a packet.
#[derive(Debug)]
pub struct Seen {
    verdict: i32,
    /// The outcomes whose counters changed.
    counted: Vec<Outcome>,
}

impl Rig {
    /// A rig with the pod `server` behind the interface.
    pub fn new(machine: Box<dyn Machine>, pods: Vec<(String, Vec<u8>)>) -> Self {
        let mut rig = Self { machine, pods };
        rig.plug("server");
        rig
    }

    /// Replaces the pod behind the interface.
    pub fn plug(&mut self, pod: &str) {
        let found = self.pods.iter().find(|(name, _)| name.ends_with(pod));
        let value = &found.unwrap_or_else(|| panic!("no {pod} in {:?}", self.pods)).1;
        self.machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), value);
    }

    /// Puts `pod` behind the interface with its own addresses, but filtered like `like`.
    pub fn plug_as(&mut self, like: &str, pod: &str) {
        let value = |name: &str| self.pods.iter().find(|(at, _)| at.ends_with(name)).unwrap().1.clone();
        let mut mixed = value(pod);
        mixed[..endpoint::NODE as usize].copy_from_slice(&value(like)[..endpoint::NODE as usize]);
        self.machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), &mixed);
    }

    /// Changes the entry of the pod behind the interface.
    pub fn change_endpoint(&mut self, change: impl FnOnce(&mut [u8])) {
        let mut value = self.machine.read(MapName::Endpoints, &INTERFACE.to_le_bytes());
        change(&mut value);
        self.machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), &value);
    }

    /// Removes the pod behind the interface.
    pub fn unplug(&mut self) {
        self.machine.remove(MapName::Endpoints, &INTERFACE.to_le_bytes());
    }

    /// A packet that leaves the pod.
    pub fn from_pod(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Egress, &packet.bytes(), Arrival::through(INTERFACE))
    }

    /// A packet that comes to the pod from outside of this host.
    pub fn to_pod(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Ingress, &packet.bytes(), Arrival::through(UPLINK))
    }

    /// The three packets that open a TCP connection of the server to port 443 of `friend`.
    pub fn connect(&mut self, server: IpAddr, friend: IpAddr) {
        self.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Outcome::Allowed);
        self.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN | ACK)).is(Outcome::Established);
        self.from_pod(&Packet::tcp((server, 40_000), (friend, 443), ACK)).is(Outcome::Established);
    }

    /// A packet that the pod sent and that returns to it.
    pub fn from_itself(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Ingress, &packet.bytes(), Arrival::through(INTERFACE))
    }

    /// A packet that this host itself sends to the pod.
    pub fn from_host(&mut self, packet: &Packet) -> Seen {
        self.send(Direction::Ingress, &packet.bytes(), Arrival::HERE)
    }

    /// Runs any bytes through the program of a hook.
    pub fn send(&mut self, hook: Direction, packet: &[u8], arrival: Arrival) -> Seen {
        let before = self.counters(hook);
        let verdict = self.machine.run(hook, packet, arrival);
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

    /// Whether a packet can be without a socket.
    pub fn knows_sockets(&self) -> bool {
        self.machine.knows_sockets()
    }

    /// Advances the clock.
    pub fn advance(&mut self, seconds: u64) {
        self.machine.advance(seconds);
    }

    /// The number of fragmented packets whose ports are stored.
    pub fn fragments(&self) -> usize {
        self.machine.entries(MapName::Fragments).iter().filter(|(_, value)| value.iter().any(|it| *it != 0)).count()
    }

    /// Begins the next generation: flows of the last one are judged again.
    pub fn next_epoch(&mut self) {
        let mut value = self.machine.entries(MapName::Config).remove(0).1;
        value[config::EPOCH as usize] += 1;
        self.machine.write(MapName::Config, &[0; 4], &value);
    }

    /// Sets the epoch of the current generation.
    pub fn set_epoch(&mut self, epoch: u32) {
        let mut value = self.machine.entries(MapName::Config).remove(0).1;
        value[config::EPOCH as usize..][..4].copy_from_slice(&epoch.to_le_bytes());
        self.machine.write(MapName::Config, &[0; 4], &value);
    }

    /// Ends all flows, as the runtime does.
    pub fn end_flows(&mut self) {
        for (map, family) in [(MapName::FlowBuckets4, Family::V4), (MapName::FlowBuckets6, Family::V6)] {
            for (key, mut table) in self.machine.entries(map) {
                for slot in table.chunks_exact_mut(buckets::slot_bytes(family) as usize) {
                    let word = u64::from_le_bytes(*slot.first_chunk().unwrap());
                    if word & buckets::LIVE != 0 {
                        slot[..8].copy_from_slice(&buckets::ended(word).to_le_bytes());
                    }
                }
                self.machine.write(map, &key, &table);
            }
        }
    }

    /// Keeps the flows of older generations.
    pub fn keep_established(&mut self) {
        let mut value = self.machine.entries(MapName::Config).remove(0).1;
        value[config::KEEP_ESTABLISHED as usize] = 1;
        self.machine.write(MapName::Config, &[0; 4], &value);
    }

    /// Makes the audit verdict decide.
    pub fn decide_by_audit(&mut self) {
        let mut value = self.machine.entries(MapName::Config).remove(0).1;
        value[config::AUDIT as usize] = 1;
        self.machine.write(MapName::Config, &[0; 4], &value);
    }

    /// The number of drop records in this second, and of drops that were not recorded.
    pub fn recorded(&self) -> (u32, u32) {
        let value = self.machine.read(MapName::EventLimit, &[0; 4]);
        let word = |at: usize| u32::from_le_bytes(*value[at..].first_chunk().unwrap());
        (word(8), word(12))
    }

    /// Flows as text: `fresh egress TcpFresh 10.8.0.1:443 from 40000`.
    pub fn flows(&self) -> Vec<String> {
        let mut flows = Vec::new();
        for (map, family) in [(MapName::FlowBuckets4, Family::V4), (MapName::FlowBuckets6, Family::V6)] {
            for (_, table) in self.machine.entries(map) {
                flows.extend(buckets::live(family, &table).map(|slot| show_flow(&slot.flow().unwrap())));
            }
        }
        flows.sort();
        flows
    }
}

fn show_flow(flow: &StoredFlow) -> String {
    let Tuple { remote, remote_port, local_port, .. } = flow.tuple;
    let place = if flow.state.is_confirmed() { "open" } else { "fresh" };
    let begun = if flow.begun == Direction::Egress { "egress" } else { "ingress" };
    let cut = if flow.is_cut { "cut " } else { "" };
    let origin = match flow.origin {
        Origin::MidStream => " from its middle",
        _ => "",
    };
    format!("{cut}{place} {begun} {:?} {remote}:{remote_port} {local_port}{origin}", flow.state)
}

impl Seen {
    /// Checks that the packet was counted once, as `outcome`, and passed or dropped accordingly.
    #[track_caller]
    pub fn is(self, outcome: Outcome) {
        assert_eq!((self.verdict, self.counted), (if outcome.drops() { 2 } else { -1 }, vec![outcome]));
    }

    /// The program's return value.
    pub fn verdict(&self) -> i32 {
        self.verdict
    }

    /// The outcomes whose counters changed.
    pub fn counted(&self) -> &[Outcome] {
        &self.counted
    }
}

/// The pod under test.
pub fn server(family: Family) -> IpAddr {
    address(family, "10.0.0.1", "fd00::1")
}

/// It may reach some of the server's ports.
pub fn client(family: Family) -> IpAddr {
    address(family, "10.0.0.2", "fd00::2")
}

/// Policies filter only its ingress.
pub fn listener(family: Family) -> IpAddr {
    address(family, "10.0.0.3", "fd00::3")
}

/// No policy selects it.
pub fn open(family: Family) -> IpAddr {
    address(family, "10.0.0.4", "fd00::4")
}

/// The server may reach it on every port.
pub fn friend(family: Family) -> IpAddr {
    address(family, "10.8.0.1", "fd08::1")
}

/// No policy mentions it.
pub fn stranger(family: Family) -> IpAddr {
    address(family, "203.0.113.7", "2001:db8::7")
}

/// The list of [`listed`] denies it.
pub fn denied(family: Family) -> IpAddr {
    address(family, "203.0.113.66", "2001:db8::66")
}

/// The pods' own node.
pub fn node(family: Family) -> IpAddr {
    address(family, "192.168.0.1", "fd00:c0::1")
}

/// The client's node.
pub fn other_node(family: Family) -> IpAddr {
    address(family, "192.168.0.2", "fd00:c0::2")
}

/// The address of the family.
pub fn address(family: Family, v4: &str, v6: &str) -> IpAddr {
    match family {
        Family::V4 => v4.parse().unwrap(),
        Family::V6 => v6.parse().unwrap(),
    }
}
