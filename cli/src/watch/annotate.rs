//! Writes the generation in force into an annotation of each pod. Off by default: it costs the API server a write per
//! pod and generation.
//!
//! Strategy: only the last generation counts. It is written after a time without changes, a few pods per second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Error};
use serde_json::json;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;

use super::interfaces::LocalPod;
use super::log::Log;
use crate::failure::chain;

const ANNOTATION: &str = "weir.dev/generation";
/// Generations that follow each other within this time are written as one.
const GATHER: Duration = Duration::from_secs(2);
/// Pause between two pods.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause after the server refused a write.
const AGAIN: Duration = Duration::from_secs(30);

/// A generation, and the pods that it is in force on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedGeneration {
    pub(crate) generation: u32,
    pub(crate) pods: Vec<AnnotatedPod>,
}

/// A pod to annotate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AnnotatedPod {
    namespace: Arc<str>,
    name: Arc<str>,
    uid: Option<Arc<str>>,
}

impl From<&LocalPod> for AnnotatedPod {
    fn from(pod: &LocalPod) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

/// Annotates pods as long as the agent runs.
pub(crate) async fn annotate(client: Client, mut in_force: Receiver<PublishedGeneration>, log: Log) {
    let mut annotated = BTreeMap::new();
    while in_force.changed().await.is_ok() {
        sleep(GATHER).await;
        let now = in_force.borrow_and_update().clone();
        annotated.retain(|pod, _| now.pods.contains(pod));
        for pod in &now.pods {
            if in_force.has_changed().unwrap_or(true) {
                break;
            }
            if annotated.get(pod) == Some(&now.generation) {
                continue;
            }
            match patch(&client, pod, now.generation).await {
                Ok(()) => _ = annotated.insert(pod.clone(), now.generation),
                // The pod is gone, or another pod has its name now.
                Err(Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
                Err(error) => {
                    let (message, fields) = ("pods cannot be annotated; retrying", [("error", chain(&error).into())]);
                    match error {
                        Error::Api(_) => log.warn(message, &fields),
                        // The watches report that the server does not answer.
                        _ => log.debug(message, &fields),
                    }
                    sleep(AGAIN).await;
                    in_force.mark_changed();
                    break;
                }
            }
            sleep(PAUSE).await;
        }
    }
}

/// The UID makes the server refuse to annotate another pod of that name.
async fn patch(client: &Client, pod: &AnnotatedPod, generation: u32) -> Result<(), Error> {
    let AnnotatedPod { namespace, name, uid } = pod;
    let mut body = json!({"metadata": {"annotations": {ANNOTATION: generation.to_string()}}});
    if let Some(uid) = uid {
        body["metadata"]["uid"] = json!(**uid);
    }
    let request = http::Request::patch(format!("/api/v1/namespaces/{namespace}/pods/{name}"))
        .header("content-type", "application/merge-patch+json")
        .body(body.to_string().into_bytes());
    client.request_text(request.map_err(Error::HttpError)?).await.map(|_| ())
}
