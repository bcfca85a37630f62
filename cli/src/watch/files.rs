//! Objects from the files of a directory instead of an API server: `weir watch --files DIR`.
//!
//! ```text
//!  directory ──read──▶ contents ──FileSet──▶ ApiEvent ──▶ agent (the same as for an API server)
//! ```
//!
//! A thread reads the directory every second and sends the differences as the events that an API server would send, so
//! everything behind them is the same. Polling sees every change on every file system, also on those without inotify;
//! a file whose metadata have not changed is not read again.
//!
//! Invariants: no half-written, unreadable or briefly missing file takes anything out of force ([`set`]). The agent's
//! orders ([`FollowOrder`]) are obeyed as a server would, with the number of the order in each list.

mod directory;
mod set;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::AgentMessage;
use super::log::{Log, Value};
use super::metrics::Metrics;
use super::notices::Notice;
use super::scope::FollowOrder;
use directory::DirectoryReader;
use set::FileSet;

/// The time between two looks at the directory.
const POLL: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };

/// The kind under which the agent reports a file that cannot be read.
pub(super) const KIND: &str = "File";
/// The name under which an unreadable directory is reported.
pub(super) const DIRECTORY: &str = ".";

/// A request of the agent.
#[derive(Debug)]
pub(super) enum FileRequest {
    /// Follow other objects of a kind.
    Order(&'static str, FollowOrder),
    /// Send all objects of a kind again.
    List(&'static str),
}

/// The thread's options, and its connections.
pub(super) struct FileFeed {
    pub(super) directory: PathBuf,
    pub(super) node: String,
    /// Whether a generation is in force already. It then stays until every file has been read, because the
    /// objects that an unreadable file had for the previous agent are not known.
    pub(super) has_generation: bool,
    pub(super) requests: Receiver<FileRequest>,
    /// Events about objects. There is no server to send them to.
    pub(super) notices: tokio::sync::mpsc::Receiver<Notice>,
    pub(super) agent: Sender<AgentMessage>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Log,
}

impl FileFeed {
    /// Starts the thread. It ends when the agent ends.
    pub(super) fn start(self) -> Result<()> {
        let thread = thread::Builder::new().name("files".to_owned());
        thread.spawn(move || self.follow()).context("cannot start a thread")?;
        Ok(())
    }

    fn follow(mut self) {
        let mut set = FileSet::new(self.node.clone(), self.has_generation);
        let mut reader = DirectoryReader::new(self.directory.clone());
        let (mut due, mut broken) = (Instant::now(), BTreeSet::new());
        loop {
            let events = match self.requests.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(FileRequest::Order(kind, order)) => set.obey(kind, order),
                Ok(FileRequest::List(kind)) => set.list(kind),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    due = Instant::now() + POLL;
                    let events = set.update(reader.read());
                    set.undecided().for_each(|name| reader.read_again(name));
                    self.report(&mut set, &mut broken);
                    events
                }
            };
            while self.notices.try_recv().is_ok() {}
            let events: Vec<_> = events.into_iter().map(|event| (event, Instant::now())).collect();
            if !events.is_empty() && self.agent.send(AgentMessage::Api(events)).is_err() {
                return;
            }
        }
    }

    /// Logs the files that are gone, and counts the unreadable ones. The agent reports each of these; here only the end
    /// of it is logged.
    fn report(&self, set: &mut FileSet, broken: &mut BTreeSet<String>) {
        for (file, objects) in set.take_gone() {
            let fields = [("file", Value::from(file)), ("objects", Value::from(objects))];
            self.log.warn("the file is gone; its objects are deleted", &fields);
        }
        let now: BTreeSet<String> = set.unreadable().map(str::to_owned).collect();
        for file in broken.difference(&now) {
            self.log.info("the file can be read again, or is gone", &[("file", Value::from(file.as_str()))]);
        }
        self.metrics.set("weir_unreadable_files", &[], now.len() as f64);
        *broken = now;
    }
}
