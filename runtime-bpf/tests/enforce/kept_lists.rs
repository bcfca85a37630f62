//! Lists of interfaces, addresses, filters and files that are kept between changes are always the present ones.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_fuzz::generators::Random;
use weir_runtime::skip;
use weir_runtime::sys::links::{InterfaceList, Interfaces, interfaces_here};
use weir_runtime::sys::netlink::Filter;
use weir_runtime::sys::{BpfKernel, ChangedInterfaces, Hook, Notifier};
use weir_runtime::system::System;

use crate::keeps::verdict;
use crate::net::{Layout, Node, must, possible};

/// Less than the age at which a kept list is asked for again.
const SOON: Duration = Duration::from_secs(5);

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
        assert_eq!(list.read().unwrap(), here());
        for change in changes {
            node.ip(change);
            assert_eq!(list.read().unwrap(), here(), "{change}");
            assert_eq!(list.read().unwrap(), here(), "{change}, and nothing since then");
        }
    });
}

fn here() -> Interfaces {
    interfaces_here().unwrap().into_iter().collect()
}

/// Both ends of a veth: in which of the two namespaces each is, and its name.
type Ends = [(usize, String); 2];

/// Random changes of veths, whose ends move between two namespaces.
struct RandomVeths<'n> {
    nodes: &'n [Node; 2],
    random: Random,
    veths: Vec<Ends>,
}

impl RandomVeths<'_> {
    /// Changes something. Returns lines for `ip`, each with the namespace where it is run. Names contain the step.
    fn change(&mut self, step: usize) -> Vec<(usize, String)> {
        let Self { nodes, random, veths } = self;
        let at = random.below(veths.len().max(1));
        let end = random.below(2);
        match (random.below(8), veths.get_mut(at)) {
            (0, _) | (_, None) => {
                let ends: Ends = [0, 1].map(|end| (random.below(2), format!("v{step}x{end}")));
                let there: Vec<&str> = ends.iter().map(|(node, _)| nodes[*node].name()).collect();
                let line = format!(
                    "link add {} netns {} type veth peer name {} netns {}",
                    ends[0].1, there[0], ends[1].1, there[1]
                );
                veths.push(ends);
                vec![(0, line)]
            }
            (1, Some(_)) => {
                let ends = veths.swap_remove(at);
                vec![(ends[end].0, format!("link del {}", ends[end].1))]
            }
            (2, Some(ends)) => {
                let (node, old) = ends[end].clone();
                ends[end].1 = format!("v{step}r");
                // Before Linux 6.2, an interface that is up keeps its name.
                vec![(node, format!("link set {old} down\nlink set {old} name {}", ends[end].1))]
            }
            (3, Some(ends)) => vec![(ends[end].0, format!("link set {} up", ends[end].1))],
            // More than are asked for one by one.
            (4, Some(_)) if step > 60 => {
                let batch: String = (0..30).map(|it| format!("link add b{step}x{it} type bridge\n")).collect();
                let removed: String = (0..29).map(|it| format!("link del b{step}x{it}\n")).collect();
                vec![(0, batch), (0, removed)]
            }
            (_, Some(ends)) => {
                let (from, name) = ends[end].clone();
                ends[end].0 = 1 - from;
                vec![(from, format!("link set {name} netns {}", nodes[1 - from].name()))]
            }
        }
    }
}

/// The list of one of the namespaces is compared after each change with an answer of the kernel.
#[test]
fn kept_interfaces_are_the_present_ones_after_random_changes() {
    skip!(unless possible());
    for seed in 0..8 {
        let nodes = [Node::new(Layout::Routed, 1), Node::new(Layout::Routed, 1)];
        let mut veths = RandomVeths { nodes: &nodes, random: Random::new(seed), veths: Vec::new() };
        let (kept, asking) = nodes[0].here(|| (System::open().unwrap().with_lists().unwrap(), System::open().unwrap()));
        for step in 0..80 {
            for (node, change) in veths.change(step) {
                nodes[node].batch(&change);
                if veths.random.below(3) > 0 {
                    let (kept, now) = (kept.interfaces().unwrap(), asking.interfaces().unwrap());
                    assert_eq!(kept, now, "seed {seed}, step {step}: {change}");
                }
            }
        }
        assert_eq!(kept.interfaces().unwrap(), asking.interfaces().unwrap(), "seed {seed}");
    }
}

