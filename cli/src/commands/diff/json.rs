//! JSON for programs: docs/schema/diff.json. Each group of endpoints and addresses is listed once, and rows refer to it
//! by number.

use std::collections::BTreeMap;

use serde_json::json;
use weir_analysis::diff::{
    AddressRange, Decides, Diff, DiffRow, EndReason, EndState, Namer, Presence, RowEnd, RowTraffic, VerdictChange,
};
use weir_analysis::world::{EndSet, PodSet, RowCause, TrafficSet};
use weir_classes::PortSpec;
use weir_model::Direction;
use weir_model::eval::Verdict;
use weir_objects::address::Family;
use weir_objects::k8s::{LabelSelector, Operator, Requirement};
use weir_policy::answers::{
    AddressSpan, Approval, ChangeWord, Costs, DecidesWord, DiffAccount, DiffAnswer, DiffEndpoints, DiffGroup,
    DiffProduct, DiffRowAnswer, DiffService, DiffSides, DiffSummary, DiffTraffic, DiffWitness, DirectionWord,
    EndStateWord, FamilyWord, IsolationAnswer, IsolationWord, OperatorWord, PodSetAnswer, PortRange, PresenceWord,
    Responsible, Selector, SelectorRequirement, WithoutEffect, WitnessWord,
};

use super::Comparison;
use super::cause_lines::{CauseLine, CauseLines, VerdictCause};
use super::flows::{flows, reference};
use super::gate::Ruling;
use super::wording::DiffWording;
use crate::page::OutputPage;

