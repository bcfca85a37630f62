//! One line of a monitor: from this machine, or from an agent, whose version may be another one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::all_nodes::missing_fields;

/// The fields that each event has (docs/schema/monitor.json).
const FIELDS: [&str; 11] =
    ["time", "verdict", "reason", "direction", "pod", "ifindex", "generation", "policies", "tiers", "audit", "list"];

/// An event as text output shows it. All fields may be absent: an older agent does not know them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct EventRow {
    /// The node; `None` if it is this machine.
    pub(super) node: Option<String>,
    pub(super) time: String,
    pub(super) verdict: String,
    pub(super) reason: String,
    pub(super) direction: String,
    pub(super) pod: Option<String>,
    pub(super) proto: Option<String>,
    /// 4 or 6, if the headers of the packet were not parsed.
    pub(super) family: Option<u8>,
    pub(super) local: Option<RowEnd>,
    pub(super) peer: Option<RowEnd>,
    #[serde(flatten)]
    pub(super) why: RowWhy,
}

/// What decided about a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct RowWhy {
    pub(super) list: Option<String>,
    pub(super) policies: Vec<String>,
    pub(super) tiers: Vec<String>,
    pub(super) audit: Vec<String>,
    pub(super) rule: Option<String>,
    pub(super) places: BTreeMap<String, String>,
}

/// An end of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct RowEnd {
    pub(super) ip: IpAddr,
    #[serde(default)]
    pub(super) pod: Option<String>,
    #[serde(default)]
    pub(super) port: Option<u16>,
}

impl EventRow {
    /// Reads an event, and the names of the fields that it lacks.
    pub(super) fn read(value: &Value) -> Result<(Self, Vec<&'static str>), serde_json::Error> {
        let mut row = Self::deserialize(value)?;
        if let Some(local) = &mut row.local {
            local.pod.clone_from(&row.pod);
        }
        Ok((row, missing_fields(value, &FIELDS)))
    }

    pub(super) fn passed(&self) -> bool {
        self.verdict == "allow"
    }

    /// The end that sent the packet, and the end that it was sent to. `None` if it is not an IP packet.
    pub(super) fn source_and_destination(&self) -> Option<(&RowEnd, &RowEnd)> {
        let (local, peer) = (self.local.as_ref()?, self.peer.as_ref()?);
        Some(if self.direction == "egress" { (local, peer) } else { (peer, local) })
    }

    /// Whether a packet is one of those that every host with IPv6 sends to its link without being asked: neighbour
    /// discovery and group membership. A record has no ICMPv6 type, so this goes by the addresses: between link-local
    /// addresses, or to a group of the link. Where no pod has IPv6, every IPv6 frame of a pod counts: its headers were
    /// not parsed.
    pub(super) fn is_housekeeping(&self) -> bool {
        if self.family == Some(6) {
            return true;
        }
        let ends = self.local.as_ref().zip(self.peer.as_ref());
        self.proto.as_deref() == Some("ICMPv6") && ends.is_some_and(|(a, b)| is_of_link(a.ip) && is_of_link(b.ip))
    }

    /// Both ends: `TCP shop/web 10.0.0.1:40000 -> shop/db 10.0.0.2:5432`.
    pub(super) fn packet(&self) -> String {
        match (self.source_and_destination(), &self.proto) {
            (Some((from, to)), Some(protocol)) => format!("{protocol} {} -> {}", from.text(), to.text()),
            _ => {
                let pod = self.pod.as_deref().unwrap_or("no endpoint");
                self.family.map_or_else(|| pod.to_owned(), |family| format!("{pod}, an IPv{family} frame"))
            }
        }
    }

    /// The list, policies and rules that decided; empty if none did.
    pub(super) fn why(&self) -> String {
        let why = &self.why;
        let mut text = match self.reason.as_str() {
            "allowed" => why.allowed(),
            "unfiltered" => "no policy isolates it in this direction".to_owned(),
            "own-node" => "from its own node".to_owned(),
            "itself" => "from itself".to_owned(),
            _ => why.denied(),
        };
        if !why.audit.is_empty() {
            let audited = why.placed(&why.audit);
            text.push_str(&match self.passed() {
                false => format!(", but with {audited} (audit)"),
                true => format!("would be isolated by {audited} (audit), allowed by no rule"),
            });
        }
        text
    }
}

impl RowWhy {
    fn allowed(&self) -> String {
        match &self.rule {
            Some(rule) => format!("allowed by {}", self.at(rule)),
            None => {
                let policies: Vec<String> = self.tiers.iter().chain(&self.policies).cloned().collect();
                format!("allowed by a rule of {}", self.placed(&policies))
            }
        }
    }

    fn denied(&self) -> String {
        let isolated = || format!("isolated by {}, allowed by no rule", self.placed(&self.policies));
        match (&self.list, &self.rule) {
            (Some(list), _) => format!("by list {}", self.at(list)),
            (None, _) if self.tiers.is_empty() && self.policies.is_empty() => String::new(),
            (None, _) if self.tiers.is_empty() => isolated(),
            (None, rule) => {
                let by = match rule {
                    Some(rule) => format!("denied by {}", self.at(rule)),
                    None => format!("denied by a rule of {}", self.tiers.join(", ")),
                };
                if self.policies.is_empty() { by } else { format!("{by}, or {}", isolated()) }
            }
        }
    }

