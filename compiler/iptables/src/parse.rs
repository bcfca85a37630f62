//! iptables-save text → [`FilterTable`].
//!
//! Problem: a model of the kernel that skips unknown words gives wrong answers without notice.
//! Strategy: exactly the grammar that [`super::render`] writes and `iptables-save` prints; every other word is an error
//! with its line. Chains are declared before rules, so one pass is enough.
//! Invariants: every jump leads to a chain that exists and no chain reaches itself, as the kernel requires too.

use std::collections::HashMap;

use super::ipset::{AddressSide, IpSets};
use super::walk::ConntrackState;
use weir_objects::address::{Family, Prefix};

/// The most characters in a chain's name.
pub(super) const MAX_CHAIN_NAME: usize = 28;
/// The most bytes in a comment.
pub(super) const MAX_COMMENT: usize = 255;
/// The most ports in one `--dports`; a range counts as two.
pub(super) const MAX_MULTIPORT: usize = 15;

/// Text that the renderer does not write, or that the kernel would refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} line {line}: {problem}")]
pub struct TableParseError {
    /// `v4`, `v6` or `sets`.
    pub part: &'static str,
    /// The line's number, from 1.
    pub line: usize,
    /// The problem.
    pub problem: Problem,
}

/// A problem with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is not in the grammar.
    #[error("not understood: `{0}`")]
    Unknown(String),
    /// The line ends too early.
    #[error("`{0}` needs a value")]
    Incomplete(String),
    /// The text occurs a second time.
    #[error("`{0}` occurs twice")]
    Twice(String),
    /// The name is used but not defined.
    #[error("`{0}` is not defined")]
    Undefined(String),
    /// A set of the other family, or a set with the wrong number of flags.
    #[error("set `{0}` does not fit here")]
    Unfit(String),
    /// The name is longer than the kernel allows.
    #[error("`{0}` is longer than {1} characters")]
    NameTooLong(String, usize),
    /// More ports than one match allows.
    #[error("more than {MAX_MULTIPORT} ports in one match")]
    TooManyPorts,
    /// A port match without its protocol.
    #[error("ports need `-p tcp`, `-p udp` or `-p sctp`")]
    PortsWithoutProtocol,
    /// A match of the message's type without its protocol.
    #[error("types of ICMPv6 need `-p ipv6-icmp`")]
    TypeWithoutProtocol,
    /// More elements than the set allows.
    #[error("set `{0}` takes {1} elements and no more")]
    Full(String, usize),
    /// A chain that reaches itself.
    #[error("chain `{0}` reaches itself")]
    Loop(String),
    /// The table has no `COMMIT`.
    #[error("the table is not committed")]
    Uncommitted,
}

impl Problem {
    pub(super) fn unknown(text: &str) -> Self {
        Self::Unknown(text.to_owned())
    }
}

/// The filter table of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilterTable {
    pub(super) chains: Vec<Chain>,
    by_name: HashMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: String,
    /// The policy of a built-in chain: the verdict at its end.
    pub(super) policy: Option<ChainPolicy>,
    pub(super) rules: Vec<ChainRule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainPolicy {
    Accept,
    Drop,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainRule {
    /// All of them must match.
    pub(super) matches: Vec<Match>,
    pub(super) comment: Option<String>,
    pub(super) target: RuleTarget,
}

/// One condition; a `!` before it inverts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) negated: bool,
    pub(super) test: PacketTest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PacketTest {
    Address(AddressSide, Prefix),
    Protocol(u8),
    /// The index of the set.
    Set(usize, AddressSide),
    /// Ranges of destination ports: first and last.
    Ports(Vec<(u16, u16)>),
    State(Vec<ConntrackState>),
    /// The type of an ICMPv6 message.
    Icmp6Type(u8),
    Mark {
        value: u32,
        mask: u32,
    },
}

/// The target of a rule; chains are indices in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleTarget {
    Accept,
    Drop,
    Return,
    Jump(usize),
    Goto(usize),
    Mark {
        value: u32,
        mask: u32,
    },
    /// A rule without `-j` only counts packets.
    Nothing,
}

/// The protocol number for a name that iptables-save prints.
pub(super) fn protocol_number(name: &str) -> Option<u8> {
    match name {
        "icmp" => Some(1),
        "tcp" => Some(6),
        "udp" => Some(17),
        "ipv6-icmp" | "icmpv6" => Some(58),
        "sctp" => Some(132),
        _ => None,
    }
}

