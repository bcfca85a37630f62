//! The explanation as text.

use annotate_snippets::{AnnotationKind, Element, Group, Level};
use weir_analysis::world::labels_text;
use weir_artifact::layout::program_name;
use weir_model::eval::{Basis, EndVerdict, Flow, FlowEnd, Judgement, Verdict};
use weir_model::{Cluster, Direction, ListId, PolicyId, RuleAction, Standing, Tier, TierRuleId};
use weir_objects::diagnostic::FindingPlace;
use weir_objects::escape;
use weir_objects::origin::{FieldOrigin, FieldPath};
use weir_policy::explanation::{JudgedHostPort, backends, claims, hex, with_audit};
use weir_policy::findings::LocatedSpan;
use weir_policy::locator::Locator;
use weir_policy::possible_pods;
use weir_policy::question::{FlowAnswer, FlowQuestion, JudgedPacket, PacketExample};
use weir_policy::rule_mismatch::{self, RuleMismatch};
use weir_policy::verdict_reasons::verdict_name;
use weir_policy::witness::{self, ClassDescription, PacketClasses, WitnessPacket};

use super::packet;
use crate::page::{OutputPage, Style};
use crate::read::ReadInput;
use crate::render::text::{count, excerpt};

/// The most rules that do not match to explain in detail. The others are counted.
const MOST_MISMATCHES: usize = 3;
/// A rule longer than this is shown by its first line.
const MOST_LINES: usize = 12;
/// The most witness packets to show. The others are counted.
const MOST_WITNESSES: usize = 6;
/// The most properties of a class to show. The others are counted.
const MOST_PARTS: usize = 5;

/// The whole explanation of one question.
///
/// The verdict comes first, then the ends: the one that denies before the other. With `is_verbose`, more rules that do
/// not match follow, and the classes and witness packets.
pub(super) fn answer(read: &ReadInput, answer: &FlowAnswer, page: OutputPage, is_verbose: bool) -> OutputPage {
    let locator = Locator::new(&read.sources);
    let mut text = TextExplanation { read, cluster: &read.cluster, locator, page, is_verbose };
    text.verdict(answer);
    if let (None, Some(conditions)) = (answer.verdict(), &answer.verdict_if) {
        text.line(0, &format!("the verdict depends on {}; allowed if:", conditions.fields.join(" and ")));
        conditions.allowed_if.iter().for_each(|condition| text.line(2, condition));
        if conditions.has_more {
            text.line(2, "… and under more conditions");
        }
    }
    if let Some(service) = answer.service {
        let name = read.cluster.service_name(service);
        let backends = behind(answer.packets.len());
        text.line(0, &format!("service {name} has no address of its own: {backends}"));
    }
    if let Some(namesake) = answer.namesake {
        text.line(0, &format!("note: {}", FlowQuestion::namesake_note(&read.cluster, namesake)));
    }
    let audited = with_audit(&read.cluster, &answer.packets).unwrap_or_default();
    for (index, judged) in answer.packets.iter().enumerate() {
        let JudgedPacket { flow, judgement, example } = judged;
        text.cluster = judged.cluster(&read.cluster);
        if answer.packets.len() > 1 {
            text.page.blank();
            text.line(0, &format!("packet: {}", packet(text.cluster, flow)));
        }
        if let Some(example) = example {
            text.example(example, judgement, answer.verdict().is_some());
        }
        for direction in deciding_first(judgement) {
            text.page.blank();
            text.side(direction, flow, judgement.side(direction));
            let would_be = audited.get(index).map(|audited| audited.side(direction).verdict);
            if let Some(would_be) = would_be.filter(|it| *it != judgement.side(direction).verdict) {
                let so = "if policies in audit mode were enforced (`--assume audit=enforce` shows why)";
                text.line(2, &format!("note: the verdict would be {}, {so}", verdict_name(would_be)));
            }
        }
        if is_verbose {
            text.witnesses(&witness::of(text.cluster, flow, judgement));
        }
    }
    text.page
}

struct TextExplanation<'r> {
    read: &'r ReadInput,
    /// The cluster of the current packet: the input, or a copy with examples of described pods.
    cluster: &'r Cluster,
    locator: Locator<'r>,
    page: OutputPage,
    is_verbose: bool,
}

/// The directions in the order in which a reader needs them: a side that denies decides.
fn deciding_first(judgement: &Judgement) -> [Direction; 2] {
    let denies = |direction| judgement.side(direction).verdict == Verdict::Deny;
    match denies(Direction::Ingress) && !denies(Direction::Egress) {
        true => [Direction::Ingress, Direction::Egress],
        false => [Direction::Egress, Direction::Ingress],
    }
}

