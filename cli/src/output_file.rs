//! Files that commands write.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Result;

use crate::failure::with_hint;

/// Only the owner reads and writes.
const PRIVATE: u32 = 0o600;

/// Writes a temporary file and renames it, so that a reader sees either the whole new file or the previous one. A
/// path that exists and is no regular file (a device, a pipe) is written to directly.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        return std::fs::write(path, bytes);
    }
    let part = part_name(path);
    File::create_new(&part).and_then(|mut file| file.write_all(bytes))?;
    std::fs::rename(&part, path)
}

/// Like [`replace`], for a file that only its owner may read. A path that exists and is no regular file is refused:
/// someone else may have made it, to read the contents or to have them written elsewhere.
#[cfg(feature = "enforce")]
pub(crate) fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    if path.symlink_metadata().is_ok_and(|it| !it.is_file()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is not a regular file"));
    }
    let part = part_name(path);
    write_with_permissions(Path::new(&part), bytes, Permissions::from_mode(PRIVATE))?;
    std::fs::rename(&part, path)
}

/// Fails if one of the files exists: a user may have edited it.
pub(crate) fn refuse_existing<'p>(paths: impl Iterator<Item = &'p Path>, hint: &str) -> Result<()> {
    let existing = paths.filter(|it| it.symlink_metadata().is_ok());
    let names: Vec<String> = existing.map(|it| it.display().to_string()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let verb = if names.len() == 1 { "exists" } else { "exist" };
    Err(with_hint(format!("nothing was written, because {} {verb} already", names.join(", ")), hint))
}

/// Replaces a regular file by one with the same permissions.
pub(crate) fn replace_with_same_permissions(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let old = std::fs::metadata(path)?;
    if !old.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let part = part_name(path);
    write_with_permissions(Path::new(&part), bytes, old.permissions())?;
    std::fs::rename(&part, path)
}

/// Writes a new file. It is private until it has the permissions, so that no one else can open it before.
pub(crate) fn write_with_permissions(
    path: &Path,
    mut contents: impl io::Read,
    permissions: Permissions,
) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path)?;
    io::copy(&mut contents, &mut file)?;
    file.set_permissions(permissions)
}

/// The name of the temporary file. A file or link with that name is removed: a link must not be followed, because
/// another user may own the directory.
fn part_name(path: &Path) -> OsString {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    _ = std::fs::remove_file(&beside);
    beside
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_temporary_file_has_the_permissions_before_the_rename() {
        let path = std::env::temp_dir().join(format!("weir-output-file-{}", std::process::id()));
        let part = part_name(&path);
        // No umask gives these permissions to a file by default.
        for mode in [0o600, 0o460] {
            write_with_permissions(Path::new(&part), &b"x"[..], Permissions::from_mode(mode)).expect("written");
            let written = std::fs::metadata(&part).expect("a file").permissions().mode();
            std::fs::remove_file(&part).expect("removed");
            assert_eq!(written & 0o777, mode);
        }
    }

    #[cfg(feature = "enforce")]
    #[test]
    fn private_file_replaces_only_a_regular_file() {
        let directory = std::env::temp_dir().join(format!("weir-output-private-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (file, link) = (directory.join("file"), directory.join("link"));
        std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
        let refused = [&link, &directory].map(|path| replace_private(path, b"x").map_err(|error| error.kind()));
        let written = [b"x", b"y"].map(|bytes| replace_private(&file, bytes).is_ok());
        let contents = std::fs::read(&file);
        std::fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(refused, [Err(io::ErrorKind::AlreadyExists); 2]);
        assert_eq!((written, contents.ok()), ([true; 2], Some(b"y".to_vec())));
    }
}
