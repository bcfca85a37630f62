//! What cluster-wide policies may open although NetworkPolicies deny it.
//!
//! Lints about denied traffic stay silent where a rule of the Admin tier may accept it: such a rule comes before every
//! NetworkPolicy.

use super::context::LintContext;
use super::cover;
use weir_model::{Direction, Policy, PortRule, RuleAction, Tier};

impl LintContext<'_> {
    /// Whether a rule of the Admin tier may accept traffic of a pod that a NetworkPolicy selects. `wanted` decides by
    /// the rule's ports whether the traffic in question is meant.
    pub(super) fn may_be_accepted(
        &self,
        policy: &Policy,
        direction: Direction,
        wanted: impl Fn(&[PortRule]) -> bool,
    ) -> bool {
        let subjects = self.selector(policy.subjects);
        let admin = self.cluster.tiers.iter().filter(|it| it.tier == Tier::Admin && !it.is_audit);
        self.spend(self.cluster.tiers.len());
        admin.into_iter().any(|tier| {
            let accepts = tier.rules(direction).iter().any(|rule| {
                let ports = rule.matched.as_ref().map(|it| &it.ports[..]);
                rule.action == RuleAction::Accept && ports.is_some_and(&wanted)
            });
            accepts
                && self.namespaces(tier.namespaces).contains(&policy.namespace)
                && cover::may_meet(subjects, self.selector(tier.pods))
        })
    }
}
