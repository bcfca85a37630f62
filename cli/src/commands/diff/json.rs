//! JSON for programs: docs/schema/diff.json. Each group of endpoints and addresses is listed once, and rows refer to it
//! by number.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;
use serde_json::json;
use weir_analysis::diff::{
    AddressRange, Decides, Diff, DiffRow, EndReason, EndState, Namer, Presence, RowEnd, RowTraffic, VerdictChange,
};
use weir_analysis::world::{EndSet, PodSet, RowCause, TrafficSet};
use weir_classes::PortSpec;
use weir_model::Direction;
use weir_objects::k8s::{LabelSelector, Requirement};
use weir_policy::verdict_reasons::verdict_name;

use super::Comparison;
use super::cause_lines::{CauseLine, CauseLines, VerdictCause};
use super::cost::Costs;
use super::flows::{flows, protocol, reference};
use super::gate::Ruling;
use super::wording::DiffWording;
use crate::page::OutputPage;

#[derive(Serialize)]
struct DiffJson<'d> {
    base: &'d str,
    head: &'d str,
    summary: DiffSummaryJson,
    endpoints: EndpointsJson,
    isolation: Vec<IsolationJson<'d>>,
    groups: Vec<GroupJson>,
    rows: Vec<RowJson<'d>>,
    #[serde(rename = "withoutEffect", skip_serializing_if = "Vec::is_empty")]
    without_effect: Vec<WithoutEffectJson<'d>>,
    cost: Option<&'d Costs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<&'d serde_json::Value>,
}

/// A change that no flow can observe.
#[derive(Serialize)]
struct WithoutEffectJson<'d> {
    change: &'d str,
    direction: &'d str,
    cause: ResponsibleJson<'d>,
}

#[derive(Serialize)]
struct DiffSummaryJson {
    added: usize,
    removed: usize,
    rows: usize,
    shown: usize,
}

#[derive(Serialize)]
struct EndpointsJson {
    kept: usize,
    appeared: Vec<String>,
    disappeared: Vec<String>,
}

#[derive(Serialize)]
struct IsolationJson<'d> {
    direction: &'d str,
    change: &'d str,
    endpoints: Vec<String>,
    text: String,
    policies: Vec<ResponsibleJson<'d>>,
    #[serde(flatten)]
    ruling: RulingJson<'d>,
}

/// The decision of the gate on a change.
#[derive(Default, Serialize)]
struct RulingJson<'d> {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    approved: Option<ApprovalJson<'d>>,
}

#[derive(Serialize)]
struct ApprovalJson<'d> {
    reason: &'d str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

#[derive(Serialize)]
struct GroupJson {
    text: String,
    endpoints: Vec<String>,
    addresses: Vec<AddressRangeJson>,
    services: Vec<ServiceJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pods: Vec<PodSetJson>,
}

/// Possible pods.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodSetJson {
    namespace_selector: serde_json::Value,
    pod_selector: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    addresses: Option<Vec<AddressRangeJson>>,
}

#[derive(Serialize)]
struct ProductJson {
    from: usize,
    to: usize,
    traffic: TrafficJson,
}

#[derive(Serialize)]
struct AddressRangeJson {
    first: IpAddr,
    last: IpAddr,
}

#[derive(Serialize)]
struct ServiceJson {
    address: IpAddr,
    base: Vec<String>,
    head: Vec<String>,
}

#[derive(Serialize)]
struct RowJson<'d> {
    presence: &'d str,
    change: &'d str,
    decides: &'d str,
    from: usize,
    to: usize,
    traffic: TrafficJson,
    family: Option<String>,
    egress: Option<SidesJson<'d>>,
    ingress: Option<SidesJson<'d>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    except: Vec<ProductJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    given: Option<&'d str>,
    #[serde(flatten)]
    ruling: RulingJson<'d>,
    witness: WitnessJson<'d>,
}

#[derive(Serialize)]
struct TrafficJson {
    text: String,
    ports: Vec<PortRangeJson>,
    /// ICMP and all other protocols without ports.
    portless: bool,
}

