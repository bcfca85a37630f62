//! Effects of a change that its edits do not show.
//!
//! Problem: three effects of a proposal are unexpected. Selectors match only pods, so a rule for all pods but one
//! denies outside addresses. An `except` of a pod's address stops matching when the pod is replaced. A flow between
//! pods with addresses of both families is asked about in one of them.
//! Strategy: find each of them by its effect, with the comparison and the oracle, and name it in a sentence.

use std::fmt;
use std::net::IpAddr;

use weir_analysis::diff::{self, DiffError, RowEnd, VerdictChange};
use weir_model::eval::{Flow, FlowEnd, Oracle, Verdict};
use weir_model::{Cluster, IpBlockPods};
use weir_objects::address::{Family, Prefix};
use weir_objects::k8s::{NetworkPolicy, PolicyPeer, PolicyRule};

use crate::allow::is_selectable;
use crate::edit::{Edit, Item};

/// An effect that the edits do not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Outside addresses are denied together with a pod.
    OutsideDenied,
    /// An `except` is the present address of a pod.
    PodAddress {
        /// The pod.
        pod: String,
        /// Its address.
        address: IpAddr,
    },
    /// The verdict in the other family is still the old one.
    OtherFamily {
        /// The addresses of the source and the destination in that family.
        ends: [IpAddr; 2],
        /// The verdict.
        verdict: Verdict,
    },
}

/// The notes about the edits between two clusters.
pub(crate) fn notes(
    [base, head]: [&Cluster; 2],
    edits: &[&Edit],
    flows: &[Flow],
    wanted: Verdict,
) -> Result<Vec<Note>, DiffError> {
    let mut notes = Vec::new();
    if wanted == Verdict::Deny {
        let is_between_pods = |it: &Flow| pod_of(base, it.source).is_some() && pod_of(base, it.destination).is_some();
        let is_matched = base.assume.ipblock_pods == IpBlockPods::Match;
        if is_matched && flows.iter().all(is_between_pods) && denies_outside(base, head)? {
            notes.push(Note::OutsideDenied);
        }
        let ends = flows.iter().flat_map(|it| [it.source, it.destination]);
        notes.extend(ends.filter_map(|it| excepted(base, edits, it)));
    }
    notes.extend(flows.iter().filter_map(|it| other_family(head, it, wanted)));
    let mut unique: Vec<Note> = Vec::new();
    for note in notes {
        if !unique.contains(&note) {
            unique.push(note);
        }
    }
    Ok(unique)
}

/// The name of the pod or workload that selectors find at this end.
fn pod_of(cluster: &Cluster, end: FlowEnd) -> Option<String> {
    end.endpoint.filter(|id| is_selectable(cluster, *id)).map(|id| cluster.endpoint_name(id))
}

fn denies_outside(base: &Cluster, head: &Cluster) -> Result<bool, DiffError> {
    let has_addresses = |end: &RowEnd| end.ranges.iter().next().is_some();
    let rows = diff::compare(base, head)?.rows;
    let mut removed = rows.iter().filter(|it| it.change == VerdictChange::Removed);
    Ok(removed.any(|it| has_addresses(&it.source) || has_addresses(&it.destination)))
}

/// The note if an edit writes an `except` of the address of a pod.
fn excepted(cluster: &Cluster, edits: &[&Edit], end: FlowEnd) -> Option<Note> {
    let (pod, address) = (pod_of(cluster, end)?, end.address?);
    let is_written = edits.iter().any(|edit| excepts(edit).contains(&Prefix::host(address)));
    is_written.then_some(Note::PodAddress { pod, address })
}

/// The exceptions in the items that an edit writes.
fn excepts(edit: &Edit) -> Vec<Prefix> {
    let of_peer = |peer: &PolicyPeer| match peer {
        PolicyPeer::Block { except, .. } => except.clone(),
        PolicyPeer::Pods { .. } => Vec::new(),
    };
    let of_rule = |rule: &PolicyRule| rule.peers.iter().flat_map(of_peer).collect::<Vec<_>>();
    let of_item = |item: &Item| match item {
        Item::Except(it) => vec![*it],
        Item::Peer(it) => of_peer(it),
        Item::Rule(it) => of_rule(it),
        Item::Port(_) => Vec::new(),
    };
    let of_policy = |NetworkPolicy { ingress, egress, .. }: &NetworkPolicy| {
        ingress.iter().chain(egress).flat_map(of_rule).collect::<Vec<_>>()
    };
    match edit {
        Edit::Append { item, .. } => of_item(item),
        Edit::Replace { items, .. } => items.iter().flat_map(of_item).collect(),
        Edit::Remove { .. } => Vec::new(),
        Edit::Create(new) => of_policy(&new.policy),
    }
}

/// The note if the pods of a flow also have addresses of the other family, and the verdict there is not the wanted one.
fn other_family(cluster: &Cluster, flow: &Flow, wanted: Verdict) -> Option<Note> {
    let family = Family::of(flow.source.address?);
    let other = |end: FlowEnd| {
        let addresses = &cluster.endpoints[end.endpoint?.index()].addresses;
        addresses.iter().copied().find(|it| Family::of(*it) != family)
    };
    let ends = [other(flow.source)?, other(flow.destination)?];
    let at = |end: FlowEnd, address| FlowEnd { address: Some(address), ..end };
    let flow = Flow { source: at(flow.source, ends[0]), destination: at(flow.destination, ends[1]), ..flow.clone() };
    let verdict = Oracle::new(cluster).judge(&flow).verdict();
    (verdict != wanted).then_some(Note::OtherFamily { ends, verdict })
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideDenied => f.write_str(
                "the change also denies addresses outside of the cluster, because an `ipBlock` that allows them \
                 matches pods too; if pods have address ranges of their own, add an `ipBlock` with these as `except`",
            ),
            Self::PodAddress { pod, address } => write!(
                f,
                "`except: {}` is the present address of {pod}; a pod that replaces it has another one and is allowed",
                Prefix::host(*address)
            ),
            Self::OtherFamily { ends: [from, to], verdict } => {
                let verdict = if *verdict == Verdict::Allow { "allowed" } else { "denied" };
                let family = Family::of(*from);
                write!(f, "over {family} the flow is still {verdict}: ask with `--from {from} --to {to}`")
            }
        }
    }
}
