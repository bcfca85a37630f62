//! `--selector`: a selector of labels as kubectl takes it, and whether a pod that could exist may have the labels.

use std::collections::{BTreeMap, BTreeSet};

use weir_objects::decode::names;
use weir_objects::k8s::{LabelSelector, Operator, Requirement};

/// `app=web,tier!=test,env in (prod, staging),owner,!legacy`
pub(crate) fn parse(text: &str) -> Result<LabelSelector, String> {
    let requirements = parts(text).into_iter().map(|it| requirement(it.trim()));
    Ok(LabelSelector { match_expressions: requirements.collect::<Result<_, _>>()?, ..LabelSelector::default() })
}

/// The requirements, separated by commas outside of parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|it| {
        depth += i32::from(it == '(') - i32::from(it == ')');
        it == ',' && depth <= 0
    })
    .collect()
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let wrong =
        || format!("`{text}` is no selector of labels: write KEY=VALUE, KEY!=VALUE, KEY, !KEY, or KEY in (A, B)");
    let (key, operator, values) = if let Some((key, value)) = text.split_once("!=") {
        (key, Operator::NotIn, vec![value])
    } else if let Some((key, value)) = text.split_once('=') {
        (key, Operator::In, vec![value.strip_prefix('=').unwrap_or(value)])
    } else if let Some((head, list)) = text.split_once('(') {
        let list = list.strip_suffix(')').ok_or_else(wrong)?;
        let mut words = head.split_whitespace();
        let operator = match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => (key, Operator::In),
            (Some(key), Some("notin"), None) => (key, Operator::NotIn),
            _ => return Err(wrong()),
        };
        (operator.0, operator.1, list.split(',').collect())
    } else {
        match text.strip_prefix('!') {
            Some(key) => (key, Operator::DoesNotExist, Vec::new()),
            None => (text, Operator::Exists, Vec::new()),
        }
    };
    let key = key.trim();
    names::label_key(key).map_err(|reason| format!("{}; the label `{key}` {reason}", wrong()))?;
    let value = |it: &str| match names::label_value(it.trim()) {
        Ok(()) => Ok(it.trim().to_owned()),
        Err(reason) => Err(format!("{}; the value `{}` {reason}", wrong(), it.trim())),
    };
    let values = values.into_iter().map(value).collect::<Result<_, _>>()?;
    Ok(Requirement { key: key.to_owned(), operator, values })
}

/// Whether labels exist that both selectors match.
pub(crate) fn may_both_match(a: &LabelSelector, b: &LabelSelector) -> bool {
    let mut keys: BTreeMap<&str, KeyDemand<'_>> = BTreeMap::new();
    for selector in [a, b] {
        for (key, value) in &selector.match_labels {
            keys.entry(key).or_default().one_of(std::iter::once(value));
        }
        for it in &selector.match_expressions {
            let demand = keys.entry(&it.key).or_default();
            let values = it.values.iter().map(String::as_str);
            match it.operator {
                Operator::In => demand.one_of(values),
                Operator::NotIn => demand.not.extend(values),
                Operator::Exists => demand.is_present = true,
                Operator::DoesNotExist => demand.is_absent = true,
            }
        }
    }
    keys.values().all(KeyDemand::can_be_met)
}

/// The demands of two selectors on one key.
#[derive(Default)]
struct KeyDemand<'s> {
    /// The values that are allowed; `None` allows every value.
    values: Option<BTreeSet<&'s str>>,
    not: BTreeSet<&'s str>,
    is_present: bool,
    is_absent: bool,
}

impl<'s> KeyDemand<'s> {
    fn one_of(&mut self, values: impl Iterator<Item = &'s str>) {
        let wanted: BTreeSet<&str> = values.collect();
        self.values = Some(match &self.values {
            Some(known) => known.intersection(&wanted).copied().collect(),
            None => wanted,
        });
        self.is_present = true;
    }

    fn can_be_met(&self) -> bool {
        let has_value = self.values.as_ref().is_none_or(|it| it.difference(&self.not).next().is_some());
        has_value && !(self.is_present && self.is_absent)
    }
}

#[cfg(test)]
mod tests {
    use weir_model::labels::matches;
    use weir_objects::k8s::Labels;

    use super::*;

    #[track_caller]
    fn check_selects(selector: &str, labels: &[(&str, &str)], expected: bool) {
        let labels: Labels = labels.iter().copied().collect();
        let selector = parse(selector).expect("a selector");
        assert_eq!(matches(&selector, &labels), expected, "{selector:?} and {labels:?}");
    }

    #[test]
    fn selectors_are_those_of_kubectl() {
        check_selects("app=web", &[("app", "web")], true);
        check_selects("app==web,tier!=test", &[("app", "web")], true);
        check_selects("app==web,tier!=test", &[("app", "web"), ("tier", "test")], false);
        check_selects("env in (prod, staging), !legacy", &[("env", "staging")], true);
        check_selects("env in (prod, staging), !legacy", &[("env", "prod"), ("legacy", "")], false);
        check_selects("env notin (prod)", &[], true);
        check_selects("owner", &[], false);
    }

    #[test]
    fn mistakes_in_a_selector_are_named() {
        for text in ["", "a b", "env in prod", "env within (a)", "=x", "a=b c", "env in (a"] {
            assert!(parse(text).expect_err(text).contains("is no selector of labels"), "{text}");
        }
    }

    #[test]
    fn selectors_that_contradict_each_other_match_no_pod() {
        let may = |a: &str, b: &str| may_both_match(&parse(a).expect("valid"), &parse(b).expect("valid"));
        assert!(may("app=web", "tier=front") && may("app", "app=web") && may("app in (a, b)", "app in (b, c)"));
        assert!(may("app!=web", "!app") && may("app!=web", "app!=db"));
        assert!(!may("app=web", "app=db") && !may("app", "!app") && !may("app in (a)", "app notin (a)"));
    }
}