/// One document with at most `most` rows.
pub(super) fn json(words: &DiffWording<'_, '_>, costs: Option<&Costs>, most: usize) -> serde_json::Result<OutputPage> {
    let DiffWording { compared, namer, places } = *words;
    let diff = &compared.diff;
    let shown = &diff.rows[..diff.rows.len().min(most)];
    let mut builder = JsonBuilder { compared, namer, places, groups: Vec::new(), numbers: BTreeMap::new() };
    let rows = shown.iter().enumerate().map(|(index, row)| builder.row(index, row)).collect();
    let document = DiffAnswer {
        base: compared.names[0].clone(),
        head: compared.names[1].clone(),
        summary: DiffSummary {
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
        cost: costs.cloned(),
        filter: compared.filter.as_ref().map(|(_, shown)| shown.clone()),
        left_out: Vec::new(),
    };
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}

fn endpoints(diff: &Diff) -> DiffEndpoints {
    let named = |wanted: [bool; 2]| -> Vec<String> {
        let all = diff.endpoints.iter().enumerate().filter(|(_, it)| it.ids.map(|id| id.is_some()) == wanted);
        all.map(|(index, _)| reference(diff, index as u32)).collect()
    };
    DiffEndpoints { kept: named([true, true]).len(), appeared: named([false, true]), disappeared: named([true, false]) }
}

struct JsonBuilder<'d, 'c> {
    compared: &'d Comparison,
    namer: &'d Namer<'c>,
    places: &'d CauseLines,
    groups: Vec<DiffGroup>,
    numbers: BTreeMap<(RowEnd, Presence), usize>,
}

impl<'d> JsonBuilder<'d, '_> {
    fn row(&mut self, index: usize, row: &'d DiffRow) -> DiffRowAnswer {
        let sides = |direction| {
            let [base, head] = row.accounts(direction)?;
            Some(DiffSides { base: self.account(0, direction, base), head: self.account(1, direction, head) })
        };
        let (egress, ingress) = (sides(Direction::Egress), sides(Direction::Ingress));
        let except = row.except.iter().map(|it| DiffProduct {
            from: self.group(&it.source, row.presence),
            to: self.group(&it.destination, row.presence),
            traffic: traffic(&it.traffic),
        });
        let except = except.collect();
        DiffRowAnswer {
            presence: presence(row.presence),
            change: change(row.change),
            decides: decides(row.decides),
            from: self.group(&row.source, row.presence),
            to: self.group(&row.destination, row.presence),
            traffic: traffic(&row.traffic),
            family: row.family.map(family),
            egress,
            ingress,
            except,
            given: row.given.map(DirectionWord::from),
            refused: self.compared.ruling(index).is_refused(),
            approved: approval(self.compared.ruling(index)),
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
            DiffService { address: it.address, base: on(0), head: on(1) }
        };
        self.groups.push(DiffGroup {
            text: self.namer.party(party, presence),
            endpoints: party.endpoints.iter().map(|it| reference(diff, *it)).collect(),
            addresses: ranges(&party.ranges),
            services: party.services.iter().map(service).collect(),
            pods: party.pods.iter().map(pod_set).collect(),
        });
        self.numbers.insert(key, self.groups.len() - 1);
        self.groups.len() - 1
    }

    fn account(&self, which: usize, direction: Direction, account: &EndReason) -> DiffAccount {
        let list = match account.state {
            EndState::List(list) => Some(self.responsible(which, VerdictCause::List(list))),
            _ => None,
        };
        DiffAccount {
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

    fn responsible(&self, which: usize, cause: VerdictCause) -> Responsible {
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
        Responsible { name, rule, file: at.map(|it| it.file.clone()), line: at.map(|it| it.line) }
    }

    fn without_effect(&self) -> Vec<WithoutEffect> {
        let one = |(kind, cause): &(VerdictChange, RowCause)| {
            let (which, of) = VerdictCause::of_row(*kind, cause);
            let (direction, cause) = (cause.direction.into(), self.responsible(which, of));
            WithoutEffect { change: change(*kind), direction, cause }
        };
        self.compared.diff.without_effect.iter().map(one).collect()
    }

    fn isolation(&self) -> Vec<IsolationAnswer> {
        let one = |(index, change): (usize, &'d weir_analysis::diff::IsolationChange)| IsolationAnswer {
            direction: change.direction.into(),
            change: if change.begins { IsolationWord::Begins } else { IsolationWord::Ends },
            refused: self.compared.isolation_ruling(index).is_refused(),
            approved: approval(self.compared.isolation_ruling(index)),
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

fn approval(ruling: &Ruling) -> Option<Approval> {
    match ruling {
        Ruling::Approved { reason, expires } => {
            Some(Approval { reason: reason.clone(), expires: expires.map(|it| it.to_string()) })
        }
        Ruling::Open | Ruling::Refused(_) => None,
    }
}

fn ranges(ranges: &[AddressRange]) -> Vec<AddressSpan> {
    ranges.iter().map(|it| AddressSpan { first: it.first, last: it.last }).collect()
}

/// Possible ends in the form of a group: `pods` and `addresses`.
pub(in crate::commands) fn possible_ends(set: &EndSet) -> serde_json::Value {
    let pods: Vec<PodSetAnswer> = set.pods.iter().map(pod_set).collect();
    json!({"text": weir_analysis::diff::possible_ends(set), "addresses": ranges(&set.ranges), "pods": pods})
}

/// Traffic in the form of a row's.
pub(in crate::commands) fn possible_traffic(set: &TrafficSet) -> serde_json::Value {
    json!(traffic(&weir_analysis::diff::row_traffic(set.clone())))
}

fn pod_set(set: &PodSet) -> PodSetAnswer {
    PodSetAnswer {
        namespace_selector: selector(&set.namespaces),
        pod_selector: selector(&set.pods),
        addresses: set.addresses.as_deref().map(ranges),
    }
}

/// A selector as in a manifest.
pub(super) fn selector(selector: &LabelSelector) -> Selector {
    let requirement = |it: &Requirement| SelectorRequirement {
        key: it.key.clone(),
        operator: match it.operator {
            Operator::In => OperatorWord::In,
            Operator::NotIn => OperatorWord::NotIn,
            Operator::Exists => OperatorWord::Exists,
            Operator::DoesNotExist => OperatorWord::DoesNotExist,
        },
        values: it.values.clone(),
    };
    Selector {
        match_labels: selector.match_labels.to_map(),
        match_expressions: selector.match_expressions.iter().map(requirement).collect(),
    }
}

fn traffic(traffic: &RowTraffic) -> DiffTraffic {
    let range = |it: &PortSpec, names: &[String]| PortRange {
        protocol: it.protocol.into(),
        first: it.first,
        last: it.last,
        named: names.to_vec(),
    };
    let plain = traffic.ranges.iter().map(|it| range(it, &[]));
    let named = traffic.named.iter().map(|(it, names)| range(it, names));
    DiffTraffic { text: traffic.to_string(), ports: plain.chain(named).collect(), portless: traffic.portless }
}

fn family(family: Family) -> FamilyWord {
    match family {
        Family::V4 => FamilyWord::V4,
        Family::V6 => FamilyWord::V6,
    }
}

fn presence(presence: Presence) -> PresenceWord {
    match presence {
        Presence::Kept => PresenceWord::Kept,
        Presence::Appeared => PresenceWord::Appeared,
        Presence::Disappeared => PresenceWord::Disappeared,
    }
}

fn change(change: VerdictChange) -> ChangeWord {
    match change {
        VerdictChange::Added => ChangeWord::Added,
        VerdictChange::Removed => ChangeWord::Removed,
    }
}

fn decides(decides: Decides) -> DecidesWord {
    match decides {
        Decides::Egress => DecidesWord::Egress,
        Decides::Ingress => DecidesWord::Ingress,
        Decides::Both => DecidesWord::Both,
    }
}

fn state(state: EndState) -> EndStateWord {
    match state {
        EndState::Absent => EndStateWord::Absent,
        EndState::Free => EndStateWord::NoSubject,
        EndState::Open => EndStateWord::NotIsolated,
        EndState::Isolated => EndStateWord::Isolated,
        EndState::List(_) => EndStateWord::List,
        EndState::Tier => EndStateWord::Tier,
        EndState::Service => EndStateWord::Service,
    }
}

fn verdict(verdict: Verdict) -> WitnessWord {
    match verdict {
        Verdict::Allow => WitnessWord::Allow,
        Verdict::Deny => WitnessWord::Deny,
    }
}

/// A flow as `weir query` takes it. It is the same on both sides, unless an end has another address there and the
/// families would be mistaken without one.
fn witness(compared: &Comparison, row: &DiffRow) -> DiffWitness {
    let of_side = |which: usize| match &row.witness.flows[which] {
        None => WitnessWord::Absent,
        Some(_) => verdict(row.witness.verdicts[which]),
    };
    let [base, head] = flows(compared, row);
    if row.witness.possible.is_some() {
        let [base_word, head_word] = row.witness.verdicts.map(verdict);
        return DiffWitness { flow: base, head_flow: None, base: base_word, head: head_word };
    }
    let (flow, head_flow) = match (base, head) {
        (Some(base), Some(head)) if base != head => (Some(base), Some(head)),
        (flow, head) => (flow.or(head), None),
    };
    DiffWitness { flow, head_flow, base: of_side(0), head: of_side(1) }
}
