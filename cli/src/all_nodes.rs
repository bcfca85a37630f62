//! Questions to the agents of many nodes, through the API server.
//!
//! Problem: the state of a node is in its kernel, and an agent opens no port for it. Strategy: the command runs
//! `weir … -o json` in the agent's pod on each node (`pods/exec`, over a WebSocket), as `kubectl exec` does, and merges
//! the answers. Everything that a node sends is text from outside: it is parsed as JSON and printed through the page.
//!
//! Invariants: each chosen node either has an answer or is named with the reason why it has none. A node cannot make the
//! command use more memory than the limits here. The remote command ends when its standard input ends, so it does not
//! outlive the connection.

mod choice;
mod exec;
mod lines;
mod room;
mod summary;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::api_config;
use crate::args::AgentArgs;
use crate::failure::with_hint;

pub(crate) use summary::{NodeSummary, missing_fields};

use choice::ChosenNode;
use exec::{RemoteCommand, RemoteEnd};
use room::AnswerRoom;

/// The number of nodes that are asked at the same time. Each costs the API server a connection to a kubelet.
const MOST_AT_ONCE: usize = 16;
/// The longest answer of a node in bytes: about 400,000 flows. A usual answer has less than 1 MiB.
const LONGEST_ANSWER: usize = 128 << 20;
/// The largest sum of the answers of all nodes in bytes. As JSON values they need several times as much memory.
const LONGEST_ANSWERS: usize = 256 << 20;
/// The longest line of a monitor. An event has less than 1 KiB.
const LONGEST_EVENT: usize = 8 << 10;
/// The number of events that wait for the terminal. When they are too many, further ones are counted as lost.
const MOST_WAITING: usize = 10_000;
const HINT: &str = "the cluster is reached with the kubeconfig that kubectl uses: `kubectl get nodes` must work";

/// A node's answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeAnswer {
    pub(crate) node: String,
    pub(crate) value: Value,
    /// The exit code of the command on the node.
    pub(crate) code: i32,
}

/// Asks the chosen nodes a question that has one JSON document as its answer. The answers are sorted by node.
pub(crate) fn ask(arguments: &AgentArgs, command: &[&str]) -> Result<(Vec<NodeAnswer>, NodeSummary)> {
    runtime()?.block_on(async {
        let Fleet { client, chosen, mut summary } = Fleet::find(arguments).await?;
        let limit = Duration::from_secs(arguments.node_timeout);
        let turns = Arc::new(Semaphore::new(MOST_AT_ONCE));
        let room = AnswerRoom::new(LONGEST_ANSWERS);
        let mut asked = JoinSet::new();
        for ChosenNode { node, pod } in chosen {
            let (client, turns, room) = (client.clone(), Arc::clone(&turns), room.clone());
            let command = RemoteCommand::new(&pod, command);
            asked.spawn(async move {
                let _turn = turns.acquire().await;
                let answer = exec::answer(&client, &pod, &command, &room, limit).await;
                (node, answer)
            });
        }
        let mut answers = Vec::new();
        while let Some(joined) = asked.join_next().await {
            let (node, answer) = joined.context("the question to a node was not finished")?;
            match answer {
                Ok((value, code)) => {
                    summary.answered.insert(node.clone());
                    answers.push(NodeAnswer { node, value, code });
                }
                Err(why) => summary.fail(&node, why),
            }
        }
        answers.sort_by(|a, b| a.node.cmp(&b.node));
        Ok((answers, summary))
    })
}

/// Something that a node sent while it is followed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeEvent {
    /// A line of JSON.
    Line(String, Value),
    /// A line that is not JSON, or a part of a line that is too long.
    Rubbish(String, String),
    /// This node's command has ended.
    Ended(String, Result<(), String>),
}

/// The events of all followed nodes.
pub(crate) struct Followed {
    events: mpsc::Receiver<NodeEvent>,
    dropped: Arc<std::sync::atomic::AtomicU64>,
    stop: watch::Sender<bool>,
    nodes: Vec<String>,
    left: usize,
    tasks: JoinSet<()>,
}

