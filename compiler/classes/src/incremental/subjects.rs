//! Classes and rows of the local endpoints that a change touches.

use std::collections::BTreeSet;

use super::{Effect, Maintained, NeedsWhole};
use crate::meter::Meter;
use crate::rows::{Row, RowBuilder};
use crate::subjects::LocalEndpoint;
use crate::{Classes, SubjectClass, SubjectId};
use weir_model::{Direction, EndpointId};

/// The members of subject classes, while local endpoints move from class to class.
struct Members {
    counts: Vec<u32>,
    /// Classes whose rows must be made.
    fresh: BTreeSet<usize>,
}

impl Maintained {
    /// Makes the classes of the touched endpoints again, and the rows of classes that are new. The other rows get the
    /// entries of the part first.
    pub(super) fn rebuild_subjects(&mut self, effect: Effect, meter: &Meter) -> Result<(), NeedsWhole> {
        let Effect { touched, part, .. } = effect;
        let local: Vec<LocalEndpoint> = touched.iter().map(|index| self.draft.local[*index].clone()).collect();
        let classes = &mut self.classes;
        let (facts, sets) = (std::mem::take(&mut self.facts), std::mem::take(&mut self.sets));
        let (rules, atoms) = (classes.rules.clone(), classes.atoms.clone());
        let mut builder = RowBuilder::new(&self.cluster, &rules, &atoms, &self.peers, meter, facts, sets);
        let subjects = builder.subjects(&local);
        let fresh = assign(classes, &touched, subjects);
        if let Some(part) = part {
            // After a limit, rows are incomplete.
            meter.check()?;
            let has_new = part.first_new < self.peers.list.len();
            builder.begin_part(part);
            replace_part(classes, &fresh, has_new, &mut builder);
            builder.end_part();
        }
        if classes.subjects.iter().any(|it| it.audit.is_some()) != classes.rows.audit.is_some() {
            return Err(NeedsWhole::Audit);
        }
        for index in fresh.iter().copied() {
            let subject = classes.subjects[index].clone();
            let enforced = Direction::ALL.map(|direction| builder.row(direction, &subject));
            if let Some(rows) = &mut classes.rows.audit {
                let [ingress, egress] =
                    builder.audit(std::slice::from_ref(&subject), enforced.each_ref().map(std::slice::from_ref));
                rows[0][index] = first(ingress, &enforced[0]);
                rows[1][index] = first(egress, &enforced[1]);
            }
            let denied = builder.denied_by_lists(Direction::Ingress, &subject);
            let subjects = classes.subjects.len();
            match &mut classes.rows.denied_by_lists {
                Some(by_subject) => by_subject[index] = denied,
                // From here on, the programs have a test for it.
                none if !denied.is_empty() => none.insert(vec![Vec::new(); subjects])[index] = denied,
                _ => {}
            }
            [classes.rows.ingress[index], classes.rows.egress[index]] = enforced;
        }
        (self.facts, self.sets) = builder.into_parts();
        classes.rows.atom_sets = self.sets.to_vec();
        if self.sets.len() > self.most_sets { Err(NeedsWhole::Sets) } else { Ok(()) }
    }
}

/// Replaces the entries of the builder's part in the rows of all subject classes, except for `fresh` ones, whose rows
/// are made whole. `has_new` is whether the part has new classes: only then are rows of ingress affected, and the peers
/// that lists deny.
fn replace_part(classes: &mut Classes, fresh: &BTreeSet<usize>, has_new: bool, builder: &mut RowBuilder<'_>) {
    let Classes { subjects, rows, .. } = classes;
    for (index, subject) in subjects.iter().enumerate().filter(|(index, _)| !fresh.contains(index)) {
        for direction in Direction::ALL.into_iter().filter(|it| has_new || *it == Direction::Egress) {
            let list = if direction == Direction::Ingress { &mut rows.ingress } else { &mut rows.egress };
            list[index] = builder.with_part(direction, subject, &list[index]);
            if let Some(audit) = &mut rows.audit {
                let audit = &mut audit[direction as usize][index];
                *audit = match &subject.audit {
                    Some(_) => builder.with_part(direction, &subject.clone().with_audit_enforced(), audit),
                    None => list[index].clone(),
                };
            }
        }
        let denied = if has_new { builder.new_denied_by_lists(Direction::Ingress, subject) } else { Vec::new() };
        if !denied.is_empty() {
            let by_subject = rows.denied_by_lists.get_or_insert_with(|| vec![Vec::new(); subjects.len()]);
            by_subject[index].extend(denied);
        }
    }
}

