//! The only way to standard output and standard error.
//!
//! Problem: nearly every output contains names and values from other people's files. If one message forgets to escape
//! them, a file can paint over a diff or give a CI system a command. Strategy: an [`OutputPage`] is a list of lines.
//! Each line is escaped as a whole, including line breaks in it (see [`weir_objects::escape`]), so only the page ends
//! lines, and only the page sets colours. A filter over finished text could not do that: it cannot see which line
//! breaks came from a name. JSON is for programs and gets JSON's own escapes.
//!
//! Invariants: the only hidden characters of a page are its line breaks and its own colours; the number of lines does
//! not depend on their content; only [`OutputPage::command`] writes commands to GitHub Actions or Azure Pipelines.
//! `cli/tests/sinks.rs` finds code that prints without this module. `cli/tests/cli/hostile.rs` sends hostile input
//! through every command and format.

mod ci_commands;
mod fold;
mod json;
mod progress;
mod width;

use std::fmt::{self, Display, Write as _};
use std::io::{self, IsTerminal as _, Write as _};

use annotate_snippets::{Group, Renderer};
use anyhow::{Context as _, Result};
use serde::Serialize;
use weir_objects::escape;

use crate::args::ColorChoice;

pub(crate) use json::JsonLines;
pub(crate) use progress::Progress;
pub(crate) use width::of_stdout as width_of_stdout;

/// Lines to print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputPage {
    text: String,
    color: bool,
    /// Lines of [`OutputPage::folded`] are at most this long; `None`: as long as their text.
    width: Option<usize>,
}

/// How a piece of a line looks, if the page is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Bold,
    Dim,
    Green,
    Red,
    Yellow,
}

/// A drawing in less room would show no source.
const NARROWEST_DRAWING: usize = 30;

/// Switches all styles off.
const RESET: &str = "\x1b[0m";

impl Style {
    fn begin(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Green => "\x1b[32m",
            Self::Red => "\x1b[31m",
            Self::Yellow => "\x1b[33m",
        }
    }
}

impl OutputPage {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn colored(color: bool) -> Self {
        Self { text: String::new(), color, width: None }
    }

    /// A page for people: colours and width are those of stdout.
    pub(crate) fn for_stdout(color: ColorChoice) -> Self {
        Self { text: String::new(), color: color_on_stdout(color), width: width_of_stdout() }
    }

    /// The same page with lines of at most this many columns.
    pub(crate) fn at_most(self, columns: usize) -> Self {
        Self { width: Some(self.width.map_or(columns, |width| width.min(columns))), ..self }
    }

    /// The most columns of a line; `None` without a limit.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// One line, escaped.
    pub(crate) fn line(&mut self, text: impl Display) {
        self.pieces(&[(Style::Plain, &text)]);
    }

    /// An empty line.
    pub(crate) fn blank(&mut self) {
        self.text.push('\n');
    }

    /// One line of pieces that look different, escaped.
    pub(crate) fn pieces(&mut self, pieces: &[(Style, &dyn Display)]) {
        let (mut plain, mut colored) = (String::new(), String::new());
        for (style, text) in pieces {
            let begin = plain.len();
            // Writing to a string does not fail. If a `Display` fails by itself, its text ends there.
            _ = write!(Escaped(&mut plain), "{text}");
            let end = if *style == Style::Plain { "" } else { RESET };
            colored.extend([style.begin(), plain.get(begin..).unwrap_or_default(), end]);
        }
        let is_colored = self.color && !ci_commands::is_armed(&plain);
        self.text.push_str(&if is_colored { colored } else { ci_commands::disarm(plain) });
        self.text.push('\n');
    }

    /// Pieces as [`OutputPage::pieces`], folded to the width. All lines but the first are indented.
    pub(crate) fn folded(&mut self, indent: usize, pieces: &[(Style, &dyn Display)]) {
        let Some(width) = self.width else { return self.pieces(pieces) };
        for line in fold::lines(width, indent, pieces) {
            let shown: Vec<(Style, &dyn Display)> = line.iter().map(|(style, text)| (*style, text as _)).collect();
            self.pieces(&shown);
        }
    }

    /// A plain text, folded to the width.
    pub(crate) fn folded_line(&mut self, indent: usize, text: impl Display) {
        self.folded(indent, &[(Style::Plain, &text)]);
    }

