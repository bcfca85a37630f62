//! `weir suggest` and `weir check --fix`: files are edited in place, and the verdicts are as promised.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use weir_testing::schema::check_schema;

use crate::support::Place;

/// A database that accepts the web tier; a job that needs it too.
const SHOP: &str = "\
# the shop
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: db
  namespace: shop
spec:
  podSelector:
    matchLabels: {app: db}
  policyTypes: [Ingress]
  ingress:
    - from:
        - podSelector:
            matchLabels: {app: web}  # the front end
      ports:
        - {port: 5432}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: shop, labels: {app: job}}
status: {phase: Running, podIP: 10.0.0.3}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
status: {phase: Running, podIP: 10.0.0.2}
";

const JOB: &str = "suggest . --from shop/job --to shop/db --port 5432";

fn place() -> Place {
    Place::new().file("shop.yaml", SHOP)
}

fn apply(place: &Place, patch: &str) {
    std::fs::write(place.path().join("change.patch"), patch).expect("written");
    let git = Command::new("git").args(["apply", "change.patch"]).current_dir(place.path()).output().expect("git runs");
    assert!(git.status.success(), "{}\n{patch}", String::from_utf8_lossy(&git.stderr));
}

#[test]
fn the_proposal_is_a_patch_the_object_and_the_effect() {
    let expected = "\
shop/job -> shop/db port 5432 is denied; with this change it is allowed.

  * append to spec.ingress[0].from of shop/db (of 3 edits that do it, the one that changes least)

Patch

--- a/shop.yaml
+++ b/shop.yaml
@@ -12,6 +12,9 @@
     - from:
         - podSelector:
             matchLabels: {app: web}  # the front end
+        - podSelector:
+            matchLabels:
+              app: job
       ports:
         - {port: 5432}
 ---
";
    let ran = place().run(JOB).exits(0).says("Newly allowed\n  + from any pod with app=job in namespace shop");
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    check_schema("suggest", &place().run(&format!("{JOB} -o json")).exits(0).json());
}

#[test]
fn the_applied_patch_gives_the_verdict() {
    for (from, to, port, deny) in [
        ("shop/job", "shop/db", "5432", false),
        ("shop/web", "shop/db", "5432", true),
        ("shop/web", "192.0.2.1", "443", true),
        ("203.0.113.9", "shop/db", "443", false),
    ] {
        let place = place();
        let flow = format!("--from {from} --to {to} --port {port}");
        let flag = if deny { "--deny" } else { "" };
        let patch = place.run(&format!("suggest . {flow} {flag} -o patch")).exits(0).out;
        apply(&place, &patch);
        let expected = if deny { "deny" } else { "allow" };
        place.run(&format!("explain . {flow} --expect {expected}")).exits(0);
    }
}

#[test]
fn nothing_is_proposed_where_no_policy_can_decide() {
    let list = "apiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {name: bad}\n\
                spec: {action: Deny, cidrs: [192.0.2.0/24]}\n";
    let place = place().file("list.yaml", list);
    let to_list = "suggest . --from shop/web --to 192.0.2.1 --port 443";
    place.run(to_list).exits(2).complains("CidrList bad decides about the egress of the flow");
    place.run(&format!("{to_list} --deny")).exits(0).complains("nothing to change: the flow is denied");
    let itself = "suggest . --from shop/web --to shop/web --port 443 --deny";
    place.run(itself).exits(2).complains("a pod always reaches itself");
    place.run("suggest . --from shop/app=x --to shop/db --port 1").exits(2).complains("of the input only");
}

