//! `weir watch --wait-for-uninstall`: waits until the pods of a DaemonSet have cleaned their nodes, and deletes it.
//!
//! Helm waits for Jobs and not for DaemonSets, so a Job of the chart runs this. If nodes are away, the DaemonSet stays:
//! its pods clean these nodes when they come back, and the command fails with the nodes' names.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use http::{Method, Request};
use kube::Client;
use serde_json::Value as Json;

use super::super::log::{Log, Value};
use crate::api_config;
use crate::failure::{chain, with_hint};

/// The time between two requests.
const INTERVAL: Duration = Duration::from_secs(1);

/// What to wait for.
pub(crate) struct WaitOptions<'o> {
    pub(crate) kubeconfig: Option<&'o Path>,
    pub(crate) namespace: &'o str,
    /// The DaemonSet's name.
    pub(crate) name: &'o str,
    pub(crate) patience: Duration,
    pub(crate) log: Log,
}

pub(crate) fn run(options: &WaitOptions<'_>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let hint = "name a kubeconfig: --kubeconfig FILE";
        let config = api_config::read(options.kubeconfig, None, hint).await?;
        let client = Client::try_from(config).context("cannot connect to the API server")?;
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", options.namespace, options.name);
        wait(&client, &path, options).await?;
        request(&client, Method::DELETE, &path).await.with_context(|| format!("cannot delete {}", options.name))?;
        options.log.info("every node is clean", &[("daemonset", Value::from(options.name))]);
        Ok(())
    })
}

async fn wait(client: &Client, path: &str, options: &WaitOptions<'_>) -> Result<()> {
    let began = Instant::now();
    loop {
        let object = request(client, Method::GET, path).await;
        match &object {
            Ok(object) if is_ready(object) => return Ok(()),
            // The server may be away for a moment.
            Err(error) => options.log.warn("cannot read the DaemonSet", &[("error", chain(&**error).into())]),
            Ok(_) => {}
        }
        if began.elapsed() > options.patience {
            return Err(not_ready(client, object?, options).await);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn not_ready(client: &Client, object: Json, options: &WaitOptions<'_>) -> anyhow::Error {
    let pods = request(client, Method::GET, &format!("/api/v1/namespaces/{}/pods", options.namespace)).await;
    let nodes = pods.map(|pods| nodes_not_ready(&pods, &object)).unwrap_or_default();
    let named = if nodes.is_empty() { "their names are not known".to_owned() } else { nodes.join(", ") };
    let (namespace, name) = (options.namespace, options.name);
    with_hint(
        format!("nodes are not clean after {} s: {named}", options.patience.as_secs()),
        format!("{name} cleans them when they are back; then `kubectl delete daemonset,job -n {namespace} {name}`"),
    )
}

async fn request(client: &Client, method: Method, path: &str) -> Result<Json> {
    let request = Request::builder().method(method).uri(path).body(Vec::new())?;
    Ok(client.request(request).await?)
}

/// Whether the DaemonSet's controller has seen its present form, and the pods of all nodes are ready.
fn is_ready(object: &Json) -> bool {
    let number = |of: &str, name: &str| object[of][name].as_i64();
    let seen = number("status", "observedGeneration") >= number("metadata", "generation");
    let wanted = number("status", "desiredNumberScheduled");
    let ready = number("status", "numberReady");
    let updated = number("status", "updatedNumberScheduled").or(Some(0));
    seen && wanted.is_some() && wanted == ready && wanted == updated
}

/// The nodes whose pods of the DaemonSet are not ready.
fn nodes_not_ready(pods: &Json, owner: &Json) -> Vec<String> {
    let is_ready = |pod: &&Json| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    let is_owned = |pod: &&Json| {
        let mut owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.any(|it| it["uid"] == owner["metadata"]["uid"])
    };
    let pods = pods["items"].as_array().into_iter().flatten().filter(is_owned).filter(|pod| !is_ready(pod));
    let mut nodes: Vec<String> = pods.filter_map(node).collect();
    nodes.sort();
    nodes
}

/// The pod's node. A pod that waits for its node has it only as a requirement.
fn node(pod: &Json) -> Option<String> {
    let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0\
                    /matchFields/0/values/0";
    pod["spec"]["nodeName"].as_str().or_else(|| pod.pointer(required)?.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn daemon_set(generation: i64, status: &Json) -> Json {
        json!({"metadata": {"generation": generation, "uid": "u"}, "status": status})
    }

    #[test]
    fn daemon_set_is_ready_when_the_present_pods_of_all_nodes_are() {
        let status = |seen: i64, wanted: i64, updated: i64, ready: i64| {
            json!({"observedGeneration": seen, "desiredNumberScheduled": wanted,
                "updatedNumberScheduled": updated, "numberReady": ready})
        };
        assert!(is_ready(&daemon_set(1, &status(1, 2, 2, 2))));
        assert!(!is_ready(&daemon_set(1, &status(1, 2, 2, 1))), "a node is not clean");
        assert!(!is_ready(&daemon_set(2, &status(1, 2, 2, 2))), "the controller has not seen the change");
        assert!(!is_ready(&daemon_set(1, &status(1, 2, 1, 2))), "a pod is of the old template");
        assert!(!is_ready(&daemon_set(1, &json!({}))), "the controller has not seen the object");
        assert!(is_ready(&daemon_set(
            1,
            &json!({"observedGeneration": 1, "desiredNumberScheduled": 0, "numberReady": 0})
        )));
    }

    #[test]
    fn nodes_that_are_not_clean_are_named() {
        let pod = |owner: &str, ready: &str, spec: Json| {
            json!({"metadata": {"ownerReferences": [{"uid": owner}]}, "spec": spec,
                "status": {"conditions": [{"type": "Ready", "status": ready}]}})
        };
        let waiting = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "values": ["n3"]}]}]}}}});
        let pods = json!({"items": [
            pod("u", "True", json!({"nodeName": "n1"})),
            pod("u", "False", json!({"nodeName": "n2"})),
            pod("u", "False", waiting),
            pod("other", "False", json!({"nodeName": "n4"})),
        ]});
        assert_eq!(nodes_not_ready(&pods, &daemon_set(1, &json!({}))), ["n2", "n3"]);
    }
}