#[derive(Serialize)]
struct PortRangeJson {
    protocol: &'static str,
    first: u16,
    last: u16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    named: Vec<String>,
}

#[derive(Serialize)]
struct SidesJson<'d> {
    base: AccountJson<'d>,
    head: AccountJson<'d>,
}

#[derive(Serialize)]
struct AccountJson<'d> {
    state: &'d str,
    rules: Vec<ResponsibleJson<'d>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tiers: Vec<ResponsibleJson<'d>>,
    #[serde(rename = "isolatedBy")]
    isolated_by: Vec<ResponsibleJson<'d>>,
    list: Option<ResponsibleJson<'d>>,
}

#[derive(Serialize)]
struct ResponsibleJson<'d> {
    name: String,
    rule: Option<String>,
    file: Option<&'d str>,
    line: Option<usize>,
}

#[derive(Serialize)]
struct WitnessJson<'d> {
    flow: serde_json::Value,
    #[serde(rename = "headFlow", skip_serializing_if = "Option::is_none")]
    head_flow: Option<serde_json::Value>,
    base: &'d str,
    head: &'d str,
}

/// One document with at most `most` rows.
pub(super) fn json(words: &DiffWording<'_, '_>, costs: Option<&Costs>, most: usize) -> serde_json::Result<OutputPage> {
    let DiffWording { compared, namer, places } = *words;
    let diff = &compared.diff;
    let shown = &diff.rows[..diff.rows.len().min(most)];
    let mut builder = JsonBuilder { compared, namer, places, groups: Vec::new(), numbers: BTreeMap::new() };
    let rows = shown.iter().enumerate().map(|(index, row)| builder.row(index, row)).collect();
    let document = DiffJson {
        base: &compared.names[0],
        head: &compared.names[1],
        summary: DiffSummaryJson {
            added: compared.totals.added,
            removed: compared.totals.removed,
            rows: compared.totals.rows,
            shown: shown.len(),
        },
        endpoints: endpoints(diff),
        isolation: builder.isolation(),
        without_effect: builder.without_effect(),
        rows,
        groups: builder.groups,
        cost: costs,
        filter: compared.filter.as_ref().map(|(_, json)| json),
    };
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}

fn endpoints(diff: &Diff) -> EndpointsJson {
    let named = |wanted: [bool; 2]| -> Vec<String> {
        let all = diff.endpoints.iter().enumerate().filter(|(_, it)| it.ids.map(|id| id.is_some()) == wanted);
        all.map(|(index, _)| reference(diff, index as u32)).collect()
    };
    EndpointsJson { kept: named([true, true]).len(), appeared: named([false, true]), disappeared: named([true, false]) }
}

struct JsonBuilder<'d, 'c> {
    compared: &'d Comparison,
    namer: &'d Namer<'c>,
    places: &'d CauseLines,
    groups: Vec<GroupJson>,
    numbers: BTreeMap<(RowEnd, Presence), usize>,
}

