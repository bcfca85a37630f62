//! The meaning of a YAML scalar: the rules of `sigs.k8s.io/yaml` over `goyaml.v2`, which kubectl uses.
//!
//! Those are YAML 1.1 with exceptions: no base-60 numbers; `08` is 8 (no octal, so a float); `0o10`, `0b1` and `0x50`
//! in Go's notation; underscores anywhere in a number. Dates stay strings.

use std::fmt::Write as _;

/// A resolved scalar. A string is the text itself, so it is not repeated here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer beyond `i64`.
    Uint(u64),
    Float(f64),
    Str,
}

/// The prefix of YAML's own tags.
pub(super) const YAML: &str = "tag:yaml.org,2002:";

/// A plain scalar without a tag.
pub(super) fn plain(text: &str) -> Scalar {
    match text.as_bytes().first() {
        None => Scalar::Null,
        Some(b'+' | b'-' | b'0'..=b'9') => special_float(text).or_else(|| number(text)).unwrap_or(Scalar::Str),
        Some(b'.') => special_float(text).or_else(|| fraction(text)).unwrap_or(Scalar::Str),
        Some(b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~') => word(text),
        Some(_) => Scalar::Str,
    }
}

/// The value of a scalar with a tag, plain or quoted. Tags that are not YAML's own make strings.
///
/// # Errors
/// The kind of the text, if the tag requires another one.
pub(super) fn tagged(tag: &str, text: &str) -> Result<Scalar, &'static str> {
    let Some(tag) = tag.strip_prefix(YAML) else {
        return Ok(Scalar::Str);
    };
    match (tag, plain(text)) {
        ("null", Scalar::Null) => Ok(Scalar::Null),
        ("bool", scalar @ Scalar::Bool(_)) => Ok(scalar),
        ("int", scalar @ (Scalar::Int(_) | Scalar::Uint(_))) => Ok(scalar),
        ("float", Scalar::Int(number)) => Ok(Scalar::Float(number as f64)),
        ("float", scalar @ Scalar::Float(_)) => Ok(scalar),
        // There is no date type: a date is a string.
        ("timestamp", Scalar::Str) => Ok(Scalar::Str),
        ("null" | "bool" | "int" | "float" | "timestamp", other) => Err(other.kind()),
        _ => Ok(Scalar::Str),
    }
}

impl Scalar {
    /// The name of the kind in messages.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Int(_) | Self::Uint(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Str => "a string",
        }
    }
}

fn word(text: &str) -> Scalar {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Scalar::Bool(false),
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        _ => Scalar::Str,
    }
}

fn special_float(text: &str) -> Option<Scalar> {
    match text {
        ".nan" | ".NaN" | ".NAN" => Some(Scalar::Float(f64::NAN)),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Some(Scalar::Float(f64::INFINITY)),
        "-.inf" | "-.Inf" | "-.INF" => Some(Scalar::Float(f64::NEG_INFINITY)),
        _ => None,
    }
}

fn number(text: &str) -> Option<Scalar> {
    let plain = text.replace('_', "");
    integer(&plain).or_else(|| float(&plain)).or_else(|| signed_binary(&plain))
}

/// goyaml.v2 also takes `0b-11`, with the sign after the prefix.
fn signed_binary(text: &str) -> Option<Scalar> {
    i64::from_str_radix(text.strip_prefix("0b")?, 2).ok().map(Scalar::Int)
}

/// A number that begins with a point. As in Go, underscores are allowed only between digits.
fn fraction(text: &str) -> Option<Scalar> {
    let between = text.as_bytes().windows(3).all(|window| match window {
        [before, b'_', after] => before.is_ascii_digit() && after.is_ascii_digit(),
        _ => true,
    });
    if between && !text.ends_with('_') { float(&text.replace('_', "")) } else { None }
}

/// Go's `strconv.ParseInt(text, 0, 64)`, then `ParseUint`.
fn integer(text: &str) -> Option<Scalar> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => ("-", text.get(1..)?),
        b'+' => ("+", text.get(1..)?),
        _ => ("", text),
    };
    let (radix, digits) = radix(digits);
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    if let Ok(number) = i64::from_str_radix(&format!("{sign}{digits}"), radix) {
        return Some(Scalar::Int(number));
    }
    let number = u64::from_str_radix(digits, radix).ok().filter(|_| sign.is_empty())?;
    Some(Scalar::Uint(number))
}

/// The radix that the prefix names, and the digits after the prefix.
fn radix(digits: &str) -> (u32, &str) {
    let prefixes = [("0b", 2), ("0B", 2), ("0o", 8), ("0O", 8), ("0x", 16), ("0X", 16)];
    for (prefix, radix) in prefixes {
        if let Some(rest) = digits.strip_prefix(prefix) {
            return (radix, rest);
        }
    }
    match digits.strip_prefix('0') {
        Some(rest) if !rest.is_empty() => (8, rest),
        _ => (10, digits),
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`; `None` if it is not finite.
fn float(text: &str) -> Option<Scalar> {
    let shape = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    if !text.bytes().all(shape) {
        return None;
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Scalar::Float)
}

/// The text of a number that is a key: Go's `%g` of the number as a 32-bit float, as in `sigs.k8s.io/yaml`.
pub(super) fn float_key(number: f64) -> String {
    let short = number as f32;
    if short.is_nan() {
        return ".nan".to_owned();
    }
    if short.is_infinite() {
        return if short > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{short:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..6).contains(&exponent) {
        let mut key = mantissa.to_owned();
        let _ = write!(key, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
        return key;
    }
    format!("{short}")
}

#[cfg(test)]
mod tests;
