//! The properties that an answer depends on, in words.

use super::numbers::address_of;
use super::{Asked, MOST_CONDITIONS, NamespaceLabels, OpenAnswer, OpenProperty};
use crate::diff::{AddressRange, ranges};
use crate::world::diagram::{Diagram, Intervals, Var};
use crate::world::variables::{FAMILY, Labelled, Meaning, Role};
use weir_objects::address::Family;

impl Asked<'_> {
    /// Adds the facts on which the verdict depends, and the conditions under which all flows are allowed.
    pub(super) fn explain_conditions(&self, allowed: Diagram, answer: &mut OpenAnswer) {
        let number = |family: Family| self.diagrams.given(allowed, FAMILY, family as u128);
        let of_families: Vec<(Family, Diagram)> = self.families.iter().map(|it| (*it, number(*it))).collect();
        // If the family makes no difference, it is not mentioned.
        let of_families = match of_families[..] {
            [(_, one), (_, other)] if one == other => vec![(None, one)],
            [(_, one)] => vec![(None, one)],
            _ => of_families.into_iter().map(|(family, it)| (Some(family), it)).collect(),
        };
        for (family, diagram) in &of_families {
            for var in self.diagrams.support(*diagram) {
                answer.depends_on.extend(self.property(var));
            }
            let products = self.diagrams.products(*diagram, MOST_CONDITIONS + 1);
            let texts = products.iter().map(|product| self.condition(*family, product));
            answer.allowed_if.extend(texts);
        }
        let is_address =
            |it: &OpenProperty| matches!(it, OpenProperty::SourceAddress | OpenProperty::DestinationAddress);
        if of_families.len() > 1 && !answer.depends_on.iter().any(is_address) {
            // Only the family of the addresses matters: the address of either end determines it.
            answer.depends_on.extend(self.open_addresses());
        }
        answer.has_more_conditions = answer.allowed_if.len() > MOST_CONDITIONS;
        answer.allowed_if.truncate(MOST_CONDITIONS);
    }

    fn open_addresses(&self) -> Vec<OpenProperty> {
        let source = self.source.addresses.is_none().then_some(OpenProperty::SourceAddress);
        let destination = self.targets.iter().any(|it| it.addresses.is_none());
        source.into_iter().chain(destination.then_some(OpenProperty::DestinationAddress)).collect()
    }

    fn property(&self, var: Var) -> Option<OpenProperty> {
        match self.variables.meaning(var) {
            Meaning::Address(Role::Source) => Some(OpenProperty::SourceAddress),
            Meaning::Address(Role::Destination) => Some(OpenProperty::DestinationAddress),
            Meaning::Label(role, Labelled::Namespace, _) => {
                Some(OpenProperty::NamespaceLabels(self.unknown_namespace(role)))
            }
            Meaning::PortName(_) => Some(OpenProperty::PortNames),
            Meaning::Label(_, Labelled::Pod, _) | Meaning::Family | Meaning::Protocol | Meaning::Port => None,
        }
    }

    fn unknown_namespace(&self, role: Role) -> String {
        let is_of = |labels: &NamespaceLabels| matches!(labels, NamespaceLabels::Unknown(it) if *it == role);
        self.namespaces.iter().find(|(_, labels)| is_of(labels)).map(|(name, _)| name.clone()).unwrap_or_default()
    }

    /// `namespace ops has team=a, and the source's address is in 10.0.0.0/8`
    fn condition(&self, family: Option<Family>, product: &[(Var, Intervals)]) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut has_address = false;
        let mut of_namespaces: Vec<(String, Vec<String>)> = Vec::new();
        for (var, intervals) in product {
            match self.variables.meaning(*var) {
                Meaning::PortName(name) => {
                    let is = if intervals.iter().any(|(_, last)| *last > 0) { "a" } else { "no" };
                    parts.push(format!("the destination has {is} port of this number named `{name}`"));
                }
                Meaning::Address(role) => {
                    has_address = true;
                    let end = if role == Role::Source { "source" } else { "destination" };
                    let family = family.or_else(|| self.families.first().copied()).unwrap_or(Family::V4);
                    let range = |(first, last): &(u128, u128)| AddressRange {
                        first: address_of(family, *first),
                        last: address_of(family, *last),
                    };
                    let ranges: Vec<AddressRange> = intervals.iter().map(range).collect();
                    parts.push(format!("the {end}'s address is {}", ranges::plain(&ranges)));
                }
                Meaning::Label(role, of, key) => {
                    let namespace = self.unknown_namespace(role);
                    let text = self.variables.accepted_text(of, key, intervals);
                    match of_namespaces.iter_mut().find(|(name, _)| *name == namespace) {
                        Some((_, texts)) => texts.push(text),
                        None => of_namespaces.push((namespace, vec![text])),
                    }
                }
                Meaning::Family | Meaning::Protocol | Meaning::Port => {}
            }
        }
        let namespaces = of_namespaces.iter();
        parts.extend(namespaces.map(|(name, texts)| format!("namespace {name} has {}", texts.join(","))));
        parts.extend(family.filter(|_| !has_address).map(|it| format!("the addresses are {it} addresses")));
        parts.join(", and ")
    }
}
