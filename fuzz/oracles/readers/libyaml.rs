//! YAML, read by `libyaml-safer` and composed with the rules of `sigs.k8s.io/yaml`: YAML 1.1 types, merge keys, keys
//! as texts. The rules are written again here, so that a mistake in ours shows.

use std::collections::HashMap;
use std::rc::Rc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use libyaml_safer::{Event, EventData, Parser, ScalarStyle};

use super::{Key, Reading, Tally, Tree, known, our_yaml};

const YAML: &str = "tag:yaml.org,2002:";

/// Compares all documents of a text up to the first that is refused.
///
/// # Errors
/// Fails if the readers differ without a known reason.
pub fn agree(text: &str, tally: &mut Tally) -> Result<(), String> {
    // Without a line end at its end, a block of text makes libyaml-safer 0.2 panic.
    let text = &format!("{text}\n");
    if known::stops_libyaml(text) {
        tally.known += 1;
        return Ok(());
    }
    let (ours, theirs) = (our_yaml(text), documents(text));
    let end = || Ok(Tree::Null);
    for index in 0..ours.len().max(theirs.len()).max(1) {
        let ours = ours.get(index).cloned().unwrap_or_else(end);
        let theirs = theirs.get(index).cloned().unwrap_or_else(end);
        tally.compare(text, &ours, &theirs, known::to_libyaml(text, &ours, &theirs))?;
        // After a known difference, the two are not at the same place.
        if ours.is_err() || theirs.is_err() {
            break;
        }
    }
    Ok(())
}

/// The documents that are not null, up to the first error.
pub fn documents(text: &str) -> Vec<Reading> {
    let mut input = text.as_bytes();
    let mut parser = Parser::new();
    parser.set_input_string(&mut input);
    let mut composer = Composer { parser, next: None, anchors: HashMap::new(), nodes: Vec::new() };
    let mut readings = Vec::new();
    loop {
        match composer.document() {
            Ok(None) => return readings,
            Ok(Some(Tree::Null)) => {}
            Ok(Some(tree)) => readings.push(Ok(tree)),
            Err(error) => {
                readings.push(Err(error));
                return readings;
            }
        }
    }
}

struct Composer<'r> {
    parser: Parser<'r>,
    /// An event that was read ahead.
    next: Option<Event>,
    /// The number of the value that was anchored last.
    anchors: HashMap<String, usize>,
    /// Anchored values; `None` while they are read.
    nodes: Vec<Option<Rc<Node>>>,
}

/// Key and value.
type Entry = (Rc<Node>, Rc<Node>);

enum Node {
    Scalar { text: String, tag: Option<String>, plain: bool },
    Seq(Vec<Rc<Node>>),
    Map(Vec<Entry>),
    Alias(Rc<Node>),
}

impl Composer<'_> {
    fn next(&mut self) -> Result<Event, String> {
        match self.next.take() {
            Some(event) => Ok(event),
            None => self.parser.parse().map_err(|error| error.to_string()),
        }
    }

    /// The next document; `None` at the end.
    fn document(&mut self) -> Result<Option<Tree>, String> {
        loop {
            match self.next()?.data {
                EventData::StreamStart { .. } => {}
                EventData::StreamEnd => return Ok(None),
                EventData::DocumentStart { .. } => break,
                other => return Err(format!("unexpected {other:?}")),
            }
        }
        self.anchors.clear();
        let event = self.next()?;
        let node = self.node(event)?;
        let EventData::DocumentEnd { implicit } = self.next()?.data else { return Err("no end".to_owned()) };
        let tree = value(&node)?;
        // libyaml returns a document before it finds invalid text after it. Our reader reports the error in the document.
        if implicit {
            self.next = Some(self.next()?);
        }
        Ok(Some(tree))
    }

    fn node(&mut self, event: Event) -> Result<Rc<Node>, String> {
        match event.data {
            EventData::Alias { anchor } => {
                let number = self.anchors.get(&anchor).ok_or("an alias without an anchor")?;
                let node = self.nodes[*number].clone().ok_or("an alias inside of its anchor's value")?;
                Ok(Rc::new(Node::Alias(node)))
            }
            EventData::Scalar { anchor, tag, value, style, .. } => {
                let plain = match &tag {
                    None => style == ScalarStyle::Plain,
                    Some(tag) => tag == "!",
                };
                let number = self.open(anchor);
                Ok(self.close(number, Node::Scalar { text: value, tag, plain }))
            }
            EventData::SequenceStart { anchor, .. } => {
                let number = self.open(anchor);
                let mut items = Vec::new();
                loop {
                    let event = self.next()?;
                    if let EventData::SequenceEnd = event.data {
                        return Ok(self.close(number, Node::Seq(items)));
                    }
                    items.push(self.node(event)?);
                }
            }
            EventData::MappingStart { anchor, .. } => {
                let number = self.open(anchor);
                let mut entries = Vec::new();
                loop {
                    let event = self.next()?;
                    if let EventData::MappingEnd = event.data {
                        return Ok(self.close(number, Node::Map(entries)));
                    }
                    let key = self.node(event)?;
                    let event = self.next()?;
                    entries.push((key, self.node(event)?));
                }
            }
            other => Err(format!("unexpected {other:?}")),
        }
    }

    fn open(&mut self, anchor: Option<String>) -> Option<usize> {
        let number = self.nodes.len();
        self.anchors.insert(anchor?, number);
        self.nodes.push(None);
        Some(number)
    }

    fn close(&mut self, number: Option<usize>, node: Node) -> Rc<Node> {
        let node = Rc::new(node);
        if let Some(slot) = number.and_then(|number| self.nodes.get_mut(number)) {
            *slot = Some(node.clone());
        }
        node
    }
}