    /// A name with its file and line, if it is from a file.
    fn at(&self, name: &str) -> String {
        self.places.get(name).map_or_else(|| name.to_owned(), |place| format!("{name} ({place})"))
    }

    fn placed(&self, names: &[String]) -> String {
        names.iter().map(|it| self.at(it)).collect::<Vec<_>>().join(", ")
    }
}

impl RowEnd {
    /// `shop/web 10.0.0.1:80`
    pub(super) fn text(&self) -> String {
        crate::commands::flows::address(self.pod.as_deref(), self.ip, self.port)
    }

    pub(super) fn without_port(&self) -> String {
        crate::commands::flows::address(self.pod.as_deref(), self.ip, None)
    }
}

/// Whether an address has no meaning outside of the link: `::`, `fe80::/10`, `ff02::/16`.
fn is_of_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_unicast_link_local() || v6.segments()[0] == 0xff02,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A packet from a pod to another one, which a policy denies.
    pub(in crate::commands::monitor) fn event() -> Value {
        json!({"time": "1970-01-01T00:00:00.000Z", "verdict": "deny", "reason": "denied", "direction": "egress",
            "pod": "shop/web", "ifindex": 7, "generation": 1, "policies": ["shop/deny"], "tiers": [], "audit": [],
            "rule": null, "list": null, "proto": "TCP", "local": {"ip": "10.0.0.1", "port": 40_000},
            "peer": {"ip": "10.0.0.2", "pod": "shop/db", "port": 5432}})
    }

    pub(in crate::commands::monitor) fn row(value: &Value) -> EventRow {
        EventRow::read(value).expect("an event").0
    }

    /// A packet of ICMPv6 from a pod.
    pub(in crate::commands::monitor) fn icmp6(local: &str, remote: &str) -> Value {
        let mut value = event();
        value["proto"] = json!("ICMPv6");
        (value["local"], value["peer"]) = (json!({"ip": local}), json!({"ip": remote}));
        value
    }

    #[test]
    fn only_packets_within_the_link_are_housekeeping() {
        for (local, remote, expected) in [
            ("fe80::1", "ff02::16", true),
            ("::", "ff02::1:ff00:5", true),
            ("fe80::1", "fe80::2", true),
            // An echo request to or from an address that can be reached from elsewhere.
            ("fd00::5", "fe80::2", false),
            ("fe80::1", "ff05::2", false),
        ] {
            assert_eq!(row(&icmp6(local, remote)).is_housekeeping(), expected, "{local} {remote}");
        }
        assert!(!row(&event()).is_housekeeping());
        // A pod without IPv6, on a node whose pods have none: the frame was not parsed. Forged ARP has no family.
        let frame = |family: Value| {
            let mut value = event();
            ["proto", "local", "peer"].iter().for_each(|it| _ = value.as_object_mut().expect("an object").remove(*it));
            value["family"] = family;
            row(&value)
        };
        assert!(frame(json!(6)).is_housekeeping() && !frame(json!(null)).is_housekeeping());
        assert_eq!(frame(json!(6)).packet(), "shop/web, an IPv6 frame");
    }

    #[test]
    fn reasons_name_the_rule_the_policy_and_the_file() {
        let mut value = event();
        let mut check = |change: fn(&mut Value), expected: &str| {
            change(&mut value);
            assert_eq!(row(&value).why(), expected);
        };
        check(|_| {}, "isolated by shop/deny, allowed by no rule");
        check(
            |it| it["places"] = json!({"shop/deny": "a.yaml:3"}),
            "isolated by shop/deny (a.yaml:3), allowed by no rule",
        );
        check(
            |it| it["tiers"] = json!(["ClusterNetworkPolicy base"]),
            "denied by a rule of ClusterNetworkPolicy base, or isolated by shop/deny (a.yaml:3), allowed by no rule",
        );
        check(
            |it| it["rule"] = json!("ClusterNetworkPolicy base spec.egress[1]"),
            "denied by ClusterNetworkPolicy base spec.egress[1], or isolated by shop/deny (a.yaml:3), allowed by no rule",
        );
        check(|it| it["list"] = json!("drop"), "by list drop");
        check(
            |it| {
                (it["reason"], it["verdict"], it["tiers"], it["rule"]) =
                    (json!("allowed"), json!("allow"), json!([]), json!(null))
            },
            "allowed by a rule of shop/deny (a.yaml:3)",
        );
        check(|it| it["rule"] = json!("shop/deny spec.egress[0]"), "allowed by shop/deny spec.egress[0]");
    }

    #[test]
    fn event_of_an_older_agent_is_read_and_its_missing_fields_are_named() {
        let mut value = event();
        let fields = value.as_object_mut().expect("an object");
        ["tiers", "audit"].iter().for_each(|it| _ = fields.remove(*it));
        let (row, missing) = EventRow::read(&value).expect("an event");
        assert_eq!(missing, ["tiers", "audit"]);
        assert_eq!(row.packet(), "TCP shop/web 10.0.0.1:40000 -> shop/db 10.0.0.2:5432");
    }
}
