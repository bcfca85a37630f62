//! Every combination of representatives, as packets through the programs and questions to the oracle.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::asker::{Asker, instances};
use super::endpoints::ArtifactEndpoint;
use super::expected::ExpectedVerdicts;
use super::prober::Prober;
use super::slots::SlotPort;
use super::survey::AddressSurvey;
use super::{Difference, VerifyProgress, VerifyReport};
use weir_artifact::Artifact;
use weir_artifact::layout::endpoint;

/// The factors of the product.
pub(super) struct FullProduct {
    subjects: Vec<ArtifactEndpoint>,
    remotes: Vec<IpAddr>,
    ports: Vec<SlotPort>,
}

impl FullProduct {
    pub(super) fn new(
        artifact: &Artifact,
        expected: &ExpectedVerdicts<'_>,
        locals: &[ArtifactEndpoint],
        survey: &AddressSurvey,
        ports: &[SlotPort],
    ) -> Self {
        let mut seen = BTreeSet::new();
        let differs = |local: &&ArtifactEndpoint| {
            let value = artifact.endpoints.get(local.place).map_or(&[][..], |it| &it.value);
            // Flags and node as well: everything but the addresses.
            let rest = value.get(..endpoint::V4 as usize).unwrap_or_default();
            // The programs see nothing of an endpoint but its value, and the oracle nothing but its kind. If both are
            // equal, all verdicts are equal.
            seen.insert((rest.to_vec(), expected.kind(local.id)))
        };
        let subjects = locals.iter().filter(differs).copied().collect();
        // Two addresses with the same classes and oracle class, if there are two, so that at least one of them is not
        // the endpoint's own.
        let mut times: HashMap<(bool, [u32; 2], u32), u32> = HashMap::new();
        let mut remotes = Vec::new();
        for remote in &survey.remotes {
            let times = times.entry((remote.address.is_ipv4(), remote.classes, remote.oracle_class)).or_default();
            *times += 1;
            remotes.extend((*times <= 2).then_some(remote.address));
        }
        Self { subjects, remotes, ports: ports.to_vec() }
    }

    /// The number of packets.
    pub(super) fn size(&self) -> u64 {
        // Computed before any packet is built. In `u64`, because a product of three counts leaves 32 bits for large
        // clusters.
        2 * (self.subjects.len() as u64) * (self.remotes.len() as u64) * (self.ports.len() as u64)
    }

    pub(super) fn run(
        &self,
        prober: &mut Prober,
        asker: &mut Asker<'_>,
        report: &mut VerifyReport,
        watch: &dyn Fn(VerifyProgress),
    ) -> Result<(), Difference> {
        let total = (self.subjects.len() * self.remotes.len()) as u64;
        for (first, subject) in self.subjects.iter().enumerate() {
            for (second, remote) in self.remotes.iter().enumerate() {
                watch(VerifyProgress { done: (first * self.remotes.len() + second) as u64, total });
                for instance in instances(remote.is_ipv4()) {
                    for port in &self.ports {
                        asker.ask(&mut prober.loaded, report, subject, instance, *remote, *port)?;
                    }
                }
            }
        }
        Ok(())
    }
}
