//! Sets of flows as decision diagrams.
//!
//! Problem: whether a set of possible flows is empty must be answered exactly, and there are more possible flows than
//! can be listed.
//! Strategy: a node tests one variable. It cuts the variable's numbers into intervals, each with a diagram for the
//! variables after it. Equal nodes are stored once, and results of operations are remembered, so a set is empty if and
//! only if its diagram is [`Diagram::NONE`].
//! Invariant: variables ascend on every path, neighbouring intervals have different diagrams, and a node has at least
//! two intervals: so equal sets have equal numbers.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::WorldError;

/// A variable: its place in the order of all variables.
pub(super) type Var = u32;

/// A set, as the number of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Diagram(u32);

impl Diagram {
    /// The empty set.
    pub(super) const NONE: Self = Self(0);
    /// The set of all flows.
    pub(super) const ALL: Self = Self(1);

    pub(super) fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

/// Intervals of a variable, with first and last number.
pub(super) type Intervals = Vec<(u128, u128)>;

/// An interval: its first number, and the diagram for the numbers up to the next interval.
type Cut = (u128, Diagram);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    var: Var,
    /// The first interval begins at 0, and the last one has no end.
    cuts: Box<[Cut]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    And,
    Or,
    AndNot,
}

impl Operation {
    /// The result, if one of the operands is enough to know it.
    fn shortcut(self, a: Diagram, b: Diagram) -> Option<Diagram> {
        const NONE: Diagram = Diagram::NONE;
        const ALL: Diagram = Diagram::ALL;
        match self {
            Self::And if a == NONE || b == NONE => Some(NONE),
            Self::And if a == ALL || a == b => Some(b),
            Self::And if b == ALL => Some(a),
            Self::Or if a == ALL || b == ALL => Some(ALL),
            Self::Or if a == NONE || a == b => Some(b),
            Self::Or if b == NONE => Some(a),
            Self::AndNot if a == NONE || b == ALL || a == b => Some(NONE),
            Self::AndNot if b == NONE => Some(a),
            _ => None,
        }
    }
}

/// All diagrams of a comparison.
pub(super) struct Diagrams {
    nodes: Vec<Node>,
    known: HashMap<Node, Diagram>,
    results: HashMap<(Operation, Diagram, Diagram), Diagram>,
    most: usize,
    steps_left: u64,
}

impl Diagrams {
    /// A store for at most this many nodes.
    pub(super) fn new(most: usize) -> Self {
        // The two constants have nodes too, so that numbers are indexes. Their variable is after every other one.
        let constant = Node { var: Var::MAX, cuts: Box::new([]) };
        let nodes = vec![constant.clone(), constant];
        Self { nodes, known: HashMap::new(), results: HashMap::new(), most, steps_left: u64::MAX }
    }

    /// The same store with a limit on operations. Every node, and every pair of nodes that an operation combines, is a
    /// step.
    pub(super) fn within_steps(self, steps_left: u64) -> Self {
        Self { steps_left, ..self }
    }

    /// The steps that are left.
    pub(super) fn steps_left(&self) -> u64 {
        self.steps_left
    }

    fn step(&mut self) -> Result<(), WorldError> {
        self.steps_left =
            self.steps_left.checked_sub(1).ok_or_else(|| WorldError::TooLarge { policies: Vec::new() })?;
        Ok(())
    }

    /// The set that a node with these intervals describes. The first interval must begin at 0.
    pub(super) fn node(&mut self, var: Var, cuts: impl IntoIterator<Item = Cut>) -> Result<Diagram, WorldError> {
        let mut merged: Vec<Cut> = Vec::new();
        for (first, diagram) in cuts {
            match merged.last_mut() {
                Some(last) if last.1 == diagram => {}
                // An interval without numbers.
                Some(last) if last.0 == first => last.1 = diagram,
                _ => merged.push((first, diagram)),
            }
        }
        merged.dedup_by(|next, before| next.1 == before.1);
        if let [(_, only)] = merged[..] {
            return Ok(only);
        }
        self.step()?;
        let node = Node { var, cuts: merged.into() };
        if let Some(known) = self.known.get(&node) {
            return Ok(*known);
        }
        if self.nodes.len() >= self.most {
            return Err(WorldError::TooLarge { policies: Vec::new() });
        }
        let diagram = Diagram(self.nodes.len() as u32);
        self.nodes.push(node.clone());
        self.known.insert(node, diagram);
        Ok(diagram)
    }

