//! Files that commands write.

use std::io::{self, Write as _};
use std::path::Path;

/// Writes a temporary file and renames it, so that a reader sees either the whole new file or the previous one. A
/// path that exists and is no regular file (a device, a pipe) is written to directly.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        return std::fs::write(path, bytes);
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    // A link with that name must not be followed: another user may own the directory.
    _ = std::fs::remove_file(&beside);
    std::fs::File::create_new(&beside).and_then(|mut file| file.write_all(bytes))?;
    std::fs::rename(&beside, path)
}
