//! Reads the file of approvals. A person edits it, so each mistake is an error with its line.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use jiff::civil::Date;
use weir_analysis::containment::{EndScope, FlowRegion, FlowScope};
use weir_analysis::diff::{AddressRange, AddressSet, RowTraffic, VerdictChange};
use weir_analysis::world::PodSet;
use weir_classes::PortSpec;
use weir_model::{Direction, Protocol};
use weir_objects::address::{Family, Prefix};
use weir_objects::k8s::{LabelSelector, Operator, Requirement};
use weir_objects::syntax::{MappingEntry, SyntaxNode, SyntaxValue};

use super::{ApprovableChange, Approval, ChangeKind};
use crate::failure::with_hint;
use crate::strict_yaml::{self, StrictYaml, field};

pub(super) const API_VERSION: &str = "weir.dev/v1alpha1";
pub(super) const KIND: &str = "DiffApprovals";

const LAYOUT: &str = "docs/diff.md shows the layout; `weir diff BASE HEAD --write-approved FILE` writes it";
const FIELDS: [&str; 11] =
    ["change", "direction", "of", "from", "to", "traffic", "given", "family", "except", "reason", "expires"];

/// The words of [`ChangeKind`], without the direction of an isolation.
pub(super) const CHANGES: [(&str, ChangeKind); 4] = [
    ("added", ChangeKind::Traffic(VerdictChange::Added)),
    ("removed", ChangeKind::Traffic(VerdictChange::Removed)),
    ("isolation-begins", ChangeKind::Isolation { begins: true, direction: Direction::Ingress }),
    ("isolation-ends", ChangeKind::Isolation { begins: false, direction: Direction::Ingress }),
];

/// All entries of a file, in order.
pub(super) fn parse(bytes: Vec<u8>, name: &str, needs_reasons: bool) -> Result<Vec<Approval>> {
    strict_yaml::with_file(bytes, name, LAYOUT, |file| {
        let Some(root) = file.root("all approvals must be in one list")? else {
            return Err(with_hint(format!("{name} is empty"), LAYOUT));
        };
        let entries = file.mapping(&root, "the file", &["apiVersion", "kind", "approvals"])?;
        for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            if file.scalar(entries, key)?.as_deref() != Some(wanted) {
                return Err(file.wrong(root.span, &format!("`{key}` is not `{wanted}`"), LAYOUT));
            }
        }
        if field(entries, "approvals").is_none() {
            return Err(file.missing(&root, "approvals"));
        }
        let mut reader = ApprovalReader { file, needs_reasons };
        reader.file.items(entries, "approvals")?.iter().map(|node| reader.approval(node)).collect()
    })
}

struct ApprovalReader<'f, 's> {
    file: &'f mut StrictYaml<'s>,
    needs_reasons: bool,
}

impl ApprovalReader<'_, '_> {
    fn approval(&mut self, node: &SyntaxNode<'_>) -> Result<Approval> {
        let entries = self.file.mapping(node, "an approval", &FIELDS)?;
        let change = self.word(node, entries, "change", &CHANGES)?.ok_or_else(|| self.file.missing(node, "change"))?;
        let change = match change {
            ChangeKind::Traffic(_) => {
                self.without(entries, &["direction", "of"], "a change of traffic has `from`, `to` and `traffic`")?;
                let region = self.region(node, entries)?;
                ApprovableChange { kind: change, region }
            }
            ChangeKind::Isolation { begins, .. } => {
                let fields = ["from", "to", "traffic", "given", "family"];
                self.without(entries, &fields, "a change of isolation has `direction` and `of`")?;
                let directions = Direction::ALL.map(|it| (it.name(), it));
                let direction = self.word(node, entries, "direction", &directions)?;
                let direction = direction.ok_or_else(|| self.file.missing(node, "direction"))?;
                let pods = self.end(node, entries, "of")?;
                let mut except = Vec::new();
                for item in self.file.items(entries, "except")? {
                    except.push(self.end_at(item, "except")?);
                }
                ApprovableChange::isolation(begins, direction, pods, except)
            }
        };
        let expires = field(entries, "expires").map(|it| self.date(it)).transpose()?;
        let reason = self.file.scalar(entries, "reason")?.unwrap_or_default().trim().to_owned();
        let line = self.file.line(node.span);
        if self.needs_reasons && reason.is_empty() {
            let at = field(entries, "reason").map_or(node.span, |it| it.span);
            let hint = "say in `reason` why this change is accepted, or remove the approval";
            return Err(self.file.wrong(at, "the approval has no reason", hint));
        }
        Ok(Approval { change, reason, expires, line })
    }

