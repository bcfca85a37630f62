//! Facts about the release that its files state: version, commit, time, repository.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::process::{capture, cargo};

/// The owner in the repository's address as long as the project has no public repository.
const NO_OWNER: &str = "OWNER";

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Facts that the files of a release state.
#[derive(Clone, Debug)]
pub struct ReleaseFacts {
    /// The version without `v`.
    pub version: String,
    /// One line about the program.
    pub description: String,
    /// The address of the repository: `WEIR_REPOSITORY`, else `repository` of the workspace's manifest.
    pub repository: String,
    /// The commit.
    pub revision: String,
    /// The time of the commit in seconds since 1970: `SOURCE_DATE_EPOCH`, else git's.
    pub epoch: u64,
}

impl ReleaseFacts {
    /// Reads the manifest and the last commit.
    pub fn read(root: &Path) -> Result<Self> {
        let metadata = capture(cargo(&["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(root))?;
        let metadata: Value = serde_json::from_str(&metadata).context("the output of cargo metadata")?;
        let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
        let weir = packages.iter().find(|it| it["name"] == "weir").context("there is no package weir")?;
        let text = |key: &str| weir[key].as_str().map(str::to_owned).with_context(|| format!("weir has no {key}"));
        let git = |arguments: &[&str]| {
            capture(Command::new("git").current_dir(root).args(arguments)).map(|it| it.trim().to_owned())
        };
        let epoch = std::env::var("SOURCE_DATE_EPOCH").or_else(|_| git(&["show", "-s", "--format=%ct", "HEAD"]))?;
        Ok(Self {
            version: text("version")?,
            description: text("description")?,
            repository: std::env::var("WEIR_REPOSITORY").or_else(|_| text("repository"))?,
            revision: git(&["rev-parse", "HEAD"])?,
            epoch: epoch.parse().with_context(|| format!("the time of the release is not a number: {epoch}"))?,
        })
    }

    /// The time in the form of RFC 3339.
    pub fn time(&self) -> String {
        let (year, month, day) = date(self.epoch / 86_400);
        let second = self.epoch % 86_400;
        format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
    }

    /// The time in the form of mail, as Debian's changelogs have it.
    pub(super) fn mail_time(&self) -> String {
        let days = self.epoch / 86_400;
        let (year, month, day) = date(days);
        let second = self.epoch % 86_400;
        // 1970-01-01 was a Thursday.
        let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
        let month = MONTHS[(month - 1) as usize];
        let (hour, minute) = (second / 3_600, second / 60 % 60);
        format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{:02} +0000", second % 60)
    }

    /// Fails unless this tag can be released: it names the version, the changelog has the version, and the repository
    /// is known.
    pub(super) fn check_tag(&self, root: &Path, tag: &str) -> Result<()> {
        ensure!(
            tag == format!("v{}", self.version),
            "the tag is {tag}, and the version in Cargo.toml {}",
            self.version
        );
        let changelog = fs::read_to_string(root.join("CHANGELOG.md")).context("cannot read CHANGELOG.md")?;
        let heading = format!("## {}", self.version);
        let has_section = changelog.lines().any(|line| line == heading || line.starts_with(&format!("{heading} ")));
        ensure!(has_section, "CHANGELOG.md has no section `{heading}`");
        if self.repository.contains(NO_OWNER) {
            bail!("set `repository` in Cargo.toml (or WEIR_REPOSITORY): {} is a placeholder", self.repository);
        }
        Ok(())
    }
}

/// The date of a day since 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March, so that a leap day is the last one. A cycle of 400 years has 146,097 days.
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (cycle * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn facts() -> ReleaseFacts {
        ReleaseFacts {
            version: "1.2.3".into(),
            description: "A program".into(),
            repository: "https://git.example/weir".into(),
            revision: "c0ffee".into(),
            epoch: 951_782_400,
        }
    }

    #[test]
    fn times_are_rfc_3339() {
        let at = |epoch| ReleaseFacts { epoch, ..facts() }.time();
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn times_of_mail_have_the_day_of_the_week() {
        assert_eq!(facts().mail_time(), "Tue, 29 Feb 2000 00:00:00 +0000");
    }

    #[test]
    fn tags_that_do_not_fit_are_refused() {
        let root = std::env::temp_dir().join(format!("weir-dist-facts-{}", std::process::id()));
        fs::create_dir_all(&root).expect("temporary directories can be made");
        let write = |text: &str| fs::write(root.join("CHANGELOG.md"), text).expect("the directory is ours");
        write("## Unreleased\n\n## 1.2.30\n");
        let refused = |facts: ReleaseFacts, tag: &str| facts.check_tag(&root, tag).expect_err("refused").to_string();
        assert!(refused(facts(), "v1.2.4").contains("the tag is v1.2.4"));
        assert!(refused(facts(), "v1.2.3").contains("CHANGELOG.md"));
        write("## 1.2.3 (2026-01-01)\n");
        facts().check_tag(&root, "v1.2.3").expect("it fits");
        let unset = ReleaseFacts { repository: format!("https://git.example/{NO_OWNER}/weir"), ..facts() };
        assert!(refused(unset, "v1.2.3").contains("placeholder"));
        fs::remove_dir_all(&root).expect("the directory is ours");
    }
}
