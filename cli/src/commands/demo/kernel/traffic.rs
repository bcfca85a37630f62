//! Real connections between the namespaces.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use weir_model::Protocol;

use super::sandbox::Sandbox;
use crate::commands::demo::shop::{ATTEMPTS, Attempt};

/// The time after which a packet without an answer was dropped. The first repetition of a packet is sent after a second,
/// so one lost packet on a busy machine is not taken for a denial.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// The time between two looks of the servers.
const INTERVAL: Duration = Duration::from_millis(2);
const QUESTION: &[u8] = b"weir?";

/// Servers that send back all data, at the destination of each attempt.
pub(super) struct EchoServers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Sockets {
    listeners: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
    streams: Vec<TcpStream>,
}

impl EchoServers {
    pub(super) fn start(sandbox: &Sandbox) -> Result<Self> {
        let mut sockets = Sockets::default();
        let mut places: Vec<(&str, Protocol, SocketAddr)> =
            ATTEMPTS.iter().map(|it| (it.to.name, it.protocol, destination(it))).collect();
        places.sort_unstable();
        places.dedup();
        for (role, protocol, at) in places {
            match protocol {
                Protocol::Udp => sockets.datagrams.push(sandbox.enter(role, || datagrams(at))?.context("no server")?),
                _ => sockets.listeners.push(sandbox.enter(role, || listener(at))?.context("no server")?),
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("servers".to_owned());
        let thread = thread.spawn(move || {
            while !is_stopped.load(Ordering::Relaxed) {
                sockets.serve();
                std::thread::sleep(INTERVAL);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for EchoServers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Sockets {
    /// Answers everything that waits. Errors are those of clients that are gone.
    fn serve(&mut self) {
        let mut buffer = [0; 64];
        for listener in &self.listeners {
            while let Ok((stream, _)) = listener.accept() {
                if stream.set_nonblocking(true).is_ok() {
                    self.streams.push(stream);
                }
            }
        }
        self.streams.retain_mut(|stream| match stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(length) => buffer.get(..length).is_some_and(|it| stream.write_all(it).is_ok()),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        });
        for socket in &self.datagrams {
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                _ = socket.send_to(buffer.get(..length).unwrap_or_default(), from);
            }
        }
    }
}

fn listener(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn datagrams(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn destination(attempt: &Attempt) -> SocketAddr {
    SocketAddr::new(attempt.to.address, attempt.port)
}

/// Whether a new connection gets an answer.
pub(super) fn reaches(sandbox: &Sandbox, attempt: &Attempt) -> Result<bool> {
    if attempt.protocol == Protocol::Udp {
        return sandbox.enter(attempt.from.name, || asks(attempt))?.context("cannot send a datagram");
    }
    match connect(sandbox, attempt)? {
        Some(mut stream) => Ok(answers(&mut stream)?),
        None => Ok(false),
    }
}

/// Opens a connection; `None` if nothing answers.
pub(super) fn connect(sandbox: &Sandbox, attempt: &Attempt) -> Result<Option<TcpStream>> {
    let connected = sandbox.enter(attempt.from.name, || TcpStream::connect_timeout(&destination(attempt), PATIENCE))?;
    match connected {
        Ok(stream) => {
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(Some(stream))
        }
        Err(error) if is_silence(&error) => Ok(None),
        Err(error) => Err(error).context("cannot connect"),
    }
}

/// Whether the other end of a connection answers.
pub(super) fn answers(stream: &mut TcpStream) -> io::Result<bool> {
    stream.write_all(QUESTION)?;
    let mut answer = [0; QUESTION.len()];
    match stream.read_exact(&mut answer) {
        Ok(()) => Ok(answer == QUESTION),
        Err(error) if is_silence(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a datagram is answered.
fn asks(attempt: &Attempt) -> io::Result<bool> {
    let socket = UdpSocket::bind(SocketAddr::new(attempt.from.address, 0))?;
    socket.set_read_timeout(Some(PATIENCE / 2))?;
    let mut answer = [0; QUESTION.len()];
    for _ in 0..2 {
        socket.send_to(QUESTION, destination(attempt))?;
        match socket.recv(&mut answer) {
            Ok(_) => return Ok(answer == QUESTION),
            Err(error) if is_silence(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}
