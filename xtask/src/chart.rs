//! Checks of the chart with Helm itself: `cargo xtask check-chart`.
//!
//! Helm lints and renders the chart for each choice of values, and refuses values that the schema excludes. With
//! kube-apiserver ([`crate::apiserver`]), the server validates every rendered object: it knows each field of its kinds,
//! and refuses unknown ones. It does not have the kinds of the Prometheus operator.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use crate::apiserver::{self, ApiServer, Settings};
use crate::deploy;
use crate::helm::{self, Helm};

/// A name and values: `--set name=value` for each.
type Choice = &'static [(&'static str, &'static str)];

/// Values that the chart takes, in combinations that share templates.
pub const ACCEPTED: [Choice; 13] = [
    &[],
    &[("extraArgs[0]", "--dry-run")],
    &[("cni.enabled", "true"), ("annotatePods", "true")],
    &[
        ("cni.enabled", "true"),
        ("cni.onTimeout", "deny"),
        ("cni.binDir", "/usr/lib/cni"),
        ("cni.resources.limits.memory", "96Mi"),
        ("paths.run", "/var/run/weir"),
    ],
    &[("cni.remove", "true"), ("uninstall.keepCniPlugin", "true"), ("uninstall.timeoutSeconds", "30")],
    &[("uninstall.enabled", "false"), ("serviceAccount.create", "false"), ("rbac.create", "false")],
    &[
        ("health.probe", "exec"),
        ("metrics.enabled", "false"),
        ("logFormat", "text"),
        ("unknownPods", "deny"),
        ("cpuBudget", "2.5%"),
        ("logLevel", "warn"),
    ],
    &[
        ("metrics.listen", "loopback"),
        ("metrics.prometheusRule.enabled", "true"),
        ("metrics.dashboard.enabled", "true"),
    ],
    &[("metrics.podMonitor.enabled", "true"), ("metrics.podMonitor.labels.release", "prometheus")],
    &[
        ("metrics.proxy.enabled", "true"),
        ("metrics.proxy.image", "proxy:1"),
        ("metrics.serviceMonitor.enabled", "true"),
        ("metrics.proxy.resources.requests.cpu", "10m"),
    ],
    &[
        ("image.digest", "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
        ("imagePullSecrets[0].name", "registry"),
        ("fullnameOverride", "policy"),
        ("commonLabels.team", "net"),
        ("podAnnotations.a", "b"),
        ("podLabels.c", "d"),
    ],
    &[
        ("nodeSelector.disk", "ssd"),
        ("tolerations[0].key", "gpu"),
        ("tolerations[0].operator", "Exists"),
        ("priorityClassName", ""),
        ("appArmorProfile.type", "Localhost"),
        ("appArmorProfile.localhostProfile", "weir"),
        ("seLinuxOptions", "null"),
        (
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key",
            "a",
        ),
        (
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator",
            "Exists",
        ),
        ("extraArgs[0]", "--hook=clsact"),
        ("extraEnv[0].name", "RUST_BACKTRACE"),
        ("extraEnv[0].value", "full"),
        ("resources.limits.cpu", "1"),
    ],
    &[("updateStrategy.type", "OnDelete"), ("updateStrategy.rollingUpdate", "null"), ("nameOverride", "agent")],
];

/// Values that the chart refuses, and a part of the reason.
pub const REFUSED: [(Choice, &str); 15] = [
    (&[("metricsPort", "9345")], "metricsPort"),
    (&[("metrics.port", "0")], "minimum"),
    (&[("cpuBudget", "half")], "cpuBudget"),
    (&[("logLevel", "loud")], "logLevel"),
    (&[("metrics.listen", "pods")], "listen"),
    (&[("cni.onTimeout", "shrug")], "onTimeout"),
    (&[("cni.timeoutSeconds", "601")], "timeoutSeconds"),
    (&[("cni.confDir", "etc/cni")], "confDir"),
    (&[("image.digest", "latest")], "digest"),
    (&[("updateStrategy.rollingUpdate.maxSurge", "1")], "maxSurge"),
    (&[("extraArgs[0]", "watch")], "extraArgs"),
    (&[("extraArgs[0]", "--dry-run"), ("cni.enabled", "true")], "hold back every pod"),
    (&[("metrics.proxy.enabled", "true")], "an image of kube-rbac-proxy"),
    (&[("metrics.listen", "loopback"), ("metrics.podMonitor.enabled", "true")], "cannot reach /metrics"),
    (
        &[("metrics.proxy.enabled", "true"), ("metrics.proxy.image", "p:1"), ("metrics.podMonitor.enabled", "true")],
        "a PodMonitor cannot send",
    ),
];

/// `cargo xtask check-chart`
pub fn check() -> Result<()> {
    let helm = helm::build()?;
    check_rendering(&helm)?;
    for (name, text) in deploy::plain(&helm)? {
        ensure!(deploy::read(name)? == text, "deploy/{name} is not what the chart renders: `cargo xtask deploy`");
    }
    match apiserver::built() {
        Ok(_) => check_with_server(&helm)?,
        Err(error) => eprintln!("note: no API server validates the objects: {error:#}"),
    }
    Ok(())
}

/// Lints and renders every choice of values.
pub fn check_rendering(helm: &Helm) -> Result<()> {
    for choice in ACCEPTED {
        lint(helm, choice)?;
        let text = deploy::template(helm, choice, &["--include-crds"])?;
        ensure!(text.contains("kind: DaemonSet"), "{choice:?} renders no DaemonSet");
    }
    for (choice, reason) in REFUSED {
        let refused = deploy::template(helm, choice, &[]).err();
        let refused = refused.with_context(|| format!("{choice:?} is rendered, and must not be"))?.to_string();
        ensure!(refused.contains(reason), "{choice:?} is refused without {reason:?}: {refused}");
    }
    eprintln!("chart: {} choices of values are taken, {} are refused", ACCEPTED.len(), REFUSED.len());
    Ok(())
}

fn lint(helm: &Helm, choice: Choice) -> Result<()> {
    let chart = deploy::chart().display().to_string();
    let sets: Vec<String> = choice.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut arguments = vec!["lint", "--strict", "--quiet", &chart];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    helm.run(&arguments).map(|_| ())
}

/// Sends every object to an API server that validates it and stores nothing.
fn check_with_server(helm: &Helm) -> Result<()> {
    let directory = std::env::temp_dir().join(format!("weir-check-chart-{}", std::process::id()));
    let server = ApiServer::start(&apiserver::built()?, &directory, Settings::default())?;
    let result = ACCEPTED.into_iter().map(|choice| validate(helm, &server, choice)).collect::<Result<Vec<_>>>();
    drop(server);
    _ = fs::remove_dir_all(PathBuf::from(&directory));
    let (known, unknown) = result?.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    eprintln!("chart: the API server accepts {known} objects; it does not have the kinds of {unknown} others");
    Ok(())
}

/// Returns the number of objects that the server accepts, and of those whose kinds it does not have.
fn validate(helm: &Helm, server: &ApiServer, choice: Choice) -> Result<(usize, usize)> {
    let text = deploy::template(helm, choice, &["--include-crds"])?;
    let (mut known, mut unknown) = (0, 0);
    for document in documents(&text) {
        let Some(path) = api_path(document)? else {
            unknown += 1;
            continue;
        };
        let path = format!("{path}?dryRun=All&fieldValidation=Strict");
        let answer = server.ask_as("application/yaml", "POST", &path, Some(document));
        answer.with_context(|| format!("{choice:?}: the API server refuses\n{document}"))?;
        known += 1;
    }
    ensure!(known > 1, "{choice:?} has only {known} objects");
    Ok((known, unknown))
}

/// The YAML documents of a text that are not empty.
pub fn documents(text: &str) -> Vec<&str> {
    let text = text.strip_prefix("---\n").unwrap_or(text);
    text.split("\n---\n").filter(|it| it.contains("\nkind: ") || it.starts_with("kind: ")).collect()
}

/// Where objects of a document's kind are created; `None` for kinds of the Prometheus operator.
pub fn api_path(document: &str) -> Result<Option<&'static str>> {
    let kind = document.lines().find_map(|line| line.strip_prefix("kind: ")).context("a document has no kind")?;
    Ok(Some(match kind {
        "CustomResourceDefinition" => "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "ServiceAccount" => "/api/v1/namespaces/kube-system/serviceaccounts",
        "ConfigMap" => "/api/v1/namespaces/kube-system/configmaps",
        "Service" => "/api/v1/namespaces/kube-system/services",
        "ClusterRole" => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding" => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "Role" => "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles",
        "RoleBinding" => "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings",
        "DaemonSet" => "/apis/apps/v1/namespaces/kube-system/daemonsets",
        "Job" => "/apis/batch/v1/namespaces/kube-system/jobs",
        "PodMonitor" | "ServiceMonitor" | "PrometheusRule" => return Ok(None),
        other => bail!("no path is known for the kind {other}"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths of values that templates use: `.Values.a.b` is `a.b`.
    fn used(template: &str) -> Vec<&str> {
        let parts = template.split(".Values.").skip(1);
        parts.filter_map(|it| it.split(|it: char| !it.is_alphanumeric() && it != '.').next()).collect()
    }

    #[test]
    fn templates_use_only_values_that_the_schema_has() {
        let schema = deploy::read("chart/values.schema.json").expect("it is in the tree");
        let schema: serde_json::Value = serde_json::from_str(&schema).expect("JSON");
        let templates = [
            "_helpers.tpl",
            "daemonset.yaml",
            "clusterrole.yaml",
            "installed.yaml",
            "serviceaccount.yaml",
            "monitoring.yaml",
            "uninstall/daemonset.yaml",
            "uninstall/job.yaml",
            "NOTES.txt",
        ];
        let mut count = 0;
        for name in templates {
            let template = deploy::read(&format!("chart/templates/{name}")).expect("it is in the tree");
            for path in used(&template) {
                let pointer = path.trim_end_matches('.').replace('.', "/properties/");
                let found = schema.pointer(&format!("/properties/{pointer}"));
                assert!(found.is_some(), "{name}: {path} is not in values.schema.json");
                count += 1;
            }
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn documents_are_separated_and_their_kinds_known() {
        let text = "---\n# a\nkind: Role\nx: 1\n---\n# nothing\n---\nkind: Job\n";
        let paths: Vec<_> =
            documents(text).into_iter().map(|it| api_path(it).expect("known").expect("served")).collect();
        assert_eq!(paths.len(), 2);
        assert!(paths[0].ends_with("/roles") && paths[1].ends_with("/jobs"));
        assert!(api_path("kind: Secret\n").is_err());
        assert_eq!(api_path("kind: PodMonitor\n").expect("known"), None);
    }
}
