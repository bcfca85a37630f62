//! Exposure for programs: docs/schema/exposure.json.

use serde_json::{Value, json};
use weir_analysis::diff::AddressSet;
use weir_analysis::reach::edges::EndGroup;
use weir_analysis::reach::exposure::{Entrance, Exposure};
use weir_analysis::reach::{Passes, ports};
use weir_analysis::world::{EndSet, ExposedBy, ExposedGroup, PodSet};
use weir_model::EndpointId;

use super::Findings;
use crate::commands::diff::json::{possible_ends, possible_traffic};
use crate::page::OutputPage;
use crate::views::words;

/// One document.
pub(super) fn document(found: &Findings<'_>) -> serde_json::Result<OutputPage> {
    let workloads: Vec<Value> = found.exposures.iter().map(|it| workload(found, it)).collect();
    let services: Vec<Value> = found.entrances.iter().map(|it| service(found, it)).collect();
    let mut document = json!({"workloads": workloads, "services": services});
    if let Some(groups) = &found.possible {
        document["possible"] = groups.iter().map(|it| possible(found, it)).collect();
    }
    if let Some((filter, all)) = found.filter {
        document["filter"] = json!(filter.json(found.exposures.len(), all));
    }
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}

/// A group of pods that could exist.
fn possible(found: &Findings<'_>, group: &ExposedGroup) -> Value {
    let pods = |pods: Vec<PodSet>| possible_ends(&EndSet { pods, ranges: AddressSet::default() });
    let cluster = found.reach.cluster;
    let rule = match group.by {
        ExposedBy::NotIsolated => Value::Null,
        ExposedBy::Rule(it) => {
            json!({"policy": cluster.policy_name(it.policy), "rule": format!("spec.ingress[{}]", it.rule)})
        }
        ExposedBy::Tier(it) => {
            json!({"policy": cluster.tier_policy_name(it.policy), "rule": cluster.tier_rule_name(it)})
        }
    };
    json!({
        "to": pods(vec![group.pods.clone()]),
        "except": group.except.iter().map(|it| pods(vec![it.clone()])).collect::<Vec<_>>(),
        "from": possible_ends(&group.source),
        "traffic": possible_traffic(&group.traffic),
        "rule": rule,
        "cutBy": {
            "lists": group.is_cut_by_lists,
            "clusterPolicies": group.is_cut_by_tiers,
            "egress": group.is_cut_by_egress,
        },
    })
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
