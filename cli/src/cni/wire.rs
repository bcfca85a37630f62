//! The protocol between plug-in and agent: one line of JSON each way, over a socket of the node.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The most bytes in one line.
pub(super) const LONGEST: u64 = 1 << 20;
/// The longest wait that a question may ask for. Container runtimes give up earlier.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// The most interfaces, and the most addresses, in one question.
const MOST: usize = 64;
/// The agent gives up this much earlier than the plug-in, so that its reason still arrives.
const MARGIN: Duration = Duration::from_millis(250);
/// The interval between two attempts to connect while no agent listens.
const RETRY: Duration = Duration::from_millis(100);

/// The kind of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verb {
    /// Answer when policy is in force on the pod.
    Add,
    /// Answer at once whether policy is in force on the pod.
    Check,
    /// Answer at once whether the agent is ready.
    Status,
}

/// The pod that a question is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CniPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` if the runtime does not pass it on.
    pub(crate) uid: Option<String>,
}

impl CniPod {
    /// `namespace/name`
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A question of the plug-in to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CniQuestion {
    pub(crate) verb: Verb,
    pub(crate) pod: CniPod,
    /// The interfaces on the host's side, the likeliest first.
    pub(crate) interfaces: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
    /// How long the plug-in waits for the answer.
    pub(crate) wait: Duration,
}

impl CniQuestion {
    pub(super) fn status(wait: Duration) -> Self {
        Self { verb: Verb::Status, pod: CniPod::default(), interfaces: Vec::new(), addresses: Vec::new(), wait }
    }
}

/// The number of the generation in force, or the reason for a negative answer.
pub(crate) type CniAnswer = Result<u32, String>;

/// Asks the agent, and waits for the answer. [`Verb::Add`] also waits for an agent that does not listen yet.
pub(super) fn ask(socket: &Path, question: &CniQuestion) -> io::Result<CniAnswer> {
    let until = Instant::now() + question.wait;
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if question.verb != Verb::Add || Instant::now() + RETRY >= until => return Err(error),
            Err(_) => std::thread::sleep(RETRY),
        }
    };
    let left = until.saturating_duration_since(Instant::now()).max(RETRY);
    stream.set_write_timeout(Some(left))?;
    let question = CniQuestion { wait: left.saturating_sub(MARGIN), ..question.clone() };
    write_line(&mut stream, &question)?;
    Ok(serde_json::from_str(&read_line(&stream, left)?)?)
}

/// Writes a message as one line of JSON.
pub(crate) fn write_line(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all((serde_json::to_string(message)? + "\n").as_bytes())
}

/// Reads one line from the other end. The time limit is for the whole line. With a limit for each read, an end that
/// sends a byte now and then could keep the call from ending.
pub(crate) fn read_line(stream: &UnixStream, patience: Duration) -> io::Result<String> {
    let (started, mut line) = (Instant::now(), Vec::new());
    let mut reader = BufReader::new(stream);
    while !line.ends_with(b"\n") {
        let left = patience.saturating_sub(started.elapsed());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let room = reader.fill_buf()?;
        let end = room.iter().position(|byte| *byte == b'\n').map_or(room.len(), |at| at + 1);
        line.extend_from_slice(&room[..end]);
        if end == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed before the end of the line",
            ));
        }
        if line.len() as u64 > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
        }
        reader.consume(end);
    }
    String::from_utf8(line).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the line is not UTF-8"))
}

/// Reads a question and checks that its values are bounded, because the agent computes with its times and logs its
/// names.
pub(crate) fn parse_question(line: &str) -> Result<CniQuestion, String> {
    let question: CniQuestion = serde_json::from_str(line).map_err(|error| format!("not a question: {error}"))?;
    question.check()?;
    Ok(question)
}

impl CniQuestion {
    fn check(&self) -> Result<(), String> {
        let Self { verb, pod, interfaces, addresses, wait } = self;
        if *wait > LONGEST_WAIT {
            return Err(format!("the wait is longer than {} s", LONGEST_WAIT.as_secs()));
        }
        if interfaces.len() > MOST || addresses.len() > MOST {
            return Err(format!("there are more than {MOST} interfaces or addresses"));
        }
        if let Some(name) = interfaces.iter().find(|name| !is_interface(name)) {
            return Err(format!("{name:?} is not a valid interface name"));
        }
        let is_uid = |uid: &String| uid.len() <= 128 && uid.bytes().all(|it| it.is_ascii_graphic());
        let names_pod = is_name(&pod.namespace, 63) && is_name(&pod.name, 253) && pod.uid.iter().all(is_uid);
        if *verb != Verb::Status && !names_pod {
            return Err(format!("{:?} is not a valid pod name", pod.path()));
        }
        Ok(())
    }
}

/// Follows the kernel's `dev_valid_name`, but accepts only printable ASCII.
fn is_interface(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    (1..16).contains(&name.len()) && !matches!(name, "." | "..") && name.bytes().all(is_fine)
}

/// Whether a name has only characters that the API server accepts in names, and is not too long.
fn is_name(name: &str, longest: usize) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    (1..=longest).contains(&name.len()) && name.bytes().all(is_fine)
}

#[cfg(test)]
mod tests;