fn value(node: &Node) -> Result<Tree, String> {
    match node {
        Node::Alias(node) => value(node),
        Node::Seq(items) => Ok(Tree::Seq(items.iter().map(|item| value(item)).collect::<Result<_, _>>()?)),
        Node::Map(entries) => Ok(Tree::map(mapping(entries)?)),
        Node::Scalar { .. } => match scalar(node)? {
            Tree::Float(number) if !number.is_finite() => Err("a number that JSON cannot carry".to_owned()),
            tree => Ok(tree),
        },
    }
}

/// The entries of a mapping. A merge replaces keys before it, and a key replaces merged entries.
fn mapping(entries: &[Entry]) -> Result<Vec<(Key, Tree)>, String> {
    let mut all: Vec<(Key, Tree, bool)> = Vec::new();
    for (key, node) in entries {
        if is_merge(key) {
            for source in sources(node)? {
                for (key, tree) in mapping(source)? {
                    all.retain(|(old, ..)| *old != key);
                    all.push((key, tree, true));
                }
            }
            continue;
        }
        let key = key_of(key)?;
        let tree = value(node)?;
        all.retain(|(old, _, merged)| !(*merged && *old == key));
        all.push((key, tree, false));
    }
    Ok(all.into_iter().map(|(key, tree, _)| (key, tree)).collect())
}

fn is_merge(key: &Node) -> bool {
    match key {
        Node::Scalar { text, tag, plain } => {
            text == "<<" && (*plain || tag.as_deref() == Some("tag:yaml.org,2002:merge"))
        }
        _ => false,
    }
}

/// The mappings that a merge takes, in the order in which they take effect.
fn sources(node: &Node) -> Result<Vec<&[Entry]>, String> {
    fn source(node: &Node) -> Result<&[Entry], String> {
        match node {
            Node::Map(entries) => Ok(entries),
            Node::Alias(node) => match &**node {
                Node::Map(entries) => Ok(entries),
                _ => Err("a merge of no mapping".to_owned()),
            },
            _ => Err("a merge of no mapping".to_owned()),
        }
    }
    match node {
        Node::Seq(items) => items.iter().rev().map(|item| source(item)).collect(),
        node => Ok(vec![source(node)?]),
    }
}

fn key_of(node: &Node) -> Result<Key, String> {
    match node {
        Node::Alias(node) => key_of(node),
        Node::Scalar { .. } => match scalar(node)? {
            Tree::Str(text) => Ok(Key::text(&text)),
            Tree::Bool(value) => Ok(Key::text(if value { "true" } else { "false" })),
            Tree::Int(number) if i64::try_from(number).is_ok() => Ok(Key::text(&number.to_string())),
            Tree::Float(number) => Ok(Key::number(number)),
            _ => Err("a key that is null or too large".to_owned()),
        },
        _ => Err("a list or mapping as a key".to_owned()),
    }
}

