//! Ranges → numbers: a binary search without a branch, one for each 32 bits of the address.
//!
//! Problem: a kernel trie walks a node for every bit in which prefixes differ. Strategy: cut the address space where
//! the number changes. A node is the sorted list of 32-bit values at which it changes. If it changes within one such
//! value, that element leads to a node for the next 32 bits. IPv4 is one node, IPv6 up to four deep.
//!
//! ```text
//!  starts: u32 × elements │ references: u32 × elements
//!  reference: upper bit set: a number; else the first element of a node << 5 │ the levels of its search
//! ```
//!
//! A node has `2^levels` elements. A start is stored less one, so that "begins at or before the key" is a sign bit.
//! Padding elements of a node are larger than every key. Invariant: the start of a node's first element is never
//! compared.
//!
//! With a *first table* ([`build_with_first`]: DXR, for IPv6) the first node is cut into chunks of equally many values,
//! and a table has one reference per chunk. Most searches of the first 32 bits need only this table. It spans the range
//! between the first and the last value at which the number changes, so it is as fine for prefixes that are all in
//! `2a00::/12` as for prefixes that are everywhere.

use super::room::Room;

/// The bit of a reference which says that it is a number.
pub const LEAF: u32 = 1 << 31;
/// The number of elements that references can address.
const MOST_ELEMENTS: usize = 1 << 26;

/// The parameters with which a program reads the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchShape {
    /// Groups of 32 bits in an address: 1 or 4.
    pub groups: usize,
    /// The first element of the first node.
    pub root: u32,
    /// The levels of the first node.
    pub root_levels: u32,
    /// The maximum levels of a node, by group; 0 for groups without nodes.
    pub most_levels: [u32; 4],
    /// The number of elements in nodes. References point only below it.
    pub used: u32,
    /// The number of all elements. Behind the last node are as many as the largest search can reach.
    pub elements: u32,
    /// The table that replaces the first node.
    pub first: Option<First>,
}

/// A table of references, indexed by the upper bits of the first 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// The value at which the first reference begins. Before it, the number is 0.
    pub base: u32,
    /// `2^shift` values share a reference.
    pub shift: u32,
    /// The number of references.
    pub count: u32,
    /// The number that addresses beyond the last reference have.
    pub beyond: u32,
}

impl SearchShape {
    /// The offset of the references.
    pub fn references_at(self) -> usize {
        4 * self.elements as usize
    }

    /// The offset of the first table.
    pub fn first_at(self) -> usize {
        8 * self.elements as usize
    }

    /// The size of the table.
    pub fn bytes(self) -> usize {
        self.first_at() + 4 * self.first.map_or(0, |it| it.count as usize)
    }
}

/// A search table: its bytes and their shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchTable {
    /// The value of the map.
    pub bytes: Vec<u8>,
    /// The parameters for reading the bytes.
    pub shape: SearchShape,
}

/// A point at which the number changes: addresses from here on have this number.
pub type Cut = (u128, u32);

/// Lays out cuts, which are sorted by address. Before the first cut the number is 0. `None` if there are too many cuts.
pub fn build(groups: usize, cuts: &[Cut], room: Room) -> Option<SearchTable> {
    let mut nodes = Nodes::new(groups);
    let list = nodes.list(0, 0, cuts)?;
    // Programs contain the place of the first node, so the nodes before it are rounded up, not those at the end.
    nodes.elements.resize(room.of(nodes.elements.len()), PADDING);
    let root = nodes.place(0, &list)?;
    nodes.finish(root, None)
}

/// Like [`build`], with a first table. `None` also if there is no cut.
pub fn build_with_first(groups: usize, cuts: &[Cut]) -> Option<SearchTable> {
    let mut nodes = Nodes::new(groups);
    let list = nodes.list(0, 0, cuts)?;
    // Number 0 before the first cut needs no element: the first table says it by its base.
    let list = if list.first()?.1 == LEAF { list.get(1..)? } else { &list };
    let first = First::spanning(list.first()?.0, *list.last()?, list.len());
    let mut references = Vec::with_capacity(first.count as usize);
    let mut rest = list;
    let mut before = LEAF;
    for chunk in 0..first.count {
        // `base` is a multiple of the chunk's size, so chunks begin where a shift of the key changes.
        let begin = first.base + (chunk << first.shift);
        let (here, after) = rest.split_at(rest.partition_point(|it| it.0 - begin < 1 << first.shift));
        references.push(nodes.chunk(begin, before, here)?);
        before = here.last().map_or(before, |it| it.1);
        rest = after;
    }
    nodes.finish(0, Some((first, references)))
}

