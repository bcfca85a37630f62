//! The agent's metrics as Prometheus text, and its readiness.
//!
//! Every metric is listed in [`METRICS`] with its unit and meaning. A name that is not listed panics in debug builds
//! (so in tests), and is not shown in release builds.

mod process;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_objects::escape;

use crate::build_info;

/// Upper bounds in seconds: those of Kubernetes' own tests of policy latency, and finer ones below.
const BUCKETS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0];

/// If the last check of the kernel is older than this, the agent is not ready.
const OLDEST_CHECK: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

use MetricType::{Counter, Gauge, Histogram};

/// A metric's name, type, and help text.
struct MetricInfo {
    name: &'static str,
    kind: MetricType,
    meaning: &'static str,
}

const fn metric(name: &'static str, kind: MetricType, meaning: &'static str) -> MetricInfo {
    MetricInfo { name, kind, meaning }
}

/// All metrics that the agent can have.
const METRICS: &[MetricInfo] = &[
    metric("weir_address_writes_total", Counter, "Single map entries that were written for changes of addresses."),
    metric("weir_single_pods_total", Counter, "Pods of this node that came or left without a new generation."),
    metric("weir_backend_moves_total", Counter, "Changes of EndpointSlices that needed no new generation."),
    metric("weir_audit_policies", Gauge, "Policies in audit mode: evaluated and reported, not enforced."),
    metric(
        "weir_cni_held_seconds",
        Histogram,
        "Time for which the CNI plug-in held a pod back until policy was in force on it.",
    ),
    metric(
        "weir_cni_timeouts_total",
        Counter,
        "Pods whose policy was not in force within the time limit of the CNI plug-in.",
    ),
    metric("weir_compile_seconds", Histogram, "Time from the objects to the programs and maps of a generation."),
    metric("weir_cpu_budget_cores", Gauge, "Share of a core that the agent may use on average, in cores."),
    metric(
        "weir_cpu_budget_seconds",
        Gauge,
        "CPU time that the agent may use now. If it is less than zero, changes that only allow more wait.",
    ),
    metric(
        "weir_drift_repairs_total",
        Counter,
        "Deviations of the kernel's state from the generation in force that were repaired.",
    ),
    metric("weir_drift", Gauge, "Deviations of the kernel's state that could not be repaired."),
    metric(
        "weir_endpoints",
        Gauge,
        "Pods of this node on a network of their own, by whether policy is in force on them.",
    ),
    metric("weir_generation", Gauge, "Number of the generation in force."),
    metric("weir_generations_total", Counter, "Generations that came into force."),
    metric(
        "weir_incremental_generations_total",
        Counter,
        "Generations that came into force by applying changes to the one before. The others were compiled from scratch.",
    ),
    metric(
        "weir_extended_generations_total",
        Counter,
        "Generations whose tables were written into those in force. The others exchanged programs and tables.",
    ),
    metric("weir_install_seconds", Histogram, "Time that the kernel took to put a generation into force."),
    metric(
        "weir_failures_total",
        Counter,
        "Failed generations and failed checks of the kernel, by stage. The previous generation stays in force.",
    ),
    metric(
        "weir_interface_enforced_seconds",
        Histogram,
        "Time from a pod's attachment to its network until policy was in force on it.",
    ),
    metric(
        "weir_kubernetes_events_total",
        Counter,
        "Events about objects, by outcome: told (sent), known (another agent has sent it), refused by the server, or \
         dropped by the rate limit.",
    ),
    metric(
        "weir_look_age_seconds",
        Gauge,
        "Time since the last check of the kernel. weir_endpoints reports the result of that check.",
    ),
    metric(
        "weir_lost_records_total",
        Counter,
        "Records of dropped packets that were not written because there were too many.",
    ),
    metric("weir_map_bytes", Gauge, "Memory that the kernel charges for a map."),
    metric("weir_map_entries", Gauge, "Entries of a map."),
    metric("weir_map_fill_ratio", Gauge, "Entries of a map divided by its size, from 0 to 1."),
    metric(
        "weir_new_pods_closed_total",
        Counter,
        "Interfaces of new pods that were closed until policy was in force on them.",
    ),
    metric("weir_objects", Gauge, "Objects that the agent knows, by kind."),
    metric(
        "weir_other_policy_kinds",
        Gauge,
        "Kinds of policies that the server has and weir does not enforce, by kind.",
    ),
    metric("weir_packets_total", Counter, "Packets at the pods' interfaces, by direction, reason and verdict."),
    metric("weir_panics_total", Counter, "Tasks of the agent that panicked and were restarted. Each is a bug."),
    metric("weir_pod_enforced_seconds", Histogram, "Time from reading a change of a pod until it was in force."),
    metric("weir_policy_enforced_seconds", Histogram, "Time from reading any other change until it was in force."),
    metric("weir_unenforced_objects", Gauge, "Objects that are not enforced as they are written, by kind and reason."),
    metric("weir_unreadable_files", Gauge, "Files of --files that cannot be read. Their objects stay in force."),
    metric("weir_waiting_changes", Gauge, "Changes that wait for a generation, by effect: isolating or allowing."),
    metric("weir_waiting_seconds", Gauge, "Age of the oldest change that waits for a generation, by effect."),
    metric("weir_watch_connected", Gauge, "Whether the watch of a kind of objects is connected (1) or not (0)."),
    metric("weir_watch_faults_total", Counter, "Interruptions of a watch that the server did not announce."),
    metric(
        "weir_whole_generations_total",
        Counter,
        "Compiles from scratch, by the reason why changes could not be applied to the generation in force.",
    ),
    metric("weir_build_info", Gauge, "The constant 1, with the version, commit and platform of the agent."),
    metric("process_cpu_seconds_total", Counter, "CPU time that the agent has used."),
    metric("process_max_fds", Gauge, "Limit of the agent's open file descriptors."),
    metric("process_open_fds", Gauge, "Open file descriptors of the agent."),
    metric("process_resident_memory_bytes", Gauge, "Memory that the agent uses."),
    metric("process_start_time_seconds", Gauge, "Time at which the agent was started, in seconds since 1970."),
    metric("process_threads", Gauge, "Threads of the agent."),
    metric("process_virtual_memory_bytes", Gauge, "Address space of the agent."),
];