    /// The flows for which the variable is in one of the intervals, which are sorted and disjoint (last number
    /// included).
    pub(super) fn within(&mut self, var: Var, intervals: &[(u128, u128)]) -> Result<Diagram, WorldError> {
        let mut cuts = vec![(0, Diagram::NONE)];
        for (first, last) in intervals {
            cuts.push((*first, Diagram::ALL));
            cuts.extend(last.checked_add(1).map(|after| (after, Diagram::NONE)));
        }
        self.node(var, cuts)
    }

    pub(super) fn and(&mut self, a: Diagram, b: Diagram) -> Result<Diagram, WorldError> {
        // Both orders share a result.
        self.apply(Operation::And, a.min(b), a.max(b))
    }

    pub(super) fn or(&mut self, a: Diagram, b: Diagram) -> Result<Diagram, WorldError> {
        self.apply(Operation::Or, a.min(b), a.max(b))
    }

    pub(super) fn and_not(&mut self, a: Diagram, b: Diagram) -> Result<Diagram, WorldError> {
        self.apply(Operation::AndNot, a, b)
    }

    fn apply(&mut self, operation: Operation, a: Diagram, b: Diagram) -> Result<Diagram, WorldError> {
        if let Some(result) = operation.shortcut(a, b) {
            return Ok(result);
        }
        self.step()?;
        if let Some(result) = self.results.get(&(operation, a, b)) {
            return Ok(*result);
        }
        let var = self.nodes[a.0 as usize].var.min(self.nodes[b.0 as usize].var);
        let (left, right) = (self.cuts_of(a, var), self.cuts_of(b, var));
        let mut cuts = Vec::with_capacity(left.len() + right.len());
        let (mut i, mut j) = (0, 0);
        loop {
            let first = left[i].0.max(right[j].0);
            cuts.push((first, self.apply(operation, left[i].1, right[j].1)?));
            // Advances in the operand whose interval ends first; in both if they end together.
            let (after_left, after_right) = (left.get(i + 1).map(|it| it.0), right.get(j + 1).map(|it| it.0));
            match (after_left, after_right) {
                (None, None) => break,
                (Some(one), Some(other)) => {
                    i += usize::from(one <= other);
                    j += usize::from(other <= one);
                }
                (Some(_), None) => i += 1,
                (None, Some(_)) => j += 1,
            }
        }
        let result = self.node(var, cuts)?;
        self.results.insert((operation, a, b), result);
        Ok(result)
    }

    /// The intervals of a variable; one that contains everything if the diagram does not test it first.
    fn cuts_of(&self, diagram: Diagram, var: Var) -> Box<[Cut]> {
        match &self.nodes[diagram.0 as usize] {
            node if node.var == var => node.cuts.clone(),
            _ => Box::new([(0, diagram)]),
        }
    }

    /// One flow of a set that is not empty: a number for each variable that matters. `choose` gets a variable and
    /// intervals (first and last number) and returns a number in one of them.
    pub(super) fn example(
        &self,
        mut diagram: Diagram,
        mut choose: impl FnMut(Var, &[(u128, u128)]) -> u128,
    ) -> Vec<(Var, u128)> {
        let mut path = Vec::new();
        while diagram != Diagram::ALL {
            let Node { var, cuts } = &self.nodes[diagram.0 as usize];
            let last = |index: usize| cuts.get(index + 1).map_or(u128::MAX, |next| next.0 - 1);
            let intervals = cuts.iter().enumerate().filter(|(_, (_, below))| !below.is_empty());
            let intervals: Vec<_> = intervals.map(|(index, (first, _))| (*first, last(index))).collect();
            let number = choose(*var, &intervals);
            path.push((*var, number));
            diagram = cuts[cuts.partition_point(|(first, _)| *first <= number) - 1].1;
        }
        path
    }

    /// The set for one number of the first variable.
    pub(super) fn given(&self, diagram: Diagram, var: Var, number: u128) -> Diagram {
        let cuts = self.cuts_of(diagram, var);
        cuts[cuts.partition_point(|(first, _)| *first <= number) - 1].1
    }

