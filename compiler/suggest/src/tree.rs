//! Policies as trees, and trees as YAML: in blocks for people, or in one line of JSON (which is YAML too) for text that
//! is in brackets already.

use std::fmt::Write as _;

use weir_objects::k8s::{
    Direction, LabelSelector, MODE, Mode, NetworkPolicy, Operator, PolicyPeer, PolicyPort, PolicyRule, PolicyType,
    PortMatch, Protocol,
};

use crate::edit::{Item, peers_field};

/// A value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// A string.
    Text(String),
    /// A number.
    Number(u16),
    /// A list.
    List(Vec<Self>),
    /// A mapping, in order.
    Map(Vec<(String, Self)>),
    /// An item of a list with a comment above it, which only block style has.
    Commented(String, Box<Self>),
}

impl Tree {
    fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    fn map<const N: usize>(fields: [(&str, Self); N]) -> Self {
        Self::Map(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Block style. Lines after the first one are indented by `indent`; the last one ends with a line break.
    pub fn block(&self, indent: usize) -> String {
        let mut text = String::new();
        self.write(indent, &mut text);
        text
    }

    fn write(&self, indent: usize, text: &mut String) {
        match self {
            Self::List(items) if !items.is_empty() => {
                for (index, item) in items.iter().enumerate() {
                    margin(index, indent, text);
                    if let Self::Commented(comment, _) = item {
                        _ = write!(text, "# {comment}\n{:indent$}", "");
                    }
                    text.push_str("- ");
                    item.write(indent + 2, text);
                }
            }
            Self::Map(fields) if !fields.is_empty() => {
                for (index, (key, value)) in fields.iter().enumerate() {
                    margin(index, indent, text);
                    _ = write!(text, "{}:", plain(key));
                    if value.is_block() {
                        _ = write!(text, "\n{:1$}", "", indent + 2);
                        value.write(indent + 2, text);
                    } else {
                        text.push(' ');
                        value.write(indent, text);
                    }
                }
            }
            Self::Commented(_, item) => item.write(indent, text),
            Self::Text(value) => _ = writeln!(text, "{}", plain(value)),
            other => _ = writeln!(text, "{}", other.json()),
        }
    }

    fn is_block(&self) -> bool {
        matches!(self, Self::List(items) if !items.is_empty()) || matches!(self, Self::Map(it) if !it.is_empty())
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        self.line(quoted)
    }

    /// One line of YAML, in brackets.
    pub fn flow(&self) -> String {
        self.line(plain)
    }

    fn line(&self, word: fn(&str) -> String) -> String {
        let joined = |parts: Vec<String>| parts.join(", ");
        match self {
            Self::Text(text) => word(text),
            Self::Number(number) => number.to_string(),
            Self::Commented(_, item) => item.line(word),
            Self::List(items) => format!("[{}]", joined(items.iter().map(|it| it.line(word)).collect())),
            Self::Map(fields) => {
                let field = |(key, value): &(String, Self)| format!("{}: {}", word(key), value.line(word));
                format!("{{{}}}", joined(fields.iter().map(field).collect()))
            }
        }
    }
}

fn margin(index: usize, indent: usize, text: &mut String) {
    if index > 0 {
        _ = write!(text, "{:indent$}", "");
    }
}

/// A string, in quotes if YAML could read another type without them.
fn plain(text: &str) -> String {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let is_word = text.starts_with(|it: char| it.is_ascii_alphabetic())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "./-_".contains(it))
        && !WORDS.contains(&text.to_lowercase().as_str());
    let is_block = text.contains('/') && text.chars().all(|it| it.is_ascii_digit() || "./".contains(it));
    if is_word || is_block { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    let mut out = "\"".to_owned();
    for it in text.chars() {
        match it {
            '"' | '\\' => out.extend(['\\', it]),
            it if it.is_control() => _ = write!(out, "\\u{:04x}", u32::from(it)),
            it => out.push(it),
        }
    }
    out.push('"');
    out
}

/// A whole policy.
pub fn policy(namespace: &str, name: &str, policy: &NetworkPolicy) -> Tree {
    let mut metadata = vec![("name".to_owned(), Tree::text(name)), ("namespace".to_owned(), Tree::text(namespace))];
    if policy.mode == Mode::Audit {
        metadata.push(("annotations".to_owned(), Tree::map([(MODE, Tree::text("audit"))])));
    }
    let mut spec = vec![("podSelector".to_owned(), selector(&policy.pod_selector))];
    let types = policy.policy_types.iter().map(|it| {
        Tree::text(match it {
            PolicyType::Ingress => "Ingress",
            PolicyType::Egress => "Egress",
        })
    });
    spec.push(("policyTypes".to_owned(), Tree::List(types.collect())));
    for (direction, rules) in [(Direction::Ingress, &policy.ingress), (Direction::Egress, &policy.egress)] {
        if !rules.is_empty() {
            let rules = rules.iter().map(|it| rule(it, direction)).collect();
            spec.push((direction.name().to_owned(), Tree::List(rules)));
        }
    }
    Tree::map([
        ("apiVersion", Tree::text("networking.k8s.io/v1")),
        ("kind", Tree::text("NetworkPolicy")),
        ("metadata", Tree::Map(metadata)),
        ("spec", Tree::Map(spec)),
    ])
}

/// An item of a list.
pub fn item(item: &Item, direction: Direction) -> Tree {
    match item {
        Item::Rule(it) => rule(it, direction),
        Item::Peer(it) => peer(it),
        Item::Port(it) => port(it),
        Item::Except(it) => Tree::text(it.to_string()),
    }
}

fn rule(rule: &PolicyRule, direction: Direction) -> Tree {
    let mut fields = Vec::new();
    if !rule.peers.is_empty() {
        fields.push((peers_field(direction).to_owned(), Tree::List(rule.peers.iter().map(peer).collect())));
    }
    if !rule.ports.is_empty() {
        fields.push(("ports".to_owned(), Tree::List(rule.ports.iter().map(port).collect())));
    }
    Tree::Map(fields)
}

fn peer(peer: &PolicyPeer) -> Tree {
    match peer {
        PolicyPeer::Pods { pods, namespaces } => {
            let fields = [("namespaceSelector", namespaces), ("podSelector", pods)];
            let fields = fields.into_iter().filter_map(|(key, it)| Some((key.to_owned(), selector(it.as_ref()?))));
            Tree::Map(fields.collect())
        }
        PolicyPeer::Block { cidr, except } => {
            let mut block = vec![("cidr".to_owned(), Tree::text(cidr.to_string()))];
            if !except.is_empty() {
                let holes = except.iter().map(|it| Tree::text(it.to_string())).collect();
                block.push(("except".to_owned(), Tree::List(holes)));
            }
            Tree::map([("ipBlock", Tree::Map(block))])
        }
    }
}

fn port(port: &PolicyPort) -> Tree {
    let mut fields = Vec::new();
    match &port.port {
        PortMatch::Any => {}
        PortMatch::Range(first, last) => {
            fields.push(("port".to_owned(), Tree::Number(*first)));
            if first != last {
                fields.push(("endPort".to_owned(), Tree::Number(*last)));
            }
        }
        PortMatch::Named(name) => fields.push(("port".to_owned(), Tree::text(name))),
    }
    let name = port.protocol.name();
    if port.protocol != Protocol::Tcp || fields.is_empty() {
        fields.push(("protocol".to_owned(), Tree::text(name)));
    }
    Tree::Map(fields)
}

fn selector(selector: &LabelSelector) -> Tree {
    let mut fields = Vec::new();
    if !selector.match_labels.is_empty() {
        let labels = selector.match_labels.iter().map(|(key, value)| (key.to_owned(), Tree::text(value)));
        fields.push(("matchLabels".to_owned(), Tree::Map(labels.collect())));
    }
    if !selector.match_expressions.is_empty() {
        let expressions = selector.match_expressions.iter().map(|it| {
            let mut fields =
                vec![("key".to_owned(), Tree::text(&it.key)), ("operator".to_owned(), Tree::text(it.operator.name()))];
            if matches!(it.operator, Operator::In | Operator::NotIn) {
                fields.push(("values".to_owned(), Tree::List(it.values.iter().map(Tree::text).collect())));
            }
            Tree::Map(fields)
        });
        fields.push(("matchExpressions".to_owned(), Tree::List(expressions.collect())));
    }
    Tree::Map(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_nest_and_ambiguous_words_are_quoted() {
        let labels = Tree::map([("app", Tree::text("web")), ("on", Tree::text("1"))]);
        let tree = Tree::map([("podSelector", Tree::map([("matchLabels", labels)])), ("x", Tree::List(Vec::new()))]);
        let list = Tree::List(vec![tree.clone(), Tree::text("::/0")]);
        let expected = "\
- podSelector:
    matchLabels:
      app: web
      \"on\": \"1\"
  x: []
- \"::/0\"
";
        assert_eq!(list.block(0), expected);
        assert_eq!(tree.json(), r#"{"podSelector": {"matchLabels": {"app": "web", "on": "1"}}, "x": []}"#);
        assert_eq!(tree.flow(), r#"{podSelector: {matchLabels: {app: web, "on": "1"}}, x: []}"#);
    }
}
