//! A call of a container runtime: the environment, and the configuration on standard input.

use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::result::CniResult;
use super::wire::{self, CniPod};
use super::{BAD_CONFIGURATION, BAD_ENVIRONMENT, BAD_JSON, BAD_VERSION, Refusal, SOCKET, VERSIONS};

const BPFFS: &str = "/sys/fs/bpf/weir";
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CniCommand {
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
pub(super) enum TimeoutAction {
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
pub(super) struct CniCall {
    pub(super) command: CniCommand,
    /// The interface's name inside the pod.
    pub(super) interface: String,
    /// The path of the pod's network namespace.
    pub(super) netns: String,
    /// `None` if the runtime does not name a pod of Kubernetes.
    pub(super) pod: Option<CniPod>,
    pub(super) previous: PreviousResult,
    pub(super) socket: String,
    pub(super) bpffs: String,
    pub(super) patience: Duration,
    pub(super) on_timeout: TimeoutAction,
}

/// The result of the previous plug-ins.
#[derive(Debug, Default)]
pub(super) struct PreviousResult {
    /// Byte for byte.
    pub(super) text: String,
    /// The interfaces on the host's side that it names, the last one first: a bridge comes before its port.
    pub(super) interfaces: Vec<String>,
    pub(super) addresses: Vec<IpAddr>,
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
    on_timeout: TimeoutAction,
}

impl CniCall {
    /// Parses a call from the environment and the text on standard input.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>, text: &str) -> Result<Self, Refusal> {
        let command = command(&variable("CNI_COMMAND").unwrap_or_default())?;
        if command == CniCommand::Version {
            return Ok(Self::of(command, &Configuration::default()));
        }
        let configuration: Configuration<'_> = serde_json::from_str(text).map_err(|error| Refusal {
            details: error.to_string(),
            ..Refusal::new(BAD_JSON, "the configuration on standard input is not valid JSON for weir-cni")
        })?;
        let version = configuration.cni_version.as_deref().unwrap_or("0.1.0");
        if !VERSIONS.contains(&version) {
            return Err(Refusal::new(BAD_VERSION, format!("CNI version {version} is not supported")));
        }
        let longest = wire::LONGEST_WAIT.as_secs();
        if configuration.timeout_seconds.is_some_and(|it| u64::from(it) > longest) {
            return Err(Refusal::new(BAD_CONFIGURATION, format!("timeoutSeconds is more than {longest}")));
        }
        let mut call = Self::of(command, &configuration);
        if matches!(command, CniCommand::Add | CniCommand::Check) {
            call.interface = variable("CNI_IFNAME")
                .filter(|it| !it.is_empty())
                .ok_or_else(|| Refusal::new(BAD_ENVIRONMENT, "CNI_IFNAME is not set"))?;
            call.netns = variable("CNI_NETNS").unwrap_or_default();
            call.pod = pod(&variable("CNI_ARGS").unwrap_or_default());
            call.read_previous(&configuration)?;
        }
        Ok(call)
    }

    fn of(command: CniCommand, configuration: &Configuration<'_>) -> Self {
        let seconds = configuration.timeout_seconds.map(|it| Duration::from_secs(it.into()));
        Self {
            command,
            interface: String::new(),
            netns: String::new(),
            pod: None,
            previous: PreviousResult::default(),
            socket: configuration.socket.clone().unwrap_or_else(|| SOCKET.to_owned()),
            bpffs: configuration.bpffs.clone().unwrap_or_else(|| BPFFS.to_owned()),
            patience: seconds.unwrap_or(PATIENCE),
            on_timeout: configuration.on_timeout,
        }
    }

    fn read_previous(&mut self, configuration: &Configuration<'_>) -> Result<(), Refusal> {
        let missing = "no prevResult: weir-cni must come after the plug-in that creates the interface";
        let text = configuration.prev_result.ok_or_else(|| Refusal::new(BAD_CONFIGURATION, missing))?.get();
        let previous: CniResult = serde_json::from_str(text).map_err(|error| Refusal {
            details: error.to_string(),
            ..Refusal::new(BAD_JSON, "the prevResult is not a valid CNI result")
        })?;
        let (interfaces, addresses) = (previous.host_interfaces(&self.interface), previous.addresses());
        self.previous = PreviousResult { text: text.to_owned(), interfaces, addresses };
        Ok(())
    }
}

