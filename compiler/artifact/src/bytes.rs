//! Little-endian numbers into and out of bytes; reading is bounds-checked and never panics.

/// A growing sequence of bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Sink(pub(super) Vec<u8>);

impl Sink {
    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// A length or an index; the numbers that we write are far below four gigabytes.
    pub(super) fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    /// The length, then the bytes.
    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend(text.as_bytes());
    }

    /// Adds zeros up to a multiple of `to`.
    pub(super) fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }
}

/// The bytes that are not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteReader<'a>(pub(super) &'a [u8]);

impl<'a> ByteReader<'a> {
    /// The bytes from `offset` on.
    pub(super) fn at(bytes: &'a [u8], offset: u64) -> Option<Self> {
        bytes.get(usize::try_from(offset).ok()?..).map(Self)
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of following items of at least `each` bytes. Refuses more items than the rest can hold, so that a
    /// damaged count never makes the reader reserve memory.
    pub(super) fn count(&mut self, each: usize) -> Option<usize> {
        let count = usize::try_from(self.u32()?).ok()?;
        (count.checked_mul(each)? <= self.0.len()).then_some(count)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = self.count(1)?;
        str::from_utf8(self.take(length)?).ok()
    }
}

/// The text that begins at `offset` and ends before the next zero.
pub(super) fn c_text(strings: &[u8], offset: u32) -> Option<&str> {
    let tail = strings.get(usize::try_from(offset).ok()?..)?;
    let end = tail.iter().position(|byte| *byte == 0)?;
    str::from_utf8(tail.get(..end)?).ok()
}
