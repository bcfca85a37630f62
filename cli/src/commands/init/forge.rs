//! The CI file for the forge that a repository is on.
//!
//! The files are those of docs/ci, whose steps the tests run. They are copies, because a packed crate has no files from
//! outside of it; a test compares them.

use std::path::Path;

const GITHUB: &str = include_str!("github-workflow.yml");
const GITLAB: &str = include_str!("gitlab-ci.yml");

/// A forge with a recipe for CI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forge {
    Github,
    Gitlab,
}

impl Forge {
    /// The forge of a repository: by its CI files, or else by the names in the addresses of its remotes.
    pub(super) fn of(directory: &Path) -> Option<Self> {
        let has = |name: &str| directory.join(name).exists();
        let remotes = std::fs::read_to_string(directory.join(".git/config")).unwrap_or_default();
        let names = |name: &str| {
            let addresses = remotes.lines().filter_map(|it| it.trim().strip_prefix("url"));
            addresses.into_iter().any(|it| it.contains(name))
        };
        match () {
            () if has(".github") => Some(Self::Github),
            () if has(".gitlab-ci.yml") => Some(Self::Gitlab),
            () if names("github.com") => Some(Self::Github),
            () if names("gitlab") => Some(Self::Gitlab),
            () => None,
        }
    }

    /// The file, relative to the repository's directory.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Github => ".github/workflows/weir.yml",
            Self::Gitlab => "weir.gitlab-ci.yml",
        }
    }

    /// The text of the file, for policies in this directory.
    pub(super) fn text(self, policies: &str) -> String {
        let text = match self {
            Self::Github => GITHUB,
            Self::Gitlab => GITLAB,
        };
        let changes = [
            ("\"policies/**", format!("\"{policies}/**")),
            ("POLICIES: policies\n", format!("POLICIES: \"{policies}\"\n")),
            ("git:origin/main:policies policies ", format!("git:origin/main:{policies} {policies} ")),
        ];
        match policies {
            "policies" => text.to_owned(),
            _ => changes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)),
        }
    }

    /// Steps for the user, in the repository and in the forge.
    pub(super) fn next_steps(self) -> Vec<&'static str> {
        match self {
            Self::Github => vec![
                "set the repository variable WEIR_REPOSITORY (owner/name of Weir): the job builds Weir from source",
                "set WEIR_REF to a tag or commit, so that every run builds the same version",
            ],
            Self::Gitlab => vec![
                "add `include: [{local: weir.gitlab-ci.yml}]` to .gitlab-ci.yml",
                "set the variable WEIR_REPOSITORY (the address to clone): the job builds Weir from source",
                "set WEIR_REF to a tag or branch, so that every run builds the same version",
            ],
        }
    }
}
