//! The shop of the demo: its files, the ends of its connections, and the compiled programs.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result, ensure};
use weir_artifact::Artifact;
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, Compiled, compile};
use weir_ebpf::target::Target;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Protocol};
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::k8s::Body;
use weir_objects::source::SourceMap;
use weir_verify as verify;

use weir_policy::locator::Locator;

/// `policies/examples/24-three-tier-shop.yaml`, in this directory because a published crate has no files of others.
const SHOP: &str = include_str!("shop.yaml");
/// The pods of the demo.
pub(super) const CLUSTER: &str = include_str!("cluster.yaml");
/// The names under which lines of the files are printed.
pub(super) const FILES: [&str; 2] = ["shop.yaml", "cluster.yaml"];
/// The rule that the demo changes, and the rule after the change. The database's policy is the only one with this text.
pub(super) const CHANGE: [&str; 2] =
    ["from: [{podSelector: {matchLabels: {app: api}}}]", "from: [{podSelector: {matchLabels: {app: reports}}}]"];

/// An end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DemoEnd {
    pub(super) name: &'static str,
    /// `namespace/name`; `None` for the internet.
    pub(super) pod: Option<&'static str>,
    pub(super) address: IpAddr,
}

const fn end(name: &'static str, pod: Option<&'static str>, address: [u8; 4]) -> DemoEnd {
    let [a, b, c, d] = address;
    DemoEnd { name, pod, address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)) }
}

pub(super) const WEB: DemoEnd = end("web", Some("shop/web-1"), [10, 0, 0, 11]);
pub(super) const API: DemoEnd = end("api", Some("shop/api-1"), [10, 0, 0, 12]);
pub(super) const DB: DemoEnd = end("db", Some("shop/db-0"), [10, 0, 0, 13]);
pub(super) const DNS: DemoEnd = end("dns", Some("kube-system/coredns-1"), [10, 0, 0, 14]);
/// From a block that is reserved for documentation.
pub(super) const INTERNET: DemoEnd = end("internet", None, [203, 0, 113, 7]);

/// A new connection.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) from: DemoEnd,
    pub(super) to: DemoEnd,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) purpose: &'static str,
}

const fn tcp(from: DemoEnd, to: DemoEnd, port: u16, purpose: &'static str) -> Attempt {
    Attempt { from, to, protocol: Protocol::Tcp, port, purpose }
}

/// The connections that the shop needs, then those that should not be possible.
pub(super) const ATTEMPTS: [Attempt; 7] = [
    tcp(INTERNET, WEB, 8443, "a customer opens the shop"),
    tcp(WEB, API, 8080, "the front end asks the API"),
    tcp(API, DB, 5432, "the API asks the database"),
    Attempt { from: WEB, to: DNS, protocol: Protocol::Udp, port: 53, purpose: "a pod looks up a name" },
    tcp(INTERNET, DB, 5432, "a stranger tries the database"),
    tcp(WEB, DB, 5432, "a stolen front end tries it, too"),
    tcp(DB, INTERNET, 443, "a stolen database sends data out"),
];

/// The connection that is open while the policy changes.
pub(super) const OPEN: Attempt = tcp(API, DB, 5432, "the API asks the database");

impl Attempt {
    pub(super) fn flow(&self) -> Flow {
        let end = |end: &DemoEnd| FlowEnd { endpoint: None, address: Some(end.address) };
        Flow {
            source: end(&self.from),
            destination: end(&self.to),
            protocol: FlowProtocol::Transport(self.protocol),
            port: self.port,
        }
    }
}

/// The policies that are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShopPolicies {
    /// None: the pods alone.
    Absent,
    /// Those of the file.
    Written,
    /// Those of the file with [`CHANGE`].
    Changed,
}

/// The shop in one of its states.
pub(super) struct Shop {
    pub(super) text: String,
    pub(super) sources: SourceMap,
    pub(super) cluster: Cluster,
}

impl Shop {
    pub(super) fn new(policies: ShopPolicies) -> Result<Self> {
        let text = match policies {
            ShopPolicies::Changed => SHOP.replace(CHANGE[0], CHANGE[1]),
            ShopPolicies::Absent | ShopPolicies::Written => SHOP.to_owned(),
        };
        let input = |name: &str, text: &str| Input {
            name: name.to_owned(),
            bytes: text.as_bytes().to_vec(),
            kind: InputKind::Manifest,
        };
        let options = DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
        let (mut decoded, found) = decode(vec![input(FILES[0], &text), input(FILES[1], CLUSTER)], &options);
        ensure!(!found.has_errors(), "the shop cannot be read");
        if policies == ShopPolicies::Absent {
            decoded.objects.retain(|it| !matches!(it.body, Body::NetworkPolicy(_)));
        }
        let (cluster, found) = resolve(&decoded.objects, Assumptions::default());
        ensure!(!found.has_errors(), "the shop is not valid");
        Ok(Self { text, sources: decoded.sources, cluster })
    }

    /// The line number of the changed rule.
    pub(super) fn changed_line(&self) -> usize {
        1 + self.text.lines().position(|line| CHANGE.iter().any(|it| line.contains(it))).unwrap_or(0)
    }
}

/// The compiled programs of the shop.
pub(super) struct ShopPrograms {
    pub(super) compiled: Compiled,
    pub(super) artifact: Artifact,
    /// The number of verdicts that were compared with the reference.
    pub(super) verified: u64,
}

impl ShopPrograms {
    /// Compiles and verifies.
    pub(super) fn new(shop: &Shop, target: Target) -> Result<Self> {
        let options = CompileOptions { target, ..CompileOptions::default() };
        let compiled = compile(&shop.cluster, &Scope::everything(&shop.cluster), &options)
            .context("the shop cannot be compiled")?;
        let mut locator = Locator::new(&shop.sources);
        let artifact = compiled
            .artifact_of_files(&shop.cluster, &options, &mut |origin| locator.line(origin), |_| {})
            .context("the artifact cannot be put together")?;
        let report = verify::verify_watched(&artifact, &shop.cluster, &|_| {});
        ensure!(report.is_verified(), "the programs do not enforce exactly the policies");
        Ok(Self { compiled, artifact, verified: report.asked() })
    }

    /// A pod's place among the compiled endpoints.
    pub(super) fn place(&self, pod: Option<&str>) -> Option<usize> {
        self.artifact.endpoints.iter().position(|it| pod == Some(&format!("{}/{}", it.namespace, it.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shop_is_that_of_the_examples() {
        let example = include_str!("../../../../policies/examples/24-three-tier-shop.yaml");
        assert_eq!(SHOP, example, "copy the example to cli/src/commands/demo/shop.yaml");
    }

    #[test]
    fn the_change_is_in_one_line_of_the_databases_policy() {
        assert_eq!(SHOP.matches(CHANGE[0]).count(), 1);
        let (before, _) = SHOP.split_once(CHANGE[0]).expect("the rule");
        assert!(before.rsplit("---").next().is_some_and(|policy| policy.contains("name: db,")));
    }
}