/// A label's name and value.
pub(crate) type MetricLabel<'l> = (&'static str, &'l str);

/// All metrics and the readiness, shared by threads.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The values of each metric, by their labels as Prometheus reads them.
    values: BTreeMap<&'static str, BTreeMap<String, f64>>,
    distributions: BTreeMap<&'static str, Distribution>,
    unready: Vec<String>,
    notes: Vec<String>,
    synced: bool,
    hooks_checked: Option<Instant>,
}

#[derive(Debug, Default)]
struct Distribution {
    /// The count of each bucket alone. [`Distribution::write`] adds them up.
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // After a panic in another thread, at most one metric is incomplete.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to a counter.
    pub(crate) fn add(&self, name: &'static str, labels: &[MetricLabel<'_>], by: f64) {
        debug_assert!(is(name, Counter), "{name} is no counter");
        *self.lock().values.entry(name).or_default().entry(written(labels)).or_default() += by;
    }

    /// Sets the value of a gauge, or of a counter that is kept elsewhere, such as in the kernel.
    pub(crate) fn set(&self, name: &'static str, labels: &[MetricLabel<'_>], value: f64) {
        debug_assert!(is(name, Gauge) || is(name, Counter), "{name} is no value");
        self.lock().values.entry(name).or_default().insert(written(labels), value);
    }

    /// Removes all values of a metric, so that labels that are not set again disappear.
    pub(crate) fn clear(&self, name: &'static str) {
        self.lock().values.remove(name);
    }

    /// Adds a duration to a histogram.
    pub(crate) fn observe(&self, name: &'static str, took: Duration) {
        debug_assert!(is(name, Histogram), "{name} is no histogram");
        let seconds = took.as_secs_f64();
        let mut inner = self.lock();
        let distribution = inner.distributions.entry(name).or_default();
        if let Some(bucket) = BUCKETS.iter().position(|bound| seconds <= *bound) {
            distribution.counts[bucket] += 1;
        }
        distribution.count += 1;
        distribution.sum += seconds;
    }

    pub(crate) fn connected(&self, kind: &str, is: bool) {
        self.set("weir_watch_connected", &[("kind", kind)], f64::from(u8::from(is)));
    }

    /// Removes the state of a watch that is not wanted: it is neither connected nor interrupted.
    pub(crate) fn not_followed(&self, kind: &str) {
        let mut inner = self.lock();
        inner.values.get_mut("weir_watch_connected").map(|values| values.remove(&written(&[("kind", kind)])));
    }

    pub(crate) fn watch_fault(&self, kind: &str) {
        self.add("weir_watch_faults_total", &[("kind", kind)], 1.0);
    }

    /// Sets the reasons why the agent is not ready. With an empty list, it is ready.
    pub(crate) fn set_unready(&self, why: &[String]) {
        let mut inner = self.lock();
        inner.unready = lines(why);
        inner.synced = true;
    }

    /// Sets the notes about inputs, which do not affect readiness.
    pub(crate) fn set_notes(&self, notes: &[String]) {
        self.lock().notes = lines(notes);
    }

    /// The notes, each on a line.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.lock().notes.clone()
    }

    /// Records a check of the kernel.
    pub(crate) fn hooks_checked(&self, at: Instant) {
        self.lock().hooks_checked = Some(at);
    }

    /// The reasons why the agent is not ready; `None` if it is ready.
    pub(crate) fn unready(&self) -> Option<String> {
        let inner = self.lock();
        match inner.synced {
            false => Some("the agent has not listed all objects yet".to_owned()),
            true => {
                let age = inner.hooks_checked.map(|at| at.elapsed()).filter(|age| *age > OLDEST_CHECK);
                let old = age.map(|age| format!("the last check of the kernel was {} s ago", age.as_secs()));
                let why: Vec<String> = inner.unready.iter().cloned().chain(old).collect();
                (!why.is_empty()).then(|| why.join("\n"))
            }
        }
    }

    /// Sets the metric that identifies the build.
    pub(crate) fn set_build_info(&self) {
        let target = build_info::target();
        let labels = [("version", build_info::VERSION), ("commit", build_info::COMMIT), ("target", &*target)];
        self.set("weir_build_info", &labels, 1.0);
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self) -> String {
        process::read().into_iter().for_each(|(name, value)| self.set(name, &[], value));
        // The lock is not held while the value is set.
        let age = self.lock().hooks_checked.map(|at| at.elapsed());
        if let Some(age) = age {
            self.set("weir_look_age_seconds", &[], age.as_secs_f64());
        }
        let inner = self.lock();
        let mut text = String::new();
        for MetricInfo { name, kind, meaning } in METRICS {
            let mut lines = String::new();
            for (labels, value) in inner.values.get(name).into_iter().flatten() {
                _ = writeln!(lines, "{name}{labels} {value}");
            }
            if let Some(distribution) = inner.distributions.get(name) {
                distribution.write(name, &mut lines);
            }
            if !lines.is_empty() {
                let kind = match kind {
                    Counter => "counter",
                    Gauge => "gauge",
                    Histogram => "histogram",
                };
                _ = write!(text, "# HELP {name} {meaning}\n# TYPE {name} {kind}\n{lines}");
            }
        }
        text
    }
}

