//! The list of changes: its filter, order, folds, links and long lists.

use super::{TIERS, changed, open};
use crate::support::{Place, Ran};

/// A team's database, with a port that a diff can change.
fn team(name: &str, port: u16) -> String {
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: db, namespace: {name}}}, spec: \
         {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: \
         web}}}}}}], ports: [{{port: {port}}}]}}]}}}}\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: web, \
         namespace: {name}, labels: {{app: web}}}}}}\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: db, namespace: \
         {name}, labels: {{app: db}}}}}}\n"
    )
}

fn teams(port: impl Fn(usize) -> u16, number: usize) -> String {
    (0..number).map(|it| team(&format!("team-{it}"), port(it))).collect()
}

#[test]
fn the_list_can_be_filtered_and_sorted() {
    need_browser!();
    let place = Place::new().file("base.yaml", TIERS).file("head.yaml", changed());
    let page = place.run("diff --world closed base.yaml head.yaml -o html").exits(1).out;
    let browser = open(&place, &page);
    let shown = "const all = [...document.querySelectorAll('#change-list > li:not([hidden]) .ports')];
                 return all.map((it) => it.textContent).join('|')";
    let all = browser.text(shown);
    assert!(all.split('|').count() > 3, "{all}");
    browser.run("document.getElementById('list-filter').focus()");
    browser.type_text("5433 db");
    browser.wait("return document.getElementById('list-status').textContent.startsWith('1 of ')");
    assert_eq!(browser.text(shown), "TCP 5433");
    browser
        .run("const it = document.getElementById('list-filter'); it.value = ''; it.dispatchEvent(new Event('input'))");
    browser.wait("return document.getElementById('list-status').textContent === ''");
    let sort = |by: &str| {
        browser.run(&format!(
            "const it = document.getElementById('list-sort'); it.value = '{by}'; it.dispatchEvent(new Event('change'))"
        ));
        browser.text(shown)
    };
    let mut expected: Vec<String> = all.split('|').map(str::to_owned).collect();
    expected.sort();
    let mut sorted: Vec<String> = sort("ports").split('|').map(str::to_owned).collect();
    assert_ne!(sorted, all.split('|').collect::<Vec<_>>());
    sorted.sort();
    assert_eq!(sorted, expected);
    assert_eq!(sort(""), all);
}

#[test]
fn a_change_in_many_namespaces_is_one_entry() {
    need_browser!();
    let place = Place::new().file("base.yaml", teams(|_| 5432, 6)).file("head.yaml", teams(|_| 5433, 6));
    let page = place.run("diff base.yaml head.yaml -o html").exits(1).out;
    let browser = open(&place, &page);
    let folded = "const all = [...document.querySelectorAll('#change-list > .folded.added > details > summary')];
                  return all.map((it) => it.textContent).join('|')";
    assert!(
        browser.text(folded).contains("The same in 6 namespaces: team-0, team-1, team-2"),
        "{}",
        browser.text(folded)
    );
    browser.run("document.querySelector('.folded details').open = true");
    let rows = "return document.querySelectorAll('#change-list > .folded:first-child .change').length";
    assert_eq!(browser.run(rows), 6);
}

#[test]
fn a_long_list_is_shown_in_parts() {
    need_browser!();
    let number = 130;
    let port = |it: usize| 1000 + it as u16;
    let (base, head) = (teams(port, number), teams(|it| 3000 + it as u16, number));
    let place = Place::new().file("base.yaml", base).file("head.yaml", head);
    let page = place.run("diff --world closed --no-cost base.yaml head.yaml -o html").exits(1).out;
    let browser = open(&place, &page);
    let count = "return document.getElementById('change-list').children.length";
    assert_eq!(browser.run(count), 100);
    browser.run("document.getElementById('more').click()");
    assert_eq!(browser.run(count), 200);
    assert_eq!(browser.run("return document.activeElement.parentNode.id"), "change-list");
    browser.run("document.getElementById('list-filter').focus()");
    browser.type_text("3129");
    browser.wait("return document.getElementById('list-status').textContent === '1 of 260 shown'");
    assert_eq!(browser.run("return document.querySelectorAll('template, .more').length"), 0);
}

#[test]
fn entries_link_to_file_and_line_where_a_page_shows_them() {
    let place = Place::new().file("base.yaml", TIERS).file("net/head.yaml", changed());
    let run = |pattern: &str| {
        let mut command = place.command("diff --world closed base.yaml net/head.yaml -o html");
        Ran::from(command.env("WEIR_SOURCE_URL", pattern).output().expect("weir runs")).exits(1).out
    };
    let page = run("https://git.example/shop/{path}#L{line}");
    assert!(
        page.contains("href=\"https://git.example/shop/net/head.yaml&num;L7\"><code>net/head.yaml:7</code></a>"),
        "{page}"
    );
    assert!(!run("").contains("://"), "a link without a pattern");
    assert!(!run("javascript:alert(1)//{path}").contains("javascript:"), "a link that runs a script");
}
