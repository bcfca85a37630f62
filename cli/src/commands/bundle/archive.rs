//! A compressed tar file (ustar), as every system unpacks it.

use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

const BLOCK: usize = 512;

/// A `.tar.gz` file that is being written.
pub(super) struct Archive {
    tar: Vec<u8>,
    seconds: u64,
}

impl Archive {
    /// An empty one, whose files have the present time.
    pub(super) fn new() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        Self { tar: Vec::new(), seconds }
    }

    /// Adds a file that only its owner may read. The path has less than 100 bytes.
    pub(super) fn file(&mut self, path: &str, contents: &[u8]) {
        debug_assert!(path.len() < 100, "{path} is too long for a header");
        self.tar.extend(header(path, contents.len(), self.seconds));
        self.tar.extend(contents);
        self.tar.resize(self.tar.len().next_multiple_of(BLOCK), 0);
    }

    /// Ends the file with two empty blocks, and compresses it.
    pub(super) fn end(mut self) -> io::Result<Vec<u8>> {
        self.tar.resize(self.tar.len() + 2 * BLOCK, 0);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&self.tar)?;
        gzip.finish()
    }
}

fn header(path: &str, size: usize, seconds: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, "0000600");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, &format!("{seconds:011o}"));
    // The checksum is that of a header with spaces in its place.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tar_unpacks_the_files() {
        let mut archive = Archive::new();
        let long = "x".repeat(1_000);
        archive.file("d/a.txt", b"one\n");
        archive.file("d/b.txt", long.as_bytes());
        let bytes = archive.end().expect("memory does not fail");
        for (path, expected) in [("d/a.txt", "one\n"), ("d/b.txt", &*long)] {
            let mut tar = Command::new("tar");
            let mut tar = tar
                .args(["-xzOf", "-", path])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("tar starts");
            tar.stdin.take().expect("it is piped").write_all(&bytes).expect("tar reads");
            let output = tar.wait_with_output().expect("it ends");
            assert_eq!((output.status.success(), String::from_utf8_lossy(&output.stdout).as_ref()), (true, expected));
        }
    }
}
