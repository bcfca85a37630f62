//! Checks the program at the edge: it drops packets to pods whose source the lists deny for every endpoint, and no
//! others.
//!
//! Strategy: one packet to a pod from every representative address of the survey. The expected verdict is the oracle's
//! list tier, evaluated on sets. One more packet goes from a denied address to an address that no endpoint has: it must
//! pass.

use std::net::IpAddr;

use super::expected::ExpectedVerdicts;
use super::survey::AddressSurvey;
use super::{Difference, VerifyPart, VerifyReport};
use weir_artifact::layout::endpoint;
use weir_artifact::{Artifact, packet};
use weir_machine::Broken;
use weir_machine::edge_program::AtEdge;
use weir_model::Protocol;
use weir_model::eval::FlowProtocol;
use weir_objects::address::Family;

pub(super) fn check(
    artifact: &Artifact,
    expected: &ExpectedVerdicts<'_>,
    survey: &AddressSurvey,
    unused: [IpAddr; 2],
    report: &mut VerifyReport,
) -> Result<(), Difference> {
    // An artifact without such a program attaches nothing at the uplinks. Lists are still enforced at every pod.
    let Some(mut edge) = AtEdge::new(artifact)? else { return Ok(()) };
    for family in [Family::V4, Family::V6] {
        // Any pod will do: the program asks only whether the destination is protected, never which pod it is.
        let Some(pod) = address_of(artifact, family) else { continue };
        let unused_address = unused[usize::from(family == Family::V6)];
        let (mut asked, mut agreed, mut denied) = (0, 0, None);
        for remote in survey.remotes.iter().filter(|it| Family::of(it.address) == family) {
            // The oracle's list tier on sets, and not the lists themselves: a list that allows an address, or that
            // applies to some pods only, must keep the edge program from dropping it.
            let is_denied = remote.address != pod && expected.is_denied_to_all(remote.oracle_class);
            let dropped = drops(&mut edge, remote.address, pod)?;
            asked += 1;
            agreed += u64::from(dropped == is_denied);
            if dropped != is_denied {
                report.add_difference(Difference::Edge { remote: remote.address, pod, dropped });
            }
            denied = denied.or(is_denied.then_some(remote.address));
        }
        // The uplink also carries packets of the host and of pods that are not enforced. A program that drops those
        // would enforce policy where no policy applies, and no check at a pod could see it.
        if let Some(remote) = denied.filter(|it| *it != unused_address) {
            let dropped = drops(&mut edge, remote, unused_address)?;
            asked += 1;
            agreed += u64::from(!dropped);
            if dropped {
                report.add_difference(Difference::Edge { remote, pod: unused_address, dropped });
            }
        }
        report.count(VerifyPart::Edge, asked, agreed);
    }
    Ok(())
}

fn drops(edge: &mut AtEdge, from: IpAddr, to: IpAddr) -> Result<bool, Broken> {
    let packet = packet::build(from, to, FlowProtocol::Transport(Protocol::Tcp), 80);
    edge.drops(packet.ok_or_else(|| Broken("addresses of two families".to_owned()))?)
}

/// The address of any endpoint of the artifact in the family.
fn address_of(artifact: &Artifact, family: Family) -> Option<IpAddr> {
    let (at, bytes) = if family == Family::V4 { (endpoint::V4, 4) } else { (endpoint::V6, 16) };
    let stored = artifact.endpoints.iter().filter_map(|it| it.value.get(at as usize..at as usize + bytes));
    let address = stored.map(super::endpoints::address).find(|it| it.is_some_and(|it| !it.is_unspecified()));
    address.flatten()
}
