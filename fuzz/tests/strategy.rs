//! Shrinking ends at a small case that people can read, whatever fails.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use weir_fuzz::generators::cluster::clusters;
use weir_fuzz::generators::sequences::{Abilities, sequences};
use weir_fuzz::generators::{Generated, Random, manifest};
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::k8s::{Body, Object, PolicyPeer, PortMatch};

/// The smallest value that has the property, found from a large one.
fn smallest<T: std::fmt::Debug>(strategy: &Generated<T>, has: impl Fn(&T) -> bool) -> T {
    let config = Config { cases: 10_000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() };
    let found = TestRunner::new(config).run(strategy, |value| {
        assert!(!has(&value), "it has the property");
        Ok(())
    });
    match found {
        Err(TestError::Fail(_, value)) => value,
        other => panic!("no value has the property: {other:?}"),
    }
}

fn names_a_port(object: &Object) -> bool {
    let Body::NetworkPolicy(policy) = &object.body else { return false };
    let has_hole = |it: &PolicyPeer| matches!(it, PolicyPeer::Block { except, .. } if !except.is_empty());
    policy.egress.iter().any(|rule| {
        rule.peers.iter().any(has_hole) && rule.ports.iter().any(|it| matches!(it.port, PortMatch::Named(_)))
    })
}

#[test]
fn one_rule_of_a_large_cluster_is_all_that_is_left() {
    let case = smallest(&clusters(), |it| it.objects.iter().any(names_a_port));
    let yaml = manifest::yaml(&case.objects);
    let expected = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: policy-0, namespace: a}
spec:
  podSelector: {}
  egress:
    - to: [{ipBlock: {cidr: \"0.0.0.0/0\", except: [\"0.0.0.0/1\"]}}]
      ports: [{protocol: TCP, port: http}]
";
    assert_eq!(yaml, expected);
}

#[test]
fn only_the_steps_of_a_sequence_that_matter_are_left() {
    let sequences = sequences(3, Abilities { waits: true, context: true });
    let waits = |text: &str| text.matches("Wait").count() >= 2 && text.contains("Unplug");
    let found = smallest(&sequences, |it| waits(&format!("{it:?}")));
    assert_eq!(found.steps.len(), 3, "{found:?}");
}

#[test]
fn lists_of_every_length_occur_equally_often() {
    let mut random = Random::new(1);
    let mut counts = [0; 6];
    (0..6_000).for_each(|_| counts[random.list(2..=5, |_, _| ()).len()] += 1);
    assert!(counts[..2].iter().all(|it| (50..150).contains(it)), "{counts:?}");
    assert!(counts[2..].iter().all(|it| (1_300..1_600).contains(it)), "{counts:?}");
}

#[test]
fn every_candidate_is_smaller_than_the_last_failing_value() {
    let numbers = Generated::by(|random| random.several(20, Random::number));
    let mut runner = TestRunner::deterministic();
    for _ in 0..50 {
        let mut tree = numbers.new_tree(&mut runner).unwrap();
        let (mut failing, mut goes_on) = (tree.current(), tree.simplify());
        while goes_on {
            let candidate = tree.current();
            assert!((candidate.len(), &candidate) <= (failing.len(), &failing), "{candidate:?} after {failing:?}");
            let fails = candidate.iter().filter(|it| **it > 1_000_000).count() > 1;
            goes_on = if fails { tree.simplify() } else { tree.complicate() };
            failing = if fails { candidate } else { failing };
        }
        assert_eq!(tree.current(), failing, "the runner shows the last value that failed");
        assert!(failing.len() <= 2 || failing.iter().filter(|it| **it > 1_000_000).count() < 2, "{failing:?}");
    }
}

/// A fuzzer's bytes are choices as they are: a byte that it changes changes one choice.
#[test]
fn bytes_of_a_fuzzer_make_clusters() {
    let objects = |bytes: &[u8]| weir_fuzz::generators::cluster::objects(&mut Random::from_bytes(bytes));
    assert_eq!(objects(&[]), []);
    let bytes: Vec<u8> = (0..4_000).map(|index: usize| (index * index % 251) as u8).collect();
    assert!(objects(&bytes).len() > 5, "{:?}", objects(&bytes));
}

#[test]
fn the_yaml_of_a_case_is_read_as_its_objects() {
    let mut random = Random::new(1);
    for _ in 0..200 {
        let objects = weir_fuzz::generators::cluster::objects(&mut random);
        let text = manifest::yaml(&objects);
        let read = |name: &str, text: &str| {
            let input = Input { name: name.to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
            let (decoded, found) =
                decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
            assert!(!found.has_errors(), "{:#?}\n{text}", found.into_vec());
            decoded.objects
        };
        assert_eq!(read("x", &text), read("x", &weir_artifact::objects(&objects)), "{text}");
        assert_eq!(read("x", &text).len(), objects.len());
    }
}
