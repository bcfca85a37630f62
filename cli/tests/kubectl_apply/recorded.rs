//! Weir's merge against the recorded one.

use serde_json::Value;
use weir_model::resolve::isolates;
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::k8s::{Body, PolicyType};
use weir_policy::apply::{self, ApplyError};

use crate::cases::{self, Case};

/// The fields of an object that Weir reads, as text; `None` if the object is not valid. `policyTypes` has its default,
/// which the server writes into the object.
fn meaning(object: &Value) -> Option<String> {
    let input = Input { name: "object".to_owned(), bytes: object.to_string().into_bytes(), kind: InputKind::Manifest };
    let options = DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
    let (mut decoded, found) = decode(vec![input], &options);
    if found.has_errors() {
        return None;
    }
    let [object] = &mut decoded.objects[..] else { panic!("not one object: {object:#}") };
    if let Body::NetworkPolicy(policy) = &mut object.body {
        let (ingress, egress) = isolates(policy);
        let types = [(ingress, PolicyType::Ingress), (egress, PolicyType::Egress)];
        policy.policy_types = types.into_iter().filter(|it| it.0).map(|it| it.1).collect();
    }
    if let Body::Service(service) = &mut object.body {
        // Their order means nothing.
        service.ports.sort_by_key(|it| it.port);
    }
    Some(format!("{:#?} {:#?}", object.meta.labels, object.body))
}

fn merged(case: &Case) -> Option<String> {
    let applied = apply::applied(case.part("live"), case.part("file"));
    meaning(&applied.unwrap_or_else(|error| panic!("{}: {error}", case.name())))
}

/// Whether Weir refuses to say what becomes of the object.
fn is_unknown(case: &&Case) -> bool {
    case.part("unknown") == true
}

#[test]
fn weir_refuses_where_kubectl_may_lose_items() {
    let (cases, mut lossy) = (cases::all(), 0);
    for case in cases.iter().filter(is_unknown) {
        let error = apply::applied(case.part("live"), case.part("file"));
        assert!(matches!(error, Err(ApplyError::SameKey { .. })), "{}: {error:?}", case.name());
        let ports = |part: &str| case.part(part)["spec"]["ports"].as_array().map_or(0, Vec::len);
        lossy += usize::from(ports("applied") < ports("file"));
    }
    assert!(lossy > 0, "kubectl loses a port in at least one case");
}

fn recorded(case: &Case) -> Option<String> {
    assert!(case.part("live").is_object(), "{}: `WEIR_RECORD=1` records the case", case.name());
    Some(case.part("applied")).filter(|it| !it.is_null()).and_then(meaning)
}

#[test]
fn the_merge_gives_the_object_that_kubectl_and_the_server_give() {
    let different = |case: &Case| {
        let (expected, found) = (recorded(case), merged(case));
        (expected != found).then(|| format!("{}:\nexpected {expected:?}\nfound    {found:?}", case.name()))
    };
    let different: Vec<String> = cases::all().iter().filter(|it| !is_unknown(it)).filter_map(different).collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn most_cases_differ_from_the_file_alone_and_from_the_live_object() {
    let cases = cases::all();
    let differs = |part: &str| {
        let differs = |case: &&Case| meaning(case.part(part)) != recorded(case);
        cases.iter().filter(differs).count()
    };
    let (from_file, from_live) = (differs("file"), differs("live"));
    assert!(from_file * 2 >= cases.len(), "{from_file} of {} cases need more than the file", cases.len());
    assert!(from_live * 2 >= cases.len(), "{from_live} of {} cases change the live object", cases.len());
}
