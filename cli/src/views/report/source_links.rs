//! Links from a file and line of the input to a web page that shows them.
//!
//! `WEIR_SOURCE_URL` is a URL with `{path}`, `{line}` and `{revision}`. In GitHub Actions and GitLab CI, the variables
//! of the job give it. Without either there are no links: the report shows the lines themselves.

use std::path::{Component, Path, PathBuf};

/// Makes links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceLinks {
    /// With placeholders; empty if there are no links.
    pattern: String,
    revision: String,
    /// The working directory's path in its repository, empty or with a final slash.
    directory: String,
}

impl SourceLinks {
    /// Of this process's environment.
    pub(crate) fn from_environment() -> Self {
        let directory = std::env::current_dir().map(|it| path_in_repository(&it)).unwrap_or_default();
        Self::from_variables(|name| std::env::var(name).ok().filter(|it| !it.is_empty()), directory)
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>, directory: String) -> Self {
        let github = || {
            let (server, repository) = (variable("GITHUB_SERVER_URL")?, variable("GITHUB_REPOSITORY")?);
            Some(format!("{server}/{repository}/blob/{{revision}}/{{path}}#L{{line}}"))
        };
        let gitlab = || Some(format!("{}/-/blob/{{revision}}/{{path}}#L{{line}}", variable("CI_PROJECT_URL")?));
        let pattern = variable("WEIR_SOURCE_URL").or_else(github).or_else(gitlab).unwrap_or_default();
        // Any other scheme could run a script.
        let is_web = ["https://", "http://"].iter().any(|scheme| pattern.starts_with(scheme));
        let revision =
            variable("GITHUB_SHA").or_else(|| variable("CI_COMMIT_SHA")).unwrap_or_else(|| "HEAD".to_owned());
        Self { pattern: if is_web { pattern } else { String::new() }, revision, directory }
    }

    /// The address of a line; `None` if the file is not in the repository, or no pattern is known.
    pub(crate) fn href(&self, file: &str, line: usize) -> Option<String> {
        if self.pattern.is_empty() {
            return None;
        }
        // Files of `git:REV:PATH` are named `REV:PATH`, with the path in the repository.
        let (revision, path) = match file.split_once(':') {
            Some(("cluster", _)) => return None,
            Some((revision, path)) => (revision.trim_start_matches("origin/").to_owned(), path.to_owned()),
            None => (self.revision.clone(), format!("{}{}", self.directory, file.trim_start_matches("./"))),
        };
        let is_inside = Path::new(&path).components().all(|it| matches!(it, Component::Normal(_)));
        if !is_inside || Path::new(file).is_absolute() || file == "-" {
            return None;
        }
        let url = self.pattern.replace("{revision}", &encoded(&revision)).replace("{path}", &encoded(&path));
        Some(url.replace("{line}", &line.to_string()))
    }
}

/// `policies/` for a directory `policies` of a git repository.
fn path_in_repository(directory: &Path) -> String {
    let root: Option<PathBuf> = directory.ancestors().find(|it| it.join(".git").exists()).map(Path::to_path_buf);
    let inside = root.and_then(|root| directory.strip_prefix(root).ok().map(|it| it.display().to_string()));
    inside.filter(|it| !it.is_empty()).map(|it| it + "/").unwrap_or_default()
}

fn encoded(path: &str) -> String {
    let one = |byte: u8| match byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(variables: &[(&str, &str)]) -> SourceLinks {
        let find = |name: &str| variables.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
        SourceLinks::from_variables(find, "deploy/".to_owned())
    }

    #[test]
    fn a_line_links_to_the_repository_of_the_job() {
        let github = [
            ("GITHUB_SERVER_URL", "https://git.example"),
            ("GITHUB_REPOSITORY", "shop/policies"),
            ("GITHUB_SHA", "abc"),
        ];
        let href = |file: &str| links(&github).href(file, 7).unwrap_or_default();
        assert_eq!(href("./a b.yaml"), "https://git.example/shop/policies/blob/abc/deploy/a%20b.yaml#L7");
        assert_eq!(href("origin/main:net/a.yaml"), "https://git.example/shop/policies/blob/main/net/a.yaml#L7");
        let gitlab = [("CI_PROJECT_URL", "https://lab.example/shop"), ("CI_COMMIT_SHA", "abc")];
        assert_eq!(
            links(&gitlab).href("a.yaml", 7).as_deref(),
            Some("https://lab.example/shop/-/blob/abc/deploy/a.yaml#L7")
        );
    }

    #[test]
    fn a_line_that_no_repository_has_is_no_link() {
        let own = links(&[("WEIR_SOURCE_URL", "https://git.example/{path}?line={line}")]);
        assert_eq!(own.href("a.yaml", 7).as_deref(), Some("https://git.example/deploy/a.yaml?line=7"));
        for file in ["../a.yaml", "/etc/a.yaml", "cluster:prod", "-"] {
            assert_eq!(own.href(file, 7), None, "{file}");
        }
        assert_eq!(links(&[]).href("a.yaml", 7), None);
        assert_eq!(links(&[("WEIR_SOURCE_URL", "javascript:{path}")]).href("a.yaml", 7), None);
    }
}
