//! The rule that allowed a connection.
//!
//! Problem: the flow table says that a connection was allowed, and not by which rule; the artifact's manifest names the
//! policies that isolate the pod. Strategy: the oracle judges the same flow over the objects, if they are known: those
//! in the artifact in force, or those of the live cluster. Where they are not, or where they deny the flow because they
//! have changed since, the policies are named without a rule.

use std::collections::HashMap;
use std::net::IpAddr;

#[cfg(feature = "enforce")]
use anyhow::Result;
use serde_json::json;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, Direction, EndpointId, Protocol};
#[cfg(feature = "enforce")]
use weir_runtime::runtime::Runtime;

use super::printer::ShownEvent;
use super::row::{EventRow, RowEnd};
#[cfg(feature = "enforce")]
use crate::args::GlobalArgs;
use crate::read::ReadInput;
use weir_policy::verdict_reasons::{ShownReason, reasons};

/// The objects over which connections are judged again.
#[derive(Default)]
pub(super) struct RuleFinder {
    read: Option<Box<ReadInput>>,
    /// The pods by `namespace/name`.
    pods: HashMap<String, EndpointId>,
    /// The generation and the file that the objects are from; `None` if none was looked for.
    #[cfg(feature = "enforce")]
    source: Option<(u32, Option<u32>)>,
}

impl RuleFinder {
    /// Judges over these objects.
    pub(super) fn of(read: ReadInput) -> Self {
        let ids = (0..read.cluster.endpoints.len() as u32).map(EndpointId);
        let pods = ids.map(|id| (read.cluster.endpoint_name(id), id)).collect();
        Self {
            read: Some(Box::new(read)),
            pods,
            #[cfg(feature = "enforce")]
            source: None,
        }
    }

    /// Takes the objects of the generation in force, if its artifact has any. An agent's artifact has none.
    #[cfg(feature = "enforce")]
    pub(super) fn follow(&mut self, global: &GlobalArgs, runtime: &Runtime) -> Result<()> {
        let source = runtime.epoch_and_file()?;
        if self.source == Some(source) {
            return Ok(());
        }
        let objects = runtime.artifact_in_force()?.map(|it| it.objects).filter(|it| !it.is_empty());
        *self = Self::default();
        if let Some(objects) = objects {
            let add =
                |loaded: &mut crate::load::LoadedInputs| loaded.add_text("objects".to_owned(), objects.into_bytes());
            *self = crate::read::read_valid_without_lists(global, add)?.map(Self::of).unwrap_or_default();
        }
        self.source = Some(source);
        Ok(())
    }

    /// Names the rules of connections that were allowed.
    pub(super) fn name_rules(&self, events: &mut [ShownEvent]) {
        let mut oracle = None;
        for event in events.iter_mut().filter(|it| it.row.reason == "allowed") {
            if let Some(read) = &self.read {
                // An oracle indexes all objects, so the events of a batch share one.
                let oracle = oracle.get_or_insert_with(|| Oracle::new(&read.cluster));
                if let Some(rules) = self.rules(oracle, &read.cluster, &event.row) {
                    event.set_rules(rules);
                }
            }
            event.keep_named_places();
        }
    }

    /// The rules that allow the event's connection; `None` if the objects do not allow it.
    fn rules(&self, oracle: &mut Oracle<'_>, cluster: &Cluster, row: &EventRow) -> Option<Vec<NamedRule>> {
        let (source, destination) = row.source_and_destination()?;
        let protocol = protocol(row.proto.as_deref()?)?;
        let flow = Flow {
            source: self.end(oracle, source),
            destination: self.end(oracle, destination),
            protocol,
            port: destination.port.unwrap_or(0),
        };
        let direction = if row.direction == "egress" { Direction::Egress } else { Direction::Ingress };
        let judgement = oracle.judge(&flow);
        let side = judgement.side(direction);
        if side.verdict != Verdict::Allow {
            return None;
        }
        let named = |reason| match reason {
            ShownReason::Policy(id, Some(rule)) => {
                let policy = cluster.policy_name(id);
                Some(NamedRule { rule: format!("{policy} spec.{}[{rule}]", direction.name()), policy })
            }
            ShownReason::Tier(rule) => {
                let policy = cluster.tier_policy_name(rule.policy);
                Some(NamedRule { rule: format!("{policy} {}", cluster.tier_rule_name(rule)), policy })
            }
            ShownReason::Policy(_, None) | ShownReason::List(_) => None,
        };
        Some(reasons(side).into_iter().filter_map(named).collect())
    }

    fn end(&self, oracle: &Oracle<'_>, end: &RowEnd) -> FlowEnd {
        let by_name = end.pod.as_ref().and_then(|pod| self.pods.get(pod)).copied();
        FlowEnd { endpoint: by_name.or_else(|| endpoint_at(oracle, end.ip)), address: Some(end.ip) }
    }
}

fn endpoint_at(oracle: &Oracle<'_>, address: IpAddr) -> Option<EndpointId> {
    oracle.directory().endpoint_at(address)
}

fn protocol(name: &str) -> Option<FlowProtocol> {
    Some(match name {
        "TCP" => FlowProtocol::Transport(Protocol::Tcp),
        "UDP" => FlowProtocol::Transport(Protocol::Udp),
        "SCTP" => FlowProtocol::Transport(Protocol::Sctp),
        "ICMP" | "ICMPv6" => FlowProtocol::Icmp,
        _ => return None,
    })
}

/// A rule that allows a connection.
struct NamedRule {
    rule: String,
    policy: String,
}

impl ShownEvent {
    /// Notes the first rule that allows the connection, and the policies with such a rule.
    fn set_rules(&mut self, rules: Vec<NamedRule>) {
        let Some(first) = rules.first() else { return };
        self.row.why.rule = Some(first.rule.clone());
        self.value["rule"] = json!(first.rule);
        let mut policies: Vec<String> = rules.iter().map(|it| it.policy.clone()).collect();
        policies.dedup();
        self.value["policies"] = json!(policies);
        // Without the place of the rule, that of its policy is the best.
        let places = &mut self.row.why.places;
        if let Some(place) = places.get(&first.policy).filter(|_| !places.contains_key(&first.rule)).cloned() {
            places.insert(first.rule.clone(), place);
        }
        self.row.why.policies = policies;
    }

    /// Leaves out the places of rules that did not decide.
    fn keep_named_places(&mut self) {
        let why = &mut self.row.why;
        let (policies, rule) = (why.policies.clone(), why.rule.clone());
        why.places.retain(|name, _| policies.contains(name) || rule.as_ref() == Some(name));
        self.value["places"] = json!(why.places);
    }
}