impl First {
    /// The more elements, the finer the table, within the limit. At least two values share a reference, so that a chunk
    /// with a single element is always a number and needs no search.
    fn spanning(begin: u32, last: (u32, u32), elements: usize) -> Self {
        // Grows with the input, so that ten prefixes do not get a table of 256 KiB, which would evict more than it
        // saves.
        let bits = (usize::BITS - elements.leading_zeros() + FINER).min(MOST_FIRST_BITS);
        let shift = (u32::BITS - (last.0 - begin).leading_zeros()).saturating_sub(bits).max(1);
        let base = begin >> shift << shift;
        // The last element leads to a node only if it holds the largest value of all (see `list`). Then no key is
        // beyond it, and any number would do.
        let beyond = if last.1 & LEAF == 0 { 0 } else { last.1 & !LEAF };
        Self { base, shift, count: ((last.0 - base) >> shift) + 1, beyond }
    }
}

/// The first table has up to `2^MOST_FIRST_BITS` references: 256 KiB.
const MOST_FIRST_BITS: u32 = 16;
/// How many bits the table has beyond those of the number of elements. Addresses in use are close together, so a finer
/// table pays.
const FINER: u32 = 2;

/// The padding element: no key is larger.
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

    fn finish(mut self, root: u32, first: Option<(First, Vec<u32>)>) -> Option<SearchTable> {
        let used = self.elements.len();
        // Verifier: room for the largest search behind the last node, so that one check of the reference bounds all of
        // its reads.
        let slack = 1usize << self.most_levels.iter().max()?;
        self.elements.resize(used + slack, PADDING);
        let shape = SearchShape {
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
        Some(SearchTable { bytes: starts.chain(references).chain(first).flat_map(u32::to_le_bytes).collect(), shape })
    }

    /// The reference for a part of the first node that begins at `begin`.
    fn chunk(&mut self, begin: u32, before: u32, list: &[(u32, u32)]) -> Option<u32> {
        match list {
            [] => return Some(before),
            [(start, reference)] if *start == begin && reference & LEAF != 0 => return Some(*reference),
            _ => {}
        }
        // A search never compares its first element, so what holds at the beginning of the chunk must be there.
        let mut with_begin = StartList(vec![(begin, before)]);
        list.iter().for_each(|(start, reference)| with_begin.push(*start, *reference));
        self.place(0, &with_begin.0)
    }

    /// The reference to a node for one group of bits. `before` is the number that holds before the node's first cut.
    fn node(&mut self, group: usize, before: u32, cuts: &[Cut]) -> Option<u32> {
        let list = self.list(group, before, cuts)?;
        self.place(group, &list)
    }

    /// The elements of such a node. The nodes that it leads to are laid out on the way.
    fn list(&mut self, group: usize, before: u32, cuts: &[Cut]) -> Option<Vec<(u32, u32)>> {
        let shift = 32 * (self.groups - 1 - group);
        let value = |cut: &Cut| (cut.0 >> shift) as u32;
        let mut list = StartList(vec![(0, LEAF | before)]);
        let mut before = before;
        for run in cuts.chunk_by(|a, b| value(a) == value(b)) {
            let (first, last) = (run.first()?, run.last()?);
            let start = value(first);
            // The change is exactly at the beginning of this 32-bit value, so no further group is needed to decide.
            if run.len() == 1 && first.0.trailing_zeros() as usize >= shift {
                list.push(start, LEAF | first.1);
            } else {
                let inner = self.node(group + 1, before, run)?;
                list.push(start, inner);
                // Behind the value that has a node, the last number of the run holds again. There is nothing behind the
                // largest value.
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
        // Nodes inside come first, since `list` lays them out on its way: a reference always points to an element that
        // exists.
        self.elements.extend(list.iter().map(|(start, reference)| (start.wrapping_sub(1), *reference)));
        self.elements.resize(first + (1 << levels), PADDING);
        let most = self.most_levels.get_mut(group)?;
        *most = levels.max(*most);
        (self.elements.len() <= MOST_ELEMENTS).then_some((first as u32) << 5 | levels)
    }
}

/// (start, reference), sorted. Neighbours with the same reference are merged.
struct StartList(Vec<(u32, u32)>);

impl StartList {
    fn push(&mut self, start: u32, reference: u32) {
        self.0.pop_if(|last| last.0 == start);
        if self.0.last().is_none_or(|last| last.1 != reference) {
            self.0.push((start, reference));
        }
    }
}

impl SearchTable {
    /// The number that a program finds in the bytes for an address.
    pub fn find(&self, address: u128) -> Option<u32> {
        let word = |at: usize| Some(u32::from_le_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?));
        let mut reference = match self.shape.first {
            None => self.shape.root << 5 | self.shape.root_levels,
            Some(first) => {
                let key = (address >> (32 * (self.shape.groups - 1))) as u32;
                // Keys below the base wrap to large numbers, so one comparison finds both ends.
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
        // A bound for a damaged table whose references form a circle: it is left after four groups.
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
