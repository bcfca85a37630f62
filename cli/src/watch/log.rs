//! The agent's log: one line an event, on standard error, for people or as JSON.
//!
//! Events go through `tracing`, so those of kube-client, tower and hyper-util are in the same log, at the level that
//! `--log-level` chooses ([`LogFilter`]), and in the same format ([`lines`]).
//!
//! The agent's own events have fields that are JSON values: numbers stay numbers. `tracing` fixes the names and simple
//! types of an event's fields where it is written, so [`Log`] hands all of them over as one field, a JSON object, and
//! the lines show its members.

mod filter;
mod lines;

use std::fmt;

use serde_json::Map;
pub(crate) use serde_json::Value;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;

pub(crate) use filter::LogFilter;
use lines::LineLayer;

/// The target of the agent's own events, as in `--log-level weir=debug`.
const TARGET: &str = "weir";
/// The field that holds the fields of the agent's own events.
const FIELDS: &str = "fields";

/// The format of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people: `2026-01-31T12:00:00.000Z info message key=value`
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Sends all events of this process to standard error, in this format. Without a call, as in unit tests, there is no
/// log.
pub(crate) fn start(format: LogFormat, filter: &LogFilter) {
    let subscriber = Registry::default().with(filter.targets()).with(LineLayer { format });
    // An error means that the log has been started before.
    _ = tracing::subscriber::set_global_default(subscriber);
}

/// The messages that this thread logs meanwhile, without their fields.
#[cfg(test)]
pub(crate) fn messages_during(act: impl FnOnce()) -> Vec<String> {
    lines::messages_during(act)
}

/// Writes events of the agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log;

/// A field's name and value.
pub(crate) type LogField<'f> = (&'f str, Value);

/// The fields of an event; `{:?}` writes them as a JSON object.
struct LogFields<'f>(&'f [LogField<'f>]);

impl fmt::Debug for LogFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        write!(f, "{}", Value::Object(fields.collect::<Map<_, _>>()))
    }
}

impl Log {
    /// Logs a detail that helps to find the cause of a fault.
    pub(crate) fn debug(self, message: &str, fields: &[LogField<'_>]) {
        tracing::debug!(target: TARGET, fields = ?LogFields(fields), "{message}");
    }

    /// Logs normal operation.
    pub(crate) fn info(self, message: &str, fields: &[LogField<'_>]) {
        tracing::info!(target: TARGET, fields = ?LogFields(fields), "{message}");
    }

    /// Logs a condition that an operator should look at.
    pub(crate) fn warn(self, message: &str, fields: &[LogField<'_>]) {
        tracing::warn!(target: TARGET, fields = ?LogFields(fields), "{message}");
    }

    /// Logs that something is not enforced.
    pub(crate) fn error(self, message: &str, fields: &[LogField<'_>]) {
        tracing::error!(target: TARGET, fields = ?LogFields(fields), "{message}");
    }
}
