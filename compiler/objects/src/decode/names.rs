//! The syntax of names, labels and times, as `apimachinery` checks it. Lengths are in bytes.
//!
//! Each function returns the problem as the rest of a sentence that begins with the quoted text.

/// A DNS-1123 subdomain: the names of most objects.
pub(super) fn dns_subdomain(text: &str) -> Result<(), &'static str> {
    if text.len() > 253 {
        return Err("is longer than 253 bytes");
    }
    match text.split('.').all(is_dns_part) {
        true => Ok(()),
        false => {
            Err("must consist of lower case letters, digits, `-` and `.`, and start and end with a letter or digit")
        }
    }
}

/// A DNS-1123 label: the names of namespaces.
pub fn dns_label(text: &str) -> Result<(), &'static str> {
    if text.len() > 63 {
        return Err("is longer than 63 bytes");
    }
    is_dns_part(text)
        .then_some(())
        .ok_or("must consist of lower case letters, digits and `-`, and start and end with a letter or digit")
}

/// A label key: `name` or `prefix/name`.
pub fn label_key(text: &str) -> Result<(), &'static str> {
    let mut parts = text.split('/');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    if parts.next().is_some() {
        return Err("has more than one `/`");
    }
    let name = second.unwrap_or(first);
    if second.is_some() && dns_subdomain(first).is_err() {
        return Err("has a prefix (before the `/`) that is not a DNS subdomain");
    }
    if name.is_empty() {
        return Err("has an empty name");
    }
    if name.len() > 63 {
        return Err("has a name that is longer than 63 bytes");
    }
    is_label_text(name)
        .then_some(())
        .ok_or("must consist of letters, digits, `-`, `_` and `.`, and start and end with a letter or digit")
}

/// A label value; empty is valid.
pub fn label_value(text: &str) -> Result<(), &'static str> {
    if text.len() > 63 {
        return Err("is longer than 63 bytes");
    }
    (text.is_empty() || is_label_text(text))
        .then_some(())
        .ok_or("must consist of letters, digits, `-`, `_` and `.`, and start and end with a letter or digit")
}

/// The name of a container port.
pub fn port_name(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.len() > 15 {
        return Err("is longer than 15 bytes");
    }
    if !text.bytes().all(|byte| is_lower(byte) || byte == b'-') {
        return Err("may only hold lower case letters, digits and `-`");
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("must hold at least one letter");
    }
    if text.contains("--") {
        return Err("must not hold two `-` in a row");
    }
    if text.starts_with('-') || text.ends_with('-') { Err("must not begin or end with `-`") } else { Ok(()) }
}

/// Whether the text is a point in time of RFC 3339: `2026-01-31T09:30:00Z`.
pub(super) fn is_time(text: &str) -> bool {
    time_parts(text).is_some()
}

// Spec: `time.Parse(time.RFC3339, …)` of Go, which also accepts an hour of one digit.
fn time_parts(text: &str) -> Option<()> {
    let (date, clock) = text.split_once('T')?;
    let [year, month, day] = fields(date, "dddd-dd-dd")?;
    let (hour, rest) = clock.split_once(':')?;
    let [hour, ..] = fields(hour, "dd").or_else(|| fields(hour, "d"))?;
    let [minute, second, _] = fields(rest.get(..5)?, "dd:dd")?;
    let zone = fraction(rest.get(5..)?)?;
    let in_range = (1..=12).contains(&month) && (1..=days(year, month)).contains(&day);
    (in_range && hour < 24 && minute < 60 && second < 60 && is_zone(zone)).then_some(())
}

/// The text after an optional fraction of a second.
fn fraction(text: &str) -> Option<&str> {
    match text.strip_prefix(['.', ',']) {
        Some(rest) => {
            let zone = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
            (zone.len() < rest.len()).then_some(zone)
        }
        None => Some(text),
    }
}

fn is_zone(text: &str) -> bool {
    let offset = |text: &str| fields(text, "dd:dd").is_some_and(|[hour, minute, _]| hour <= 24 && minute <= 60);
    text == "Z" || text.strip_prefix(['+', '-']).is_some_and(offset)
}

/// Reads up to three numbers. In the pattern, `d` means a digit, and all other characters must match literally.
fn fields(text: &str, pattern: &str) -> Option<[u32; 3]> {
    if text.len() != pattern.len() {
        return None;
    }
    let (mut numbers, mut at) = ([0; 3], 0);
    for (byte, expected) in text.bytes().zip(pattern.bytes()) {
        match expected {
            b'd' if byte.is_ascii_digit() => {
                let number = numbers.get_mut(at)?;
                *number = *number * 10 + u32::from(byte - b'0');
            }
            b'd' => return None,
            _ if byte == expected => at += 1,
            _ => return None,
        }
    }
    Some(numbers)
}

fn days(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 31,
    }
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_dns_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|byte| is_lower(*byte)) && bytes.last().is_some_and(|byte| is_lower(*byte));
    ends && bytes.iter().all(|byte| is_lower(*byte) || *byte == b'-')
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()].into_iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric));
    ends && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: fn(&str) -> Result<(), &'static str>, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(rule(text), Ok(()), "{text}");
        }
        for text in bad {
            assert!(rule(text).is_err(), "{text}");
        }
    }

    #[test]
    fn subdomains_have_dots_and_labels_have_none() {
        check(dns_subdomain, &["a", "a.b-c.0", "0"], &["", "A", "a.", ".a", "a..b", "-a", "a-", "a_b", "ü"]);
        check(dns_label, &["a", "a-b", "0"], &["", "a.b", "A", "-a", "a-", &"a".repeat(64)]);
    }

    #[test]
    fn label_keys_may_have_one_prefix() {
        check(label_key, &["app", "A.b_C-d", "example.com/app"], &["", "/a", "a/", "a/b/c", "A/b", "-a", "a b"]);
        check(label_value, &["", "a", "A_b.C", "12"], &["-a", "a-", "a b", "a/b", &"a".repeat(64)]);
    }

    #[test]
    fn port_names_are_short_and_lower_case() {
        check(
            port_name,
            &["http", "a", "x-1", "abcdefghijklmno"],
            &["", "80", "Http", "a--b", "-a", "a-", "abcdefghijklmnop", "a_b"],
        );
    }

    #[test]
    fn times_are_rfc_3339() {
        for text in ["2026-01-31T09:30:00Z", "2024-02-29T23:59:59.123+02:00", "0001-01-01T0:00:00-24:00"] {
            assert!(is_time(text), "{text}");
        }
        for text in ["", "2026-01-31", "2026-02-29T00:00:00Z", "2026-01-31T24:00:00Z", "2026-01-31 09:30:00Z", "é"] {
            assert!(!is_time(text), "{text}");
        }
    }
}
