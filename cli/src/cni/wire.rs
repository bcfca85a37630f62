//! What plug-in and agent say to each other: one line of JSON each way, over a socket of the node.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// No question is longer.
pub(super) const LONGEST: u64 = 1 << 20;
/// The agent says why it could not before the plug-in stops to listen.
const MARGIN: Duration = Duration::from_millis(250);
/// How often an agent is looked for that is not there.
const AGAIN: Duration = Duration::from_millis(100);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verb {
    /// Answer when policy is in force on it.
    Add,
    /// Answer at once whether it is.
    Check,
    /// Answer at once whether the agent is ready.
    Status,
}

/// Whom it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Not every runtime says it.
    pub(crate) uid: Option<String>,
}

impl Pod {
    /// `namespace/name`
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) verb: Verb,
    pub(crate) pod: Pod,
    /// On the host's side, the likeliest first.
    pub(crate) interfaces: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
    /// So long is waited for the answer.
    pub(crate) wait: Duration,
}

impl Question {
    pub(super) fn status(wait: Duration) -> Self {
        Self { verb: Verb::Status, pod: Pod::default(), interfaces: Vec::new(), addresses: Vec::new(), wait }
    }
}

/// The generation in force, or why there is none.
pub(crate) type Answer = Result<u32, String>;

/// Asks the agent, and waits for the answer; for an agent that is not there too.
pub(super) fn ask(socket: &Path, question: &Question) -> io::Result<Answer> {
    let until = Instant::now() + question.wait;
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if question.verb != Verb::Add || Instant::now() + AGAIN >= until => return Err(error),
            Err(_) => std::thread::sleep(AGAIN),
        }
    };
    let left = until.saturating_duration_since(Instant::now()).max(AGAIN);
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))?;
    let question = Question { wait: left.saturating_sub(MARGIN), ..question.clone() };
    say(&mut stream, &question)?;
    hear(&stream)
}

/// A line of it.
pub(crate) fn say(stream: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    stream.write_all((serde_json::to_string(what)? + "\n").as_bytes())
}

/// The other end's line.
pub(crate) fn hear<T: for<'t> Deserialize<'t>>(stream: &UnixStream) -> io::Result<T> {
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end said nothing"));
    }
    Ok(serde_json::from_str(&line)?)
}
