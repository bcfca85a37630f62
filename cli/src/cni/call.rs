//! A call of a container runtime: the environment, and the configuration on standard input.

use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::made::Made;
use super::wire::{self, Pod};
use super::{BAD_CONFIGURATION, BAD_ENVIRONMENT, BAD_JSON, BAD_VERSION, Refusal, VERSIONS};

/// Where the agent listens.
const SOCKET: &str = "/run/weir/cni.sock";
const BPFFS: &str = "/sys/fs/bpf/weir";
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Add,
    Delete,
    Check,
    Version,
    Status,
    Collect,
}

/// How to treat a pod on which policy is not in force in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OnTimeout {
    /// The pod is not started; the kubelet tries again.
    #[default]
    Fail,
    /// The pod is started, but its interface drops all packets until policy is in force.
    Deny,
    /// The pod is started without policy.
    Allow,
}

/// A parsed call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) command: Command,
    /// The interface's name inside the pod.
    pub(super) interface: String,
    /// The path of the pod's network namespace.
    pub(super) netns: String,
    /// `None` if the runtime does not name a pod of Kubernetes.
    pub(super) pod: Option<Pod>,
    /// The result of the previous plug-ins, byte for byte.
    pub(super) previous: String,
    /// The interfaces on the host's side that this result names, the last made first.
    pub(super) interfaces: Vec<String>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) socket: String,
    pub(super) bpffs: String,
    pub(super) patience: Duration,
    pub(super) on_timeout: OnTimeout,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration<'c> {
    #[serde(default)]
    cni_version: Option<String>,
    #[serde(borrow, default)]
    prev_result: Option<&'c RawValue>,
    #[serde(default)]
    socket: Option<String>,
    #[serde(default)]
    bpffs: Option<String>,
    #[serde(default)]
    timeout_seconds: Option<u32>,
    #[serde(default)]
    on_timeout: OnTimeout,
}

impl Call {
    /// Parses a call from the environment and the text on standard input.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>, text: &str) -> Result<Self, Refusal> {
        let command = command(&variable("CNI_COMMAND").unwrap_or_default())?;
        if command == Command::Version {
            return Ok(Self::of(command, &Configuration::default()));
        }
        let configuration: Configuration<'_> = serde_json::from_str(text).map_err(|error| Refusal {
            details: error.to_string(),
            ..Refusal::new(BAD_JSON, "the configuration on standard input is not understood")
        })?;
        let version = configuration.cni_version.as_deref().unwrap_or("0.1.0");
        if !VERSIONS.contains(&version) {
            return Err(Refusal::new(BAD_VERSION, format!("CNI {version} is not understood")));
        }
        let longest = wire::LONGEST_WAIT.as_secs();
        if configuration.timeout_seconds.is_some_and(|it| u64::from(it) > longest) {
            return Err(Refusal::new(BAD_CONFIGURATION, format!("timeoutSeconds is more than {longest}")));
        }
        let mut call = Self::of(command, &configuration);
        if matches!(command, Command::Add | Command::Check) {
            call.interface = variable("CNI_IFNAME")
                .filter(|it| !it.is_empty())
                .ok_or_else(|| Refusal::new(BAD_ENVIRONMENT, "CNI_IFNAME is not set"))?;
            call.netns = variable("CNI_NETNS").unwrap_or_default();
            call.pod = pod(&variable("CNI_ARGS").unwrap_or_default());
            call.read_previous(&configuration)?;
        }
        Ok(call)
    }

    fn of(command: Command, configuration: &Configuration<'_>) -> Self {
        let seconds = configuration.timeout_seconds.map(|it| Duration::from_secs(it.into()));
        Self {
            command,
            interface: String::new(),
            netns: String::new(),
            pod: None,
            previous: String::new(),
            interfaces: Vec::new(),
            addresses: Vec::new(),
            socket: configuration.socket.clone().unwrap_or_else(|| SOCKET.to_owned()),
            bpffs: configuration.bpffs.clone().unwrap_or_else(|| BPFFS.to_owned()),
            patience: seconds.unwrap_or(PATIENCE),
            on_timeout: configuration.on_timeout,
        }
    }

    fn read_previous(&mut self, configuration: &Configuration<'_>) -> Result<(), Refusal> {
        let missing = "there is no prevResult: weir-cni comes after a plug-in that makes interfaces";
        let text = configuration.prev_result.ok_or_else(|| Refusal::new(BAD_CONFIGURATION, missing))?.get();
        let previous: Made = serde_json::from_str(text).map_err(|error| Refusal {
            details: error.to_string(),
            ..Refusal::new(BAD_JSON, "the prevResult is not understood")
        })?;
        self.interfaces = previous.host_interfaces();
        self.addresses = previous.addresses();
        self.previous = text.to_owned();
        Ok(())
    }
}

