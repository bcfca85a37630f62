//! Writes tar files that every reader accepts (ustar): headers of 512 bytes, and contents padded to blocks of 512
//! bytes.

const BLOCK: usize = 512;

/// A tar file that is being written.
#[derive(Debug, Default)]
pub struct Tar {
    bytes: Vec<u8>,
    /// The time of every entry, in seconds since 1970.
    time: u64,
}

impl Tar {
    /// An empty tar file.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty tar file whose entries have this time, in seconds since 1970.
    pub fn dated(time: u64) -> Self {
        Self { time, ..Self::default() }
    }

    /// Adds a file; its directory must be added before.
    pub fn file(&mut self, path: &str, contents: &[u8], mode: u32) {
        self.header(path, "", contents.len(), mode, b'0');
        self.bytes.extend(contents);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str) {
        self.header(&format!("{path}/"), "", 0, 0o755, b'5');
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.header(path, to, 0, 0o777, b'2');
    }

    /// Ends the file with two empty blocks.
    pub fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }

    /// Writes a header; the owner is root.
    fn header(&mut self, path: &str, link: &str, size: usize, mode: u32, kind: u8) {
        assert!(path.len() <= 100, "the path is too long for a ustar header: {path}");
        let mut header = [0; BLOCK];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{size:011o}"));
        put(136, &format!("{:011o}", self.time));
        put(148, "        ");
        put(157, link);
        put(257, "ustar\x0000");
        header[156] = kind;
        let sum: u32 = header.iter().copied().map(u32::from).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(header);
    }
}