impl TextExplanation<'_> {
    fn line(&mut self, indent: usize, text: &str) {
        self.page.folded_line(indent + 2, format_args!("{:indent$}{text}", ""));
    }

    /// The verdict, with the packet if there is only one.
    fn verdict(&mut self, answer: &FlowAnswer) {
        let style = match answer.verdict() {
            Some(Verdict::Allow) => Style::Green,
            Some(Verdict::Deny) => Style::Red,
            None => Style::Yellow,
        };
        let word = possible_pods::verdict_word(answer.verdict()).to_uppercase();
        let packet = match &answer.packets[..] {
            [only] => format!(": {}", packet(only.cluster(&self.read.cluster), &only.flow)),
            _ => String::new(),
        };
        self.page.folded(2, &[(style, &word), (Style::Plain, &packet)]);
    }

    /// Indents the lines that `write` prints.
    fn indented(&mut self, indent: usize, write: impl FnOnce(&mut Self)) {
        let inner = self.page.empty_like();
        let before = std::mem::replace(&mut self.page, inner);
        write(self);
        let inner = std::mem::replace(&mut self.page, before);
        self.page.insert(indent, &inner);
    }

    /// The properties that an example adds to the descriptions.
    fn example(&mut self, example: &PacketExample, judgement: &Judgement, is_everywhere: bool) {
        let verdict = verdict_name(judgement.verdict());
        for (pod, added) in example.pods.iter().zip(&example.added) {
            let (Some(pod), Some(added)) = (pod, added) else { continue };
            self.line(2, &format!("example: {}/{} with {added}", pod.namespace, labels_text(&pod.labels)));
        }
        let is_open = example.added.iter().any(Option::is_some);
        if is_everywhere && is_open {
            self.line(2, "the verdict is the same for every pod that is described; rules may differ");
        } else if is_open {
            self.line(2, &format!("the verdict on this example: {verdict}"));
        }
    }

    fn witnesses(&mut self, found: &Result<Vec<WitnessPacket>, String>) {
        let witnesses = match found {
            Ok(witnesses) => witnesses,
            Err(reason) => {
                self.page.blank();
                return self.line(0, &format!("no witness: {reason}"));
            }
        };
        for witness in witnesses.iter().take(MOST_WITNESSES) {
            self.witness(witness);
        }
        if witnesses.len() > MOST_WITNESSES {
            let more = count(witnesses.len() - MOST_WITNESSES, "packet");
            self.page.blank();
            self.line(0, &format!("… and {more} to or at other backends (-o json has them)"));
        }
    }

    fn witness(&mut self, witness: &WitnessPacket) {
        let (of, verdict) = (self.cluster.endpoint_name(witness.endpoint), verdict_name(witness.verdict));
        self.page.blank();
        self.line(0, &format!("witness: {} of {of}: {verdict}", program_name(witness.question.direction)));
        let PacketClasses { subject, peer, atom } = &witness.classes;
        self.line(2, &class("subject", subject, "no policy and no list selects it"));
        self.line(2, &class("peer", peer, "no rule and no list matches it"));
        self.line(2, &class("ports", atom, "all ports that no rule names"));
        self.line(2, &format!("packet  {}", witness::summary(witness)));
        self.line(2, &format!("        {}", hex(&witness.packet)));
    }

    fn side(&mut self, direction: Direction, flow: &Flow, side: &EndVerdict) {
        let cluster = self.cluster;
        let subject = match direction {
            Direction::Egress => &flow.source,
            Direction::Ingress => &flow.destination,
        };
        let of = super::end(cluster, subject);
        self.line(0, &format!("{} of {of}: {}", direction.name(), verdict_name(side.verdict)));
        for rule in &side.passed {
            self.tier_rule(*rule, "passes the flow on to the next tier");
        }
        match &side.basis {
            Basis::Tier(rule) => self.tier(*rule),
            Basis::Rules(rules) => {
                self.line(2, "decided by NetworkPolicy: the pod is isolated, and these rules allow the flow");
                for rule in rules {
                    let policy = &cluster.policies[rule.policy.index()];
                    let title =
                        format!("{} spec.{}[{}]", cluster.policy_name(rule.policy), direction.name(), rule.rule);
                    self.snippet(&title, policy.rule_origin(direction, rule.rule as usize), "allows");
                }
            }
            Basis::Isolated(policies) => self.isolated(direction, flow, policies),
            Basis::List(list) => self.list(direction, flow, *list),
            Basis::Service(basis) => {
                let name = cluster.service_name(basis.service);
                let of_service = backends(cluster, flow, basis);
                let backends = basis.port.map_or("it has no such port", |_| behind(of_service.len()));
                self.line(2, &format!("the address belongs to service {name}: {backends}"));
                for (backend_flow, side) in of_service {
                    self.line(2, &format!("packet: {}", packet(cluster, &backend_flow)));
                    self.indented(2, |text| text.side(direction, &backend_flow, side));
                }
            }
            Basis::Claims(basis) => {
                self.line(2, "several destinations share this address and port: all of them must be allowed");
                for ((service, _), claim) in &basis.claims {
                    self.line(
                        2,
                        &format!(
                            "claimed by service {}: {}",
                            cluster.service_name(*service),
                            verdict_name(claim.verdict)
                        ),
                    );
                    self.indented(2, |page| page.side(direction, flow, claim));
                }
                self.line(2, &format!("the address itself: {}", verdict_name(basis.otherwise.verdict)));
                self.indented(2, |page| page.side(direction, flow, &basis.otherwise));
            }
            Basis::HostPorts(basis) => {
                let claims = claims(cluster, flow, basis);
                for JudgedHostPort { name, flow: claimed, side } in &claims {
                    self.line(2, &format!("the destination is {name}: its pod must be allowed"));
                    self.line(2, &format!("packet: {}", packet(cluster, claimed)));
                    self.indented(2, |text| text.side(direction, claimed, side));
                }
            }
            Basis::NotSubject => self.line(2, &not_subject(cluster, subject)),
            other => self.line(2, plain(other)),
        }
    }

    fn tier(&mut self, id: TierRuleId) {
        let cluster = self.cluster;
        let (policy, rule) = (cluster.tier_policy(id.policy), cluster.tier_rule(id));
        let when = match policy.tier {
            Tier::Admin => "before any NetworkPolicy",
            Tier::Baseline => "no NetworkPolicy isolates the pod in this direction",
        };
        self.line(2, &format!("decided by tier {}, priority {}: {when}", policy.tier.name(), policy.priority));
        let label = match rule.action {
            RuleAction::Accept => "accepts",
            RuleAction::Deny => "denies",
            RuleAction::Pass => "passes the flow on",
        };
        self.tier_rule(id, label);
        if let Some(peer) = rule.unsupported {
            self.line(2, &format!("its peer {peer} cannot be enforced, so the rule fails closed"));
        }
        if rule.action == RuleAction::Deny {
            self.line(2, "to allow it, change the rule, or add an Accept or Pass rule of a smaller priority");
        }
    }

    fn tier_rule(&mut self, id: TierRuleId, label: &str) {
        let cluster = self.cluster;
        let title = format!("{} {}", cluster.tier_policy_name(id.policy), cluster.tier_rule_name(id));
        let origin = cluster.tier_policy(id.policy).rule_origin(id.direction, id.rule as usize);
        self.snippet(&title, origin, label);
    }

    fn isolated(&mut self, direction: Direction, flow: &Flow, policies: &[PolicyId]) {
        let cluster = self.cluster;
        self.line(2, "decided by NetworkPolicy: the pod is isolated, and no rule allows the flow");
        for id in policies {
            let policy = &cluster.policies[id.index()];
            let rules = policy.rules(direction).unwrap_or_default().len();
            let label = format!("isolates for {} with {}", direction.name(), count(rules, "rule"));
            let origin = FieldOrigin::object(policy.object);
            self.snippet(&cluster.policy_name(*id), origin, &label);
        }
        let mismatches = rule_mismatch::mismatches(cluster, policies, direction, flow);
        if !mismatches.is_empty() {
            self.line(
                2,
                &format!(
                    "to allow it, one rule would have to match; the nearest {}:",
                    nearest(mismatches.len(), self.is_verbose)
                ),
            );
        }
        let most = if self.is_verbose { MOST_MISMATCHES } else { 1 };
        for mismatch in mismatches.iter().take(most) {
            self.miss(direction, mismatch);
        }
        if mismatches.len() > most {
            let left = mismatches.len() - most;
            let verb = if left == 1 { "matches" } else { "match" };
            let more = if self.is_verbose { "" } else { " (-v shows more)" };
            self.line(2, &format!("… and {} that {verb} no better{more}", count(left, "rule")));
        }
    }

    fn miss(&mut self, direction: Direction, mismatch: &RuleMismatch) {
        let cluster = self.cluster;
        let policy = &cluster.policies[mismatch.policy.index()];
        let title = format!("{} spec.{}[{}]", cluster.policy_name(mismatch.policy), direction.name(), mismatch.rule);
        self.snippet(&title, policy.rule_origin(direction, mismatch.rule as usize), &what_is_wrong(mismatch));
        for (what, reasons) in [("peer", &mismatch.peers), ("port", &mismatch.ports)] {
            for reason in reasons {
                self.line(4, &format!("{what}: {reason}"));
            }
        }
    }

    fn list(&mut self, direction: Direction, flow: &Flow, id: ListId) {
        let list = &self.cluster.lists[id.index()];
        self.line(2, &format!("decided by CidrList {}, before any NetworkPolicy (order {})", list.name, list.order));
        let remote = match direction {
            Direction::Egress => &flow.destination,
            Direction::Ingress => &flow.source,
        };
        let Some(address) = remote.address else { return };
        let entry = self.cluster.list_entry(id, address).and_then(|index| list.entries.get(index));
        let Some(entry) = entry else { return };
        let path = FieldPath::root().field("spec").field("cidrs").index(entry.position as usize);
        self.snippet(&list.name, FieldOrigin::new(list.object, path), &format!("contains {address}"));
        self.line(2, "to allow it, remove the entry, or exempt it with an Allow list of a smaller order");
    }

    /// Prints the lines of the input at `origin` with a label. If the input has no such place, prints only title and
    /// label.
    fn snippet(&mut self, title: &str, origin: FieldOrigin, label: &str) {
        let Some(at) = self.locator.locate(&FindingPlace::Field(origin)) else {
            return self.line(2, &format!("{title}: {label}"));
        };
        let spot = LocatedSpan {
            file: self.read.sources.file(at.file).name.clone(),
            start: self.locator.position(at.file, at.span.start),
            end: self.locator.position(at.file, at.span.end),
            at,
        };
        let element: Element<'_> = excerpt(&mut self.locator, &spot, AnnotationKind::Primary, label, MOST_LINES);
        let title = Level::INFO.with_name(Some("policy")).primary_title(escape::line(title));
        let group: Group<'_> = title.element(element);
        self.page.drawn(2, group);
    }
}