/// The same, but another thread asks while the changes are made. So answers are newer than the messages that were read.
#[test]
fn kept_interfaces_are_the_present_ones_after_reads_during_random_changes() {
    skip!(unless possible());
    for seed in 0..4 {
        let nodes = [Node::new(Layout::Routed, 1), Node::new(Layout::Routed, 1)];
        let mut veths = RandomVeths { nodes: &nodes, random: Random::new(seed), veths: Vec::new() };
        let (kept, asking) = nodes[0].here(|| (System::open().unwrap().with_lists().unwrap(), System::open().unwrap()));
        for step in 0..80 {
            for (node, change) in veths.change(step) {
                let is_made = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !is_made.load(Ordering::SeqCst) {
                            // A whole list cannot be read while interfaces change all the time: this is an error, and
                            // the next read asks again.
                            let error = kept.interfaces().err().map(|error| error.to_string());
                            assert!(error.as_ref().is_none_or(|it| it.starts_with("the list changed")), "{error:?}");
                        }
                    });
                    nodes[node].batch(&change);
                    is_made.store(true, Ordering::SeqCst);
                });
                let (kept, now) = (kept.interfaces().unwrap(), asking.interfaces().unwrap());
                assert_eq!(kept, now, "seed {seed}, step {step}: {change}");
            }
        }
    }
}

/// Its number is taken there, so it has another one from then on. Both messages here name that one.
#[test]
fn another_end_that_comes_and_goes_between_two_reads_is_known() {
    skip!(unless possible());
    let nodes = [Node::new(Layout::Routed, 1), Node::new(Layout::Routed, 1)];
    let [here, there] = &nodes;
    let (kept, asking) = here.here(|| (System::open().unwrap().with_lists().unwrap(), System::open().unwrap()));
    here.ip(&format!("link add one type veth peer name two index 900 netns {}", there.name()));
    here.ip("link add other index 900 type bridge");
    assert_eq!(kept.interfaces().unwrap(), asking.interfaces().unwrap());
    let before = asking.interfaces().unwrap();
    there.move_to(here, "two");
    here.move_to(there, "two");
    assert_eq!(kept.interfaces().unwrap(), asking.interfaces().unwrap());
    assert_ne!(asking.interfaces().unwrap(), before, "it has another number");
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
        node.ip("link add last type bridge");
        assert_eq!(list.read().unwrap(), here());
        assert!(list.read().unwrap().iter().any(|it| it.name == "last"));
    });
}

#[test]
fn kept_interfaces_show_each_change_at_once_and_addresses_soon() {
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
                // The message about a new IPv6 address comes from a work queue.
                let begun = Instant::now();
                while kept.addresses().unwrap() != asking.addresses().unwrap() {
                    assert!(begun.elapsed() < SOON, "{change}, {when}: {:?}", kept.addresses());
                }
            }
        }
    });
}

/// The filters of all interfaces that exist.
fn all_filters(system: &System) -> Vec<(String, Hook, Vec<Filter>)> {
    let interfaces = system.interfaces().unwrap();
    let both = interfaces
        .values()
        .flat_map(|it| [Hook::Ingress, Hook::Egress].map(|hook| (it.name.clone(), it.ifindex, hook)));
    both.map(|(name, ifindex, hook)| (name, hook, system.filters(ifindex, hook).unwrap())).collect()
}

/// Pins a program with this verdict. Returns the words for `tc` that make a filter of it.
fn pinned_filter(node: &Node, name: &str, code: i32) -> String {
    let pin = node.bpffs().with_file_name(name);
    BpfKernel::open().unwrap().pin(verdict(code).as_fd(), &pin).unwrap();
    format!("protocol all bpf direct-action object-pinned {}", pin.display())
}

