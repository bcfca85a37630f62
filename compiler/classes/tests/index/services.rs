//! Backends that move between services without a compile.

use weir_classes::index::{Dirty, Index, Key};
use weir_objects::k8s::Object;
use weir_testing::yaml::objects;

use crate::single::{compiled, far};

/// A slice of the service `sliced`, with these pods as backends: name and address.
fn slice_of(port: u16, pods: &[(&str, &str)]) -> Object {
    let endpoint = |(name, address): &(&str, &str)| {
        format!(
            "{{addresses: [{address}], conditions: {{ready: true}}, \
             targetRef: {{kind: Pod, namespace: shop, name: {name}}}}}"
        )
    };
    let endpoints = pods.iter().map(endpoint).collect::<Vec<_>>().join(", ");
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: sliced-1, namespace: shop, labels: {{kubernetes.io/service-name: sliced}}}}, \
         addressType: IPv4, ports: [{{name: a, port: {port}}}], endpoints: [{endpoints}]}}"
    );
    objects(&text).remove(0)
}

const DB: (&str, &str) = ("db", "10.1.0.1");
const CRON: (&str, &str) = ("cron", "10.1.0.2");
const DB_2: (&str, &str) = ("db-2", "10.1.0.3");
const NEAR: (&str, &str) = ("near", "10.0.0.1");

/// An index whose service `sliced` has the pod `db` as its only backend, on port 8080.
fn with_backend() -> Index {
    let mut index = compiled();
    // It has no slices and would select the pods as well.
    index.delete(&Key { kind: "Service".to_owned(), namespace: "shop".to_owned(), name: "db".to_owned() });
    index.apply(far(DB_2.0, "u4", "db", DB_2.1));
    index.apply(slice_of(8080, &[DB]));
    index.compile().expect("classes");
    index
}

#[test]
fn backends_of_one_class_and_port_move_without_a_compile() {
    for (next, expected) in [
        (slice_of(8080, &[DB, DB_2]), Dirty::Nothing),
        (slice_of(8080, &[DB_2]), Dirty::Nothing),
        (slice_of(8081, &[DB]), Dirty::Everything),
        (slice_of(8080, &[CRON]), Dirty::Everything),
        (slice_of(8080, &[DB, CRON]), Dirty::Everything),
        // The verdict of a local pod on its own service depends on the other backends.
        (slice_of(8080, &[DB, NEAR]), Dirty::Everything),
        (slice_of(8080, &[]), Dirty::Everything),
        // The address is another pod's than the slice says.
        (slice_of(8080, &[("other", DB_2.1)]), Dirty::Everything),
    ] {
        assert_eq!(with_backend().apply(next.clone()), expected, "{:?}", next.body);
    }
}

#[test]
fn a_local_backend_that_is_exchanged_for_one_of_its_class_requires_a_compile() {
    let mut index = compiled();
    index.apply(far("near-2", "u4", "web", "10.0.0.2"));
    index.apply(slice_of(8080, &[NEAR]));
    index.compile().expect("classes");
    let twin = ("near-2", "10.0.0.2");
    assert_eq!(index.peer_at([10, 0, 0, 2].into()), index.peer_at([10, 0, 0, 1].into()), "one class");
    assert_eq!(index.apply(slice_of(8080, &[NEAR, twin])), Dirty::Everything);
}

#[test]
fn a_new_backend_is_judged_by_its_class_from_then_on() {
    let mut index = with_backend();
    assert_eq!(index.apply(slice_of(8080, &[DB_2])), Dirty::Nothing);
    assert_eq!(index.apply(far(DB_2.0, "u4", "cron", DB_2.1)), Dirty::Everything);
    let mut index = with_backend();
    assert_eq!(index.apply(slice_of(8080, &[DB_2])), Dirty::Nothing);
    assert_ne!(index.apply(far(DB.0, "u1", "cron", DB.1)), Dirty::Everything, "it is no backend any more");
}

