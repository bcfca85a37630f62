//! The layout of the help: commands in groups, and a command's own options before those that all commands have.

use clap::Command;

/// The commands by the user's task.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Ask", &["explain", "query", "matrix", "graph", "exposure", "diff"]),
    ("Check", &["check", "test", "explain-code"]),
    ("Write policies", &["suggest", "learn", "init"]),
    ("Compile", &["compile", "inspect", "verify"]),
    (
        "Enforce",
        &[
            "demo",
            "attach",
            "detach",
            "status",
            "flows",
            "monitor",
            "counters",
            "bench",
            "bundle",
            "watch",
            "cni-install",
        ],
    ),
    ("Other", &["version", "completions", "man", "help"]),
];

/// The command line with the layout of its help.
pub(crate) fn command() -> Command {
    laid_out(super::command())
}

/// The same for a command with another name.
pub(crate) fn laid_out(mut command: Command) -> Command {
    // Hands the global options down to the subcommands, where they are then hidden in `-h`.
    command.build();
    let globals: Vec<String> = command
        .get_arguments()
        .filter(|it| it.is_global_set())
        .filter_map(|it| it.get_long().map(|long| format!("--{long}")))
        .collect();
    let name = command.get_bin_name().unwrap_or("weir").to_owned();
    let line = folded(&format!("Global options: {}; see `{name} --help`", globals.join(", ")));
    let groups = groups(&command);
    let command = command.mut_subcommands(|it| {
        let it = it.mut_args(|arg| if arg.is_global_set() { arg.hide_short_help(true) } else { arg });
        let after = it.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        it.after_help(format!("{after}{line}"))
    });
    let template = "{about}\n\n{usage-heading} {usage}\n\nGROUPSGlobal options:\n{options}{after-help}";
    command.help_template(template.replace("GROUPS", &groups))
}

/// The commands of each group, with their descriptions.
fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        let known: Vec<&Command> = names.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if known.is_empty() {
            continue;
        }
        text.push_str(&format!("{title}:\n"));
        for it in known {
            let about = it.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {:<14}{about}\n", it.get_name()));
        }
        text.push('\n');
    }
    text
}

/// Lines of at most 100 columns.
fn folded(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, String::len);
        if last + word.len() > 98 {
            lines.push(" ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            let space = if line.is_empty() { "" } else { " " };
            line.push_str(&format!("{space}{word}"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_command_is_in_exactly_one_group() {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        GROUPS.iter().flat_map(|(_, names)| *names).for_each(|name| *seen.entry(name).or_default() += 1);
        let command = command();
        for it in command.get_subcommands() {
            assert_eq!(seen.remove(it.get_name()), Some(1), "{}", it.get_name());
        }
        if cfg!(feature = "enforce") {
            assert!(seen.is_empty(), "no such command: {seen:?}");
        }
    }

    #[test]
    fn short_help_has_the_own_options_and_names_the_global_ones_in_a_line() {
        let mut command = command();
        let diff = command.find_subcommand_mut("diff").expect("a command");
        let (short, long) = (diff.render_help().to_string(), diff.render_long_help().to_string());
        assert!(short.contains("--approved") && !short.contains("--deny-list <FILE>"), "{short}");
        assert!(short.contains("Global options: --namespace, --assume"), "{short}");
        assert!(long.contains("--deny-list <FILE>"), "{long}");
        let all = command.render_help().to_string();
        assert!(all.contains("Ask:\n  explain ") && all.contains("--deny-list <FILE>"), "{all}");
    }
}