#[test]
fn notifications_name_the_interfaces_that_have_changed() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 1);
    let allow = pinned_filter(&node, "allow", 0);
    let these = |interfaces: &[u32]| ChangedInterfaces::These(interfaces.iter().copied().collect());
    let changes = [
        ("ip", "link add one index 4321 type bridge".to_owned(), these(&[4321])),
        ("tc", "qdisc add dev one clsact".to_owned(), these(&[4321])),
        ("tc", format!("filter add dev one ingress pref 7 handle 1 {allow}"), these(&[4321])),
        ("tc", "qdisc del dev one clsact".to_owned(), these(&[4321])),
        ("tc", "qdisc add dev one ingress_block 22 clsact".to_owned(), these(&[4321])),
        // Messages about the block name no interface.
        ("tc", format!("filter add block 22 pref 9 handle 1 {allow}"), ChangedInterfaces::Any),
        ("ip", "link del one".to_owned(), ChangedInterfaces::Any),
        ("ip", "link add one index 4323 type bridge".to_owned(), these(&[4323])),
        ("ip", "link del one".to_owned(), these(&[4323])),
    ];
    node.here(|| {
        let mut notifier = Notifier::open(&node.bpffs()).unwrap();
        // Late messages about these may still come.
        let before: BTreeSet<u32> = interfaces_here().unwrap().iter().map(|it| it.ifindex).collect();
        let mut changed = || {
            let mut all = ChangedInterfaces::NONE;
            while let Some(more) = notifier.wait(Duration::from_millis(20)).unwrap() {
                all.add(more);
            }
            match all {
                ChangedInterfaces::Any => ChangedInterfaces::Any,
                ChangedInterfaces::These(numbers) => these(&(&numbers - &before).into_iter().collect::<Vec<_>>()),
            }
        };
        changed();
        for (tool, change, expected) in &changes {
            if *tool == "ip" {
                node.ip(change)
            } else {
                node.tc(change)
            }
            assert_eq!(changed(), *expected, "{change}");
        }
        node.ip("link add many index 4322 type bridge");
        node.batch(&(0..MANY).map(|it| format!("link set many mtu {}\n", 1_000 + it)).collect::<String>());
        assert_eq!(changed(), ChangedInterfaces::Any, "messages are lost");
    });
}

#[test]
fn kept_filters_show_each_change_at_once() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    let [allow, drop] = [("allow", 0), ("drop", 2)].map(|(name, code)| pinned_filter(&node, name, code));
    let changes = [
        ("ip", "link add one type veth peer name other".to_owned()),
        ("tc", "qdisc add dev one clsact".to_owned()),
        ("tc", format!("filter add dev one ingress pref 7 handle 1 {allow}")),
        ("tc", format!("filter add dev one egress pref 7 handle 1 {allow}")),
        ("tc", format!("filter add dev one ingress pref 3 handle 2 {drop}")),
        ("tc", format!("filter replace dev one ingress pref 3 handle 2 {allow}")),
        ("tc", "filter del dev one ingress pref 7".to_owned()),
        ("tc", "filter del dev one ingress".to_owned()),
        ("tc", format!("filter add dev one ingress pref 5 handle 1 {allow}")),
        ("ip", "link set one name uno".to_owned()),
        ("tc", "qdisc del dev uno clsact".to_owned()),
        // Filters that several interfaces share.
        ("tc", "qdisc add dev uno ingress_block 22 clsact".to_owned()),
        ("tc", "qdisc add dev other ingress_block 22 clsact".to_owned()),
        ("tc", format!("filter add block 22 pref 9 handle 1 {allow}")),
        // Without a message about the chain, which the first and the last filter of a block make and end.
        ("tc", format!("filter add block 22 pref 8 handle 1 {allow}")),
        ("tc", "filter del block 22 pref 9".to_owned()),
        ("ip", "link del uno".to_owned()),
        ("ip", "link add uno index 4321 type veth peer name other".to_owned()),
        ("tc", "qdisc add dev uno clsact".to_owned()),
        ("tc", format!("filter add dev uno ingress pref 7 handle 1 {allow}")),
        ("ip", "link del uno".to_owned()),
        ("ip", "link add uno index 4321 type bridge".to_owned()),
    ];
    node.here(|| {
        let (kept, asking) = (System::open().unwrap().with_lists().unwrap(), System::open().unwrap());
        let mut most = 0;
        for (tool, change) in &changes {
            if *tool == "ip" {
                node.ip(change)
            } else {
                node.tc(change)
            }
            for when in ["at once", "and nothing since then"] {
                let there = all_filters(&asking);
                most = most.max(there.iter().map(|(.., filters)| filters.len()).sum());
                assert_eq!(all_filters(&kept), there, "{tool} {change}, {when}");
            }
        }
        assert_eq!(most, 4, "the changes make filters");
    });
}

