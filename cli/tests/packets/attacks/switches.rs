//! Policies that change while connections carry traffic.
//!
//! A cut connection used to come back: the end that policy allows to send (such as the server under an ingress policy)
//! continued it as a new flow in its own direction, and the other end's packets passed as answers to it. And flows of a
//! pod that no policy selected were not stored. So the first policy that selected the pod had no flows to judge, and
//! broke allowed connections.

mod lines;

use std::time::{Duration, Instant};

use lines::{Kind, Line, Speaks, run, run_until};

use super::{EVERYWHERE, Findings, IN_BOTH_AT_ONCE, attack, attack_tracked, from, generation, policy, switch};
use crate::stage::{OUTSIDE, Stage};

/// Time for the last packets to arrive.
const GRACE: Duration = Duration::from_millis(300);
/// Waiting time for packets that should arrive.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time in which no packet may arrive.
const WATCH: Duration = Duration::from_secs(6);
const BEFORE: Duration = Duration::from_millis(600);
const PAUSES: [u64; 3] = [1, 15, 1_000];

/// Client, server, and how they are isolated.
const PAIRS: [(&str, &str, &str); 3] = [
    ("client", "server", "isolated for ingress alone"),
    ("client", "friend", "isolated for ingress, with all egress allowed"),
    ("other", "sealed", "both ends isolated"),
];

/// All pairs may send, or none.
fn pairs(open: bool) -> String {
    let sources = |app: &str| from(if open { app } else { "none" });
    let other = if open { "  ingress: [{}]\n  egress: [{}]\n" } else { "" };
    [
        policy("server", "Ingress", &sources("client")),
        policy("friend", "Ingress, Egress", &(sources("client") + "  egress: [{}]\n")),
        policy("sealed", "Ingress, Egress", &(sources("other") + if open { "  egress: [{}]\n" } else { "" })),
        policy("other", "Ingress, Egress", other),
    ]
    .concat()
}

/// Both families run at once, since most of the time is spent waiting.
fn lines(stage: &mut Stage) -> Vec<Line> {
    let mut all = Vec::new();
    for (v6, (client, server, what)) in [false, true].into_iter().flat_map(|v6| PAIRS.map(|pair| (v6, pair))) {
        stage.v6 = v6;
        let mut add = |kind, speaks, pause| {
            let number = all.len() as u16;
            let name = format!("IPv{}, {what}: {kind:?}, {speaks:?} every {pause} ms", if v6 { 6 } else { 4 });
            all.push(Line::open(stage, name, (client, server), 20_000 + number, kind, speaks, pause));
        };
        for pause in PAUSES {
            for speaks in [Speaks::Client, Speaks::Server, Speaks::Both] {
                [Kind::Tcp, Kind::Udp].into_iter().for_each(|kind| add(kind, speaks, pause));
            }
            add(Kind::HalfClosed, Speaks::Server, pause);
        }
    }
    all
}

#[test]
fn tightened_policy_cuts_active_connections() {
    attack_tracked(IN_BOTH_AT_ONCE, |stage, findings| {
        let [open, tight] = [true, false].map(|it| generation(stage, &format!("open-{it}"), &pairs(it)));
        switch(stage, &open);
        let mut lines = lines(stage);
        run_until(&mut lines, PATIENCE, Line::is_heard);
        for line in &lines {
            assert!(line.is_heard(), "{}: {}: nothing arrives before the switch", stage.name(), line.name);
        }
        switch(stage, &tight);
        run(&mut lines, GRACE);
        lines.iter_mut().for_each(Line::forget);
        run(&mut lines, WATCH);
        let alive = lines.iter().filter(|line| line.received != [0, 0]);
        alive.for_each(|line| findings.expect(false, format!("{}: received {:?}", line.name, line.received)));
    });
}

