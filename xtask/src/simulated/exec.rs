//! `pods/exec` over a WebSocket: scripts in the place of commands, to test programs that run commands in pods.
//!
//! A script has the output of a command and its end. The protocol is `v5.channel.k8s.io`: the first byte
//! of a message is the number of a stream, and a message to stream 255 closes the stream that it names.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tungstenite::handshake::derive_accept_key;
use tungstenite::protocol::{Role, WebSocket};
use tungstenite::{Bytes, Message};

use super::{Simulated, decoded, refusal, respond};

/// A step of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecStep {
    /// Writes to standard output.
    Out(String),
    /// Writes to standard error.
    Err(String),
    /// Waits.
    Pause(Duration),
    /// Waits until the client closes standard input, or the connection.
    UntilInputEnds,
    /// Answers nothing any more, and keeps the connection.
    Hang,
    /// Ends with an exit code.
    Exit(i32),
    /// Closes the connection without a status, as a node does that loses its power.
    Break,
}

/// The steps for a command.
type Steps = dyn Fn(&[String]) -> Vec<ExecStep> + Send + Sync;

/// The script of a pod.
#[derive(Clone)]
pub(super) struct ExecScript(Arc<Steps>);

impl fmt::Debug for ExecScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExecScript")
    }
}

impl Simulated {
    /// The commands of a pod (`namespace/name`) follow this script. Pods without one refuse commands.
    pub fn on_exec(&self, pod: &str, script: impl Fn(&[String]) -> Vec<ExecStep> + Send + Sync + 'static) {
        self.lock().scripts.insert(pod.to_owned(), ExecScript(Arc::new(script)));
    }

    /// The commands so far, with their pods.
    pub fn executed(&self) -> Vec<(String, Vec<String>)> {
        self.lock().executed.clone()
    }

    /// The pods of the commands whose standard input has ended.
    pub fn ended_inputs(&self) -> Vec<String> {
        self.lock().ended_inputs.clone()
    }

    /// Answers a request for a command; `key` is the client's `Sec-WebSocket-Key`.
    pub(super) fn exec(&self, mut connection: &TcpStream, pod: &str, query: &str, key: &str) -> io::Result<()> {
        let words = query.split('&').filter_map(|it| it.strip_prefix("command="));
        let command: Vec<String> = words.map(decoded).collect();
        let script = {
            let mut state = self.lock();
            state.executed.push((pod.to_owned(), command.clone()));
            state.scripts.get(pod).cloned()
        };
        let Some(ExecScript(script)) = script else {
            return respond(connection, "403 Forbidden", &refusal(403, "Forbidden"));
        };
        let accept = derive_accept_key(key.as_bytes());
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
        );
        io::Write::write_all(&mut connection, head.as_bytes())?;
        let mut socket = WebSocket::from_raw_socket(connection, Role::Server, None);
        for step in script(&command) {
            if self.step(&mut socket, pod, step).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// An error ends the command.
    fn step(&self, socket: &mut WebSocket<&TcpStream>, pod: &str, step: ExecStep) -> Result<(), tungstenite::Error> {
        let message = |stream: u8, text: &str| Message::Binary(Bytes::from([&[stream], text.as_bytes()].concat()));
        match step {
            ExecStep::Out(text) => text
                .as_bytes()
                .chunks(1000)
                .try_for_each(|it| socket.send(Message::Binary(Bytes::from([&[1], it].concat())))),
            ExecStep::Err(text) => socket.send(message(2, &text)),
            ExecStep::Pause(time) => {
                thread::sleep(time);
                Ok(())
            }
            ExecStep::UntilInputEnds => {
                while let Ok(message) = socket.read() {
                    if message.into_data().as_ref() == [255, 0] {
                        break;
                    }
                }
                self.lock().ended_inputs.push(pod.to_owned());
                Ok(())
            }
            ExecStep::Hang => {
                while socket.read().is_ok() {}
                Ok(())
            }
            ExecStep::Exit(code) => {
                let status = match code {
                    0 => json!({"metadata": {}, "status": "Success"}),
                    _ => json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}}),
                };
                socket.send(message(3, &status.to_string()))
            }
            ExecStep::Break => Err(tungstenite::Error::ConnectionClosed),
        }
    }
}
