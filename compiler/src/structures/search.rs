//! Ranges → numbers: a binary search without a branch, one for each 32 bits of the address.
//!
//! Problem: a trie of the kernel walks a node for every bit that tells prefixes apart. Strategy: cut the address space where
//! the number changes. A node is the sorted list of values of 32 bits at which it changes; where it changes within one
//! such value, that element leads to a node for the next 32 bits. IPv4 is one node, IPv6 up to four deep.
//!
//! ```text
//!  starts: u32 × elements │ references: u32 × elements
//!  reference: upper bit set: a number; else the first element of a node << 5 │ the levels of its search
//! ```
//!
//! A node has `2^levels` elements; a start is stored less one, so that "begins at or before the key" is a sign bit; what
//! pads a node lies beyond every key. Invariant: an element's first start is never compared: it is the node's own.
//!
//! With a *first table* ([`build_with_first`]: DXR, for IPv6) the first node is cut into chunks of equally many values,
//! and a table has the reference of each: most searches of the first 32 bits are over before they begin. It spans what
//! lies between the first and the last value at which anything changes, so that it is as fine for what is all in `2a00::/12` as
//! for what is everywhere.

/// In a reference: this is a number.
pub const LEAF: u32 = 1 << 31;
/// Elements that a reference can name.
const MOST_ELEMENTS: usize = 1 << 26;

/// What a program needs to know to find its way in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Groups of 32 bits in an address: 1 or 4.
    pub groups: usize,
    /// The first element of the first node.
    pub root: u32,
    /// The levels of the first node.
    pub root_levels: u32,
    /// The most levels of a node, by group; 0 where there is none.
    pub most_levels: [u32; 4],
    /// Elements that nodes begin at.
    pub used: u32,
    /// All of them: behind the last node lies as much as the largest search can reach.
    pub elements: u32,
    /// Instead of the first node.
    pub first: Option<First>,
}

/// A table of references, by the upper bits of the first 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// The value that the first reference is for; before it, the number is 0.
    pub base: u32,
    /// `2^shift` values share a reference.
    pub shift: u32,
    /// How many there are.
    pub count: u32,
    /// The number beyond the last.
    pub beyond: u32,
}

impl Shape {
    /// Where the references begin.
    pub fn references_at(self) -> usize {
        4 * self.elements as usize
    }

    /// Where the first table begins.
    pub fn first_at(self) -> usize {
        8 * self.elements as usize
    }

    /// All of it.
    pub fn bytes(self) -> usize {
        self.first_at() + 4 * self.first.map_or(0, |it| it.count as usize)
    }
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What the map holds.
    pub bytes: Vec<u8>,
    /// How to read it.
    pub shape: Shape,
}

/// Where the number changes: addresses from here on have this number.
pub type Cut = (u128, u32);

/// Lays out cuts, sorted by address; what is before the first has number 0. `None` if they are too many.
pub fn build(groups: usize, cuts: &[Cut]) -> Option<Table> {
    let mut nodes = Nodes::new(groups);
    let root = nodes.node(0, 0, cuts)?;
    nodes.finish(root, None)
}

/// The same with a first table. `None` also if nothing changes anywhere.
pub fn build_with_first(groups: usize, cuts: &[Cut]) -> Option<Table> {
    let mut nodes = Nodes::new(groups);
    let list = nodes.list(0, 0, cuts)?;
    let list = if list.first()?.1 == LEAF { list.get(1..)? } else { &list };
    let first = First::spanning(list.first()?.0, *list.last()?, list.len());
    let mut references = Vec::with_capacity(first.count as usize);
    let mut rest = list;
    let mut before = LEAF;
    for chunk in 0..first.count {
        let begin = first.base + (chunk << first.shift);
        let (here, after) = rest.split_at(rest.partition_point(|it| it.0 - begin < 1 << first.shift));
        references.push(nodes.chunk(begin, before, here)?);
        before = here.last().map_or(before, |it| it.1);
        rest = after;
    }
    nodes.finish(0, Some((first, references)))
}

impl First {
    /// As fine as elements are many, within the limit. At least two values share a reference, so that a chunk that has
    /// but one element is a number.
    fn spanning(begin: u32, last: (u32, u32), elements: usize) -> Self {
        let bits = (usize::BITS - elements.leading_zeros() + FINER).min(MOST_FIRST_BITS);
        let shift = (u32::BITS - (last.0 - begin).leading_zeros()).saturating_sub(bits).max(1);
        let base = begin >> shift << shift;
        let beyond = if last.1 & LEAF == 0 { 0 } else { last.1 & !LEAF };
        Self { base, shift, count: ((last.0 - base) >> shift) + 1, beyond }
    }
}

/// The first table has up to `2^MOST_FIRST_BITS` references: 256 KiB.
const MOST_FIRST_BITS: u32 = 16;
/// How many bits more than the number of elements has: addresses that are given out lie close together.
const FINER: u32 = 2;

/// No key is beyond it.
const PADDING: (u32, u32) = (u32::MAX, LEAF);