/// The type of a scalar by its tag, or by its text if it is plain.
fn scalar(node: &Node) -> Result<Tree, String> {
    let Node::Scalar { text, tag, plain } = node else { return Err("no scalar".to_owned()) };
    let tag = match tag.as_deref() {
        None if *plain => return Ok(resolve(text)),
        None => return Ok(Tree::Str(text.clone())),
        Some(tag) => tag.strip_prefix(YAML),
    };
    let found = resolve(text);
    match (tag, &found) {
        (Some("binary"), _) => binary(text).map(Tree::Str).ok_or_else(|| "not base64".to_owned()),
        (Some("float"), Tree::Int(number)) if i64::try_from(*number).is_ok() => Ok(Tree::Float(*number as f64)),
        (Some("null"), Tree::Null)
        | (Some("bool"), Tree::Bool(_))
        | (Some("int"), Tree::Int(_))
        | (Some("float"), Tree::Float(_)) => Ok(found),
        (Some(tag @ ("null" | "bool" | "int" | "float")), _) => Err(format!("{text:?} with the tag {tag}")),
        _ => Ok(Tree::Str(text.clone())),
    }
}

fn binary(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|it| !matches!(it, '\r' | '\n')).collect();
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let bytes = GeneralPurpose::new(&STANDARD, config).decode(text).ok()?;
    let parts = bytes.utf8_chunks();
    // Go's JSON replaces each wrong byte.
    Some(parts.map(|part| part.valid().to_owned() + &"\u{fffd}".repeat(part.invalid().len())).collect())
}

fn resolve(text: &str) -> Tree {
    const TRUE: [&str; 4] = ["y", "yes", "true", "on"];
    const FALSE: [&str; 4] = ["n", "no", "false", "off"];
    // `yes`, `Yes` and `YES`, but not `yEs`.
    let one_of = |words: &[&str]| {
        words.iter().any(|word| {
            let (first, rest) = word.split_at(1);
            [(*word).to_owned(), word.to_uppercase(), first.to_uppercase() + rest].contains(&text.to_owned())
        })
    };
    if text.is_empty() || text == "~" || one_of(&["null"]) {
        return Tree::Null;
    }
    if one_of(&TRUE) {
        return Tree::Bool(true);
    }
    if one_of(&FALSE) {
        return Tree::Bool(false);
    }
    special(text).or_else(|| integer(text)).or_else(|| float(text)).unwrap_or_else(|| Tree::Str(text.to_owned()))
}

fn special(text: &str) -> Option<Tree> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    match rest {
        ".inf" | ".Inf" | ".INF" => Some(Tree::Float(sign * f64::INFINITY)),
        ".nan" | ".NaN" | ".NAN" if rest == text => Some(Tree::Float(f64::NAN)),
        _ => None,
    }
}

fn integer(text: &str) -> Option<Tree> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first)) {
        return None;
    }
    let text = text.replace('_', "");
    if let Some(signed) = text.strip_prefix("0b-").or_else(|| text.strip_prefix("0b+")) {
        let number = i64::from_str_radix(signed, 2).ok().filter(|_| !signed.starts_with(['+', '-']))?;
        return Some(Tree::Int(i128::from(if text.starts_with("0b-") { -number } else { number })));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some(two) if two.starts_with('0') => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    let number = if text.starts_with('-') { -number } else { number };
    let fits = if text.starts_with(['+', '-']) { i64::try_from(number).is_ok() } else { u64::try_from(number).is_ok() };
    fits.then_some(Tree::Int(number))
}

fn float(text: &str) -> Option<Tree> {
    let digit = |it: u8| it.is_ascii_digit();
    let bytes = text.as_bytes();
    if text.starts_with('.') {
        // Here an underscore is allowed between digits only.
        let between = |at: usize| at > 0 && digit(bytes[at - 1]) && bytes.get(at + 1).is_some_and(|it| digit(*it));
        if !(0..bytes.len()).all(|at| bytes[at] != b'_' || between(at)) {
            return None;
        }
    } else if !text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first)) {
        return None;
    }
    let text = text.replace('_', "");
    if !text.bytes().all(|it| digit(it) || b"+-.eE".contains(&it)) {
        return None;
    }
    let number: f64 = text.parse().ok()?;
    number.is_finite().then_some(Tree::Float(number))
}
