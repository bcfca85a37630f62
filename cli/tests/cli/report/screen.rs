//! The first screen, its look in all media, and what assistive technology gets.

use serde_json::Value;

use super::browser::Browser;
use super::{TIERS, changed, open, report};
use crate::support::Place;

fn change_report(place: &Place) -> Browser {
    let page = place.run("diff --world closed base.yaml head.yaml -o html").exits(1).out;
    open(place, &page)
}

fn change_place() -> Place {
    Place::new().file("base.yaml", TIERS).file("head.yaml", changed())
}

/// The elements of a selector that are not completely inside of the window.
const OUT_OF_VIEW: &str = "
    return arguments_of.flatMap((selector) => {
      const node = document.querySelector(selector);
      if (!node) return [`no ${selector}`];
      const box = node.getBoundingClientRect();
      const inside = box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
      return inside && box.height > 0 ? [] : [`${selector}: ${JSON.stringify(box)}`];
    })";

#[test]
fn the_first_screen_has_the_verdict_the_cards_and_the_first_change() {
    need_browser!();
    let place = change_place();
    let browser = change_report(&place);
    let wanted = "const arguments_of = ['#title', '.origin', '#verdict', '.card:nth-child(1)', '.card:nth-child(4)', \
                  '#list-filter', '#change-list > li:first-child .badge'];";
    for (width, height) in [(1280, 800), (390, 844)] {
        browser.resize(width, height);
        assert_eq!(browser.run(&format!("{wanted}{OUT_OF_VIEW}")), serde_json::json!([]), "{width}×{height}");
    }
    let text = |selector: &str| browser.text(&format!("return document.querySelector('{selector}').innerText"));
    assert_eq!(text("#title"), "Weir Changes from base.yaml to head.yaml");
    assert!(text("#verdict").contains("This change newly allows traffic ("), "{}", text("#verdict"));
    let cards = text(".cards");
    for expected in ["Newly allowed", "No longer allowed", "Isolation", "Exposure"] {
        assert!(cards.contains(expected), "no {expected} in {cards}");
    }
    let origin = text(".origin").replace('\n', " ");
    for expected in ["Base base.yaml: 1 file, 1 policy, 3 pods", "Head head.yaml: 1 file", "Time 20", "UTC"] {
        assert!(origin.contains(expected), "no {expected} in {origin}");
    }
}

#[test]
fn a_report_without_changes_says_what_is_open() {
    need_browser!();
    let place = Place::new().file("tiers.yaml", TIERS);
    let browser = report(&place, "tiers.yaml");
    let text = |selector: &str| browser.text(&format!("return document.querySelector('{selector}').innerText"));
    assert!(text("#verdict").contains("Of 3 workloads, 3 can be reached from outside"), "{}", text("#verdict"));
    let list = text("#change-list");
    for expected in ["from outside", "192.0.2.0/24 → shop/db: TCP 443, 5432", "shop/db spec.ingress[1]", "tiers.yaml:9"]
    {
        assert!(list.contains(expected), "no {expected} in {list}");
    }
    assert_eq!(browser.run("return document.getElementById('changed').getClientRects().length"), 0);
}

#[test]
fn report_on_the_exposure_has_possible_pods() {
    let place = Place::new().file("tiers.yaml", TIERS);
    let page = place.run("exposure tiers.yaml -o html").exits(0).out;
    assert!(page.contains("Weir</span> Exposure"), "the title: {page}");
    assert!(page.contains("of pods that could exist can be reached."), "the verdict: {page}");
    let possible = page.split("<li class=\"change").filter(|it| it.contains("pods that could exist</span>"));
    let possible: Vec<&str> = possible.collect();
    let of_rule = possible.iter().find(|it| it.contains("192.0.2.0/24")).expect("the rule's possible pods");
    for expected in ["app=db", "TCP 443, 5432", "shop/db spec.ingress[1]", "tiers.yaml:9"] {
        assert!(of_rule.contains(expected), "no {expected} in {of_rule}");
    }
    let closed = place.run("exposure tiers.yaml --world closed -o html").exits(0).out;
    assert!(!closed.contains("that could exist"), "{closed}");
    place.run("exposure tiers.yaml --port 443 -o html").exits(2).complains("the HTML report has filters of its own");
}

