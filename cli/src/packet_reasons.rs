//! What each outcome of a packet means, and what to do about it: for `weir explain-code` and docs/troubleshooting.md.

use weir_artifact::layout::Outcome;

/// The documentation of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketReason {
    pub(crate) outcome: Outcome,
    /// The packets that have it.
    pub(crate) what: &'static str,
    /// Usual causes, and what to do.
    pub(crate) action: &'static str,
}

/// The documentation of all outcomes, in the order of [`Outcome::ALL`].
pub(crate) fn all() -> impl Iterator<Item = PacketReason> {
    Outcome::ALL.into_iter().map(of)
}

fn of(outcome: Outcome) -> PacketReason {
    let (what, action) = match outcome {
        Outcome::Established => {
            ("A packet of a flow that was allowed before.", "Nothing to do. Most packets have this outcome.")
        }
        Outcome::Allowed => {
            ("The first packet of a flow that policy allows.", "Nothing to do. `weir explain` names the rule.")
        }
        Outcome::Denied => (
            "The first packet of a flow that policy denies.",
            "`weir explain --from A --to B --port P` names the policy and the nearest rule. Packets in the middle of a \
             connection have this outcome too if the flow is not known any more, for example after it was idle for long.",
        ),
        Outcome::Itself => ("A packet of a pod to itself.", "Nothing to do: policy cannot forbid it."),
        Outcome::OwnNode => (
            "A packet from the pod's own node, such as a probe of the kubelet.",
            "Nothing to do: only cluster-wide policies can forbid it.",
        ),
        Outcome::Unfiltered => (
            "A packet in a direction in which no policy isolates the pod.",
            "Nothing to do. To filter the direction, write a policy that selects the pod.",
        ),
        Outcome::Related => (
            "An ICMP error about a live flow, for example that a packet was too big.",
            "Nothing to do: the flow needs it.",
        ),
        Outcome::Neighbour => (
            "ARP, neighbour discovery or group membership.",
            "Nothing to do: without these packets, no other packet finds its way.",
        ),
        Outcome::Malformed => (
            "A packet with headers that are missing, too short or contradict each other.",
            "Capture the packet at the pod's interface. Broken software, a broken tunnel or an attack can be the cause. Such \
             packets are dropped where policy isolates the pod.",
        ),
        Outcome::Unknown => (
            "A packet of a family, an extension header or an encapsulation that the programs do not parse.",
            "Do not send such packets through an isolated pod's interface: they could carry anything past the policy.",
        ),
        Outcome::Fragment => (
            "A fragment whose first fragment was not seen, or one that hides the ports of its datagram.",
            "Avoid fragments: use path MTU discovery. The first fragment can be lost, come later, or be denied itself.",
        ),
        Outcome::Source => (
            "A packet from a pod with a source address that is not the pod's, or a forged message to its neighbours.",
            "Look at the processes of the pod: they route for others, or they attack. A pod without IPv6 that sends router \
             solicitations from a link-local address has this outcome too, and is harmless.",
        ),
        Outcome::NoEndpoint => (
            "A packet at an interface that has programs, but no endpoint.",
            "Wait: a new pod's interface is closed until policy is in force on it. If it lasts, `weir status` and the \
             agent's log say why the pod was not found.",
        ),
        Outcome::Cut => (
            "A packet of a connection that an earlier policy allowed and the present one denies.",
            "Nothing to do if the change of policy was meant. `--established keep` of `weir attach` keeps such connections.",
        ),
        Outcome::SourceRoute => (
            "A packet with a source route: its destination address is not its final destination.",
            "Do not use source routes. They would lead past the policy, and most networks drop them.",
        ),
        Outcome::WouldDeny => (
            "A packet that passed, and that policies in audit mode would deny.",
            "Allow it in the policy, or find out who sends it, before the policy is enforced.",
        ),
        Outcome::WouldAllow => (
            "A packet that was dropped, and that would pass if the policies in audit mode were enforced.",
            "Nothing to do if the policy is meant to allow it.",
        ),
        Outcome::Stray => (
            "A packet to a pod's interface for another address.",
            "Nothing to do: bridges flood packets whose receiver they do not know. There are no records of these.",
        ),
    };
    PacketReason { outcome, what, action }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reason that a row can have: of records, by the emitted programs, and of new connections.
    #[test]
    fn every_reason_of_a_row_is_explained_and_is_a_value_of_the_option() {
        let schema = include_str!("../../docs/schema/monitor.json");
        let schema: serde_json::Value = serde_json::from_str(schema).expect("JSON");
        let events = schema["anyOf"].as_array().expect("kinds of lines").iter();
        let reasons = events.filter_map(|it| it["properties"]["reason"]["enum"].as_array()).next().expect("reasons");
        let is_shown = |it: &Outcome| it.is_recorded() || crate::args::CONNECTION_REASONS.contains(it);
        for PacketReason { outcome, what, action } in all() {
            assert!(what.ends_with('.') && action.ends_with('.'), "{}", outcome.name());
            let is_in_schema = reasons.iter().any(|it| it == outcome.name());
            assert_eq!(is_in_schema, is_shown(&outcome), "docs/schema/monitor.json: {}", outcome.name());
        }
    }

    #[test]
    fn documentation_has_every_reason() {
        let page = include_str!("../../docs/troubleshooting.md");
        for PacketReason { outcome, what, .. } in all() {
            let verdict = if outcome.drops() { "dropped" } else { "passes" };
            let row = format!("| `{}` | {what} | {verdict} |", outcome.name());
            assert!(page.contains(&row), "docs/troubleshooting.md has no row: {row}");
        }
    }
}
