//! Drives the built binary in a directory of its own.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Map, Value, json};
use weir_objects::syntax::{Span, SyntaxNode, SyntaxValue, yaml};

/// A shop: web may reach db on 5432, and no other pod may.
pub(crate) const SHOP: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: db
  namespace: shop
spec:
  podSelector:
    matchLabels: {app: db}
  policyTypes: [Ingress]
  ingress:
    - from:
        - podSelector:
            matchLabels: {app: web}
      ports:
        - {port: 5432}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
status: {phase: Running, podIP: 10.0.0.2}
";

/// Policies alone: api may reach db on 5432, and no other pod may.
pub(crate) const DATABASE: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: api}}}]
      ports: [{port: 5432}]
";

/// A directory that is removed after the test, in which `weir` runs.
pub(crate) struct Place {
    directory: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Place {
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("weir-test-{}-{number}", std::process::id()));
        fs::create_dir_all(directory.join(".git")).expect("a directory");
        Self { directory }
    }

    /// A place with the shop in `shop.yaml`.
    pub(crate) fn shop() -> Self {
        Self::new().file("shop.yaml", SHOP)
    }

    pub(crate) fn file(self, name: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.directory.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("written");
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(arguments.split_whitespace()).current_dir(&self.directory);
        for variable in ["RUST_BACKTRACE", "NO_COLOR", "COLUMNS"] {
            command.env_remove(variable);
        }
        // Variables of a CI job, from which the report makes links.
        for variable in ["WEIR_SOURCE_URL", "GITHUB_SERVER_URL", "CI_PROJECT_URL", "SOURCE_DATE_EPOCH"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Ran {
        Ran::from(self.command(arguments).output().expect("weir runs"))
    }

    pub(crate) fn run_with_input(&self, arguments: &str, input: &str) -> Ran {
        let mut command = self.command(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
        // The command may end before it has read all input, and then reports an error itself.
        _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        Ran::from(child.wait_with_output().expect("weir ends"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.directory);
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.out.contains(text), "stdout lacks {text:?}: {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn complains(self, text: &str) -> Self {
        assert!(self.err.contains(text), "stderr lacks {text:?}: {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// A YAML document as JSON.
pub(crate) fn yaml_value(text: &str) -> Value {
    fn convert(node: &SyntaxNode<'_>) -> Value {
        match &node.value {
            SyntaxValue::Null => Value::Null,
            SyntaxValue::Bool(it) => json!(it),
            SyntaxValue::Int(it) => json!(it),
            SyntaxValue::Float(it) => json!(it),
            SyntaxValue::Str(it) => json!(it),
            SyntaxValue::Seq(items) => items.iter().map(convert).collect(),
            SyntaxValue::Map(entries) => {
                let fields: Map<String, Value> =
                    entries.iter().map(|it| (it.key.to_string(), convert(&it.value))).collect();
                fields.into()
            }
        }
    }
    convert(&yaml::parse(text, Span::of(text)).expect("YAML").expect("a document"))
}