#[test]
fn a_fixed_time_gives_the_same_bytes() {
    let place = change_place();
    let run = |seconds: &str| {
        let mut command = place.command("diff --world closed base.yaml head.yaml -o html");
        let output = command.env("SOURCE_DATE_EPOCH", seconds).output().expect("weir runs");
        (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"), output.stderr)
    };
    let (code, page, _) = run("86400");
    assert_eq!(code, Some(1));
    assert!(page.contains("<title>Weir: Changes from base.yaml to head.yaml – 1970-01-02 00:00 UTC</title>"));
    assert_eq!(page, run("86400").1);
    let (code, page, error) = run("today");
    assert_eq!((code, page.as_str()), (Some(2), ""));
    let error = String::from_utf8_lossy(&error).into_owned();
    assert!(error.contains("SOURCE_DATE_EPOCH is not a number of seconds since 1970"), "{error}");
}

#[test]
fn without_scripts_the_verdict_the_cards_and_the_list_can_be_read() {
    need_browser!();
    let place = change_place();
    let browser = change_report(&place);
    browser.reload_with_scripts(false);
    // The accessibility tree needs no script in the page.
    let names: Vec<String> = browser
        .accessibility_nodes()
        .iter()
        .filter(|it| it["ignored"] == false && it["role"]["value"] == "StaticText")
        .filter_map(|it| it["name"]["value"].as_str().map(str::to_owned))
        .collect();
    let text = names.join("\n");
    for expected in
        ["This change newly allows traffic", "Newly allowed", "TCP 5433", "The matrix and the graph need JavaScript"]
    {
        assert!(text.contains(expected), "no {expected} in {text}");
    }
    assert!(!text.contains("Only what changes"), "controls that need scripts: {text}");
}

#[test]
fn nothing_is_wider_than_a_phone() {
    need_browser!();
    let place = change_place();
    let browser = change_report(&place);
    browser.resize(390, 844);
    browser.run("document.querySelectorAll('details').forEach((it) => { it.open = true; })");
    assert_eq!(browser.run("return document.documentElement.scrollWidth"), 390);
    let sizes = browser.run(
        "return [...document.querySelectorAll('button, input[type=search], select')]
           .filter((it) => it.getClientRects().length).map((it) => it.getBoundingClientRect().right)",
    );
    assert!(sizes.as_array().is_some_and(|all| all.len() > 8 && all.iter().all(|it| it.as_f64() <= Some(390.0))));
}

/// Texts whose contrast with their background is too small, by WCAG's formula.
const CONTRAST: &str = "
    const light = (color) => {
      const parts = color.match(/[\\d.]+/g).map(Number).slice(0, 3).map((it) => it / 255);
      const linear = parts.map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
      return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const ground = (node) => {
      const color = getComputedStyle(node).backgroundColor;
      return color === 'rgba(0, 0, 0, 0)' && node.parentElement ? ground(node.parentElement) : color;
    };
    const ownText = (node) => [...node.childNodes].some((it) => it.nodeType === 3 && it.textContent.trim());
    const pairs = [...document.body.querySelectorAll('*')]
      .filter((node) => ownText(node) && node.getClientRects().length && !node.disabled)
      .map((node) => {
        const svg = node.closest('svg');
        const box = svg && (node.closest('g') || svg).querySelector('rect');
        const under = !svg ? ground(node) : node.closest('g') ? getComputedStyle(box).fill : ground(svg);
        const over = svg ? getComputedStyle(node).fill : getComputedStyle(node).color;
        const [a, b] = [light(over), light(under)].sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), node.className + ' ' + node.textContent];
      });
    if (pairs.length < 60) return `only ${pairs.length} texts`;
    return pairs.filter(([ratio]) => ratio < 4.5).map((it) => it.join(' ')).join('; ')";

#[test]
fn text_has_contrast_in_both_colour_schemes() {
    need_browser!();
    let place = change_place();
    let browser = change_report(&place);
    browser.run(
        "document.getElementById('changed').click();
         document.querySelectorAll('details').forEach((it) => { it.open = true; })",
    );
    browser.wait("return document.querySelectorAll('.cell.part').length > 0");
    for (scheme, ground) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")] {
        browser.emulate(scheme, "screen");
        assert_eq!(browser.text("return getComputedStyle(document.body).backgroundColor"), ground);
        assert_eq!(browser.text(CONTRAST), "", "{scheme}");
    }
}

