//! Edits of texts in every style that a manifest is written in: only the lines of the item change.

use weir_objects::decode::{DecodeOptions, Decoded, Input, InputKind, decode};
use weir_objects::k8s::{Direction, LabelSelector, PolicyPeer, PolicyPort, PolicyRule, PortMatch, Protocol};
use weir_suggest::edit::{Edit, Item, ListPath};
use weir_suggest::rewrite::rewrite;

fn options() -> DecodeOptions {
    DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false }
}

fn read(text: &str) -> Decoded {
    let (read, found) =
        decode(vec![Input { name: "x".to_owned(), bytes: text.into(), kind: InputKind::Manifest }], &options());
    assert!(!found.has_errors(), "{found:?}\n{text}");
    read
}

/// The text after an edit of its first object.
fn edited(text: &str, edit: impl Fn(weir_objects::origin::ObjectId) -> Edit) -> Result<String, String> {
    let read = read(text);
    let edit = edit(read.objects[0].id);
    let files = rewrite(&read.sources, &read.objects, &options(), &[edit]).map_err(|it| it.to_string())?;
    Ok(files[0].after.clone())
}

fn port() -> PolicyPort {
    PolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(80, 80) }
}

fn peer() -> PolicyPeer {
    let pods = LabelSelector { match_labels: [("a".to_owned(), "b".to_owned())].into(), ..LabelSelector::default() };
    PolicyPeer::Pods { pods: Some(pods), namespaces: None }
}

/// A policy with this text as its `spec`, in blocks.
fn policy(spec: &str) -> String {
    format!("# head\nkind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {{name: p}}\nspec:\n{spec}")
}

const INGRESS: ListPath = ListPath::Rules(Direction::Ingress);
const FROM: ListPath = ListPath::Peers(Direction::Ingress, 0);

#[test]
fn a_rule_is_appended_in_the_style_of_the_list() {
    let rule = || Item::Rule(PolicyRule { peers: vec![peer()], ports: vec![port()] });
    let append = |object| Edit::Append { object, list: INGRESS, item: rule() };
    let block = "\
- from:
      - podSelector:
          matchLabels:
            a: b
      ports:
      - port: 80
"
    .replace("      - pod", "        - pod")
    .replace("          matchLabels:\n            a", "            matchLabels:\n              a")
    .replace("      - port: 80", "        - port: 80");
    for (before, after) in [
        ("  podSelector: {}\n  policyTypes: [Ingress]\n", format!("  podSelector: {{}}\n  policyTypes: [Ingress]\n  ingress:\n    {block}")),
        ("  podSelector: {}\n  ingress: []  # none\n", format!("  podSelector: {{}}\n  ingress:\n    {block}").trim_end().to_owned() + "  # none\n"),
        ("  podSelector: {}\n  ingress:\n    - ports: [{port: 1}]  # one\n  # end\n", format!("  podSelector: {{}}\n  ingress:\n    - ports: [{{port: 1}}]  # one\n    {block}  # end\n")),
        ("  {podSelector: {}, ingress: [{ports: [{port: 1}]}]}\n", "  {podSelector: {}, ingress: [{ports: [{port: 1}]}, {from: [{podSelector: {matchLabels: {a: b}}}], ports: [{port: 80}]}]}\n".to_owned()),
    ] {
        assert_eq!(edited(&policy(before), append), Ok(policy(&after)));
    }
}

#[test]
fn an_item_is_removed_with_its_lines_alone() {
    let remove = |list, index| move |object| Edit::Remove { object, list, index };
    let rules = "  podSelector: {}\n  ingress:\n  # one\n  - from:\n    - podSelector: {}\n    # two\n    - ipBlock: {cidr: 10.0.0.0/8} # b\n";
    let without = "  podSelector: {}\n  ingress:\n  # one\n  - from:\n    - podSelector: {}\n    # two\n";
    assert_eq!(edited(&policy(rules), remove(FROM, 1)), Ok(policy(without)));
    let none = "  podSelector: {}\n  ingress: []\n  # one\n";
    assert_eq!(edited(&policy(rules), remove(INGRESS, 0)), Ok(policy(none)));
    // Without its last rule, the policy would no longer isolate for egress.
    let egress = "  podSelector: {}\n  egress:\n    - ports: [{port: 1}]\n";
    let isolated = "  podSelector: {}\n  egress: []\n  policyTypes:\n    - Ingress\n    - Egress\n";
    let last = ListPath::Rules(Direction::Egress);
    assert_eq!(edited(&policy(egress), remove(last, 0)), Ok(policy(isolated)));
}

#[test]
fn an_item_in_brackets_is_not_removed_if_a_comment_is_beside_it() {
    let removed = |peers: &str, index| {
        let text = policy(&format!("  podSelector: {{}}\n  ingress:\n  - from: {peers}\n"));
        edited(&text, |object| Edit::Remove { object, list: FROM, index })
    };
    let [a, b] = ["{ipBlock: {cidr: 10.0.0.0/8}}", "{ipBlock: {cidr: 192.0.2.0/24}}"];
    for (peers, index) in [
        (format!("[{a}, # a\n      {b}]"), 0),
        (format!("[{a}, # a\n      {b}]"), 1),
        (format!("[\n      # a\n      {a},\n      # b\n      {b},\n      ]"), 0),
        (format!("[{a},\n      {b} # b\n      ]"), 1),
        (format!("[{a}, {b}, # b\n      {a}]"), 1),
    ] {
        let error = removed(&peers, index).expect_err(&peers);
        assert!(error.ends_with("at spec.ingress[0].from: a comment is beside it"), "{error}");
    }
    for (peers, index, rest) in [
        (format!("[{a}, {b}] # both"), 1, format!("[{a}] # both")),
        (format!("[{a}, {b}] # both"), 0, format!("[{b}] # both")),
        (format!("[{a}, # a\n      {a},\n      {b},\n      ]"), 2, format!("[{a}, # a\n      {a},\n      ]")),
    ] {
        let expected = policy(&format!("  podSelector: {{}}\n  ingress:\n  - from: {rest}\n"));
        assert_eq!(removed(&peers, index), Ok(expected), "{peers}");
    }
}

#[test]
fn json_stays_json() {
    let text = r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "networking.k8s.io/v1",
      "kind": "NetworkPolicy", "metadata": {"name": "p"},
      "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}}]}"#;
    let append = |object| Edit::Append { object, list: FROM, item: Item::Peer(peer()) };
    let expected = text
        .replace(r#"{"podSelector": {}}]"#, r#"{"podSelector": {}}, {"podSelector": {"matchLabels": {"a": "b"}}}]"#);
    assert_eq!(edited(text, append), Ok(expected));
}

#[test]
fn a_list_that_is_shared_or_nested_is_an_error() {
    let append = |object| Edit::Append { object, list: FROM, item: Item::Peer(peer()) };
    let shared = "  podSelector: {}\n  ingress:\n    - from: &f\n        - podSelector: {}\n    - from: *f\n";
    assert!(edited(&policy(shared), append).is_err());
}
