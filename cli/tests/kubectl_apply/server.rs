//! The record against kubectl and a real API server.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_runtime::skip;
use xtask::apiserver::{self, ApiServer, Settings};

use crate::cases::{self, Case};

/// Time for the server to serve new definitions, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Fields that are different in each run: those of the metadata, and the address of a service.
const PER_RUN: [&str; 5] = ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"];

struct Kubectl {
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Runs kubectl with an object on its standard input. `Err` has its error message.
    fn run(&self, arguments: &[&str], input: &Value) -> Result<String, String> {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl is there");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(input.to_string().as_bytes()).expect("kubectl reads it");
        drop(stdin);
        let output = child.wait_with_output().expect("kubectl ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn object(&self, arguments: &[&str], input: &Value) -> Result<Value, String> {
        let printed: Value = serde_json::from_str(&self.run(arguments, input)?).expect("kubectl prints JSON");
        // An object that is read from standard input is printed alone or in a list.
        Ok(without_run(if printed["kind"] == "List" { printed["items"][0].clone() } else { printed }))
    }

    /// The live object and the applied one; null if the server refuses it.
    fn record(&self, case: &Case) -> (Value, Value) {
        let must = |result: Result<String, String>| {
            result.unwrap_or_else(|error| panic!("{}: {error}", case.name()));
        };
        let (before, edit, file) = (case.part("before"), case.part("edit"), case.part("file"));
        let command = case.part("command").as_str().expect("a command");
        must(self.run(&[command, "-f", "-"], before));
        if edit.is_object() {
            let patch = edit.to_string();
            must(self.run(&["patch", "-f", "-", "--type=merge", "-p", &patch], before));
        }
        let live = self.object(&["get", "-f", "-", "-o", "json"], before).expect("it exists");
        let planned = self.object(&["apply", "-f", "-", "--dry-run=server", "-o", "json"], file);
        let applied = self.run(&["apply", "-f", "-"], file);
        let applied = applied.and_then(|_| self.object(&["get", "-f", "-", "-o", "json"], file));
        assert_eq!(planned.is_ok(), applied.is_ok(), "{}: {planned:?}, {applied:?}", case.name());
        if let (Ok(planned), Ok(applied)) = (&planned, &applied) {
            assert_eq!(planned["spec"], applied["spec"], "{}: the dry run is another object", case.name());
        }
        must(self.run(&["delete", "-f", "-", "--wait=false", "--grace-period=0", "--force"], before));
        (live, applied.unwrap_or(Value::Null))
    }
}

fn without_run(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        PER_RUN.iter().for_each(|name| _ = metadata.shift_remove(*name));
    }
    if object["kind"] == "Service" {
        object["spec"]["clusterIP"] = json!("10.0.0.1");
        object["spec"]["clusterIPs"] = json!(["10.0.0.1"]);
    }
    object
}

fn start(directory: &Path) -> Option<ApiServer> {
    let binaries = apiserver::built().ok()?;
    let definitions = apiserver::definitions("experimental").ok()?;
    let server = ApiServer::start(&binaries, directory, Settings::default()).expect("the server starts");
    for file in definitions {
        let text = fs::read_to_string(file).expect("the definition can be read");
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server.ask_as("application/yaml", "POST", path, Some(&text)).expect("the server takes the definition");
    }
    let (path, started) = ("/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", Instant::now());
    while server.ask("GET", path, None).is_err() {
        assert!(started.elapsed() < PATIENCE, "{path} is not served within {} s", PATIENCE.as_secs());
        thread::sleep(Duration::from_millis(100));
    }
    Some(server)
}

#[test]
fn kubectl_and_a_real_server_give_the_recorded_objects() {
    skip!(unless apiserver::built());
    skip!(unless Command::new("kubectl").args(["version", "--client"]).output());
    let directory = std::env::temp_dir().join(format!("weir-kubectl-apply-{}", std::process::id()));
    let server = start(&directory).expect("the servers and the definitions are built together");
    let kubectl = Kubectl { kubeconfig: server.kubeconfig() };
    let cases = cases::all();
    let count = cases.len();
    let is_recording = std::env::var_os("WEIR_RECORD").is_some();
    let mut different = Vec::new();
    for case in cases {
        let (live, applied) = kubectl.record(&case);
        if is_recording {
            case.record(live, applied);
        } else if json!([live["spec"], applied["spec"], applied["metadata"]["labels"]])
            != json!([
                case.part("live")["spec"],
                case.part("applied")["spec"],
                case.part("applied")["metadata"]["labels"]
            ])
        {
            different.push(format!("{}: live {live:#}, applied {applied:#}", case.name()));
        }
    }
    drop(server);
    fs::remove_dir_all(directory).expect("the directory is ours");
    assert!(different.is_empty(), "{} of {count} cases:\n{}", different.len(), different.join("\n"));
    println!("{count} cases with kubectl and kube-apiserver");
}
