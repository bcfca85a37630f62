//! Names of lists for the numbers in events.

use std::net::IpAddr;

use weir_classes::{Scope, classify};
use weir_runtime::names::ArtifactNames;

use crate::policy::{agents_artifact, artifact, cluster};

#[test]
fn an_address_is_denied_by_the_list_that_has_it() {
    let list = |name: &str, block: &str| {
        format!(
            "---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: {name}}}\n\
             spec: {{action: Deny, cidrs: [{block}]}}\n"
        )
    };
    let blocks = [("one", "192.0.2.0/24"), ("three", "203.0.113.0/24"), ("two", "198.51.100.0/24")];
    let yaml = cluster(1, &blocks.map(|(name, block)| list(name, block)).concat());
    let objects = weir_testing::yaml::cluster(&yaml);
    let classes = classify(&objects, &Scope::node(&objects, "here").unwrap()).unwrap();
    for (artifact, _) in [artifact(&yaml), agents_artifact(&yaml)] {
        let names = ArtifactNames::new(&artifact);
        for (address, list) in [("192.0.2.7", "one"), ("198.51.100.7", "two"), ("203.0.113.7", "three")] {
            let peer = classes.peer_at(address.parse::<IpAddr>().unwrap());
            assert_eq!(names.why_denied("default/p0", "ingress", peer.0).list.as_deref(), Some(list), "{address}");
        }
    }
}
