//! For any bytes, `decode` returns a result, and its findings point into the bytes.
#![no_main]

use weir_objects::decode::InputKind;
use weir_fuzz::oracles::decoding::read;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for kind in [InputKind::Manifest, InputKind::DenyList] {
        let _ = read(bytes, kind);
    }
});
