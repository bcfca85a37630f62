//! The nodes that answered, those that did not and the reasons, and defects of the answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::commands::CommandOutcome;
use crate::page::{OutputPage, Style};

/// The number of nodes that the first line names.
const MOST_NAMED: usize = 8;

/// A node without an answer, or with half of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFailure {
    pub(crate) node: String,
    pub(crate) why: String,
}

/// The nodes of a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSummary {
    pub(crate) answered: BTreeSet<String>,
    /// In the order in which they failed.
    pub(crate) failed: Vec<NodeFailure>,
    /// Sentences that are not about a failure.
    pub(crate) notes: Vec<String>,
    /// Fields that the answers of nodes lack, because their agents are older.
    lacking: BTreeMap<String, BTreeSet<String>>,
    /// Lines that are not JSON: their number, and the first one.
    rubbish: BTreeMap<String, (u64, String)>,
}

impl NodeSummary {
    pub(crate) fn fail(&mut self, node: &str, why: impl Into<String>) {
        self.failed.push(NodeFailure { node: node.to_owned(), why: why.into() });
    }

    /// Notes the fields that an answer lacks.
    pub(crate) fn lacks(&mut self, node: &str, fields: impl IntoIterator<Item = String>) {
        let mut fields = fields.into_iter().peekable();
        if fields.peek().is_some() {
            self.lacking.entry(node.to_owned()).or_default().extend(fields);
        }
    }

    /// Notes a line that is not JSON.
    pub(crate) fn rubbish(&mut self, node: &str, line: &str) {
        const SHOWN: usize = 80;
        let seen = self.rubbish.entry(node.to_owned()).or_insert_with(|| (0, line.chars().take(SHOWN).collect()));
        seen.0 += 1;
    }

    /// The first lines: the nodes that are asked, and those that cannot be.
    pub(crate) fn head(&self, page: &mut OutputPage, asked: &[String]) {
        let total = asked.len() + self.failed.len();
        let mut names = asked.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join(", ");
        if asked.len() > MOST_NAMED {
            names.push_str(&format!(" and {} more", asked.len() - MOST_NAMED));
        }
        page.folded(2, &[(Style::Bold, &format_args!("{} of {total} nodes: {names}", asked.len()))]);
        self.failed.iter().for_each(|it| failure_line(page, it));
        self.notes.iter().for_each(|it| page.folded(2, &[(Style::Dim, &format_args!("note: {it}"))]));
    }

    /// The line about the last failure of a node.
    pub(crate) fn failure(&self, page: &mut OutputPage, node: &str) {
        self.failed.iter().rev().find(|it| it.node == node).iter().for_each(|it| failure_line(page, it));
    }

    /// The same for programs.
    pub(crate) fn failure_json(&self, node: &str) -> Value {
        let why = self.failed.iter().rev().find(|it| it.node == node).map(|it| it.why.as_str());
        json!({"node": node, "error": why})
    }

    /// The last lines: everything that went wrong. They are printed to standard error.
    pub(crate) fn tail(&self, page: &mut OutputPage) {
        self.failed.iter().for_each(|it| failure_line(page, it));
        for (node, fields) in &self.lacking {
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            page.line(format_args!("note: {node}: its agent is older, its answers lack {}", fields.join(", ")));
        }
        for (node, (count, first)) in &self.rubbish {
            page.line(format_args!("note: {node}: {count} lines are not JSON, the first: {first}"));
        }
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let failed = |it: &NodeFailure| json!({"node": it.node, "error": it.why});
        let lacking = |(node, fields): (&String, &BTreeSet<String>)| json!({"node": node, "fields": fields});
        let rubbish =
            |(node, (lines, first)): (&String, &(u64, String))| json!({"node": node, "lines": lines, "first": first});
        json!({
            "answered": self.answered, "failed": self.failed.iter().map(failed).collect::<Vec<_>>(),
            "lacking": self.lacking.iter().map(lacking).collect::<Vec<_>>(),
            "unreadable": self.rubbish.iter().map(rubbish).collect::<Vec<_>>(), "notes": self.notes,
        })
    }

    /// 0 if every node answered, 1 if some did, 2 if none did.
    pub(crate) fn outcome(&self) -> CommandOutcome {
        match (self.answered.is_empty(), self.failed.is_empty() && self.rubbish.is_empty()) {
            (true, _) => CommandOutcome::Failed,
            (false, false) => CommandOutcome::Findings,
            (false, true) => CommandOutcome::Clean,
        }
    }
}

fn failure_line(page: &mut OutputPage, failure: &NodeFailure) {
    page.folded(2, &[(Style::Red, &failure.node), (Style::Plain, &format_args!(": {}", failure.why))]);
}

/// The fields of an answer that are not there.
pub(crate) fn missing_fields<'f>(value: &Value, fields: &[&'f str]) -> Vec<&'f str> {
    fields.iter().filter(|it| value.get(**it).is_none()).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_says_how_many_nodes_answered() {
        let mut summary = NodeSummary::default();
        assert_eq!(summary.outcome(), CommandOutcome::Failed);
        summary.answered.insert("a".to_owned());
        assert_eq!(summary.outcome(), CommandOutcome::Clean);
        summary.fail("b", "gone");
        assert_eq!(summary.outcome(), CommandOutcome::Findings);
    }

    #[test]
    fn text_of_a_node_stays_on_its_line() {
        let mut summary = NodeSummary::default();
        summary.fail("a\u{1b}[2J", "b\nc");
        summary.rubbish("d", "\u{1b}]0;title\u{7}\nx");
        let mut page = OutputPage::new();
        summary.tail(&mut page);
        assert_eq!(page.as_str().lines().count(), 2, "{}", page.as_str());
        assert!(!page.as_str().contains('\u{1b}'), "{}", page.as_str());
    }
}