impl FilterTable {
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn parse(family: Family, text: &str, sets: &IpSets) -> Result<Self, TableParseError> {
        let part = if family == Family::V4 { "v4" } else { "v6" };
        let mut parser =
            Parser { family, sets, table: Self { chains: Vec::new(), by_name: HashMap::new() }, stage: Stage::Before };
        let mut last = 0;
        for (index, line) in text.lines().enumerate() {
            last = index + 1;
            parser.line(line).map_err(|problem| TableParseError { part, line: last, problem })?;
        }
        let whole = |problem| TableParseError { part, line: last, problem };
        if parser.stage != Stage::After {
            return Err(whole(Problem::Uncommitted));
        }
        parser.table.refuse_loops().map_err(whole)?;
        Ok(parser.table)
    }

    /// Refuses tables in which a chain reaches itself, as the kernel does.
    fn refuse_loops(&self) -> Result<(), Problem> {
        let (mut open, mut done) = (vec![false; self.chains.len()], vec![false; self.chains.len()]);
        for start in 0..self.chains.len() {
            self.descend(start, &mut open, &mut done)?;
        }
        Ok(())
    }

    fn descend(&self, start: usize, open: &mut [bool], done: &mut [bool]) -> Result<(), Problem> {
        // An explicit stack, because the text decides how deep chains are nested. `false` opens a chain, `true` closes
        // it.
        let mut stack = vec![(start, false)];
        while let Some((index, closes)) = stack.pop() {
            let (Some(chain), Some(is_open), Some(is_done)) =
                (self.chains.get(index), open.get_mut(index), done.get_mut(index))
            else {
                continue;
            };
            if closes {
                (*is_open, *is_done) = (false, true);
            } else if *is_open {
                return Err(Problem::Loop(chain.name.clone()));
            } else if !*is_done {
                *is_open = true;
                stack.push((index, true));
                stack.extend(chain.rules.iter().filter_map(ChainRule::leads_to).map(|next| (next, false)));
            }
        }
        Ok(())
    }
}

impl ChainRule {
    fn leads_to(&self) -> Option<usize> {
        match self.target {
            RuleTarget::Jump(chain) | RuleTarget::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    fn ports_have_protocol(&self) -> bool {
        !self.has(|it| matches!(it.test, PacketTest::Ports(_)))
            || self.has(|it| !it.negated && matches!(it.test, PacketTest::Protocol(6 | 17 | 132)))
    }

    fn types_have_protocol(&self) -> bool {
        !self.has(|it| matches!(it.test, PacketTest::Icmp6Type(_)))
            || self.has(|it| !it.negated && matches!(it.test, PacketTest::Protocol(58)))
    }

    fn has(&self, wanted: fn(&Match) -> bool) -> bool {
        self.matches.iter().any(wanted)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Before,
    Inside,
    After,
}

struct Parser<'s> {
    family: Family,
    sets: &'s IpSets,
    table: FilterTable,
    stage: Stage,
}

impl Parser<'_> {
    fn line(&mut self, line: &str) -> Result<(), Problem> {
        let line = line.trim_end();
        let inside = self.stage == Stage::Inside;
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        match (line, inside) {
            ("*filter", false) if self.stage == Stage::Before => self.stage = Stage::Inside,
            ("COMMIT", true) => self.stage = Stage::After,
            (_, true) => match (line.strip_prefix(':'), line.strip_prefix("-A ")) {
                (Some(chain), _) => self.chain(chain)?,
                (_, Some(rule)) => self.rule(rule)?,
                _ => return Err(Problem::unknown(line)),
            },
            _ => return Err(Problem::unknown(line)),
        }
        Ok(())
    }

    /// `NAME ACCEPT [0:0]`
    fn chain(&mut self, text: &str) -> Result<(), Problem> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [name, policy, counters] = words.as_slice() else { return Err(Problem::unknown(text)) };
        let is_own = matches!(*name, "INPUT" | "FORWARD" | "OUTPUT");
        let policy = match (*policy, is_own) {
            ("ACCEPT", true) => Some(ChainPolicy::Accept),
            ("DROP", true) => Some(ChainPolicy::Drop),
            ("-", false) => None,
            _ => return Err(Problem::unknown(policy)),
        };
        if !counters.starts_with('[') || !counters.ends_with(']') {
            return Err(Problem::unknown(counters));
        }
        if name.len() > MAX_CHAIN_NAME {
            return Err(Problem::NameTooLong((*name).to_owned(), MAX_CHAIN_NAME));
        }
        if self.table.by_name.insert((*name).to_owned(), self.table.chains.len()).is_some() {
            return Err(Problem::Twice((*name).to_owned()));
        }
        self.table.chains.push(Chain { name: (*name).to_owned(), policy, rules: Vec::new() });
        Ok(())
    }