impl<'d> JsonBuilder<'d, '_> {
    fn row(&mut self, index: usize, row: &'d DiffRow) -> RowJson<'d> {
        let sides = |direction| {
            let [base, head] = row.accounts(direction)?;
            Some(SidesJson { base: self.account(0, direction, base), head: self.account(1, direction, head) })
        };
        let (egress, ingress) = (sides(Direction::Egress), sides(Direction::Ingress));
        let except = row.except.iter().map(|it| ProductJson {
            from: self.group(&it.source, row.presence),
            to: self.group(&it.destination, row.presence),
            traffic: traffic(&it.traffic),
        });
        let except = except.collect();
        RowJson {
            presence: presence(row.presence),
            change: change(row.change),
            decides: decides(row.decides),
            from: self.group(&row.source, row.presence),
            to: self.group(&row.destination, row.presence),
            traffic: traffic(&row.traffic),
            family: row.family.map(|it| it.to_string()),
            egress,
            ingress,
            except,
            given: row.given.map(Direction::name),
            ruling: ruling(self.compared.ruling(index)),
            witness: witness(self.compared, row),
        }
    }

    fn group(&mut self, party: &RowEnd, presence: Presence) -> usize {
        let key = (party.clone(), presence);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let diff = &self.compared.diff;
        let service = |index: &u32| {
            let it = &diff.services[*index as usize];
            let on = |which: usize| {
                let cluster = &self.compared.sides[which].cluster;
                it.services[which].iter().map(|id| cluster.service_name(*id)).collect()
            };
            ServiceJson { address: it.address, base: on(0), head: on(1) }
        };
        self.groups.push(GroupJson {
            text: self.namer.party(party, presence),
            endpoints: party.endpoints.iter().map(|it| reference(diff, *it)).collect(),
            addresses: ranges(&party.ranges),
            services: party.services.iter().map(service).collect(),
            pods: party.pods.iter().map(pod_set).collect(),
        });
        self.numbers.insert(key, self.groups.len() - 1);
        self.groups.len() - 1
    }

    fn account(&self, which: usize, direction: Direction, account: &EndReason) -> AccountJson<'d> {
        let list = match account.state {
            EndState::List(list) => Some(self.responsible(which, VerdictCause::List(list))),
            _ => None,
        };
        AccountJson {
            state: state(account.state),
            rules: account.rules.iter().map(|it| self.responsible(which, VerdictCause::Rule(direction, *it))).collect(),
            tiers: account.tiers.iter().map(|it| self.responsible(which, VerdictCause::Tier(*it))).collect(),
            isolated_by: account
                .isolating
                .iter()
                .map(|it| self.responsible(which, VerdictCause::Policy(*it)))
                .collect(),
            list,
        }
    }

    fn responsible(&self, which: usize, cause: VerdictCause) -> ResponsibleJson<'d> {
        let cluster = &self.compared.sides[which].cluster;
        let (name, rule) = match cause {
            VerdictCause::Rule(direction, id) => {
                (cluster.policy_name(id.policy), Some(format!("spec.{}[{}]", direction.name(), id.rule)))
            }
            VerdictCause::Tier(id) => {
                (cluster.tier_policy_name(id.policy), Some(format!("spec.{}[{}]", id.direction.name(), id.rule)))
            }
            VerdictCause::Policy(id) => (cluster.policy_name(id), None),
            VerdictCause::List(id) => (cluster.lists[id.index()].name.clone(), None),
        };
        let at: Option<&CauseLine> = self.places.line(which, cause);
        ResponsibleJson { name, rule, file: at.map(|it| it.file.as_str()), line: at.map(|it| it.line) }
    }

    fn without_effect(&self) -> Vec<WithoutEffectJson<'d>> {
        let one = |(kind, cause): &(VerdictChange, RowCause)| {
            let (which, of) = VerdictCause::of_row(*kind, cause);
            let (direction, cause) = (cause.direction.name(), self.responsible(which, of));
            WithoutEffectJson { change: change(*kind), direction, cause }
        };
        self.compared.diff.without_effect.iter().map(one).collect()
    }

    fn isolation(&self) -> Vec<IsolationJson<'d>> {
        let one = |(index, change): (usize, &'d weir_analysis::diff::IsolationChange)| IsolationJson {
            ruling: ruling(self.compared.isolation_ruling(index)),
            direction: change.direction.name(),
            change: if change.begins { "begins" } else { "ends" },
            endpoints: change.endpoints.iter().map(|it| reference(&self.compared.diff, *it)).collect(),
            text: self.namer.endpoints(&change.endpoints, Presence::Kept),
            policies: change
                .policies
                .iter()
                .map(|it| self.responsible(usize::from(change.begins), VerdictCause::Policy(*it)))
                .collect(),
        };
        self.compared.diff.isolation.iter().enumerate().map(one).collect()
    }
}

fn ruling(ruling: &Ruling) -> RulingJson<'_> {
    match ruling {
        Ruling::Open => RulingJson::default(),
        Ruling::Refused(_) => RulingJson { refused: true, approved: None },
        Ruling::Approved { reason, expires } => {
            let expires = expires.map(|it| it.to_string());
            RulingJson { refused: false, approved: Some(ApprovalJson { reason, expires }) }
        }
    }
}

