//! An allow list without a later deny list.

use super::context::LintContext;
use weir_model::{CidrList, ListAction};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

pub(super) static CODE: Code =
    Code::lint("allow-list-without-effect", Severity::Warning, include_str!("allow_list_without_effect.diff"))
        .what("An Allow list has no later Deny list to exempt its addresses from.")
        .why(
            "An Allow list does not allow traffic. It only means that later lists do not apply to its addresses. \
          Without a Deny list with a larger order for the same direction, the list has no effect and the policies \
          decide as if it did not exist.",
        );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let (mut ingress, mut egress) = (false, false);
    let denies: Vec<&CidrList> = context.cluster.lists.iter().filter(|list| list.action == ListAction::Deny).collect();
    // From the last list to the first: the directions in which a later list denies.
    for list in context.cluster.lists.iter().rev() {
        if list.action == ListAction::Deny {
            ingress |= list.ingress;
            egress |= list.egress;
        } else if !(list.ingress && ingress || list.egress && egress) {
            found.push(describe(list, denies.last().copied()));
        }
    }
}

fn describe(list: &CidrList, last_deny: Option<&CidrList>) -> Diagnostic {
    let spec = FieldPath::root().field("spec");
    let message = format!("allow list {} has no effect: no deny list comes after it", list.name);
    let diagnostic = Diagnostic::at(&CODE, FieldOrigin::new(list.object, spec.field("action")), message)
        .label("exempts from later deny lists only")
        .note("an Allow list does not allow traffic; policies still decide");
    match last_deny {
        Some(deny) => diagnostic
            .also(FieldOrigin::object(deny.object), format!("the last deny list, order {}", deny.order))
            .help(format!("give it an order below {} and the same directions, or remove it", deny.order)),
        None => diagnostic.help("remove it, or add the Deny list that it is an exemption from"),
    }
}
