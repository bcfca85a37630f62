//! Programs of others on the same hooks: they keep working, and are named.

use weir_runtime::sys::netlink::{Filter, Socket};
use weir_runtime::sys::{Hook, Kernel, Link, Map, MapDefinition, MapType, Program};
use weir_runtime::{Neighbour, Way};

use crate::attach::{attach, each, only_port, status};
use crate::net::{Node, pod_address};
use crate::probe::{connect, serve};

/// A program that counts what it sees, and hands everything on.
struct Counter {
    seen: Map,
    program: Program,
}

impl Counter {
    fn new(name: &str) -> Self {
        let kernel = Kernel::open().unwrap();
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

    /// Puts it before all others on the way into pod 1. A link ends with what is returned.
    fn put(&self, node: &Node, way: Way) -> Option<Link> {
        let name = self.program.info().unwrap().name;
        node.here(|| {
            let socket = Socket::open().unwrap();
            let ifindex = socket.interface_named(&node.interface(1)).unwrap().ifindex;
            match way {
                Way::Tcx => Some(Kernel::open().unwrap().attach(&self.program, ifindex, Hook::Egress).unwrap()),
                Way::Clsact => {
                    socket.add_clsact(ifindex).unwrap();
                    // What comes later stands earlier.
                    let handle = name.len() as u32;
                    let filter = Filter { priority: 1, handle, name, program: 0 };
                    socket.put_filter(ifindex, Hook::Egress, &filter, &self.program).unwrap();
                    None
                }
            }
        })
    }
}

const MANY: u64 = 100;

/// Datagrams from pod 0, to a port that nobody may use.
fn send_many(node: &Node, to: std::net::IpAddr) {
    let socket = node.in_pod(0, || std::net::UdpSocket::bind("0.0.0.0:0")).unwrap();
    (0..MANY).for_each(|_| _ = socket.send_to(b"!", (to, 81)).unwrap());
}

#[test]
fn programs_of_others_before_and_after_ours_work_and_are_named() {
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
        // What is denied is not seen any more by who comes after us; kernels say a few things of their own meanwhile.
        let (before, after) = (first.seen(), last.seen());
        send_many(node, pod_address(1, false));
        let [before, after] = [first.seen() - before, last.seen() - after];
        assert!(before >= MANY && after < MANY, "{way:?}: {before} before, {after} after");
        let named = |all: &[Neighbour]| -> Vec<(String, bool)> {
            all.iter().filter(|it| it.way == way).map(|it| (it.name.clone(), it.before)).collect()
        };
        let expected = [("stands_before".to_owned(), true), ("stands_after".to_owned(), false)];
        assert_eq!(named(&status(node).unwrap().neighbours), expected, "{way:?}");
        // A switch leaves them where they are, and says so too.
        let attached = attach(node, &only_port(81), &[], None).unwrap();
        assert_eq!(named(&attached.neighbours), expected, "{way:?}");
        let (before, after) = (first.seen(), last.seen());
        assert!(connect(node, 0, pod_address(1, false), 81).is_some(), "{way:?}");
        assert!(first.seen() > before && last.seen() > after, "{way:?}");
    });
}
