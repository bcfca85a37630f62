//! The HTML report, in a real headless browser.

macro_rules! need_browser {
    () => {
        if let Some(missing) = crate::report::browser::Browser::missing() {
            weir_runtime::skip!("{missing} is not installed");
        }
    };
}

mod axe;
mod browser;
mod graph;
mod list;
mod pictures;
mod screen;

use std::path::Path;

use browser::Browser;
use serde_json::Value;

use crate::support::{Place, Ran};

/// A shop in two tiers, behind a policy on each, and a namespace without any.
const TIERS: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: web}}}]
      ports: [{port: 5432}]
    - from: [{ipBlock: {cidr: 192.0.2.0/24}}]
      ports: [{port: 443}, {port: 5432}]
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: probe, namespace: ops, labels: {app: probe}}, status: {podIP: 10.0.0.3}}
";

/// The report on the files in the place.
fn report(place: &Place, paths: &str) -> Browser {
    let page = place.run(&format!("matrix {paths} -o html")).exits(0).out;
    open(place, &page)
}

fn open(place: &Place, page: &str) -> Browser {
    let path = place.path().join("report.html");
    std::fs::write(&path, page).expect("written");
    Browser::open(&path)
}

/// The label of the cell between two ends.
fn cell(browser: &Browser, from: &str, to: &str) -> String {
    let wanted = format!("{from} to {to}: ");
    browser.text(&format!(
        "const all = [...document.querySelectorAll('[role=gridcell]')].map((it) => it.getAttribute('aria-label'));
         return all.find((it) => it.startsWith({wanted:?})) || all.join('\\n')"
    ))
}

/// Opens all namespaces, in a grid that is large enough for all cells.
const SHOW_ALL_CELLS: &str = "
    document.getElementById('open').click();
    document.getElementById('grid').style.cssText =
      'contain: none; position: fixed; inset: 0; width: 4000px; height: 4000px; z-index: 9';
    window.dispatchEvent(new Event('resize'))";

