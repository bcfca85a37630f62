//! The agent of a node: watches the API server or a directory of files, and keeps policy in force on the pods of the node.
//!
//! ```text
//!  API ──follow──▶ Event ──agent──▶ generation ──enforce──▶ kernel        serve ◀── metrics
//!  or    (tokio)           (thread)                                       (thread)
//!  directory ──files──▶ Event
//!        (thread)
//! ```
//!
//! Invariant: however the agent ends (by a signal, a bug, or a kill), the policy that is in force stays in force.

mod agent;
mod annotate;
mod answer_lines;
mod api_feed;
mod api_health;
mod backoff;
mod cni_socket;
pub(crate) mod cursor;
pub(crate) mod discover;
pub(crate) mod enforce;
mod file_stamp;
mod files;
mod follow;
mod host_changes;
mod interfaces;
mod listed;
pub(crate) mod log;
mod metrics;
mod notices;
mod other_policies;
mod partial;
pub(crate) mod pod_uids;
pub(crate) mod probe;
pub(crate) mod resources;
mod scope;
pub(crate) mod serve;
mod supervise;
pub(crate) mod uninstall;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use weir_codegen::compile::Budget;
use weir_ebpf::target::Target;
use weir_model::Assumptions;

pub(crate) use agent::UnknownPods;
pub(crate) use agent::pace::CpuShare;
use agent::{DRY_RUN, NodeAgent, Reports, Setup};
use annotate::PublishedGeneration;
use api_feed::{AgentRequests, ApiFeed, FeedContext};
use discover::{HostPaths, HostReader};
use enforce::Enforce;
use files::{FileFeed, FileRequest};
use log::{Log, Value};
use metrics::Metrics;
use notices::Notices;
use scope::WatchScope;
use serve::{Audience, PageAddress, Pages};

/// If the agent's thread does not beat for this long, the agent counts as not alive.
const LONGEST_STEP: Duration = Duration::from_secs(120);
/// The longest time that the thread waits between two beats.
const IDLE: Duration = Duration::from_secs(10);
/// The most Kubernetes Events that wait to be sent.
const NOTICES: usize = 64;

/// The agent's options, from the command line.
pub(crate) struct WatchOptions<'o> {
    pub(crate) kubeconfig: Option<&'o Path>,
    /// The directory with the objects, instead of an API server.
    pub(crate) files: Option<&'o Path>,
    pub(crate) node: String,
    pub(crate) pages: PageOptions,
    pub(crate) cni: CniOptions,
    pub(crate) annotate_pods: bool,
    pub(crate) unknown_pods: UnknownPods,
    pub(crate) assume: Assumptions,
    pub(crate) budgets: Vec<(Budget, u64)>,
    pub(crate) cpu: CpuShare,
    pub(crate) log: Log,
}

/// The addresses at which the agent serves pages.
pub(crate) struct PageOptions {
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) health: Option<PageAddress>,
}

/// The paths of the CNI plug-in and of CNI results.
pub(crate) struct CniOptions {
    /// The socket on which `weir-cni` asks the agent.
    pub(crate) socket: Option<PathBuf>,
    /// libcni's result cache.
    pub(crate) results: PathBuf,
}

/// A message to the agent's thread, by its source.
#[derive(Debug)]
pub(crate) enum AgentMessage {
    /// Events of the API, each with the time at which it arrived.
    Api(Vec<(cursor::ApiEvent, Instant)>),
    /// A question of the CNI plug-in.
    Question(cni_socket::PendingQuestion),
    /// The kernel notified the agent of a change on this host.
    HostChanged(host_changes::HostNotification),
    /// The agent must stop.
    Stop,
}

