//! A change of a comparison, described so that it can be recognized later.

use weir_analysis::containment::{EndScope, FlowRegion, FlowScope};
use weir_analysis::diff::{Diff, DiffRow, IsolationChange, RowEnd, RowProduct, VerdictChange};
use weir_analysis::world::PodSet;
use weir_model::labels::matches;
use weir_model::{Direction, PolicyId};

use super::super::Comparison;
use super::super::flows::reference;
use crate::args::{DeniedChange, World};

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands::diff) enum ChangeKind {
    Traffic(VerdictChange),
    Isolation { begins: bool, direction: Direction },
}

impl ChangeKind {
    /// The side of a gate that such a change concerns.
    pub(in crate::commands::diff) fn denied_by(self) -> DeniedChange {
        match self {
            Self::Traffic(VerdictChange::Added) | Self::Isolation { begins: false, .. } => DeniedChange::Added,
            Self::Traffic(VerdictChange::Removed) | Self::Isolation { begins: true, .. } => DeniedChange::Removed,
        }
    }
}

/// A change, and the flows that it concerns.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::commands::diff) struct ApprovableChange {
    pub(in crate::commands::diff) kind: ChangeKind,
    pub(in crate::commands::diff) region: FlowRegion,
}

impl ApprovableChange {
    pub(in crate::commands::diff) fn of_rows(diff: &Diff) -> Vec<Self> {
        diff.rows.iter().map(|it| Self::of_row(diff, it)).collect()
    }

    pub(in crate::commands::diff) fn of_isolations(compared: &Comparison) -> Vec<Self> {
        compared.diff.isolation.iter().map(|it| Self::of_isolation(compared, it)).collect()
    }

    fn of_row(diff: &Diff, row: &DiffRow) -> Self {
        let is_possible = row.witness.possible.is_some();
        let end = |end: &RowEnd| EndScope {
            pods: end.pods.clone(),
            addresses: end.ranges.clone(),
            // In a row about possible pods, `endpoints` only counts the pods of the input that are among them.
            endpoints: end.endpoints.iter().filter(|_| !is_possible).map(|it| reference(diff, *it)).collect(),
            services: end.services.iter().map(|it| diff.services[*it as usize].address).collect(),
        };
        let product = |it: &RowProduct| FlowScope {
            source: end(&it.source),
            destination: end(&it.destination),
            traffic: it.traffic.clone(),
        };
        let flows =
            FlowScope { source: end(&row.source), destination: end(&row.destination), traffic: row.traffic.clone() };
        let except = row.except.iter().map(product).collect();
        let region = FlowRegion { flows, except, given: row.given, family: row.family };
        Self { kind: ChangeKind::Traffic(row.change), region }
    }

    fn of_isolation(compared: &Comparison, change: &IsolationChange) -> Self {
        let selected = match compared.world {
            World::Open => selected(compared, change),
            World::Closed => None,
        };
        let IsolatedPods { pods, except } = selected.unwrap_or_else(|| {
            let endpoints = change.endpoints.iter().map(|it| reference(&compared.diff, *it)).collect();
            IsolatedPods { pods: EndScope { endpoints, ..EndScope::default() }, except: Vec::new() }
        });
        Self::isolation(change.begins, change.direction, pods, except)
    }

    /// The pods are the source of all traffic, for either direction.
    pub(super) fn isolation(begins: bool, direction: Direction, pods: EndScope, except: Vec<EndScope>) -> Self {
        let of = |source| FlowScope { source, ..FlowScope::between_all_pods() };
        let except = except.into_iter().map(of).collect();
        let region = FlowRegion { flows: of(pods), except, ..FlowRegion::default() };
        Self { kind: ChangeKind::Isolation { begins, direction }, region }
    }
}

/// Pods whose isolation changes, and those among them whose isolation does not.
struct IsolatedPods {
    pods: EndScope,
    except: Vec<EndScope>,
}

/// The pods in the policies' selectors. `None` if the isolation changes because pods changed, and not policies.
fn selected(compared: &Comparison, change: &IsolationChange) -> Option<IsolatedPods> {
    let (isolating, free) = (usize::from(change.begins), usize::from(!change.begins));
    let [cluster, other] = [isolating, free].map(|side| &compared.sides[side].cluster);
    let sets = change.policies.iter().map(|it| PodSet::selected_by(cluster, *it));
    let pods = sets.reduce(|all, it| all.and(&it).unwrap_or(all))?;
    let others = (0..other.policies.len() as u32).map(PolicyId);
    let isolating = others.filter(|it| other.policy(*it).rules(change.direction).is_some());
    let end = |pods| EndScope { pods: vec![pods], ..EndScope::default() };
    let isolated = end(pods.clone());
    let except = isolating.map(|it| PodSet::selected_by(other, it));
    let except: Vec<PodSet> = except.filter(|it| !isolated.is_disjoint(&end(it.clone()))).collect();
    let is_selected = |endpoint: &u32| {
        let Some(id) = compared.diff.endpoints[*endpoint as usize].ids[free] else { return false };
        let labels = other.labels.labels(other.endpoints[id.index()].labels);
        matches(&pods.pods, labels) && !except.iter().any(|it| matches(&it.pods, labels))
    };
    let are_selected = change.endpoints.iter().all(is_selected);
    are_selected.then(|| IsolatedPods { except: except.into_iter().map(end).collect(), pods: isolated })
}