    fn rule(&mut self, text: &str) -> Result<(), Problem> {
        let words = split_words(text)?;
        let mut words = RuleWords { words: words.iter(), negated: false };
        let chain = words.value("-A")?;
        let chain = self.chain_index(chain)?;
        let mut rule = ChainRule { matches: Vec::new(), comment: None, target: RuleTarget::Nothing };
        let mut module = None;
        while let Some(word) = words.words.next() {
            self.option(word, &mut words, &mut module, &mut rule)?;
        }
        if words.negated {
            return Err(Problem::Incomplete("!".to_owned()));
        }
        if !rule.ports_have_protocol() {
            return Err(Problem::PortsWithoutProtocol);
        }
        if !rule.types_have_protocol() {
            return Err(Problem::TypeWithoutProtocol);
        }
        if let Some(chain) = self.table.chains.get_mut(chain) {
            chain.rules.push(rule);
        }
        Ok(())
    }

    fn option(
        &self,
        option: &str,
        words: &mut RuleWords<'_>,
        module: &mut Option<String>,
        rule: &mut ChainRule,
    ) -> Result<(), Problem> {
        let is_negatable = !matches!(option, "-m" | "-j" | "-g" | "--comment");
        if words.negated && !is_negatable {
            return Err(Problem::Unknown(format!("! {option}")));
        }
        let test = match (option, module.as_deref()) {
            ("!", _) if !words.negated => {
                words.negated = true;
                return Ok(());
            }
            ("-m", _) => {
                *module = Some(read_module(words.value(option)?)?);
                return Ok(());
            }
            ("-j" | "-g", _) => return self.target(option, words, rule),
            ("--comment", Some("comment")) => return set_comment(words.value(option)?, rule),
            ("-s", _) => PacketTest::Address(AddressSide::Source, self.prefix(words.value(option)?)?),
            ("-d", _) => PacketTest::Address(AddressSide::Destination, self.prefix(words.value(option)?)?),
            ("-p", _) => PacketTest::Protocol(read_protocol(words.value(option)?)?),
            ("--match-set", Some("set")) => {
                let name = words.value(option)?;
                self.set(name, words.value(name)?)?
            }
            ("--dports", Some("multiport")) => PacketTest::Ports(read_ports(words.value(option)?)?),
            ("--dport", Some("tcp" | "udp" | "sctp")) => PacketTest::Ports(vec![read_range(words.value(option)?)?]),
            ("--icmpv6-type", Some("icmp6")) => {
                let text = words.value(option)?;
                PacketTest::Icmp6Type(text.parse().map_err(|_| Problem::unknown(text))?)
            }
            ("--ctstate", Some("conntrack")) => PacketTest::State(read_states(words.value(option)?)?),
            ("--mark", Some("mark")) => {
                let (value, mask) = read_mark(words.value(option)?)?;
                PacketTest::Mark { value, mask }
            }
            _ => return Err(Problem::unknown(option)),
        };
        let again = |it: &Match| match (&it.test, &test) {
            (PacketTest::Address(one, _), PacketTest::Address(other, _)) => one == other,
            (PacketTest::Protocol(_), PacketTest::Protocol(_)) => true,
            _ => false,
        };
        if rule.matches.iter().any(again) {
            return Err(Problem::Twice(option.to_owned()));
        }
        rule.matches.push(Match { negated: std::mem::take(&mut words.negated), test });
        Ok(())
    }

    fn target(&self, option: &str, words: &mut RuleWords<'_>, rule: &mut ChainRule) -> Result<(), Problem> {
        if rule.target != RuleTarget::Nothing {
            return Err(Problem::Twice(option.to_owned()));
        }
        let name = words.value(option)?;
        rule.target = match (option, name) {
            ("-j", "ACCEPT") => RuleTarget::Accept,
            ("-j", "DROP") => RuleTarget::Drop,
            ("-j", "RETURN") => RuleTarget::Return,
            ("-j", "MARK") => read_set_mark(words.value(name)?, words)?,
            _ => {
                let index = self.chain_index(name)?;
                match self.table.chains.get(index).is_some_and(|chain| chain.policy.is_some()) {
                    // Built-in chains cannot be targets.
                    true => return Err(Problem::unknown(name)),
                    false if option == "-j" => RuleTarget::Jump(index),
                    false => RuleTarget::Goto(index),
                }
            }
        };
        Ok(())
    }

    fn chain_index(&self, name: &str) -> Result<usize, Problem> {
        self.table.find(name).ok_or_else(|| Problem::Undefined(name.to_owned()))
    }

    fn set(&self, name: &str, flags: &str) -> Result<PacketTest, Problem> {
        let index = self.sets.find(name).ok_or_else(|| Problem::Undefined(name.to_owned()))?;
        let unfit = || Problem::Unfit(name.to_owned());
        let set = self.sets.sets.get(index).filter(|set| set.family == self.family).ok_or_else(unfit)?;
        let side = match (flags, set.dimensions()) {
            ("src", 1) => AddressSide::Source,
            ("dst", 1) | ("dst,dst", 2) => AddressSide::Destination,
            // The modelled packet has no source port.
            _ => return Err(unfit()),
        };
        Ok(PacketTest::Set(index, side))
    }

