//! The server's processes, on loopback.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Binaries;
use crate::process::wait;

/// Time to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const TOKEN: &str = "loopback";

/// The options of a server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Further flags of the API server.
    pub flags: Vec<String>,
    /// The path of the network namespace on whose loopback it listens.
    pub namespace: Option<PathBuf>,
}

impl Settings {
    /// A command that runs in the server's network namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", namespace.display())).arg(program);
        command
    }
}

/// An API server with its etcd. Dropping it ends both processes; their data stays in the directory.
#[derive(Debug)]
pub struct ApiServer {
    binaries: Binaries,
    directory: PathBuf,
    /// Ports of the API server, of etcd's clients and of etcd's peers.
    ports: [u16; 3],
    settings: Settings,
    etcd: Option<Child>,
    apiserver: Option<Child>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        stop(&mut self.apiserver);
        stop(&mut self.etcd);
    }
}

impl ApiServer {
    /// Starts both processes on free ports. They are empty unless the directory contains data of an earlier run.
    pub fn start(binaries: &Binaries, directory: &Path, settings: Settings) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut server = Self {
            binaries: binaries.clone(),
            directory: directory.canonicalize()?,
            ports: free_ports()?,
            settings,
            etcd: None,
            apiserver: None,
        };
        server.write_files()?;
        server.start_etcd()?;
        server.start_apiserver()?;
        Ok(server)
    }

    /// Sends a request as an administrator and returns the answer's body. A refusal is an error.
    pub fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Result<String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        self.ask_as(kind, method, path, body)
    }

    /// The same, with a body of this media type.
    pub fn ask_as(&self, kind: &str, method: &str, path: &str, body: Option<&str>) -> Result<String> {
        self.curl(method, &format!("{}{path}", self.url()), body, kind)
    }

    /// Sends a request as an administrator and returns the answer's body, also that of a refusal.
    pub fn answer(&self, kind: &str, method: &str, path: &str, body: &str) -> Result<serde_json::Value> {
        let output = self.curl_command(method, &format!("{}{path}", self.url()), Some(body), kind).output();
        let output = output.context("could not start curl")?;
        serde_json::from_slice(&output.stdout).with_context(|| format!("{method} {path}"))
    }

    /// Makes old versions of objects expire, so that only the newest is left.
    pub fn compact(&self) -> Result<()> {
        let etcd = format!("http://127.0.0.1:{}/v3/kv", self.ports[1]);
        let answer = self.curl("POST", &format!("{etcd}/range"), Some(r#"{"key":"AA=="}"#), "application/json")?;
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        let revision = answer["header"]["revision"].as_str().context("etcd has a revision")?;
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        self.curl("POST", &format!("{etcd}/compaction"), Some(&body), "application/json").map(|_| ())
    }

    fn curl_command(&self, method: &str, url: &str, body: Option<&str>, kind: &str) -> Command {
        let mut curl = self.settings.command("curl");
        curl.args(["-sSk", "--fail-with-body", "--max-time", "20", "-X", method, url]);
        curl.args(["-H", &format!("Authorization: Bearer {TOKEN}"), "-H", &format!("Content-Type: {kind}")]);
        if let Some(body) = body {
            curl.args(["--data-binary", body]);
        }
        curl
    }

    fn curl(&self, method: &str, url: &str, body: Option<&str>, kind: &str) -> Result<String> {
        let output = self.curl_command(method, url, body, kind).output().context("could not start curl")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{method} {url}: {}{text}", String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// The port of the API server.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The path of the kubeconfig file.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// `https://127.0.0.1:…`
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports[0])
    }

    /// Kills the API server, as a crash would.
    pub fn kill_apiserver(&mut self) {
        stop(&mut self.apiserver);
    }

    /// Starts it again, on the same port.
    pub fn start_apiserver(&mut self) -> Result<()> {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let mut command = self.settings.command(&self.binaries.apiserver);
        command.args([
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.ports[0]),
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports[1]),
            format!("--cert-dir={}", file("certificates")),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--service-account-key-file={}", file("service-account.key")),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
        ]);
        command.args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
            // No client uses this address. Without the flag, the server looks for a default route.
            "--advertise-address=192.0.2.1",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
        ]);
        command.args(&self.settings.flags);
        self.apiserver = Some(self.spawn(command, "kube-apiserver")?);
        self.wait_ready()?;
        self.write_kubeconfig()
    }

    fn start_etcd(&mut self) -> Result<()> {
        let [_, clients, peers] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = self.settings.command(&self.binaries.etcd);
        command.arg("--data-dir").arg(self.directory.join("etcd")).arg("--name=weir");
        // As an environment variable, because old versions do not have the flag.
        command.env("ETCD_UNSAFE_NO_FSYNC", "true");
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("weir={peers}")]);
        self.etcd = Some(self.spawn(command, "etcd")?);
        let url = format!("http://127.0.0.1:{}/health", self.ports[1]);
        wait("etcd", PATIENCE, || self.curl("GET", &url, None, "application/json").is_ok())
    }

    fn spawn(&self, mut command: Command, name: &str) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.directory.join(format!("{name}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("could not start {name}"))
    }

    fn wait_ready(&self) -> Result<()> {
        let ready = wait("kube-apiserver", PATIENCE, || self.ask("GET", "/readyz", None).is_ok());
        ready.with_context(|| format!("see {}", self.directory.join("kube-apiserver.log").display()))
    }

    fn write_files(&self) -> Result<()> {
        fs::write(self.directory.join("tokens.csv"), format!("{TOKEN},admin,admin,system:masters\n"))?;
        let key = self.directory.join("service-account.key");
        if !key.exists() {
            let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).stderr(Stdio::null()).status();
            ensure!(made.context("could not start openssl")?.success(), "openssl genrsa failed");
        }
        Ok(())
    }

    /// The certificate file contains the server's certificate and the authority that signed it.
    fn write_kubeconfig(&self) -> Result<()> {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: weir\n\
             clusters: [{{name: weir, cluster: {{server: '{}', certificate-authority: {:?}}}}}]\n\
             users: [{{name: admin, user: {{token: {TOKEN}}}}}]\n\
             contexts: [{{name: weir, context: {{cluster: weir, user: admin}}}}]\n",
            self.url(),
            self.directory.join("certificates/apiserver.crt"),
        );
        Ok(fs::write(self.kubeconfig(), text)?)
    }
}

fn stop(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        // It may have ended already.
        _ = child.kill();
        _ = child.wait();
    }
}

/// All ports are open at the same time, so that they differ.
fn free_ports() -> Result<[u16; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind(("127.0.0.1", 0)));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener?.local_addr()?.port();
    }
    Ok(ports)
}
