//! The API server as the source of objects: a follower for each kind, and the tasks that write to the server.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use anyhow::{Context as _, Result};
use kube::Client;
use tokio::sync::Mutex;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use super::AgentMessage;
use super::agent::{RelistKind, SendOrder};
use super::annotate::{self, PublishedGeneration};
use super::api_health::ApiHealth;
use super::follow::{self, FollowContext, FollowRequests, RelistRequests};
use super::log::Log;
use super::metrics::Metrics;
use super::notices::{self, Notice};
use super::other_policies;
use super::resources::{self, Resource};
use super::scope::FollowOrders;
use super::supervise::Supervisor;
use crate::api_config;

/// The connection's configuration, and a follower's channels for each kind.
pub(super) struct ApiFeed {
    config: kube::Config,
    followers: Vec<(Resource, FollowRequests)>,
}

/// The ends of the channels that the agent has.
pub(super) struct AgentRequests {
    pub(super) relist: Box<RelistKind>,
    pub(super) send_order: Box<SendOrder>,
}

/// The connections of the tasks to the rest of the process.
pub(super) struct FeedContext {
    pub(super) node: String,
    pub(super) agent: Sender<AgentMessage>,
    pub(super) notices: Receiver<Notice>,
    /// The generation in force, if pods are annotated with it.
    pub(super) annotate: Option<watch::Receiver<PublishedGeneration>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Log,
}

impl ApiFeed {
    /// Reads the configuration. Connects to nothing.
    pub(super) async fn new(kubeconfig: Option<&Path>, node: &str) -> Result<(Self, AgentRequests)> {
        let config = api_config::read(kubeconfig, None, "name a kubeconfig: --kubeconfig FILE").await?;
        let resources = resources::resources(node);
        let relist = RelistRequests::new(resources.iter().map(|resource| resource.kind));
        let orders = FollowOrders::new(resources.iter().map(|resource| resource.kind));
        let channels = |resource: &Resource| FollowRequests {
            relist: relist.receiver(resource.kind),
            orders: orders.receiver(resource.kind),
        };
        let followers = resources.into_iter().map(|resource| (channels(&resource), resource));
        let followers = followers.map(|(requests, resource)| (resource, requests)).collect();
        let requests = AgentRequests {
            relist: Box::new(move |kind| relist.send(kind)),
            send_order: Box::new(move |kind, order| orders.send(kind, order)),
        };
        Ok((Self { config, followers }, requests))
    }

    /// The server's address.
    pub(super) fn server(&self) -> String {
        self.config.cluster_url.to_string()
    }

    /// Starts all tasks. They end with the runtime.
    pub(super) fn spawn(self, context: FeedContext) -> Result<()> {
        let FeedContext { node, agent, notices, annotate, metrics, log } = context;
        let client = Client::try_from(self.config).context("cannot connect to the API server")?;
        let supervisor = Supervisor { metrics: Arc::clone(&metrics), log };
        let notices = Arc::new(Mutex::new(notices));
        let (events_client, events_metrics, events_node) = (client.clone(), Arc::clone(&metrics), node.clone());
        supervisor.spawn("events", move || {
            let (client, metrics) = (events_client.clone(), Arc::clone(&events_metrics));
            notices::post(client, events_node.clone(), Arc::clone(&notices), metrics, log)
        });
        let (asking, asking_metrics) = (client.clone(), Arc::clone(&metrics));
        supervisor
            .spawn("other policies", move || other_policies::report(asking.clone(), Arc::clone(&asking_metrics), log));
        if let Some(in_force) = annotate {
            let client = client.clone();
            supervisor.spawn("annotations", move || annotate::annotate(client.clone(), in_force.clone(), log));
        }
        let context = FollowContext {
            client,
            agent,
            metrics,
            health: Arc::new(ApiHealth::new(log)),
            node: node.into(),
            begun: Instant::now(),
        };
        for (resource, requests) in self.followers {
            let context = context.clone();
            supervisor
                .spawn(resource.kind, move || follow::follow(context.clone(), resource.clone(), requests.clone()));
        }
        Ok(())
    }
}