/// `subject subject0: selected by shop/db`
fn class(what: &str, class: &ClassDescription, otherwise: &str) -> String {
    let shown = class.is.iter().take(MOST_PARTS).map(String::as_str).collect::<Vec<_>>().join("; ");
    let rest = class.is.len().saturating_sub(MOST_PARTS);
    let more = if rest == 0 { String::new() } else { format!("; … and {rest} more") };
    let is = if class.is.is_empty() { otherwise } else { &shown };
    format!("{what:8}{}: {is}{more}", class.name)
}

fn nearest(rules: usize, is_verbose: bool) -> &'static str {
    if rules > 1 && is_verbose { "rules are" } else { "rule is" }
}

fn behind(backends: usize) -> &'static str {
    match backends {
        0 => "this port has no ready backend",
        1 => "its backend must be allowed",
        _ => "all of its backends must be allowed",
    }
}

/// Why no policy applies to an end.
fn not_subject(cluster: &Cluster, end: &FlowEnd) -> String {
    let node = || end.address.and_then(|address| cluster.nodes.iter().find(|node| node.addresses.contains(&address)));
    match end.endpoint.map(|id| cluster.endpoints[id.index()].standing) {
        Some(Standing::HostNetwork) => {
            "no policy applies: the pod has hostNetwork, its address is the node's".to_owned()
        }
        Some(Standing::Finished) => "no policy applies: the pod has finished".to_owned(),
        Some(Standing::Pending) => "no policy applies: the pod has no address yet".to_owned(),
        Some(Standing::Member) => plain(&Basis::NotSubject).to_owned(),
        None => match node() {
            Some(node) => format!("no policy applies: this is the address of node {}", node.name),
            None => "no policy applies: the address does not belong to a pod".to_owned(),
        },
    }
}

