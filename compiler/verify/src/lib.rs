//! Verification: checks a finished artifact against the cluster, independently of the compiler stages that produced it.
//!
//! Problem: classes, tables, passes and code may be wrong together, and still agree with each other.
//! Strategy: from the cluster alone, find which endpoints and addresses ([`expected`]) and which ports ([`slots`]) the
//! oracle can distinguish. From the artifact alone, by running its programs over its maps, find which of them the
//! programs can distinguish ([`prober`], [`survey`]). Values that are equal to both sides are covered by one
//! representative. If the product of the representatives is small, a packet for each combination runs through the
//! programs and is compared with the oracle ([`product`]). If it is too large, each factor is checked separately, and
//! then the way they combine ([`parts`]). Flows that an older generation allowed must be judged as new flows are
//! ([`again`]). If any policy is in audit mode, everything is done a second time with the audit policies and lists
//! enforced on both sides ([`audit`]). The report says whether every combination was run, and how many checks of each
//! part agreed.
//! Invariants: uses nothing of the crates `classes` and `codegen`; knows no table's layout; a trap, an unreadable map
//! or a program that cannot be followed is a difference, never a pass.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod again;
mod asker;
mod audit;
mod bits;
mod edge_program;
mod endpoints;
mod errors;
mod expected;
mod parts;
mod prober;
mod product;
mod report;
mod slots;
mod survey;
mod suspects;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use asker::Asker;
use endpoints::ArtifactEndpoint;
use expected::ExpectedVerdicts;
use parts::{PartsVerifier, Stopped, Unlearned};
use prober::{ProbeStop, Prober};
use product::FullProduct;
use report::MOST_DIFFERENCES;
pub use report::{Difference, VerifyPart, VerifyReport};
use weir_artifact::Artifact;
use weir_model::directory::Directory;
use weir_model::eval::Oracle;
use weir_model::{Cluster, Established, HostNetworkPods, Icmp};
use weir_objects::address::Family;

/// Every combination is run if that takes at most this many packets.
pub const MOST_PACKETS: u64 = 200_000;

/// Checks an artifact against the cluster that it should enforce.
pub fn verify(artifact: &Artifact, cluster: &Cluster) -> VerifyReport {
    verify_within(artifact, cluster, MOST_PACKETS)
}

/// Like [`verify`], and calls `watch` after each step.
pub fn verify_watched(artifact: &Artifact, cluster: &Cluster, watch: &dyn Fn(VerifyProgress)) -> VerifyReport {
    verify_whole(artifact, cluster, MOST_PACKETS, watch)
}

/// Like [`verify`], but runs every combination only if that takes at most `most_packets` packets.
pub fn verify_within(artifact: &Artifact, cluster: &Cluster, most_packets: u64) -> VerifyReport {
    verify_whole(artifact, cluster, most_packets, &|_| ())
}

fn verify_whole(
    artifact: &Artifact,
    cluster: &Cluster,
    most_packets: u64,
    watch: &dyn Fn(VerifyProgress),
) -> VerifyReport {
    let mut report = verify_enforced(artifact, cluster, most_packets, watch);
    // Both sides are asked: the cluster may have audit policies that the artifact lacks, and the artifact may have
    // audit verdicts that no policy explains. Each is a difference, and only the second run can show it.
    if cluster.has_audit() || audit::is_in(artifact) {
        // A mode of the same checks, not a second set of checks: two sets would drift apart, and a wrong audit verdict
        // has no effect that would show it before it is enforced.
        let enforced = cluster.with_audit_enforced();
        let check = |artifact: &Artifact| verify_enforced(artifact, &enforced, most_packets, watch);
        let mut found = check(&audit::deciding(artifact));
        // Without audit flags, either no endpoint would be filtered, or the audit policies change nothing and the
        // programs have no audit verdicts. The artifact does not show which, so one of both runs must agree.
        if !found.is_verified() && !audit::is_in(artifact) {
            found = check(artifact);
        }
        report.add_audit(found);
    }
    report
}

/// The progress of an attempt. Artifacts with audit policies are checked twice, and an attempt that learns about the
/// programs is repeated, so it may begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Finished steps.
    pub done: u64,
    /// All steps, which take about the same time.
    pub total: u64,
}

fn verify_enforced(
    artifact: &Artifact,
    cluster: &Cluster,
    most_packets: u64,
    watch: &dyn Fn(VerifyProgress),
) -> VerifyReport {
    let mut report = VerifyReport::default();
    // The checks before the error may have found differences already, and they often name its cause. So an error ends
    // the run but keeps the report.
    if let Err(difference) = run(artifact, cluster, most_packets, &mut report, watch) {
        report.add_difference(difference);
    }
    report
}

fn run(
    artifact: &Artifact,
    cluster: &Cluster,
    most_packets: u64,
    report: &mut VerifyReport,
    watch: &dyn Fn(VerifyProgress),
) -> Result<(), Difference> {
    // Pods on the host's network share the address of their node, so no packet identifies them. All packets without
    // ports are one atom, so no program can allow ICMP and deny the rest. Verification would compare the oracle with
    // programs that cannot agree with it.
    if cluster.assume.hostnetwork_pods == HostNetworkPods::Pod || cluster.assume.icmp == Icmp::Allow {
        return Err(Difference::Assumption);
    }
    let scope = endpoints::scope(artifact, cluster)?;
    // Endpoints first: a missing endpoint has no packets, so no later check would notice that it is not enforced at
    // all.
    let mut told = Vec::new();
    let locals = endpoints::check(artifact, cluster, &scope, &mut told);
    report.count(VerifyPart::Endpoints, scope.len() as u64, locals.len() as u64);
    told.into_iter().for_each(|difference| report.add_difference(difference));
    let mut verifier = Verifier { artifact, cluster, locals, most_packets, lessons: Vec::new(), watch };
    let directory = Directory::new(cluster);
    let mut expected = ExpectedVerdicts::new(cluster, &directory, &scope);
    let mut asker = Asker { cluster, oracle: Oracle::new(cluster) };
    // A failed attempt has counted checks that the next one repeats. Without the copy the report would claim more
    // checks than were made.
    let before = report.clone();
    while !verifier.attempt(&mut expected, &mut asker, report)? {
        report.clone_from(&before);
    }
    Ok(())
}

