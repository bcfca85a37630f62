//! Decides which findings are shown and how severe they are: by `weir.toml`, then by the command line; the last setting
//! wins.

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use weir_lint::codes;
use weir_objects::diagnostic::{Code, Diagnostics, Severity};
use weir_policy::similar_name::most_similar;

use crate::failure::with_hint;

/// How a lint is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LintLevel {
    /// The lint is not reported.
    Off,
    /// The lint is reported with this severity.
    At(Severity),
}

impl LintLevel {
    /// The words of `weir.toml`.
    pub(crate) const WORDS: [&'static str; 4] = ["off", "note", "warning", "error"];

    /// Parses a word of `weir.toml`.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "off" => Some(Self::Off),
            "note" => Some(Self::At(Severity::Note)),
            "warning" => Some(Self::At(Severity::Warning)),
            "error" => Some(Self::At(Severity::Error)),
            _ => None,
        }
    }
}

/// `--allow`, `--warn` and `--deny`, in the order given.
#[derive(Clone, Debug, Default)]
pub(crate) struct LintFlags {
    pub(crate) levels: Vec<(String, LintLevel)>,
}

const FLAGS: [(&str, char, LintLevel, &str); 3] = [
    (
        "allow",
        'A',
        LintLevel::Off,
        "Do not report this lint (repeatable; of several flags for a code the last one counts)",
    ),
    ("warn", 'W', LintLevel::At(Severity::Warning), "Report this lint as a warning"),
    ("deny", 'D', LintLevel::At(Severity::Error), "Report this lint as an error"),
];

impl Args for LintFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        FLAGS.iter().fold(command, |command, (name, short, _, help)| {
            let arg = Arg::new(*name).long(*name).short(*short).value_name("CODE").help(*help);
            command.arg(arg.action(ArgAction::Append).help_heading("Lints"))
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LintFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found: Vec<(usize, String, LintLevel)> = Vec::new();
        for (name, _, level, _) in FLAGS {
            let values =
                matches.try_get_many::<String>(name).map_err(|_| clap::Error::new(ErrorKind::UnknownArgument))?;
            let indices = matches.indices_of(name).into_iter().flatten();
            found.extend(indices.zip(values.into_iter().flatten()).map(|(index, code)| (index, code.clone(), level)));
        }
        found.sort_by_key(|(index, ..)| *index);
        Ok(Self { levels: found.into_iter().map(|(_, code, level)| (code, level)).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The levels in force, each for a code that exists and may have it.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    levels: Vec<(&'static Code, LintLevel)>,
}

impl Levels {
    /// Sets the level of a code; overrides earlier settings.
    pub(crate) fn set(&mut self, name: &str, level: LintLevel) -> Result<()> {
        let code = find_code(name)?;
        if !code.lint && weaker(level, code.severity) {
            return Err(with_hint(
                format!("`{name}` is not a lint: it cannot be switched off"),
                format!("fix the input; `weir explain-code {name}` shows how"),
            ));
        }
        self.levels.retain(|(known, _)| *known != code);
        self.levels.push((code, level));
        Ok(())
    }

    /// Removes the findings of codes that are off, and sets the severity of the others.
    pub(crate) fn apply(&self, diagnostics: &mut Diagnostics) {
        diagnostics.retain_mut(|diagnostic| {
            match self.levels.iter().find(|(code, _)| *code == diagnostic.code).map(|(_, level)| *level) {
                None => true,
                Some(LintLevel::Off) => false,
                Some(LintLevel::At(severity)) => {
                    diagnostic.severity = severity;
                    true
                }
            }
        });
    }
}

fn weaker(level: LintLevel, severity: Severity) -> bool {
    match level {
        LintLevel::Off => true,
        LintLevel::At(at) => at < severity,
    }
}

/// The code of this name, or an error that names the nearest one.
pub(crate) fn find_code(name: &str) -> Result<&'static Code> {
    let all = codes::all();
    if let Some(code) = all.iter().find(|code| code.name == name) {
        return Ok(code);
    }
    let hint = match most_similar(name, all.iter().map(|code| code.name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`weir explain-code --list` lists all codes".to_owned(),
    };
    Err(with_hint(format!("there is no code `{name}`"), hint))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, CliCommand};

    #[test]
    fn flags_keep_their_order() {
        let cli = Cli::try_parse_from(["weir", "check", "-D", "a", ".", "-A", "b", "--deny", "b"]).expect("parses");
        let CliCommand::Check(check) = cli.command else { panic!("not check") };
        let expected =
            [("a", LintLevel::At(Severity::Error)), ("b", LintLevel::Off), ("b", LintLevel::At(Severity::Error))];
        let found: Vec<_> = check.lints.levels.iter().map(|(code, level)| (code.as_str(), *level)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_last_level_of_a_code_counts() {
        let mut levels = Levels::default();
        levels.set("duplicate-address", LintLevel::Off).expect("a lint");
        levels.set("duplicate-address", LintLevel::At(Severity::Error)).expect("a lint");
        assert_eq!(levels.levels.len(), 1);
        assert_eq!(levels.levels[0].1, LintLevel::At(Severity::Error));
    }

    #[test]
    fn an_unknown_code_names_the_nearest() {
        let error = find_code("duplicate-adress").expect_err("misspelt");
        let page = crate::failure::page(&error);
        let page = page.as_str();
        assert!(page.contains("did you mean `duplicate-address`?"), "{page}");
    }
}