#[test]
fn the_page_agrees_with_the_compiler_about_every_pair() {
    need_browser!();
    let place = Place::new().file("in/tiers.yaml", TIERS);
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/examples");
    for name in ["18-dual-stack.yaml", "09-ipblock-except.yaml", "08-named-ports.yaml", "15-match-expressions.yaml"] {
        std::fs::copy(policies.join(name), place.path().join("in").join(name)).expect("copied");
    }
    let browser = report(&place, "in");
    browser.run(SHOW_ALL_CELLS);
    browser.wait("return document.querySelectorAll('[role=gridcell]').length > 300");
    let labels = browser
        .run("return [...document.querySelectorAll('[role=gridcell]')].map((it) => it.getAttribute('aria-label'))");
    let labels: Vec<&str> = labels.as_array().expect("labels").iter().filter_map(Value::as_str).collect();
    let document = place.run("matrix in --by workload -o json").exits(0).json();
    let ends = place.run("matrix in --by workload -o csv").exits(0).out;
    let ends: Vec<&str> = ends.lines().skip(1).map(|line| line.split(',').next().expect("a field")).collect();
    let mut compared = 0;
    for (from, row) in document["cells"].as_array().expect("rows").iter().enumerate() {
        for (to, value) in row.as_array().expect("cells").iter().enumerate() {
            let value = &document["values"][value.as_u64().expect("an index") as usize];
            // Ranges contain commas and are quoted in CSV. This test does not parse quotes, so it skips the cells of
            // such ends.
            if ends[from].starts_with('"') || ends[to].starts_with('"') {
                continue;
            }
            let expected = format!("{} to {}: {}", ends[from], ends[to], value["words"].as_str().expect("words"));
            assert!(labels.contains(&expected.as_str()), "{expected}\nnot among {labels:#?}");
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared} pairs");
}

#[test]
fn everything_can_be_done_with_the_keyboard() {
    need_browser!();
    let browser = report(&Place::new().file("tiers.yaml", TIERS), "tiers.yaml");
    // Tab enters the grid, which is one tab stop.
    browser.run("document.getElementById('close').click(); document.getElementById('close').focus()");
    browser.press(&["Tab"]);
    assert_eq!(browser.text("return document.activeElement.getAttribute('role')"), "gridcell");
    // To the second namespace's row header, which opens it; then to the pair shop/web → shop.
    browser.press(&["Down", "Left"]);
    assert_eq!(browser.text("return document.activeElement.getAttribute('role')"), "rowheader");
    assert_eq!(browser.text("return document.activeElement.getAttribute('aria-expanded')"), "false");
    browser.press(&["Enter"]);
    assert_eq!(browser.text("return document.activeElement.getAttribute('aria-expanded')"), "true");
    browser.press(&["Down", "Right", "Right"]);
    let focused = "return document.activeElement.getAttribute('aria-label')";
    assert!(browser.text(focused).starts_with("shop/db to shop: "), "{}", browser.text(focused));
    browser.press(&["Down", "Right"]);
    assert!(browser.text(focused).starts_with("shop/web to shop/db: TCP 5432"), "{}", browser.text(focused));
    browser.press(&["Enter"]);
    assert_eq!(browser.text("return document.activeElement.id"), "details");
    let details = browser.text("return document.getElementById('details').innerText");
    for expected in ["shop/web → shop/db", "TCP 5432", "shop/db spec.ingress[0]: TCP 5432", "tiers.yaml:7"] {
        assert!(details.contains(expected), "no {expected} in {details}");
    }
    assert!(!details.contains("spec.ingress[1]"), "another peer's rule: {details}");
    browser.press(&["Escape"]);
    assert!(browser.text(focused).starts_with("shop/web to shop/db"), "back where it was");
    browser.press(&["/"]);
    assert_eq!(browser.text("return document.activeElement.id"), "from");
}

#[test]
fn filters_narrow_the_matrix_to_names_and_ports() {
    need_browser!();
    let browser = report(&Place::new().file("tiers.yaml", TIERS), "tiers.yaml");
    assert!(cell(&browser, "shop/web", "shop/db").ends_with(": TCP 5432"));
    browser.press(&["/"]);
    browser.type_text("probe");
    browser.wait("return document.getElementById('status').textContent.startsWith('1 source,')");
    assert!(cell(&browser, "ops/probe", "shop/db").ends_with(": nothing"));
    browser.run("document.getElementById('from').value = ''; document.getElementById('port').focus()");
    browser.type_text("443/tcp");
    browser.wait(
        "const cells = [...document.querySelectorAll('[aria-label^=\"shop/web to shop/db:\"]')];
         return cells.some((it) => it.classList.contains('none'))",
    );
    let full = "return [...document.querySelectorAll('[aria-label^=\"192.0.2.0/24 to shop/db:\"]')][0].className";
    assert!(browser.text(full).contains("full"), "443 passes from the block: {}", browser.text(full));
    browser.type_text("x");
    browser.wait("return document.getElementById('port').getAttribute('aria-invalid') === 'true'");
}

#[test]
fn a_click_leads_to_the_rule() {
    need_browser!();
    let browser = report(&Place::new().file("tiers.yaml", TIERS), "tiers.yaml");
    browser.click("[aria-label^=\"192.0.2.0/24 to shop/db:\"]");
    let details = browser.text("return document.getElementById('details').innerText");
    for expected in ["192.0.2.0/24 → shop/db", "TCP 443, 5432", "shop/db spec.ingress[1]", "tiers.yaml:9"] {
        assert!(details.contains(expected), "no {expected} in {details}");
    }
    browser.click("[aria-label^=\"ops/probe to shop/db:\"]");
    let details = browser.text("return document.getElementById('details').innerText");
    assert!(details.contains("no rule of the policies that isolate it allows this traffic"), "{details}");
}

#[test]
fn hostile_names_stay_text() {
    need_browser!();
    let name =
        "in</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>&'\"]]>\u{2028}@SCRIPT@.yaml";
    let place = Place::new().file(name, TIERS);
    let page = {
        let mut command = place.command("matrix -o html");
        Ran::from(command.arg(name).output().expect("weir runs")).exits(0).out
    };
    let browser = open(&place, &page);
    browser.click("[aria-label^=\"shop/web to shop/db:\"]");
    let details = browser.text("return document.getElementById('details').textContent");
    assert!(details.contains(&format!("{}:7", name.replace('\u{2028}', "\\u{2028}"))), "{details}");
    assert_eq!(browser.run("return window.hacked || 0"), 0);
    assert_eq!(browser.run("return document.images.length"), 0);
    assert_eq!(browser.run("return document.scripts.length"), 2);
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn nothing_is_fetched_and_no_injected_script_runs() {
    need_browser!();
    let place = Place::new().file("tiers.yaml", TIERS);
    let page = place.run("matrix tiers.yaml -o html").exits(0).out;
    assert!(!page.contains("://"), "an address in the page");
    let browser = open(&place, &page);
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), 0);
    let script = "const it = document.createElement('script'); it.textContent = 'window.hacked = 1';
                  document.body.append(it); return window.hacked || 0";
    assert_eq!(browser.run(script), 0, "content security lets other scripts run");
}

