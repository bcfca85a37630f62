//! `weir demo` without the kernel. `cli/tests/packets/demo.rs` runs it with real packets.

use crate::support::Place;

#[test]
fn demo_in_userspace_shows_verdicts_with_their_lines() {
    let demo = Place::new().run("demo --vm").exits(0);
    let (before, rest) = demo.out.split_once("2. The 5 policies").expect("the second step");
    let (enforced, changed) = rest.split_once("3. A policy changes").expect("the third step");
    assert_eq!((before.matches("   passes ").count(), before.matches("   dropped ").count()), (7, 0), "{before}");
    assert_eq!((enforced.matches("   passes ").count(), enforced.matches("   dropped ").count()), (4, 3), "{enforced}");
    // Long rules are folded.
    let words = enforced.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "egress: shop/web, line 83: to: [{podSelector: {matchLabels: {app: api}}}]",
        "ingress: no rule allows it; isolated by shop/db (line 103),",
        "egress: no rule allows it; isolated by shop/default-deny (line 57),",
    ] {
        assert!(words.contains(line), "{line}: {enforced}");
    }
    assert!(changed.contains("dropped  the open connection api → db"), "{changed}");
    assert!(demo.out.contains("There are no interfaces"), "it says what differs from the kernel: {}", demo.out);
    assert!(demo.out.lines().all(|line| line.chars().count() <= 80), "{}", demo.out);
}

#[test]
fn demo_lines_are_those_of_the_example() {
    let example = include_str!("../../../policies/examples/24-three-tier-shop.yaml");
    let line = example.lines().nth(82).expect("line 83");
    assert_eq!(line.trim(), "- to: [{podSelector: {matchLabels: {app: api}}}]");
}

#[test]
fn demo_in_userspace_cannot_be_kept() {
    Place::new().run("demo --vm --keep").exits(2).complains("cannot be used with");
}
