//! The options of a cluster.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};
use xtask::image::BuildProfile;

pub(super) const MOST_NODES: usize = 2;

/// How pods are connected to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cni {
    Bridge,
    Ptp,
}

impl Cni {
    /// The plug-in's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Ptp => "ptp",
        }
    }
}

/// The mode of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    Iptables,
    Nftables,
}

impl Proxy {
    /// The mode's name in kube-proxy's flags.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterOptions {
    pub(super) cni: Cni,
    pub(super) proxy: Proxy,
    pub(super) nodes: usize,
    /// Whether `weir-cni` holds new pods back.
    pub(super) weir_cni: bool,
    /// How the agent is built.
    pub(super) profile: BuildProfile,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { cni: Cni::Bridge, proxy: Proxy::Iptables, nodes: 2, weir_cni: false, profile: BuildProfile::Release }
    }
}

impl fmt::Display for ClusterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--cni {} --proxy {} --nodes {}", self.cni.name(), self.proxy.name(), self.nodes)?;
        f.write_str(match self.profile {
            BuildProfile::Release => "",
            BuildProfile::Ci => " --profile ci",
            BuildProfile::Dev => " --profile dev",
        })?;
        f.write_str(if self.weir_cni { " --weir-cni" } else { "" })
    }
}

impl ClusterOptions {
    pub(super) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(name) = arguments.next() {
            if name == "--weir-cni" {
                options.weir_cni = true;
                continue;
            }
            let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
            match (name.as_str(), value.as_str()) {
                ("--cni", "bridge") => options.cni = Cni::Bridge,
                ("--cni", "ptp") => options.cni = Cni::Ptp,
                ("--proxy", "iptables") => options.proxy = Proxy::Iptables,
                ("--proxy", "nftables") => options.proxy = Proxy::Nftables,
                ("--profile", "release") => options.profile = BuildProfile::Release,
                ("--profile", "ci") => options.profile = BuildProfile::Ci,
                ("--profile", "dev") => options.profile = BuildProfile::Dev,
                ("--nodes", number) => options.nodes = number.parse().context("--nodes needs a number")?,
                _ => bail!(
                    "{name} {value}: expected --cni bridge|ptp, --proxy iptables|nftables, --nodes 1|2, \
                     --profile release|ci|dev, --weir-cni"
                ),
            }
        }
        ensure!((1..=MOST_NODES).contains(&options.nodes), "--nodes must be 1 or 2");
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_options_parse_to_the_same_options() {
        let parse = |text: &str| ClusterOptions::parse(text.split_whitespace().map(str::to_owned));
        let odd = ClusterOptions {
            cni: Cni::Ptp,
            proxy: Proxy::Nftables,
            nodes: 1,
            weir_cni: true,
            profile: BuildProfile::Ci,
        };
        assert_eq!(parse(&odd.to_string()).expect("the text comes from Display"), odd);
        assert_eq!(parse("").expect("all have defaults"), ClusterOptions::default());
        for wrong in ["--cni", "--cni cilium", "--nodes 3", "--nodes 0", "--nodes x", "up"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
