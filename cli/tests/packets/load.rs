//! Switches, crashes and floods while packets flow.
//!
//! Packets are counted, and times are never asserted: packets that both generations allow are never lost, and packets
//! that either generation denies at some end never get through. `WEIR_LOAD_SECONDS`, `WEIR_LOAD_SYNS` and
//! `WEIR_LOAD_ENDPOINTS` ask for longer runs than CI has time for.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::enforce::{attach, compile_to, weir};
use crate::namespace::run;
use crate::place::Place;
use crate::topology::{Layout, Net, NodePlan, Plan, PodPlan};

mod bench;
mod flood;

/// Load tests need the machine for themselves; all other tests may run at the same time.
pub(crate) static QUIET: RwLock<()> = RwLock::new(());

const SWITCH_EVERY: Duration = Duration::from_millis(100);
const CRASH_EVERY: Duration = Duration::from_secs(2);
/// The least number of switches, even on a slow machine.
const LEAST_SWITCHES: u32 = 8;
/// Number of packets in flight at a time: fewer than a socket's buffer holds.
const AT_ONCE: usize = 32;
/// The kernel repeats a lost SYN after a second.
const NO_SECOND_SYN: Duration = Duration::from_millis(900);

/// The number in an environment variable, or the default.
fn asked(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Pods `p0`, `p1` … of one node; the policies give them their roles.
fn lay_out(pods: usize) -> (Net, Place) {
    let pod = |index: usize| PodPlan {
        name: format!("default/p{index}"),
        addresses: vec![address(index, false), address(index, true)],
    };
    let node = NodePlan {
        name: "here".to_owned(),
        addresses: vec![[192, 168, 0, 1].into()],
        pods: (0..pods).map(pod).collect(),
        ..NodePlan::default()
    };
    let net = Net::new(Layout::Routed, Plan { nodes: vec![node], outside: vec![[198, 51, 100, 7].into()] }).unwrap();
    (net, Place::new().unwrap())
}

fn address(pod: usize, v6: bool) -> IpAddr {
    let text =
        if v6 { format!("fd00::{:x}", pod + 1) } else { format!("10.0.{}.{}", (pod + 1) / 256, (pod + 1) % 256) };
    text.parse().unwrap()
}

/// The pods and policies as an artifact.
fn generation(net: &Net, place: &Place, name: &str, pods: usize, policies: &str) -> PathBuf {
    let mut text = "apiVersion: v1\nkind: Node\nmetadata: {name: here}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n".to_owned();
    for index in 0..pods {
        let (v4, v6) = (address(index, false), address(index, true));
        text += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{index}, labels: {{pod: p{index}}}}}
spec: {{nodeName: here, containers: [{{name: c, image: i}}]}}
status: {{phase: Running, podIP: {v4}, podIPs: [{{ip: {v4}}}, {{ip: '{v6}'}}]}}\n"
        );
    }
    let (input, artifact) = (place.file(&format!("{name}.yaml")), place.file(&format!("{name}.o")));
    std::fs::write(&input, text + policies).unwrap();
    compile_to(&artifact, &net.nodes[0], &[input]).unwrap();
    artifact
}

/// A policy for a pod, of one type, with rules.
fn policy(pod: usize, direction: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p{pod}-{}}}
spec:\n  podSelector: {{matchLabels: {{pod: p{pod}}}}}\n  policyTypes: [{direction}]\n  {rules}\n",
        direction.to_lowercase()
    )
}

/// Both allow p0 to p1 on 7, and deny 8 (at p1) and 9 (at p0). From p2 to p3, one denies at the source and the other at
/// the destination.
fn generations() -> [String; 2] {
    let port = "ports: [{port: 7, protocol: UDP}, {port: 7}]";
    let sender = |more: &str| {
        policy(
            0,
            "Egress",
            &format!("egress: [{{ports: [{{port: 7, endPort: 8, protocol: UDP}}, {{port: 7}}{more}]}}]"),
        )
    };
    let receiver = |more: &str| {
        policy(
            1,
            "Ingress",
            &format!("ingress: [{{from: [{{podSelector: {{matchLabels: {{pod: p0}}}}}}{more}], {port}}}]"),
        )
    };
    [
        [sender(""), receiver(""), policy(3, "Ingress", "ingress: []")].concat(),
        [sender(", {port: 100}"), receiver(", {ipBlock: {cidr: 203.0.113.0/24}}"), policy(2, "Egress", "egress: []")]
            .concat(),
    ]
}

