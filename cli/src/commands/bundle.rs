//! `weir bundle`: everything that a bug report needs, in one file.
//!
//! Problem: a report without the state of the node leads to questions, and a report with too much of it cannot be
//! published. Strategy: each part is collected by itself ([`parts`]), so a missing privilege or a dead agent costs only
//! its own parts, and `README.txt` and the terminal name them. Secrets are never read: kubeconfigs, tokens,
//! environment variables. Policies are only included with `--with-policies`, and `--anonymize` replaces names and
//! addresses ([`pseudonyms`]).

mod archive;
mod host;
mod parts;
mod pseudonyms;

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::CommandOutcome;
use crate::args::BundleArgs;
use crate::build_info;
use crate::output_file;
use crate::page::{self, OutputPage};
use crate::time::rfc_3339;
use archive::Archive;
use parts::BundlePart;

/// The directory in the archive.
const DIRECTORY: &str = "weir-bundle";

pub(crate) fn run(arguments: &BundleArgs) -> Result<CommandOutcome> {
    let to_stdout = arguments.output == Path::new("-");
    if to_stdout && page::is_terminal() {
        bail!("the bundle is not text: redirect standard output, or name a file with --output FILE");
    }
    let parts = parts::collect(arguments);
    let mut archive = Archive::new();
    archive.file(&format!("{DIRECTORY}/README.txt"), readme(arguments, &parts).as_bytes());
    for part in &parts {
        if let Ok(contents) = &part.contents {
            archive.file(&format!("{DIRECTORY}/{}", part.name), contents);
        }
    }
    let bytes = archive.end()?;
    if to_stdout {
        page::print_bytes(&bytes).context("cannot write to standard output")?;
    } else {
        output_file::replace_private(&arguments.output, &bytes)
            .with_context(|| format!("cannot write {}", arguments.output.display()))?;
    }
    // Standard output may be the bundle.
    summary(arguments, &parts, bytes.len()).print_to_stderr();
    Ok(CommandOutcome::Clean)
}

fn summary(arguments: &BundleArgs, parts: &[BundlePart], bytes: usize) -> OutputPage {
    let mut page = OutputPage::new();
    for part in parts {
        match &part.contents {
            Ok(_) => page.line(format_args!("  {:22} {}", part.name, part.about)),
            Err(why) => page.line(format_args!("  {:22} missing: {why}", part.name)),
        }
    }
    let there = parts.iter().filter(|it| it.contents.is_ok()).count();
    let path = arguments.output.display();
    page.line(format_args!(
        "{path}: {there} of {} parts, {bytes} bytes; look at it before you publish it",
        parts.len()
    ));
    page
}

/// The text that lists the contents of the bundle and the data that was left out.
fn readme(arguments: &BundleArgs, parts: &[BundlePart]) -> String {
    let mut lines = vec![
        format!("Made by `weir bundle` {} at {}.", build_info::VERSION, rfc_3339(std::time::SystemTime::now())),
        String::new(),
        "In this bundle:".to_owned(),
    ];
    lines.extend(parts.iter().filter(|it| it.contents.is_ok()).map(|it| format!("  {:22} {}", it.name, it.about)));
    let missing: Vec<&BundlePart> = parts.iter().filter(|it| it.contents.is_err()).collect();
    if !missing.is_empty() {
        lines.extend([String::new(), "Missing:".to_owned()]);
        let why = |it: &BundlePart| it.contents.as_ref().err().cloned().unwrap_or_default();
        lines.extend(missing.iter().map(|it| format!("  {:22} {}", it.name, why(it))));
    }
    let names = match arguments.anonymize {
        true => {
            "Names, addresses and messages that may contain them are replaced: the same one has the same replacement in \
             every part."
        }
        false => "Names of pods, policies and interfaces, and addresses, are as they are on the node (--anonymize).",
    };
    lines.extend([
        String::new(),
        "Never in a bundle: kubeconfigs, tokens, keys, environment variables, contents of packets, the seeds of the"
            .into(),
        "flow table's hash.".into(),
        names.to_owned(),
        match arguments.with_policies {
            true => "The artifact has the policies as they were compiled (--with-policies).".to_owned(),
            false => "The texts of policies are left out (--with-policies).".to_owned(),
        },
    ]);
    if parts.iter().any(|it| it.name == parts::EVENTS && it.contents.is_ok()) {
        let taken = "were taken from the kernel: no `weir monitor` shows them later.";
        lines.push(format!("The records of dropped packets in {} {taken}", parts::EVENTS));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_names_what_is_there_and_what_is_missing() {
        let arguments = parts::tests::arguments(&["--anonymize"]);
        let part = |name, contents| BundlePart { name, about: "about it", contents };
        let there = ["status.json", parts::EVENTS].map(|name| part(name, Ok(b"{}".to_vec())));
        let parts: Vec<BundlePart> =
            there.into_iter().chain([part("metrics.txt", Err("no agent answers".to_owned()))]).collect();
        let text = readme(&arguments, &parts);
        let (there, missing) = text.split_once("Missing:").expect("something is missing");
        assert!(there.contains("status.json") && !there.contains("metrics.txt"), "{text}");
        assert!(missing.contains("metrics.txt            no agent answers"), "{text}");
        assert!(
            text.contains("were taken from the kernel") && text.contains("are replaced") && text.contains("left out"),
            "{text}"
        );
    }
}