    /// Lines that Weir itself composed, such as a listing of instructions. Text from outside must have been escaped
    /// before the lines were composed, because a line break ends a line here. The lines of a file may be given as they
    /// are, where they are shown as a file's lines.
    pub(crate) fn lines(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(line));
    }

    /// A patch, only if it can be printed byte for byte: an escaped character would make it the patch of another text.
    /// Returns whether it was printed.
    pub(crate) fn patch(&mut self, patch: &str) -> bool {
        let mut printed = Self::new();
        printed.lines(patch);
        let is_exact = printed.text == patch;
        if is_exact {
            self.text.push_str(patch);
        }
        is_exact
    }

    /// A finding as `annotate-snippets` draws it, with an indentation.
    pub(crate) fn drawn(&mut self, indent: usize, group: Group<'_>) {
        let groups = [group];
        let room = self.width.map(|it| it.saturating_sub(indent).max(NARROWEST_DRAWING));
        let fits = |drawn: &str, width: usize| drawn.lines().all(|line| line.chars().count() <= width);
        // The renderer cuts source lines to the width and then adds the labels, so a label needs a smaller width.
        let smaller = |room: usize| (NARROWEST_DRAWING..=room).rev().step_by(8);
        let width = room.map(|room| {
            let is_enough = |width: &usize| fits(&Renderer::plain().term_width(*width).render(&groups), room);
            smaller(room).find(is_enough).unwrap_or(room)
        });
        let fit = |renderer: Renderer| width.map_or(renderer.clone(), |it| renderer.term_width(it));
        let plain = fit(Renderer::plain()).render(&groups);
        // Escape sequences in the coloured drawing are the renderer's own only if the plain drawing has none.
        let is_clean = !plain.contains(|letter| letter != '\n' && escape::is_hidden(letter));
        if self.color && is_clean && !ci_commands::is_armed(&plain) {
            self.indented(indent, &fit(Renderer::styled()).render(&groups));
        } else {
            plain.lines().for_each(|line| self.line(format_args!("{:indent$}{line}", "")));
        }
    }

    /// A command to GitHub Actions.
    pub(crate) fn command(&mut self, name: &str, properties: &[(&str, &str)], message: &str) {
        self.text.push_str(&ci_commands::written(name, properties, message));
        self.text.push('\n');
    }

    /// One JSON document, on a line of its own.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> serde_json::Result<()> {
        self.text.push_str(&json::escaped(&serde_json::to_string(value)?));
        self.text.push('\n');
        Ok(())
    }

    /// One JSON document, on many lines.
    pub(crate) fn pretty_json(&mut self, value: &impl Serialize) -> serde_json::Result<()> {
        self.text.push_str(&json::escaped(&serde_json::to_string_pretty(value)?));
        self.text.push('\n');
        Ok(())
    }

    /// The JSON document that the page consists of.
    pub(crate) fn to_value(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::from_str(&self.text)
    }

    /// Changes the JSON document that the page consists of.
    pub(crate) fn edit_json(&mut self, edit: impl FnOnce(&mut serde_json::Value)) -> serde_json::Result<()> {
        let mut document = serde_json::from_str(&self.text)?;
        edit(&mut document);
        self.text.clear();
        self.pretty_json(&document)
    }

    /// Adds a property to the first suite of a JUnit document. The value is escaped XML.
    pub(crate) fn junit_property(&mut self, name: &str, value: &str) {
        let property = format!("      <property name=\"{name}\" value=\"{value}\"/>");
        if !self.insert_line_after("    <properties>", &property) {
            self.insert_line_after("  <testsuite ", "    </properties>");
            self.insert_line_after("  <testsuite ", &property);
            self.insert_line_after("  <testsuite ", "    <properties>");
        }
    }

    /// Inserts a line after the first line that begins with `start`. Returns whether there is one.
    pub(crate) fn insert_line_after(&mut self, start: &str, line: &str) -> bool {
        let lines = std::mem::take(&mut self.text);
        let mut is_inserted = false;
        for written in lines.split_inclusive('\n') {
            self.text.push_str(written);
            if !is_inserted && written.starts_with(start) {
                is_inserted = true;
                self.line(line);
            }
        }
        is_inserted
    }

    /// An empty page with the same colours, for [`OutputPage::insert`].
    pub(crate) fn empty_like(&self) -> Self {
        Self { text: String::new(), color: self.color, width: self.width }
    }

    /// JSON that another program wrote. Text that is not JSON is written as lines.
    pub(crate) fn written_json(&mut self, text: &str) {
        match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => self.text.push_str(&json::escaped(text.trim())),
            Err(_) => return self.lines(text),
        }
        self.blank();
    }

    /// Adds another page's lines, indented.
    pub(crate) fn insert(&mut self, indent: usize, page: &Self) {
        self.indented(indent, &page.text);
    }

    fn indented(&mut self, indent: usize, escaped: &str) {
        escaped.lines().for_each(|line| self.text.push_str(&format!("{:indent$}{line}\n", "")));
    }

    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Prints the answer of a command.
    pub(crate) fn print(&self) -> Result<()> {
        to_stdout(self.text.as_bytes()).context("cannot write to standard output")
    }

    /// Prints the page in place of everything on the terminal.
    pub(crate) fn print_over(&self) -> Result<()> {
        const HOME_AND_CLEAR: &str = "\x1b[H\x1b[2J";
        to_stdout(format!("{HOME_AND_CLEAR}{}", self.text).as_bytes()).context("cannot write to standard output")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Prints to standard error. Ignores errors: its reader may have gone, and there is no other place to report that.
    pub(crate) fn print_to_stderr(&self) {
        _ = io::stderr().write_all(self.text.as_bytes());
    }
}

/// Prints clap's help or its error about the arguments, which must have been made visible.
pub(crate) fn usage(error: &clap::Error) {
    if !error.use_stderr() || io::stderr().is_terminal() {
        // The reader may have gone. That is not an error.
        _ = error.print();
        return;
    }
    let mut page = OutputPage::new();
    page.lines(&error.render().to_string());
    page.print_to_stderr();
}

/// One line on standard error.
pub(crate) fn print_to_stderr(line: impl Display) {
    let mut page = OutputPage::new();
    page.line(line);
    page.print_to_stderr();
}

/// One line on standard output.
pub(crate) fn print(line: impl Display) -> Result<()> {
    let mut page = OutputPage::new();
    page.line(line);
    page.print()
}

/// Prints bytes for programs that do not show them: a shell's completions, the result of a CNI plug-in.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    to_stdout(bytes)
}

fn to_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

/// A writer that escapes each piece of text.
struct Escaped<'t>(&'t mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(&escape::line(text));
        Ok(())
    }
}

/// Whether stdout is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether stdout takes colour.
pub(crate) fn color_on_stdout(choice: ColorChoice) -> bool {
    color(choice, io::stdout().is_terminal())
}

/// Whether stderr takes colour.
pub(crate) fn color_on_stderr(choice: ColorChoice) -> bool {
    color(choice, io::stderr().is_terminal())
}

fn color(choice: ColorChoice, terminal: bool) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
            terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
mod tests;
