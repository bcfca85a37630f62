//! Exposure for programs: docs/schema/exposure.json.

use serde_json::{Value, json};
use weir_analysis::reach::edges::EndGroup;
use weir_analysis::reach::exposure::{Entrance, Exposure};
use weir_analysis::reach::{Passes, ports};
use weir_model::EndpointId;

use super::Findings;
use crate::page::OutputPage;
use crate::views::words;

/// One document.
pub(super) fn document(found: &Findings<'_>) -> serde_json::Result<OutputPage> {
    let workloads: Vec<Value> = found.exposures.iter().map(|it| workload(found, it)).collect();
    let services: Vec<Value> = found.entrances.iter().map(|it| service(found, it)).collect();
    let document = json!({"workloads": workloads, "services": services});
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}

fn workload(found: &Findings<'_>, exposure: &Exposure) -> Value {
    json!({
        "workload": words::party_json(found.reach, &found.reach.parties[exposure.party as usize]),
        "outside": ways(found, &exposure.outside),
        "namespaces": ways(found, &exposure.namespaces),
        "isolated": {"ingress": exposure.isolated[0], "egress": exposure.isolated[1]},
        "lists": exposure.lists,
    })
}

fn ways(found: &Findings<'_>, ways: &[(Passes, Vec<EndGroup>)]) -> Value {
    let way = |(passes, groups): &(Passes, Vec<EndGroup>)| {
        let from: Vec<Value> = groups.iter().map(|it| words::group_json(found.reach, it)).collect();
        json!({"from": from, "passes": words::passes_json(found.reach, &found.cells, *passes)})
    };
    ways.iter().map(way).collect()
}

fn service(found: &Findings<'_>, entrance: &Entrance) -> Value {
    let cluster = found.reach.cluster;
    let service = &cluster.services[entrance.service.index()];
    let port = &service.ports[entrance.port as usize];
    let open = |(id, port): &(EndpointId, u16)| json!({"endpoint": cluster.endpoint_name(*id), "port": port});
    json!({
        "service": cluster.service_name(entrance.service),
        "addresses": service.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "protocol": ports::name(port.protocol),
        "port": port.port,
        "nodePort": port.node_port,
        "backends": entrance.backends,
        "open": entrance.open.iter().map(open).collect::<Vec<_>>(),
    })
}
