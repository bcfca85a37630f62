//! One line of the output: the verdict and what it rests on.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use weir_compiler::model::eval::Judgement;
use weir_compiler::model::{Cluster, Direction};

use crate::because::{self, Reason, word};

/// Policies and lists by their number, as they are printed.
#[derive(Debug)]
pub(crate) struct Names {
    policies: Vec<String>,
    lists: Vec<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    id: Option<&'a RawValue>,
    verdict: &'static str,
    egress: &'static str,
    ingress: &'static str,
    because: &'a [Because<'a>],
}

/// One of the things that a verdict rests on.
#[derive(Serialize)]
struct Because<'a> {
    direction: &'static str,
    policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_rule")]
    rule: Option<(Direction, u32)>,
}

#[derive(Serialize)]
struct Skip<'a> {
    id: Option<&'a RawValue>,
    verdict: &'static str,
    reason: &'a str,
}

fn serialize_rule<S: Serializer>(rule: &Option<(Direction, u32)>, serializer: S) -> Result<S::Ok, S::Error> {
    match rule {
        Some((direction, index)) => serializer.collect_str(&format_args!("spec.{}[{index}]", direction.name())),
        None => serializer.serialize_none(),
    }
}

impl Names {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let policies =
            (0..cluster.policies.len() as u32).map(|id| cluster.policy_name(weir_compiler::model::PolicyId(id)));
        Self { policies: policies.collect(), lists: cluster.lists.iter().map(|list| list.name.clone()).collect() }
    }

    pub(super) fn write(
        &self,
        writer: &mut impl Write,
        id: Option<&RawValue>,
        judgement: &Judgement,
    ) -> io::Result<()> {
        let answer = Answer {
            id,
            verdict: word(judgement.verdict()),
            egress: word(judgement.egress.verdict),
            ingress: word(judgement.ingress.verdict),
            because: &self.because(judgement),
        };
        serde_json::to_writer(&mut *writer, &answer)?;
        writer.write_all(b"\n")
    }

    /// What a verdict rests on: egress first, then ingress.
    fn because(&self, judgement: &Judgement) -> Vec<Because<'_>> {
        let sides = [Direction::Egress, Direction::Ingress];
        sides
            .into_iter()
            .flat_map(|direction| {
                let reasons = because::reasons(judgement.side(direction));
                reasons.into_iter().map(move |reason| self.show(direction, reason))
            })
            .collect()
    }

    /// The same for people, one line each.
    pub(crate) fn lines(&self, judgement: &Judgement) -> Vec<String> {
        let line = |it: Because<'_>| {
            let verb = if it.rule.is_some() { "allowed by" } else { "denied by" };
            let rule = it.rule.map(|(direction, index)| format!(" spec.{}[{index}]", direction.name()));
            format!("{} {verb} {}{}", it.direction, it.policy, rule.unwrap_or_default())
        };
        self.because(judgement).into_iter().map(line).collect()
    }

    fn show(&self, direction: Direction, reason: Reason) -> Because<'_> {
        let direction_name = direction.name();
        match reason {
            Reason::List(list) => Because {
                direction: direction_name,
                policy: &self.lists[list.index()],
                kind: Some("CidrList"),
                rule: None,
            },
            Reason::Policy(policy, rule) => Because {
                direction: direction_name,
                policy: &self.policies[policy.index()],
                kind: None,
                rule: rule.map(|index| (direction, index)),
            },
        }
    }
}

pub(super) fn write_skip(writer: &mut impl Write, id: Option<&RawValue>, reason: &str) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, &Skip { id, verdict: "skip", reason })?;
    writer.write_all(b"\n")
}
