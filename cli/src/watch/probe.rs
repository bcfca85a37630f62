//! `weir watch --probe`: asks an agent of this node for a page, for probes that the kubelet runs as a command.
//!
//! The agent's image has no other program that could ask.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::serve::PageAddress;
use crate::page;

/// The time limit for each step. The kubelet has its own limit for the whole probe.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const LONGEST: u64 = 1 << 20;

/// Asks for a page and prints it. The inner result is an error if the status is not 200.
pub(crate) fn ask(address: &PageAddress, path: &str) -> Result<Result<(), ()>> {
    let answer = get(address, path)?;
    page::print(format_args!("{}", answer.body.trim_end()))?;
    Ok(if answer.status == "200" { Ok(()) } else { Err(()) })
}

/// The text of a page, whatever its status is.
pub(crate) fn body(address: &PageAddress, path: &str) -> Result<String> {
    get(address, path).map(|answer| answer.body)
}

struct PageAnswer {
    status: String,
    body: String,
}

fn get(address: &PageAddress, path: &str) -> Result<PageAnswer> {
    let answer = match address {
        PageAddress::Tcp(to) => TcpStream::connect_timeout(to, PATIENCE)
            .and_then(|it| it.set_read_timeout(Some(PATIENCE)).map(|()| it))
            .and_then(|stream| exchange(stream, path)),
        PageAddress::Unix(to) => UnixStream::connect(to)
            .and_then(|it| it.set_read_timeout(Some(PATIENCE)).map(|()| it))
            .and_then(|stream| exchange(stream, path)),
    };
    let answer = answer.with_context(|| format!("no agent answers at {address}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(PageAnswer { status, body: body.to_owned() })
}

fn exchange(mut stream: impl Read + Write, path: &str) -> std::io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
