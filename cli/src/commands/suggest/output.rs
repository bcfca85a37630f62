//! The proposal as text, patch, YAML and JSON.

use anyhow::Result;
use serde_json::{Value, json};
use weir_suggest::change::Step;
use weir_suggest::edit::Edit;

use super::Proposal;
use crate::args::SuggestFormat;
use crate::page::Style::Bold;
use crate::page::{self, OutputPage};
use crate::patch::{self, file_patch};

impl Proposal<'_> {
    /// The proposal, written to an empty page.
    pub(super) fn page(&self, mut page: OutputPage) -> Result<OutputPage> {
        match self.arguments.output {
            SuggestFormat::Text => self.text(&mut page),
            SuggestFormat::Patch => {
                let hint = "`-o json` has the patch as a string, and `-o yaml` the changed objects";
                self.patches().iter().try_for_each(|(name, it)| patch::print(&mut page, name, it, hint))?;
            }
            SuggestFormat::Yaml => self.yaml(&mut page),
            SuggestFormat::Json => page.pretty_json(&self.json()?)?,
        }
        Ok(page)
    }

    /// The notes on standard error, if the format has no place for them.
    pub(super) fn print_notes(&self) {
        if let SuggestFormat::Patch | SuggestFormat::Yaml = self.arguments.output {
            self.change.notes.iter().for_each(|it| page::print_to_stderr(format_args!("note: {it}")));
        }
    }

    fn flow(&self) -> String {
        let port = self.arguments.port.as_ref().map_or(String::new(), |it| format!(" port {it}"));
        let protocol = self.arguments.proto.as_ref().map_or(String::new(), |it| format!(" {it}"));
        format!("{} -> {}{port}{protocol}", self.arguments.from, self.arguments.to)
    }

    fn text(&self, page: &mut OutputPage) {
        let [before, after] = if self.arguments.deny { ["allowed", "denied"] } else { ["denied", "allowed"] };
        let flow = self.flow();
        page.folded(2, &[(Bold, &format_args!("{flow} is {before}; with this change it is {after}."))]);
        page.blank();
        for step in &self.change.steps {
            page.folded_line(4, format_args!("  * {}{}", self.what(step), reason(step)));
        }
        for note in &self.change.notes {
            page.folded_line(4, format_args!("  note: {note}"));
        }
        title(page, "Patch");
        for (name, patch) in self.patches() {
            if !page.patch(&patch) {
                page.line(patch::unprintable(name));
            }
        }
        title(page, "The objects with the change");
        self.yaml(page);
        title(page, "Everything that changes");
        page.insert(0, &self.report.text);
    }

    /// `append to spec.ingress[0].from of shop/db`
    fn what(&self, step: &Step) -> String {
        let of = match &step.edit {
            Edit::Create(_) => return step.edit.to_string(),
            edit => edit.object(),
        };
        let object = self.change.objects.iter().find(|it| Some(it.id) == of);
        let name = object.map(|it| format!(" of {}/{}", it.meta.namespace, it.meta.name));
        format!("{}{}", step.edit, name.unwrap_or_default())
    }

    fn patches(&self) -> Vec<(&str, String)> {
        let changed = self.files.iter().filter(|it| it.is_changed());
        changed.map(|it| (it.name.as_str(), file_patch(&it.name, it.before.as_deref(), &it.after))).collect()
    }

    fn yaml(&self, page: &mut OutputPage) {
        for (index, object) in self.objects.iter().enumerate() {
            if index > 0 {
                page.line("---");
            }
            page.lines(&object.yaml);
        }
    }

    fn json(&self) -> Result<Value> {
        let steps = self.change.steps.iter().map(
            |it| json!({"edit": self.what(it), "direction": it.edit.direction().name(), "candidates": it.candidates}),
        );
        let files = self.files.iter().filter(|it| it.is_changed()).map(|it| {
            let patch = file_patch(&it.name, it.before.as_deref(), &it.after);
            json!({"file": it.name, "new": it.before.is_none(), "patch": patch})
        });
        let objects =
            self.objects.iter().map(|it| json!({"namespace": it.namespace, "name": it.name, "manifest": it.yaml}));
        let (from, to) = (&self.arguments.from, &self.arguments.to);
        Ok(json!({
            "flow": {"from": from, "to": to, "port": self.arguments.port, "proto": self.arguments.proto},
            "wanted": if self.arguments.deny { "deny" } else { "allow" },
            "steps": steps.collect::<Vec<_>>(),
            "notes": self.change.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "files": files.collect::<Vec<_>>(),
            "objects": objects.collect::<Vec<_>>(),
            "diff": self.report.json.to_value()?,
        }))
    }
}

fn title(page: &mut OutputPage, title: &str) {
    page.blank();
    page.pieces(&[(Bold, &title)]);
    page.blank();
}

fn reason(step: &Step) -> String {
    match step.candidates {
        1 => " (the only edit of one rule that does it)".to_owned(),
        more => format!(" (of {more} edits that do it, the one that changes least)"),
    }
}