    /// `10.0.0.0/8`, which must be of the table's family.
    fn prefix(&self, text: &str) -> Result<Prefix, Problem> {
        let prefix = Prefix::read_strictly(text).filter(|prefix| prefix.family() == self.family);
        prefix.ok_or_else(|| Problem::unknown(text))
    }
}

/// The words of a rule that are not read yet.
struct RuleWords<'w> {
    words: std::slice::Iter<'w, String>,
    /// A `!` was read, but not the condition that it inverts.
    negated: bool,
}

impl<'w> RuleWords<'w> {
    fn value(&mut self, of: &str) -> Result<&'w str, Problem> {
        self.words.next().map(String::as_str).ok_or_else(|| Problem::Incomplete(of.to_owned()))
    }
}

/// Splits at blanks. Text in double quotes is one word, in which `\` escapes the next character.
fn split_words(text: &str) -> Result<Vec<String>, Problem> {
    let mut words = Vec::new();
    let mut characters = text.chars().peekable();
    while let Some(first) = characters.next() {
        match first {
            ' ' => {}
            '"' => {
                let mut word = String::new();
                loop {
                    match characters.next().ok_or_else(|| Problem::Incomplete("\"".to_owned()))? {
                        '"' => break,
                        '\\' => word.extend(characters.next()),
                        character => word.push(character),
                    }
                }
                words.push(word);
            }
            _ => {
                let mut word = String::from(first);
                while let Some(character) = characters.next_if(|next| *next != ' ') {
                    word.push(character);
                }
                words.push(word);
            }
        }
    }
    Ok(words)
}

fn read_module(name: &str) -> Result<String, Problem> {
    match name {
        "set" | "multiport" | "tcp" | "udp" | "sctp" | "icmp6" | "conntrack" | "mark" | "comment" => {
            Ok(name.to_owned())
        }
        _ => Err(Problem::unknown(name)),
    }
}

fn read_protocol(text: &str) -> Result<u8, Problem> {
    protocol_number(text).or_else(|| text.parse().ok().filter(|it| *it != 0)).ok_or_else(|| Problem::unknown(text))
}

fn set_comment(text: &str, rule: &mut ChainRule) -> Result<(), Problem> {
    if text.len() > MAX_COMMENT {
        return Err(Problem::NameTooLong(text.to_owned(), MAX_COMMENT));
    }
    match rule.comment.replace(text.to_owned()) {
        Some(_) => Err(Problem::Twice("--comment".to_owned())),
        None => Ok(()),
    }
}

/// `80` or `80:90`.
fn read_range(text: &str) -> Result<(u16, u16), Problem> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err(Problem::unknown(text)),
    }
}

fn read_ports(text: &str) -> Result<Vec<(u16, u16)>, Problem> {
    let places: usize = text.split(',').map(|port| if port.contains(':') { 2 } else { 1 }).sum();
    if places > MAX_MULTIPORT {
        return Err(Problem::TooManyPorts);
    }
    text.split(',').map(read_range).collect()
}

fn read_states(text: &str) -> Result<Vec<ConntrackState>, Problem> {
    let read = |state: &str| match state {
        "NEW" => Ok(ConntrackState::New),
        "ESTABLISHED" => Ok(ConntrackState::Established),
        "RELATED" => Ok(ConntrackState::Related),
        _ => Err(Problem::unknown(state)),
    };
    text.split(',').map(read).collect()
}

/// `0x1/0x3`; without a mask, all bits count.
fn read_mark(text: &str) -> Result<(u32, u32), Problem> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Ok((read_bits(value)?, read_bits(mask)?))
}

fn read_bits(text: &str) -> Result<u32, Problem> {
    let bits = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    bits.map_err(|_| Problem::unknown(text))
}

/// All options are converted to one operation: clear the mask's bits, then flip the value's bits.
fn read_set_mark(option: &str, words: &mut RuleWords<'_>) -> Result<RuleTarget, Problem> {
    let text = words.value(option)?;
    let (value, mask) = match option {
        "--set-xmark" => read_mark(text)?,
        "--set-mark" => read_mark(text).map(|(value, mask)| (value, mask | value))?,
        "--or-mark" => read_bits(text).map(|bits| (bits, bits))?,
        "--and-mark" => read_bits(text).map(|bits| (0, !bits))?,
        "--xor-mark" => read_bits(text).map(|bits| (bits, 0))?,
        _ => return Err(Problem::unknown(option)),
    };
    Ok(RuleTarget::Mark { value, mask })
}
