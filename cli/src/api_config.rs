//! How to reach the API server: the address and credentials of a kubeconfig, or of the pod that this process runs in.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::failure::caused;

const CONNECT: Duration = Duration::from_secs(10);

/// Reads the named kubeconfig; else the one that kubectl would use; else, without a context, the service account of
/// this process's own pod. The error about a missing configuration ends with `hint`.
pub(crate) async fn read(file: Option<&Path>, context: Option<&str>, hint: &str) -> Result<Config> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = match (file, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(anyhow::Error::from)
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(anyhow::Error::from),
        (None, None) => Config::infer().await.map_err(anyhow::Error::from),
    };
    let mut config = config.map_err(|error| match context {
        Some(context) => caused(
            error,
            format!("the kubeconfig has no usable context `{context}`"),
            "`kubectl config get-contexts` lists the contexts",
        ),
        None => caused(error, "no API server is configured", hint),
    })?;
    config.connect_timeout = Some(CONNECT);
    // The callers retry instead, because they know which faults need which wait.
    config.default_retry = false;
    Ok(config)
}