fn ranges(ranges: &[AddressRange]) -> Vec<AddressRangeJson> {
    ranges.iter().map(|it| AddressRangeJson { first: it.first, last: it.last }).collect()
}

/// Possible ends in the form of a group: `pods` and `addresses`.
pub(in crate::commands) fn possible_ends(set: &EndSet) -> serde_json::Value {
    let pods: Vec<PodSetJson> = set.pods.iter().map(pod_set).collect();
    json!({"text": weir_analysis::diff::possible_ends(set), "addresses": ranges(&set.ranges), "pods": pods})
}

/// Traffic in the form of a row's.
pub(in crate::commands) fn possible_traffic(set: &TrafficSet) -> serde_json::Value {
    json!(traffic(&weir_analysis::diff::row_traffic(set.clone())))
}

fn pod_set(set: &PodSet) -> PodSetJson {
    PodSetJson {
        namespace_selector: selector(&set.namespaces),
        pod_selector: selector(&set.pods),
        addresses: set.addresses.as_deref().map(ranges),
    }
}

/// A selector as in a manifest.
pub(super) fn selector(selector: &LabelSelector) -> serde_json::Value {
    let mut value = serde_json::Map::new();
    if !selector.match_labels.is_empty() {
        value.insert("matchLabels".to_owned(), json!(selector.match_labels));
    }
    if !selector.match_expressions.is_empty() {
        let requirement = |it: &Requirement| {
            let mut value = json!({"key": it.key, "operator": it.operator.name()});
            if !it.values.is_empty() {
                value["values"] = json!(it.values);
            }
            value
        };
        let all = selector.match_expressions.iter().map(requirement).collect();
        value.insert("matchExpressions".to_owned(), serde_json::Value::Array(all));
    }
    serde_json::Value::Object(value)
}

fn traffic(traffic: &RowTraffic) -> TrafficJson {
    let range = |it: &PortSpec, names: &[String]| PortRangeJson {
        protocol: protocol(it.protocol),
        first: it.first,
        last: it.last,
        named: names.to_vec(),
    };
    let plain = traffic.ranges.iter().map(|it| range(it, &[]));
    let named = traffic.named.iter().map(|(it, names)| range(it, names));
    TrafficJson { text: traffic.to_string(), ports: plain.chain(named).collect(), portless: traffic.portless }
}

fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::Kept => "kept",
        Presence::Appeared => "appeared",
        Presence::Disappeared => "disappeared",
    }
}

fn change(change: VerdictChange) -> &'static str {
    match change {
        VerdictChange::Added => "added",
        VerdictChange::Removed => "removed",
    }
}

fn decides(decides: Decides) -> &'static str {
    match decides {
        Decides::Egress => "egress",
        Decides::Ingress => "ingress",
        Decides::Both => "both",
    }
}

fn state(state: EndState) -> &'static str {
    match state {
        EndState::Absent => "absent",
        EndState::Free => "no-subject",
        EndState::Open => "not-isolated",
        EndState::Isolated => "isolated",
        EndState::List(_) => "list",
        EndState::Tier => "tier",
        EndState::Service => "service",
    }
}

/// A flow as `weir query` takes it. It is the same on both sides, unless an end has another address there and the
/// families would be mistaken without one.
fn witness<'d>(compared: &Comparison, row: &DiffRow) -> WitnessJson<'d> {
    let verdict = |which: usize| match &row.witness.flows[which] {
        None => "absent",
        Some(_) => verdict_name(row.witness.verdicts[which]),
    };
    if row.witness.possible.is_some() {
        let [flow, _] = flows(compared, row);
        let [base, head] = row.witness.verdicts.map(verdict_name);
        return WitnessJson { flow: flow.unwrap_or_default(), head_flow: None, base, head };
    }
    let [base, head] = flows(compared, row);
    let (flow, head_flow) = match (base, head) {
        (Some(base), Some(head)) if base != head => (base, Some(head)),
        (Some(flow), _) | (None, Some(flow)) => (flow, None),
        (None, None) => (serde_json::Value::Null, None),
    };
    WitnessJson { flow, head_flow, base: verdict(0), head: verdict(1) }
}
