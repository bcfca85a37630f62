//! Decoding: for any bytes there is a result, and every finding points into the bytes.

use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::diagnostic::FindingPlace;
use weir_objects::k8s::Object;

/// The decoded objects, if the text was accepted.
///
/// # Panics
/// If a finding points to nothing. This is the error that the fuzzer looks for.
pub fn read(text: &[u8], kind: InputKind) -> Option<Vec<Object>> {
    let input = Input { name: "input".to_owned(), bytes: text.to_vec(), kind };
    let (decoded, diagnostics) =
        decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
    for diagnostic in diagnostics.iter() {
        for label in std::iter::once(&diagnostic.primary).chain(&diagnostic.secondary) {
            match &label.place {
                FindingPlace::Field(origin)
                | FindingPlace::FieldName(origin)
                | FindingPlace::FirstFieldName(origin) => {
                    assert!(decoded.sources.object(origin.object).is_some(), "{diagnostic:?} is about no object");
                }
                FindingPlace::Text(place) => {
                    let end = decoded.sources.file(place.file).text.len();
                    let span = place.span;
                    assert!(span.start <= span.end && span.end as usize <= end, "{diagnostic:?} is beyond the text");
                }
            }
        }
    }
    (!diagnostics.has_errors()).then_some(decoded.objects)
}
