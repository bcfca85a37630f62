//! The engines under test, and how each of them is asked about a flow.

use std::net::IpAddr;

use weir_classes::Scope;
use weir_fuzz::oracles::engines::{Compiled, index};
use weir_fuzz::oracles::packets::Machine;
use weir_fuzz::oracles::questions::Question;
use weir_iptables::{IptablesEngine, Skip};
use weir_model::directory::Directory;
use weir_model::eval::{Basis, EndVerdict, Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, Direction, EndpointId, Standing};
use weir_testing::case::{Case, Row};

/// What became of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Answered(Verdict),
    /// No pod is at this end: nothing judges there.
    NotThere,
    /// There is something to judge, and the engine cannot.
    Skipped(&'static str),
}

/// Both sides of a row.
pub(crate) struct Answer {
    ingress: Asked,
    egress: Asked,
}

impl Answer {
    pub(crate) fn side(&self, direction: Direction) -> &Asked {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

pub(crate) fn reference(case: &Case) -> Vec<Answer> {
    let mut oracle = Oracle::new(&case.cluster);
    let mut judge = |row: &Row| {
        let found = oracle.judge(&row.flow);
        Answer { ingress: Asked::Answered(found.ingress.verdict), egress: Asked::Answered(found.egress.verdict) }
    };
    case.rows.iter().map(&mut judge).collect()
}

/// The oracle's reasons: `policy spec.ingress[0]` for a rule that allows, `policy spec.ingress` for a policy that
/// isolates; sorted.
pub(crate) fn reasons(case: &Case) -> Vec<Vec<String>> {
    let mut oracle = Oracle::new(&case.cluster);
    let mut reasons = |row: &Row| {
        let found = oracle.judge(&row.flow);
        let sides = Direction::ALL.into_iter();
        let mut reasons: Vec<String> =
            sides.flat_map(|direction| of_side(&case.cluster, direction, found.side(direction))).collect();
        reasons.sort();
        reasons.dedup();
        reasons
    };
    case.rows.iter().map(&mut reasons).collect()
}

fn of_side(cluster: &Cluster, direction: Direction, side: &EndVerdict) -> Vec<String> {
    let list = direction.name();
    let tier_rule = |id: &weir_model::TierRuleId| {
        let (policy, at) = (cluster.tier_policy_name(id.policy), weir_model::rule_path(id.direction, id.rule as usize));
        format!("{policy} {at}")
    };
    let mut passed: Vec<String> = side.passed.iter().map(tier_rule).collect();
    passed.extend(of_basis(cluster, direction, side, list, &tier_rule));
    passed
}

fn of_basis(
    cluster: &Cluster,
    direction: Direction,
    side: &EndVerdict,
    list: &str,
    tier_rule: &dyn Fn(&weir_model::TierRuleId) -> String,
) -> Vec<String> {
    match &side.basis {
        Basis::Tier(id) => vec![tier_rule(id)],
        Basis::Rules(rules) => {
            rules.iter().map(|it| format!("{} spec.{list}[{}]", cluster.policy_name(it.policy), it.rule)).collect()
        }
        Basis::Isolated(policies) => {
            policies.iter().map(|it| format!("{} spec.{list}", cluster.policy_name(*it))).collect()
        }
        // Of a service that is denied, the backends that are.
        Basis::Service(basis) => {
            let decisive = basis.backends.iter().filter(|it| it.verdict == side.verdict);
            decisive.flat_map(|it| of_side(cluster, direction, it)).collect()
        }
        Basis::Claims(claimed) => {
            claimed.deciding(side.verdict).flat_map(|it| of_side(cluster, direction, it)).collect()
        }
        Basis::HostPorts(claimed) => {
            claimed.deciding(side.verdict).flat_map(|it| of_side(cluster, direction, it)).collect()
        }
        _ => Vec::new(),
    }
}

pub(crate) fn general(case: &Case) -> Vec<Answer> {
    let compiled = compiled(case, Scope::everything(&case.cluster));
    ask(case, |question| compiled.run(&compiled.general[index(question.direction)], question))
}

pub(crate) fn optimised(case: &Case) -> Vec<Answer> {
    in_all_scopes(case, |compiled, rows| {
        rows(&mut |question| compiled.run(&compiled.optimised[index(question.direction)], question))
    })
}

pub(crate) fn bytecode(case: &Case) -> Vec<Answer> {
    in_all_scopes(case, |compiled, rows| {
        let mut machine = Machine::new(compiled).unwrap();
        rows(&mut |question| machine.ask(question))
    })
}

/// Asks the iptables engine. A row that iptables rules cannot express is skipped at both ends.
pub(crate) fn iptables(case: &Case) -> Vec<Answer> {
    let engine = IptablesEngine::new(&case.cluster).unwrap_or_else(|error| panic!("{}: {error}", case.path.display()));
    let judge = |row: &Row| match engine.judge(&row.flow) {
        Ok(found) => {
            Answer { ingress: Asked::Answered(found.ingress.verdict), egress: Asked::Answered(found.egress.verdict) }
        }
        Err(skip) => {
            let reason = match skip {
                Skip::NoAddress(_) => "no address",
                Skip::NotItsAddress { .. } => "not its address",
                Skip::HostNetwork(_) => "host network",
                Skip::TwoFamilies => "two families",
                Skip::ServiceAddress(_) => "service address",
            };
            Answer { ingress: Asked::Skipped(reason), egress: Asked::Skipped(reason) }
        }
    };
    case.rows.iter().map(judge).collect()
}

fn compiled(case: &Case, scope: Scope) -> Compiled<'_> {
    Compiled::new(&case.cluster, scope).unwrap_or_else(|error| panic!("{}: {error}", case.path.display()))
}

type Ask<'a> = dyn FnMut(&Question) -> Result<Verdict, String> + 'a;

/// Compiles for the whole cluster and for each node: each pod is judged in both scopes, and the verdicts
/// must be equal.
fn in_all_scopes(case: &Case, engine: impl Fn(&Compiled<'_>, &mut dyn FnMut(&mut Ask<'_>))) -> Vec<Answer> {
    let mut answers = Vec::new();
    let whole = compiled(case, Scope::everything(&case.cluster));
    engine(&whole, &mut |asked| answers = ask(case, |question| asked(question)));
    for node in &case.cluster.nodes {
        let of_node = compiled(case, Scope::node(&case.cluster, &node.name).unwrap());
        engine(&of_node, &mut |asked| {
            let local = |id: EndpointId| of_node.scope.endpoints().contains(&id);
            for (row, answer) in case.rows.iter().zip(&answers) {
                for direction in Direction::ALL {
                    let Ok(question) = question(&case.cluster, &row.flow, direction) else { continue };
                    if local(question.endpoint) {
                        let found = Asked::Answered(asked(&question).unwrap());
                        assert_eq!(
                            &found,
                            answer.side(direction),
                            "{}: on {}: {}",
                            case.path.display(),
                            node.name,
                            row.text
                        );
                    }
                }
            }
        });
    }
    answers
}

