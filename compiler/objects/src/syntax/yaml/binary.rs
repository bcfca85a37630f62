//! `!!binary`: base64, as Go's standard decoder accepts it.

/// The bytes as text; bytes that are not UTF-8 are replaced, as in Go's JSON writer.
pub(super) fn decode(text: &str) -> Option<String> {
    let symbols: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    if !symbols.len().is_multiple_of(4) {
        return None;
    }
    let padding = symbols.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let data = symbols.get(..symbols.len() - padding)?;
    let mut bytes = Vec::with_capacity(data.len() * 3 / 4);
    for group in data.chunks(4) {
        let mut bits = 0_u32;
        for symbol in group {
            bits = bits << 6 | value(*symbol)?;
        }
        bits <<= 6 * (4 - group.len());
        let [_, triple @ ..] = bits.to_be_bytes();
        bytes.extend(triple.iter().take(group.len() - 1));
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn value(symbol: u8) -> Option<u32> {
    match symbol {
        b'A'..=b'Z' => Some(u32::from(symbol - b'A')),
        b'a'..=b'z' => Some(u32::from(symbol - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(symbol - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