fn command(text: &str) -> Result<CniCommand, Refusal> {
    Ok(match text {
        "ADD" => CniCommand::Add,
        "DEL" => CniCommand::Delete,
        "CHECK" => CniCommand::Check,
        "VERSION" => CniCommand::Version,
        "STATUS" => CniCommand::Status,
        "GC" => CniCommand::Collect,
        other => return Err(Refusal::new(BAD_ENVIRONMENT, format!("unknown CNI_COMMAND `{other}`"))),
    })
}

/// Reads the pod from `CNI_ARGS`: `K8S_POD_NAMESPACE=…;K8S_POD_NAME=…;K8S_POD_UID=…`, among others.
fn pod(arguments: &str) -> Option<CniPod> {
    let argument = |name: &str| {
        let mut pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value.to_owned())
    };
    let (namespace, name) = argument("K8S_POD_NAMESPACE").zip(argument("K8S_POD_NAME"))?;
    Some(CniPod { namespace, name, uid: argument("K8S_POD_UID") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREVIOUS: &str = r#"{"cniVersion": "1.0.0",  "interfaces":[{"name":"br0"},{"name":"veth7","mac":"0a:00:00:00:00:01"},
        {"name":"eth0","sandbox":"/run/netns/x"}],"ips":[{"address":"10.0.0.5/24","interface":2},{"address":"fd00::5/64"}]}"#;

    fn read(command: &str, text: &str) -> Result<CniCall, Refusal> {
        let variable = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => command,
                "CNI_IFNAME" => "eth0",
                "CNI_ARGS" => "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u1",
                _ => return None,
            };
            Some(value.to_owned())
        };
        CniCall::read(variable, text)
    }

    fn configuration(more: &str) -> String {
        format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"weir-cni","prevResult":{PREVIOUS}{more}}}"#)
    }

    #[test]
    fn call_has_the_pods_name_interfaces_and_addresses() {
        let call = read("ADD", &configuration("")).expect("the call is valid");
        assert_eq!(call.pod.as_ref().map(CniPod::path).as_deref(), Some("shop/web"));
        assert_eq!(call.previous.interfaces, ["veth7", "br0"]);
        assert_eq!(
            call.previous.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.5", "fd00::5"]
        );
        assert_eq!(call.previous.text, PREVIOUS, "byte for byte");
        assert_eq!((call.patience, call.on_timeout), (PATIENCE, TimeoutAction::Fail));
        let call = read("ADD", &configuration(r#","timeoutSeconds":3,"onTimeout":"deny""#)).expect("the call is valid");
        assert_eq!((call.patience, call.on_timeout), (Duration::from_secs(3), TimeoutAction::Deny));
    }

    #[test]
    fn invalid_calls_have_the_error_codes_of_the_specification() {
        let code = |command: &str, text: &str| read(command, text).expect_err("it is refused").code;
        assert_eq!(code("MOVE", "{}"), BAD_ENVIRONMENT);
        assert_eq!(code("ADD", "{"), BAD_JSON);
        assert_eq!(code("ADD", r#"{"cniVersion":"9.0.0"}"#), BAD_VERSION);
        assert_eq!(code("ADD", r#"{"cniVersion":"1.0.0"}"#), BAD_CONFIGURATION);
        assert_eq!(code("ADD", &configuration(r#","onTimeout":"shrug""#)), BAD_JSON);
        assert_eq!(code("ADD", &configuration(r#","timeoutSeconds":601"#)), BAD_CONFIGURATION);
        assert!(read("DEL", r#"{"cniVersion":"1.0.0"}"#).is_ok(), "DEL may have no prevResult");
        assert!(read("VERSION", "").is_ok());
    }
}
