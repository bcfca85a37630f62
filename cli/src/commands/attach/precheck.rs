//! Checks before an artifact is attached: its signature, and the policies that it enforces.
//!
//! The checksum in an artifact proves nothing about its author: anyone who changes the file can compute it again. A
//! signature proves that the owner of a key approved these bytes. It does not prove that they are the newest, nor which
//! policies they enforce. For that, the verifier compares the artifact with the policies and has a witness packet for
//! each difference. A malicious program can treat packets specially that the verifier does not try. Therefore programs
//! and maps must also equal those that this weir compiles from the policies.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use minisign_verify::{PublicKey, Signature};
use weir_artifact::Artifact;

use super::super::CommandOutcome;
use super::super::verify::{is_as_compiled, line, print_differences, watched};
use crate::args::{GlobalArgs, InputPaths};
use crate::failure::{self, with_hint};
use crate::page::{self, Progress};
use crate::read;

/// The suffix of minisign's signature files.
const EXTENSION: &str = ".minisig";

const SIGN: &str = "sign it with `minisign -S -s SECRET-KEY -m ARTIFACT`; nothing was attached";

/// Fails unless the owner of the key has signed the bytes. Returns the comment that the owner has signed with them.
pub(super) fn check_signature(artifact: &Path, bytes: &[u8], key: &Path) -> Result<String> {
    let public = read_text(key).and_then(|text| {
        public_key(&text).with_context(|| format!("{} is not a minisign public key", key.display()))
    })?;
    let beside = signature_of(artifact);
    let text = std::fs::read_to_string(&beside).map_err(|error| {
        with_hint(format!("there is no signature: cannot read {}: {error}", beside.display()), SIGN)
    })?;
    let signature =
        Signature::decode(&text).with_context(|| format!("{} is not a minisign signature", beside.display()))?;
    // `true`: also takes minisign's older kind of signature, which is over the file itself and not over its hash.
    public.verify(bytes, &signature, true).map_err(|error| {
        let message = format!("{} is not signed by the key in {}: {error}", artifact.display(), key.display());
        with_hint(message, "the artifact was changed, or signed with another key; nothing was attached")
    })?;
    Ok(signature.trusted_comment().to_owned())
}

/// A public key: either the file that minisign writes, or only its second line.
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

/// Refuses an artifact that does not enforce these policies, or whose code is not the code that we would compile.
/// With `prints`, prints the result of the verification.
pub(super) fn check_policies(
    global: &GlobalArgs,
    artifact: &Artifact,
    paths: &InputPaths,
    prints: bool,
) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, paths)? else { return Ok(CommandOutcome::Failed) };
    let report = watched(artifact, &read.cluster, &Progress::new(global.quiet, "verifying"));
    print_differences(&report);
    if !report.is_verified() {
        let hint = "nothing was attached; compile the policies again";
        failure::print(&with_hint("the artifact does not enforce these policies", hint));
        return Ok(CommandOutcome::Findings);
    }
    if !is_as_compiled(artifact, &read.cluster)? {
        failure::print(&with_hint(
            "the artifact's programs or maps are not those that this version of weir compiles from the policies",
            "nothing was attached; compile the policies again with this version of weir",
        ));
        return Ok(CommandOutcome::Findings);
    }
    if prints {
        page::print(line(&report))?;
    }
    Ok(CommandOutcome::Clean)
}
