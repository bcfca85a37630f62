//! The recorded answers against a real API server.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_runtime::skip;
use xtask::apiserver::{self, ApiServer, Binaries, Settings};

use crate::cases::{self, Answer, Case};

/// The channels of the Network Policy API.
const CHANNELS: [&str; 2] = ["experimental", "standard"];
const GROUP: &str = "/apis/policy.networking.k8s.io";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Time for the server to serve new definitions, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers about this field say only that other rules were not checked.
const UNCHECKED: &str = "some validation rules were not checked";

#[test]
fn a_real_server_gives_the_recorded_answers() {
    let binaries = skip!(unless apiserver::built());
    let definitions = skip!(unless CHANNELS.map(apiserver::definitions).into_iter().collect::<Result<Vec<_>, _>>());
    let cases = cases::all();
    let mut answers: Vec<Vec<(&str, Answer)>> = vec![Vec::new(); cases.len()];
    for (channel, definitions) in CHANNELS.into_iter().zip(definitions) {
        let directory = std::env::temp_dir().join(format!("weir-cluster-policies-{}-{channel}", std::process::id()));
        let server = start(&binaries, &directory, &definitions);
        for (case, answers) in cases.iter().zip(&mut answers) {
            answers.push((channel, ask(&server, case)));
        }
        drop(server);
        fs::remove_dir_all(directory).expect("the directory is ours");
    }
    if std::env::var_os("WEIR_RECORD").is_some() {
        cases.iter().zip(&answers).for_each(|(case, answers)| case.record(answers));
        return;
    }
    let different: Vec<String> = cases.iter().zip(answers).filter_map(|it| difference(it.0, &it.1)).collect();
    assert!(different.is_empty(), "{} of {} cases:\n{}", different.len(), cases.len(), different.join("\n"));
    println!("{} cases against kube-apiserver, with the definitions of {}", cases.len(), CHANNELS.join(" and "));
}

fn difference(case: &Case, answers: &[(&str, Answer)]) -> Option<String> {
    let wrong = answers.iter().filter(|(channel, answer)| case.recorded(channel).as_ref() != Some(answer));
    let lines: Vec<String> = wrong.map(|(channel, answer)| format!("  {channel}: {answer}")).collect();
    (!lines.is_empty()).then(|| format!("{}: the server answers\n{}", case.name(), lines.join("\n")))
}

/// A server with the definitions of one channel. A server of its own for each channel, because a server serves changed
/// definitions only after some time.
fn start(binaries: &Binaries, directory: &Path, definitions: &[PathBuf]) -> ApiServer {
    let server = ApiServer::start(binaries, directory, Settings::default()).expect("the server starts");
    for file in definitions {
        let text = fs::read_to_string(file).expect("the definition can be read");
        server.ask_as("application/yaml", "POST", CRDS, Some(&text)).expect("the server takes the definition");
    }
    for (version, plural) in [("v1alpha1", "adminnetworkpolicies"), ("v1alpha2", "clusternetworkpolicies")] {
        until_served(&server, &format!("{GROUP}/{version}/{plural}"));
    }
    until_served(&server, &format!("{GROUP}/v1alpha1/baselineadminnetworkpolicies"));
    server
}

fn until_served(server: &ApiServer, path: &str) {
    let started = Instant::now();
    while server.ask("GET", path, None).is_err() {
        assert!(started.elapsed() < PATIENCE, "{path} is not served within {} s", PATIENCE.as_secs());
        thread::sleep(Duration::from_millis(100));
    }
}

/// The answer to a strict request, as `kubectl apply` sends it.
fn ask(server: &ApiServer, case: &Case) -> Answer {
    let plural = match case.name().split('-').next() {
        Some("cnp") => "v1alpha2/clusternetworkpolicies",
        Some("anp") => "v1alpha1/adminnetworkpolicies",
        _ => "v1alpha1/baselineadminnetworkpolicies",
    };
    let path = format!("{GROUP}/{plural}?dryRun=All&fieldValidation=Strict");
    let object = case.object();
    let media_type = if object.starts_with('{') { "application/json" } else { "application/yaml" };
    let answer = server.answer(media_type, "POST", &path, &object);
    read(&answer.unwrap_or_else(|error| panic!("{}: {error:#}", case.name())))
}

fn read(answer: &Value) -> Answer {
    if answer["kind"] != "Status" {
        return Answer::Accepts;
    }
    let message = answer["message"].as_str().unwrap_or_default();
    match answer["reason"].as_str() {
        Some("Invalid") => Answer::Refuses(causes(answer)),
        Some("BadRequest") => Answer::Refuses(quoted_fields(message)),
        _ => panic!("not an answer about the object: {answer}"),
    }
}

/// The fields of a failed validation.
fn causes(answer: &Value) -> BTreeSet<String> {
    let causes = answer["details"]["causes"].as_array().expect("an invalid object has causes").iter();
    let about_fields = causes.filter(|cause| !cause["message"].as_str().unwrap_or_default().contains(UNCHECKED));
    about_fields.map(|cause| cause["field"].as_str().unwrap_or_default().replace("<nil>", "")).collect()
}

/// The fields of a failed decoding: `strict decoding error: unknown field "spec.a", duplicate field "spec.b"`.
fn quoted_fields(message: &str) -> BTreeSet<String> {
    let fields = message.split("field \"").skip(1);
    fields.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}
