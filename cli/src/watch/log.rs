//! The agent's log: one line an event, on standard error, for people or as JSON.

use std::time::{Duration, SystemTime};

use serde_json::Map;
pub(crate) use serde_json::Value;

use crate::page::OutputPage;

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
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Its reader may have gone. Enforcement continues.
        line(self.format, now, level, message, fields).print_to_stderr();
    }
}

fn line(format: LogFormat, now: Duration, level: &str, message: &str, fields: &[LogField<'_>]) -> OutputPage {
    let mut page = OutputPage::new();
    let time = timestamp(now);
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

/// RFC 3339 in UTC, from seconds since 1970.
pub(super) fn timestamp(now: Duration) -> String {
    let (days, seconds) = ((now.as_secs() / 86_400) as i64, now.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", now.subsec_millis())
}

/// The date of a day since 1970, in the Gregorian calendar; years are counted from 1 March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn both_formats_have_the_same_fields() {
        let fields = [("pod", Value::from("shop/web")), ("attempt", Value::from(2))];
        let now = Duration::from_millis(1_500);
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
