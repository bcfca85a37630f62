//! Names of chains and sets, and comments: short enough for the kernel, and reproducible.

use std::collections::{BTreeMap, HashMap};

use super::super::parse::MAX_COMMENT;
use weir_model::eval::RuleId;
use weir_model::{Cluster, Direction, EndpointId, ListId, PolicyId, RuleAction, TierRuleId, rule_path};

/// The meaning of a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Meaning {
    /// The packet is from or to this pod.
    Pod(EndpointId),
    /// The other end is the pod itself.
    Itself,
    /// The other end is the pod's node.
    OwnNode,
    /// ICMP is assumed to pass.
    Icmp,
    /// This list contains the other end.
    List(ListId),
    /// This policy isolates the pod.
    Policy(PolicyId),
    /// This rule allows the packet.
    Rule(RuleId, Direction),
    /// This rule of a cluster-wide policy matches.
    Tier(TierRuleId, RuleAction),
    /// The pod is isolated, and no rule allows the packet.
    Isolated,
}

/// The names in use, and the meanings of comments.
#[derive(Debug, Default)]
pub(super) struct ChainNames {
    /// The key of each hashed name, so that two keys never share a name.
    taken: HashMap<String, String>,
    pub(super) meanings: BTreeMap<String, Meaning>,
}

impl ChainNames {
    /// `prefix` and 16 hexadecimal digits, a hash of the key.
    pub(super) fn hashed(&mut self, prefix: &str, key: &str) -> String {
        let mut hash = fnv1a(key);
        loop {
            let name = format!("{prefix}{hash:016x}");
            let holder = self.taken.entry(name.clone()).or_insert_with(|| key.to_owned());
            if holder == key {
                return name;
            }
            hash = hash.wrapping_add(1);
        }
    }

    /// A unique comment for the meaning.
    pub(super) fn comment(&mut self, cluster: &Cluster, meaning: Meaning) -> String {
        let mut comment = fit(&say(cluster, meaning));
        while self.meanings.get(&comment).is_some_and(|other| *other != meaning) {
            comment = fit(&(comment + "'"));
        }
        self.meanings.insert(comment.clone(), meaning);
        comment
    }
}

fn say(cluster: &Cluster, meaning: Meaning) -> String {
    match meaning {
        Meaning::Pod(id) => {
            let kind = &cluster.endpoints[id.index()].kind;
            format!("{kind} {}", cluster.endpoint_name(id))
        }
        Meaning::Itself => "itself".to_owned(),
        Meaning::OwnNode => "own node".to_owned(),
        Meaning::Icmp => "icmp passes".to_owned(),
        Meaning::List(id) => format!("list {}", cluster.lists[id.index()].name),
        Meaning::Policy(id) => format!("policy {}", cluster.policy_name(id)),
        Meaning::Rule(id, direction) => {
            format!("{} {}", cluster.policy_name(id.policy), rule_path(direction, id.rule as usize))
        }
        Meaning::Tier(id, action) => {
            let (policy, at) = (cluster.tier_policy_name(id.policy), rule_path(id.direction, id.rule as usize));
            format!("{} {policy} {at}", action.name())
        }
        Meaning::Isolated => "isolated".to_owned(),
    }
}

/// The text itself if it is plain and short; otherwise as much of it as fits, and a hash of the whole.
fn fit(text: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || " ./:-_[]~".contains(character);
    let plain: String = text.chars().map(|it| if is_plain(it) { it } else { '_' }).collect();
    if plain == text && text.len() <= MAX_COMMENT {
        return plain;
    }
    // `plain` is ASCII, so it can be cut at any byte.
    let kept = plain.get(..plain.len().min(MAX_COMMENT - 17)).unwrap_or_default();
    format!("{kept}~{:016x}", fnv1a(text))
}

/// FNV-1a, 64 bits: gives the same hash on every machine and in every release.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_fit_and_stay_apart() {
        assert_eq!(fit("shop/web spec.ingress[0]"), "shop/web spec.ingress[0]");
        let long = "a".repeat(300);
        assert_eq!(fit(&long).len(), MAX_COMMENT);
        assert_ne!(fit(&long), fit(&(long.clone() + "b")));
        assert_ne!(fit("list a\"b"), fit("list a'b"));
        assert!(!fit("list a\"b\n").contains(['"', '\n']));
    }

    #[test]
    fn two_keys_never_share_a_name() {
        let mut names = ChainNames::default();
        let first = names.hashed("X-", "a");
        names.taken.insert(first.clone(), "something else".to_owned());
        assert_ne!(names.hashed("X-", "a"), first);
    }
}
