//! The findings of `decode`: one file for each, with its documentation and the functions that build it.

use super::suggest::nearest;
use crate::diagnostic::{Code, Diagnostic, Fix};
use crate::origin::FieldOrigin;

pub mod bad_address;
pub mod bad_cidr;
pub mod bad_direction;
pub mod bad_label_key;
pub mod bad_label_value;
pub mod bad_list_action;
pub mod bad_list_entry;
pub mod bad_mode;
pub mod bad_operator;
pub mod bad_phase;
pub mod bad_policy_type;
pub mod bad_port_name;
pub mod bad_protocol;
pub mod bad_value;
pub mod baseline_name;
pub mod cidr_host_bits;
pub mod cidr_ipv4_mapped;
pub mod cidr_leading_zeros;
pub mod duplicate_field;
pub mod duplicate_object;
pub mod empty_peer;
pub mod empty_port_range;
pub mod end_port_before_port;
pub mod end_port_with_named_port;
pub mod end_port_without_port;
pub mod exactly_one;
pub mod except_not_inside;
pub mod invalid_annotations;
pub mod invalid_finalizer;
pub mod invalid_name;
pub mod invalid_namespace;
pub mod invalid_owner_reference;
pub mod ip_block_with_selector;
pub mod missing_cidr;
pub mod missing_field;
pub mod missing_kind;
pub mod named_port_without_pods;
pub mod not_an_object;
pub mod not_text;
pub mod null_rule;
pub mod operator_needs_values;
pub mod operator_takes_no_values;
pub mod pod_selector_absent;
pub mod port_out_of_range;
pub mod repeated_item;
pub mod repeated_policy_type;
pub mod syntax_error;
pub mod too_many_findings;
pub mod too_many_policy_types;
pub mod unknown_field;
pub mod unknown_kind;
pub mod unread_policy;
pub mod unserved_version;
pub mod unsupported_peer;
pub mod wrong_count;
pub mod wrong_type;

/// All codes, sorted by name.
pub const ALL: &[&Code] = &[
    &bad_address::CODE,
    &bad_cidr::CODE,
    &bad_direction::CODE,
    &bad_label_key::CODE,
    &bad_label_value::CODE,
    &bad_list_action::CODE,
    &bad_list_entry::CODE,
    &bad_mode::CODE,
    &bad_operator::CODE,
    &bad_phase::CODE,
    &bad_policy_type::CODE,
    &bad_port_name::CODE,
    &bad_protocol::CODE,
    &bad_value::CODE,
    &baseline_name::CODE,
    &cidr_host_bits::CODE,
    &cidr_ipv4_mapped::CODE,
    &cidr_leading_zeros::CODE,
    &duplicate_field::CODE,
    &duplicate_object::CODE,
    &empty_peer::CODE,
    &empty_port_range::CODE,
    &end_port_before_port::CODE,
    &end_port_with_named_port::CODE,
    &end_port_without_port::CODE,
    &exactly_one::CODE,
    &except_not_inside::CODE,
    &invalid_annotations::CODE,
    &invalid_finalizer::CODE,
    &invalid_name::CODE,
    &invalid_namespace::CODE,
    &invalid_owner_reference::CODE,
    &ip_block_with_selector::CODE,
    &missing_cidr::CODE,
    &missing_field::CODE,
    &missing_kind::CODE,
    &named_port_without_pods::CODE,
    &not_an_object::CODE,
    &not_text::CODE,
    &null_rule::CODE,
    &operator_needs_values::CODE,
    &operator_takes_no_values::CODE,
    &pod_selector_absent::CODE,
    &port_out_of_range::CODE,
    &repeated_item::CODE,
    &repeated_policy_type::CODE,
    &syntax_error::CODE,
    &too_many_findings::CODE,
    &too_many_policy_types::CODE,
    &unknown_field::CODE,
    &unknown_kind::CODE,
    &unread_policy::CODE,
    &unserved_version::CODE,
    &unsupported_peer::CODE,
    &wrong_count::CODE,
    &wrong_type::CODE,
];

/// Text of the input in backticks, cut off if it is long.
pub(crate) fn quote(text: &str) -> String {
    const LONGEST: usize = 80;
    let shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    match text.chars().nth(LONGEST) {
        Some(_) => format!("`{shown}…`"),
        None => format!("`{shown}`"),
    }
}

/// A text with the wrong syntax; `why` completes a sentence about it.
fn invalid(code: &'static Code, origin: FieldOrigin, what: &str, text: &str, why: &str) -> Diagnostic {
    Diagnostic::at(code, origin, format!("{} is not a valid {what}: it {why}", quote(text)))
}

/// Adds the next step after an unknown word: to write the known one that was probably meant, or else `otherwise`.
fn write_one_of(found: Diagnostic, written: &str, known: &[&str], otherwise: &str) -> Diagnostic {
    match nearest(written, known.iter().copied()) {
        Some(known) => found.help(format!("write `{known}`")),
        None => found.help(otherwise),
    }
}

#[cfg(test)]
mod tests;
