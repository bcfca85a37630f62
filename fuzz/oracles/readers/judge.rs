//! Kubernetes' own readers: a program in Go (`xtask/judge/main.go`) that answers how they read a text.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use weir_model::labels;
use weir_objects::address::{Parsed, Quirk, parse_address, parse_cidr};
use weir_objects::decode::InputKind;
use weir_objects::k8s::{Body, Labels};

use super::{Reading, Tally, Tree, known, our_json, our_yaml, serde};
use crate::oracles::decoding;

/// The kind of text in a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first document of a YAML text, by `sigs.k8s.io/yaml`.
    Yaml,
    /// A JSON value, by `k8s.io/apimachinery`.
    Json,
    /// A CIDR, by `k8s.io/utils/net`.
    Cidr,
    /// An address, by `k8s.io/utils/net`.
    Address,
    /// A prefix, by Go's `net/netip`.
    Prefix,
    /// A label selector and labels, by `k8s.io/apimachinery`.
    Selector,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The value.
    Accepted(String),
    /// The value of a document, after which something unreadable follows.
    WithRest(String),
    /// The reason.
    Refused(String),
}

/// The running program.
#[derive(Debug)]
pub struct Judge {
    child: Child,
    questions: BufWriter<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Judge {
    /// Starts the program.
    ///
    /// # Errors
    /// Fails if it cannot be started.
    pub fn start(program: &Path) -> io::Result<Self> {
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (questions, answers) = child.stdin.take().zip(child.stdout.take()).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, questions: BufWriter::new(questions), answers: BufReader::new(answers) })
    }

    /// Asks about several texts.
    ///
    /// # Errors
    /// Fails if the program has ended.
    pub fn ask(&mut self, kind: Kind, texts: &[String]) -> io::Result<Vec<Answer>> {
        let (questions, answers) = (&mut self.questions, &mut self.answers);
        // Two threads, because either pipe may be full.
        std::thread::scope(|scope| {
            let asked = scope.spawn(move || write(questions, kind, texts));
            let answers = texts.iter().map(|_| read(answers)).collect();
            asked.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).and(answers)
        })
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn write(questions: &mut impl Write, kind: Kind, texts: &[String]) -> io::Result<()> {
    let kind = match kind {
        Kind::Yaml => b'y',
        Kind::Json => b'j',
        Kind::Cidr => b'c',
        Kind::Address => b'a',
        Kind::Prefix => b'p',
        Kind::Selector => b's',
    };
    for text in texts {
        questions.write_all(&[kind])?;
        questions.write_all(&(text.len() as u32).to_le_bytes())?;
        questions.write_all(text.as_bytes())?;
    }
    questions.flush()
}

fn read(answers: &mut impl Read) -> io::Result<Answer> {
    let mut head = [0; 5];
    answers.read_exact(&mut head)?;
    let [status, length @ ..] = head;
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    answers.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match status {
        b'y' => Ok(Answer::Accepted(text)),
        b'r' => Ok(Answer::WithRest(text)),
        _ => Ok(Answer::Refused(text)),
    }
}

/// Compares the first document of a YAML text.
///
/// # Errors
/// Fails if the readers differ without a known reason.
pub fn yaml_agrees(text: &str, answer: &Answer, tally: &mut Tally) -> Result<(), String> {
    let mut ours = our_yaml(text).into_iter();
    let ours = ours.next().unwrap_or(Ok(Tree::Null));
    tally.compare(text, &ours, &value(answer), known::to_kubectl(text, &ours, answer))
}

/// Compares a JSON value.
///
/// # Errors
/// Fails if the readers differ without a known reason.
pub fn json_agrees(text: &str, answer: &Answer, tally: &mut Tally) -> Result<(), String> {
    let (ours, theirs) = (our_json(text), value(answer));
    tally.compare(text, &ours, &theirs, None)
}

fn value(answer: &Answer) -> Reading {
    match answer {
        Answer::Accepted(json) | Answer::WithRest(json) => serde::json(json),
        Answer::Refused(error) => Err(error.clone()),
    }
}

/// Compares a CIDR, as an API server reads it.
///
/// # Errors
/// Fails if the readers differ.
pub fn cidr_agrees(text: &str, answer: &Answer, tally: &mut Tally) -> Result<(), String> {
    let ours = parse_cidr(text).map(|cidr| cidr.value.to_string());
    tally.compare(text, &printed(ours), &text_of(answer), None)
}

/// Compares an address, as an API server reads it.
///
/// # Errors
/// Fails if the readers differ.
pub fn address_agrees(text: &str, answer: &Answer, tally: &mut Tally) -> Result<(), String> {
    let ours = parse_address(text).map(|address| address.value.to_string());
    tally.compare(text, &printed(ours), &text_of(answer), None)
}

/// Compares a prefix, as a strict reader reads it: without leading zeros. IPv4-mapped prefixes stay as they are in
/// Go, so these are not compared.
///
/// # Errors
/// Fails if the readers differ.
pub fn prefix_agrees(text: &str, answer: &Answer, tally: &mut Tally) -> Result<(), String> {
    let ours = match parse_cidr(text) {
        Some(Parsed { quirk: Some(Quirk::Ipv4Mapped), .. }) => return Ok(()),
        Some(Parsed { quirk: Some(Quirk::LeadingZeros), .. }) | None => None,
        Some(Parsed { value, .. }) => Some(value.to_string()),
    };
    tally.compare(text, &printed(ours), &text_of(answer), None)
}

fn printed(ours: Option<String>) -> Reading {
    ours.map(Tree::Str).ok_or_else(|| "no address".to_owned())
}

fn text_of(answer: &Answer) -> Reading {
    match answer {
        Answer::Accepted(text) | Answer::WithRest(text) => Ok(Tree::Str(text.clone())),
        Answer::Refused(error) => Err(error.clone()),
    }
}

/// Compares whether a selector is valid, and whether it matches labels.
///
/// # Errors
/// Fails if the readers differ.
pub fn selector_agrees(text: &str, answer: &Answer, tally: &mut Tally) -> Result<(), String> {
    let ours = selects(text).map(|it| it.to_string());
    tally.compare(text, &printed(ours), &text_of(answer), None)
}

fn selects(question: &str) -> Option<bool> {
    let question: Value = serde_json::from_str(question).ok()?;
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"},
        "spec": {"podSelector": question["selector"], "policyTypes": ["Ingress"]},
    });
    let objects = decoding::read(policy.to_string().as_bytes(), InputKind::Manifest)?;
    let [object] = objects.as_slice() else { return None };
    let Body::NetworkPolicy(policy) = &object.body else { return None };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels: Labels =
        question["labels"].as_object()?.iter().map(|(key, value)| (key.clone(), text(value))).collect();
    Some(labels::matches(&policy.pod_selector, &labels))
}
