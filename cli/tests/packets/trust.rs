//! `weir attach --key` and `--verify` on a real kernel: a refused artifact does not change the generation in force.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weir_runtime::skip;

use crate::By;
use crate::attacks::{from, generation, policy};
use crate::enforce::{ask, pins, weir};
use crate::namespace::{Error, run};
use crate::probe::Protocol::Tcp;
use crate::stage::Stage;
use crate::topology::Layout;

/// Builds the stage; an error names a missing requirement.
fn stage() -> Result<Stage, Error> {
    crate::privilege()?;
    run(Command::new("minisign").arg("-v"), "")?;
    Ok(Stage::new(By::Programs, Layout::Routed))
}

/// A key pair: `NAME.pub`, `NAME.key`.
fn key(stage: &Stage, name: &str) -> [PathBuf; 2] {
    let files = ["pub", "key"].map(|it| stage.place.file(&format!("{name}.{it}")));
    run(Command::new("minisign").args(["-G", "-W", "-p"]).arg(&files[0]).arg("-s").arg(&files[1]), "").unwrap();
    files
}

fn sign(artifact: &Path, secret: &Path) {
    run(Command::new("minisign").args(["-S", "-t", "test", "-s"]).arg(secret).arg("-m").arg(artifact), "").unwrap();
}

/// Switches to an artifact; the endpoints are attached already.
fn attach(stage: &Stage, artifact: &Path, flag: &str, file: &Path) -> Result<String, Error> {
    let node = &stage.net.nodes[0];
    let mut command = node.space.command(weir());
    command.arg("attach").arg(artifact).arg("--bpffs").arg(pins(&stage.place, node)).arg(flag).arg(file);
    run(&mut command, "")
}

fn in_force(stage: &Stage) -> Value {
    let text = ask(&stage.net.nodes[0], &stage.place, &["status", "-o", "json"]).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["generation"].clone()
}

#[track_caller]
fn is_refused(stage: &Stage, artifact: &Path, flag: &str, file: &Path, why: &str) {
    let before = in_force(stage);
    let error = attach(stage, artifact, flag, file).expect_err("it is refused").to_string();
    assert!(error.contains(why) && error.contains("nothing was attached"), "{error}");
    assert_eq!(in_force(stage), before);
    stage.between("other", "server", Tcp, 80, false);
}

#[test]
fn unsigned_or_unverified_artifact_is_refused() {
    let stage = skip!(unless stage());
    let strict = generation(&stage, "strict", &policy("server", "Ingress", &from("client")));
    let loose = generation(&stage, "loose", &policy("server", "Ingress", "  ingress: [{}]\n"));
    let [public, secret] = key(&stage, "own");
    let [_, foreign] = key(&stage, "foreign");
    is_refused(&stage, &loose, "--key", &public, "there is no signature");
    sign(&strict, &secret);
    let answer = attach(&stage, &strict, "--key", &public).unwrap();
    assert!(answer.contains("signed: test\n") && answer.contains("in force"), "{answer}");
    stage.between("client", "server", Tcp, 80, true);
    let signature = |artifact: &Path| PathBuf::from(format!("{}.minisig", artifact.display()));
    std::fs::copy(signature(&strict), signature(&loose)).unwrap();
    is_refused(&stage, &loose, "--key", &public, "is not signed by the key");
    sign(&loose, &foreign);
    is_refused(&stage, &loose, "--key", &public, "is not signed by the key");
    let policies = stage.place.file("strict.yaml");
    is_refused(&stage, &loose, "--verify", &policies, "does not enforce these policies");
    let answer = attach(&stage, &strict, "--verify", &policies).unwrap();
    assert!(answer.contains("verified ") && answer.contains("in force"), "{answer}");
    stage.between("other", "server", Tcp, 80, false);
    // Without the checks, the artifacts come into force: so it was the checks that refused them.
    attach(&stage, &loose, "--hook", Path::new("auto")).unwrap();
    stage.between("other", "server", Tcp, 80, true);
}
