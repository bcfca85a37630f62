//! An `except` of a block that excludes nothing.

use super::context::LintContext;
use super::prefixes::PrefixIndex;
use super::{cover, words};
use weir_model::{Direction, Peer, Policy, rule_path};
use weir_objects::address::Prefix;
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Fix, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code =
    Code::lint("except-excludes-nothing", Severity::Warning, include_str!("except_excludes_nothing.diff"))
        .what("An `except` entry has no effect.")
        .why(
            "An `except` entry narrows only its own block. It has no effect if another block of the same policy \
          allows the same addresses on the same ports, or if another entry excludes them already.",
        );

/// A block with its position in the policy.
struct RuleBlock<'p> {
    cidr: Prefix,
    except: &'p [Prefix],
    rule: usize,
    peer: usize,
}

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    for policy in &context.cluster.policies {
        for direction in Direction::ALL {
            if context.is_spent(policy.object) {
                return;
            }
            let blocks = blocks(policy, direction);
            if blocks.iter().any(|block| !block.except.is_empty()) {
                check_blocks(context, policy, direction, &blocks, found);
            }
        }
    }
}

fn blocks(policy: &Policy, direction: Direction) -> Vec<RuleBlock<'_>> {
    let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
    let peers = rules.flat_map(|(rule, it)| it.peers.iter().enumerate().map(move |(peer, it)| (rule, peer, it)));
    peers
        .filter_map(|(rule, peer, it)| match it {
            Peer::Block { cidr, except } => Some(RuleBlock { cidr: *cidr, except, rule, peer }),
            Peer::Pods { .. } => None,
        })
        .collect()
}

fn check_blocks(
    context: &LintContext<'_>,
    policy: &Policy,
    direction: Direction,
    blocks: &[RuleBlock<'_>],
    found: &mut Diagnostics,
) {
    let mut by_cidr = PrefixIndex::default();
    for (number, block) in blocks.iter().enumerate() {
        by_cidr.insert(block.cidr, number as u32);
    }
    for block in blocks {
        let mut holes = PrefixIndex::default();
        for (number, hole) in block.except.iter().enumerate() {
            holes.insert(*hole, number as u32);
        }
        for (number, hole) in block.except.iter().enumerate() {
            if context.is_spent(policy.object) {
                return;
            }
            let at = ExceptSite { context, policy, direction, block, number, hole: *hole };
            if let Some(diagnostic) = at.inside_another(&holes).or_else(|| at.allowed_again(blocks, &by_cidr)) {
                found.push(diagnostic);
            }
        }
    }
}

/// One `except`.
struct ExceptSite<'p, 'c> {
    context: &'p LintContext<'c>,
    policy: &'p Policy,
    direction: Direction,
    block: &'p RuleBlock<'p>,
    number: usize,
    hole: Prefix,
}

impl ExceptSite<'_, '_> {
    /// Another `except` of the block contains this one. Of two equal ones, the second is reported.
    fn inside_another(&self, holes: &PrefixIndex) -> Option<Diagnostic> {
        let except = self.block.except;
        let mut outer = holes.covering(self.hole).map(|number| number as usize);
        let outer = outer.find(|other| {
            self.context.spend(1);
            except[*other] != self.hole || *other < self.number
        })?;
        let path = self.path().field("ipBlock").field("except");
        let message = format!("except {} has no effect: except {} excludes the same already", self.hole, except[outer]);
        let diagnostic = Diagnostic::at(&CODE, FieldOrigin::new(self.policy.object, path.index(self.number)), message)
            .also(FieldOrigin::new(self.policy.object, path.index(outer)), "excluded here already");
        Some(diagnostic.help("remove it").fix(Fix::Remove))
    }

    /// Another block of the policy allows all of its addresses on all of the rule's ports.
    fn allowed_again(&self, blocks: &[RuleBlock<'_>], by_cidr: &PrefixIndex) -> Option<Diagnostic> {
        let rules = self.policy.rules(self.direction)?;
        let ports = &rules.get(self.block.rule)?.ports;
        let mut others = by_cidr.covering(self.hole).filter_map(|number| blocks.get(number as usize));
        let other = others.find(|other| {
            self.context.spend(1 + other.except.len());
            let same = other.rule == self.block.rule && other.peer == self.block.peer;
            let reached = rules.get(other.rule).is_some_and(|rule| cover::ports_cover(&rule.ports, ports));
            !same && reached && cover::block_allows(other.cidr, other.except, self.hole)
        })?;
        let origin = |path| FieldOrigin::new(self.policy.object, path);
        let other_path = words::peer_path(self.direction, other.rule, other.peer).field("ipBlock").field("cidr");
        let name = words::policy(self.context.cluster, self.policy);
        let message = format!("except {} of policy {name} has no effect: another block allows it", self.hole);
        let path = self.path().field("ipBlock").field("except").index(self.number);
        let place = match other.rule == self.block.rule {
            true => "the same rule".to_owned(),
            false => rule_path(self.direction, other.rule).to_string(),
        };
        Some(
            Diagnostic::at(&CODE, origin(path), message)
                .label("still allowed")
                .also(origin(other_path), format!("{} allows it", other.cidr))
                .note(format!("an except narrows only its own block; {place} allows all of {}", self.hole))
                .help("remove the except, or except it from the other block too"),
        )
    }

    fn path(&self) -> FieldPath {
        words::peer_path(self.direction, self.block.rule, self.block.peer)
    }
}
