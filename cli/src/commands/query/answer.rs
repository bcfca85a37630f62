//! One line of the output: the verdict and its reasons.
//!
//! The JSON is written piece by piece, without a serializer: with a dozen rules per flow, the serializer took a third
//! of a query's time.

use std::io::{self, Write};

use serde_json::value::RawValue;
use weir_model::eval::Judgement;
use weir_model::{Cluster, Direction, PolicyId, TierRule, TierRuleId};
use weir_policy::verdict_reasons::{self, ShownReason, verdict_name};

use crate::left_out::LeftOut;

/// Policies and lists by their number, as JSON strings.
#[derive(Debug)]
pub(super) struct JsonNames {
    policies: Vec<String>,
    lists: Vec<String>,
    tiers: Vec<JsonTierPolicy>,
    /// The end of each answer: the kinds that it leaves out, and the closing brace.
    end: String,
}

/// A cluster-wide policy.
#[derive(Debug)]
struct JsonTierPolicy {
    /// Its name, and the members with its kind and tier.
    head: String,
    /// The members of each rule, for ingress and egress.
    rules: [Vec<String>; 2],
}

/// Egress comes first in every answer.
const SIDES: [Direction; 2] = [Direction::Egress, Direction::Ingress];

impl JsonNames {
    pub(super) fn new(cluster: &Cluster, left_out: &LeftOut) -> Self {
        let policies = (0..cluster.policies.len() as u32).map(|id| quote(&cluster.policy_name(PolicyId(id))));
        let end = match left_out.is_empty() {
            true => "}\n".to_owned(),
            false => format!(",\"leftOut\":{}}}\n", left_out.json()),
        };
        let lists = cluster.lists.iter().map(|list| quote(&list.name)).collect();
        let tiers = cluster.tiers.iter().map(|policy| {
            let (name, kind, tier) = (quote(&policy.name), policy.kind.name(), policy.tier.name());
            JsonTierPolicy {
                head: format!("{name},\"kind\":\"{kind}\",\"tier\":\"{tier}\","),
                rules: Direction::ALL.map(|it| policy.rules(it).iter().map(rule_members).collect()),
            }
        });
        Self { policies: policies.collect(), lists, tiers: tiers.collect(), end }
    }

    pub(super) fn write(
        &self,
        writer: &mut impl Write,
        id: Option<&RawValue>,
        judgement: &Judgement,
    ) -> io::Result<()> {
        write_id(writer, id)?;
        let verdicts = [judgement.verdict(), judgement.egress.verdict, judgement.ingress.verdict];
        for (key, verdict) in ["\"verdict\":\"", "\"egress\":\"", "\"ingress\":\""].into_iter().zip(verdicts) {
            write_all(writer, &[key, verdict_name(verdict), "\","])?;
        }
        writer.write_all(b"\"because\":[")?;
        let mut separator = "{\"direction\":\"";
        for direction in SIDES {
            for reason in verdict_reasons::reasons(judgement.side(direction)) {
                write_all(writer, &[separator, direction.name(), "\",\"policy\":"])?;
                self.write_reason(writer, direction, reason)?;
                separator = ",{\"direction\":\"";
            }
        }
        write_all(writer, &["]", &self.end])
    }

    pub(super) fn write_skip(&self, writer: &mut impl Write, id: Option<&RawValue>, reason: &str) -> io::Result<()> {
        write_id(writer, id)?;
        write_all(writer, &["\"verdict\":\"skip\",\"reason\":", &quote(reason), &self.end])
    }

    fn write_reason(&self, writer: &mut impl Write, direction: Direction, reason: ShownReason) -> io::Result<()> {
        match reason {
            ShownReason::List(list) => write_all(writer, &[&self.lists[list.index()], ",\"kind\":\"CidrList\"}"]),
            ShownReason::Tier(TierRuleId { policy, direction, rule }) => {
                let of_policy = &self.tiers[policy.index()];
                write_all(writer, &[&of_policy.head, "\"rule\":\"spec.", direction.name(), "["])?;
                write!(writer, "{rule}]\"{}}}", of_policy.rules[direction as usize][rule as usize])
            }
            ShownReason::Policy(policy, None) => write_all(writer, &[&self.policies[policy.index()], "}"]),
            ShownReason::Policy(policy, Some(rule)) => {
                write_all(writer, &[&self.policies[policy.index()], ",\"rule\":\"spec.", direction.name(), "["])?;
                write!(writer, "{rule}]\"}}")
            }
        }
    }
}

fn rule_members(rule: &TierRule) -> String {
    let name = rule.name.as_ref().map_or(String::new(), |name| format!(",\"ruleName\":{}", quote(name)));
    format!("{name},\"action\":\"{}\"", rule.action.name())
}

fn write_id(writer: &mut impl Write, id: Option<&RawValue>) -> io::Result<()> {
    write_all(writer, &["{\"id\":", id.map_or("null", RawValue::get), ","])
}

fn write_all(writer: &mut impl Write, pieces: &[&str]) -> io::Result<()> {
    pieces.iter().try_for_each(|piece| writer.write_all(piece.as_bytes()))
}

/// A text as a JSON string.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
