//! Regions of both families → rows, with all details for the reader.
//!
//! Two regions, one of each family, become one row if they agree on every endpoint that has both families.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::cells::{CellPart, CellTable, PartId};
use super::cluster_side::ClusterSide;
use super::isolation::{self, changed_policies};
use super::regions::{DiffRegion, RegionMembers};
use super::tables::{EntryTables, ReasonId};
use super::universe::FamilyEnds;
use super::{
    AddressRange, AddressSet, Decides, DiffEndpoint, DiffError, DiffRow, EndReason, EndState, Presence, RowEnd,
    RowTraffic, ServiceAddress, VerdictChange, witness,
};
use weir_model::eval::Oracle;
use weir_model::{Direction, PolicyId};
use weir_objects::address::Family;

/// The data that all rows refer to.
pub(super) struct RowContext<'a, 'c> {
    pub(super) sides: &'a [Option<ClusterSide<'c>>; 2],
    pub(super) endpoints: &'a [DiffEndpoint],
    pub(super) services: &'a [ServiceAddress],
    pub(super) frames: &'a [FamilyEnds; 2],
}

impl RowContext<'_, '_> {
    /// Whether an endpoint represents several pods, on each side that has it.
    pub(super) fn is_several(&self, endpoint: u32) -> bool {
        let ids = self.endpoints[endpoint as usize].ids;
        let mut sides = self.sides.iter().zip(ids).filter_map(|(side, id)| Some((side.as_ref()?, id?)));
        sides.all(|(side, id)| side.cluster.endpoints[id.index()].is_several)
    }
}

/// A row without its reasons.
struct RowDraft {
    part: PartId,
    source: RowEnd,
    destination: RowEnd,
    family: Option<Family>,
}

/// Every row, in order.
pub(super) fn rows(
    context: &RowContext<'_, '_>,
    tables: &EntryTables<'_, '_>,
    cells: &CellTable,
    found: [Vec<DiffRegion>; 2],
) -> Result<Vec<DiffRow>, DiffError> {
    let changed = changed_policies(context.sides);
    // Once for all rows: an oracle remembers which policies select which pods.
    let mut oracles = context.sides.each_ref().map(|side| side.as_ref().map(|it| Oracle::new(it.cluster)));
    let mut rows = Vec::new();
    for mut draft in drafts(context, cells, found) {
        // Before the witness, which must not be a flow of a pod to itself.
        trim(context, &mut draft);
        let part = cells.part(draft.part);
        let traffic = tables.atoms.traffic(part.set);
        // No witness: the comparison excludes every flow of the row (such as those between a pod and its own node), so
        // there is no difference to report. The classes contain such flows because they know no nodes.
        let Some(witness) =
            witness::find(context, &mut oracles, part, &traffic, &draft.source, &draft.destination, draft.family)?
        else {
            continue;
        };
        let account = |reason: Option<ReasonId>, direction, party: &RowEnd| {
            let reason = reason?;
            Some([0, 1].map(|which| account(context, tables, part, reason, which, direction, party, &changed)))
        };
        rows.push(DiffRow {
            presence: part.presence,
            change: part.change,
            decides: part.decides,
            egress: account(part.egress, Direction::Egress, &draft.source),
            ingress: account(part.ingress, Direction::Ingress, &draft.destination),
            source: draft.source,
            destination: draft.destination,
            traffic,
            family: draft.family,
            except: Vec::new(),
            given: None,
            witness,
        });
    }
    // Cached, because a key copies the lists of both parties.
    rows.sort_by_cached_key(sort_key);
    Ok(rows)
}

type SortKey = (bool, Presence, VerdictChange, bool, RowEnd, RowEnd, RowTraffic, Decides, Option<Family>);

/// The order of rows. Added traffic comes first, because readers look for it. Rows about services are last, because
/// they follow from rows about their backends.
fn sort_key(row: &DiffRow) -> SortKey {
    let to_services = !row.destination.services.is_empty();
    // `false` sorts first: of rows with the same presence and change, those with outside sources are the worst to
    // overlook.
    let from_outside = row.source.ranges.is_empty();
    (
        to_services,
        row.presence,
        row.change,
        from_outside,
        row.destination.clone(),
        row.source.clone(),
        row.traffic.clone(),
        row.decides,
        row.family,
    )
}