fn ask(case: &Case, mut engine: impl FnMut(&Question) -> Result<Verdict, String>) -> Vec<Answer> {
    let mut side = |row: &Row, direction| match question(&case.cluster, &row.flow, direction) {
        Err(not) => not,
        Ok(question) => {
            let answer = engine(&question);
            Asked::Answered(answer.unwrap_or_else(|error| panic!("{}: {}: {error}", case.path.display(), row.text)))
        }
    };
    let both = |row: &Row| Answer { ingress: side(row, Direction::Ingress), egress: side(row, Direction::Egress) };
    case.rows.iter().map(both).collect()
}

/// The packet that shows this side of a flow to a pod's hook.
fn question(cluster: &Cluster, flow: &Flow, direction: Direction) -> Result<Question, Asked> {
    let (subject, other) = match direction {
        Direction::Ingress => (flow.destination, flow.source),
        Direction::Egress => (flow.source, flow.destination),
    };
    let Some((endpoint, own)) = pod(cluster, subject) else {
        return Err(match direction == Direction::Ingress && is_service(cluster, flow) {
            true => Asked::Skipped("behind a service"),
            false => Asked::NotThere,
        });
    };
    let remote = other.address.ok_or(Asked::Skipped("no address"))?;
    let protocol = match flow.protocol {
        FlowProtocol::Transport(protocol) => Some(protocol),
        FlowProtocol::Icmp => None,
    };
    Ok(Question { direction, endpoint, own, remote, protocol, port: flow.port })
}

/// The pod whose address it is now.
fn pod(cluster: &Cluster, end: FlowEnd) -> Option<(EndpointId, IpAddr)> {
    let address = end.address?;
    let holder = Directory::new(cluster).endpoint_at(address)?;
    (cluster.endpoints[holder.index()].standing == Standing::Member).then_some((holder, address))
}

fn is_service(cluster: &Cluster, flow: &Flow) -> bool {
    let oracle = Oracle::new(cluster);
    oracle.services_behind(flow).is_some() || !oracle.host_ports_of(flow).is_empty()
}
