//! The order of the input objects changes no verdict.

use std::path::Path;

use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, EndpointId};
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::k8s::{Object, Protocol};

/// All objects of the examples.
fn objects() -> Vec<Object> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies/examples");
    let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    paths.sort();
    let input = |path: &std::path::PathBuf| Input {
        name: path.display().to_string(),
        bytes: std::fs::read(path).unwrap(),
        kind: InputKind::Manifest,
    };
    let options = DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
    let (decoded, diagnostics) = decode(paths.iter().map(input).collect(), &options);
    assert!(!diagnostics.has_errors(), "{diagnostics:#?}");
    decoded.objects
}

/// The verdicts on all connections between two endpoints, on some ports, and to every service, as text.
fn answers(cluster: &Cluster) -> Vec<String> {
    let mut oracle = Oracle::new(cluster);
    let mut answers = Vec::new();
    let ends: Vec<FlowEnd> = (0..cluster.endpoints.len())
        .map(|index| FlowEnd {
            endpoint: Some(EndpointId(index as u32)),
            address: cluster.endpoints[index].addresses.first().copied(),
        })
        .collect();
    let services = cluster.services.iter().flat_map(|service| &service.addresses);
    let services: Vec<FlowEnd> = services.map(|address| FlowEnd { endpoint: None, address: Some(*address) }).collect();
    for source in &ends {
        for destination in ends.iter().chain(&services) {
            for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Tcp, 8080), (Protocol::Udp, 53)] {
                let protocol = FlowProtocol::Transport(protocol);
                let flow = Flow { source: *source, destination: *destination, protocol, port };
                answers.push(format!("{flow:?}: {:?}", oracle.judge(&flow)));
            }
        }
    }
    answers
}

#[test]
fn the_order_of_the_objects_changes_no_answer() {
    let mut objects = objects();
    let (cluster, _) = resolve(&objects, Assumptions::default());
    let expected = answers(&cluster);
    assert!(expected.iter().any(|answer| answer.contains("Deny")) && expected.iter().any(|it| it.contains("Rules")));
    objects.reverse();
    for _ in 0..7 {
        objects.rotate_left(13);
        let (cluster, _) = resolve(&objects, Assumptions::default());
        assert!(answers(&cluster) == expected, "another order gives other answers");
    }
}