/// Combines the regions of both families where they agree.
fn drafts(context: &RowContext<'_, '_>, cells: &CellTable, found: [Vec<DiffRegion>; 2]) -> Vec<RowDraft> {
    let [v4, v6] = found;
    let key = |region: &DiffRegion| {
        let presence = cells.part(region.part).presence;
        // Only endpoints with both families: the others cannot disagree. Compared as a whole, the regions of a few IPv4
        // pods among dual ones would never be equal, and each row would occur twice.
        let dual = |members: &RegionMembers| {
            members.endpoints.iter().copied().filter(|it| is_dual(context, presence, *it)).collect()
        };
        let to_services = !region.destination.services.is_empty();
        let (from, to): (Vec<u32>, Vec<u32>) = (dual(&region.source), dual(&region.destination));
        // Part numbers are shared by both families, so equal parts mean equal traffic for equal reasons.
        (region.part, to_services, from, to)
    };
    // Several regions can have one key if none of their ends has both families. They are paired in their order.
    let mut waiting: BTreeMap<_, VecDeque<DiffRegion>> = BTreeMap::new();
    v6.into_iter().for_each(|region| waiting.entry(key(&region)).or_default().push_back(region));
    let mut drafts = Vec::new();
    for region in v4 {
        let key = key(&region);
        let other = waiting.get_mut(&key).and_then(VecDeque::pop_front);
        let shared = !key.2.is_empty() && !key.3.is_empty();
        // The family is named only where it says something: both parties have endpoints of both families, and the other
        // family has no such row.
        let family = (shared && other.is_none()).then_some(Family::V4);
        drafts.push(draft(context, family, [Some(region), other]));
    }
    for (key, regions) in waiting {
        let shared = !key.2.is_empty() && !key.3.is_empty();
        let family = shared.then_some(Family::V6);
        drafts.extend(regions.into_iter().map(|region| draft(context, family, [None, Some(region)])));
    }
    drafts
}

/// Whether an endpoint has addresses of both families on the sides that rows of this presence compare.
fn is_dual(context: &RowContext<'_, '_>, presence: Presence, endpoint: u32) -> bool {
    let takes_part = |frame: &FamilyEnds| {
        let [base, head] = frame.peers(endpoint as usize);
        match presence {
            Presence::Kept => base.is_some() && head.is_some(),
            Presence::Appeared => head.is_some(),
            Presence::Disappeared => base.is_some(),
        }
    };
    context.frames.iter().all(takes_part)
}

fn draft(context: &RowContext<'_, '_>, family: Option<Family>, regions: [Option<DiffRegion>; 2]) -> RowDraft {
    let part = regions.iter().flatten().map(|it| it.part).next().unwrap_or(PartId(0));
    let party = |of: fn(&DiffRegion) -> &RegionMembers, as_source: bool| {
        let mut members = RegionMembers::default();
        let mut ranges: Vec<AddressRange> = Vec::new();
        for (region, frame) in regions.iter().zip(context.frames) {
            // A row of one family has a region of that family only.
            let Some(region) = region else { continue };
            members.add(of(region).clone());
            // Ranges as sources contain addresses of services, as destinations they do not: a service sends nothing.
            ranges.extend(frame.ranges(&of(region).outside, as_source));
        }
        RowEnd {
            endpoints: members.endpoints,
            ranges: AddressSet::new(ranges),
            services: members.services,
            pods: Vec::new(),
        }
    };
    let (source, destination) = (party(|it| &it.source, true), party(|it| &it.destination, false));
    RowDraft { part, source, destination, family }
}

/// Traffic of a pod to itself is never meant: if one party is a single pod, it is removed from the other party.
fn trim(context: &RowContext<'_, '_>, draft: &mut RowDraft) {
    let only = |party: &RowEnd| match party.endpoints[..] {
        // A party of several pods keeps all of them: each one still has traffic with the others.
        [one] if party.ranges.is_empty() && party.services.is_empty() && !context.is_several(one) => Some(one),
        _ => None,
    };
    if let Some(one) = only(&draft.source) {
        draft.destination.endpoints.retain(|it| *it != one);
    }
    if let Some(one) = only(&draft.destination) {
        draft.source.endpoints.retain(|it| *it != one);
    }
}

#[expect(clippy::too_many_arguments, reason = "everything that a reason is derived from")]
fn account(
    context: &RowContext<'_, '_>,
    tables: &EntryTables<'_, '_>,
    part: &CellPart,
    reason: ReasonId,
    which: usize,
    direction: Direction,
    party: &RowEnd,
    changed: &[BTreeSet<PolicyId>; 2],
) -> EndReason {
    let reason = tables.reason(reason);
    // Rules explain why a side allows, isolating policies why a side denies. Each side gets the list that fits its
    // verdict.
    let having = if part.change == VerdictChange::Added { 1 } else { 0 };
    let state = reason.states[which];
    let mut isolating: BTreeSet<PolicyId> = BTreeSet::new();
    if let (Some(side), EndState::Isolated, true) = (&context.sides[which], state, which != having) {
        let ids = party.endpoints.iter().filter_map(|it| context.endpoints[*it as usize].ids[which]);
        // For each endpoint, the isolating policies that changed, or all of them if none changed.
        for id in ids {
            let of_endpoint = isolation::of(side, id, direction);
            let is_changed = |id: &PolicyId| changed[which].contains(id);
            let any = of_endpoint.iter().any(is_changed);
            isolating.extend(of_endpoint.into_iter().filter(|id| !any || is_changed(id)));
        }
    }
    let rules = reason.rules[which].iter().map(|(rule, _)| *rule).collect();
    let tiers = reason.tiers[which].iter().map(|(rule, _)| *rule).collect();
    EndReason { state, rules, tiers, isolating: isolating.into_iter().collect() }
}
