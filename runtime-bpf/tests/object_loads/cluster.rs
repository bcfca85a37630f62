//! A small cluster, compiled: both families, prefixes, port ranges, a list.

use weir_artifact::{Artifact, Description, Digest, InputFile, SourceLine};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, compile};
use weir_ebpf::target::Target;
use weir_model::{Assumptions, resolve};
use weir_objects::decode;
use weir_testing::yaml::SHOP;

/// The file name in the instructions' line information.
pub(crate) const FILE: &str = "policies/shop.yaml";
/// The line of the rule in that file.
pub(crate) const RULE: &str = "- from: [{podSelector: {matchLabels: {app: job}}}]";

/// A kernel before 6.1, which limits the size of tables, and a later one.
pub(crate) const TARGETS: [Target; 2] = [Target::BASE, Target { kernel: (6, 1) }];

/// The artifact for a kernel; with this many further prefixes and single addresses in a list.
pub(crate) fn artifact(target: Target, listed: u32) -> Artifact {
    let text = format!("{SHOP}{}", list(listed));
    let bytes = text.clone().into_bytes();
    let digest = Digest::of(&bytes);
    let input = decode::Input { name: FILE.to_owned(), bytes, kind: decode::InputKind::Manifest };
    let options = decode::DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false };
    let (decoded, diagnostics) = decode::decode(vec![input], &options);
    assert!(!diagnostics.has_errors());
    let (cluster, _) = resolve::resolve(&decoded.objects, Assumptions::default());
    let options = CompileOptions { target, ..CompileOptions::default() };
    let compiled = compile(&cluster, &Scope::everything(&cluster), &options).unwrap();
    let number = text.lines().position(|line| line.trim() == RULE).unwrap() as u32 + 1;
    let locate = &mut |_: &_| Some(SourceLine::new(FILE, RULE, number));
    let complete = |description: &mut Description| description.inputs.push(InputFile { name: FILE.to_owned(), digest });
    compiled.artifact_of_files(&cluster, &options, locate, complete).unwrap()
}

fn list(listed: u32) -> String {
    if listed == 0 {
        return String::new();
    }
    let octets = |number: u32| (number >> 8 & 255, number & 255);
    let cidrs =
        (0..listed).map(octets).map(|(a, b)| format!("11.{a}.{b}.0/25, 12.{a}.{b}.7/32, '2001:{a:x}:{b:x}::/48'"));
    format!(
        "---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: many}}\nspec:\n  action: Deny\n  cidrs: [{}]\n",
        cidrs.collect::<Vec<_>>().join(", ")
    )
}
