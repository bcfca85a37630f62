//! `!!binary`: base64, as Go's standard decoder accepts it.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

/// With padding. The unused bits of the last symbol may be set.
const GO: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// The bytes as text; each byte that is not UTF-8 is replaced, as in Go's JSON writer.
pub(super) fn decode(text: &str) -> Option<String> {
    let bytes = GO.decode(text.replace(['\n', '\r'], "")).ok()?;
    let mut decoded = String::new();
    for chunk in bytes.utf8_chunks() {
        decoded.push_str(chunk.valid());
        decoded.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Some(decoded)
}
