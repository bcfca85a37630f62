//! Which possible pods accept connections from outside, or from pods of other namespaces.
//!
//! Problem: a repository of policies has no pods, and still decides which pods will be exposed.
//! Strategy: the pods that policies isolate are exposed by rules, and all others by the lack of a policy; both can be
//! exposed by rules of the Admin tier. So there is one group for each rule that lets in anything from elsewhere, one for
//! the pods of each namespace that its policies do not isolate, and one for all namespaces without policies. Diagrams
//! show whether a group is empty.
//! Invariant: a flow from elsewhere is allowed only if a group contains it. If a group contains a flow that is denied,
//! the group says what cuts it: lists, cluster-wide policies, or the policies of its source. Test:
//! `compiler/analysis/tests/world/exposed.rs`.

use super::diagram::Diagram;
use super::groups::{EndSet, FlowProduct, PodSet, TrafficSet, named_namespace, not_named};
use super::halves::{ClassPair, EndClass, PossibleWorld, product};
use super::{MOST_NODES, WorldError};
use weir_model::eval::RuleId;
use weir_model::{Cluster, Direction, PolicyId, RuleAction, Tier, TierRuleId};

/// Possible pods that accept the same traffic from elsewhere, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedGroup {
    /// The pods.
    pub pods: PodSet,
    /// Pods among these that are not in the group, because a policy isolates them.
    pub except: Vec<PodSet>,
    /// The reason why the traffic is allowed.
    pub by: ExposedBy,
    /// The sources. Their pods may also be of the group's own namespace.
    pub source: EndSet,
    /// The traffic.
    pub traffic: TrafficSet,
    /// Whether address lists deny a part of the traffic.
    pub is_cut_by_lists: bool,
    /// Whether cluster-wide policies, other than `by`, decide about a part of the traffic and deny it.
    pub is_cut_by_tiers: bool,
    /// Whether policies of the sources deny a part of the traffic.
    pub is_cut_by_egress: bool,
}

/// The reason why traffic is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExposedBy {
    /// No policy isolates the pods.
    NotIsolated,
    /// A rule of a NetworkPolicy.
    Rule(RuleId),
    /// A rule of the Admin tier.
    Tier(TierRuleId),
}

impl ExposedGroup {
    /// Whether addresses outside are among the sources.
    pub fn is_from_outside(&self) -> bool {
        !self.source.ranges.is_empty()
    }
}

/// The groups of possible pods that accept traffic from outside or from other namespaces.
pub fn exposed(cluster: &Cluster) -> Result<Vec<ExposedGroup>, WorldError> {
    let world = PossibleWorld::new([cluster, cluster], MOST_NODES);
    let mut search = ExposedSearch { world, found: Vec::new(), judged: Vec::new() };
    match search.find() {
        Ok(()) => Ok(search.found),
        Err(WorldError::TooLarge { .. }) => {
            Err(WorldError::TooLarge { policies: search.judged.iter().map(|it| cluster.policy_name(*it)).collect() })
        }
        Err(other) => Err(other),
    }
}

struct ExposedSearch<'c> {
    world: PossibleWorld<'c>,
    found: Vec<ExposedGroup>,
    /// The policies that are judged at the moment, for an error.
    judged: Vec<PolicyId>,
}

/// How much of a product passes.
#[derive(Clone, Copy, Default)]
struct Passing {
    any: bool,
    is_cut_by_lists: bool,
    is_cut_by_tiers: bool,
    is_cut_by_egress: bool,
}

