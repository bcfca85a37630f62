//! The objects of a live cluster, read through its API: the input `cluster:`.
//!
//! The answer is one text with all objects in the form in which `kubectl get --output=json` prints them, so findings
//! show the lines that a user can look up there.

use std::path::Path;
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

/// Kinds whose objects are in no namespace.
const CLUSTER_WIDE: [&str; 6] =
    ["Namespace", "Node", "ClusterNetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "CidrList"];
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

/// The cluster and the part of it to read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClusterRequest<'r> {
    /// Without one, the file that kubectl would use.
    pub(crate) kubeconfig: Option<&'r Path>,
    /// One of the kubeconfig's contexts; without one, the current one.
    pub(crate) context: Option<&'r str>,
    /// Reads only this namespace and its objects.
    pub(crate) namespace: Option<&'r str>,
    /// Kinds of policies that the user need not have the permission to list.
    pub(crate) ignored: &'r [&'static ForeignPolicyKind],
}

/// The objects of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct LiveObjects {
    /// The JSON text of a `List`.
    pub(crate) text: Vec<u8>,
    /// The namespace of the kubeconfig's context.
    pub(crate) namespace: String,
    /// The only namespace that was read; `None` if all were.
    pub(crate) only: Option<String>,
    /// Kinds that the server does not serve, because their definition is not installed.
    pub(crate) unserved: Vec<&'static str>,
}

/// All relevant objects of a cluster, also the policies that Weir does not read, so that an answer cannot leave them
/// out silently.
pub(crate) fn objects(request: &ClusterRequest<'_>) -> Result<LiveObjects> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let config = api_config::read(request.kubeconfig, request.context, HINT).await?;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).context("cannot connect to the API server")?;
        let mut list = ListText::new();
        match request.namespace {
            Some(name) => add_namespace(&client, name, &mut list).await?,
            None => {
                for kind in &kinds() {
                    add_kind(&client, kind, &mut list).await?;
                }
                add_other_policies(&client, request.ignored, &mut list).await?;
            }
        }
        let (only, unserved) = (request.namespace.map(str::to_owned), std::mem::take(&mut list.unserved));
        Ok(LiveObjects { text: list.finish(), namespace, only, unserved })
    })
}

async fn add_kind(client: &Client, kind: &Resource, list: &mut ListText) -> Result<()> {
    match all(client, kind).await {
        Ok(objects) => list.add(&objects),
        Err(ListError::Refused { code: 404, .. }) if kind.optional => {
            list.unserved.push(kind.kind);
            Ok(())
        }
        Err(error) => Err(explained(error, kind)),
    }
}

/// Reads a namespace and the objects in it, which needs no permission for other namespaces.
async fn add_namespace(client: &Client, name: &str, list: &mut ListText) -> Result<()> {
    for mut kind in kinds().into_iter().filter(|it| !CLUSTER_WIDE.contains(&it.kind)) {
        let (version, plural) = kind.path.rsplit_once('/').unwrap_or_default();
        kind.path = format!("{version}/namespaces/{}/{plural}", escape(name)).into();
        add_kind(client, &kind, list).await?;
    }
    let namespaces = Resource {
        field_selector: Some(format!("metadata.name={name}")),
        ..Resource::new("Namespace", "v1", "/api/v1/namespaces")
    };
    match all(client, &namespaces).await {
        Ok(objects) if objects.is_empty() => {
            Err(with_hint(format!("the cluster has no namespace {name}"), "`kubectl get namespaces` lists them"))
        }
        Ok(objects) => list.add(&objects),
        Err(ListError::Refused { code: 401 | 403, .. }) => {
            page::print_to_stderr(format_args!(
                "note: without the permission to list namespaces, the labels of namespace {name} are not known"
            ));
            Ok(())
        }
        Err(error) => Err(explained(error, &namespaces)),
    }
}

/// The policies that Weir does not read.
async fn add_other_policies(
    client: &Client,
    ignored: &[&'static ForeignPolicyKind],
    list: &mut ListText,
) -> Result<()> {
    let others = served(client)
        .await
        .map_err(|error| with_hint(format!("cannot ask the API server which kinds it has: {}", chain(&error)), HINT))?;
    for other in others {
        let kind = Resource::new(other.kind.kind, other.version, other.path);
        match all(client, &kind).await {
            Ok(objects) => list.add(&objects)?,
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
    Ok(())
}

/// The text of a `List` with the objects that are added to it.
struct ListText {
    text: Vec<u8>,
    is_empty: bool,
    /// Kinds that the server does not serve.
    unserved: Vec<&'static str>,
}

impl ListText {
    fn new() -> Self {
        Self {
            text: br#"{"apiVersion": "v1", "kind": "List", "items": ["#.to_vec(),
            is_empty: true,
            unserved: Vec::new(),
        }
    }

    fn add(&mut self, objects: &[Map<String, Value>]) -> Result<()> {
        for object in objects {
            self.text.extend_from_slice(if self.is_empty { b"\n" } else { b",\n" });
            self.is_empty = false;
            serde_json::to_writer_pretty(&mut self.text, object)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        self.text.extend_from_slice(b"\n]}\n");
        self.text
    }
}

fn explained(error: ListError, kind: &Resource) -> anyhow::Error {
    let list = format!("cannot list the objects of kind {}", kind.kind);
    match error {
        ListError::Refused { code: code @ (401 | 403), message } => with_hint(
            format!("{list}: the API server answered {code}: {message}"),
            "the user needs the permission to list this kind; `weir check cluster: -n NAMESPACE` reads one namespace",
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
    let selector = kind.field_selector.as_ref().map(|it| format!("&fieldSelector={}", escape(it))).unwrap_or_default();
    let request = Request::get(format!("{}?limit={PAGE}{selector}{more}", kind.path)).body(Vec::new());
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
