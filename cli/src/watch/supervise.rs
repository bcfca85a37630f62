//! Restarts tasks that panic.
//!
//! Problem: tokio ends a task that panics silently. The agent would miss all changes of one kind of objects and still
//! report that it is alive.
//! Strategy: the task is restarted after a pause. A task that follows a kind begins with a list, so it misses nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::log::{Log, Value};
use super::metrics::Metrics;

const RESTART_PAUSE: Duration = if cfg!(test) { Duration::from_millis(1) } else { Duration::from_secs(1) };

pub(super) struct Supervisor {
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Log,
}

impl Supervisor {
    /// Runs a task until it returns or the runtime ends.
    pub(super) fn spawn<F>(&self, name: &'static str, begin: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (metrics, log) = (Arc::clone(&self.metrics), self.log);
        tokio::spawn(async move {
            while tokio::spawn(begin()).await.is_err_and(|error| error.is_panic()) {
                metrics.add("weir_panics_total", &[("task", name)], 1.0);
                log.error("bug: a task of the agent panicked; restarting it", &[("task", Value::from(name))]);
                sleep(RESTART_PAUSE).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn task_that_panics_is_restarted() {
        let metrics = Arc::new(Metrics::default());
        let supervisor = Supervisor { metrics: Arc::clone(&metrics), log: Log };
        let begun = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&begun);
        let (done, ended) = tokio::sync::mpsc::channel::<()>(1);
        supervisor.spawn("test", move || {
            let (times, done) = (count.fetch_add(1, Ordering::SeqCst), done.clone());
            async move {
                assert!(times >= 2, "it panics twice");
                _ = done.send(()).await;
            }
        });
        let mut ended = ended;
        ended.recv().await.expect("the third one ends");
        assert_eq!(begun.load(Ordering::SeqCst), 3);
        assert!(metrics.text().contains("weir_panics_total{task=\"test\"} 2\n"), "{}", metrics.text());
    }
}