fn first(rows: Vec<Row>, enforced: &Row) -> Row {
    rows.into_iter().next().unwrap_or_else(|| enforced.clone())
}

/// Gives the touched endpoints their classes. A class that no endpoint has any more is removed. Returns the classes
/// that need rows.
fn assign(
    classes: &mut Classes,
    touched: &BTreeSet<usize>,
    subjects: Vec<(EndpointId, SubjectClass)>,
) -> BTreeSet<usize> {
    let mut members = Members { counts: vec![0; classes.subjects.len()], fresh: BTreeSet::new() };
    for (_, (_, subject)) in classes.subject_of.iter().enumerate().filter(|(index, _)| !touched.contains(index)) {
        members.counts[subject.index()] += 1;
    }
    for (index, (_, subject)) in touched.iter().zip(subjects) {
        let own = classes.subject_of[*index].1.index();
        let number = members.number(classes, subject, own);
        members.counts[number] += 1;
        classes.subject_of[*index].1 = SubjectId(number as u32);
    }
    let Members { counts, mut fresh } = members;
    for unused in (0..counts.len()).rev().filter(|index| counts[*index] == 0) {
        let last = classes.subjects.len() - 1;
        remove(classes, unused);
        // The last class has moved to the number of the removed one.
        if fresh.remove(&last) {
            fresh.insert(unused);
        }
    }
    fresh
}

impl Members {
    /// The number of a class: that of an equal class, otherwise the endpoint's number before, an unused one or a new
    /// one.
    fn number(&mut self, classes: &mut Classes, subject: SubjectClass, own: usize) -> usize {
        let has_members = |index: &usize| self.counts[*index] > 0;
        let equal = (0..self.counts.len()).filter(has_members).find(|index| classes.subjects[*index] == subject);
        if let Some(equal) = equal {
            return equal;
        }
        let unused = [own].into_iter().chain(0..self.counts.len()).find(|index| !has_members(index));
        let number = unused.unwrap_or_else(|| {
            self.counts.push(0);
            add(classes);
            self.counts.len() - 1
        });
        classes.subjects[number] = subject;
        self.fresh.insert(number);
        number
    }
}

/// The lists of rows, each with one element for each subject class.
fn row_lists(classes: &mut Classes) -> impl Iterator<Item = &mut Vec<Row>> {
    let rows = &mut classes.rows;
    [&mut rows.ingress, &mut rows.egress].into_iter().chain(rows.audit.iter_mut().flatten())
}

/// Adds a class without content.
fn add(classes: &mut Classes) {
    classes.subjects.push(SubjectClass::default());
    row_lists(classes).for_each(|rows| rows.push(Row { default: crate::AtomSetId(0), entries: [].into() }));
    classes.rows.denied_by_lists.iter_mut().for_each(|denied| denied.push(Vec::new()));
}

/// Removes a class; the last class gets its number.
fn remove(classes: &mut Classes, number: usize) {
    let last = SubjectId(classes.subjects.len() as u32 - 1);
    classes.subjects.swap_remove(number);
    row_lists(classes).for_each(|rows| _ = rows.swap_remove(number));
    classes.rows.denied_by_lists.iter_mut().for_each(|denied| _ = denied.swap_remove(number));
    for (_, subject) in classes.subject_of.iter_mut().filter(|(_, subject)| *subject == last) {
        *subject = SubjectId(number as u32);
    }
}