#[test]
fn a_filter_whose_message_is_lost_is_seen() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 1);
    node.ip("link add many type bridge");
    node.ip("link add one type bridge");
    node.tc("qdisc add dev one clsact");
    let allow = pinned_filter(&node, "allow", 0);
    node.here(|| {
        let kept = System::open().unwrap().with_lists().unwrap();
        let one = kept.interface_named("one").unwrap().unwrap().ifindex;
        assert_eq!(kept.filters(one, Hook::Ingress).unwrap(), []);
        node.batch(&(0..MANY).map(|it| format!("link set many mtu {}\n", 1_000 + it)).collect::<String>());
        node.tc(&format!("filter add dev one ingress pref 7 {allow}"));
        assert_eq!(kept.filters(one, Hook::Ingress).unwrap().len(), 1);
    });
}

#[test]
fn kept_files_show_each_change_at_once() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 1);
    let root = node.bpffs().with_file_name("kept");
    let path = |name: &str| root.join(name);
    let pin = |name: &str| BpfKernel::open().unwrap().pin(verdict(0).as_fd(), &path(name)).unwrap();
    let changes: [(&str, &dyn Fn()); 15] = [
        ("the directory is made", &|| fs::create_dir(&root).unwrap()),
        ("a file comes", &|| pin("one")),
        ("another one comes", &|| pin("two")),
        ("a file is renamed", &|| fs::rename(path("one"), path("three")).unwrap()),
        ("a file is renamed to another's name", &|| fs::rename(path("three"), path("two")).unwrap()),
        ("a file leaves and comes", &|| {
            fs::remove_file(path("two")).unwrap();
            pin("two");
        }),
        ("the directory is made again", &|| {
            fs::remove_file(path("two")).unwrap();
            fs::remove_dir(&root).unwrap();
            fs::create_dir(&root).unwrap();
            pin("four");
        }),
        ("another file system is mounted there", &|| must(&format!("mount -t bpf bpf {}", root.display()))),
        ("a file comes there", &|| pin("five")),
        ("that file system leaves", &|| must(&format!("umount {}", root.display()))),
        ("the directory is renamed, and another one made", &|| {
            fs::rename(&root, root.with_file_name("other")).unwrap();
            fs::create_dir(&root).unwrap();
        }),
        ("a file is moved from the directory before", &|| {
            fs::rename(root.with_file_name("other").join("four"), path("six")).unwrap();
        }),
        ("a file is moved there", &|| fs::rename(path("six"), root.with_file_name("other").join("six")).unwrap()),
        ("a file comes here", &|| pin("seven")),
        ("it leaves", &|| fs::remove_file(path("seven")).unwrap()),
    ];
    let (kept, asking) = (System::open().unwrap().with_lists().unwrap(), System::open().unwrap());
    for (change, make) in changes {
        make();
        for when in ["at once", "and nothing since then"] {
            let [kept, now] = [&kept, &asking].map(|system| system.list(&root).unwrap());
            assert!(kept.iter().eq(now.iter()), "{change}, {when}: {kept:?}, {now:?}");
        }
    }
    assert!(kept.list(&root).unwrap().is_empty());
    // More messages about another directory than the queue has room for.
    let other = root.with_file_name("other");
    assert!(kept.list(&other).unwrap().names().eq(["six"]));
    let room: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for _ in 0..room / 4 + 1 {
        fs::rename(other.join("six"), other.join("seven")).unwrap();
        fs::rename(other.join("seven"), other.join("six")).unwrap();
    }
    pin("eight");
    assert!(kept.list(&root).unwrap().names().eq(["eight"]), "the message about it is lost");
}
