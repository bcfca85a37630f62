//! Which events are logged: `--log-level LEVEL`, or a list such as `info,kube=debug`.
//!
//! A level alone is that of the agent. Libraries log at the same level from `debug` on, since that is how their requests
//! become visible; before that they only warn. The client's lines about failed requests are left out unless the level is
//! `debug` or the list names them: the agent reports a failed request itself, once for an outage
//! (`watch/api_health.rs`).

use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

use super::TARGET;

/// The part of kube-client that logs every failed request as an error.
const CLIENT_FAULTS: &str = "kube_client::client::builder";

/// The levels of the agent and of single libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter {
    level: LevelFilter,
    /// Beginnings of targets, with their levels.
    named: Vec<(String, LevelFilter)>,
}

impl Default for LogFilter {
    fn default() -> Self {
        Self { level: LevelFilter::INFO, named: Vec::new() }
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None => filter.level = level(part)?,
                Some((target, of_target)) => filter.named.push((name(target)?, level(of_target)?)),
            }
        }
        Ok(filter)
    }
}

fn level(text: &str) -> Result<LevelFilter, String> {
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err("expected off, error, warn, info, debug or trace, or a list such as info,kube=debug".to_owned()),
    }
}

fn name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.chars().all(|it| it.is_ascii_alphanumeric() || it == '_' || it == ':');
    is_name.then(|| text.to_owned()).ok_or("expected NAME=LEVEL, such as kube=debug or hyper=trace".to_owned())
}

impl LogFilter {
    /// In the form that the subscriber asks.
    pub(super) fn targets(&self) -> Targets {
        let is_detailed = self.level >= LevelFilter::DEBUG;
        let of_libraries = if is_detailed { self.level } else { self.level.min(LevelFilter::WARN) };
        let mut targets = Targets::new().with_default(of_libraries).with_target(TARGET, self.level);
        let is_named = self.named.iter().any(|(target, _)| CLIENT_FAULTS.starts_with(target));
        if !is_detailed && !is_named {
            targets = targets.with_target(CLIENT_FAULTS, LevelFilter::OFF);
        }
        self.named.iter().fold(targets, |targets, (name, level)| targets.with_target(name.clone(), *level))
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[track_caller]
    fn check(text: &str, enabled: &[(&str, Level)], disabled: &[(&str, Level)]) {
        let targets = text.parse::<LogFilter>().expect("a filter").targets();
        let is = |(target, level): &(&str, Level)| targets.would_enable(target, level);
        enabled.iter().for_each(|it| assert!(is(it), "{text}: {it:?} is not logged"));
        disabled.iter().for_each(|it| assert!(!is(it), "{text}: {it:?} is logged"));
    }

    #[test]
    fn libraries_warn_until_the_level_is_debug() {
        let hyper = "hyper_util::client::legacy";
        check(
            "info",
            &[("weir", Level::INFO), (hyper, Level::WARN)],
            &[("weir", Level::DEBUG), (hyper, Level::INFO), (CLIENT_FAULTS, Level::ERROR)],
        );
        check("", &[("weir", Level::INFO)], &[("weir", Level::DEBUG)]);
        check("error", &[("weir", Level::ERROR)], &[("weir", Level::WARN), (hyper, Level::WARN)]);
        check("debug", &[(hyper, Level::DEBUG), (CLIENT_FAULTS, Level::ERROR)], &[(hyper, Level::TRACE)]);
    }

    #[test]
    fn named_libraries_have_their_own_level() {
        check(
            "info,kube=debug",
            &[(CLIENT_FAULTS, Level::DEBUG), ("weir", Level::INFO)],
            &[("hyper", Level::INFO), ("weir", Level::DEBUG)],
        );
        check("trace,hyper=warn", &[("weir", Level::TRACE)], &[("hyper_util::client", Level::INFO)]);
    }

    #[test]
    fn mistakes_in_a_filter_are_errors() {
        for text in ["loud", "info,kube", "kube=", "=debug", "info,a b=debug", "kube=\u{1b}[31m"] {
            assert!(text.parse::<LogFilter>().is_err(), "{text}");
        }
    }
}
