//! Views of a cluster of 200 namespaces, 2,000 pods and 500 policies: they fit the terminal, and equal rows of many
//! namespaces are one row.

use std::sync::LazyLock;

use weir_testing::large_cluster::{LargeChange, NAMESPACES, large_cluster};

use crate::support::{Place, Ran};

/// The inputs, written once.
static PLACE: LazyLock<Place> = LazyLock::new(|| {
    Place::new()
        .file("base.yaml", large_cluster(LargeChange::None))
        .file("port.yaml", large_cluster(LargeChange::Port))
        .file("several.yaml", large_cluster(LargeChange::Several))
});

const COLUMNS: usize = 80;

/// Runs a command for a terminal of 80 columns.
fn run(arguments: &str) -> Ran {
    Ran::from(PLACE.command(arguments).env("COLUMNS", COLUMNS.to_string()).output().expect("weir runs"))
}

#[test]
fn the_large_cluster_has_its_size() {
    run("check base.yaml").exits(0).says("checked 500 policies, 2000 pods, 200 namespaces");
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let commands = [
        ("matrix base.yaml", 0),
        ("matrix base.yaml --by workload", 0),
        ("graph base.yaml", 0),
        ("graph base.yaml --by workload", 0),
        ("exposure base.yaml", 0),
        ("exposure base.yaml --world closed", 0),
        ("diff base.yaml several.yaml --cost", 1),
        ("diff base.yaml several.yaml --world closed", 1),
        ("explain base.yaml --from team-00-dev/api-7d9c-0 --to team-00-dev/db-7d9c-0 --port 5432", 0),
        ("explain base.yaml --from team-00-dev/web-7d9c-0 --to team-01-dev/cache-7d9c-0 --port 5432", 0),
    ];
    for (command, code) in commands {
        let ran = run(command).exits(code);
        let wide: Vec<&str> = ran.out.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(wide.is_empty() && ran.out.lines().count() < 150, "{command}: {wide:#?} {}", ran.out.lines().count());
    }
}

#[test]
fn the_same_change_in_all_namespaces_is_one_row() {
    let ran = run("diff base.yaml port.yaml").exits(1);
    assert!(ran.out.starts_with("196 connections newly allowed, 196 no longer allowed.\n"), "{}", ran.out);
    assert_eq!(ran.out.matches("  + from ").count(), 1, "{}", ran.out);
    assert_eq!(ran.out.matches("  - from ").count(), 1, "{}", ran.out);
    let words = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let holds = "where NS is each of 196 of 200 namespaces (all but backup, edge, kube-system, monitoring)";
    assert_eq!(words.matches(holds).count(), 2, "{words}");
    assert_eq!(NAMESPACES, 200);
}

#[test]
fn isolation_that_ends_is_part_of_the_verdict() {
    let ran = run("diff base.yaml several.yaml").exits(1);
    let words = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.starts_with("216 connections newly allowed, 196 no longer allowed, 24 pods lose isolation."),
        "{words}"
    );
    assert!(words.contains("where NS is each of namespaces team-05-dev, team-05-prod, team-05-stage, team-05-test"));
    let isolation = ran.out.find("\nIsolation\n").expect("a section");
    assert!(isolation < ran.out.find("\nNewly allowed\n").expect("a section"), "{}", ran.out);
    assert!(!ran.out.contains("region") && !ran.out.contains("Cost"), "{}", ran.out);
}

#[test]
fn more_rows_than_the_limit_are_counted() {
    run("diff base.yaml several.yaml --max 2").exits(1).says("and 3 more rows (--max 0 shows all)");
    run("graph base.yaml --by workload --max 2").exits(0).says("more destinations (--max 0 shows all)");
    run("matrix base.yaml --max 4").exits(0).says("and 4 more rows and columns (--max 0 shows all)");
    for view in ["exposure", "matrix", "graph"] {
        run(&format!("{view} base.yaml -o html --max 1")).exits(2).complains("folds its lists itself");
    }
    run("exposure base.yaml --max 1").exits(0).says("  and 3 more (--max 0 shows all)");
}

#[test]
fn pictures_draw_namespaces_with_the_same_links_as_one_box() {
    let is_box = |line: &&str| line.contains(" [label=") && !line.contains(" -> ");
    let boxes = |text: &str| text.lines().filter(is_box).count();
    let ran = run("graph base.yaml -o dot").exits(0).complains("namespaces with the same links are one");
    assert!((2..=40).contains(&boxes(&ran.out)), "{}", ran.out);
    assert!(ran.out.contains("of 200 namespaces"), "{}", ran.out);
    let svg = run("graph base.yaml -o svg").exits(0);
    assert!((2..=80).contains(&svg.out.matches("class=\"box\"").count()), "{}", svg.out);
    let all = run("graph base.yaml -o dot --max 0").exits(0).complains("the picture has 201 boxes: --focus POD");
    assert_eq!(boxes(&all.out), 201);
    let focused = run("graph base.yaml -o dot --namespace team-00-dev").exits(0);
    assert!(!focused.err.contains("the picture has"), "{}", focused.err);
    let matrix = run("matrix base.yaml -o svg").exits(0).complains("namespaces with the same cells are one");
    assert!(matrix.out.contains("NS1 is each of 90 of 200 namespaces"), "{}", matrix.out);
    assert!(matrix.out.matches("class=\"head\"").count() <= 20, "{}", matrix.out);
    run("matrix base.yaml -o svg --max 3").exits(0).complains("more rows and columns (--max 0 shows all)");
    let all = run("matrix base.yaml -o svg --max 0").exits(0).complains("the picture has 201 rows and columns");
    assert_eq!(all.out.matches("class=\"head\"").count(), 201);
}

