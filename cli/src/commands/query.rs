//! `weir query`: many flows, one JSON object a line, answered in order and in constant memory.

mod answer;
mod engine;
mod flow;
mod similar;

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use weir_model::directory::Directory;
use weir_model::eval::{Flow, Judgement};
use weir_policy::endpoint_lookup::EndpointLookup;
use weir_policy::possible_pods;

use super::CommandOutcome;
use crate::args::{GlobalArgs, QueryArgs, QueryFormat, World};
use crate::failure::with_hint;
use crate::page::{self, JsonLines};
use crate::read;
use answer::JsonNames;
use engine::{QueryEngine, QueryError};
use flow::{FlowLine, WrittenFlow};
use similar::SimilarNames;

/// Bytes in flight, each way.
const BUFFER: usize = 1 << 17;
/// Bytes of flows that are read before the first of them is answered. An engine that compiles only some endpoints can
/// then choose those that are asked about.
const BATCH: usize = 1 << 20;

pub(crate) fn run(global: &GlobalArgs, query: &QueryArgs) -> Result<CommandOutcome> {
    let QueryFormat::Jsonl = query.output;
    let Some(read) = read::read_valid(global, &query.input)? else { return Ok(CommandOutcome::Failed) };
    let source = open(&query.flows, read.stdin_read)?;
    let lookup = EndpointLookup { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let writer = BufWriter::with_capacity(BUFFER, JsonLines);
    let (directory, judge) = (Directory::new(&read.cluster), QueryEngine::new(query.engine, &read.cluster)?);
    let names = JsonNames::new(&read.cluster, &read.left_out);
    let similar = SimilarNames::default();
    QuerySession { lookup, directory, judge, names, similar, skipped: false, world: query.world }.answer_all(
        source,
        writer,
        global.quiet,
    )
}

/// The source of the flows. `waits` is set if a read may have to wait for another program.
struct FlowReader {
    reader: BufReader<Box<dyn std::io::Read>>,
    waits: bool,
}

fn open(path: &Path, stdin_read: bool) -> Result<FlowReader> {
    let (source, waits): (Box<dyn std::io::Read>, bool) = match path == Path::new("-") {
        true if stdin_read => {
            return Err(with_hint("standard input (`-`) is named twice", "it can contain either objects or flows"));
        }
        true => (Box::new(std::io::stdin().lock()), true),
        false => {
            let cannot = || format!("cannot read {}", path.display());
            let file = File::open(path).with_context(cannot)?;
            let waits = !file.metadata().with_context(cannot)?.is_file();
            (Box::new(file), waits)
        }
    };
    Ok(FlowReader { reader: BufReader::with_capacity(BUFFER, source), waits })
}

impl FlowReader {
    /// The next lines, in order; empty at the end. If the other program waits for an answer before it sends the next
    /// flow, it gets the answer before we wait for input.
    fn batch(&mut self) -> Result<Vec<u8>> {
        let mut lines = Vec::new();
        while lines.len() < BATCH {
            let read = self.reader.read_until(b'\n', &mut lines).context("cannot read the flows")?;
            if read == 0 || (self.waits && self.reader.buffer().is_empty()) {
                break;
            }
        }
        Ok(lines)
    }
}

/// The question of a line.
enum Question<'q, 'l> {
    /// A flow between ends of the input and addresses.
    Flow(Flow),
    /// A flow with an end that is described instead of named.
    Possible(&'q WrittenFlow<'l>),
    /// No flow: the reason.
    Bad(String),
}

struct QuerySession<'c> {
    lookup: EndpointLookup<'c>,
    directory: Directory<'c>,
    judge: QueryEngine<'c>,
    names: JsonNames,
    similar: SimilarNames,
    skipped: bool,
    world: World,
}

impl QuerySession<'_> {
    fn answer_all(
        mut self,
        mut source: FlowReader,
        mut writer: BufWriter<impl Write>,
        is_quiet: bool,
    ) -> Result<CommandOutcome> {
        let mut is_asked = false;
        loop {
            let batch = source.batch()?;
            if batch.is_empty() {
                break;
            }
            let lines = batch.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
            let lines: Vec<FlowLine<'_>> = lines.map(FlowLine::parse).collect();
            let mut questions = Vec::with_capacity(lines.len());
            for line in &lines {
                questions.push(self.question(line));
            }
            self.answer(&lines, &questions, &mut writer)?;
            writer.flush()?;
            is_asked |= !lines.is_empty();
        }
        if !is_asked && !is_quiet {
            page::print_to_stderr("note: the input has no flows, so nothing was asked");
        }
        Ok(if self.skipped { CommandOutcome::Findings } else { CommandOutcome::Clean })
    }

    fn question<'q, 'l>(&mut self, line: &'q FlowLine<'l>) -> Question<'q, 'l> {
        match line.flow() {
            Ok(flow) if flow.is_possible() => Question::Possible(flow),
            Ok(flow) => match flow.resolve(&self.lookup, &self.directory) {
                Ok(flow) => Question::Flow(flow),
                Err(reason) => Question::Bad(self.similar.add(reason, flow.names(), &self.lookup, &self.directory)),
            },
            Err(reason) => Question::Bad(reason),
        }
    }

    fn answer(
        &mut self,
        lines: &[FlowLine<'_>],
        questions: &[Question<'_, '_>],
        writer: &mut impl Write,
    ) -> Result<()> {
        let flow = |question: &Question<'_, '_>| match question {
            Question::Flow(flow) => Some(flow.clone()),
            Question::Possible(_) | Question::Bad(_) => None,
        };
        let flows: Vec<Flow> = questions.iter().filter_map(flow).collect();
        let (mut asked, mut ready) = (0, 0);
        for (line, question) in lines.iter().zip(questions) {
            let judged = match question {
                Question::Possible(flow) => {
                    let judged = self.judge_possible(flow);
                    judged.map_err(|reason| {
                        let names = flow.names();
                        QueryError::Skip(self.similar.add(reason, names, &self.lookup, &self.directory))
                    })
                }
                Question::Bad(reason) => Err(QueryError::Skip(reason.clone())),
                Question::Flow(flow) => {
                    if asked == ready {
                        ready += self.judge.prepare(flows.get(asked..).unwrap_or_default());
                    }
                    asked += 1;
                    self.judge.judge(flow)
                }
            };
            match judged {
                Ok(judgement) => self.names.write(writer, line.id(), &judgement)?,
                Err(QueryError::Skip(reason)) => {
                    self.skipped = true;
                    self.names.write_skip(writer, line.id(), &reason)?;
                }
                Err(QueryError::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Judges a flow between ends that are described instead of named.
    fn judge_possible(&self, flow: &WrittenFlow<'_>) -> Result<Judgement, String> {
        if self.world == World::Closed {
            return Err(possible_pods::CLOSED.to_owned());
        }
        if !matches!(self.judge, QueryEngine::Reference(_)) {
            return Err("only the engine `reference` judges pods that are not in the input".to_owned());
        }
        let (ends, target) = flow.possible_ends(&self.lookup, &self.directory)?;
        possible_pods::judge(self.lookup.cluster, ends, target.0, target.1)
    }
}
