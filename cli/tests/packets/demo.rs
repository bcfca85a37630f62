//! `weir demo` with real packets. Nothing is left of it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};

use rustix::process::{Pid, Signal, kill_process};
use weir_runtime::skip;

use crate::enforce::weir;
use crate::namespace::run;

/// Each demo removes the leftovers that it finds. A test that makes leftovers itself has this lock alone, all others
/// share it.
static LEFTOVERS: RwLock<()> = RwLock::new(());

/// The number of a demo, from its output.
fn id_of(text: &str) -> &str {
    let (_, rest) = text.split_once("(weir-demo-").expect("the demo names its namespaces");
    &rest[..8]
}

/// Whether anything of a demo is on the machine.
fn is_left(id: &str) -> bool {
    let of_demo = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(&format!("weir-demo-{id}"));
    let namespaces = std::fs::read_dir("/run/netns").map(|it| it.flatten().any(|it| of_demo(&it.file_name())));
    namespaces.unwrap_or(false) || Path::new("/run/weir-demo").join(id).exists()
}

fn demo(arguments: &[&str]) -> Output {
    Command::new(weir()).arg("demo").args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Starts a demo and waits for a line that begins like this; returns the process and the demo's number.
fn begun(line: &str) -> (Child, String) {
    let mut child = Command::new(weir()).arg("demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    while !text.lines().last().is_some_and(|it| it.starts_with(line)) {
        assert_ne!(stdout.read_line(&mut text).unwrap(), 0, "it ends early: {text}");
    }
    // The demo may not find its reader gone before it is stopped.
    std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    let id = id_of(&text).to_owned();
    (child, id)
}

#[test]
fn demo_treats_packets_as_the_policies_say_and_removes_itself() {
    skip!(unless crate::privilege());
    let _shared = LEFTOVERS.read().unwrap_or_else(PoisonError::into_inner);
    let ended = demo(&[]);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    let (_, enforced) = text.split_once("2. The 5 policies").unwrap();
    // The last of them is the new connection after the change.
    assert_eq!((enforced.matches("   passes ").count(), enforced.matches("   dropped ").count()), (4, 5), "{text}");
    assert!(text.contains("generation 2 is in force at 4 pods, in place of 1"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!is_left(id_of(&text)), "{text}");
}

#[test]
fn demo_that_a_signal_stops_removes_itself() {
    skip!(unless crate::privilege());
    let _shared = LEFTOVERS.read().unwrap_or_else(PoisonError::into_inner);
    for signal in [Signal::INT, Signal::TERM] {
        let (child, id) = begun("2. ");
        assert!(is_left(&id), "it runs");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains("stopped by a signal"), "{said}");
        assert!(!is_left(&id), "{said}");
    }
}

#[test]
fn leftovers_of_a_killed_demo_are_removed_and_nothing_else() {
    skip!(unless crate::privilege());
    let _shared = LEFTOVERS.read().unwrap_or_else(PoisonError::into_inner);
    // A namespace of another owner, whose name looks like a demo's.
    let other = format!("weir-demo-{:08x}-other", std::process::id());
    run(Command::new("ip").args(["netns", "add", &other]), "").unwrap();
    let (mut child, id) = begun("2. ");
    child.kill().unwrap();
    child.wait().unwrap();
    // Another demo of this test may have removed it already.
    let ended = demo(&[]);
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    let is_other_left = Path::new("/run/netns").join(&other).exists();
    run(Command::new("ip").args(["netns", "del", &other]), "").unwrap();
    assert!(is_other_left && !is_left(&id));
}

#[test]
fn kept_demo_stays_in_force_until_it_is_removed() {
    skip!(unless crate::privilege());
    let _shared = LEFTOVERS.read().unwrap_or_else(PoisonError::into_inner);
    let ended = demo(&["--keep"]);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    let id = id_of(&text).to_owned();
    assert!(is_left(&id));
    // The command that it prints.
    let line = text.lines().find(|it| it.contains(" weir status ")).unwrap().trim();
    let line = line.replace(" weir ", &format!(" {} ", weir().display()));
    let words: Vec<&str> = line.split(' ').collect();
    let status = run(Command::new(words[0]).args(&words[1..]), "").unwrap();
    assert!(status.contains("shop/db-0"), "{status}");
    assert_eq!(demo(&["--remove", &id]).status.code(), Some(0));
    assert!(!is_left(&id));
    assert_eq!(demo(&["--remove", &id]).status.code(), Some(2), "there is no such demo any more");
}

#[test]
fn demo_without_ip_says_what_to_install() {
    skip!(unless crate::privilege());
    let _shared = LEFTOVERS.read().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(weir());
    let ended = command.arg("demo").env("PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("install iproute2") && said.contains("weir demo --vm"), "{said}");
}

#[test]
fn a_leftover_that_cannot_be_removed_does_not_stop_a_new_demo() {
    skip!(unless crate::privilege());
    let _alone = LEFTOVERS.write().unwrap_or_else(PoisonError::into_inner);
    let leftover = Path::new("/run/weir-demo/0badc0de");
    std::fs::create_dir_all(leftover.join("busy")).unwrap();
    std::fs::set_permissions("/run/weir-demo", std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    // A mount point cannot be removed.
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(leftover.join("busy")), "").unwrap();
    let ended = demo(&[]);
    run(Command::new("umount").arg(leftover.join("busy")), "").unwrap();
    std::fs::remove_dir_all(leftover).unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(said.contains("note: cannot remove the leftovers of demo 0badc0de"), "{said}");
}

#[test]
fn nothing_is_kept_in_a_mount_namespace_that_ends_with_the_command() {
    skip!(unless crate::privilege());
    let _shared = LEFTOVERS.read().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("unshare");
    let ended = command.args(["--mount", "--"]).arg(weir()).args(["demo", "--keep"]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("nothing can be kept"), "{said}");
}