impl Followed {
    /// The nodes that are followed.
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The next event; `None` if every node has ended.
    pub(crate) async fn next(&mut self) -> Option<NodeEvent> {
        if self.left == 0 {
            return None;
        }
        let event = self.events.recv().await?;
        if matches!(event, NodeEvent::Ended(..)) {
            self.left -= 1;
        }
        Some(event)
    }

    /// The number of events that were dropped since the last call, because the terminal was slower than the nodes.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, std::sync::atomic::Ordering::Relaxed)
    }

    /// Ends the remote commands. Their last events and their ends can still be read.
    pub(crate) fn stop(&self) {
        _ = self.stop.send(true);
    }

    /// Waits until the connections are closed.
    pub(crate) async fn close(mut self) {
        self.events.close();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Runs a command on the chosen nodes until it ends or is stopped. `work` gets the events that they send.
pub(crate) fn follow<T>(
    arguments: &AgentArgs,
    command: &[&str],
    work: impl AsyncFnOnce(Followed, NodeSummary) -> Result<T>,
) -> Result<T> {
    runtime()?.block_on(async {
        let Fleet { client, chosen, summary } = Fleet::find(arguments).await?;
        let limit = Duration::from_secs(arguments.node_timeout);
        raise_descriptor_limit();
        let (sender, events) = mpsc::channel(MOST_WAITING);
        let (stop, stopped) = watch::channel(false);
        let dropped = Arc::default();
        let nodes: Vec<String> = chosen.iter().map(|it| it.node.clone()).collect();
        let (mut tasks, left) = (JoinSet::new(), chosen.len());
        let turns = Arc::new(Semaphore::new(MOST_AT_ONCE));
        for ChosenNode { node, pod } in chosen {
            let follower = exec::Follower {
                client: client.clone(),
                command: RemoteCommand::new(&pod, command),
                pod,
                node,
                limit,
                longest: LONGEST_EVENT,
                events: sender.clone(),
                dropped: Arc::clone(&dropped),
                stopped: stopped.clone(),
                turns: Arc::clone(&turns),
            };
            tasks.spawn(follower.run());
        }
        work(Followed { events, dropped, stop, nodes, left, tasks }, summary).await
    })
}

/// Raises the soft limit of descriptors to the hard one: each followed node is a connection, and the soft limit is often
/// 1,024. A node for which there is still none is named with that reason.
fn raise_descriptor_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")
}

/// The nodes that can be asked, and those that cannot.
struct Fleet {
    client: Client,
    chosen: Vec<ChosenNode>,
    summary: NodeSummary,
}

impl Fleet {
    async fn find(arguments: &AgentArgs) -> Result<Self> {
        let config = api_config::read(arguments.kubeconfig.as_deref(), arguments.context.as_deref(), HINT).await?;
        let client = Client::try_from(config).context("cannot connect to the API server")?;
        let (chosen, summary) = choice::choose(&client, arguments).await?;
        if chosen.is_empty() && summary.failed.is_empty() {
            let hint = "`kubectl get nodes` lists the nodes";
            return Err(with_hint("no node was chosen: the cluster has no node with these labels", hint));
        }
        Ok(Self { client, chosen, summary })
    }
}

/// A part of a node's answer, with the node first.
pub(crate) fn with_node(node: &str, value: Value) -> Value {
    let mut named = Map::new();
    named.insert("node".to_owned(), json!(node));
    if let Value::Object(fields) = value {
        named.extend(fields.into_iter().filter(|(name, _)| name != "node"));
    }
    Value::Object(named)
}

/// The end of a remote command, as an error for people if it failed.
fn failed(end: &RemoteEnd) -> String {
    let said = end.stderr.lines().map(str::trim).find(|it| !it.is_empty()).unwrap_or("it printed no error");
    let said = said.strip_prefix("error: ").unwrap_or(said);
    match end.code {
        _ if said.contains("unexpected argument") || said.contains("unrecognized subcommand") => {
            format!("its agent is older than this weir: {said}")
        }
        Some(code) => format!("{said} (exit code {code})"),
        None => format!("the connection ended: {said}"),
    }
}
