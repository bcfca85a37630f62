//! The pipeline with the results of every stage, so that each stage can be tested.

use std::net::IpAddr;

use weir_artifact::map_image::MapImage;
use weir_artifact::structure::LookupSet;
use weir_classes::{Atoms, Classes, Scope, classify};
use weir_codegen::emit::shapes::TableShapes;
use weir_codegen::emit::{Plan, emit};
use weir_codegen::ir::{self, DecisionProgram, DecisionTables, PacketFacts, VerdictReason};
use weir_codegen::map_images::{self, Sizes};
use weir_codegen::structures::{Room, StructureOptions};
use weir_codegen::{lower, passes};
use weir_ebpf::asm::Assembled;
use weir_ebpf::target::Target;
use weir_model::directory::Directory;
use weir_model::eval::{Basis, EndVerdict, Oracle, RuleId, Verdict};
use weir_model::{Cluster, Direction, EndpointId, TierRuleId};
use weir_objects::address::Family;

use super::packets::Machine;
use super::questions::{Boundaries, Question};
use crate::generators::Random;

/// A cluster, compiled for some of its endpoints.
pub struct Compiled<'c> {
    /// The cluster.
    pub cluster: &'c Cluster,
    /// The owners of all addresses.
    pub directory: Directory<'c>,
    /// The local endpoints.
    pub scope: Scope,
    /// The equivalence classes.
    pub classes: Classes,
    /// The tables of the programs.
    pub tables: DecisionTables,
    /// As lowered: ingress, egress.
    pub general: [DecisionProgram; 2],
    /// After all passes: ingress, egress.
    pub optimised: [DecisionProgram; 2],
}

/// Index of a direction in a pair.
pub fn index(direction: Direction) -> usize {
    usize::from(direction == Direction::Egress)
}

impl<'c> Compiled<'c> {
    /// Compiles up to the IR, with the structures that the cost model chooses.
    pub fn new(cluster: &'c Cluster, scope: Scope) -> Result<Self, String> {
        Self::with(cluster, scope, &StructureOptions::default())
    }

    /// Compiles up to the IR, with these structures.
    pub fn with(cluster: &'c Cluster, scope: Scope, options: &StructureOptions) -> Result<Self, String> {
        let classes = classify(cluster, &scope).map_err(|error| error.to_string())?;
        let tables = lower::tables_with(&classes, options);
        let general = Direction::ALL.map(|direction| lower::lower(direction, &tables));
        let mut optimised = general.clone();
        for program in &mut optimised {
            passes::optimize(program, &tables).map_err(|error| error.to_string())?;
        }
        let directory = Directory::new(cluster);
        Ok(Self { cluster, directory, scope, classes, tables, general, optimised })
    }

    /// The two programs, for any kernel.
    pub fn programs(&self) -> Result<[Assembled; 2], String> {
        let families = [Family::V4, Family::V6].into_iter();
        let families = families.filter(|it| map_images::has_family(self.cluster, &self.scope, *it)).collect();
        let decisions = [&self.optimised[0], &self.optimised[1]];
        let plan = Plan { target: Target::BASE, decisions, shapes: TableShapes::of(&self.tables), families };
        let emit = |hook| emit(&plan, hook).map_err(|error| error.to_string());
        Ok([emit(Direction::Ingress)?, emit(Direction::Egress)?])
    }

    /// The maps.
    pub fn maps(&self) -> Vec<MapImage> {
        map_images::maps(self.cluster, &self.scope, &self.tables, Sizes::default(), Target::BASE)
    }

    /// The facts of a packet at a local endpoint, as the programs see them.
    pub fn facts(&self, question: &Question) -> Option<PacketFacts> {
        let subject = self.classes.subject_of.iter().find(|(id, _)| *id == question.endpoint)?.1;
        let itself = self.cluster.endpoints[question.endpoint.index()].addresses.contains(&question.remote);
        Some(PacketFacts {
            subject: subject.0,
            remote: question.remote,
            protocol: question.protocol,
            port: question.port,
            itself,
            own_node: self.is_from_own_node(question),
            icmp_error: false,
        })
    }

    /// Whether a packet to the endpoint is its node's own. A packet of a pod with its node's address counts as the
    /// pod's.
    pub fn is_from_own_node(&self, question: &Question) -> bool {
        let node = self.cluster.endpoints[question.endpoint.index()].node;
        question.direction == Direction::Ingress
            && self.directory.endpoint_at(question.remote).is_none()
            && node.is_some_and(|node| self.cluster.nodes[node.index()].addresses.contains(&question.remote))
    }

    /// The verdict of this direction's program.
    pub fn run(&self, program: &DecisionProgram, question: &Question) -> Result<Verdict, String> {
        self.judge(program, question).map(|(verdict, _)| verdict)
    }

    /// The verdict and its reason.
    fn judge(&self, program: &DecisionProgram, question: &Question) -> Result<(Verdict, VerdictReason), String> {
        let facts = self.facts(question).ok_or("the endpoint is not local")?;
        ir::run(program, &self.tables, &facts).map_err(|error| error.to_string())
    }

