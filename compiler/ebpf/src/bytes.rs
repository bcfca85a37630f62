//! Writes into buffers, such as map values and packets.

/// Overwrites the bytes from `at` on. Bytes behind the buffer's end are dropped: values may come from a file, and a
/// value that is too short must not end the process.
pub fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    buffer.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
}
