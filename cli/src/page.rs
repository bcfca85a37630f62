//! Everything that is printed: the one way to standard output and standard error.
//!
//! Problem: most of what is printed contains text from outside. One message that forgets to escape it is enough to paint
//! over a diff or to give a CI system a command, so no message may have to remember. Strategy: a [`Page`] is made of
//! lines. What is written into a line is escaped as a whole, line breaks included (see [`weir_compiler::escape`]): only
//! the page ends lines, and only the page colours. JSON, which programs read, gets JSON's own escapes instead.
//!
//! Invariants: no character of a page is hidden but the ends of its lines and its own colours; the number of lines does
//! not depend on what stands in them; no line but [`Page::command`]'s is a command to GitHub Actions or Azure Pipelines.
//! `cli/tests/sinks.rs` finds prints past this module, `cli/tests/cli/hostile.rs` sends hostile input through every
//! command and format.

mod commands;
mod json;
mod progress;

use std::fmt::{self, Display, Write as _};
use std::io::{self, IsTerminal as _, Write as _};

use annotate_snippets::{Group, Renderer};
use anyhow::{Context as _, Result};
use serde::Serialize;
use weir_compiler::escape;

use crate::args::ColorChoice;

pub(crate) use json::JsonLines;
pub(crate) use progress::Progress;

/// Lines to print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    text: String,
    color: bool,
}

/// How a piece of a line looks, if the page is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Bold,
    Dim,
    Green,
    Red,
}

/// Back to what a terminal does by itself.
const RESET: &str = "\x1b[0m";

impl Style {
    fn begin(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Green => "\x1b[32m",
            Self::Red => "\x1b[31m",
        }
    }
}

impl Page {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn colored(color: bool) -> Self {
        Self { text: String::new(), color }
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
            // Writing into a string does not fail; a `Display` that fails by itself has said all that it can.
            _ = write!(Escaped(&mut plain), "{text}");
            let end = if *style == Style::Plain { "" } else { RESET };
            colored.extend([style.begin(), plain.get(begin..).unwrap_or_default(), end]);
        }
        let is_colored = self.color && !commands::is_armed(&plain);
        self.text.push_str(&if is_colored { colored } else { commands::disarm(plain) });
        self.text.push('\n');
    }

    /// Lines that Weir itself composed, such as a listing of instructions. The text in them must have been escaped before
    /// they were put together, or be Weir's own: here a line break ends a line.
    pub(crate) fn lines(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(line));
    }

    /// A finding as `annotate-snippets` draws it, with an indentation.
    pub(crate) fn drawn(&mut self, indent: usize, group: Group<'_>) {
        let groups = [group];
        let plain = Renderer::plain().render(&groups);
        // The colours are the renderer's own only if it draws no escape sequence without them.
        let is_clean = !plain.contains(|letter| letter != '\n' && escape::is_hidden(letter));
        if self.color && is_clean && !commands::is_armed(&plain) {
            self.indented(indent, &Renderer::styled().render(&groups));
        } else {
            plain.lines().for_each(|line| self.line(format_args!("{:indent$}{line}", "")));
        }
    }

    /// A command to GitHub Actions.
    pub(crate) fn command(&mut self, name: &str, properties: &[(&str, &str)], message: &str) {
        self.text.push_str(&commands::written(name, properties, message));
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

    /// A page that looks the same, to be [`Page::insert`]ed.
    pub(crate) fn empty_like(&self) -> Self {
        Self::colored(self.color)
    }

    /// JSON as another program wrote it; what is none is text.
    pub(crate) fn written_json(&mut self, text: &str) {
        match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => self.text.push_str(&json::escaped(text.trim())),
            Err(_) => return self.lines(text),
        }
        self.blank();
    }

    /// Another page's lines, further right.
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

    /// Prints to standard error. Its reader may have gone; there is nowhere else to say it.
    pub(crate) fn complain(&self) {
        _ = io::stderr().write_all(self.text.as_bytes());
    }
}

/// Help, or what is wrong with arguments. The arguments in it are visible; a log is not to take them for commands either.
pub(crate) fn usage(error: &clap::Error) {
    if !error.use_stderr() || io::stderr().is_terminal() {
        // The reader may have gone: not an error.
        _ = error.print();
        return;
    }
    let mut page = Page::new();
    page.lines(&error.render().to_string());
    page.complain();
}

/// One line on standard error.
pub(crate) fn complain(line: impl Display) {
    let mut page = Page::new();
    page.line(line);
    page.complain();
}

/// One line on standard output.
pub(crate) fn print(line: impl Display) -> Result<()> {
    let mut page = Page::new();
    page.line(line);
    page.print()
}

/// What other programs read byte by byte and do not show: a shell's completions, the result of a CNI plug-in.
pub(crate) fn hand_over(bytes: &[u8]) -> io::Result<()> {
    to_stdout(bytes)
}

fn to_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

/// Escapes what is written through it.
struct Escaped<'t>(&'t mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(&escape::line(text));
        Ok(())
    }
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
