//! One command in the pod of one agent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams, AttachedProcess};
use kube::{Client, Error};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, SimplexStream, WriteHalf};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::choice::AgentPod;
use super::lines::LineBuffer;
use super::room::AnswerRoom;
use super::{LONGEST_ANSWER, NodeEvent, failed};
use crate::failure::chain;

/// The bytes of a stream that wait in this process. The node's command waits when they are full, and the kernel counts
/// what its monitor has no time to read.
const BUFFER: usize = 64 << 10;
/// The bytes of standard error that are kept.
const MOST_STDERR: usize = 8 << 10;
/// How long a remote command has to end after its standard input has ended.
const ENDING: Duration = Duration::from_secs(5);
/// How long the last bytes of a connection that has ended can take.
const DRAINING: Duration = Duration::from_secs(1);

/// The arguments of the program in the agent's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteCommand(Vec<String>);

impl RemoteCommand {
    pub(super) fn new(pod: &AgentPod, arguments: &[&str]) -> Self {
        let mut words = vec![pod.program.clone()];
        words.extend(arguments.iter().map(|it| (*it).to_owned()));
        words.extend(pod.bpffs.iter().map(|it| format!("--bpffs={it}")));
        Self(words)
    }
}

/// How a remote command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RemoteEnd {
    /// `None` if the connection ended before the command.
    pub(super) code: Option<i32>,
    pub(super) stderr: String,
}

/// A running command.
struct RemoteProcess {
    stdin: Option<WriteHalf<SimplexStream>>,
    out: ReadHalf<SimplexStream>,
    stderr: JoinHandle<String>,
    status: Pin<Box<dyn Future<Output = Option<Status>> + Send>>,
    /// The exit code, once the connection has ended; `None` in it if the command had not ended.
    code: Option<Option<i32>>,
    /// Owns the connection, which ends when it is dropped.
    _process: AttachedProcess,
}

impl RemoteProcess {
    async fn start(client: &Client, pod: &AgentPod, command: &RemoteCommand) -> Result<Self, String> {
        let parameters = AttachParams::default().container(&pod.container).stdin(true).max_stdout_buf_size(BUFFER);
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        let started = api.exec(&pod.name, command.0.clone(), &parameters).await;
        let mut process = started.map_err(|error| match error {
            Error::Api(status) => format!("the API server answered {}: {}", status.code, status.message),
            error => chain(&error),
        })?;
        let (stdin, stderr) = (process.stdin(), tokio::spawn(stderr_of(process.stderr())));
        let (out, status) = process.stdout().zip(process.take_status()).ok_or("no connection")?;
        Ok(Self { stdin, out, stderr, status: Box::pin(status), code: None, _process: process })
    }

    /// The next bytes of standard output; 0 after the last ones.
    // The status ends a reading too: when the connection breaks, kube-client drops its end of the pipe without closing
    // it, and a reading of the pipe alone would wait for ever.
    async fn read(&mut self, buffer: &mut [u8]) -> usize {
        while self.code.is_none() {
            tokio::select! {
                biased;
                read = self.out.read(buffer) => return read.unwrap_or(0),
                status = &mut self.status => self.code = Some(status.and_then(|it| exit_code(&it))),
            }
        }
        timeout(DRAINING, self.out.read(buffer)).await.ok().and_then(Result::ok).unwrap_or(0)
    }

    /// Ends the command's standard input, with which a well-behaved command ends.
    async fn end_input(&mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            _ = stdin.shutdown().await;
        }
    }

    async fn end(mut self) -> RemoteEnd {
        let code = match self.code {
            Some(code) => code,
            None => timeout(ENDING, &mut self.status).await.ok().flatten().and_then(|it| exit_code(&it)),
        };
        let stderr = match timeout(DRAINING, &mut self.stderr).await {
            Ok(text) => text.unwrap_or_default(),
            Err(_) => String::new(),
        };
        RemoteEnd { code, stderr }
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        self.stderr.abort();
    }
}

/// Runs a command that prints one JSON document; returns it with the exit code.
pub(super) async fn answer(
    client: &Client,
    pod: &AgentPod,
    command: &RemoteCommand,
    room: &AnswerRoom,
    limit: Duration,
) -> Result<(Value, i32), String> {
    let silent = |_| format!("no answer within {} s", limit.as_secs());
    timeout(limit, whole_answer(client, pod, command, room)).await.map_err(silent)?
}

