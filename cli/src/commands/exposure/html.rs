//! The exposure as the HTML report: the list has possible pods too, and matrix and graph show the pods and workloads of
//! the input.

use anyhow::Result;
use weir_analysis::world::{ExposedBy, ExposedGroup};
use weir_model::Direction;

use super::{Findings, text};
use crate::args::{ExposureArgs, GlobalArgs};
use crate::page::OutputPage;
use crate::read::ReadInput;
use crate::render::text::count;
use crate::views::html::{self, StateTexts};
use crate::views::report::list::{ListRow, RowKind, RuleText};
use crate::views::report::source_links::SourceLinks;
use weir_policy::locator::Locator;

pub(super) fn page(
    global: &GlobalArgs,
    arguments: &ExposureArgs,
    read: &ReadInput,
    found: &Findings<'_>,
) -> Result<OutputPage> {
    let links = SourceLinks::from_environment();
    let mut locator = Locator::new(&read.sources);
    let groups = found.possible.as_deref().unwrap_or_default();
    let rows: Vec<ListRow> = groups.iter().map(|it| row(found, it, &mut locator, &links)).collect();
    let addition = (found.possible.is_some()).then(|| match rows.len() {
        0 => "No other pod that could exist can be reached.".to_owned(),
        number => format!("{} of pods that could exist can be reached.", count(number, "group")),
    });
    let texts = StateTexts { title: "Exposure", addition, rows };
    html::state(global, &arguments.input, read, found.reach, texts)
}

/// A group of pods that could exist.
fn row(found: &Findings<'_>, group: &ExposedGroup, locator: &mut Locator<'_>, links: &SourceLinks) -> ListRow {
    let cluster = found.reach.cluster;
    let rule = match group.by {
        ExposedBy::Rule(rule) => {
            let policy = &cluster.policies[rule.policy.index()];
            Some(policy.rule_origin(Direction::Ingress, rule.rule as usize))
        }
        ExposedBy::Tier(rule) => Some(cluster.tier_policy(rule.policy).rule_origin(rule.direction, rule.rule as usize)),
        ExposedBy::NotIsolated => None,
    };
    let (reason, limits) = (text::reason(cluster, group.by), text::limits(group));
    let rule = rule.and_then(|origin| RuleText::at(locator, origin, reason.clone(), links));
    ListRow {
        kind: RowKind::Possible,
        from: text::source(group),
        to: text::pods(group),
        ports: text::traffic(group),
        namespace: group.pods.only_namespace().map(str::to_owned),
        reasons: std::iter::once(reason).chain(limits.into_iter().map(str::to_owned)).collect(),
        rules: rule.into_iter().collect(),
        example: None,
        number: None,
        is_refused: false,
    }
}