#[test]
fn effects_that_the_edits_do_not_show_are_notes() {
    let two_families = |text: &str| {
        let addresses = |at: u8| format!("podIP: 10.0.0.{at}, podIPs: [{{ip: 10.0.0.{at}}}, {{ip: 'fd00::{at}'}}]");
        (1..=3).fold(text.to_owned(), |text, at| text.replace(&format!("podIP: 10.0.0.{at}"), &addresses(at)))
    };
    let isolates = SHOP.split_once("---\n").expect("a document").0;
    let open = Place::new().file("shop.yaml", two_families(&SHOP.replace(isolates, "")));
    let question = "suggest . --from shop/web --to shop/db --port 5432 --deny";
    let note = "the change also denies addresses outside of the cluster";
    open.run(question).exits(0).says(&format!("\n  note: {note}")).says("operator: NotIn");
    for format in ["patch", "yaml"] {
        let ran = open.run(&format!("{question} -o {format}")).exits(0).complains(&format!("note: {note}"));
        assert!(!ran.out.contains(note), "{}", ran.out);
    }
    let document = open.run(&format!("{question} -o json")).exits(0).json();
    check_schema("suggest", &document);
    assert!(document["notes"][0].as_str().is_some_and(|it| it.starts_with(note)), "{}", document["notes"]);
    let peers = "podSelector:\n            matchLabels: {app: web}";
    let block = two_families(&SHOP.replace(peers, "ipBlock: {cidr: 0.0.0.0/0}\n        - ipBlock: {cidr: '::/0'}"));
    let ran = Place::new().file("shop.yaml", block).run(question).exits(0);
    let ran = ran.says("note: `except: 10.0.0.1/32` is the present address of shop/web;");
    ran.says("note: over IPv6 the flow is still allowed: ask with `--from fd00::1 --to fd00::2`");
}

#[test]
fn a_list_that_two_rules_share_is_not_edited() {
    let shared = SHOP.replace("    - from:\n", "    - from: &peers\n");
    let shared = shared.replace("{port: 5432}\n", "{port: 5432}\n    - from: *peers\n      ports: [{port: 80}]\n");
    let place = Place::new().file("shop.yaml", shared);
    place.run(JOB).exits(2).complains("does not give the expected objects").complains("without anchors");
}

#[test]
fn an_unexpected_verdict_names_the_command_that_proposes_a_change() {
    let ran = place().run("explain . --from shop/job --to shop/db --port 5432 --expect allow").exits(1);
    ran.complains("hint: to propose a change: weir suggest . --from shop/job --to shop/db --port 5432\n");
    let ran = place().run("explain . --from shop/web --to shop/db --port 5432 --expect deny").exits(1);
    ran.complains("--port 5432 --deny\n");
}

const FIXABLE: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
    # everybody inside
    - from: [{ipBlock: {cidr: 10.0.0.1/8, except: [10.1.0.0/16, 10.1.2.0/24]}}]
    # the front end
    - from:
        - podSelector: {matchLabels: {app: web}}
        - podSelector: {matchLabels: {app: job}}
    - from:
        - podSelector: {matchLabels: {app: web}}  # again
      ports: [{port: 80}]
---
apiVersion: weir.dev/v1alpha1
kind: CidrList
metadata: {name: bad}
spec:
  action: Deny
  cidrs:
    - 192.0.2.0/24
    - 192.0.2.7   # inside
    - 192.0.2.8   # inside too
";

const FIXED: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
    # everybody inside
    - from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]
    # the front end
    - from:
        - podSelector: {matchLabels: {app: web}}
        - podSelector: {matchLabels: {app: job}}
---
apiVersion: weir.dev/v1alpha1
kind: CidrList
metadata: {name: bad}
spec:
  action: Deny
  cidrs:
    - 192.0.2.0/24
";

#[test]
fn fixes_keep_comments_and_verdicts() {
    let place = Place::new().file("a.yaml", FIXABLE);
    let text = || std::fs::read_to_string(place.path().join("a.yaml")).expect("a file");
    let shown = place.run("check . --fix --diff").exits(0).says("-    - 192.0.2.7   # inside\n");
    shown.complains("would fix 5 findings in 1 file, and no verdict changes");
    assert_eq!(text(), FIXABLE);
    place.run("check . --fix").exits(0).complains("fixed 5 findings in 1 file, and no verdict changes\n");
    assert_eq!(text(), FIXED);
    std::fs::write(place.path().join("before.yaml"), FIXABLE).expect("written");
    place.run("diff before.yaml a.yaml --no-cost").exits(0).says("Nothing changes");
    place.run("check a.yaml --fix").exits(0).complains("nothing to fix");
}

/// Both entries can only be removed with a comment about another one.
const COMMENTED: &str = "\
apiVersion: weir.dev/v1alpha1
kind: CidrList
metadata: {name: bad}
spec:
  action: Deny
  cidrs: [
    192.0.2.0/24, # theirs
    192.0.2.7, # inside
    198.51.100.0/24,
    198.51.100.7 # inside too
    ]
";

