//! Times in the log and in events, and today's date.

#[cfg(feature = "enforce")]
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// RFC 3339, in UTC, to the millisecond.
#[cfg(feature = "enforce")]
pub(crate) fn rfc_3339(time: SystemTime) -> String {
    // No clock is beyond the year 9999, where the calendar ends.
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::MAX))
}

/// The time of a report, in UTC, to the minute. `SOURCE_DATE_EPOCH` sets it, so that a report can be reproduced byte for
/// byte.
pub(crate) fn report_time() -> Result<String> {
    let time = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => source_date(&text).context("SOURCE_DATE_EPOCH is not a number of seconds since 1970")?,
        Err(_) => Timestamp::now(),
    };
    Ok(time.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

fn source_date(text: &str) -> Result<Timestamp> {
    Ok(Timestamp::from_second(text.trim().parse()?)?)
}

/// The date in UTC.
pub(crate) fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

#[cfg(all(test, feature = "enforce"))]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        for (millis, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_007, "2000-02-29T00:00:00.007Z"),
            (1_767_225_599_100, "2025-12-31T23:59:59.100Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc_3339(UNIX_EPOCH + Duration::from_millis(millis)), expected);
        }
        let before_the_next = UNIX_EPOCH + Duration::from_nanos(1_999_999_999);
        assert_eq!(rfc_3339(before_the_next), "1970-01-01T00:00:01.999Z");
    }
}
