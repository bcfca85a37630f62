//! Commands in another mount namespace than the machine's, like those of `ip netns exec`.

use crate::By;
use crate::enforce::{ask, pins, weir};
use crate::probe::Protocol::Tcp;
use crate::stage::Stage;
use crate::topology::Layout;
use weir_runtime::skip;

/// Runs `weir` in a mount namespace where the bpf file system is hidden by another mount.
fn hidden(stage: &Stage, arguments: &[&str], bpffs: &str) -> Result<String, crate::Error> {
    let (over, weir) = (stage.place.bpffs(), weir());
    let mut words = vec!["--mount", "sh", "-c", "mount -t tmpfs none \"$0\" && exec \"$@\"", over.to_str().unwrap()];
    words.push(weir.to_str().unwrap());
    words.extend(arguments);
    words.extend(["--bpffs", bpffs]);
    stage.net.nodes[0].space.run("unshare", &words, "")
}

#[test]
fn pins_survive_a_command_in_its_own_mount_namespace() {
    skip!(unless crate::privilege());
    let stage = Stage::new(By::Programs, Layout::Routed);
    let node = &stage.net.nodes[0];
    ask(node, &stage.place, &["detach"]).unwrap();
    stage.between("other", "server", Tcp, 80, true);
    let (artifact, bpffs) = (stage.place.file("here.o"), pins(&stage.place, node));
    let endpoints: Vec<String> = node.pods.iter().map(|pod| format!("{}={}", pod.name, pod.interface)).collect();
    let mut arguments = vec!["attach", artifact.to_str().unwrap()];
    arguments.extend(endpoints.iter().flat_map(|it| ["--endpoint", it]));
    hidden(&stage, &arguments, bpffs.to_str().unwrap()).unwrap();
    // The command has ended, and its mounts with it.
    stage.between("client", "server", Tcp, 80, true);
    stage.between("other", "server", Tcp, 80, false);
    ask(node, &stage.place, &["status"]).unwrap();
    hidden(&stage, &["status"], bpffs.to_str().unwrap()).unwrap();
}

#[test]
fn attach_without_a_bpf_file_system_fails_and_mounts_nothing() {
    skip!(unless crate::privilege());
    let stage = Stage::new(By::Programs, Layout::Routed);
    let (artifact, nowhere) = (stage.place.file("here.o"), stage.place.file("nowhere"));
    let arguments = ["attach", artifact.to_str().unwrap()];
    let error = hidden(&stage, &arguments, nowhere.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("exit status: 2") && error.contains("is not in a bpf file system"), "{error}");
    assert!(error.contains("nsenter --net=/run/netns/NS weir"), "{error}");
    assert!(!nowhere.exists());
}
