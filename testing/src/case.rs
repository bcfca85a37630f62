//! A file of the corpus: a cluster and rows of expected verdicts.

use std::net::IpAddr;
use std::path::PathBuf;

use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Direction, Protocol};
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};

/// One file.
pub struct Case {
    pub path: PathBuf,
    pub cluster: Cluster,
    pub rows: Vec<Row>,
}

/// One expected verdict.
pub struct Row {
    /// The row as written.
    pub text: String,
    pub flow: Flow,
    /// The directions in which the flow is denied.
    denied: Vec<Direction>,
    /// The expected reasons, sorted; `None` if only the verdict is compared.
    pub because: Option<Vec<String>>,
}

impl Row {
    /// The verdict at the end that judges this direction.
    pub fn expected(&self, direction: Direction) -> Verdict {
        if self.denied.contains(&direction) { Verdict::Deny } else { Verdict::Allow }
    }

    /// The verdict about the whole flow: both ends must allow it.
    pub fn verdict(&self) -> Verdict {
        if self.denied.is_empty() { Verdict::Allow } else { Verdict::Deny }
    }
}

impl Case {
    /// Reads a file, and adds its objects to those of `base`.
    pub fn read(path: PathBuf, base: &str) -> Self {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# ") && !text.starts_with("# flow:"), "{}: no trap is named", path.display());
        let inputs = [("cluster.yaml", base), ("case", &text)].map(|(name, text)| Input {
            name: name.to_owned(),
            bytes: text.as_bytes().to_vec(),
            kind: InputKind::Manifest,
        });
        let (decoded, found) =
            decode(inputs.into(), &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
        assert!(!found.has_errors(), "{}: {found:#?}", path.display());
        let (cluster, found) = resolve(&decoded.objects, Assumptions::default());
        assert!(!found.has_errors(), "{}: {found:#?}", path.display());
        let rows: Vec<Row> =
            text.lines().filter_map(|line| line.strip_prefix("# flow: ")).map(|line| row(&cluster, line)).collect();
        assert!(!rows.is_empty(), "{}: no rows", path.display());
        Self { path, cluster, rows }
    }
}

/// `END -> END PROTOCOL[/PORT] = VERDICT [because …]`
fn row(cluster: &Cluster, line: &str) -> Row {
    let parsed = line.split_once(" -> ").and_then(|(source, rest)| {
        let (destination, rest) = rest.split_once(' ')?;
        let (target, rest) = rest.split_once(" = ")?;
        let (verdict, because) = rest.split_once(" because ").map_or((rest, None), |(it, why)| (it, Some(why)));
        let (protocol, port) = target.split_once('/').unwrap_or((target, "0"));
        let flow = Flow {
            source: end(cluster, source)?,
            destination: end(cluster, destination)?,
            protocol: self::protocol(protocol)?,
            port: port.parse().ok()?,
        };
        Some(Row { text: line.to_owned(), flow, denied: denied(verdict)?, because: because.map(reasons) })
    });
    parsed.unwrap_or_else(|| panic!("no expectation: {line}"))
}

fn denied(text: &str) -> Option<Vec<Direction>> {
    Some(match text {
        "allow" => Vec::new(),
        "deny egress" => vec![Direction::Egress],
        "deny ingress" => vec![Direction::Ingress],
        "deny both" => vec![Direction::Egress, Direction::Ingress],
        _ => return None,
    })
}

fn reasons(text: &str) -> Vec<String> {
    let mut reasons: Vec<String> = match text {
        "no policy" => Vec::new(),
        _ => text.split(", ").map(str::to_owned).collect(),
    };
    reasons.sort();
    reasons
}

fn protocol(text: &str) -> Option<FlowProtocol> {
    Some(FlowProtocol::Transport(match text {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        "icmp" => return Some(FlowProtocol::Icmp),
        _ => return None,
    }))
}

fn end(cluster: &Cluster, text: &str) -> Option<FlowEnd> {
    let Some((namespace, name)) = text.split_once('/') else {
        return Some(FlowEnd { endpoint: None, address: Some(text.parse().ok()?) });
    };
    let (name, address) = name.split_once('@').map_or((name, None), |(name, address)| (name, Some(address)));
    let id = *Directory::new(cluster).endpoints_named(namespace, name).first()?;
    let addresses = &cluster.endpoints[id.index()].addresses;
    let address: Option<IpAddr> = match address {
        Some(address) => Some(address.parse().ok()?),
        None => addresses.first().copied(),
    };
    assert!(address.is_none_or(|it| addresses.contains(&it)), "{text}: not its address");
    Some(FlowEnd { endpoint: Some(id), address })
}