/// The end of a connection from before the first policy that sends next.
#[test]
fn first_policy_keeps_established_connections_that_it_allows() {
    attack_tracked(EVERYWHERE, |stage, findings| {
        switch(stage, &generation(stage, "none", ""));
        let mut lines = Vec::new();
        for (kind, number) in [(Kind::Tcp, 0_u16), (Kind::Udp, 1)] {
            let mut add = |name: &str, ends, port: u16, speaks| {
                let name = format!("{name}: {kind:?}, then {speaks:?}");
                lines.push(Line::open(stage, name, ends, port + number, kind, speaks, 200));
            };
            // The server may not begin anything.
            add("incoming, allowed, all egress denied", ("client", "server"), 20_000, Speaks::Server);
            add("incoming, allowed, all egress denied", ("client", "server"), 20_002, Speaks::Client);
            // The other end may not.
            add("outgoing, all ingress denied", ("friend", OUTSIDE[usize::from(stage.v6)]), 20_004, Speaks::Server);
            add("outgoing, all ingress denied", ("friend", OUTSIDE[usize::from(stage.v6)]), 20_006, Speaks::Client);
            add("outgoing to a pod, all ingress denied", ("friend", "other"), 20_008, Speaks::Server);
        }
        let first = policy("server", "Ingress, Egress", &from("client")) + &policy("friend", "Ingress", "");
        let first = generation(stage, "first", &first);
        for line in &mut lines {
            line.settle();
        }
        switch(stage, &first);
        lines.iter_mut().for_each(Line::forget);
        run_until(&mut lines, PATIENCE, Line::is_heard);
        for line in &lines {
            findings.expect(line.is_heard(), format!("{}: received {:?}", line.name, line.received));
        }
    });
}

/// Ten switches a second, between two generations that agree about the old connections.
#[test]
fn switching_generations_loses_no_allowed_and_passes_no_denied_packet() {
    attack(EVERYWHERE, |stage, findings| {
        // In both generations `server`'s connections are allowed. `friend`'s are denied in both, and were allowed when
        // they began.
        let [before, even, odd] = ["before", "even", "odd"].map(|name| {
            let sources = if name == "before" { "client" } else { "none" };
            let more = policy("other", "Ingress", &from(name));
            let text =
                policy("server", "Ingress", &from("client")) + &policy("friend", "Ingress", &from(sources)) + &more;
            generation(stage, name, &text)
        });
        switch(stage, &before);
        let mut lines = lively(stage);
        let closed = lines.split_off(lines.len() / 2);
        let (mut open, mut closed) = (lines, closed);
        run(&mut open, BEFORE);
        run(&mut closed, BEFORE);
        let switches = std::thread::scope(|scope| {
            switch(stage, &even);
            let until = Instant::now() + Duration::from_secs(2);
            let here = &*stage;
            let switcher = scope.spawn(move || {
                let mut count = 0;
                while Instant::now() < until {
                    let begun = Instant::now();
                    switch(here, if count % 2 == 0 { &odd } else { &even });
                    count += 1;
                    std::thread::sleep(Duration::from_millis(100).saturating_sub(begun.elapsed()));
                }
                count
            });
            let mut all: Vec<Line> = open.drain(..).chain(closed.drain(..)).collect();
            run(&mut all, GRACE);
            let half = all.len() / 2;
            all[half..].iter_mut().for_each(Line::forget);
            while !switcher.is_finished() {
                run(&mut all, Duration::from_millis(50));
            }
            closed = all.split_off(half);
            open = all;
            switcher.join().unwrap()
        });
        judge(findings, switches, &mut open, &closed);
    });
}

fn lively(stage: &Stage) -> Vec<Line> {
    let mut all = Vec::new();
    for server in ["server", "friend"] {
        for kind in [Kind::Tcp, Kind::Udp] {
            for (speaks, pause) in [(Speaks::Both, 1), (Speaks::Server, 1), (Speaks::Client, 15), (Speaks::Server, 15)]
            {
                let name = format!("to {server}: {kind:?}, {speaks:?} every {pause} ms");
                let port = 20_000 + all.len() as u16;
                all.push(Line::open(stage, name, ("client", server), port, kind, speaks, pause));
            }
        }
    }
    all
}

fn judge(findings: &mut Findings, switches: u32, open: &mut [Line], closed: &[Line]) {
    open.iter_mut().for_each(Line::hush);
    // TCP retransmits lost bytes, which needs time.
    run_until(open, PATIENCE, Line::is_complete);
    let sent: u64 = open.iter().map(|it| it.sent.iter().sum::<u64>()).sum();
    println!("  {}: {switches} switches, {sent} packets", findings.stage);
    for line in open.iter() {
        let (sent, received) = (line.sent, line.received);
        findings.expect(line.is_complete(), format!("{}: sent {sent:?}, received {received:?}", line.name));
    }
    for line in closed {
        findings.expect(line.received == [0, 0], format!("{}: received {:?}", line.name, line.received));
    }
}