#[test]
fn suggestion_fits_the_terminal_except_for_its_patch() {
    let ran = run("suggest base.yaml --from team-00-dev/web-7d9c-0 --to team-01-dev/cache-7d9c-0 --port 6379").exits(0);
    let (before, rest) = ran.out.split_once("\nPatch\n").expect("a patch");
    let (_, changes) = rest.split_once("\nEverything that changes\n").expect("the comparison");
    let wide = before.lines().chain(changes.lines()).filter(|line| line.chars().count() > COLUMNS);
    assert_eq!(wide.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn failing_expectations_beyond_the_limit_are_counted() {
    let expectation = |number: usize| {
        format!("- {{name: e{number}, from: team-00-dev/web, to: team-01-dev/cache, port: 6379/tcp, expect: allow}}\n")
    };
    let text = format!("expectations:\n{}", (0..7).map(expectation).collect::<String>());
    std::fs::write(PLACE.path().join("fails.yaml"), text).expect("written");
    let ran = run("test base.yaml --expectations fails.yaml --max 2").exits(1);
    assert_eq!(ran.out.matches("FAILED").count(), 2, "{}", ran.out);
    let ran = ran.says("and 5 more that did not pass (--max 0 shows all)\n").says("7 expectations: 0 passed, 7 failed");
    drop(ran);
    let all = run("test base.yaml --expectations fails.yaml --max 0").exits(1);
    assert_eq!(all.out.matches("FAILED").count(), 7, "{}", all.out);
    let json = run("test base.yaml --expectations fails.yaml --max 2 -o json").exits(1).json();
    assert_eq!(json["results"].as_array().map(Vec::len), Some(7), "programs get everything");
}

#[test]
fn formats_for_ci_say_that_a_comparison_is_filtered() {
    let github = run("diff base.yaml port.yaml --port 1 -o github").exits(1);
    let notice = github.out.lines().find(|line| line.starts_with("::notice title=weir%3A filtered::"));
    assert!(notice.is_some(), "{}", github.out);
    let sarif = run("diff base.yaml port.yaml --port 1 -o sarif").exits(1).json();
    let notification = &sarif["runs"][0]["invocations"][0]["toolExecutionNotifications"][0];
    assert_eq!(notification["level"], "note");
    assert!(notification["message"]["text"].as_str().is_some_and(|it| !it.is_empty()), "{notification}");
    let whole = run("diff base.yaml port.yaml -o sarif").exits(1).json();
    assert!(whole["runs"][0]["invocations"].is_null(), "a whole answer has no such note");
}

#[test]
fn a_filter_of_a_comparison_shows_exactly_the_matching_rows() {
    let whole = run("diff base.yaml several.yaml --no-cost -o json").exits(1).json();
    let names = |document: &serde_json::Value, row: &serde_json::Value, end: &str| -> Vec<String> {
        let group = &document["groups"][row[end].as_u64().expect("a number") as usize];
        let all = group["endpoints"].as_array().expect("a list");
        all.iter().map(|it| it.as_str().expect("a name").to_owned()).collect()
    };
    let text = |document: &serde_json::Value, row: &serde_json::Value| {
        let group = |end: &str| document["groups"][row[end].as_u64().expect("a number") as usize]["text"].to_string();
        format!("{} {} {} {}", row["change"], group("from"), group("to"), row["traffic"])
    };
    let has_port = |row: &serde_json::Value, wanted: u64| {
        row["traffic"]["ports"].as_array().expect("a list").iter().any(|it| {
            let (first, last) = (it["first"].as_u64().expect("a port"), it["last"].as_u64().expect("a port"));
            it["protocol"] == "TCP" && (first..=last).contains(&wanted)
        })
    };
    type Wanted<'w> = Box<dyn Fn(&[String], &[String], &serde_json::Value) -> bool + 'w>;
    let is_in = |names: &[String], start: &str| names.iter().any(|it| it.starts_with(start));
    let cases: Vec<(&str, Wanted<'_>)> = vec![
        ("--port 9121", Box::new(|_, _, row| has_port(row, 9121))),
        ("--namespace team-05-dev", Box::new(|from, to, _| is_in(from, "team-05-dev/") || is_in(to, "team-05-dev/"))),
        ("--namespace team-05-dev --direction ingress", Box::new(|_, to, _| is_in(to, "team-05-dev/"))),
        (
            "--focus team-45-dev/cache",
            Box::new(|from, to, _| is_in(from, "team-45-dev/cache") || is_in(to, "team-45-dev/cache")),
        ),
        ("--from team-45-dev/api-7d9c-1", Box::new(|from, _, _| is_in(from, "team-45-dev/api-7d9c-1"))),
        (
            "--to team-00-dev/app=db --port 5432/tcp",
            Box::new(|_, to, row| is_in(to, "team-00-dev/db") && has_port(row, 5432)),
        ),
    ];
    for (options, wanted) in cases {
        let found = run(&format!("diff base.yaml several.yaml --no-cost -o json {options}")).exits(1).json();
        let rows = |document: &serde_json::Value| document["rows"].as_array().expect("a list").clone();
        let shown: Vec<String> = rows(&found).iter().map(|row| text(&found, row)).collect();
        let expected: Vec<String> = rows(&whole)
            .iter()
            .filter(|row| wanted(&names(&whole, row, "from"), &names(&whole, row, "to"), row))
            .map(|row| text(&whole, row))
            .collect();
        assert!(!expected.is_empty() && expected.len() < rows(&whole).len(), "{options}");
        assert_eq!(shown, expected, "{options}");
        assert_eq!(found["filter"]["options"], options);
        assert_eq!(found["summary"]["rows"], whole["summary"]["rows"], "the summary is that of the whole");
        weir_testing::schema::check_schema("diff", &found);
    }
}