    /// The rules behind a verdict; `None` for the address of a service or node, because its rules are those of the
    /// backends.
    pub fn provenance(&self, question: &Question) -> Option<Vec<RuleId>> {
        let peer = self.classes.peer_at(question.remote);
        let of_peer = &self.classes.peers[peer.index()];
        if of_peer.vip.is_some() || !of_peer.nodes.is_empty() || !of_peer.host_ports.is_empty() {
            return None;
        }
        let subject = self.classes.subject_of.iter().find(|(id, _)| *id == question.endpoint)?.1;
        let atom = question.protocol.map_or(Atoms::REST, |it| self.classes.atoms.find(it, question.port));
        Some(self.classes.provenance(question.direction, subject, peer, atom))
    }

    /// The rule of a cluster-wide policy that decides, and those that pass the packet on; `None` as above.
    pub fn tier_decision(&self, question: &Question) -> Option<(Option<TierRuleId>, Vec<TierRuleId>)> {
        self.provenance(question)?;
        let peer = self.classes.peer_at(question.remote);
        let subject = self.classes.subject_of.iter().find(|(id, _)| *id == question.endpoint)?.1;
        let atom = question.protocol.map_or(Atoms::REST, |it| self.classes.atoms.find(it, question.port));
        let found = self.classes.tier_decision(self.cluster, question.direction, subject, peer, atom);
        Some((found.decided.map(|(rule, _)| rule), found.passed))
    }
}

/// The number of tests for one compiled cluster.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Questions to the IR.
    pub questions: usize,
    /// Packets to the machine.
    pub packets: usize,
}

/// The scopes to test: the whole cluster and each node.
pub fn scopes(cluster: &Cluster) -> Vec<Scope> {
    let of_nodes = cluster.nodes.iter().filter_map(|node| Scope::node(cluster, &node.name));
    std::iter::once(Scope::everything(cluster)).chain(of_nodes).collect()
}

/// Number of rounds of [`forced`] after which every structure has been used.
pub fn rounds() -> usize {
    LookupSet::ALL.iter().map(|place| place.structures().len()).max().unwrap_or(1)
}

/// Structures for this round: each table gets another one in every round.
pub fn forced(round: usize) -> StructureOptions {
    let of = |place: &LookupSet| (*place, place.structures()[round % place.structures().len()]);
    StructureOptions { forced: LookupSet::ALL.iter().map(of).collect(), ..StructureOptions::default() }
}

/// One of the two, at random.
pub fn room(random: &mut Random) -> Room {
    if random.below(2) == 0 { Room::Exact } else { Room::Rounded }
}

/// Compares the engines on a cluster; returns a difference, or the number of questions on which they agreed. The
/// tables' structures are chosen at random: those of the cost model or of a round of [`forced`]; and so is their room.
pub fn agree(cluster: &Cluster, scope: Scope, effort: Effort, random: &mut Random) -> Result<usize, String> {
    let chosen = match random.below(rounds() + 1) {
        0 => StructureOptions::default(),
        round => forced(round - 1),
    };
    let options = StructureOptions { room: room(random), ..chosen };
    let compiled = Compiled::with(cluster, scope, &options)?;
    agree_on(&compiled, effort, random).map_err(|text| format!("{text}\n  {options:?}"))
}

/// The same for a cluster that is compiled already.
pub fn agree_on(compiled: &Compiled<'_>, effort: Effort, random: &mut Random) -> Result<usize, String> {
    let cluster = compiled.cluster;
    let boundaries = Boundaries::of(compiled);
    let mut oracle = Oracle::new(cluster);
    for _ in 0..effort.questions {
        let Some(question) = boundaries.pick(random) else { return Ok(0) };
        check_ir(compiled, &mut oracle, &question)?;
    }
    let mut machine = Machine::new(compiled)?;
    for _ in 0..effort.packets {
        let Some(question) = boundaries.pick(random) else { return Ok(0) };
        let expected = reference(&mut oracle, &question);
        let found = machine.ask(&question)?;
        if found != expected.verdict {
            return Err(format!("{}\n  reference {expected:?}\n  vm {found:?}", shown(cluster, &question)));
        }
    }
    let audit = if cluster.audit.is_empty() { 0 } else { agree_on_audit(compiled, &mut machine, effort, random)? };
    Ok(effort.questions + effort.packets + audit)
}

