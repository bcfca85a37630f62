//! Cluster-wide policies: the checks of the API server with the custom resource definitions of the Network Policy API,
//! and the object that passes them.
//!
//! Deviation: the server does not look into the label selectors of custom resources. A selector that no program can
//! evaluate (an unknown operator, an impossible label) is an error here, because it could only be guessed.

mod peers;
mod ports;

use peers::warn_unsupported;

use crate::k8s::{ClusterPolicy, ClusterPolicyKind, ClusterRule, LabelSelector, RuleAction, Tier};

use super::codes;
use super::metadata;
use super::policy;
use super::report::ObjectFindings;
use super::trail::Trail;
use super::view::ValueView;

/// The largest `priority`.
const LOWEST_PRIORITY: i64 = 1000;
/// The most characters of a rule's name.
const LONGEST_NAME: usize = 100;

/// The limits and words that differ between the kinds.
struct Spelling {
    kind: ClusterPolicyKind,
    /// The most rules of a direction, peers of a rule, and ports of a rule.
    most: usize,
    /// The actions, as written.
    actions: &'static [(&'static str, RuleAction)],
    /// Whether egress rules can have `domainNames`.
    has_domain_names: bool,
}

const V1ALPHA2: Spelling = Spelling {
    kind: ClusterPolicyKind::ClusterNetworkPolicy,
    most: 25,
    actions: &[("Accept", RuleAction::Accept), ("Deny", RuleAction::Deny), ("Pass", RuleAction::Pass)],
    has_domain_names: true,
};

const ADMIN: Spelling = Spelling {
    kind: ClusterPolicyKind::AdminNetworkPolicy,
    most: 100,
    actions: &[("Allow", RuleAction::Accept), ("Deny", RuleAction::Deny), ("Pass", RuleAction::Pass)],
    has_domain_names: true,
};

const BASELINE: Spelling = Spelling {
    kind: ClusterPolicyKind::BaselineAdminNetworkPolicy,
    most: 100,
    actions: &[("Allow", RuleAction::Accept), ("Deny", RuleAction::Deny)],
    has_domain_names: false,
};

/// Reads a policy whose shape has been checked. The result may be used only if the report has no errors.
pub(super) fn read(object: ValueView<'_, '_>, kind: ClusterPolicyKind, report: &mut ObjectFindings) -> ClusterPolicy {
    metadata::validate(object, metadata::Of::ClusterPolicy, report);
    let spelling = match kind {
        ClusterPolicyKind::ClusterNetworkPolicy => V1ALPHA2,
        ClusterPolicyKind::AdminNetworkPolicy => ADMIN,
        ClusterPolicyKind::BaselineAdminNetworkPolicy => BASELINE,
    };
    let (spec, at) = (object.get("spec"), Trail::ROOT.field("spec"));
    if !spec.is_there() {
        report.blemish(&at, |origin| codes::missing_field::at(origin, "spec"));
    }
    status(object.get("status"), report);
    let (subject_namespaces, subject_pods) = spelling.subject(spec.get("subject"), &at.field("subject"), report);
    let policy = ClusterPolicy {
        kind,
        tier: tier(kind, spec.get("tier"), &at.field("tier"), report),
        priority: priority(kind, spec.get("priority"), &at.field("priority"), report),
        subject_namespaces,
        subject_pods,
        ingress: spelling.rules(spec.get("ingress"), "from", &at.field("ingress"), report),
        egress: spelling.rules(spec.get("egress"), "to", &at.field("egress"), report),
        mode: policy::mode(object, report),
    };
    let metadata = object.get("metadata");
    let name = metadata.get("name").str().unwrap_or_default();
    let is_named = metadata.get("name").is_there() || metadata.get("generateName").is_there();
    if kind == ClusterPolicyKind::BaselineAdminNetworkPolicy && is_named && name != "default" {
        report.error(&Trail::ROOT, |origin| codes::baseline_name::at(origin, name));
    }
    policy
}