struct Nodes {
    groups: usize,
    /// (start - 1, reference)
    elements: Vec<(u32, u32)>,
    most_levels: [u32; 4],
}

impl Nodes {
    fn new(groups: usize) -> Self {
        Self { groups, elements: Vec::new(), most_levels: [0; 4] }
    }

    fn finish(mut self, root: u32, first: Option<(First, Vec<u32>)>) -> Option<Table> {
        let used = self.elements.len();
        let slack = 1usize << self.most_levels.iter().max()?;
        self.elements.resize(used + slack, PADDING);
        let shape = Shape {
            groups: self.groups,
            root: root >> 5,
            root_levels: root & 31,
            most_levels: self.most_levels,
            used: used as u32,
            elements: self.elements.len() as u32,
            first: first.as_ref().map(|it| it.0),
        };
        let starts = self.elements.iter().map(|(start, _)| *start);
        let references = self.elements.iter().map(|(_, reference)| *reference);
        let first = first.into_iter().flat_map(|it| it.1);
        Some(Table { bytes: starts.chain(references).chain(first).flat_map(u32::to_le_bytes).collect(), shape })
    }

    /// The reference for a part of the first node, from `begin` on.
    fn chunk(&mut self, begin: u32, before: u32, list: &[(u32, u32)]) -> Option<u32> {
        match list {
            [] => return Some(before),
            [(start, reference)] if *start == begin && reference & LEAF != 0 => return Some(*reference),
            _ => {}
        }
        let mut with_begin = List(vec![(begin, before)]);
        list.iter().for_each(|(start, reference)| with_begin.push(*start, *reference));
        self.place(0, &with_begin.0)
    }

    /// The reference to a node for one group of bits; `before` is the number that holds at its beginning.
    fn node(&mut self, group: usize, before: u32, cuts: &[Cut]) -> Option<u32> {
        let list = self.list(group, before, cuts)?;
        self.place(group, &list)
    }

    /// The elements of that node; those behind it are laid out.
    fn list(&mut self, group: usize, before: u32, cuts: &[Cut]) -> Option<Vec<(u32, u32)>> {
        let shift = 32 * (self.groups - 1 - group);
        let value = |cut: &Cut| (cut.0 >> shift) as u32;
        let mut list = List(vec![(0, LEAF | before)]);
        let mut before = before;
        for run in cuts.chunk_by(|a, b| value(a) == value(b)) {
            let (first, last) = (run.first()?, run.last()?);
            let start = value(first);
            if run.len() == 1 && first.0.trailing_zeros() as usize >= shift {
                list.push(start, LEAF | first.1);
            } else {
                let inner = self.node(group + 1, before, run)?;
                list.push(start, inner);
                if let Some(next) = start.checked_add(1) {
                    list.push(next, LEAF | last.1);
                }
            }
            before = last.1;
        }
        Some(list.0)
    }

    fn place(&mut self, group: usize, list: &[(u32, u32)]) -> Option<u32> {
        let levels = list.len().next_power_of_two().trailing_zeros();
        let first = self.elements.len();
        self.elements.extend(list.iter().map(|(start, reference)| (start.wrapping_sub(1), *reference)));
        self.elements.resize(first + (1 << levels), PADDING);
        let most = self.most_levels.get_mut(group)?;
        *most = levels.max(*most);
        (self.elements.len() <= MOST_ELEMENTS).then_some((first as u32) << 5 | levels)
    }
}

/// (start, reference), sorted; neighbours of one number are one.
struct List(Vec<(u32, u32)>);

impl List {
    fn push(&mut self, start: u32, reference: u32) {
        self.0.pop_if(|last| last.0 == start);
        if self.0.last().is_none_or(|last| last.1 != reference) {
            self.0.push((start, reference));
        }
    }
}

impl Table {
    /// What a program finds in the bytes: the number of an address.
    pub fn find(&self, address: u128) -> Option<u32> {
        let word = |at: usize| Some(u32::from_le_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?));
        let mut reference = match self.shape.first {
            None => self.shape.root << 5 | self.shape.root_levels,
            Some(first) => {
                let key = (address >> (32 * (self.shape.groups - 1))) as u32;
                let at = key.wrapping_sub(first.base) >> first.shift;
                if at >= first.count {
                    return Some(if key < first.base { 0 } else { first.beyond });
                }
                word(self.shape.first_at() + 4 * at as usize)?
            }
        };
        if reference & LEAF != 0 {
            return Some(reference & !LEAF);
        }
        for group in 0..self.shape.groups {
            let key = (address >> (32 * (self.shape.groups - 1 - group))) as u32;
            let mut at = (reference >> 5) as usize;
            for level in (0..reference & 31).rev() {
                let step = 1usize << level;
                if word(4 * (at + step))? < key {
                    at += step;
                }
            }
            reference = word(self.shape.references_at() + 4 * at)?;
            if reference & LEAF != 0 {
                return Some(reference & !LEAF);
            }
        }
        None
    }
}