#[test]
fn it_prints_as_a_table_in_black_on_white() {
    need_browser!();
    let browser = report(&Place::new().file("tiers.yaml", TIERS), "tiers.yaml");
    browser.emulate("dark", "print");
    browser.run("window.dispatchEvent(new Event('beforeprint'))");
    assert_eq!(browser.text("return getComputedStyle(document.getElementById('grid').parentNode).display"), "none");
    assert_eq!(browser.text("return getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)");
    let rows = browser.run("return [...document.querySelectorAll('#print tbody tr')].map((it) => it.innerText)");
    let rows: Vec<&str> = rows.as_array().expect("rows").iter().filter_map(Value::as_str).collect();
    assert!(rows.iter().any(|it| it.starts_with("shop/web") && it.contains('◐')), "{rows:?}");
}

/// Two thousand workloads in twenty namespaces, every tenth with a policy about its own port.
fn many_workloads(first_port: usize) -> String {
    let mut text = TIERS.to_owned();
    for index in 0..2000 {
        let (namespace, app) = (index % 20, index / 20);
        text.push_str(&format!(
            "---\n{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: app-{app}, namespace: team-{namespace}}}, spec: \
             {{selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{labels: {{app: \"{index}\"}}}}, spec: {{}}}}}}}}\n"
        ));
        if index % 10 == 0 {
            text.push_str(&format!(
                "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p-{index}, namespace: \
                 team-{namespace}}}, spec: {{podSelector: {{matchLabels: {{app: \"{index}\"}}}}, ingress: [{{from: \
                 [{{podSelector: {{}}}}], ports: [{{port: {}}}]}}]}}}}\n",
                index + first_port
            ));
        }
    }
    text
}

#[test]
fn two_thousand_workloads_open_with_a_small_document() {
    need_browser!();
    let place = Place::new().file("base.yaml", many_workloads(1)).file("head.yaml", many_workloads(2));
    let page = place.run("diff --world closed --no-cost base.yaml head.yaml -o html").exits(1).out;
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    let browser = open(&place, &page);
    let nodes = "return document.querySelectorAll('*').length";
    let status = "return document.getElementById('status').textContent";
    // Only the two hundred workloads with policies, and those that these let in.
    assert_eq!(browser.text(status), "200 sources, 200 destinations");
    assert!(browser.run(nodes).as_u64().is_some_and(|it| it < 4000), "{} nodes", browser.run(nodes));
    browser.click("#changed");
    browser.wait("return document.getElementById('status').textContent.startsWith('2006 sources, 2006')");
    browser.click("#open");
    assert_eq!(browser.run("return document.getElementById('grid').ariaRowCount > '2020'"), true);
    assert!(browser.run(nodes).as_u64().is_some_and(|it| it < 5000), "{} nodes", browser.run(nodes));
    // To the last row and column, by keyboard and by scrolling.
    browser.run("document.querySelector('[role=gridcell][tabindex=\"0\"]').focus()");
    browser.press(&["End"]);
    browser.wait("return document.activeElement.getAttribute('aria-label').includes('any IPv6 address outside')");
    browser.run("document.getElementById('grid').scrollTop = 1e9");
    browser.wait(
        "return [...document.querySelectorAll('[role=rowheader]')].some((it) => it.textContent.includes('any IPv6'))",
    );
    // The headers stay, however far the matrix is scrolled.
    let headers = browser.run(
        "const grid = document.getElementById('grid').getBoundingClientRect();
         const column = document.querySelector('.column').getBoundingClientRect();
         const side = document.querySelector('.side').getBoundingClientRect();
         const { fontSize } = getComputedStyle(document.querySelector('.column'));
         return [column.top - grid.top, side.left - grid.left, fontSize]",
    );
    assert_eq!(headers, serde_json::json!([1, 1, "13px"]));
    assert!(browser.run(nodes).as_u64().is_some_and(|it| it < 5000), "{} nodes", browser.run(nodes));
    assert_eq!(browser.console(), [""; 0]);
}

/// The same cluster with another block, with web on another port, and with one pod replaced by another.
fn changed() -> String {
    let text = TIERS.replace("192.0.2.0/24", "192.0.2.0/25").replacen("[{port: 5432}]", "[{port: 5433}]", 1);
    text.replace("name: probe,", "name: prober,")
}

#[test]
fn a_change_is_marked_in_its_cells_and_listed_below() {
    need_browser!();
    let place = Place::new().file("base.yaml", TIERS).file("head.yaml", changed());
    let page = place.run("diff --world closed base.yaml head.yaml -o html").exits(1).out;
    let browser = open(&place, &page);
    let class = |from: &str, to: &str| {
        browser.text(&format!("return document.querySelector('[aria-label^=\"{from} to {to}:\"]').className"))
    };
    let glyph = |from: &str, to: &str| {
        browser.text(&format!("return document.querySelector('[aria-label^=\"{from} to {to}:\"]').textContent"))
    };
    assert_eq!((class("shop/web", "shop/db").as_str(), glyph("shop/web", "shop/db").as_str()), ("cell both", "±"));
    // The block's second half is a separate end now.
    assert_eq!(
        (class("192.0.2.128/25", "shop/db").as_str(), glyph("192.0.2.128/25", "shop/db").as_str()),
        ("cell removed", "−")
    );
    assert_eq!(class("192.0.2.0/25", "shop/db"), "cell part share1");
    assert_eq!(class("ops/prober", "shop/web"), "cell added");
    assert_eq!(
        (class("ops/probe", "shop/web").as_str(), glyph("ops/prober", "shop/web").as_str()),
        ("cell removed", "+")
    );
    browser.click("[aria-label^=\"192.0.2.128/25 to shop/db:\"]");
    let details = browser.text("return document.getElementById('details').innerText");
    for expected in [
        "no longer allowed: TCP 443, 5432",
        "base.yaml:",
        "for example 192.0.2.129 → shop/db TCP 443",
        "allowed before, denied now",
    ] {
        assert!(details.contains(expected), "no {expected} in {details}");
    }
    let list = browser.text("return document.getElementById('list').innerText");
    for expected in ["shop/web → shop/db: TCP 5433", "shop/web → shop/db: TCP 5432", "ops/prober"] {
        assert!(list.contains(expected), "no {expected} in {list}");
    }
    browser.run("document.getElementById('port').focus()");
    browser.type_text("5433");
    browser.wait("return document.querySelector('[aria-label^=\"shop/web to shop/db:\"]').className === 'cell added'");
}

#[test]
fn exactly_the_pairs_of_a_row_are_marked() {
    need_browser!();
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/changes");
    let place = Place::new();
    for name in ["base.yaml", "head.yaml"] {
        std::fs::copy(policies.join(name), place.path().join(name)).expect("copied");
    }
    let page = place.run("diff --world closed base.yaml head.yaml -o html").exits(1).out;
    let browser = open(&place, &page);
    browser.run(SHOW_ALL_CELLS);
    let document = place.run("diff --world closed base.yaml head.yaml -o json").exits(1).json();
    let members = |row: &Value, side: &str| -> Vec<String> {
        let group = &document["groups"][row[side].as_u64().expect("a number") as usize];
        let names = group["endpoints"].as_array().expect("endpoints").iter().filter_map(Value::as_str);
        // The page names workloads without their kind.
        names
            .map(|it| it.rsplitn(3, '/').take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("/"))
            .collect()
    };
    let mut expected: Vec<String> = Vec::new();
    for row in document["rows"].as_array().expect("rows") {
        let change = row["change"].as_str().expect("a change");
        for from in members(row, "from") {
            expected.extend(members(row, "to").iter().map(|to| format!("{from} to {to} {change}")));
        }
    }
    expected.sort();
    expected.dedup();
    let marked = browser.run(
        "return [...document.querySelectorAll('[role=gridcell]')].flatMap((it) => {
           const [ends, words] = it.getAttribute('aria-label').split(/: (.*)/s);
           const names = ends.split(' to ');
           if (!names.every((name) => /^[a-z-]+\\/[a-z0-9-]+$/.test(name))) return [];
           const found = { added: 'newly allowed', removed: 'no longer allowed' };
           return Object.keys(found).filter((it) => words.split(', ').includes(found[it])).map((it) => `${ends} ${it}`);
         }).sort()",
    );
    let marked: Vec<&str> = marked.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    // In the page, a pod and itself belong to one workload: rows say nothing about this pair, but cells between a
    // workload's pods do.
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    assert!(!expected.is_empty());
    assert_eq!(marked, expected);
}

#[test]
fn only_what_changes_is_shown_until_it_is_switched_off() {
    need_browser!();
    let head = TIERS.replace("192.0.2.0/24", "192.0.2.0/25");
    let place = Place::new().file("base.yaml", TIERS).file("head.yaml", head);
    let page = place.run("diff --world closed base.yaml head.yaml -o html").exits(1).out;
    let browser = open(&place, &page);
    let rows = "return [...document.querySelectorAll('[role=rowheader].inner')].map((it) => it.textContent).join()";
    assert_eq!(browser.text("return document.getElementById('status').textContent"), "1 source, 1 destination");
    assert_eq!(browser.text(rows), "192.0.2.128/25");
    browser.run("document.getElementById('changed').scrollIntoView()");
    browser.click("#changed");
    browser.wait("return document.getElementById('status').textContent === '7 sources, 7 destinations'");
    assert!(browser.text(rows).contains("web"), "{}", browser.text(rows));
}