fn what_is_wrong(mismatch: &RuleMismatch) -> String {
    match (mismatch.peers.is_empty(), mismatch.ports.is_empty()) {
        (true, false) => "the peer matches, the port does not".to_owned(),
        (false, true) => "the port matches, the peer does not".to_owned(),
        (false, false) => "neither peer nor port matches".to_owned(),
        // This happens for a service address without ready backends: only the address is known, and there the oracle
        // requires more than a rule that matches.
        (true, true) => "matches, but this service address has no ready backend".to_owned(),
    }
}

/// Bases that need no line of the input.
pub(super) fn plain(basis: &Basis) -> &'static str {
    match basis {
        Basis::NotSubject => "no policy applies: it is not a pod that policies can select",
        Basis::Itself => "a pod always reaches itself",
        Basis::OwnNode => "a pod and its own node always reach each other",
        Basis::IcmpAssumed => "ICMP is assumed to pass (--assume icmp=allow)",
        Basis::NotIsolated => "no policy isolates it in this direction, so everything is allowed",
        Basis::List(_) => "a CidrList denies",
        Basis::Tier(_) => "a rule of a cluster-wide policy decides",
        Basis::Rules(_) => "rules allow",
        Basis::Isolated(_) => "it is isolated, and no rule allows",
        Basis::Service(_) => "the backends of the service decide",
        Basis::Claims(_) => "all destinations at this address and port decide",
        Basis::HostPorts(_) => "the pod of the hostPort decides",
    }
}
