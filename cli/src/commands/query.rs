//! `weir query`: many flows, one JSON object a line, answered in order and in constant memory.

mod answer;
mod engine;
mod flow;

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use weir_compiler::model::directory::Directory;

use super::Outcome;
use crate::args::{Global, Query, QueryFormat};
use crate::ends::Ends;
use crate::failure::with_hint;
use crate::read;
use answer::Names;
use engine::{Judge, NoAnswer};
use flow::Line;

/// Bytes in flight, each way.
const BUFFER: usize = 1 << 17;

pub(crate) fn run(global: &Global, query: &Query) -> Result<Outcome> {
    let QueryFormat::Jsonl = query.output;
    let Some(read) = read::read_sound(global, &query.input)? else { return Ok(Outcome::Failed) };
    let reader = open(&query.flows, read.stdin_read)?;
    let ends = Ends { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let writer = BufWriter::with_capacity(BUFFER, std::io::stdout().lock());
    let (directory, judge) = (Directory::new(&read.cluster), Judge::new(query.engine, &read.cluster)?);
    Session { ends, directory, judge, names: Names::new(&read.cluster), skipped: false }.answer_all(reader, writer)
}

fn open(path: &Path, stdin_read: bool) -> Result<BufReader<Box<dyn std::io::Read>>> {
    let source: Box<dyn std::io::Read> = match path == Path::new("-") {
        true if stdin_read => {
            return Err(with_hint("standard input is named twice", "it holds either objects or flows"));
        }
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?),
    };
    Ok(BufReader::with_capacity(BUFFER, source))
}

struct Session<'c> {
    ends: Ends<'c>,
    directory: Directory<'c>,
    judge: Judge<'c>,
    names: Names,
    skipped: bool,
}

impl Session<'_> {
    fn answer_all(
        mut self,
        mut reader: BufReader<impl std::io::Read>,
        mut writer: BufWriter<impl Write>,
    ) -> Result<Outcome> {
        let mut line = Vec::new();
        loop {
            // Whoever waits for an answer before asking on gets it before we wait for the next question.
            if reader.buffer().is_empty() {
                writer.flush()?;
            }
            line.clear();
            if reader.by_ref().read_until(b'\n', &mut line).context("cannot read the flows")? == 0 {
                break;
            }
            if !line.trim_ascii().is_empty() {
                self.answer(&line, &mut writer)?;
            }
        }
        writer.flush()?;
        Ok(if self.skipped { Outcome::Findings } else { Outcome::Clean })
    }

    fn answer(&mut self, line: &[u8], writer: &mut impl Write) -> Result<()> {
        let parsed = Line::parse(line);
        let flow = parsed.flow().and_then(|it| it.resolve(&self.ends, &self.directory));
        match flow.map_err(NoAnswer::Skip).and_then(|flow| self.judge.judge(&flow)) {
            Ok(judgement) => self.names.write(writer, parsed.id(), &judgement)?,
            Err(NoAnswer::Skip(reason)) => {
                self.skipped = true;
                answer::write_skip(writer, parsed.id(), &reason)?;
            }
            Err(NoAnswer::Failed(error)) => return Err(error),
        }
        Ok(())
    }
}