#[test]
fn a_printout_has_the_whole_list_and_no_controls() {
    need_browser!();
    let place = change_place();
    let browser = change_report(&place);
    browser.emulate("dark", "print");
    browser.run("window.dispatchEvent(new Event('beforeprint'))");
    let visible = browser.run(
        "const all = [...document.querySelectorAll('input, button, select, nav, #grid')];
         return all.filter((it) => it.getClientRects().length).length",
    );
    assert_eq!(visible, 0);
    let closed = "return [...document.querySelectorAll('#list details')].filter((it) => !it.open).length";
    assert_eq!(browser.run(closed), 0);
    let lines = browser.text("return document.querySelector('#list figure pre').innerText");
    assert!(lines.contains("podSelector"), "the lines of the rule: {lines}");
}

/// Whether a node of the accessibility tree has a property.
fn property(node: &Value, name: &str) -> bool {
    let all = node["properties"].as_array().into_iter().flatten();
    all.filter(|it| it["name"] == name).any(|it| it["value"]["value"] == true)
}

#[test]
fn everything_that_takes_the_focus_has_a_name_and_a_role() {
    need_browser!();
    let place = change_place();
    let browser = change_report(&place);
    browser.run("document.querySelectorAll('details').forEach((it) => { it.open = true; })");
    browser.wait("return document.querySelectorAll('#graph-rows tr').length > 1");
    let nodes = browser.accessibility_nodes();
    let role = |node: &Value| node["role"]["value"].as_str().unwrap_or_default().to_owned();
    let shown: Vec<&Value> = nodes.iter().filter(|it| it["ignored"] == false).collect();
    let focusable: Vec<&&Value> = shown.iter().filter(|it| property(it, "focusable")).collect();
    assert!(focusable.len() > 20, "{}", focusable.len());
    for node in focusable {
        let name = node["name"]["value"].as_str().unwrap_or_default();
        // Code is read as it is.
        assert!(!name.is_empty() || role(node) == "generic" || role(node) == "Pre", "no name: {node:#}");
    }
    for wanted in ["heading", "navigation", "main", "grid", "rowheader", "gridcell", "table", "searchbox", "status"] {
        assert!(shown.iter().any(|it| role(it) == wanted), "no {wanted}");
    }
    // No level of headings is left out.
    let levels = browser.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map((it) => Number(it.tagName[1]))");
    let levels: Vec<i64> = levels.as_array().expect("levels").iter().filter_map(Value::as_i64).collect();
    assert!(levels.first() == Some(&1) && levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{levels:?}");
}

#[test]
fn no_error_and_no_forbidden_request_in_a_walk_through_the_page() {
    need_browser!();
    let place = change_place();
    let browser = change_report(&place);
    // From the first link through all controls, as often as there are tab stops.
    let stops = browser.run(
        "return [...document.querySelectorAll('a, button, input, select, summary, [tabindex=\"0\"]')]
           .filter((it) => it.getClientRects().length && !it.disabled).length",
    );
    let stops = stops.as_u64().expect("a number");
    browser.press(&["Tab"]);
    assert_eq!(browser.text("return document.activeElement.className"), "skip");
    let mut seen = Vec::new();
    for _ in 0..stops + 5 {
        browser.press(&["Tab"]);
        let focus = browser.text(
            "const it = document.activeElement; const style = getComputedStyle(it);
             const rect = it.matches('.box') ? getComputedStyle(it.querySelector('rect')).strokeWidth === '4px' : false;
             const isSeen = it === document.body || style.outlineStyle !== 'none' || rect;
             if (!isSeen) return `no focus is visible: ${it.outerHTML}`;
             return it.id || it.className.baseVal || it.className || it.tagName",
        );
        assert!(!focus.starts_with("no focus"), "{focus}");
        seen.push(focus);
    }
    let last = seen.join("\n");
    for wanted in ["list-filter", "list-sort", "SUMMARY", "changed", "open", "details", "graph-search", "box"] {
        assert!(last.contains(wanted), "no {wanted} in {last}");
    }
    assert_eq!(browser.console(), [""; 0]);
}
