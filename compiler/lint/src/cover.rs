//! Decides from form alone, for any pods, whether one rule, port list, peer or block covers another.
//!
//! Invariant: never claims too much; may miss a case (a range covered by two others together, selectors that are
//! equivalent but written differently).

use weir_model::labels::Labelling;
use weir_model::{Peer, PortMatch, PortRule, Rule, SelectorId};
use weir_objects::address::Prefix;
use weir_objects::k8s::LabelSelector;

/// Whether `wide` allows everything that `narrow` allows, for rules of policies of one namespace.
pub(super) fn rule_covers(labels: &Labelling, wide: &Rule, narrow: &Rule) -> bool {
    ports_cover(&wide.ports, &narrow.ports) && peers_cover(labels, &wide.peers, &narrow.peers)
}

/// An empty list means all ports of all protocols, and traffic without ports as well.
pub(super) fn ports_cover(wide: &[PortRule], narrow: &[PortRule]) -> bool {
    let covered = |port: &PortRule| wide.iter().any(|other| port_covers(other, port));
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(covered))
}

fn port_covers(wide: &PortRule, narrow: &PortRule) -> bool {
    wide.protocol == narrow.protocol
        && match (&wide.port, &narrow.port) {
            (PortMatch::Any, _) => true,
            (PortMatch::Range(first, last), PortMatch::Range(a, b)) => first <= a && b <= last,
            (wide, narrow) => wide == narrow,
        }
}

fn peers_cover(labels: &Labelling, wide: &[Peer], narrow: &[Peer]) -> bool {
    let covered = |peer: &Peer| wide.iter().any(|other| peer_covers(labels, other, peer));
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(covered))
}

fn peer_covers(labels: &Labelling, wide: &Peer, narrow: &Peer) -> bool {
    match (wide, narrow) {
        (Peer::Pods { namespaces: wide_ns, pods: wide }, Peer::Pods { namespaces, pods }) => {
            let same_or_all = match (wide_ns, namespaces) {
                (None, None) => true,
                (None, Some(_)) => false,
                (Some(wide), None) => selects_all(labels, *wide),
                (Some(wide), Some(narrow)) => selector_covers(labels, *wide, *narrow),
            };
            same_or_all && selector_covers(labels, *wide, *pods)
        }
        (Peer::Block { cidr: wide, except: holes }, Peer::Block { cidr, except }) => {
            wide.covers(*cidr) && holes.iter().all(|hole| !meets(*hole, *cidr) || any_covers(except, *hole))
        }
        _ => false,
    }
}

/// Whether a block allows all addresses of a prefix.
pub(super) fn block_allows(cidr: Prefix, except: &[Prefix], prefix: Prefix) -> bool {
    cidr.covers(prefix) && !except.iter().any(|hole| meets(*hole, prefix))
}

fn any_covers(prefixes: &[Prefix], inner: Prefix) -> bool {
    prefixes.iter().any(|prefix| prefix.covers(inner))
}

/// Two prefixes that share an address are nested.
pub(super) fn meets(a: Prefix, b: Prefix) -> bool {
    a.covers(b) || b.covers(a)
}

/// Whether a selector matches everything that another one matches, as far as their form shows.
pub(super) fn selector_covers(labels: &Labelling, wide: SelectorId, narrow: SelectorId) -> bool {
    wide == narrow || selects_all(labels, wide)
}

/// Whether a selector is empty.
pub(super) fn selects_all(labels: &Labelling, selector: SelectorId) -> bool {
    *labels.selector(selector) == LabelSelector::default()
}

/// Whether an object may have labels that both selectors match: not if they require two values of one label.
pub(super) fn may_meet(a: &LabelSelector, b: &LabelSelector) -> bool {
    a.match_labels.iter().all(|(key, value)| b.match_labels.get(key).is_none_or(|other| other == value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_objects::address::parse_cidr;
    use weir_objects::k8s::Protocol;

    fn block(cidr: &str, except: &[&str]) -> Peer {
        let parse = |text: &str| parse_cidr(text).expect(text).value;
        Peer::Block { cidr: parse(cidr), except: except.iter().map(|text| parse(text)).collect() }
    }

    #[track_caller]
    fn check_blocks(wide: &Peer, narrow: &Peer, expected: bool) {
        assert_eq!(peer_covers(&Labelling::default(), wide, narrow), expected);
    }

    #[test]
    fn a_block_covers_another_unless_a_hole_shows() {
        let hole = block("10.0.0.0/8", &["10.1.0.0/16"]);
        check_blocks(&block("0.0.0.0/0", &[]), &hole, true);
        check_blocks(&hole, &block("10.0.0.0/8", &[]), false);
        check_blocks(&hole, &block("10.2.0.0/16", &[]), true);
        check_blocks(&hole, &block("10.1.2.0/24", &[]), false);
        check_blocks(&hole, &block("10.0.0.0/8", &["10.0.0.0/9"]), true);
        check_blocks(&hole, &block("10.0.0.0/8", &["10.1.0.0/17"]), false);
        check_blocks(&block("::/0", &[]), &hole, false);
    }

    #[test]
    fn no_ports_are_more_than_all_ports() {
        let any = PortRule { protocol: Protocol::Tcp, port: PortMatch::Any };
        let range = |first, last| PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(first, last) };
        assert!(ports_cover(&[], std::slice::from_ref(&any)));
        assert!(!ports_cover(std::slice::from_ref(&any), &[]));
        assert!(ports_cover(&[any], &[range(80, 90), range(0, 65535)]));
        assert!(ports_cover(&[range(80, 90)], &[range(81, 90)]));
        assert!(!ports_cover(&[range(80, 90)], &[range(81, 91)]));
        let named = PortRule { protocol: Protocol::Tcp, port: PortMatch::Named("http".to_owned()) };
        assert!(!ports_cover(&[range(1, 65535)], &[named]));
    }
}