fn command(text: &str) -> Result<Command, Refusal> {
    Ok(match text {
        "ADD" => Command::Add,
        "DEL" => Command::Delete,
        "CHECK" => Command::Check,
        "VERSION" => Command::Version,
        "STATUS" => Command::Status,
        "GC" => Command::Collect,
        other => return Err(Refusal::new(BAD_ENVIRONMENT, format!("CNI_COMMAND is `{other}`"))),
    })
}

/// Reads the pod from `CNI_ARGS`: `K8S_POD_NAMESPACE=…;K8S_POD_NAME=…;K8S_POD_UID=…`, among others.
fn pod(arguments: &str) -> Option<Pod> {
    let argument = |name: &str| {
        let mut pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value.to_owned())
    };
    let (namespace, name) = argument("K8S_POD_NAMESPACE").zip(argument("K8S_POD_NAME"))?;
    Some(Pod { namespace, name, uid: argument("K8S_POD_UID") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREVIOUS: &str = r#"{"cniVersion": "1.0.0",  "interfaces":[{"name":"br0"},{"name":"veth7","mac":"0a:00:00:00:00:01"},
        {"name":"eth0","sandbox":"/run/netns/x"}],"ips":[{"address":"10.0.0.5/24","interface":2},{"address":"fd00::5/64"}]}"#;

    fn read(command: &str, text: &str) -> Result<Call, Refusal> {
        let variable = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => command,
                "CNI_IFNAME" => "eth0",
                "CNI_ARGS" => "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u1",
                _ => return None,
            };
            Some(value.to_owned())
        };
        Call::read(variable, text)
    }

    fn configuration(more: &str) -> String {
        format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"weir-cni","prevResult":{PREVIOUS}{more}}}"#)
    }

    #[test]
    fn a_call_names_pod_interfaces_and_addresses() {
        let call = read("ADD", &configuration("")).expect("it is understood");
        assert_eq!(call.pod.as_ref().map(Pod::path).as_deref(), Some("shop/web"));
        assert_eq!(call.interfaces, ["veth7", "br0"]);
        assert_eq!(call.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.5", "fd00::5"]);
        assert_eq!(call.previous, PREVIOUS, "byte for byte");
        assert_eq!((call.patience, call.on_timeout), (PATIENCE, OnTimeout::Fail));
        let call = read("ADD", &configuration(r#","timeoutSeconds":3,"onTimeout":"deny""#)).expect("it is understood");
        assert_eq!((call.patience, call.on_timeout), (Duration::from_secs(3), OnTimeout::Deny));
    }

    #[test]
    fn what_is_not_understood_has_the_code_of_the_specification() {
        let code = |command: &str, text: &str| read(command, text).expect_err("it is refused").code;
        assert_eq!(code("MOVE", "{}"), BAD_ENVIRONMENT);
        assert_eq!(code("ADD", "{"), BAD_JSON);
        assert_eq!(code("ADD", r#"{"cniVersion":"9.0.0"}"#), BAD_VERSION);
        assert_eq!(code("ADD", r#"{"cniVersion":"1.0.0"}"#), BAD_CONFIGURATION);
        assert_eq!(code("ADD", &configuration(r#","onTimeout":"shrug""#)), BAD_JSON);
        assert_eq!(code("ADD", &configuration(r#","timeoutSeconds":601"#)), BAD_CONFIGURATION);
        assert!(read("DEL", r#"{"cniVersion":"1.0.0"}"#).is_ok(), "there may be no prevResult when things go");
        assert!(read("VERSION", "").is_ok());
    }
}