    fn region(&mut self, node: &SyntaxNode<'_>, entries: &[MappingEntry<'_>]) -> Result<FlowRegion> {
        let flows = self.product(node, entries)?;
        let directions = Direction::ALL.map(|it| (it.name(), it));
        let given = self.word(node, entries, "given", &directions)?;
        let family = self.word(node, entries, "family", &[("IPv4", Family::V4), ("IPv6", Family::V6)])?;
        let mut except = Vec::new();
        for item in self.file.items(entries, "except")? {
            let fields = self.file.mapping(item, "an exception", &["from", "to", "traffic"])?;
            except.push(self.product(item, fields)?);
        }
        Ok(FlowRegion { flows, except, given, family })
    }

    fn product(&mut self, node: &SyntaxNode<'_>, entries: &[MappingEntry<'_>]) -> Result<FlowScope> {
        let (source, destination) = (self.end(node, entries, "from")?, self.end(node, entries, "to")?);
        let traffic = field(entries, "traffic").ok_or_else(|| self.file.missing(node, "traffic"))?;
        Ok(FlowScope { source, destination, traffic: self.traffic(traffic)? })
    }

    fn end(&mut self, node: &SyntaxNode<'_>, entries: &[MappingEntry<'_>], name: &str) -> Result<EndScope> {
        let end = field(entries, name).ok_or_else(|| self.file.missing(node, name))?;
        self.end_at(end, name)
    }

    fn end_at(&mut self, node: &SyntaxNode<'_>, name: &str) -> Result<EndScope> {
        let entries = self.file.mapping(node, &format!("`{name}`"), &["pods", "addresses", "endpoints", "services"])?;
        let mut end = EndScope { addresses: self.ranges(entries)?, ..EndScope::default() };
        for item in self.file.items(entries, "pods")? {
            end.pods.push(self.pods(item)?);
        }
        end.endpoints = self.texts(entries, "endpoints")?.into_iter().map(|(_, text)| text).collect();
        let mut services = BTreeSet::new();
        for (node, text) in self.texts(entries, "services")? {
            let address: Option<IpAddr> = text.parse().ok();
            services.insert(address.ok_or_else(|| self.file.wrong(node.span, "not an address", LAYOUT))?);
        }
        end.services = services;
        if end == EndScope::default() {
            return Err(self.file.wrong(node.span, &format!("`{name}` names nothing"), LAYOUT));
        }
        Ok(end)
    }

    fn pods(&mut self, node: &SyntaxNode<'_>) -> Result<PodSet> {
        let known = ["namespaceSelector", "podSelector", "addresses"];
        let entries = self.file.mapping(node, "an item of `pods`", &known)?;
        // Both are required, because a selector that was forgotten would accept every namespace or every pod.
        let mut selector = |name: &str| match field(entries, name) {
            Some(node) => self.selector(node, name),
            None => Err(self.file.missing(node, name)),
        };
        let (namespaces, pods) = (selector("namespaceSelector")?, selector("podSelector")?);
        let addresses = field(entries, "addresses").is_some().then(|| self.ranges(entries)).transpose()?;
        Ok(PodSet { namespaces, pods, addresses })
    }

    fn selector(&mut self, node: &SyntaxNode<'_>, name: &str) -> Result<LabelSelector> {
        let entries = self.file.mapping(node, &format!("`{name}`"), &["matchLabels", "matchExpressions"])?;
        let mut selector = LabelSelector::default();
        if let Some(labels) = field(entries, "matchLabels") {
            let SyntaxValue::Map(labels) = &labels.value else {
                return Err(self.file.wrong(labels.span, "`matchLabels` is a mapping", LAYOUT));
            };
            for label in labels {
                let value = self.required_text(&label.value, &label.key)?;
                if selector.match_labels.insert(&label.key, value).is_some() {
                    return Err(self.file.wrong(label.key_span, "the label is given twice", "remove one"));
                }
            }
        }
        for item in self.file.items(entries, "matchExpressions")? {
            selector.match_expressions.push(self.requirement(item)?);
        }
        Ok(selector)
    }

    fn requirement(&mut self, node: &SyntaxNode<'_>) -> Result<Requirement> {
        let entries = self.file.mapping(node, "an expression", &["key", "operator", "values"])?;
        let operators = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist];
        let operators = operators.map(|it| (it.name(), it));
        let key = self.file.scalar(entries, "key")?.ok_or_else(|| self.file.missing(node, "key"))?;
        let operator = self.word(node, entries, "operator", &operators)?;
        let operator = operator.ok_or_else(|| self.file.missing(node, "operator"))?;
        let values: Vec<String> = self.texts(entries, "values")?.into_iter().map(|(_, text)| text).collect();
        if matches!(operator, Operator::In | Operator::NotIn) == values.is_empty() {
            let hint = "In and NotIn need values; Exists and DoesNotExist have none";
            return Err(self.file.wrong(node.span, "the operator does not fit `values`", hint));
        }
        Ok(Requirement { key, operator, values })
    }

    fn traffic(&mut self, node: &SyntaxNode<'_>) -> Result<RowTraffic> {
        let entries = self.file.mapping(node, "`traffic`", &["ports", "portless"])?;
        let mut traffic = RowTraffic { portless: self.is_portless(entries)?, ..RowTraffic::default() };
        for item in self.file.items(entries, "ports")? {
            let (ports, names) = self.ports(item)?;
            match names[..] {
                [] => traffic.ranges.push(ports),
                _ => traffic.named.push((ports, names)),
            }
        }
        if traffic == RowTraffic::default() {
            return Err(self.file.wrong(node.span, "`traffic` names nothing", LAYOUT));
        }
        Ok(traffic)
    }

    fn is_portless(&mut self, entries: &[MappingEntry<'_>]) -> Result<bool> {
        match field(entries, "portless").map(|it| (it.span, &it.value)) {
            None => Ok(false),
            Some((_, SyntaxValue::Bool(value))) => Ok(*value),
            Some((span, _)) => Err(self.file.wrong(span, "`portless` is not `true` or `false`", LAYOUT)),
        }
    }

    fn ports(&mut self, node: &SyntaxNode<'_>) -> Result<(PortSpec, Vec<String>)> {
        let fields = ["protocol", "port", "endPort", "name", "names"];
        let entries = self.file.mapping(node, "an item of `ports`", &fields)?;
        let protocols = [("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)];
        let protocol = self.word(node, entries, "protocol", &protocols)?;
        let protocol = protocol.ok_or_else(|| self.file.missing(node, "protocol"))?;
        let (port, end) = (self.port(entries, "port")?, self.port(entries, "endPort")?);
        let (first, last) = match (port, end) {
            (None, None) => (1, u16::MAX),
            (Some(port), None) => (port, port),
            (Some(first), Some(last)) if first <= last => (first, last),
            _ => return Err(self.file.wrong(node.span, "`endPort` needs a smaller `port`", LAYOUT)),
        };
        let several = self.texts(entries, "names")?.into_iter().map(|(_, name)| name);
        let mut names: Vec<String> = self.file.scalar(entries, "name")?.into_iter().chain(several).collect();
        names.sort();
        names.dedup();
        Ok((PortSpec { protocol, first, last }, names))
    }

    fn port(&mut self, entries: &[MappingEntry<'_>], name: &str) -> Result<Option<u16>> {
        let Some(node) = field(entries, name) else { return Ok(None) };
        let number = match node.value {
            SyntaxValue::Int(number) => u16::try_from(number).ok().filter(|it| *it > 0),
            _ => None,
        };
        let message = format!("`{name}` is not a number from 1 to 65535");
        number.map(Some).ok_or_else(|| self.file.wrong(node.span, &message, LAYOUT))
    }

    fn ranges(&mut self, entries: &[MappingEntry<'_>]) -> Result<AddressSet> {
        let mut ranges = Vec::new();
        for (node, text) in self.texts(entries, "addresses")? {
            let hint = "write an address, a CIDR, or a range as `192.0.2.1-192.0.2.9`";
            let range = range(&text);
            ranges.push(range.ok_or_else(|| self.file.wrong(node.span, "not a range of addresses", hint))?);
        }
        Ok(AddressSet::new(ranges))
    }

    fn texts<'n, 't>(
        &mut self,
        entries: &'n [MappingEntry<'t>],
        name: &str,
    ) -> Result<Vec<(&'n SyntaxNode<'t>, String)>> {
        let items = self.file.items(entries, name)?;
        items.iter().map(|node| Ok((node, self.required_text(node, name)?))).collect()
    }

    fn required_text(&mut self, node: &SyntaxNode<'_>, name: &str) -> Result<String> {
        let text = self.file.text(node, name)?;
        text.ok_or_else(|| self.file.wrong(node.span, &format!("`{name}` has no value"), LAYOUT))
    }

    /// A field with one of these words.
    fn word<T: Copy>(
        &mut self,
        node: &SyntaxNode<'_>,
        entries: &[MappingEntry<'_>],
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>> {
        let Some(text) = self.file.scalar(entries, name)? else { return Ok(None) };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*value));
        }
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let at = field(entries, name).map_or(node.span, |it| it.span);
        let hint = format!("`{name}` is one of: {}", known.join(", "));
        Err(self.file.wrong(at, &format!("`{text}` is not a value of `{name}`"), &hint))
    }

    fn without(&mut self, entries: &[MappingEntry<'_>], fields: &[&str], hint: &str) -> Result<()> {
        match entries.iter().find(|it| fields.contains(&&*it.key)) {
            Some(entry) => {
                Err(self.file.wrong(entry.key_span, &format!("`{}` does not fit `change`", entry.key), hint))
            }
            None => Ok(()),
        }
    }

    fn date(&mut self, node: &SyntaxNode<'_>) -> Result<Date> {
        let text = self.required_text(node, "expires")?;
        // jiff reads other forms, too. A file that people compare with a calendar has only one.
        let date: Option<Date> = text.parse().ok().filter(|it: &Date| it.to_string() == text);
        date.ok_or_else(|| {
            let hint = "write the last day on which the approval counts, as `expires: 2030-12-31`";
            self.file.wrong(node.span, &format!("`{text}` is not a date"), hint)
        })
    }
}

/// `192.0.2.1`, `192.0.2.0/24` or `192.0.2.1-192.0.2.9`
fn range(text: &str) -> Option<AddressRange> {
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
        None => Prefix::read_strictly(text).map(|it| (it.address(), it.last()))?,
    };
    (Family::of(first) == Family::of(last) && first <= last).then_some(AddressRange { first, last })
}
