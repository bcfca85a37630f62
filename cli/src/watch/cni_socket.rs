//! The socket on which `weir-cni` asks whether policy is in force on a new pod. Each question has its own thread,
//! because there are few at a time.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::AgentMessage;
use crate::cni::wire::{self, CniAnswer, CniQuestion, read_line, write_line};

/// The time in which a client must send its question, and the limit for writing the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most questions at a time. A node has fewer pods.
const MOST: usize = 512;
/// The agent answers within the wait of the question. If its thread hangs, the socket answers this much later.
const MARGIN: Duration = Duration::from_millis(100);

/// A question of the CNI plug-in that waits for its answer.
#[derive(Debug)]
pub(crate) struct PendingQuestion {
    pub(crate) question: CniQuestion,
    pub(crate) since: Instant,
    pub(crate) reply: Sender<CniAnswer>,
}

/// The socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct CniSocket {
    path: PathBuf,
}

impl Drop for CniSocket {
    fn drop(&mut self) {
        // A file that stays does no harm: the next agent replaces it.
        _ = fs::remove_file(&self.path);
    }
}

/// Listens for as long as the process lives.
pub(crate) fn listen(path: &Path, agent: Sender<AgentMessage>) -> Result<CniSocket> {
    let listener = bind(path).with_context(|| format!("cannot listen on {} (--cni-socket)", path.display()))?;
    let listening = thread::Builder::new().name("cni".to_owned()).spawn(move || {
        let asking = Arc::new(());
        for stream in listener.incoming().flatten() {
            // The loop holds one reference itself. A question over the limit fails, as it does without an agent.
            if Arc::strong_count(&asking) > MOST {
                continue;
            }
            let (agent, one) = (agent.clone(), Arc::clone(&asking));
            // An error means that the plug-in has disconnected, or that no thread could be started. In the second case,
            // the plug-in reads the end of the stream.
            _ = thread::Builder::new().name("cni question".to_owned()).spawn(move || {
                _ = serve(stream, &agent);
                drop(one);
            });
        }
    });
    listening.context("cannot start a thread")?;
    Ok(CniSocket { path: path.to_owned() })
}

/// Binds the socket, for the agent's user (root) alone. Replaces the file that a previous agent left.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve(mut stream: UnixStream, agent: &Sender<AgentMessage>) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer: CniAnswer = match wire::parse_question(&read_line(&stream, PATIENCE)?) {
        Ok(question) => ask(question, agent),
        Err(why) => Err(why),
    };
    write_line(&mut stream, &answer)
}

fn ask(question: CniQuestion, agent: &Sender<AgentMessage>) -> CniAnswer {
    let (reply, answer) = channel();
    let wait = question.wait + MARGIN;
    let pending = PendingQuestion { question, since: Instant::now(), reply };
    match agent.send(AgentMessage::Question(pending)) {
        Ok(()) => answer.recv_timeout(wait).unwrap_or_else(|_| Err("the agent's thread does not answer".to_owned())),
        Err(_) => Err("the agent has ended".to_owned()),
    }
}
