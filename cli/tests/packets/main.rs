//! Tests Weir with real packets: namespaces, interfaces and sockets, and the built binary.
//!
//! Everything happens in network namespaces that only this process holds. Without privileges the tests are skipped,
//! with a message.

mod attacks;
mod corpus;
mod demo;
mod enforce;
mod load;
mod mounts;
mod namespace;
mod observe;
mod partial;
mod place;
mod probe;
mod scenes;
mod sctp;
mod services;
mod stage;
mod sys;
mod topology;
mod trust;
mod wire;

use enforce::By;
use namespace::{Error, Namespace};
use topology::Layout;
use weir_runtime::skip;

/// Checks that the required privileges and tools work.
fn privilege() -> Result<(), Error> {
    let space = Namespace::new()?;
    space.ip("link add one type veth peer name other\n")?;
    place::Place::new().map(drop)
}

/// Checks that the tools for the control with netfilter rules work.
fn control() -> Result<(), Error> {
    privilege()?;
    let space = Namespace::new()?;
    space.run("ipset", &["create", "probe", "hash:net"], "")?;
    let rule = "*filter\n-A FORWARD -m set --match-set probe src -m conntrack --ctstate NEW -j DROP\nCOMMIT\n";
    space.run("iptables-restore", &[], rule)?;
    space.run("ip6tables-restore", &[], "*filter\nCOMMIT\n").map(drop)
}

#[track_caller]
fn corpus_holds(by: By, layout: Layout, at_least: usize) {
    let _not_alone = load::QUIET.read().unwrap_or_else(|it| it.into_inner());
    let tally = corpus::run(by, layout);
    let (passed, dropped) = (tally.passed, tally.dropped);
    println!("{by:?}, {layout:?}: {passed} got through, {dropped} did not, skipped: {:?}", tally.skipped);
    assert!(tally.wrong.is_empty(), "{by:?}, {layout:?}:\n  {}", tally.wrong.join("\n  "));
    assert!(passed.min(dropped) >= at_least, "only {passed} and {dropped}: the run is too small to show anything");
}

#[test]
fn iptables_rules_match_the_corpus_for_routed_pods() {
    skip!(unless control());
    corpus_holds(By::Rules, Layout::Routed, 100);
}

#[test]
fn programs_match_the_corpus_for_routed_pods() {
    skip!(unless privilege());
    corpus_holds(By::Programs, Layout::Routed, 100);
}

#[test]
fn programs_match_the_corpus_for_bridged_pods() {
    skip!(unless privilege());
    corpus_holds(By::Programs, Layout::Bridge, 100);
}
