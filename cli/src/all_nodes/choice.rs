//! Which nodes are asked, and the agent's pod on each.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use http::Request;
use kube::{Client, Error};
use serde_json::Value;

use super::NodeSummary;
use crate::api_kinds::escape;
use crate::args::AgentArgs;
use crate::failure::{chain, with_hint};

/// The name of the agent's container in the chart.
const CONTAINER: &str = "weir";
/// The number of objects on a page of a list.
const PAGE: u32 = 500;

/// The agent's pod on a node, and how to run its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) container: String,
    /// The program's path in the container.
    pub(crate) program: String,
    /// The agent's own `--bpffs`, if it has one.
    pub(crate) bpffs: Option<String>,
}

/// A node that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChosenNode {
    pub(super) node: String,
    pub(super) pod: AgentPod,
}

/// Why a list could not be read.
enum ListError {
    Refused { code: u16, message: String },
    Other(String),
}

/// Finds the nodes. A node without an agent that can be asked is a failure in the summary.
pub(super) async fn choose(client: &Client, arguments: &AgentArgs) -> Result<(Vec<ChosenNode>, NodeSummary)> {
    let (mut chosen, mut summary) = (Vec::new(), NodeSummary::default());
    let path = format!("/api/v1/namespaces/{}/pods", escape(&arguments.agent_namespace));
    let pods = list(client, &path, Some(&arguments.agent_selector)).await;
    let pods =
        pods.map_err(|it| explained(it, &format!("the agents' pods in namespace {}", arguments.agent_namespace)))?;
    let mut pods_of: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for pod in pods {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        pods_of.entry(node).or_default().push(pod);
    }
    if let Some(unscheduled) = pods_of.remove("") {
        summary.notes.push(format!("{} of the agents' pods are on no node yet", unscheduled.len()));
    }
    for node in nodes(client, arguments, &pods_of, &mut summary).await? {
        let pods = pods_of.get(&node).map(Vec::as_slice).unwrap_or_default();
        match agent_pod(pods) {
            Ok(pod) => chosen.push(ChosenNode { node, pod }),
            Err(why) => summary.fail(&node, why),
        }
    }
    Ok((chosen, summary))
}

/// The names of the chosen nodes. Without the permission to list nodes, those are known that have an agent.
async fn nodes(
    client: &Client,
    arguments: &AgentArgs,
    pods_of: &BTreeMap<String, Vec<Value>>,
    summary: &mut NodeSummary,
) -> Result<BTreeSet<String>> {
    if !arguments.nodes.is_empty() {
        return Ok(arguments.nodes.iter().cloned().collect());
    }
    match list(client, "/api/v1/nodes", arguments.node_selector.as_deref()).await {
        Ok(nodes) => Ok(nodes.iter().filter_map(|it| it["metadata"]["name"].as_str()).map(str::to_owned).collect()),
        Err(ListError::Refused { code: 403, .. }) if arguments.node_selector.is_none() => {
            let note = "this user may not list nodes, so nodes without an agent are not known";
            summary.notes.push(note.to_owned());
            Ok(pods_of.keys().cloned().collect())
        }
        Err(error) => Err(explained(error, "the nodes")),
    }
}

/// The pod to ask, among the agents' pods of a node. During an update there can be two.
fn agent_pod(pods: &[Value]) -> Result<AgentPod, String> {
    let is_running =
        |it: &&Value| it["status"]["phase"] == "Running" && it["metadata"].get("deletionTimestamp").is_none();
    let name = |it: &Value| it["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    // RFC 3339 in UTC: the order of the texts is the order of the times.
    let newest = pods.iter().filter(is_running).max_by_key(|it| it["metadata"]["creationTimestamp"].as_str());
    let Some(pod) = newest else {
        return Err(match pods.first() {
            Some(pod) => {
                let phase = pod["status"]["phase"].as_str().unwrap_or("in an unknown phase");
                let ending = pod["metadata"].get("deletionTimestamp").is_some();
                let phase = if ending { "being deleted" } else { phase };
                format!("its agent's pod {} is not running: it is {phase}", name(pod))
            }
            None => "no agent runs on it".to_owned(),
        });
    };
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let container = containers.iter().find(|it| it["name"] == CONTAINER).or(containers.first());
    let Some(container) = container else { return Err(format!("its agent's pod {} has no container", name(pod))) };
    let words = |field: &str| container[field].as_array().into_iter().flatten().filter_map(Value::as_str);
    let bpffs = words("args").find_map(|it| it.strip_prefix("--bpffs=")).map(str::to_owned);
    Ok(AgentPod {
        namespace: pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
        name: name(pod),
        container: container["name"].as_str().unwrap_or_default().to_owned(),
        program: words("command").next().unwrap_or("/weir").to_owned(),
        bpffs,
    })
}

async fn list(client: &Client, path: &str, labels: Option<&str>) -> Result<Vec<Value>, ListError> {
    let selector = labels.map(|it| format!("&labelSelector={}", escape(it))).unwrap_or_default();
    let (mut items, mut token) = (Vec::new(), String::new());
    loop {
        let more = if token.is_empty() { String::new() } else { format!("&continue={}", escape(&token)) };
        let request = Request::get(format!("{path}?limit={PAGE}{selector}{more}")).body(Vec::new());
        let request = request.map_err(|error| ListError::Other(error.to_string()))?;
        let page: Value = match client.request(request).await {
            Ok(page) => page,
            Err(Error::Api(status)) => {
                return Err(ListError::Refused { code: status.code, message: status.message.clone() });
            }
            Err(error) => return Err(ListError::Other(chain(&error))),
        };
        items.extend(page["items"].as_array().into_iter().flatten().cloned());
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            return Ok(items);
        }
    }
}

fn explained(error: ListError, what: &str) -> anyhow::Error {
    match error {
        ListError::Refused { code: code @ (401 | 403), message } => with_hint(
            format!("cannot list {what}: the API server answered {code}: {message}"),
            "docs/troubleshooting.md has the permissions that the user needs",
        ),
        ListError::Refused { code, message } => {
            with_hint(format!("cannot list {what}: the API server answered {code}: {message}"), super::HINT)
        }
        ListError::Other(message) => with_hint(format!("cannot list {what}: {message}"), super::HINT),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, phase: &str, created: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "kube-system", "creationTimestamp": created},
            "spec": {"containers": [{"name": "sidecar"}, {"name": "weir", "args": ["watch", "--bpffs=/run/bpf"]}]},
            "status": {"phase": phase}})
    }

    #[test]
    fn newest_running_pod_is_asked_with_the_agents_own_pins() {
        let mut ending = pod("c", "Running", "2026-01-03T00:00:00Z");
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-03T00:00:01Z");
        let pods = [pod("a", "Running", "2026-01-01T00:00:00Z"), pod("b", "Running", "2026-01-02T00:00:00Z"), ending];
        let found = agent_pod(&pods).expect("it runs");
        assert_eq!((found.name.as_str(), found.container.as_str()), ("b", "weir"));
        assert_eq!((found.program.as_str(), found.bpffs.as_deref()), ("/weir", Some("/run/bpf")));
    }

    #[test]
    fn node_without_a_running_agent_has_a_reason() {
        assert_eq!(agent_pod(&[]), Err("no agent runs on it".to_owned()));
        let pending = agent_pod(&[pod("a", "Pending", "2026-01-01T00:00:00Z")]);
        assert_eq!(pending, Err("its agent's pod a is not running: it is Pending".to_owned()));
    }
}