#[test]
fn no_packet_is_lost_or_wrongly_passed_while_generations_change_and_agents_die() {
    weir_runtime::skip!(unless crate::privilege());
    let _alone = QUIET.write().unwrap_or_else(|it| it.into_inner());
    let (net, place) = lay_out(4);
    let mut texts = generations().into_iter();
    let artifacts = ["even", "odd"].map(|name| generation(&net, &place, name, 4, &texts.next().unwrap_or_default()));
    attach(&net.nodes[0], &place, &artifacts[1], &[]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = [false, true].map(|v6| {
            scope.spawn({
                let (net, stop) = (&net, &stop);
                move || traffic(net, v6, stop)
            })
        });
        let changes = change(&net, &place, &artifacts);
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            let seen = load.join().unwrap();
            println!("{changes} switches: {seen:?}");
            assert!(seen.received > 1_000 && seen.connected > 10, "too little to show anything");
            assert_eq!((seen.lost, seen.passed), (0, 0), "lost: both generations allow it; passed: both deny it");
        }
    });
}

/// Switches back and forth for as long as asked. Sometimes the command is killed during a switch, and the next one
/// takes over.
fn change(net: &Net, place: &Place, artifacts: &[PathBuf; 2]) -> u32 {
    let (node, begun, mut crashed, mut turn) = (&net.nodes[0], Instant::now(), Instant::now(), 0);
    let length = Duration::from_secs(asked("WEIR_LOAD_SECONDS", 10));
    while begun.elapsed() < length || turn < LEAST_SWITCHES {
        let switched = Instant::now();
        let artifact = &artifacts[turn as usize % 2];
        if crashed.elapsed() > CRASH_EVERY {
            crashed = switched;
            let mut command = node.space.command(weir());
            command.arg("attach").arg(artifact).arg("--bpffs").arg(crate::enforce::pins(place, node));
            let mut child =
                command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
            // Killed at another point each time.
            std::thread::sleep(Duration::from_millis(u64::from(turn * 7 % 60)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        run(
            node.space
                .command(weir())
                .arg("attach")
                .arg(artifact)
                .arg("--bpffs")
                .arg(crate::enforce::pins(place, node)),
            "",
        )
        .unwrap();
        turn += 1;
        std::thread::sleep(SWITCH_EVERY.saturating_sub(switched.elapsed()));
    }
    turn
}

/// The results of the traffic.
#[derive(Debug, Default)]
struct Seen {
    received: u64,
    connected: u64,
    /// Allowed packets that did not arrive.
    lost: u64,
    /// Denied packets that arrived.
    passed: u64,
}

fn socket(net: &Net, pod: usize, v6: bool, port: u16) -> UdpSocket {
    let at = SocketAddr::new(address(pod, v6), port);
    let socket = net.nodes[0].pods[pod].space.enter(|| UdpSocket::bind(at)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// Sends as fast as possible until `stop` is set: packets of an old flow and of new ones, which are allowed, and
/// packets that are denied.
fn traffic(net: &Net, v6: bool, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let to = |pod, port| SocketAddr::new(address(pod, v6), port);
    let (receiver, old) = (socket(net, 1, v6, 7), socket(net, 0, v6, 0));
    let denied = [(1, 8), (1, 9), (3, 7)].map(|(pod, port)| socket(net, pod, v6, port));
    denied.iter().for_each(|it| it.set_nonblocking(true).unwrap());
    let listener = net.nodes[0].pods[1].space.enter(|| std::net::TcpListener::bind(to(1, 7))).unwrap().unwrap();
    let other = socket(net, 2, v6, 0);
    while !stop.load(Ordering::Relaxed) {
        let new = socket(net, 0, v6, 0);
        for sender in [&old, &new] {
            for _ in 0..AT_ONCE {
                sender.send_to(b"!", to(1, 7)).unwrap();
            }
            for port in [8, 9] {
                sender.send_to(b"?", to(1, port)).unwrap();
            }
            other.send_to(b"?", to(3, 7)).unwrap();
            for _ in 0..AT_ONCE {
                let came = receiver.recv(&mut [0; 8]).is_ok();
                *if came { &mut seen.received } else { &mut seen.lost } += 1;
            }
        }
        let connect = || std::net::TcpStream::connect_timeout(&to(1, 7), NO_SECOND_SYN).is_ok();
        let connected = net.nodes[0].pods[0].space.enter(connect).unwrap();
        *if connected { &mut seen.connected } else { &mut seen.lost } += 1;
        drop(listener.accept());
    }
    std::thread::sleep(Duration::from_millis(100));
    for socket in &denied {
        while socket.recv(&mut [0; 8]).is_ok() {
            seen.passed += 1;
        }
    }
    seen
}
