//! Bytes from a node → lines, within a limit.

/// Collects the lines of a stream. A line that is longer than the limit is given in pieces, so that a node which sends
/// no line break cannot fill the memory.
#[derive(Debug)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    longest: usize,
}

impl LineBuffer {
    pub(super) fn new(longest: usize) -> Self {
        Self { bytes: Vec::new(), longest }
    }

    /// Adds bytes, and calls `take` with each line that is complete.
    pub(super) fn add(&mut self, bytes: &[u8], mut take: impl FnMut(String)) {
        for part in bytes.split_inclusive(|it| *it == b'\n') {
            for piece in part.chunks(self.longest.max(1)) {
                self.bytes.extend_from_slice(piece);
                if piece.ends_with(b"\n") || self.bytes.len() >= self.longest {
                    take(self.take());
                }
            }
        }
    }

    /// The rest, after the last line break.
    pub(super) fn rest(&mut self) -> Option<String> {
        Some(self.take()).filter(|it| !it.is_empty())
    }

    fn take(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.bytes).trim_end_matches(['\n', '\r']).to_owned();
        self.bytes.clear();
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_from_any_pieces() {
        let text = "one\ntwo\r\n\nlast";
        for size in 1..text.len() {
            let (mut buffer, mut lines) = (LineBuffer::new(100), Vec::new());
            text.as_bytes().chunks(size).for_each(|it| buffer.add(it, |line| lines.push(line)));
            lines.extend(buffer.rest());
            assert_eq!(lines, ["one", "two", "", "last"]);
        }
    }

    #[test]
    fn line_without_an_end_uses_no_more_memory_than_the_limit() {
        let (mut buffer, mut longest) = (LineBuffer::new(10), 0);
        (0..100).for_each(|_| buffer.add(&[b'x'; 7], |line| longest = longest.max(line.len())));
        assert!(buffer.bytes.len() < 10 && longest < 20, "{longest}");
    }
}
