//! The objects of a live cluster, read through its API: what `cluster:` names in a comparison.
//!
//! The answer is one text with all objects in the form in which `kubectl get --output=json` prints them, so findings
//! show the lines that a user can look up there.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use http::Request;
use kube::{Client, Error};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;
use weir_objects::decode::ForeignPolicyKind;

use crate::api_config;
use crate::api_kinds::{self, Resource, escape};
use crate::failure::{caused, chain, with_hint};
use crate::page;
use crate::served_policies::served;

/// Every kind that Weir reads: those that the agent watches, and workloads, whose pods the agent sees.
fn kinds() -> Vec<Resource> {
    let mut kinds = api_kinds::kinds();
    kinds.extend([
        Resource::new("Deployment", "apps/v1", "/apis/apps/v1/deployments"),
        Resource::new("StatefulSet", "apps/v1", "/apis/apps/v1/statefulsets"),
        Resource::new("DaemonSet", "apps/v1", "/apis/apps/v1/daemonsets"),
        Resource::new("ReplicaSet", "apps/v1", "/apis/apps/v1/replicasets"),
        Resource::new("ReplicationController", "v1", "/api/v1/replicationcontrollers"),
        Resource::new("Job", "batch/v1", "/apis/batch/v1/jobs"),
        Resource::new("CronJob", "batch/v1", "/apis/batch/v1/cronjobs"),
    ]);
    kinds
}

/// The number of objects on a page of a list.
const PAGE: u32 = 500;
/// The limit for one page.
const ANSWER: Duration = Duration::from_secs(60);
/// How often a list begins again because the server forgot its version before the last page.
const MOST_ATTEMPTS: u32 = 5;
const HINT: &str = "the cluster is read with the kubeconfig that kubectl uses: `kubectl get pods -A` must work";

/// Why a list could not be read.
enum ListError {
    /// The server has answered with an error.
    Refused {
        code: u16,
        message: String,
    },
    Other(anyhow::Error),
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Option<Vec<Map<String, Value>>>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    token: String,
}

/// All relevant objects of a cluster, as the JSON text of a `List`: also the policies that Weir does not read, so that
/// an answer cannot leave them out silently. `context` is one of the kubeconfig's contexts; without it, the current
/// one. The user need not have the permission to list the ignored kinds.
pub(crate) fn objects(context: Option<&str>, ignored: &[&'static ForeignPolicyKind]) -> Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let config = api_config::read(None, context, HINT).await?;
        let client = Client::try_from(config).context("cannot connect to the API server")?;
        let mut text = br#"{"apiVersion": "v1", "kind": "List", "items": ["#.to_vec();
        let start = text.len();
        let mut add = |objects: Vec<Map<String, Value>>| {
            objects.iter().try_for_each(|object| {
                text.extend_from_slice(if text.len() == start { b"\n" } else { b",\n" });
                serde_json::to_writer_pretty(&mut text, object)
            })
        };
        for kind in &kinds() {
            match all(&client, kind).await {
                Ok(objects) => add(objects)?,
                Err(ListError::Refused { code: 404, .. }) if kind.optional => {}
                Err(error) => return Err(explained(error, kind)),
            }
        }
        let others = served(&client).await.map_err(|error| {
            with_hint(format!("cannot ask the API server which kinds it has: {}", chain(&error)), HINT)
        })?;
        for other in others {
            let kind = Resource::new(other.kind.kind, other.version, other.path);
            match all(&client, &kind).await {
                Ok(objects) => add(objects)?,
                Err(ListError::Refused { code: 401 | 403, .. }) if ignored.contains(&other.kind) => {
                    page::print_to_stderr(format_args!(
                        "note: left out, and not counted without the permission to list it: {}",
                        other.kind.name()
                    ));
                }
                Err(error) => {
                    let name = other.kind.name();
                    let hint = match ForeignPolicyKind::named(&name) {
                        Some(_) => format!("to answer without this kind, add `--ignore-kind {name}`"),
                        None => format!("weir knows {name}, but not {}: is there a newer weir?", kind.version),
                    };
                    return Err(caused(explained(error, &kind), "the cluster has policies that weir must count", hint));
                }
            }
        }
        text.extend_from_slice(b"\n]}\n");
        Ok(text)
    })
}

fn explained(error: ListError, kind: &Resource) -> anyhow::Error {
    let list = format!("cannot list the objects of kind {}", kind.kind);
    match error {
        ListError::Refused { code: code @ (401 | 403), message } => with_hint(
            format!("{list}: the API server answered {code}: {message}"),
            "the user needs the permission to list this kind in all namespaces",
        ),
        ListError::Refused { code, message } => {
            with_hint(format!("{list}: the API server answered {code}: {message}"), HINT)
        }
        ListError::Other(error) => with_hint(format!("{list}: {error:#}"), HINT),
    }
}

/// All objects of a kind. If the server forgets the version of the first page before the last one is read, the list
/// begins again, because pages of two versions can lack an object.
async fn all(client: &Client, kind: &Resource) -> Result<Vec<Map<String, Value>>, ListError> {
    let (mut objects, mut token, mut attempts) = (Vec::new(), String::new(), 1);
    loop {
        let page = match page(client, kind, &token).await {
            Err(ListError::Refused { code: 410, .. }) if !token.is_empty() && attempts < MOST_ATTEMPTS => {
                attempts += 1;
                objects.clear();
                token.clear();
                continue;
            }
            page => page?,
        };
        objects.extend(page.items.unwrap_or_default().into_iter().map(|item| shown(kind, item)));
        token = page.metadata.token;
        if token.is_empty() {
            return Ok(objects);
        }
    }
}

async fn page(client: &Client, kind: &Resource, token: &str) -> Result<Page, ListError> {
    let more = if token.is_empty() { String::new() } else { format!("&continue={}", escape(token)) };
    let request = Request::get(format!("{}?limit={PAGE}{more}", kind.path)).body(Vec::new());
    let request = request.map_err(|error| ListError::Other(error.into()))?;
    let silent = |_| ListError::Other(anyhow!("the API server sent no answer for {} seconds", ANSWER.as_secs()));
    let text = match timeout(ANSWER, client.request_text(request)).await.map_err(silent)? {
        Ok(text) => text,
        Err(Error::Api(status)) => {
            return Err(ListError::Refused { code: status.code, message: status.message.clone() });
        }
        Err(error) => return Err(ListError::Other(anyhow!(chain(&error)))),
    };
    serde_json::from_str(&text).map_err(|error| ListError::Other(anyhow!("the answer is not a list: {error}")))
}

/// The object as kubectl shows it: with `apiVersion` and `kind`, which items of a list do not have, and without the
/// record of who manages which field.
fn shown(kind: &Resource, item: Map<String, Value>) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), kind.version.as_ref().into());
    object.insert("kind".to_owned(), kind.kind.into());
    object.extend(item);
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    object
}
