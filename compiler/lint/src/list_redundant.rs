//! A list that another list makes superfluous.

use super::context::LintContext;
use super::cover::selects_all;
use weir_model::{AddressRanges, CidrList, ListAction, SelectorId};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code = Code::lint("list-redundant", Severity::Warning, include_str!("list_redundant.diff"))
    .what("Every address of a list is in another list with the same action for the same pods.")
    .why(
        "The list has no effect: removing it, or an address from it, changes nothing. The lint does not compare \
         two lists if a list with the other action applies between them, because then the order matters.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let lists = &context.cluster.lists;
    // Successive lists with the same action: their order does not matter.
    for run in lists.chunk_by(|a, b| a.action == b.action) {
        let ranges: Vec<AddressRanges> = run.iter().map(|list| AddressRanges::of(list).joined()).collect();
        for (index, list) in run.iter().enumerate() {
            let is_wider = |other: &usize| {
                context.spend(1 + ranges[index].len());
                let (a, b) = (&ranges[index], &ranges[*other]);
                let does_as_much = *other != index && applies_as_widely(context, &run[*other], list);
                // Of two identical lists, the first is kept and the second is reported.
                let stays = *other < index || !(b.len() == a.len() && same(context, &run[*other], list, a, b));
                does_as_much && stays && !a.is_empty() && contains_all(b, a)
            };
            if context.is_spent(list.object) {
                return;
            }
            if let Some(other) = (0..run.len()).find(is_wider) {
                found.push(describe(list, &run[other]));
            }
        }
    }
}

fn same(context: &LintContext<'_>, wide: &CidrList, list: &CidrList, a: &AddressRanges, b: &AddressRanges) -> bool {
    applies_as_widely(context, list, wide) && contains_all(a, b)
}

fn contains_all(wide: &AddressRanges, ranges: &AddressRanges) -> bool {
    ranges.iter().all(|(first, last)| wide.contains_range(*first, *last))
}

/// Whether the wide list applies wherever the other one does.
fn applies_as_widely(context: &LintContext<'_>, wide: &CidrList, list: &CidrList) -> bool {
    let covers = |wide: SelectorId, narrow| wide == narrow || selects_all(&context.cluster.labels, wide);
    (wide.ingress || !list.ingress)
        && (wide.egress || !list.egress)
        && covers(wide.namespaces, list.namespaces)
        && covers(wide.pods, list.pods)
}

fn describe(list: &CidrList, wide: &CidrList) -> Diagnostic {
    let cidrs = FieldPath::root().field("spec").field("cidrs");
    let verb = if list.action == ListAction::Deny { "denies" } else { "exempts" };
    let message = format!("list {} has no effect: list {} {verb} all of its addresses", list.name, wide.name);
    Diagnostic::at(&CODE, FieldOrigin::new(list.object, cidrs.clone()), message)
        .label(format!("each of these is in list {} too", wide.name))
        .also(FieldOrigin::new(wide.object, cidrs), format!("{verb} them for the same pods and directions"))
        .help("remove one of the two lists")
}
