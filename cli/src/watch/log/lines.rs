//! Events → lines.
//!
//! An event of a library also has its target, and the fields of the spans around it: kube-client puts the method and
//! address of a request there. Every line goes through [`OutputPage`], so names of objects and messages of servers
//! can neither break a line nor bring escape sequences.

use std::fmt::{self, Write as _};
use std::time::SystemTime;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::{FIELDS, LogFormat, TARGET};
use crate::page::OutputPage;
use crate::time::rfc_3339;

/// Writes a line for each event.
pub(super) struct LineLayer {
    pub(super) format: LogFormat,
}

/// The message and the fields of a line.
#[derive(Debug, Default)]
struct LineParts {
    message: String,
    fields: Map<String, Value>,
}

impl LineParts {
    fn add(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for LineParts {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value.into()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Writing to a string does not fail. If a `Debug` fails by itself, its text ends there.
        _ = write!(text, "{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.add(field, text.into()),
        }
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for LineLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut parts = LineParts::default();
        attributes.record(&mut parts);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(parts);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(parts) = span.extensions_mut().get_mut::<LineParts>() {
            values.record(parts);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut parts = LineParts::default();
        event.record(&mut parts);
        let target = event.metadata().target();
        if target == TARGET {
            unpack(&mut parts.fields);
        } else {
            let spans = context.event_scope(event).into_iter().flatten();
            for span in spans {
                let extensions = span.extensions();
                let outer = extensions.get::<LineParts>().into_iter().flat_map(|it| &it.fields);
                outer.for_each(|(name, value)| _ = parts.fields.entry(name).or_insert_with(|| value.clone()));
            }
            parts.fields.insert("target".to_owned(), target.into());
        }
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        // The reader of standard error may have gone. Enforcement continues.
        line(self.format, SystemTime::now(), &level, parts).print_to_stderr();
    }
}

/// Replaces the object that [`super::Log`] hands over by its members.
fn unpack(fields: &mut Map<String, Value>) {
    let Some(Value::String(packed)) = fields.remove(FIELDS) else { return };
    match serde_json::from_str(&packed) {
        Ok(Value::Object(members)) => fields.extend(members),
        // Another event with our target and a field of this name.
        _ => _ = fields.insert(FIELDS.to_owned(), packed.into()),
    }
}

fn line(format: LogFormat, now: SystemTime, level: &str, parts: LineParts) -> OutputPage {
    let mut page = OutputPage::new();
    let (time, LineParts { message, fields }) = (rfc_3339(now), parts);
    match format {
        LogFormat::Text => {
            let fields: String = fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            page.line(format_args!("{time} {level} {message}{fields}"));
        }
        LogFormat::Json => {
            let own = [("time", time), ("level", level.to_owned()), ("message", message)];
            let own = own.map(|(name, value)| (name.to_owned(), Value::from(value)));
            let value = Value::Object(own.into_iter().chain(fields).collect::<Map<_, _>>());
            // A tree of values is always JSON.
            _ = page.json(&value);
        }
    }
    page
}

/// Keeps the events of a test.
#[cfg(test)]
#[derive(Clone, Default)]
struct Kept(std::sync::Arc<std::sync::Mutex<Vec<LineParts>>>);

#[cfg(test)]
impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Kept {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut parts = LineParts::default();
        event.record(&mut parts);
        unpack(&mut parts.fields);
        self.0.lock().expect("no test panics while it holds the lock").push(parts);
    }
}

#[cfg(test)]
impl Kept {
    /// The events that this thread logs meanwhile.
    fn during(act: impl FnOnce()) -> Vec<LineParts> {
        use tracing::dispatcher::Dispatch;
        use tracing_subscriber::layer::SubscriberExt as _;
        use tracing_subscriber::registry::Registry;
        /// While there is one subscriber at most, `tracing` asks the thread that first logs at a place whether it has a
        /// subscriber for the event, and keeps the answer for all threads. The thread of another test has none.
        static OTHERS: std::sync::LazyLock<[Dispatch; 2]> =
            std::sync::LazyLock::new(|| [Registry::default().into(), Registry::default().into()]);
        std::sync::LazyLock::force(&OTHERS);
        let kept = Self::default();
        tracing::subscriber::with_default(Registry::default().with(kept.clone()), act);
        let mut parts = kept.0.lock().expect("no test panics while it holds the lock");
        std::mem::take(&mut *parts)
    }
}

/// The messages that this thread logs meanwhile, without their fields.
#[cfg(test)]
pub(super) fn messages_during(act: impl FnOnce()) -> Vec<String> {
    Kept::during(act).into_iter().map(|it| it.message).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watch::log::{Log, LogFields};

    fn fields() -> Map<String, Value> {
        [("pod", Value::from("shop/web")), ("attempt", Value::from(2))]
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect()
    }

    fn shown(format: LogFormat, message: &str, fields: Map<String, Value>) -> String {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        line(format, now, "warn", LineParts { message: message.to_owned(), fields }).as_str().to_owned()
    }

    #[test]
    fn both_formats_have_the_same_fields() {
        assert_eq!(
            shown(LogFormat::Text, "no interface", fields()),
            "1970-01-01T00:00:01.500Z warn no interface pod=\"shop/web\" attempt=2\n"
        );
        assert_eq!(
            shown(LogFormat::Json, "no interface", fields()),
            "{\"time\":\"1970-01-01T00:00:01.500Z\",\"level\":\"warn\",\"message\":\"no interface\",\"pod\":\"shop/web\",\
             \"attempt\":2}\n"
        );
    }

    #[test]
    fn hostile_text_stays_on_its_line() {
        let hostile = "x\n1970-01-01T00:00:01.500Z info all is well\u{1b}[2K\u{202e}";
        for format in [LogFormat::Text, LogFormat::Json] {
            let fields = Map::from_iter([("error".to_owned(), Value::from(hostile))]);
            let line = shown(format, hostile, fields);
            assert_eq!(line.lines().count(), 1, "{line}");
            assert!(!line.contains('\u{1b}') && !line.contains('\u{202e}'), "{line}");
        }
    }

    #[test]
    fn fields_of_the_agents_events_keep_their_types() {
        let kept = Kept::during(|| {
            Log.warn("no {interface}", &[("pod", Value::from("shop/web")), ("attempt", Value::from(2))]);
            tracing::info!(url = "/api", code = 404, "requesting");
        });
        let [own, other] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!((own.message.as_str(), &own.fields), ("no {interface}", &fields()));
        assert_eq!(
            shown(LogFormat::Text, &other.message, other.fields.clone()).split_once("warn ").map(|it| it.1),
            Some("requesting url=\"/api\" code=404\n")
        );
        assert_eq!(format!("{:?}", LogFields(&[])), "{}");
    }

    #[test]
    fn events_are_kept_though_another_thread_logged_at_the_same_place_before() {
        let log = || tracing::warn!("here");
        let kept = Kept::during(|| {
            std::thread::scope(|scope| _ = scope.spawn(log).join());
            log();
        });
        assert_eq!(kept.len(), 1, "{kept:?}");
    }
}
