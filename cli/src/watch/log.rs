//! The agent's log: one line an event, on standard error, for people or as JSON.

use std::time::SystemTime;

use serde_json::Map;
pub(crate) use serde_json::Value;

use crate::page::OutputPage;
use crate::time::rfc_3339;

/// The format of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people: `2026-01-31T12:00:00.000Z info message key=value`
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Writes lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
}

/// A field's name and value.
pub(crate) type LogField<'f> = (&'f str, Value);

impl Log {
    /// Logs normal operation.
    pub(crate) fn info(self, message: &str, fields: &[LogField<'_>]) {
        self.write("info", message, fields);
    }

    /// Logs a condition that an operator should look at.
    pub(crate) fn warn(self, message: &str, fields: &[LogField<'_>]) {
        self.write("warn", message, fields);
    }

    /// Logs that something is not enforced.
    pub(crate) fn error(self, message: &str, fields: &[LogField<'_>]) {
        self.write("error", message, fields);
    }

    fn write(self, level: &str, message: &str, fields: &[LogField<'_>]) {
        // Its reader may have gone. Enforcement continues.
        line(self.format, SystemTime::now(), level, message, fields).print_to_stderr();
    }
}

fn line(format: LogFormat, now: SystemTime, level: &str, message: &str, fields: &[LogField<'_>]) -> OutputPage {
    let mut page = OutputPage::new();
    let time = rfc_3339(now);
    match format {
        LogFormat::Text => {
            let fields: String = fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            page.line(format_args!("{time} {level} {message}{fields}"));
        }
        LogFormat::Json => {
            let own = [("time", time), ("level", level.to_owned()), ("message", message.to_owned())];
            let own = own.map(|(name, value)| (name.to_owned(), Value::from(value)));
            let given = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let value = Value::Object(own.into_iter().chain(given).collect::<Map<_, _>>());
            // A tree of values is always JSON.
            _ = page.json(&value);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn both_formats_have_the_same_fields() {
        let fields = [("pod", Value::from("shop/web")), ("attempt", Value::from(2))];
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(
            line(LogFormat::Text, now, "warn", "no interface", &fields).as_str(),
            "1970-01-01T00:00:01.500Z warn no interface pod=\"shop/web\" attempt=2\n"
        );
        assert_eq!(
            line(LogFormat::Json, now, "warn", "no interface", &fields).as_str(),
            "{\"time\":\"1970-01-01T00:00:01.500Z\",\"level\":\"warn\",\"message\":\"no interface\",\"pod\":\"shop/web\",\
             \"attempt\":2}\n"
        );
    }
}
