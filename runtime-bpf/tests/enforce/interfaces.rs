//! The list of interfaces that is kept between changes is always the present one.

use weir_runtime::skip;
use weir_runtime::sys::links::{InterfaceList, interfaces_here};
use weir_runtime::system::System;

use crate::net::{Layout, Node, possible};

/// More messages than the socket has room for.
const MANY: usize = 1_000;

#[test]
fn a_kept_list_shows_each_change_at_once() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    let changes = [
        "link add one type veth peer name other",
        "link set one name uno",
        "link set other up",
        "link add link uno name upper type macvlan",
        "link del upper",
        "link del uno",
        "link add uno type bridge",
    ];
    node.here(|| {
        let mut list = InterfaceList::default();
        assert_eq!(list.read().unwrap(), interfaces_here().unwrap());
        for change in changes {
            node.ip(change);
            assert_eq!(list.read().unwrap(), interfaces_here().unwrap(), "{change}");
            assert_eq!(list.read().unwrap(), interfaces_here().unwrap(), "{change}, and nothing since then");
        }
    });
}

#[test]
fn a_change_whose_message_is_lost_is_seen() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 1);
    node.here(|| {
        let mut list = InterfaceList::default();
        list.read().unwrap();
        node.ip("link add many type bridge");
        list.read().unwrap();
        node.batch(&(0..MANY).map(|it| format!("link set many mtu {}\n", 1_000 + it)).collect::<String>());
        node.ip("link set many name last");
        assert_eq!(list.read().unwrap(), interfaces_here().unwrap());
        assert!(list.read().unwrap().iter().any(|it| it.name == "last"));
    });
}

#[test]
fn kept_interfaces_and_addresses_show_each_change_at_once() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    let changes = [
        "link add one type veth peer name other",
        "link set one address 02:00:00:00:00:01",
        "addr add 192.0.2.1/32 dev one",
        "link set one up",
        "link set other up",
        "addr add 2001:db8::1/64 dev one nodad",
        "link set one name uno",
        "addr del 192.0.2.1/32 dev uno",
        "addr add 192.0.2.2/32 dev lo",
        "link del uno",
        "addr del 192.0.2.2/32 dev lo",
    ];
    node.here(|| {
        let (kept, asking) = (System::open().unwrap().with_lists().unwrap(), System::open().unwrap());
        for change in changes {
            node.ip(change);
            for when in ["at once", "and nothing since then"] {
                assert_eq!(kept.interfaces().unwrap(), asking.interfaces().unwrap(), "{change}, {when}");
                assert_eq!(kept.addresses().unwrap(), asking.addresses().unwrap(), "{change}, {when}");
            }
        }
    });
}
