//! An API server, an agent, and a wire between them that can be cut.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use xtask::apiserver::{self, ApiServer, Settings};

/// The longest wait, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The soft limit of open files with which an agent starts.
pub(crate) const SOFT_LIMIT: u64 = 1_024;

/// An API server needs the whole machine, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The right of a test to run, and its temporary directory, which is deleted unless the test fails.
pub(crate) struct Directory {
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Directory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("weir-watch-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("temporary directories can be created");
        Self { path, _alone: alone }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !thread::panicking() {
            _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Starts an API server. An error means that its binaries are not built; the caller then skips the test with a message.
pub(crate) fn server(directory: &Directory, settings: Settings) -> Result<ApiServer, String> {
    let binaries = apiserver::built().map_err(|error| format!("{error:#}"))?;
    let server = ApiServer::start(&binaries, &directory.path().join("server"), settings);
    Ok(server.unwrap_or_else(|error| panic!("the API server does not start: {error:#}")))
}

/// Waits until the condition holds. Panics if that takes longer than [`PATIENCE`].
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(within(PATIENCE, is_so), "{what}: not within {} s", PATIENCE.as_secs());
}

pub(crate) fn within(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < time {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    false
}

/// The agent's process. Dropping this kills it.
pub(crate) struct Agent {
    child: Child,
    log: PathBuf,
    metrics: u16,
    settings: Settings,
}

impl Agent {
    /// Starts the agent in the network namespace of the server.
    pub(crate) fn start(directory: &Directory, kubeconfig: &Path, settings: &Settings, arguments: &[&str]) -> Self {
        let kubeconfig = kubeconfig.display().to_string();
        Self::start_without_api(directory, settings, &[&["--kubeconfig", &kubeconfig], arguments].concat())
    }

    /// Starts an agent whose objects come from where its arguments say.
    pub(crate) fn start_without_api(directory: &Directory, settings: &Settings, arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let log = directory.path().join(format!("agent-{}.log", COUNT.fetch_add(1, Ordering::Relaxed)));
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr()).expect("a free port").port();
        // The usual soft limit of a service.
        let mut command = settings.command("prlimit");
        command.arg(format!("--nofile={SOFT_LIMIT}:")).arg(env!("CARGO_BIN_EXE_weir"));
        command.args(["watch", "--node", "near", "--log-format", "json"]);
        let health = log.with_extension("sock");
        command.args(["--metrics-addr", &format!("127.0.0.1:{port}")]).args(arguments);
        command.arg("--health-addr").arg(format!("unix:{}", health.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).expect("a log"));
        let child = command.spawn().expect("the agent starts");
        Self { child, log, metrics: port, settings: settings.clone() }
    }

    /// A page of the agent: status and text.
    pub(crate) fn page(&self, path: &str) -> (String, String) {
        let url = format!("http://127.0.0.1:{}{path}", self.metrics);
        self.ask(&[&url])
    }

    /// A page at the agent's health address, which only the host can reach.
    pub(crate) fn health(&self, path: &str) -> (String, String) {
        let socket = self.log.with_extension("sock").display().to_string();
        self.ask(&["--unix-socket", &socket, &format!("http://localhost{path}")])
    }

    /// The health address, as the command line takes it.
    pub(crate) fn health_address(&self) -> String {
        format!("unix:{}", self.log.with_extension("sock").display())
    }

    fn ask(&self, arguments: &[&str]) -> (String, String) {
        let output = self.settings.command("curl").args(["-s", "-w", "\n%{http_code}"]).args(arguments).output();
        let text = String::from_utf8(output.expect("curl starts").stdout).expect("it is text");
        let (text, status) = text.rsplit_once('\n').unwrap_or_default();
        (status.to_owned(), text.to_owned())
    }

    /// A metric's value, by its name and labels as they are written; 0 if it is not there.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.page("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    #[track_caller]
    pub(crate) fn until_ready(&self) {
        assert!(within(PATIENCE, || self.page("/readyz").0 == "200"), "{}{}", self.health("/readyz").1, self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the agent as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Ends the agent as the kubelet does, and returns its exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let id = self.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().is_ok_and(|it| it.success()));
        let mut status = None;
        until("the agent ends", || {
            status = self.child.try_wait().expect("it can be waited for");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Ends the agent. Returns its whole log.
    pub(crate) fn log_at_end(self) -> String {
        let log = self.log.clone();
        assert_eq!(self.terminate(), Some(0));
        fs::read_to_string(log).expect("the agent has written it")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // An error means that the agent has already ended.
        _ = self.child.kill();
        _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
    }
}

/// Passes connections on to the API server, until it is cut.
pub(crate) struct Wire {
    cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    port: u16,
}

impl Wire {
    pub(crate) fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (cut, open) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let wire = Self { cut: Arc::clone(&cut), open: Arc::clone(&open), port };
        thread::spawn(move || {
            for here in listener.incoming().flatten() {
                let Ok(there) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                if !cut.load(Ordering::SeqCst) {
                    let mut open = open.lock().expect("no thread panics while it holds the lock");
                    for (from, to) in [(&here, &there), (&there, &here)] {
                        let (from, to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                        open.push(from.try_clone().expect("a copy"));
                        thread::spawn(move || pass(from, to));
                    }
                }
            }
        });
        wire
    }

    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().expect("no thread panics while it holds the lock").drain(..) {
            // An error means that the other end was closed first.
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }

    /// A kubeconfig that leads to the server through the wire.
    pub(crate) fn kubeconfig(&self, server: &ApiServer, directory: &Directory) -> PathBuf {
        let text = fs::read_to_string(server.kubeconfig()).expect("the server has one");
        let path = directory.path().join("kubeconfig");
        let text = text.replace(&format!(":{}'", server.port()), &format!(":{}'", self.port));
        fs::write(&path, text).expect("the directory is ours");
        path
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut room = vec![0; 1 << 16];
    let copied: io::Result<()> = (|| {
        loop {
            match from.read(&mut room)? {
                0 => return Ok(()),
                length => to.write_all(&room[..length])?,
            }
        }
    })();
    // With or without an error, the connection has ended.
    _ = copied;
    _ = to.shutdown(Shutdown::Both);
}
