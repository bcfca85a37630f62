//! One line of the input: a flow as it was written.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowProtocol};

use crate::ends::{Ends, parse_protocol};

/// Text that is borrowed from the line where it has no escapes. (Within an `Option`, only a newtype is.)
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

/// A flow as it was written. Unknown fields are allowed: they belong to the program that asks.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `src`, `dst`, `proto` and `port`")]
pub(super) struct Written<'l> {
    #[serde(borrow, default)]
    id: Option<&'l RawValue>,
    #[serde(borrow)]
    src: WrittenEnd<'l>,
    #[serde(borrow)]
    dst: WrittenEnd<'l>,
    #[serde(borrow)]
    proto: Text<'l>,
    #[serde(default)]
    port: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `pod` or `ip`")]
struct WrittenEnd<'l> {
    #[serde(borrow, default)]
    pod: Option<Text<'l>>,
    #[serde(borrow, default)]
    ip: Option<Text<'l>>,
}

/// The parts of a line that can be read even if it is no valid flow.
#[derive(Debug, Deserialize)]
struct Identified<'l> {
    #[serde(borrow, default)]
    id: Option<&'l RawValue>,
}

/// A line of the input.
#[derive(Debug)]
pub(super) enum Line<'l> {
    Flow(Written<'l>),
    Bad { id: Option<&'l RawValue>, reason: String },
}

impl<'l> Line<'l> {
    pub(super) fn parse(line: &'l [u8]) -> Self {
        match serde_json::from_slice(line) {
            Ok(written) => Self::Flow(written),
            Err(error) => {
                let id = serde_json::from_slice::<Identified<'_>>(line).ok().and_then(|it| it.id);
                // The position is within this line: "at line 1" would mislead.
                let reason = error.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default();
                Self::Bad { id, reason: format!("not a flow: {reason}") }
            }
        }
    }

    /// The flow's `id` as it was written: any JSON value.
    pub(super) fn id(&self) -> Option<&'l RawValue> {
        match self {
            Self::Flow(written) => written.id,
            Self::Bad { id, .. } => *id,
        }
    }

    pub(super) fn flow(&self) -> Result<&Written<'l>, String> {
        match self {
            Self::Flow(written) => Ok(written),
            Self::Bad { reason, .. } => Err(reason.clone()),
        }
    }
}

impl Written<'_> {
    /// Finds the flow between the ends that the names and addresses refer to.
    pub(super) fn resolve<'c>(&self, ends: &Ends<'c>, directory: &Directory<'c>) -> Result<Flow, String> {
        let protocol = parse_protocol(&self.proto.0)?;
        let port = match (protocol, self.port) {
            (FlowProtocol::Icmp, _) => 0,
            (FlowProtocol::Transport(_), None) => return Err(format!("{} needs a port", self.proto.0)),
            (_, Some(port)) => u16::try_from(port).map_err(|_| format!("{port} is no port"))?,
        };
        let end = |which: &str, end: &WrittenEnd<'_>| {
            let text = |text: &Option<Text<'_>>| text.as_ref().map(|it| it.0.to_string());
            let (pod, ip) = (text(&end.pod), text(&end.ip));
            ends.end(directory, pod.as_deref(), ip.as_deref()).map_err(|reason| format!("{which}: {reason}"))
        };
        let (source, destination) = ends.meet(end("src", &self.src)?, end("dst", &self.dst)?)?;
        Ok(Flow { source, destination, protocol, port })
    }
}