fn tier(kind: ClusterPolicyKind, tier: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Tier {
    match kind {
        ClusterPolicyKind::AdminNetworkPolicy => Tier::Admin,
        ClusterPolicyKind::BaselineAdminNetworkPolicy => Tier::Baseline,
        ClusterPolicyKind::ClusterNetworkPolicy => match tier.str() {
            Some("Admin") => Tier::Admin,
            Some("Baseline") => Tier::Baseline,
            Some(other) => {
                report.error(at, |origin| codes::bad_value::word(origin, other, &["Admin", "Baseline"]));
                Tier::Admin
            }
            None => {
                report.missing(at, |origin| codes::missing_field::at(origin, "tier"));
                Tier::Admin
            }
        },
    }
}

fn priority(kind: ClusterPolicyKind, written: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> u16 {
    if kind == ClusterPolicyKind::BaselineAdminNetworkPolicy {
        return 0;
    }
    match written.int() {
        Some(number @ 0..=LOWEST_PRIORITY) => number as u16,
        Some(number) => {
            report.error(at, |origin| codes::bad_value::number(origin, number, 0, LOWEST_PRIORITY));
            0
        }
        None => {
            report.missing(at, |origin| codes::missing_field::at(origin, "priority"));
            0
        }
    }
}

/// Reports unknown fields of a written status. The server drops the rest of it, whatever its types are.
fn status(status: ValueView<'_, '_>, report: &mut ObjectFindings) {
    // An API server may know more fields.
    if report.is_from_server() {
        return;
    }
    let at = Trail::ROOT.field("status");
    only(status, &["conditions"], &at, report);
    for (index, item) in status.items().enumerate() {
        only(item, &[], &at.index(index), report);
    }
    let at = at.field("conditions");
    for (index, condition) in status.get("conditions").items().enumerate() {
        let fields = &["type", "status", "observedGeneration", "lastTransitionTime", "reason", "message"];
        only(condition, fields, &at.index(index), report);
    }
}

/// Reports fields that a structure does not have.
fn only(of: ValueView<'_, '_>, fields: &[&'static str], at: &Trail<'_>, report: &mut ObjectFindings) {
    for name in of.names().filter(|name| !fields.contains(name)) {
        report.blemish(&at.field(name), |origin| codes::unknown_field::among(origin, name, fields));
    }
}

/// Which of several fields are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    None,
    Some,
}

/// Reports a structure that does not have exactly one of the fields.
fn exactly_one(
    of: ValueView<'_, '_>,
    fields: &'static [&'static str],
    at: &Trail<'_>,
    report: &mut ObjectFindings,
) -> Found {
    let found: Vec<&str> = fields.iter().copied().filter(|name| of.get(name).is_there()).collect();
    match found.len() {
        1 => {}
        0 => report.missing(at, |origin| codes::exactly_one::none(origin, fields)),
        _ => report.error(at, |origin| codes::exactly_one::several(origin, &found)),
    }
    if found.is_empty() { Found::None } else { Found::Some }
}

/// Reports a list with too few or too many items.
fn count(items: usize, most: usize, at: &Trail<'_>, report: &mut ObjectFindings) {
    if items == 0 || items > most {
        report.error(at, |origin| codes::wrong_count::at(origin, items, most));
    }
}

impl Spelling {
    /// The namespaces and pods that a policy applies to.
    fn subject(
        &self,
        subject: ValueView<'_, '_>,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) -> (LabelSelector, LabelSelector) {
        if !subject.is_there() {
            report.missing(at, |origin| codes::missing_field::at(origin, "subject"));
            return <(LabelSelector, LabelSelector)>::default();
        }
        exactly_one(subject, &["namespaces", "pods"], at, report);
        self.namespaces_or_pods(subject, at, report).unwrap_or_default()
    }

    fn rules(
        &self,
        rules: ValueView<'_, '_>,
        peers: &'static str,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) -> Vec<ClusterRule> {
        let number = rules.items().len();
        if number > self.most {
            report.error(at, |origin| codes::wrong_count::at(origin, number, self.most));
        }
        let rules = rules.items().enumerate();
        rules.filter_map(|(index, rule)| self.rule(rule, peers, &at.index(index), report)).collect()
    }

    fn rule(
        &self,
        rule: ValueView<'_, '_>,
        peers: &'static str,
        at: &Trail<'_>,
        report: &mut ObjectFindings,
    ) -> Option<ClusterRule> {
        if !rule.is_there() {
            report.error(at, |origin| codes::missing_field::at(origin, "action"));
            return None;
        }
        let action = self.action(rule.get("action"), &at.field("action"), report);
        let ports_field = self.kind.ports_field();
        let (peers_at, ports_at) = (at.field(peers), at.field(ports_field));
        let (written, ports) = (rule.get(peers), rule.get(ports_field));
        match written.is_there() {
            true => count(written.items().len(), self.most, &peers_at, report),
            false => report.missing(&peers_at, |origin| codes::missing_field::at(origin, peers)),
        }
        if ports.is_there() {
            count(ports.items().len(), self.most, &ports_at, report);
        }
        let read = written.items().enumerate();
        let is_egress = peers == "to";
        let read: Vec<_> =
            read.filter_map(|(index, peer)| self.peer(peer, is_egress, &peers_at.index(index), report)).collect();
        self.refuse_names(rule, written, at, report);
        let items = ports.items().enumerate();
        let ports = items.filter_map(|(index, port)| self.port(port, &ports_at.index(index), report)).collect();
        let name = rule.get("name").string().filter(|name| !name.is_empty());
        if name.as_ref().is_some_and(|name| name.chars().count() > LONGEST_NAME) {
            report.error(&at.field("name"), |origin| codes::bad_value::too_long(origin, LONGEST_NAME));
        }
        let action = action?;
        warn_unsupported(&read, action, &peers_at, report);
        Some(ClusterRule { name, action, peers: read, ports })
    }

    fn action(&self, written: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<RuleAction> {
        let Some(text) = written.str() else {
            report.missing(at, |origin| codes::missing_field::at(origin, "action"));
            return None;
        };
        let known = self.actions.iter().find(|(name, _)| *name == text).map(|(_, action)| *action);
        if known.is_none() {
            let words: Vec<&str> = self.actions.iter().map(|(name, _)| *name).collect();
            report.error(at, |origin| codes::bad_value::word(origin, text, &words));
        }
        known
    }
}