impl Distribution {
    fn write(&self, name: &str, text: &mut String) {
        let mut so_far = 0;
        for (bound, count) in BUCKETS.iter().zip(self.counts) {
            so_far += count;
            _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {so_far}");
        }
        let Self { count, sum, .. } = self;
        _ = write!(text, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}\n");
    }
}

/// Texts from outside, without characters that could end a line or control a terminal.
fn lines(texts: &[String]) -> Vec<String> {
    texts.iter().map(|it| escape::line(it).into_owned()).collect()
}

fn is(name: &str, kind: MetricType) -> bool {
    METRICS.iter().any(|it| it.name == name && it.kind == kind)
}

/// Labels as Prometheus reads them: `{kind="Pod",why="…"}`, or nothing.
fn written(labels: &[MetricLabel<'_>]) -> String {
    let mut text = String::new();
    for (at, (name, value)) in labels.iter().enumerate() {
        text.push(if at == 0 { '{' } else { ',' });
        [name, "=\"", &escaped(value), "\""].into_iter().for_each(|it| text.push_str(it));
    }
    if !labels.is_empty() {
        text.push('}');
    }
    text
}

/// A label's value, as Prometheus reads it. Nearly all values are words that need no change.
fn escaped(value: &str) -> Cow<'_, str> {
    if value.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'-' | b'.' | b'/')) {
        return Cow::Borrowed(value);
    }
    let visible = value.split('\n').map(escape::line).collect::<Vec<_>>().join("\n");
    Cow::Owned(visible.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn histogram_buckets_are_cumulative() {
        let metrics = Metrics::default();
        for milliseconds in [4, 7, 60, 5_000_000] {
            metrics.observe("weir_pod_enforced_seconds", Duration::from_millis(milliseconds));
        }
        let text = metrics.text();
        for line in [
            "# TYPE weir_pod_enforced_seconds histogram",
            "weir_pod_enforced_seconds_bucket{le=\"0.005\"} 1",
            "weir_pod_enforced_seconds_bucket{le=\"0.01\"} 2",
            "weir_pod_enforced_seconds_bucket{le=\"0.1\"} 3",
            "weir_pod_enforced_seconds_bucket{le=\"3600\"} 3",
            "weir_pod_enforced_seconds_bucket{le=\"+Inf\"} 4",
            "weir_pod_enforced_seconds_count 4",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn label_values_are_escaped() {
        let metrics = Metrics::default();
        metrics.set("weir_unenforced_objects", &[("kind", "Pod"), ("why", "a \"b\"\n\\")], 1.0);
        let expected = "weir_unenforced_objects{kind=\"Pod\",why=\"a \\\"b\\\"\\n\\\\\"} 1";
        assert!(metrics.text().contains(expected), "{}", metrics.text());
    }

    #[test]
    fn metric_names_end_in_their_unit() {
        for MetricInfo { name, kind, meaning } in METRICS {
            assert_eq!(name.ends_with("_total"), *kind == Counter, "{name}");
            assert!(*kind != Histogram || name.ends_with("_seconds"), "{name}");
            assert!(meaning.ends_with('.'), "{name}");
        }
    }

    /// The words of a text that begin like the names of our metrics.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("weir_") || word.starts_with("process_")).collect()
    }

    #[test]
    fn dashboard_and_alerts_use_only_existing_metrics() {
        let deploy = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let dashboard = deploy("grafana/weir.json");
        let _: serde_json::Value = serde_json::from_str(&dashboard).expect("it is JSON");
        for text in [dashboard, deploy("alerts.yaml")] {
            assert!(named(&text).len() > 5);
            for name in named(&text) {
                let bucket = name.strip_suffix("_bucket");
                let there = bucket.map_or_else(|| is(name, Counter) || is(name, Gauge), |name| is(name, Histogram));
                assert!(there, "there is no {name}");
            }
        }
    }

    #[test]
    fn every_metric_is_documented() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/watch.md");
        let text = std::fs::read_to_string(path).expect("it is in the tree");
        METRICS.iter().for_each(|it| assert!(named(&text).contains(it.name), "{}", it.name));
    }

    #[test]
    fn unready_gives_the_reasons() {
        let metrics = Metrics::default();
        assert!(metrics.unready().is_some());
        metrics.set_unready(&["pod shop/web".to_owned()]);
        assert_eq!(metrics.unready().as_deref(), Some("pod shop/web"));
        metrics.set_unready(&[]);
        assert_eq!(metrics.unready(), None);
    }
}
