//! The list of crates in a binary, as CycloneDX 1.6 in JSON.
//!
//! Strategy: cargo's resolved graph for the target, from the package `weir` along normal dependencies. Build scripts,
//! procedural macros and tests are not in the binary. The lock file has the checksums of the crates' archives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{ReleaseFacts, sha256};
use crate::process::{capture, cargo};

/// A crate in the binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// Its licence as an SPDX expression.
    pub(super) licence: Option<String>,
    /// Where its sources are on this machine.
    pub(super) directory: PathBuf,
    /// The checksum of its archive in the registry; crates of this workspace have none.
    pub(super) checksum: Option<String>,
    repository: Option<String>,
    dependencies: BTreeSet<String>,
}

/// The crates in the binary for one target, by cargo's identifiers.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    crates: BTreeMap<String, Crate>,
    root: String,
}

impl Graph {
    /// Asks cargo.
    pub(super) fn read(root: &Path, triple: &str) -> Result<Self> {
        let arguments = ["metadata", "--locked", "--format-version=1", "--filter-platform", triple];
        let metadata = capture(cargo(&arguments).current_dir(root))?;
        let metadata: Value = serde_json::from_str(&metadata).context("the output of cargo metadata")?;
        let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
        let graph = Self::of(&metadata, &checksums(&lock))?;
        ensure!(graph.crates.len() > 50, "only {} crates", graph.crates.len());
        Ok(graph)
    }

    fn of(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<Self> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let packages: BTreeMap<String, Value> =
            list(&metadata["packages"]).into_iter().map(|it| (text(&it["id"]), it)).collect();
        let nodes: BTreeMap<String, Value> =
            list(&metadata["resolve"]["nodes"]).into_iter().map(|it| (text(&it["id"]), it)).collect();
        let is_linked = |id: &str| packages.get(id).is_some_and(|it| !is_macro(it));
        let root = packages.iter().find(|(_, it)| it["name"] == "weir").context("there is no package weir")?.0;
        let mut graph = Self { root: root.clone(), ..Self::default() };
        let mut open = vec![root.clone()];
        while let Some(id) = open.pop() {
            if graph.crates.contains_key(&id) {
                continue;
            }
            let package = packages.get(&id).with_context(|| format!("no package {id}"))?;
            let dependencies = nodes.get(&id).map(|node| list(&node["deps"])).unwrap_or_default();
            let dependencies = dependencies.iter().filter(|it| list(&it["dep_kinds"]).iter().any(is_normal));
            let dependencies: BTreeSet<String> =
                dependencies.map(|it| text(&it["pkg"])).filter(|it| is_linked(it)).collect();
            open.extend(dependencies.iter().cloned());
            graph.crates.insert(id, Crate::new(package, dependencies, checksums));
        }
        Ok(graph)
    }

    /// The crates from outside of this workspace.
    pub(super) fn others(&self) -> impl Iterator<Item = &Crate> {
        self.crates.values().filter(|it| it.checksum.is_some())
    }
}

impl Crate {
    fn new(package: &Value, dependencies: BTreeSet<String>, checksums: &BTreeMap<(String, String), String>) -> Self {
        let optional = |key: &str| package[key].as_str().map(str::to_owned);
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        Self {
            checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
            directory: manifest.parent().unwrap_or(Path::new("")).to_owned(),
            // A slash is an old form of OR.
            licence: optional("license").map(|it| it.replace('/', " OR ").replace("  OR  ", " OR ")),
            repository: optional("repository"),
            name,
            version,
            dependencies,
        }
    }

    /// The package's address, which is also its reference in the document.
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }

    fn component(&self) -> Value {
        let mut component = json!({
            "type": "library", "bom-ref": self.purl(), "name": self.name, "version": self.version, "purl": self.purl(),
        });
        if let Some(licence) = &self.licence {
            component["licenses"] = json!([{"expression": licence}]);
        }
        if let Some(checksum) = &self.checksum {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        if let Some(repository) = &self.repository {
            component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
        }
        component
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
    targets.iter().any(|it| it["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "proc-macro")))
}

fn is_normal(kind: &Value) -> bool {
    kind["kind"].is_null()
}

/// The checksums in a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let start = format!("{key} = \"");
        block.lines().find_map(|line| Some(line.strip_prefix(&start)?.trim_end_matches('"').to_owned()))
    };
    let entry = |block: &str| Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?));
    lock.split("[[package]]").filter_map(entry).collect()
}

