//! The part of an exposure that a filter shows.

use weir_analysis::reach::edges::EndGroup;
use weir_analysis::reach::{Passes, ReachEnd};
use weir_analysis::world::{ExposedGroup, PodSet};
use weir_model::labels::matches;

use super::Findings;
use crate::args::FilterDirection;
use crate::views::filter::{ReachFilter, SelectedEnds, ViewFilter, selects_namespace};
use crate::views::label_filter::may_both_match;

/// Removes the rows that the filter hides.
pub(super) fn apply<'r>(found: &mut Findings<'r>, filter: &'r ViewFilter) {
    let reach = found.reach;
    found.filter = Some((filter, found.exposures.len()));
    let on_reach = ReachFilter { filter, reach };
    let is_subject = |party: u32| on_reach.takes_subject(ReachEnd::Party(party));
    let ingress = filter.direction != Some(FilterDirection::Egress);
    let cells = &found.cells;
    let is_shown = |(passes, groups): &(Passes, Vec<EndGroup>)| {
        let from = filter.from.as_ref().is_none_or(|it| groups.iter().any(|group| touches(&on_reach, it, group)));
        ingress && from && on_reach.has_port(cells, *passes)
    };
    found.exposures.retain_mut(|it| {
        it.outside.retain(is_shown);
        it.namespaces.retain(is_shown);
        // A question about sources or ports is not one about missing policies.
        let is_open = !it.outside.is_empty() || !it.namespaces.is_empty();
        is_subject(it.party) && (is_open || (filter.from.is_none() && filter.port.is_none()))
    });
    let cluster = reach.cluster;
    let members: Vec<&weir_analysis::reach::Party> =
        (0..).zip(&reach.parties).filter(|(index, _)| is_subject(*index)).map(|(_, it)| it).collect();
    found.entrances.retain(|entrance| {
        let backends = &cluster.services[entrance.service.index()].ports[entrance.port as usize].backends;
        let mut pods = backends.iter().filter_map(|it| it.endpoint);
        ingress && pods.any(|id| members.iter().any(|it| it.members.contains(&id)))
    });
    if let Some(possible) = &mut found.possible {
        possible.retain(|it| ingress && takes_possible(cluster, filter, it));
    }
}

/// Whether a group of sources contains any of the selected ends.
fn touches(filter: &ReachFilter<'_>, selected: &SelectedEnds, group: &EndGroup) -> bool {
    let ends = filter.reach.all_ends();
    let mut of_group = ends.iter().filter(|end| match (group, end) {
        (EndGroup::Everyone, _) => true,
        (EndGroup::Pods, ReachEnd::Party(_)) | (EndGroup::Outside, ReachEnd::Zone(_)) => true,
        (EndGroup::Namespace(id), ReachEnd::Party(index)) => filter.reach.parties[*index as usize].namespace == *id,
        (EndGroup::Party(one), ReachEnd::Party(index)) => one == index,
        (EndGroup::Ranges(ranges), ReachEnd::Zone(index)) => {
            let zone = &filter.reach.zones[*index as usize];
            zone.ranges.iter().any(|(first, _)| ranges.iter().any(|(a, b)| a <= first && first <= b))
        }
        _ => false,
    });
    of_group.any(|it| filter.is(selected, *it))
}

/// Whether a group of possible pods contains pods of the namespaces or descriptions that are asked about.
fn takes_possible(cluster: &weir_model::Cluster, filter: &ViewFilter, group: &ExposedGroup) -> bool {
    let in_namespace = |pods: &PodSet, name: &str| selects_namespace([cluster, cluster], &pods.namespaces, name);
    let is = |selected: &SelectedEnds, pods: &PodSet| match (&selected.namespace, &selected.described) {
        (Some(name), _) => in_namespace(pods, name),
        (None, Some(pod)) => in_namespace(pods, &pod.namespace) && matches(&pods.pods, &pod.labels),
        (None, None) => selected.endpoints.iter().flatten().any(|id| {
            let endpoint = &cluster.endpoints[id.index()];
            in_namespace(pods, &cluster.namespaces[endpoint.namespace.index()].name)
                && matches(&pods.pods, cluster.labels.labels(endpoint.labels))
        }),
    };
    let named = [&filter.focus, &filter.to].into_iter().flatten().all(|it| is(it, &group.pods));
    let selector = filter.selector.as_ref().and_then(|it| it.selector.as_ref());
    let selected = selector.is_none_or(|it| may_both_match(it, &group.pods.pods));
    let namespaces = filter.namespaces.is_empty() || filter.namespaces.iter().any(|it| in_namespace(&group.pods, it));
    named && selected && namespaces && filter.from.is_none() && filter.port.is_none()
}