struct Verifier<'a> {
    artifact: &'a Artifact,
    cluster: &'a Cluster,
    locals: Vec<ArtifactEndpoint>,
    most_packets: u64,
    /// Probes that failed in earlier attempts because the prober did not know which parts of the state matter.
    lessons: Vec<Unlearned>,
    watch: &'a dyn Fn(VerifyProgress),
}

/// After this many lessons, verification gives up: the programs cannot be followed.
const MOST_LESSONS: usize = 8;

impl<'a> Verifier<'a> {
    /// Runs one attempt. Returns false if it added a lesson: the caller then has to start over.
    fn attempt(
        &mut self,
        expected: &mut ExpectedVerdicts<'a>,
        asker: &mut Asker<'a>,
        report: &mut VerifyReport,
    ) -> Result<bool, Difference> {
        let families = self.families();
        let addresses = expected.addresses();
        // A new prober for each attempt: a class is the values of the parts that the prober knows, so classes from
        // before and after a lesson cannot be compared.
        let mut prober = Prober::new(self.artifact, unused(&addresses))?;
        self.relearn(&mut prober)?;
        let survey = survey::survey(self.artifact, &mut prober, expected, &addresses, &families)?;
        let mut ports = expected.slots.ends();
        // The cluster's boundaries alone are not enough. A compare that is off by one distinguishes two ports between
        // which the cluster has no boundary, and both would have the same representative.
        ports.extend(suspects::all_ports(self.artifact));
        ports.sort_unstable_by_key(|(protocol, port)| (protocol.map(|it| it as usize), *port));
        ports.dedup();
        // Before the choice between product and parts: the edge program has no ports and no subject classes, so its
        // product is always small.
        edge_program::check(self.artifact, expected, &survey, unused(&addresses), report)?;
        // With `keep`, programs pass the flows of older generations without judging them, so there are no two verdicts
        // to compare.
        if self.cluster.assume.established == Established::Cut {
            again::check(&mut prober, &survey, &self.locals, &expected.slots.ends(), report)?;
        }
        let product = FullProduct::new(self.artifact, expected, &self.locals, &survey, &ports);
        if product.size() <= self.most_packets {
            report.exhaustive = true;
            // The packets of the product do not show a filter flag that is set without need: the verdicts are right,
            // and every packet pays for a decision that is always "allow".
            parts::check_all_flags(expected, self.cluster, &self.locals, report);
            product.run(&mut prober, asker, report, self.watch)?;
            return Ok(true);
        }
        let mut parts = PartsVerifier {
            prober: &mut prober,
            expected,
            asker,
            survey: &survey,
            locals: &self.locals,
            ports: &ports,
            report,
            watch: self.watch,
        };
        match parts.run(self.cluster) {
            Ok(()) => Ok(true),
            Err(Stopped::Difference(difference)) => Err(difference),
            // The lesson is the probe, not the missing part. The trap says which read failed, but not whether that part
            // alone is enough; `Prober::learn` finds out by removing every part.
            Err(Stopped::Unlearned(lesson)) if self.lessons.len() < MOST_LESSONS => {
                self.lessons.push(lesson);
                Ok(false)
            }
            // A program that reads something new again and again may have been built to do so. Not being able to follow
            // it is a difference, never a pass.
            Err(Stopped::Unlearned(_)) => Err(Difference::Unfollowed),
        }
    }

    /// The address families in which local endpoints have addresses.
    fn families(&self) -> Vec<Family> {
        let addresses = self.locals.iter().flat_map(|it| &self.cluster.endpoints[it.id.index()].addresses);
        // A family in which no local endpoint has an address has no packets: the programs may not even contain its
        // code.
        let found: BTreeSet<bool> = addresses.map(|address| !address.is_ipv4()).collect();
        found.into_iter().map(|is_v6| if is_v6 { Family::V6 } else { Family::V4 }).collect()
    }

    fn relearn(&self, prober: &mut Prober) -> Result<(), Difference> {
        // The subject class belongs to the lesson: the part was read only on the way to this class's row.
        for lesson in &self.lessons {
            prober.set_subject(lesson.subject)?;
            let reach = prober.reach(lesson.instance, lesson.address, (None, 0), None, &mut Vec::new())?;
            if let ProbeStop::Row(state) = reach {
                prober.learn(lesson.instance, &state)?;
            }
        }
        Ok(())
    }
}

/// An address of each family that is not in the set.
fn unused(addresses: &BTreeSet<IpAddr>) -> [IpAddr; 2] {
    // Ranges for benchmarks of network devices (RFC 2544 and RFC 5180), which clusters hardly use. The search matters
    // for clusters that do use them: the probe endpoint must not have the address of a peer, because a packet to itself
    // says nothing about policy.
    let v4 = (Ipv4Addr::new(198, 18, 0, 1).to_bits()..).map(|bits| IpAddr::V4(bits.into()));
    let v6 = (Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1).to_bits()..).map(|bits| IpAddr::V6(bits.into()));
    let first = |mut list: Box<dyn Iterator<Item = IpAddr>>| list.find(|address| !addresses.contains(address));
    let fallback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    [first(Box::new(v4)).unwrap_or(fallback), first(Box::new(v6)).unwrap_or(fallback)]
}
