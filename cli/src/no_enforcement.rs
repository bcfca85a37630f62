//! A build without the feature `enforce`: says so if a user names a command that it lacks.

/// The commands that need the feature.
const COMMANDS: [&str; 7] = ["attach", "bench", "bundle", "cni-install", "counters", "detach", "watch"];

/// The error for the user, if clap did not find a command because this build lacks it.
#[cfg(not(feature = "enforce"))]
pub(crate) fn explained(error: &clap::Error) -> Option<anyhow::Error> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    COMMANDS.contains(&name.as_str()).then(|| {
        crate::failure::with_hint(
            format!("this weir was built without enforcement, so it has no command `{name}`"),
            "use a build for Linux with the feature `enforce` (the default) on the node; \
             `weir compile` here makes artifacts for it",
        )
    })
}

/// The error for a user who asks for the state of this machine.
#[cfg(not(feature = "enforce"))]
pub(crate) fn only_remote(name: &str) -> anyhow::Error {
    crate::failure::with_hint(
        format!("this weir was built without enforcement, so `{name}` knows nothing about this machine"),
        format!("`weir {name} --all-nodes` asks the agents of a cluster"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "enforce")]
    #[test]
    fn the_list_names_every_command_that_needs_the_feature() {
        use clap::Subcommand as _;
        let commands = crate::args::EnforcementCommand::augment_subcommands(clap::Command::new("weir"));
        let mut names: Vec<&str> = commands.get_subcommands().map(clap::Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(names, COMMANDS);
        let all = crate::args::command();
        assert!(names.iter().all(|name| all.find_subcommand(name).is_some()));
    }

    #[cfg(not(feature = "enforce"))]
    #[test]
    fn a_missing_command_is_explained_and_a_misspelt_one_is_not() {
        let error =
            |name: &str| crate::args::command().try_get_matches_from(["weir", name]).expect_err("no such command");
        for name in COMMANDS {
            let explained = explained(&error(name)).expect("an explanation");
            assert!(explained.to_string().contains("built without enforcement"), "{name}: {explained}");
        }
        assert!(explained(&error("chekc")).is_none());
    }
}
