//! Cluster-wide policies as chains: one for each tier, direction and set of policies.
//!
//! ```text
//! pod's chain ─▶ WEIR-AE-… Admin ─▶ accepted? RETURN ─▶ NetworkPolicies, or ─▶ WEIR-BE-… Baseline ─▶ accepted? RETURN
//!                 Deny: DROP; Pass: RETURN; Accept: goto WEIR-ACCEPT, which sets a mark and returns to the pod's chain
//! ```

use super::names::Meaning;
use super::sets::NamespaceScope;
use super::{Conditions, PacketEnd, TableWriter};
use weir_model::{EndpointId, RuleAction, Tier, TierMatch, TierPeer, TierPolicyId, TierRuleId};

/// The chain that marks a packet as accepted.
const ACCEPT: &str = "WEIR-ACCEPT";
/// The mark bit of a packet that a rule accepts.
const ACCEPTED: &str = "0x2/0x2";

impl TableWriter<'_, '_> {
    /// Evaluates a tier. The packets that it accepts leave the pod's chain.
    pub(super) fn tier(&mut self, pod: &str, id: EndpointId, tier: Tier) {
        let policies = self.renderer.facts.in_tier(self.direction, tier, id);
        if policies.is_empty() {
            return;
        }
        let kind = if tier == Tier::Admin { 'A' } else { 'B' };
        let name = self.chain_name(kind, &format!("{policies:?}"));
        if self.chains.open(&name) {
            for policy in policies {
                self.tier_policy(&name, policy);
            }
        }
        if self.chains.open(ACCEPT) {
            let mark = format!("-j MARK --set-xmark {ACCEPTED}");
            self.chains.push(ACCEPT, &Conditions::default(), "a rule accepts", &mark);
        }
        let anything = Conditions::default();
        self.chains.push(pod, &anything, "nothing has accepted yet", "-j MARK --set-xmark 0x0/0x2");
        self.chains.push(pod, &anything, tier.name(), &format!("-j {name}"));
        let accepted = Conditions::extension(format!("-m mark --mark {ACCEPTED} "));
        self.chains.push(pod, &accepted, "accepted", "-j RETURN");
    }

    fn tier_policy(&mut self, chain: &str, policy: TierPolicyId) {
        let cluster = self.renderer.facts.cluster;
        for (index, rule) in cluster.tier_policy(policy).rules(self.direction).iter().enumerate() {
            let id = TierRuleId { policy, direction: self.direction, rule: index as u32 };
            let target = match rule.action {
                RuleAction::Accept => format!("-g {ACCEPT}"),
                RuleAction::Deny => "-j DROP".to_owned(),
                RuleAction::Pass => "-j RETURN".to_owned(),
            };
            let comment = self.comment(Meaning::Tier(id, rule.action));
            // A line for each pair of peer and ports, without chains in between: `RETURN` has to leave the tier.
            for conditions in rule.matched.iter().flat_map(|matched| self.conditions_of(matched)).collect::<Vec<_>>() {
                self.chains.push(chain, &conditions, &comment, &target);
            }
        }
    }

    fn conditions_of(&mut self, matched: &TierMatch) -> Vec<Conditions> {
        let mut peers = vec![Conditions::default()];
        if !matched.peers.is_empty() {
            peers = matched.peers.iter().flat_map(|peer| self.tier_peer(peer)).collect();
        }
        let ports = self.ports(&matched.ports);
        peers.iter().flat_map(|peer| ports.iter().map(|port| peer.and(port))).collect()
    }

    /// The conditions of a peer: one for each network of the table's family.
    fn tier_peer(&mut self, peer: &TierPeer) -> Vec<Conditions> {
        let remote = self.flag(PacketEnd::Remote);
        let set = match peer {
            TierPeer::Networks(networks) => {
                let of_family = networks.iter().filter(|network| network.family() == self.family);
                return of_family.map(|network| Conditions::address(remote, *network)).collect();
            }
            TierPeer::Pods { namespaces, pods } => {
                self.renderer.peer_set(self.family, NamespaceScope::Selected(*namespaces), *pods)
            }
            TierPeer::Nodes(nodes) => self.renderer.selected_nodes_set(self.family, *nodes),
        };
        vec![Conditions::set(&set, remote.set())]
    }
}
