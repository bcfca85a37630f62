//! The agent's own process: memory, CPU time, descriptors and threads, from `/proc`.
//!
//! The names are those of Prometheus' client libraries, so existing dashboards show the agent too. A value that cannot
//! be read is left out.

use std::fs;

/// The clock ticks of `/proc` are hundredths of a second on every architecture (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// A metric's name and value.
pub(super) type ProcessValue = (&'static str, f64);

/// Reads the values of this process.
pub(super) fn read() -> Vec<ProcessValue> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut values = memory(&text("/proc/self/statm"), weir_runtime::sys::page_bytes() as f64);
    values.extend(times(&text("/proc/self/stat"), &text("/proc/stat")));
    // One of the descriptors is that of the directory.
    let open = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1) as f64);
    values.extend(open.map(|open| ("process_open_fds", open)));
    values.extend(most_descriptors(&text("/proc/self/limits")).map(|most| ("process_max_fds", most)));
    values
}

/// `/proc/self/statm` has numbers of pages: of the address space, then of the resident memory.
fn memory(statm: &str, page: f64) -> Vec<ProcessValue> {
    let names = ["process_virtual_memory_bytes", "process_resident_memory_bytes"];
    let pages = statm.split_whitespace().map_while(|it| it.parse::<f64>().ok());
    names.into_iter().zip(pages.map(|pages| pages * page)).collect()
}

/// `stat` is `/proc/self/stat`, with times since the host has started; `host` is `/proc/stat`, which has that moment.
fn times(stat: &str, host: &str) -> Vec<ProcessValue> {
    // The second field is the name, which may contain spaces and parentheses.
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .map(|it| it.parse().unwrap_or_default())
        .collect();
    let field = |number: usize| fields.get(number - 4).copied();
    let booted = host.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    let used = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND);
    let started = field(22).zip(booted).map(|(ticks, booted)| booted + ticks / TICKS_PER_SECOND);
    let values =
        [("process_cpu_seconds_total", used), ("process_threads", field(20)), ("process_start_time_seconds", started)];
    values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The soft limit of open files in `/proc/self/limits`.
fn most_descriptors(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_the_right_ones() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 2000 9999 25 18446744073709551615\n";
        let expected =
            [("process_cpu_seconds_total", 2.0), ("process_threads", 4.0), ("process_start_time_seconds", 1_000_020.0)];
        assert_eq!(times(stat, "cpu 1 2\nbtime 1000000\nprocesses 5\n"), expected);
        assert_eq!(times(stat, "").len(), 2, "without the host's start there is no start time");
        let memory = memory("10 4 2 1 0 1 0\n", 4_096.0);
        assert_eq!(memory, [("process_virtual_memory_bytes", 40_960.0), ("process_resident_memory_bytes", 16_384.0)]);
        assert_eq!(
            most_descriptors("Max open files            1024                 524288               files\n"),
            Some(1_024.0)
        );
        assert_eq!(
            most_descriptors("Max open files            unlimited            unlimited            files\n"),
            None
        );
    }

    #[test]
    fn every_value_of_this_process_is_read() {
        let values = read();
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), 7, "{names:?}");
        let positive = values.iter().filter(|(name, _)| *name != "process_cpu_seconds_total");
        positive.for_each(|(name, value)| assert!(*value > 0.0, "{name} is {value}"));
    }
}
