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
}

impl Shape {
    /// Where the references begin.
    pub fn references_at(self) -> usize {
        4 * self.elements as usize
    }

    /// All of it.
    pub fn bytes(self) -> usize {
        8 * self.elements as usize
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
    let mut nodes = Nodes { groups, elements: Vec::new(), most_levels: [0; 4] };
    let root = nodes.node(0, 0, cuts)?;
    let used = nodes.elements.len();
    let slack = 1usize << nodes.most_levels.iter().max()?;
    nodes.elements.resize(used + slack, PADDING);
    let shape = Shape {
        groups,
        root: root >> 5,
        root_levels: root & 31,
        most_levels: nodes.most_levels,
        used: used as u32,
        elements: nodes.elements.len() as u32,
    };
    let starts = nodes.elements.iter().flat_map(|(start, _)| start.to_le_bytes());
    let references = nodes.elements.iter().flat_map(|(_, reference)| reference.to_le_bytes());
    Some(Table { bytes: starts.chain(references).collect(), shape })
}

/// No key is beyond it.
const PADDING: (u32, u32) = (u32::MAX, LEAF);

struct Nodes {
    groups: usize,
    /// (start - 1, reference)
    elements: Vec<(u32, u32)>,
    most_levels: [u32; 4],
}

impl Nodes {
    /// The reference to a node for one group of bits; `before` is the number that holds at its beginning.
    fn node(&mut self, group: usize, before: u32, cuts: &[Cut]) -> Option<u32> {
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
        self.place(group, &list.0)
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
        let mut reference = self.shape.root << 5 | self.shape.root_levels;
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
