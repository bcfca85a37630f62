//! Programs of others on the same hooks: they keep working, and are named.

use std::os::fd::AsFd as _;

use weir_runtime::runtime::{PinAccess, Runtime};
use weir_runtime::sys::netlink::{Filter, NetlinkSocket, Put};
use weir_runtime::sys::{BpfKernel, Hook, KernelLink, KernelMap, KernelProgram, MapDefinition, MapType};
use weir_runtime::{Error, HookKind, HookNeighbour, StateAfterFailure, skip};

use crate::attach::{attach, each, only_port, status};
use crate::net::{Layout, Node, pod_address, possible};
use crate::probe::{connect, serve};

/// A program that counts the packets that it sees, and passes them on to the next program.
struct Counter {
    seen: KernelMap,
    program: KernelProgram,
}

impl Counter {
    fn new(name: &str) -> Self {
        let kernel = BpfKernel::open().unwrap();
        let definition =
            MapDefinition { map_type: MapType::Array, key_size: 4, value_size: 8, max_entries: 1, flags: 0 };
        let seen = kernel.create_map(&definition, None).unwrap();
        let fd = seen.descriptor().to_le_bytes();
        let instructions = [
            // r1 = address of the only value (BPF_PSEUDO_MAP_VALUE)
            [0x18, 0x21, 0, 0, fd[0], fd[1], fd[2], fd[3]],
            [0; 8],
            // r2 = 1; lock *(u64 *)r1 += r2
            [0xb7, 2, 0, 0, 1, 0, 0, 0],
            [0xdb, 0x21, 0, 0, 0, 0, 0, 0],
            // return next
            [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        let program = kernel.load_named(name, &instructions.concat(), None).unwrap();
        Self { seen, program }
    }

    fn seen(&self) -> u64 {
        u64::from_le_bytes(self.seen.lookup(&[0; 4]).unwrap().try_into().unwrap())
    }

    /// Attaches it before all other programs on the host's egress hook towards pod 1. A TCX link lives as long as the
    /// returned value.
    fn put(&self, node: &Node, way: HookKind) -> Option<KernelLink> {
        let name = self.program.info().unwrap().name;
        node.here(|| {
            let socket = NetlinkSocket::open().unwrap();
            let ifindex = socket.interface_named(&node.interface(1)).unwrap().ifindex;
            match way {
                HookKind::Tcx => Some(BpfKernel::open().unwrap().attach(&self.program, ifindex, Hook::Egress).unwrap()),
                HookKind::Clsact => {
                    socket.add_clsact(ifindex).unwrap();
                    // Among filters of the same priority, the one that is added last runs first.
                    let handle = name.len() as u32;
                    let filter = Filter { priority: 1, handle, name, program: 0 };
                    socket.put_filter(ifindex, Hook::Egress, &filter, &self.program, Put::New).unwrap();
                    None
                }
            }
        })
    }
}

const MANY: u64 = 100;

/// Sends datagrams from pod 0 to a port that no policy allows.
fn send_many(node: &Node, to: std::net::IpAddr) {
    let socket = node.in_pod(0, || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap();
    (0..MANY).for_each(|_| _ = socket.send_to(b"!", (to, 81)).unwrap());
}

#[test]
fn foreign_programs_before_and_after_ours_work_and_are_named() {
    each(|node, way| {
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        let (first, last) = (Counter::new("stands_before"), Counter::new("stands_after"));
        let _stays = last.put(node, way);
        attach(node, &only_port(80), &[0, 1], Some(way)).unwrap();
        let _stays = first.put(node, way);
        let (before, after) = (first.seen(), last.seen());
        assert!(connect(node, 0, pod_address(1, false), 80).is_some(), "{way:?}");
        let [before, after] = [first.seen() - before, last.seen() - after];
        assert!(before > 0 && after > 0, "{way:?}: {before} before, {after} after");
        // A denied packet does not reach the programs after ours. The count after ours need not be zero: the kernel
        // sends a few packets of its own.
        let (before, after) = (first.seen(), last.seen());
        send_many(node, pod_address(1, false));
        let [before, after] = [first.seen() - before, last.seen() - after];
        assert!(before >= MANY && after < MANY, "{way:?}: {before} before, {after} after");
        let named = |all: &[HookNeighbour]| -> Vec<(String, bool)> {
            all.iter().filter(|it| it.way == way).map(|it| (it.name.clone(), it.before)).collect()
        };
        let expected = [("stands_before".to_owned(), true), ("stands_after".to_owned(), false)];
        assert_eq!(named(&status(node).unwrap().neighbours), expected, "{way:?}");
        // A switch leaves them where they are, and its result lists them too.
        let attached = attach(node, &only_port(81), &[], None).unwrap();
        let there =
            node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.neighbours(&attached.endpoints)).unwrap();
        assert_eq!(named(&there), expected, "{way:?}");
        let (before, after) = (first.seen(), last.seen());
        assert!(connect(node, 0, pod_address(1, false), 81).is_some(), "{way:?}");
        assert!(first.seen() > before && last.seen() > after, "{way:?}");
    });
}

/// Two ways in which tc blocks our filters: an `ingress` qdisc, which would put both of our filters into its single
/// list, and another program's filter with the earliest priority. The error names both, and the status does not claim
/// that the pod is enforced.
#[test]
fn an_obstacle_at_a_hook_is_named_and_the_attach_fails() {
    skip!(unless possible());
    for (qdisc, said) in [
        ("ingress", "an ingress qdisc where clsact should be"),
        ("clsact", "the filter other:[*fsobj] with priority 1"),
    ] {
        let node = Node::new(Layout::Routed, 2);
        [80, 81].into_iter().for_each(|port| serve(&node, 1, port));
        node.tc(&format!("qdisc add dev veth1 {qdisc}"));
        let (other, pin) = (Counter::new("stands_first"), node.bpffs().with_file_name("other"));
        if qdisc == "clsact" {
            BpfKernel::open().unwrap().pin(other.program.as_fd(), &pin).unwrap();
            let program = format!("bpf direct-action object-pinned {}", pin.display());
            node.tc(&format!("filter add dev veth1 egress prio 1 protocol ip {program}"));
        }
        let error = attach(&node, &only_port(80), &[0, 1], Some(HookKind::Clsact)).unwrap_err();
        let Error::Partial(failures) = &error else { panic!("{error:?}") };
        assert_eq!(failures.iter().map(|it| it.pod.as_str()).collect::<Vec<_>>(), ["default/p1"], "{error}");
        assert!(failures[0].why.contains(said) && failures[0].now == StateAfterFailure::Open, "{error}");
        assert!(connect(&node, 0, pod_address(1, false), 81).is_some(), "as it said: not enforced");
        let enforced = status(&node).unwrap().endpoints;
        assert_eq!(enforced.iter().map(|it| it.endpoint.pod.as_str()).collect::<Vec<_>>(), ["default/p0"]);
        // The step that the error's text advises.
        node.tc(&format!("qdisc del dev veth1 {qdisc}"));
        attach(&node, &only_port(80), &[1], Some(HookKind::Clsact)).unwrap();
        assert!(connect(&node, 0, pod_address(1, false), 80).is_some());
        assert!(connect(&node, 0, pod_address(1, false), 81).is_none());
    }
}
