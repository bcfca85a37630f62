//! Reports the kinds of policies that the server serves and the agent does not enforce.
//!
//! Another project may enforce them beside the agent, or no program at all. The agent does not read their objects: it
//! has no permission for them, and only asks which kinds there are, which every user may.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::time::sleep;

use super::log::{Log, Value};
use super::metrics::Metrics;
use crate::failure::chain;
use crate::served_policies::served;

/// The time between two requests. Kinds come and go rarely.
const INTERVAL: Duration = Duration::from_secs(600);

/// Asks the server again and again, sets the metric, and logs each kind once.
pub(super) async fn report(client: Client, metrics: Arc<Metrics>, log: Log) {
    let mut logged = BTreeSet::new();
    loop {
        match served(&client).await {
            Ok(kinds) => {
                metrics.clear("weir_other_policy_kinds");
                for kind in kinds {
                    let name = kind.kind.name();
                    metrics.set("weir_other_policy_kinds", &[("kind", &name)], 1.0);
                    if logged.insert(name.clone()) {
                        log.warn(
                            "the server has a kind of policies that weir does not enforce",
                            &[("kind", Value::from(name)), ("project", Value::from(kind.kind.project))],
                        );
                    }
                }
            }
            // Enforcement does not depend on the answer.
            Err(error) => log.debug("cannot ask which kinds the server has", &[("error", chain(&error).into())]),
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use xtask::simulated::Simulated;

    use super::*;
    use crate::api_config;

    #[tokio::test]
    async fn kinds_that_the_server_has_are_exported() {
        let server = Simulated::start().expect("loopback is there");
        let path = std::env::temp_dir().join(format!("weir-other-policies-{}", std::process::id()));
        server.write_kubeconfig(&path).expect("the directory is ours");
        let client = Client::try_from(api_config::read(Some(&path), None, "").await.expect("it is valid"));
        let metrics = Arc::new(Metrics::default());
        let log = Log;
        let task = tokio::spawn(report(client.expect("it is valid"), Arc::clone(&metrics), log));
        // The second one is a kind that the agent reads, but served only in a version that it does not read.
        for kind in ["cilium.io/CiliumNetworkPolicy", "policy.networking.k8s.io/BaselineAdminNetworkPolicy"] {
            let expected = format!("weir_other_policy_kinds{{kind=\"{kind}\"}} 1\n");
            while !metrics.text().contains(&expected) {
                assert!(!task.is_finished(), "it never ends by itself");
                sleep(Duration::from_millis(5)).await;
            }
        }
        task.abort();
        _ = std::fs::remove_file(path);
    }
}