/// Runs until a signal says to stop.
pub(crate) fn run(options: WatchOptions<'_>, mut enforce: impl Enforce + Send + 'static) -> Result<()> {
    let (metrics, log) = (Arc::new(Metrics::default()), options.log);
    metrics.set_build_info();
    if let Err(error) = weir_runtime::sys::raise_descriptor_limit() {
        log.warn("cannot raise the limit of open file descriptors", &[("error", Value::from(error.to_string()))]);
    }
    let pulse = Arc::new(Pulse::new());
    let pages = |audience| {
        let pulse = Arc::clone(&pulse);
        Pages { metrics: Arc::clone(&metrics), is_alive: Arc::new(move || pulse.is_alive()), audience }
    };
    if let Some(address) = options.pages.health {
        serve::serve(address, pages(Audience::Host), log).context("--health-addr")?;
    }
    if let Some(address) = options.pages.metrics {
        serve::serve(PageAddress::Tcp(address), pages(Audience::Network), log).context("--metrics-addr")?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let (published, in_force) = tokio::sync::watch::channel(PublishedGeneration::default());
    let (notices, queued_notices) = tokio::sync::mpsc::channel(NOTICES);
    let (source, requests) = runtime.block_on(ObjectSource::open(options.files, options.kubeconfig, &options.node))?;
    let paths = HostPaths { cache: options.cni.results, ..HostPaths::default() };
    let cache = paths.cache.clone();
    let mut host = HostReader::new(paths);
    let followed_first = resources::resources(&options.node).into_iter().map(|resource| resource.kind);
    let setup = Setup {
        kinds: followed_first.filter(|kind| WatchScope::initial(kind) != WatchScope::Nothing).collect(),
        node: options.node,
        assume: options.assume,
        unknown_pods: options.unknown_pods,
        read_host: Box::new(move |depth| host.read(depth)),
        relist: requests.relist,
        send_order: requests.send_order,
        reports: Reports {
            metrics: Arc::clone(&metrics),
            notices: Notices::new(notices, Arc::clone(&metrics)).of_dry_run(enforce.is_dry_run()),
            published,
            log,
        },
        target: target(),
        budgets: agent::budget::budgets(&options.budgets, agent::budget::container_memory()),
        cpu: options.cpu,
        read_cpu: Box::new(weir_runtime::sys::cpu_time),
    };
    let node = setup.node.clone();
    let (sender, messages) = channel();
    let socket_path = options.cni.socket.as_deref();
    let _socket = socket_path.map(|path| cni_socket::listen(path, sender.clone())).transpose()?;
    host_changes::listen(cache, sender.clone(), log)?;
    let stop = sender.clone();
    let (ended, agent_ended) = tokio::sync::oneshot::channel::<()>();
    let (has_generation, is_dry_run) = (enforce.has_generation(), enforce.is_dry_run());
    if is_dry_run {
        log.info(DRY_RUN, &[]);
    }
    let agent = NodeAgent::new(setup, enforce);
    let thread = thread::Builder::new().name("agent".to_owned()).spawn(move || {
        // Dropped when the thread ends, also if it panics.
        let _ended = ended;
        work(agent, &messages, &pulse);
    });
    let thread = thread.context("cannot start a thread")?;
    let annotate = options.annotate_pods.then_some(in_force);
    let context = FeedContext { node, agent: sender, notices: queued_notices, annotate, metrics, log };
    runtime.block_on(async {
        source.start(context, has_generation)?;
        stopped(log, agent_ended).await
    })?;
    drop(runtime);
    // An error means that the agent has already ended.
    _ = stop.send(AgentMessage::Stop);
    join(thread)?;
    log.info(if is_dry_run { "stopped" } else { "stopped; the generation in force stays in force" }, &[]);
    Ok(())
}

/// The source of objects, opened.
enum ObjectSource {
    Api(Box<ApiFeed>),
    Files { directory: PathBuf, requests: Receiver<FileRequest> },
}

impl ObjectSource {
    /// Opens the source, and returns the channels on which the agent sends requests to it.
    async fn open(files: Option<&Path>, kubeconfig: Option<&Path>, node: &str) -> Result<(Self, AgentRequests)> {
        let Some(directory) = files else {
            let (feed, requests) = ApiFeed::new(kubeconfig, node).await?;
            return Ok((Self::Api(Box::new(feed)), requests));
        };
        let (sender, receiver) = channel();
        let orders = sender.clone();
        // An error means that the thread that reads the files has ended, which it does only with the agent.
        let requests = AgentRequests {
            relist: Box::new(move |kind| _ = sender.send(FileRequest::List(kind))),
            send_order: Box::new(move |kind, order| _ = orders.send(FileRequest::Order(kind, order))),
        };
        Ok((Self::Files { directory: directory.to_owned(), requests: receiver }, requests))
    }

    /// Starts to send objects to the agent.
    fn start(self, context: FeedContext, has_generation: bool) -> Result<()> {
        let node = ("node", Value::from(context.node.as_str()));
        match self {
            Self::Api(feed) => {
                context.log.info("watching the API server", &[node, ("server", Value::from(feed.server()))]);
                feed.spawn(context)
            }
            Self::Files { directory, requests } => {
                let shown = Value::from(directory.display().to_string());
                context.log.info("watching a directory", &[node, ("directory", shown)]);
                let FeedContext { node, agent, notices, metrics, log, .. } = context;
                FileFeed { directory, node, has_generation, requests, notices, agent, metrics, log }.start()
            }
        }
    }
}

/// The agent's thread: handles all messages that have arrived, then does the work that is due.
fn work(mut agent: NodeAgent<impl Enforce>, messages: &Receiver<AgentMessage>, pulse: &Pulse) {
    loop {
        pulse.beat();
        let now = Instant::now();
        let wait = agent.due().map_or(IDLE, |due| due.saturating_duration_since(now).min(IDLE));
        match messages.recv_timeout(wait) {
            Ok(message) => agent.handle(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Ok(message) = messages.try_recv() {
            agent.handle(message);
        }
        if agent.is_to_end() {
            return;
        }
        agent.act(Instant::now(), &mut || messages.try_recv().ok());
    }
}

fn join(thread: JoinHandle<()>) -> Result<()> {
    match thread.join() {
        Ok(()) => Ok(()),
        // The panic hook has printed the message. Resuming gives the process the exit code of a bug.
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Waits until a signal comes or the agent's thread ends.
async fn stopped(log: Log, agent_ended: tokio::sync::oneshot::Receiver<()>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
    tokio::select! {
        _ = terminate.recv() => log.info("stopping", &[("signal", Value::from("SIGTERM"))]),
        _ = interrupt.recv() => log.info("stopping", &[("signal", Value::from("SIGINT"))]),
        _ = agent_ended => {}
    }
    Ok(())
}

/// The node's name: from `--node`, else from `NODE_NAME` (which the pod's manifest sets), else the host's own name.
pub(crate) fn node_name(named: Option<&str>) -> Result<String> {
    if let Some(name) = named {
        return Ok(name.to_owned());
    }
    if let Some(name) = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty()) {
        return Ok(name);
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => bail!("the node's name is not known: set it with --node"),
        name => Ok(name.to_lowercase()),
    }
}

/// The time of the last beat of the agent's thread.
#[derive(Debug)]
struct Pulse {
    started: Instant,
    milliseconds: AtomicU64,
}

impl Pulse {
    fn new() -> Self {
        Self { started: Instant::now(), milliseconds: AtomicU64::new(0) }
    }

    fn beat(&self) {
        self.milliseconds.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn is_alive(&self) -> bool {
        let last = Duration::from_millis(self.milliseconds.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last) < LONGEST_STEP
    }
}

/// The target for the running kernel. Before 6.6, kernels of other architectures than x86-64 may lack instructions
/// that the same version has on x86-64, so the base target is used for them.
fn target() -> Target {
    let kernel = weir_runtime::sys::kernel_version().unwrap_or(Target::BASE.kernel);
    let is_complete = cfg!(target_arch = "x86_64") || kernel >= (6, 6);
    if is_complete { Target { kernel }.max(Target::BASE) } else { Target::BASE }
}
