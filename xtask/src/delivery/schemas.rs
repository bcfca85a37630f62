//! JSON Schemas of Kubernetes' own kinds for kubeconform, from the OpenAPI document in the Go module of Kubernetes.
//!
//! Problem: kubeconform's own schemas are on a web site, and unknown fields must be errors. Strategy: one file has all
//! definitions, with unknown fields forbidden, and each kind has a file that refers to its definition.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use xtask::apiserver;

const DEFINITIONS: &str = "definitions.json";

/// Writes the schemas below a directory and returns the pattern of their paths.
pub(super) fn write(directory: &Path) -> Result<String> {
    let module = apiserver::kubernetes_module()?;
    let path = module.join("api/openapi-spec/swagger.json");
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let document: Value = serde_json::from_slice(&text).context("the OpenAPI document of Kubernetes")?;
    let schemas = directory.join("schemas");
    fs::create_dir_all(&schemas).with_context(|| format!("cannot make {}", schemas.display()))?;
    for (name, schema) in of(&document)? {
        fs::write(schemas.join(name), schema.to_string())?;
    }
    Ok(format!("{}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json", schemas.display()))
}

/// The files.
fn of(document: &Value) -> Result<Vec<(String, Value)>> {
    let mut definitions = document["definitions"].as_object().context("a document without definitions")?.clone();
    let mut files = Vec::new();
    for (name, definition) in &mut definitions {
        strict(name, definition);
        for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let text = |key: &str| kind[key].as_str().unwrap_or_default().to_lowercase();
            let group = text("group").split('.').next().map(|it| format!("{it}-")).filter(|it| it != "-");
            let file = format!("{}-{}{}.json", text("kind"), group.unwrap_or_default(), text("version"));
            files.push((file, json!({"$ref": format!("{DEFINITIONS}#/definitions/{name}")})));
        }
    }
    files.push((DEFINITIONS.into(), json!({"definitions": definitions})));
    Ok(files)
}

/// Forbids unknown fields. Allows numbers where the API server accepts them and the OpenAPI document has only strings.
fn strict(name: &str, definition: &mut Value) {
    if definition["format"] == "int-or-string" {
        definition["type"] = json!(["string", "integer"]);
    } else if name.ends_with(".Quantity") {
        definition["type"] = json!(["string", "number"]);
    } else if definition.get("properties").is_some() {
        definition["additionalProperties"] = false.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_refer_to_definitions_without_unknown_fields() {
        let document = json!({"definitions": {
            "io.k8s.Pod": {
                "properties": {"spec": {}},
                "x-kubernetes-group-version-kind": [
                    {"group": "", "kind": "Pod", "version": "v1"},
                    {"group": "rbac.authorization.k8s.io", "kind": "Role", "version": "v1"},
                ],
            },
            "io.k8s.IntOrString": {"format": "int-or-string", "type": "string"},
        }});
        let files = of(&document).expect("schemas");
        let names: Vec<&str> = files.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(names, ["pod-v1.json", "role-rbac-v1.json", DEFINITIONS]);
        assert_eq!(files[0].1["$ref"], "definitions.json#/definitions/io.k8s.Pod");
        let definitions = &files[2].1["definitions"];
        assert_eq!(definitions["io.k8s.Pod"]["additionalProperties"], false);
        assert_eq!(definitions["io.k8s.IntOrString"]["type"], json!(["string", "integer"]));
    }
}
