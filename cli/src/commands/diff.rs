//! `weir diff`: shows the traffic that a change newly allows and the traffic that it no longer allows.

mod cost;
mod flows;
mod json;
mod md;
mod notes;
mod places;
mod text;
mod views;
mod words;

use anyhow::{Result, anyhow};
use weir_analysis::diff::{DiffError, Namer, self};

use super::Outcome;
use crate::args::{Diff, DiffFormat, Global};
use crate::failure::{self, with_hint};
use crate::page;
use crate::read::Read;
use crate::side::{self, Source};
use cost::Costs;
use places::Places;
use words::Words;

/// Rows shown as text, unless said otherwise.
const MOST_ROWS: usize = 100;

/// Both sides of a comparison, and their differences.
pub(super) struct Compared {
    pub(super) names: [String; 2],
    pub(super) sides: [Read; 2],
    pub(super) diff: diff::Diff,
    /// The prefix of the head's file names that is not part of the path.
    prefix: String,
}

impl Compared {
    fn is_same(&self) -> bool {
        self.diff.rows.is_empty() && self.diff.isolation.is_empty()
    }

    /// A file of the head, as the repository has it.
    fn in_repository<'f>(&self, file: &'f str) -> &'f str {
        file.strip_prefix(&self.prefix).unwrap_or(file)
    }
}

pub(crate) fn run(global: &Global, arguments: &Diff) -> Result<Outcome> {
    let sources = [Source::parse(&arguments.base)?, Source::parse(&arguments.head)?];
    let Some([base, head]) = side::read_both(global, &sources)? else { return Ok(Outcome::Failed) };
    let diff = diff::compare(&base.cluster, &head.cluster).map_err(failed)?;
    let names = [arguments.base.clone(), arguments.head.clone()];
    let compared = Compared { names, sides: [base, head], diff, prefix: sources[1].prefix() };
    let [base, head] = compared.sides.each_ref().map(|it| &it.cluster);
    let (costs, exceeded) = match arguments.no_cost {
        true => (None, None),
        false => {
            let (costs, exceeded) = cost::measure([base, head], arguments.node.as_deref(), &arguments.budget)?;
            (Some(costs), exceeded)
        }
    };
    let namer = Namer::new(Some(base), head, &compared.diff);
    let places = Places::find(&compared);
    let words = Words { compared: &compared, namer: &namer, places: &places };
    print(global, arguments, &words, costs.as_ref())?;
    if let Some(exceeded) = &exceeded {
        failure::print(&with_hint(exceeded.to_string(), "the head costs more than it may"));
    }
    let is_clean = compared.is_same() && exceeded.is_none();
    Ok(if is_clean { Outcome::Clean } else { Outcome::Findings })
}

fn print(global: &Global, arguments: &Diff, words: &Words<'_, '_>, costs: Option<&Costs>) -> Result<()> {
    let most = match arguments.max {
        Some(0) => usize::MAX,
        Some(most) => most,
        None if arguments.output == DiffFormat::Text => MOST_ROWS,
        None => usize::MAX,
    };
    let page = match arguments.output {
        DiffFormat::Text => text::text(words, costs, most, page::color_on_stdout(global.color)),
        DiffFormat::Json => json::json(words, costs, most)?,
        DiffFormat::Md => md::markdown(words, costs, most),
        DiffFormat::Sarif => notes::sarif(words, most)?,
        DiffFormat::Github => notes::github(words, most),
        DiffFormat::Html => views::html(words)?,
        DiffFormat::Svg => views::graph(words, most),
        DiffFormat::Dot => views::digraph(words, most),
    };
    page.print()
}

fn failed(error: DiffError) -> anyhow::Error {
    match error {
        DiffError::Classify(error) => anyhow!(error).context("the input cannot be compared"),
        DiffError::Witness(text) => panic!("the comparison contradicts the reference: {text}"),
    }
}
