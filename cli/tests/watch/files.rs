//! The agent without an API server: `weir watch --files DIR`, with real packets.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use weir_runtime::skip;
use xtask::apiserver::Settings;

use crate::packets::Network;
use crate::rig::{Agent, Directory, SOFT_LIMIT, until, within};

const DENY: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
";

struct Host {
    agent: Option<Agent>,
    network: Network,
    files: PathBuf,
    directory: Directory,
}

impl Host {
    fn new() -> Result<Self, String> {
        let directory = Directory::new();
        let network = Network::new(&directory)?;
        let files = directory.path().join("files");
        fs::create_dir(&files).expect("the directory is ours");
        let mut host = Self { agent: None, network, files, directory };
        let pod = |(name, address)| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}\nstatus: {{podIP: {address}}}\n---\n"
            )
        };
        let pods: String = [("web", "10.231.7.2"), ("db", "10.231.7.3"), ("cron", "10.231.7.4")].map(pod).concat();
        host.write("pods.yaml", &pods);
        host.write("policy.yaml", DENY);
        host.start();
        host.agent().until_ready();
        Ok(host)
    }

    fn start(&mut self) {
        let (pins, results) = (self.network.pins(), self.network.results());
        let files = self.files.display().to_string();
        let arguments = ["--bpffs", &pins, "--cni-results", &results, "--files", &files];
        self.agent = Some(Agent::start_without_api(&self.directory, &self.network.settings(), &arguments));
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("it was started")
    }

    /// Replaces a file by renaming, as tools do.
    fn write(&self, name: &str, text: &str) {
        let path = self.files.join(name);
        fs::write(path.with_extension("new"), text).expect("the directory is ours");
        fs::rename(path.with_extension("new"), path).expect("the directory is ours");
    }

    fn unreadable(&self) -> f64 {
        self.agent().metric("weir_unreadable_files")
    }
}

#[test]
fn policies_of_files_decide_real_connections() {
    let host = skip!(unless Host::new());
    let network = &host.network;
    assert!(!network.reaches("db", "web") && network.reaches("web", "db"), "the policy is in force");

    host.write(
        "policy.yaml",
        &format!("{DENY}  ingress:\n  - from:\n    - podSelector: {{matchLabels: {{app: db}}}}\n"),
    );
    until("the changed file is in force", || network.reaches("db", "web"));
    assert!(!network.reaches("cron", "web"));

    // The file is truncated in place, in the middle of a line and at its beginning.
    for broken in [DENY.split_at(DENY.len() - 9).0, ""] {
        fs::write(host.files.join("policy.yaml"), broken).expect("the directory is ours");
        until("it is counted", || host.unreadable() == 1.0);
        until("the page names it", || host.agent().health("/readyz").1.contains("note: File policy.yaml: "));
        assert_eq!(host.agent().page("/readyz").0, "200", "it is no fault of the agent");
        assert!(network.reaches("db", "web") && !network.reaches("cron", "web"), "the last content stays in force");
    }
    assert_eq!(host.agent().metric("weir_unenforced_objects{kind=\"File\",why=\"malformed\"}"), 1.0);

    host.write("policy.yaml", DENY);
    until("it can be read again", || host.unreadable() == 0.0 && !network.reaches("db", "web"));
    host.agent().until_ready();
    fs::remove_file(host.files.join("policy.yaml")).expect("it is there");
    until("the policy of the deleted file is gone", || network.reaches("cron", "web"));
}

/// The agent needs two descriptors for each pod: with the usual soft limit, a node of 500 pods would be too many.
#[test]
fn agent_raises_its_limit_of_open_files_to_the_hard_limit() {
    let Some(hard) = getrlimit(Resource::Nofile).maximum.filter(|it| *it > SOFT_LIMIT) else {
        skip!("the hard limit of open files is not above {SOFT_LIMIT}");
    };
    let host = skip!(unless Host::new());
    assert_eq!(host.agent().metric("process_max_fds"), hard as f64);
}

#[test]
fn dry_run_on_files_claims_neither_enforcement_nor_an_api_server() {
    let directory = Directory::new();
    let files = directory.path().join("files");
    fs::create_dir(&files).expect("the directory is ours");
    fs::write(files.join("policy.yaml"), DENY).expect("the directory is ours");
    let arguments = ["--dry-run", "--files", &files.display().to_string()];
    let agent = Agent::start_without_api(&directory, &Settings::default(), &arguments);
    agent.until_ready();
    assert_eq!(agent.health("/readyz").1, "ok\nnote: dry run: generations are compiled, and nothing is enforced\n");
    let log = agent.log_at_end();
    assert!(log.contains("generation compiled; a dry run does not enforce it"), "{log}");
    assert!(!log.contains("in force") && !log.contains("API"), "{log}");
}

#[test]
fn restart_with_a_broken_file_keeps_the_generation_in_force() {
    let mut host = skip!(unless Host::new());
    host.agent.take().expect("it was started").kill();
    host.write("policy.yaml", "kind: [\n");
    host.start();
    until("it is reported", || host.agent().log().contains("File/policy.yaml"));
    let opened = within(Duration::from_secs(3), || host.network.reaches("db", "web"));
    assert!(!opened, "{}", host.agent().log());
    assert_ne!(host.agent().page("/readyz").0, "200");
    host.write("policy.yaml", DENY);
    host.agent().until_ready();
    assert!(!host.network.reaches("db", "web"));
}