#[test]
fn a_slice_that_changes_while_a_generation_is_made_requires_another_one() {
    let mut index = with_backend();
    let draft = index.begin();
    assert_eq!(index.apply(slice_of(8080, &[DB_2])), Dirty::Everything);
    let late = index.adopt(&mut draft.classify().expect("classes"));
    assert!(late.is_more);
}

#[test]
fn more_moves_than_can_be_remembered_require_a_compile() {
    let mut index = with_backend();
    let outside: Vec<String> = (0..5_000).map(|host| format!("198.18.{}.{}", host / 250, host % 250)).collect();
    let with = |count: usize| -> Vec<(&str, &str)> {
        outside[..count].iter().map(|address| ("none", address.as_str())).chain([DB]).collect()
    };
    assert_eq!(index.apply(slice_of(8080, &with(1))), Dirty::Everything, "addresses that are no pods'");
    index.compile().expect("classes");
    assert_eq!(index.apply(slice_of(8080, &with(4_000))), Dirty::Nothing);
    assert_eq!(index.apply(slice_of(8080, &with(4_200))), Dirty::Everything);
}

/// Addresses that come and go again are remembered as well, until the next compile.
#[test]
fn backends_that_are_replaced_again_and_again_require_a_compile() {
    let mut index = with_backend();
    let with = |round: usize| -> Vec<String> {
        (0..1_000).map(|host| format!("198.18.{}.{}", 8 * round + host / 250, host % 250)).collect()
    };
    let slice = |addresses: &[String]| {
        let backends: Vec<(&str, &str)> = addresses.iter().map(|it| ("none", it.as_str())).chain([DB]).collect();
        slice_of(8080, &backends)
    };
    assert_eq!(index.apply(slice(&with(0))), Dirty::Everything, "addresses that are no pods'");
    index.compile().expect("classes");
    assert_eq!(index.apply(slice(&with(1))), Dirty::Nothing);
    assert_eq!(index.apply(slice(&with(2))), Dirty::Nothing);
    assert_eq!(index.apply(slice(&with(0))), Dirty::Everything, "6,000 moves, although the addresses are the first");
}

/// A service without slices that selects nothing, with this address and more fields.
fn service(name: &str, address: &str, more: &str, port: &str) -> Object {
    let spec = format!("{{clusterIP: {address}, ports: [{{port: 80{port}}}]{more}}}");
    let text = format!("{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, spec: {spec}}}");
    objects(&text).remove(0)
}

#[test]
fn a_service_leaves_without_a_compile_unless_more_than_its_own_address_belongs_to_it() {
    let address = "10.96.7.1";
    let others: [(&str, &str, Option<Object>); 5] = [
        ("", "", None),
        ("", ", nodePort: 30999", None),
        (", externalIPs: [192.0.2.77]", "", None),
        ("", "", Some(service("other", "10.96.7.2", ", externalIPs: [10.96.7.1]", ""))),
        ("", "", Some(far("same", "u9", "db", address))),
    ];
    for (place, (more, port, other)) in others.into_iter().enumerate() {
        let mut index = with_backend();
        let gone = service("gone", address, more, port);
        let key = Key::of(&gone);
        index.apply(gone.clone());
        other.into_iter().for_each(|object| _ = index.apply(object));
        index.compile().expect("classes");
        let dirty = index.delete(&key);
        if place > 0 {
            assert_eq!(dirty, Dirty::Everything, "{place}");
            continue;
        }
        let Dirty::Addresses(changes) = dirty else { panic!("{dirty:?}") };
        assert_eq!(changes.entries, [(address.parse().expect("an address"), None)]);
        assert!(changes.judge_again, "flows to the service were judged by its backends");
        assert_eq!(index.apply(gone), Dirty::Everything, "reports have to name the new service");
        assert_eq!(index.delete(&key), Dirty::Everything, "the generation is due anyway");
    }
}
