//! `/metrics`, `/livez`, `/readyz`, over HTTP/1.1.
//!
//! Problem: `/livez` decides whether the kubelet restarts the agent, and every pod of the cluster can reach an address
//! of the node. A pod can open connections and send nothing. This stops a server that handles one connection at a time,
//! and also a server with an unlimited number of connections.
//! Strategy: probes use the loopback address or a Unix socket, where pods cannot connect. Metrics have their own
//! address and thread. Each connection is a task with one request and one time limit for all of it. Over the limit of
//! connections, the oldest connection is closed: a probe takes a millisecond, so it is answered before it is the
//! oldest.
//! Invariant: other machines get only numbers. Only the host gets the names of pods.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::log::{Log, Value};
use super::metrics::Metrics;

/// The time limit for a request line with its headers.
const HEADERS: Duration = Duration::from_secs(2);
/// The time limit for a connection.
const LONGEST: Duration = Duration::from_secs(10);
/// The buffer for a request line with its headers. hyper accepts no smaller one.
const LARGEST: usize = 8 << 10;
/// The limit of connections at a time.
const MOST: usize = 64;
/// The pause after an error of `accept`: all descriptors may be in use.
const PAUSE: Duration = Duration::from_millis(50);
/// The interval of attempts to bind an address that another process uses.
const AGAIN: Duration = Duration::from_secs(5);

/// Where to listen: `ADDRESS:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for PageAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("no path after `unix:`".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| "expected ADDRESS:PORT or unix:PATH".to_owned()),
        }
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The possible clients of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Processes of this host.
    Host,
    /// Everything that can connect, including pods.
    Network,
}

/// The sources of the pages.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) metrics: Arc<Metrics>,
    /// Called for each request of `/livez`.
    pub(crate) is_alive: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) audience: Audience,
}

/// Serves for as long as the process lives, in a thread of its own.
///
/// An address that cannot be bound is an error, except if another process uses it. In that case the agent enforces
/// without pages and tries again, because otherwise any process of the host could keep the agent from starting.
pub(crate) fn serve(address: PageAddress, pages: Pages, log: Log) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let first = match runtime.block_on(listen(&address)) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let fields = [("address", Value::from(address.to_string())), ("error", Value::from(error.to_string()))];
            log.error("cannot listen: another process uses the address; retrying", &fields);
            None
        }
        listener => Some(listener.with_context(|| format!("cannot listen on {address}"))?),
    };
    let thread = thread::Builder::new().name("pages".to_owned());
    thread.spawn(move || runtime.block_on(accept(first, address, pages))).context("cannot start a thread")?;
    Ok(())
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

async fn listen(address: &PageAddress) -> io::Result<Listener> {
    match address {
        PageAddress::Tcp(address) => TcpListener::bind(address).await.map(Listener::Tcp),
        PageAddress::Unix(path) => {
            // A socket that another process serves must stay. One of a process that has ended refuses connections.
            match tokio::net::UnixStream::connect(path).await {
                Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                // So many connections wait that no other fits.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::AddrInUse.into()),
                Err(_) => {}
            }
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            Ok(Listener::Unix(listener))
        }
    }
}

async fn accept(first: Option<Listener>, address: PageAddress, pages: Pages) {
    let mut listener = first;
    let listener = loop {
        match listener {
            Some(listener) => break listener,
            None => sleep(AGAIN).await,
        }
        listener = listen(&address).await.ok();
    };
    let mut open = OpenConnections::default();
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(stream, _)| open.add(answer(stream, pages.clone())))
            }
            Listener::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| open.add(answer(stream, pages.clone())))
            }
        };
        if accepted.is_err() {
            sleep(PAUSE).await;
        }
    }
}

/// Connections, the oldest first.
#[derive(Default)]
struct OpenConnections {
    tasks: VecDeque<AbortHandle>,
}

impl OpenConnections {
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.tasks.retain(|task| !task.is_finished());
        if self.tasks.len() >= MOST
            && let Some(oldest) = self.tasks.pop_front()
        {
            // Aborting the task closes its connection.
            oldest.abort();
        }
        self.tasks.push_back(tokio::spawn(connection).abort_handle());
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, pages: Pages) {
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        let (status, text) = page(request.method(), request.uri().path(), &pages);
        async move { Ok::<_, Infallible>(response(status, text)) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADERS).keep_alive(false).max_buf_size(LARGEST);
    // An error is caused by the client: it disconnected, was too slow, or did not speak HTTP.
    _ = timeout(LONGEST, server.serve_connection(TokioIo::new(stream), service)).await;
}

fn response(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

fn page(method: &Method, path: &str, pages: &Pages) -> (StatusCode, String) {
    if method != Method::GET {
        return (StatusCode::METHOD_NOT_ALLOWED, "use GET on /metrics, /livez or /readyz\n".to_owned());
    }
    match path {
        "/metrics" => (StatusCode::OK, pages.metrics.text()),
        "/livez" if (pages.is_alive)() => (StatusCode::OK, "ok\n".to_owned()),
        "/livez" => {
            (StatusCode::SERVICE_UNAVAILABLE, "the agent's thread has made no progress for too long\n".to_owned())
        }
        "/readyz" => readiness(pages),
        _ => (StatusCode::NOT_FOUND, "not found; the pages are /metrics, /livez and /readyz\n".to_owned()),
    }
}

/// Reasons and notes contain names of pods and other objects, which other machines must not get.
fn readiness(pages: &Pages) -> (StatusCode, String) {
    let unready = pages.metrics.unready();
    let status = if unready.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut text = match (unready, pages.audience) {
        (None, _) => "ok\n".to_owned(),
        (Some(why), Audience::Host) => format!("{why}\n"),
        (Some(_), Audience::Network) => "not ready; see /readyz at --health-addr for the reason\n".to_owned(),
    };
    if pages.audience == Audience::Host {
        text.extend(pages.metrics.notes().iter().map(|note| format!("note: {note}\n")));
    }
    (status, text)
}

#[cfg(test)]
mod tests;
