//! Whether an artifact may be attached: by whom it was signed, and what it enforces.
//!
//! The digest in an artifact is written by its last writer, so it says nothing of who that was. A signature says that the
//! holder of a key let these bytes pass, not what they enforce, nor that they are the newest. A comparison with the
//! policies says what they enforce: the verifier tries packets and has a witness for each difference, and since a program
//! may tell packets apart that the verifier does not tell apart, programs and maps must also be those that this weir
//! makes of the policies itself.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use minisign_verify::{PublicKey, Signature};
use weir_compiler::artifact::Artifact;
use weir_compiler::verify;

use super::super::Outcome;
use super::super::verify::{is_as_compiled, line, print_differences};
use crate::args::{Global, Paths};
use crate::failure::{self, with_hint};
use crate::{page, read};

/// What minisign appends to a file's name.
const EXTENSION: &str = ".minisig";

const SIGN: &str = "sign it with `minisign -S -s SECRET-KEY -m ARTIFACT`; nothing was attached";

/// Refuses bytes that the key's owner has not signed.
pub(super) fn check_signature(global: &Global, artifact: &Path, bytes: &[u8], key: &Path) -> Result<()> {
    let public = read_text(key).and_then(|text| {
        public_key(&text).with_context(|| format!("{} is no public key of minisign", key.display()))
    })?;
    let beside = signature_of(artifact);
    let text = std::fs::read_to_string(&beside).map_err(|error| {
        with_hint(format!("there is no signature: cannot read {}: {error}", beside.display()), SIGN)
    })?;
    let signature =
        Signature::decode(&text).with_context(|| format!("{} is no signature of minisign", beside.display()))?;
    // Signatures that minisign made before it hashed files first are as good.
    public.verify(bytes, &signature, true).map_err(|error| {
        let message = format!("{} is not signed by the key in {}: {error}", artifact.display(), key.display());
        with_hint(message, "the artifact was changed, or it is another's; nothing was attached")
    })?;
    if !global.quiet {
        page::print(format_args!("signed: {}", signature.trusted_comment()))?;
    }
    Ok(())
}

/// As in the file that minisign writes, or its second line alone.
fn public_key(text: &str) -> Result<PublicKey, minisign_verify::Error> {
    match text.trim().lines().count() {
        0 | 1 => PublicKey::from_base64(text.trim()),
        _ => PublicKey::decode(text),
    }
}

fn signature_of(artifact: &Path) -> PathBuf {
    let mut name = artifact.as_os_str().to_owned();
    name.push(EXTENSION);
    name.into()
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Refuses an artifact that does not enforce these policies, or may do something else beside.
pub(super) fn check_policies(global: &Global, artifact: &Artifact, paths: &Paths) -> Result<Outcome> {
    let Some(read) = read::read_sound(global, paths)? else { return Ok(Outcome::Failed) };
    let report = verify::verify(artifact, &read.cluster);
    print_differences(&report);
    if !report.is_verified() {
        let hint = "nothing was attached; compile the policies again";
        failure::print(&with_hint("the artifact does not enforce these policies", hint));
        return Ok(Outcome::Findings);
    }
    if !is_as_compiled(artifact, &read.cluster)? {
        failure::print(&with_hint(
            "the artifact's programs or maps are not those that this weir makes of these policies",
            "nothing was attached; compile the policies again with this version of weir",
        ));
        return Ok(Outcome::Findings);
    }
    if !global.quiet {
        page::print(line(&report))?;
    }
    Ok(Outcome::Clean)
}