impl ExposedSearch<'_> {
    fn find(&mut self) -> Result<(), WorldError> {
        self.tiers()?;
        let mut with_policies = Vec::new();
        for class in 0..self.world.classes.len() {
            let policies = self.world.isolating(0, Direction::Ingress, Some(class)).to_vec();
            let Some(name) = self.world.classes[class].name().map(str::to_owned) else { continue };
            if policies.is_empty() {
                continue;
            }
            for policy in &policies {
                self.judged = vec![*policy];
                for (index, flows) in self.world.rule_products(0, Direction::Ingress, *policy).into_iter().enumerate() {
                    self.rule(class, RuleId { policy: *policy, rule: index as u32 }, flows)?;
                }
            }
            self.judged.clone_from(&policies);
            let mut except: Vec<PodSet> = policies.iter().flat_map(|it| self.world.subjects(0, *it).pods).collect();
            except.sort_unstable();
            except.dedup();
            let pods = PodSet { namespaces: named_namespace(&name), ..PodSet::default() };
            self.open(vec![class], pods, except)?;
            with_policies.push(name);
        }
        let others = (0..self.world.classes.len()).filter(|class| {
            let name = self.world.classes[*class].name();
            name.is_none_or(|name| !with_policies.iter().any(|it| it == name))
        });
        let namespaces = if with_policies.is_empty() { Default::default() } else { not_named(&with_policies) };
        self.open(others.collect(), PodSet { namespaces, ..PodSet::default() }, Vec::new())
    }

    /// The groups of rules of the Admin tier that accept something from elsewhere.
    fn tiers(&mut self) -> Result<(), WorldError> {
        for rule in self.world.sides[0].tiers[Direction::Ingress as usize].clone() {
            if rule.tier != Tier::Admin || rule.action != RuleAction::Accept {
                continue;
            }
            let (mut source, mut all) = (EndSet::default(), Passing::default());
            for destination in 0..self.world.classes.len() {
                let outside = EndSet { pods: Vec::new(), ranges: rule.flows.source.ranges.clone() };
                let one = FlowProduct { source: outside, ..rule.flows.clone() };
                let passing = self.passing(&one, Diagram::NONE, vec![None], destination)?;
                if passing.any {
                    source.ranges.clone_from(&rule.flows.source.ranges);
                }
                all.add(passing);
                let elsewhere = self.elsewhere(destination);
                for pods in &rule.flows.source.pods {
                    let one = FlowProduct { source: EndSet::pods(pods.clone()), ..rule.flows.clone() };
                    let passing = self.passing(&one, Diagram::NONE, elsewhere.clone(), destination)?;
                    if passing.any && !source.pods.contains(pods) {
                        source.pods.push(pods.clone());
                    }
                    all.add(passing);
                }
            }
            if all.any {
                // Several groups where the sides disagree about namespaces, which is impossible for one side.
                for pods in rule.flows.destination.pods {
                    let (source, traffic) = (source.clone(), rule.flows.traffic.clone());
                    self.push(pods, Vec::new(), ExposedBy::Tier(rule.rule), source, traffic, all);
                }
            }
        }
        Ok(())
    }

    /// The classes of other namespaces. Two namespaces that are not mentioned are of one class.
    fn elsewhere(&self, class: usize) -> Vec<EndClass> {
        let is_other = |it: &usize| *it != class || self.world.classes[class].name().is_none();
        (0..self.world.classes.len()).filter(is_other).map(Some).collect()
    }

    /// The group of a rule, without peers that let in nothing from elsewhere.
    fn rule(&mut self, class: usize, rule: RuleId, flows: FlowProduct) -> Result<(), WorldError> {
        let mut source = EndSet::default();
        let mut all = Passing::default();
        let outside = EndSet { pods: Vec::new(), ranges: flows.source.ranges.clone() };
        if !outside.ranges.is_empty() {
            let one = FlowProduct { source: outside, ..flows.clone() };
            let passing = self.passing(&one, Diagram::NONE, vec![None], class)?;
            if passing.any {
                source.ranges.clone_from(&flows.source.ranges);
                all.add(passing);
            }
        }
        let elsewhere: Vec<EndClass> = (0..self.world.classes.len()).filter(|it| *it != class).map(Some).collect();
        for pods in &flows.source.pods {
            let one = FlowProduct { source: EndSet::pods(pods.clone()), ..flows.clone() };
            let passing = self.passing(&one, Diagram::NONE, elsewhere.clone(), class)?;
            if passing.any {
                source.pods.push(pods.clone());
                all.add(passing);
            }
        }
        if all.any {
            let pods = flows.destination.pods.into_iter().next().unwrap_or_default();
            self.push(pods, Vec::new(), ExposedBy::Rule(rule), source, flows.traffic, all);
        }
        Ok(())
    }

    /// The group of the pods in some namespaces that no policy isolates.
    fn open(&mut self, classes: Vec<usize>, pods: PodSet, except: Vec<PodSet>) -> Result<(), WorldError> {
        let traffic = self.world.all_traffic(0);
        let flows = product(Direction::Ingress, EndSet::pods(pods.clone()), EndSet::everything(), traffic.clone());
        let (mut from_outside, mut from_pods) = (Passing::default(), Passing::default());
        for class in classes {
            let isolated =
                self.world.isolated(0, Direction::Ingress, ClassPair { source: None, destination: Some(class) })?;
            from_outside.add(self.passing(&flows, isolated, vec![None], class)?);
            let elsewhere = self.elsewhere(class);
            from_pods.add(self.passing(&flows, isolated, elsewhere, class)?);
        }
        let EndSet { pods: every_pod, ranges } = EndSet::everything();
        let (mut all, mut source) = (Passing::default(), EndSet::default());
        if from_outside.any {
            source.ranges = ranges;
            all.add(from_outside);
        }
        if from_pods.any {
            source.pods = every_pod;
            all.add(from_pods);
        }
        if all.any {
            self.push(pods, except, ExposedBy::NotIsolated, source, traffic, all);
        }
        Ok(())
    }

    fn push(
        &mut self,
        pods: PodSet,
        except: Vec<PodSet>,
        by: ExposedBy,
        source: EndSet,
        traffic: TrafficSet,
        passing: Passing,
    ) {
        let Passing { is_cut_by_lists, is_cut_by_tiers, is_cut_by_egress, .. } = passing;
        self.found.push(ExposedGroup {
            pods,
            except,
            by,
            source,
            traffic,
            is_cut_by_lists,
            is_cut_by_tiers,
            is_cut_by_egress,
        });
    }

    /// How much of a product passes lists, cluster-wide policies and the policies of the sources, from these classes to
    /// one.
    fn passing(
        &mut self,
        flows: &FlowProduct,
        without: Diagram,
        sources: Vec<EndClass>,
        class: usize,
    ) -> Result<Passing, WorldError> {
        let mut all = Passing::default();
        for source in sources {
            let pair = ClassPair { source, destination: Some(class) };
            let product = self.world.product(flows, pair)?;
            let product = self.world.diagrams.and_not(product, without)?;
            if product.is_empty() {
                continue;
            }
            let denied = self.world.denied(0, Direction::Ingress, pair)?;
            let past_lists = self.world.diagrams.and_not(product, denied)?;
            let by_tiers = self.world.without_lists(0, Direction::Ingress, pair)?;
            let let_in = self.world.diagrams.and(past_lists, by_tiers)?;
            let egress = self.world.half(0, Direction::Egress, pair)?;
            let passes = self.world.diagrams.and(let_in, egress)?;
            all.any |= !passes.is_empty();
            all.is_cut_by_lists |= past_lists != product;
            all.is_cut_by_tiers |= let_in != past_lists;
            all.is_cut_by_egress |= passes != let_in;
        }
        Ok(all)
    }
}

impl Passing {
    fn add(&mut self, other: Self) {
        self.any |= other.any;
        self.is_cut_by_lists |= other.is_cut_by_lists;
        self.is_cut_by_tiers |= other.is_cut_by_tiers;
        self.is_cut_by_egress |= other.is_cut_by_egress;
    }
}
