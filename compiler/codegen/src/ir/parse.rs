//! Text → program. The inverse of printing.

use super::{Block, BlockId, Condition, DecisionProgram, Fact, Inst, Terminator, Value, VerdictReason};
use weir_classes::SourceId;
use weir_model::Direction;
use weir_model::eval::Verdict;
use weir_objects::address::Family;

/// Why a text is not a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct IrParseError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The error message.
    pub message: String,
}

/// Reads a program. `#` begins a comment.
pub fn parse(text: &str) -> Result<DecisionProgram, IrParseError> {
    let mut program: Option<DecisionProgram> = None;
    let mut open: Option<(Option<SourceId>, Vec<Inst>)> = None;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let fail = |message: &str| IrParseError { line: line_number, message: message.to_owned() };
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let Some(known) = &mut program else {
            program = Some(DecisionProgram {
                direction: header(&words).ok_or_else(|| fail("no `program`"))?,
                blocks: vec![],
            });
            continue;
        };
        match (label(&words), &mut open) {
            (Some((id, source)), None) if id == known.blocks.len() => open = Some((source, Vec::new())),
            (Some(_), None) => return Err(fail("blocks are numbered in order")),
            (Some(_), Some(_)) => return Err(fail("the block before does not end")),
            (None, None) => return Err(fail("no block is open")),
            (None, Some((source, insts))) => {
                if let Some(inst) = inst(&words) {
                    insts.push(inst);
                } else {
                    let end = end(&words).ok_or_else(|| fail("neither an instruction nor an end"))?;
                    known.blocks.push(Block { insts: std::mem::take(insts), end, source: *source });
                    open = None;
                }
            }
        }
    }
    let lines = text.lines().count();
    let fail = |message: &str| IrParseError { line: lines, message: message.to_owned() };
    if open.is_some() {
        return Err(fail("the last block does not end"));
    }
    program.ok_or_else(|| fail("no `program`"))
}

fn header(words: &[&str]) -> Option<Direction> {
    match words {
        ["program", "ingress"] => Some(Direction::Ingress),
        ["program", "egress"] => Some(Direction::Egress),
        _ => None,
    }
}

/// `b3:`, or `b3: from s2`
fn label(words: &[&str]) -> Option<(usize, Option<SourceId>)> {
    let (word, source) = match words {
        [word] => (word, None),
        [word, "from", source] => (word, Some(SourceId(source.strip_prefix('s')?.parse().ok()?))),
        _ => return None,
    };
    Some((block(word.strip_suffix(':')?)?.index(), source))
}

fn inst(words: &[&str]) -> Option<Inst> {
    let (to, rest) = match words {
        [to, "=", rest @ ..] => (value(to)?, rest),
        _ => return None,
    };
    Some(match rest {
        ["const", number] => Inst::Const(to, number.parse().ok()?),
        ["class4", of] => Inst::Class(to, Family::V4, value(of)?),
        ["class6", of] => Inst::Class(to, Family::V6, value(of)?),
        ["prefix4", of] => Inst::Prefix(to, Family::V4, value(of)?),
        ["prefix6", of] => Inst::Prefix(to, Family::V6, value(of)?),
        ["row", subject, peer] => Inst::Row(to, value(subject)?, value(peer)?),
        ["default", subject] => Inst::Default(to, value(subject)?),
        ["atom", protocol, port] => Inst::Atom(to, value(protocol)?, value(port)?),
        [word] => Inst::Fact(to, Fact::named(word)?),
        _ => return None,
    })
}

fn end(words: &[&str]) -> Option<Terminator> {
    Some(match words {
        ["jump", to] => Terminator::Jump(block(to)?),
        ["allow", reason] => Terminator::Verdict(Verdict::Allow, VerdictReason::named(reason)?),
        ["deny", reason] => Terminator::Verdict(Verdict::Deny, VerdictReason::named(reason)?),
        ["if", test @ .., then, otherwise] => Terminator::If(self::test(test)?, block(then)?, block(otherwise)?),
        _ => return None,
    })
}

fn test(words: &[&str]) -> Option<Condition> {
    Some(match words {
        [of, "==", number] => Condition::Equal(value(of)?, number.parse().ok()?),
        [of, "<", number] => Condition::Less(value(of)?, number.parse().ok()?),
        [of, "is", address] => Condition::Is(value(of)?, address.parse().ok()?),
        [set, "has", atom] => Condition::Has(value(set)?, value(atom)?),
        [set, "staged", atom] => Condition::Audit(value(set)?, value(atom)?),
        [set, "full"] => Condition::Full(value(set)?),
        _ => return None,
    })
}

fn value(word: &str) -> Option<Value> {
    Some(Value(word.strip_prefix('v')?.parse().ok()?))
}

fn block(word: &str) -> Option<BlockId> {
    Some(BlockId(word.strip_prefix('b')?.parse().ok()?))
}