    /// The variables that matter to a set.
    pub(super) fn support(&self, diagram: Diagram) -> BTreeSet<Var> {
        let (mut found, mut seen, mut rest) = (BTreeSet::new(), HashSet::new(), vec![diagram]);
        while let Some(next) = rest.pop() {
            let Node { var, cuts } = &self.nodes[next.0 as usize];
            if !cuts.is_empty() && seen.insert(next) {
                found.insert(*var);
                rest.extend(cuts.iter().map(|(_, below)| *below));
            }
        }
        found
    }

    /// Products of which the set is the union, at most `most`: intervals for each variable that matters.
    pub(super) fn products(&self, diagram: Diagram, most: usize) -> Vec<Vec<(Var, Intervals)>> {
        if diagram == Diagram::ALL {
            return vec![Vec::new()];
        }
        let Node { var, cuts } = &self.nodes[diagram.0 as usize];
        let last = |index: usize| cuts.get(index + 1).map_or(u128::MAX, |next| next.0 - 1);
        let mut below: Vec<(Diagram, Intervals)> = Vec::new();
        for (index, (first, to)) in cuts.iter().enumerate().filter(|(_, (_, to))| !to.is_empty()) {
            match below.iter_mut().find(|(known, _)| known == to) {
                Some((_, intervals)) => intervals.push((*first, last(index))),
                None => below.push((*to, vec![(*first, last(index))])),
            }
        }
        let mut found = Vec::new();
        for (to, intervals) in below {
            for mut product in self.products(to, most - found.len()) {
                product.insert(0, (*var, intervals.clone()));
                found.push(product);
            }
            if found.len() >= most {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 10_000;

    /// Every operation agrees with truth tables over three variables of four numbers.
    #[test]
    fn operations_agree_with_truth_tables() {
        let mut all = Diagrams::new(MOST);
        let mut sets = vec![(Diagram::NONE, [false; 64]), (Diagram::ALL, [true; 64])];
        for var in 0..3 {
            for (first, last) in [(0, 0), (1, 2), (3, u128::MAX)] {
                let table = std::array::from_fn(|point| (first..=last).contains(&(point as u128 >> (2 * var) & 3)));
                sets.push((all.within(var, &[(first, last)]).unwrap(), table));
            }
        }
        let mut next = 0;
        while sets.len() < 400 {
            let ((a, x), (b, y)) = (sets[next * 7 % sets.len()], sets[next * 13 % (sets.len() - 1)]);
            next += 1;
            sets.push((all.and(a, b).unwrap(), std::array::from_fn(|it| x[it] && y[it])));
            sets.push((all.or(a, b).unwrap(), std::array::from_fn(|it| x[it] || y[it])));
            sets.push((all.and_not(a, b).unwrap(), std::array::from_fn(|it| x[it] && !y[it])));
        }
        for (a, x) in &sets {
            for (b, y) in &sets {
                assert_eq!(a == b, x == y, "equal sets have equal numbers, and only these");
            }
            if !a.is_empty() {
                let path = all.example(*a, |_, intervals| intervals[0].0);
                let point = path.iter().fold(0, |point, (var, number)| point | (*number as usize).min(3) << (2 * var));
                assert!(x[point]);
            }
        }
    }

    #[test]
    fn too_many_nodes_are_an_error() {
        let mut all = Diagrams::new(4);
        let one = all.within(0, &[(1, 1)]).unwrap();
        let other = all.within(1, &[(1, 1)]).unwrap();
        assert!(matches!(all.and(one, other), Err(WorldError::TooLarge { .. })));
    }

    #[test]
    fn too_many_steps_are_an_error() {
        let mut all = Diagrams::new(MOST).within_steps(4);
        let one = all.within(0, &[(1, 1)]).unwrap();
        let other = all.within(1, &[(1, 1)]).unwrap();
        // Two nodes, and the operation: its result needs another step.
        assert!(matches!(all.and(one, other), Ok(both) if !both.is_empty()));
        assert_eq!(all.steps_left(), 0);
        assert!(matches!(all.and(one, other), Err(WorldError::TooLarge { .. })), "a known result takes a step too");
    }
}
