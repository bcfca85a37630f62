//! Label selectors, read and checked in one pass.

use crate::k8s::{LabelSelector, Operator, Requirement};

use super::codes;
use super::metadata;
use super::names;
use super::report::ObjectFindings;
use super::trail::Trail;
use super::view::ValueView;

/// Reads a selector; an absent one reads as empty.
pub(super) fn read(selector: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> LabelSelector {
    let labels = selector.get("matchLabels");
    metadata::validate_labels(labels, &at.field("matchLabels"), report);
    let at = at.field("matchExpressions");
    let expressions = selector.get("matchExpressions").items().enumerate();
    LabelSelector {
        match_labels: labels.labels(),
        match_expressions: expressions
            .filter_map(|(index, expression)| requirement(expression, &at.index(index), report))
            .collect(),
    }
}

/// `None` if the requirement is not valid; then the object has an error and is left out as a whole.
fn requirement(expression: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Option<Requirement> {
    let key = expression.get("key").str().unwrap_or_default();
    let values: Vec<&str> = expression.get("values").items().map(|value| value.str().unwrap_or_default()).collect();
    let operator = operator(expression, values.len(), at, report);
    match names::label_key(key) {
        Err(why) if key.is_empty() => {
            report.missing(&at.field("key"), |origin| codes::bad_label_key::at(origin, key, why));
        }
        Err(why) => report.error(&at.field("key"), |origin| codes::bad_label_key::at(origin, key, why)),
        Ok(()) => {}
    }
    let at = at.field("values");
    for (index, value) in values.iter().enumerate() {
        if let Err(why) = names::label_value(value) {
            report.error(&at.index(index), |origin| codes::bad_label_value::at(origin, value, why));
        }
    }
    let values = values.into_iter().map(str::to_owned).collect();
    Some(Requirement { key: key.to_owned(), operator: operator?, values })
}

fn operator(
    expression: ValueView<'_, '_>,
    values: usize,
    at: &Trail<'_>,
    report: &mut ObjectFindings,
) -> Option<Operator> {
    let name = expression.get("operator").str().unwrap_or_default();
    let operator = match name {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "" => {
            report.missing(&at.field("operator"), |origin| codes::bad_operator::at(origin, name));
            return None;
        }
        _ => {
            report.error(&at.field("operator"), |origin| codes::bad_operator::at(origin, name));
            return None;
        }
    };
    match (operator, values) {
        (Operator::In | Operator::NotIn, 0) => {
            report.missing(&at.field("values"), |origin| codes::operator_needs_values::at(origin, name));
        }
        (Operator::Exists | Operator::DoesNotExist, 1..) => {
            report.error(&at.field("values"), |origin| codes::operator_takes_no_values::at(origin, name));
        }
        _ => {}
    }
    Some(operator)
}
