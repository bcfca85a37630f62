//! The graph around a workload.

use super::{TIERS, changed, open, report};
use crate::support::Place;

const CENTRE: &str = "return document.getElementById('graph-centre').textContent";

#[test]
fn a_neighbour_becomes_the_centre() {
    need_browser!();
    let browser = report(&Place::new().file("tiers.yaml", TIERS), "tiers.yaml");
    browser.run("document.getElementById('graph-search').focus()");
    browser.type_text("shop/web");
    browser.wait("return document.querySelectorAll('#graph-found button').length === 1");
    browser.press(&["Enter"]);
    assert_eq!(browser.text(CENTRE), "shop/web");
    assert_eq!(browser.text("return document.activeElement.id"), "graph-centre");
    let to = "return [...document.querySelectorAll('.box')].map((it) => it.getAttribute('aria-label')).join('\\n')";
    let boxes = browser.text(to);
    assert!(boxes.contains("shop/db TCP 5432: shop/db, TCP 5432, destination of shop/web; moves there"), "{boxes}");
    // With the mouse, and back with the keyboard.
    browser.run("document.getElementById('graph').scrollIntoView()");
    browser.click(".box[aria-label^=\"shop/db TCP 5432\"]");
    assert_eq!(browser.text(CENTRE), "shop/db");
    let boxes = browser.text(to);
    assert!(boxes.contains("192.0.2.0/24 TCP 443, 5432: 192.0.2.0/24, TCP 443, 5432, source of shop/db"), "{boxes}");
    assert!(!boxes.contains("ops/probe nothing"), "no edge without traffic: {boxes}");
    browser.run("document.querySelector('.box[aria-label*=\"source of shop/db\"][aria-label^=\"shop/web\"]').focus()");
    browser.press(&["Enter"]);
    assert_eq!(browser.text(CENTRE), "shop/web");
    browser.run("document.getElementById('graph-back').click()");
    assert_eq!(browser.text(CENTRE), "shop/db");
    browser.run("document.getElementById('graph-table').open = true");
    browser.wait("return document.querySelectorAll('#graph-rows tr').length > 2");
    let table = browser.text("return document.getElementById('graph-rows').innerText");
    assert!(table.contains("reaches it\t192.0.2.0/24\tTCP 443, 5432"), "{table}");
}

#[test]
fn changes_lie_over_the_graph() {
    need_browser!();
    let place = Place::new().file("base.yaml", TIERS).file("head.yaml", changed());
    let page = place.run("diff --world closed base.yaml head.yaml -o html").exits(1).out;
    let browser = open(&place, &page);
    // From the entry of the list to the graph around its destination.
    browser.run(
        "const entries = [...document.querySelectorAll('[data-change]')];
         const entry = entries.find((it) => it.textContent.includes('TCP 5433'));
         entry.id = 'entry'; entry.querySelector('details').open = true",
    );
    browser.wait("return document.querySelector('#entry .show-graph') !== null");
    browser.run("document.querySelector('#entry .show-graph').click()");
    assert_eq!(browser.text(CENTRE), "shop/db");
    let classes = "return [...document.querySelectorAll('.box')].map((it) => {
         const [name, ports] = ['.name', '.ports'].map((part) => it.querySelector(part).textContent);
         return `${it.getAttribute('class')} ${name}: ${ports}`;
       }).join('\\n')";
    let boxes = browser.text(classes);
    for expected in ["box both ± shop/web: + TCP 5433; − TCP 5432", "box removed − 192.0.2.128/25: − TCP 443, 5432"]
    {
        assert!(boxes.contains(expected), "no {expected} in {boxes}");
    }
    let style = |selector: &str, name: &str| {
        browser.text(&format!("return getComputedStyle(document.querySelector('{selector}')).{name}"))
    };
    assert_ne!(style(".edge.removed", "strokeDasharray"), "none");
    let width = |selector: &str| style(selector, "strokeWidth").trim_end_matches("px").parse::<f64>().expect("a width");
    assert!(width(".edge.both") > width(".edge.removed"));
}

#[test]
fn many_neighbours_are_folded_into_their_namespaces() {
    need_browser!();
    let pod = |it: usize| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{it}, namespace: team-{}, labels: {{n: \"{it}\"}}}}}}\n",
            it % 3
        )
    };
    let text = format!("{TIERS}{}", (0..60).map(pod).collect::<String>());
    let browser = report(&Place::new().file("many.yaml", text), "many.yaml");
    let boxes = "return document.querySelectorAll('.box').length";
    let before = browser.run(boxes).as_u64().expect("a number");
    assert!(before < 20, "{before} boxes");
    browser.run("document.querySelector('.box[aria-label^=\"team-0 (20)\"]').dispatchEvent(new Event('click'))");
    let after = browser.run(boxes).as_u64().expect("a number");
    assert!(after >= before + 19, "{after} boxes");
}