/// Checks the verdict with audit policies enforced against the oracle, and checks that a difference from the real
/// verdict is reported.
fn agree_on_audit(
    compiled: &Compiled<'_>,
    machine: &mut Machine<'_>,
    effort: Effort,
    random: &mut Random,
) -> Result<usize, String> {
    let enforced = compiled.cluster.with_audit_enforced();
    let (boundaries, mut oracle) = (Boundaries::of(compiled), Oracle::new(&enforced));
    for _ in 0..effort.packets {
        let Some(question) = boundaries.pick(random) else { return Ok(0) };
        let expected = reference(&mut oracle, &question);
        let before = machine.told(question.direction);
        let is = machine.ask(&question)?;
        let told = machine.told(question.direction) > before;
        machine.decide_by_audit(true)?;
        let would_be = machine.ask(&question)?;
        machine.decide_by_audit(false)?;
        let (ir, reason) = compiled.judge(&compiled.optimised[index(question.direction)], &question)?;
        let of_ir = match (ir, reason) {
            (Verdict::Allow, VerdictReason::UnlessAudit) => Verdict::Deny,
            (Verdict::Deny, VerdictReason::UnlessAudit) => Verdict::Allow,
            (ir, _) => ir,
        };
        if would_be != expected.verdict || of_ir != expected.verdict || told != (is != would_be) {
            let shown = shown(compiled.cluster, &question);
            let found = format!("vm {would_be:?}, ir {of_ir:?}; is {is:?}, difference told: {told}");
            return Err(format!("{shown}\n  with audit policies enforced: reference {expected:?}\n  {found}"));
        }
    }
    Ok(effort.packets)
}

/// The oracle's verdict on a packet as the endpoint's program sees it. A packet that comes to a pod was not translated,
/// so claims of services on the pod's address do not count for it.
fn reference(oracle: &mut Oracle<'_>, question: &Question) -> EndVerdict {
    let side = oracle.judge(&question.flow()).side(question.direction).clone();
    match side.basis {
        Basis::Claims(claims) if question.direction == Direction::Ingress => EndVerdict::clone(&claims.otherwise),
        _ => side,
    }
}

fn check_ir(compiled: &Compiled<'_>, oracle: &mut Oracle<'_>, question: &Question) -> Result<(), String> {
    let expected = reference(oracle, question);
    let at = index(question.direction);
    let differs =
        |what: String| Err(format!("{}\n  reference {expected:?}\n  {what}", shown(compiled.cluster, question)));
    for (name, programs) in [("general", &compiled.general), ("optimised", &compiled.optimised)] {
        let found = compiled.run(&programs[at], question)?;
        if found != expected.verdict {
            return differs(format!("ir, {name}: {found:?}"));
        }
    }
    if let Basis::Rules(rules) = &expected.basis
        && let Some(found) = compiled.provenance(question)
        && found != *rules
    {
        return differs(format!("provenance {found:?}"));
    }
    if let Basis::Tier(rule) = &expected.basis
        && let Some(found) = compiled.tier_decision(question)
        && found != (Some(*rule), expected.passed.clone())
    {
        return differs(format!("tier decision {found:?}"));
    }
    check_error(compiled, question, &expected.basis)
}

/// An ICMP error about a live flow passes unless a list denies its sender. Policies do not matter.
fn check_error(compiled: &Compiled<'_>, question: &Question, basis: &Basis) -> Result<(), String> {
    if question.direction == Direction::Egress {
        return Ok(());
    }
    let expected = if matches!(basis, Basis::List(_)) { Verdict::Deny } else { Verdict::Allow };
    let facts = PacketFacts { icmp_error: true, ..compiled.facts(question).ok_or("the endpoint is not local")? };
    let mut found = Vec::new();
    match compiled.tables.icmp_errors {
        // The datapath passes such errors without a look-up.
        None => found.push(Verdict::Allow),
        Some(_) => {
            for program in [&compiled.general[0], &compiled.optimised[0]] {
                let run = ir::run(program, &compiled.tables, &facts).map_err(|error| error.to_string())?;
                found.push(run.0);
            }
        }
    }
    match found.iter().all(|it| *it == expected) {
        true => Ok(()),
        false => {
            let shown = shown(compiled.cluster, question);
            Err(format!("{shown}\n  an ICMP error: reference {expected:?} ({basis:?}), ir {found:?}"))
        }
    }
}

/// A question in words.
pub fn shown(cluster: &Cluster, question: &Question) -> String {
    let Question { direction, endpoint, own, remote, protocol, port } = question;
    let name = cluster.endpoint_name(*endpoint);
    let protocol = protocol.map_or("icmp".to_owned(), |it| format!("{it:?}"));
    format!("{} of {name} ({own}), other end {remote}, {protocol} {port}", direction.name())
}

/// Every address of a cluster's ranges and single entries, for tests of tables alone.
pub fn edges(tables: &DecisionTables) -> Vec<IpAddr> {
    let single = tables.addresses.exact().map(|(address, _)| address);
    single.chain(tables.addresses.ranges.iter().flat_map(|it| [it.first, it.last])).collect()
}

/// The first local endpoint's number on the machine; the others follow.
pub(super) const FIRST_INTERFACE: u32 = 1_000;

/// The number of an endpoint's interface on the machine.
pub(super) fn interface(compiled: &Compiled<'_>, endpoint: EndpointId) -> Option<u32> {
    let index = compiled.classes.subject_of.iter().position(|(id, _)| *id == endpoint)?;
    Some(FIRST_INTERFACE + index as u32)
}