/// The document for the binary of one target.
pub(super) fn document(facts: &ReleaseFacts, triple: &str, binary: &[u8], graph: &Graph) -> Result<Vec<u8>> {
    let weir = graph.crates.get(&graph.root).context("the graph has no root")?;
    let mut component = weir.component();
    component["type"] = "application".into();
    component["description"] = facts.description.as_str().into();
    component["hashes"] = json!([{"alg": "SHA-256", "content": sha256(binary)}]);
    component["properties"] = json!([{"name": "cargo:target", "value": triple}]);
    let libraries = graph.crates.iter().filter(|(id, _)| **id != graph.root);
    let mut document = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": facts.time(), "component": component},
        "components": libraries.map(|(_, it)| it.component()).collect::<Vec<_>>(),
        "dependencies": graph.crates.values().map(|it| depends(it, graph)).collect::<Vec<_>>(),
    });
    // Derived from the contents, so that the same release has the same number.
    let hash = sha256(document.to_string().as_bytes());
    document["serialNumber"] =
        format!("urn:uuid:{}-{}-8{}-a{}-{}", &hash[..8], &hash[8..12], &hash[13..16], &hash[17..20], &hash[20..32])
            .into();
    let mut bytes = serde_json::to_vec_pretty(&document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn depends(it: &Crate, graph: &Graph) -> Value {
    let on: BTreeSet<String> = it.dependencies.iter().filter_map(|id| graph.crates.get(id)).map(Crate::purl).collect();
    json!({"ref": it.purl(), "dependsOn": on})
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::facts::tests::facts;
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"used\"\nversion = \"1.0.0+x\"\nchecksum = \"ab12\"\n\n\
                        [[package]]\nname = \"weir\"\nversion = \"1.2.3\"\n";

    fn package(registry: &str, name: &str, version: &str, kind: &str) -> Value {
        json!({
            "id": name, "name": name, "version": version, "license": "MIT/Apache-2.0", "repository": null,
            "manifest_path": format!("{registry}/{name}/Cargo.toml"), "targets": [{"kind": [kind]}],
        })
    }

    /// `weir` with the crate `used`, whose sources are below this directory.
    pub(crate) fn graph(registry: &str) -> Graph {
        let package = |name: &str, version: &str, kind: &str| package(registry, name, version, kind);
        let uses = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("weir", "1.2.3", "bin"), package("used", "1.0.0+x", "lib"), package("derive", "1.0.0", "proc-macro"),
                package("tests", "1.0.0", "lib"), package("builds", "1.0.0", "lib"), package("syn", "1.0.0", "lib"),
            ],
            "resolve": {"nodes": [
                {"id": "weir", "deps": [
                    uses("used", Value::Null), uses("derive", Value::Null), uses("tests", "dev".into()),
                    uses("builds", "build".into()),
                ]},
                {"id": "derive", "deps": [uses("syn", Value::Null)]},
            ]},
        });
        Graph::of(&metadata, &checksums(LOCK)).expect("a graph")
    }

    #[test]
    fn only_linked_crates_are_in_the_graph() {
        let graph = graph("/registry");
        assert_eq!(graph.crates.keys().collect::<Vec<_>>(), ["used", "weir"]);
        assert_eq!(graph.others().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["used"]);
    }

    #[test]
    fn document_names_crates_with_their_checksums() {
        let written = || document(&facts(), "x", b"program", &graph("/registry")).expect("a document");
        let document: Value = serde_json::from_slice(&written()).expect("JSON");
        assert_eq!(document["metadata"]["component"]["hashes"][0]["content"], sha256(b"program"));
        let used = &document["components"][0];
        assert_eq!(used["purl"], "pkg:cargo/used@1.0.0%2Bx");
        assert_eq!(used["hashes"][0]["content"], "ab12");
        assert_eq!(used["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["dependencies"][1]["dependsOn"], json!(["pkg:cargo/used@1.0.0%2Bx"]));
        assert_eq!(written(), written());
    }
}
