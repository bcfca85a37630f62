//! Notifies the agent of changes of the host, so that it does not have to poll quickly.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use weir_runtime::sys::{ChangedInterfaces, Notifier};

use super::AgentMessage;
use super::log::{Log, Value};

/// Changes within this time are combined into one notification.
const GATHER: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_secs(60);
/// The pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// A notification. At most one is in the channel at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostNotification {
    /// The changes since the last notification was received.
    changed: Arc<Mutex<Option<ChangedInterfaces>>>,
}

impl HostNotification {
    /// Adds changes. Returns whether to send the notification: it is not in the channel.
    fn add(&self, more: ChangedInterfaces) -> bool {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *changed {
            Some(changed) => {
                changed.add(more);
                false
            }
            none => none.replace(more).is_none(),
        }
    }

    /// After this call, the next change sends a new notification.
    pub(crate) fn received(&self) -> ChangedInterfaces {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        changed.take().unwrap_or(ChangedInterfaces::NONE)
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
    let notification = HostNotification::default();
    loop {
        match notifier.wait(LONGEST) {
            Ok(None) => {}
            Ok(Some(changed)) => {
                if notification.add(changed) && agent.send(AgentMessage::HostChanged(notification.clone())).is_err() {
                    return;
                }
                thread::sleep(GATHER);
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