async fn whole_answer(
    client: &Client,
    pod: &AgentPod,
    command: &RemoteCommand,
    room: &AnswerRoom,
) -> Result<(Value, i32), String> {
    let mut process = RemoteProcess::start(client, pod, command).await?;
    let (mut text, mut buffer, mut taken) = (Vec::new(), vec![0; BUFFER], room.take_none());
    loop {
        match process.read(&mut buffer).await {
            0 => break,
            count => {
                taken.more(count)?;
                text.extend_from_slice(buffer.get(..count).unwrap_or_default());
            }
        }
        if text.len() > LONGEST_ANSWER {
            return Err(format!("its answer has more than {} MiB", LONGEST_ANSWER >> 20));
        }
    }
    let end = process.end().await;
    match (serde_json::from_slice::<Value>(&text), end.code) {
        // Exit code 1 are findings, as on the node itself.
        (Ok(value), Some(code @ (0 | 1))) => {
            taken.keep();
            Ok((value, code))
        }
        (Err(_), Some(0 | 1)) => Err("its answer is not JSON".to_owned()),
        _ => Err(failed(&end)),
    }
}

/// The beginning of standard error. The rest is read, so that the command does not wait.
async fn stderr_of(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let room = MOST_STDERR.saturating_sub(text.len()).min(count);
        text.extend_from_slice(buffer.get(..room).unwrap_or_default());
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The exit code in the status that ends the connection.
fn exit_code(status: &Status) -> Option<i32> {
    if status.status.as_deref() == Some("Success") {
        return Some(0);
    }
    let causes = status.details.as_ref()?.causes.as_deref()?;
    let code = causes.iter().find(|it| it.reason.as_deref() == Some("ExitCode"))?;
    code.message.as_deref()?.parse().ok()
}

/// Follows the command on one node.
pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) command: RemoteCommand,
    pub(super) pod: AgentPod,
    pub(super) node: String,
    pub(super) limit: Duration,
    pub(super) longest: usize,
    pub(super) events: mpsc::Sender<NodeEvent>,
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) stopped: watch::Receiver<bool>,
    pub(super) turns: Arc<Semaphore>,
}

impl Follower {
    /// Follows until the command ends, and reports its end.
    pub(super) async fn run(mut self) {
        let ended = self.follow().await;
        // The end is never dropped: it waits until there is room for it.
        _ = self.events.send(NodeEvent::Ended(self.node.clone(), ended)).await;
    }

    async fn follow(&mut self) -> Result<(), String> {
        let mut process = {
            let _turn = self.turns.acquire().await;
            let silent = |_| format!("no connection within {} s", self.limit.as_secs());
            let start = RemoteProcess::start(&self.client, &self.pod, &self.command);
            tokio::select! {
                started = timeout(self.limit, start) => started.map_err(silent)??,
                _ = self.stopped.wait_for(|it| *it) => return Err("it had not answered yet".to_owned()),
            }
        };
        let (mut lines, mut buffer) = (LineBuffer::new(self.longest), vec![0; BUFFER]);
        let mut stopped = self.stopped.clone();
        let mut is_stopped = *stopped.borrow_and_update();
        let mut ends_by = None;
        loop {
            if is_stopped {
                process.end_input().await;
            }
            // For all of the rest, and not for each read: a node that never stops sending must not keep us.
            let ends_by = is_stopped.then(|| *ends_by.get_or_insert_with(|| Instant::now() + ENDING));
            let patience = ends_by.map_or(self.limit, |it| it.saturating_duration_since(Instant::now()));
            if patience.is_zero() {
                return Err("its monitor did not end when it was asked to".to_owned());
            }
            tokio::select! {
                read = timeout(patience, process.read(&mut buffer)) => match read {
                    Ok(0) => break,
                    Ok(count) => lines.add(buffer.get(..count).unwrap_or_default(), |it| self.send(&it)),
                    Err(_) if is_stopped => return Err("its monitor did not end when it was asked to".to_owned()),
                    Err(_) => return Err(format!("no sign of life for {} s", self.limit.as_secs())),
                },
                // An error means that the command that prints is over.
                changed = stopped.changed(), if !is_stopped => is_stopped = changed.is_err() || *stopped.borrow(),
            }
        }
        lines.rest().iter().for_each(|it| self.send(it));
        match process.end().await {
            RemoteEnd { code: Some(0), .. } => Ok(()),
            end => Err(failed(&end)),
        }
    }

    /// Gives a line to the printer, or counts it if the printer is behind.
    fn send(&self, line: &str) {
        if line.is_empty() {
            return;
        }
        let node = self.node.clone();
        let event = match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => NodeEvent::Line(node, value),
            _ => NodeEvent::Rubbish(node, line.to_owned()),
        };
        if self.events.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
