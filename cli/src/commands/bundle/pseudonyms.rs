//! Replaces names and addresses in JSON (`--anonymize`).
//!
//! Strategy: every string is replaced, except those of members that are known to be words of Weir. So a new field, or a
//! message that quotes a name, is replaced until it is listed here. The same text has the same replacement in all parts,
//! so a reader can still see that a flow and an endpoint are of the same pod.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

/// Members whose values are words of Weir or numbers as text.
const KEPT: [&str; 15] = [
    "digest",
    "direction",
    "established",
    "hook",
    "kind",
    "mode",
    "outcome",
    "proto",
    "protocol",
    "reason",
    "rule",
    "state",
    "time",
    "verdict",
    "map",
];

/// The replacements so far.
#[derive(Debug, Default)]
pub(super) struct Pseudonyms {
    known: BTreeMap<String, String>,
}

impl Pseudonyms {
    /// Replaces all strings in a value that may be names or addresses.
    pub(super) fn replace(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.of(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item)),
            Value::Object(members) => {
                let unknown =
                    members.iter_mut().filter(|(name, value)| !(value.is_string() && KEPT.contains(&name.as_str())));
                unknown.for_each(|(_, value)| self.replace(value));
            }
            _ => {}
        }
    }

    /// The replacement of a text: `address-1`, `address-1/24`, `name-1/name-2`, `name-3`.
    fn of(&mut self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
        match text.split_once('/') {
            Some((address, length)) if is_address(address) && length.parse::<u8>().is_ok() => {
                format!("{}/{length}", self.numbered("address", address))
            }
            Some((namespace, name)) if !text.contains(char::is_whitespace) => {
                format!("{}/{}", self.numbered("name", namespace), self.numbered("name", name))
            }
            _ if is_address(text) => self.numbered("address", text),
            _ => self.numbered("name", text),
        }
    }

    fn numbered(&mut self, what: &str, text: &str) -> String {
        let next = format!("{what}-{}", self.known.len() + 1);
        self.known.entry(text.to_owned()).or_insert(next).clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn same_names_have_the_same_replacement() {
        let mut pseudonyms = Pseudonyms::default();
        let mut value = json!({
            "endpoints": [{"pod": "shop/web", "interface": "veth1", "ifindex": 7, "state": "enforced"}],
            "flows": [{"pod": "shop/web", "ip": "10.0.0.1", "peer": "fd00::1", "block": "10.0.0.1/24"}],
            "drift": ["another program runs at veth1 (shop/web)"],
        });
        pseudonyms.replace(&mut value);
        let text = value.to_string();
        for secret in ["shop", "web", "veth1", "10.0.0.1", "fd00"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
        assert_eq!(value["endpoints"][0]["pod"], value["flows"][0]["pod"]);
        assert_eq!(value["endpoints"][0]["state"], "enforced");
        assert_eq!(value["endpoints"][0]["ifindex"], 7);
        let address = value["flows"][0]["ip"].as_str().expect("text");
        assert_eq!(value["flows"][0]["block"], format!("{address}/24"));
    }
}
