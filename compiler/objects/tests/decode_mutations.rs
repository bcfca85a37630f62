//! For any mutated input, `decode` reports findings that point into the input, and never panics.

use proptest::prelude::*;
use weir_fuzz::generators::{Generated, for_each, texts};
use weir_fuzz::oracles::decoding;
use weir_objects::decode::InputKind;

const BASES: [&str; 4] = [
    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, labels: {app: web}}\nspec:\n  podSelector:\n    matchExpressions:\n    - {key: app, operator: In, values: [web]}\n  ingress:\n  - from:\n    - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}\n    ports:\n    - {port: 80, endPort: 90, protocol: TCP}\n  policyTypes: [Ingress]\n",
    r#"{"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 80}]}]}, "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}}, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "targetPort": "http"}]}}]}"#,
    "apiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {name: drop}\nspec: {action: Deny, order: 1, directions: [Egress], cidrs: [192.0.2.0/24, 192.0.2.1-192.0.2.7, '::1']}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\nendpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}]\nports: [{port: 80}]\n",
    "192.0.2.1\n192.0.2.0/24 # net\n2001:db8::1-2001:db8::2 ; range\n",
];

fn mutated() -> Generated<String> {
    texts::mutated(BASES.map(str::to_owned).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_manifests_never_panic(text in mutated()) {
        decoding::read(text.as_bytes(), InputKind::Manifest);
    }

    #[test]
    fn mutated_list_files_never_panic(text in mutated()) {
        decoding::read(text.as_bytes(), InputKind::DenyList);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decoding::read(&bytes, InputKind::Manifest);
    }
}

#[test]
fn enough_of_the_mutated_manifests_are_accepted_and_enough_refused() {
    let mut accepted = 0;
    for_each(600, &mutated(), |text| {
        accepted += usize::from(decoding::read(text.as_bytes(), InputKind::Manifest).is_some());
    });
    assert!((60..540).contains(&accepted), "{accepted} of 600 were accepted");
}
