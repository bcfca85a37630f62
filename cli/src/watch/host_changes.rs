//! Notifies the agent of changes of the host, so that it does not have to poll quickly.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use weir_runtime::sys::Notifier;

use super::AgentMessage;
use super::log::{Log, Value};

/// Changes within this time are combined into one notification.
const GATHER: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_secs(60);
/// The pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// A notification. At most one is in the channel at a time.
#[derive(Debug, Default)]
pub(crate) struct HostNotification {
    is_under_way: Arc<AtomicBool>,
}

impl HostNotification {
    /// After this call, the next change sends a new notification.
    pub(crate) fn received(&self) {
        self.is_under_way.store(false, Ordering::SeqCst);
    }
}

/// Starts the thread that notifies the agent until the agent ends. If the thread fails, the agent polls.
pub(crate) fn listen(cache: PathBuf, agent: Sender<AgentMessage>, log: Log) -> Result<()> {
    let thread = thread::Builder::new().name("host".to_owned());
    thread.spawn(move || follow(&cache, &agent, log)).context("cannot start a thread")?;
    Ok(())
}

fn follow(cache: &std::path::Path, agent: &Sender<AgentMessage>, log: Log) {
    let mut notifier = match Notifier::open(cache) {
        Ok(notifier) => notifier,
        Err(error) => {
            log.warn(
                "cannot subscribe to changes of this host; polling instead",
                &[("error", Value::from(error.to_string()))],
            );
            return;
        }
    };
    let is_under_way = Arc::new(AtomicBool::new(false));
    loop {
        match notifier.wait(LONGEST) {
            Ok(false) => {}
            Ok(true) => {
                let is_sent = is_under_way.swap(true, Ordering::SeqCst)
                    || agent
                        .send(AgentMessage::HostChanged(HostNotification { is_under_way: Arc::clone(&is_under_way) }))
                        .is_ok();
                if !is_sent {
                    return;
                }
                thread::sleep(GATHER);
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