#[test]
fn findings_beside_comments_of_other_items_are_not_fixed() {
    let place = Place::new().file("a.yaml", COMMENTED);
    let text = || std::fs::read_to_string(place.path().join("a.yaml")).expect("a file");
    let ran = place.run("check . --fix").exits(0).complains("at spec.cidrs: a comment is beside it\n");
    ran.complains("nothing is fixed\n");
    assert_eq!(text(), COMMENTED);
    std::fs::write(place.path().join("b.yaml"), FIXABLE.replace("name: bad", "name: worse")).expect("written");
    let ran = place.run("check . --fix").exits(0).complains("not fixed: an item of CidrList bad");
    ran.complains("fixed 5 findings in 1 file");
    assert_eq!(text(), COMMENTED);
}

#[test]
fn a_patch_that_cannot_be_printed_exactly_is_an_error() {
    for (from, to) in [("\n", "\r\n"), ("# inside\n", "# inside\u{200b}\n"), ("# inside\n", "#\tinside\n")] {
        let place = Place::new().file("a.yaml", FIXABLE.replace(from, to));
        let ran = place.run("check . --fix --diff").exits(2);
        assert_eq!(ran.out, "");
        ran.complains("the patch of ./a.yaml cannot be printed as it is").complains("without `--diff`");
        place.run("check . --fix").exits(0).complains("fixed 5 findings");
    }
    let place = Place::new().file("shop.yaml", SHOP.replace('\n', "\r\n"));
    let ran = place.run(&format!("{JOB} -o patch")).exits(2);
    assert_eq!(ran.out, "");
    ran.complains("the patch of ./shop.yaml cannot be printed as it is").complains("`-o json` has the patch");
    place.run(JOB).exits(0).says("the patch of ./shop.yaml cannot be printed as it is");
    // The patch in JSON is exact.
    let document = place.run(&format!("{JOB} -o json")).exits(0).json();
    apply(&place, document["files"][0]["patch"].as_str().expect("a patch"));
    place.run("explain . --from shop/job --to shop/db --port 5432 --expect allow").exits(0);
}

#[test]
fn fixed_files_keep_their_permissions_and_byte_order_mark() {
    let place = Place::new().file("a.yaml", format!("\u{feff}{FIXABLE}"));
    let path = place.path().join("a.yaml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("set");
    place.run("check . --fix").exits(0);
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), format!("\u{feff}{FIXED}"));
    assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o640);
}

#[test]
fn patches_are_for_the_file_with_its_byte_order_mark() {
    let place = Place::new().file("a.yaml", format!("\u{feff}{FIXABLE}"));
    apply(&place, &place.run("check . --fix --diff").exits(0).out);
    assert_eq!(std::fs::read_to_string(place.path().join("a.yaml")).expect("a file"), format!("\u{feff}{FIXED}"));
    let list = "kind: CidrList\napiVersion: weir.dev/v1alpha1\nmetadata: {name: bad}\n\
                spec: {action: Deny, cidrs: [10.0.0.1/8]}\n";
    // The first line is in the patch, with a mark that cannot be printed.
    let place = Place::new().file("a.yaml", format!("\u{feff}{list}"));
    place.run("check . --fix --diff").exits(2).complains("cannot be printed as it is");
}

#[test]
fn input_with_errors_is_not_fixed() {
    let place = Place::new().file("a.yaml", FIXABLE.replace("[Ingress]", "[Ingres]"));
    place.run("check . --fix").exits(1).complains("nothing is fixed: fix the errors first");
    let text = std::fs::read_to_string(place.path().join("a.yaml")).expect("a file");
    assert!(text.contains("10.0.0.1/8"), "{text}");
    place.run("check . --diff").exits(2).complains("--fix");
}

#[test]
fn switched_off_lints_are_not_fixed() {
    let place = Place::new().file("a.yaml", FIXABLE);
    place.run("check . --fix -A rule-covered").exits(0);
    let text = std::fs::read_to_string(place.path().join("a.yaml")).expect("a file");
    assert!(text.contains("# again") && !text.contains("10.0.0.1/8"), "{text}");
}

#[test]
fn patch_of_a_file_outside_of_the_current_directory_is_refused() {
    let place = Place::new().file("shop.yaml", crate::support::SHOP);
    let question = "--from shop/web --to shop/db --port 80 -o patch";
    place.run(&format!("suggest shop.yaml {question}")).exits(0).says("+++ b/shop.yaml");
    place.run(&format!("suggest ./shop.yaml {question}")).exits(0).says("+++ b/shop.yaml");
    let outside = place.path().join("shop.yaml");
    let ran = place.run(&format!("suggest {} {question}", outside.display())).exits(2);
    ran.complains("a patch cannot name a file outside of the current directory");
}
