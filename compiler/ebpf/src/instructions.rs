//! The instructions of an assembled program, shared by all copies of it.
//!
//! Problem: an agent makes one artifact after the other, and nearly always with the same programs. To copy thousands of
//! instructions for each artifact, and to encode them three times for its file and its digests, took a tenth of the
//! time of a change. Strategy: copies share the instructions, and the encoding and its digest, which are made when they
//! are needed first. Invariant: both are those of the instructions, because [`Instructions::make_mut`] drops them.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::code::{ByteOrder, encode};
use super::insn::{Imm64, Insn};

/// Instructions in order.
#[derive(Clone, Default)]
pub struct Instructions(Arc<SharedInstructions>);

#[derive(Clone, Default)]
struct SharedInstructions {
    list: Vec<Insn>,
    unlinked: OnceLock<Vec<u8>>,
    digest: OnceLock<[u8; 32]>,
}

impl Instructions {
    /// The instructions, to change them. Other copies keep theirs.
    pub fn make_mut(&mut self) -> &mut Vec<Insn> {
        let shared = Arc::make_mut(&mut self.0);
        (shared.unlinked, shared.digest) = Default::default();
        &mut shared.list
    }

    /// The bytes of code that is not linked, as a file holds it: a load of a map is 0, and a load of an address in a
    /// map's value is the offset.
    pub fn unlinked(&self) -> &[u8] {
        self.0.unlinked.get_or_init(|| {
            let plain = |insn: &Insn| match *insn {
                Insn::LoadImm64 { dst, value: Imm64::MapFd(_) } => Insn::LoadImm64 { dst, value: Imm64::Value(0) },
                Insn::LoadImm64 { dst, value: Imm64::MapValue { offset, .. } } => {
                    Insn::LoadImm64 { dst, value: Imm64::Value(u64::from(offset as u32)) }
                }
                other => other,
            };
            encode(self.iter().map(plain), ByteOrder::Little)
        })
    }

    /// The digest of [`Self::unlinked`]. All callers compute the same one, because only the first call does.
    pub fn digest(&self, compute: impl FnOnce(&[u8]) -> [u8; 32]) -> [u8; 32] {
        *self.0.digest.get_or_init(|| compute(self.unlinked()))
    }
}

impl Deref for Instructions {
    type Target = [Insn];

    fn deref(&self) -> &[Insn] {
        &self.0.list
    }
}

impl From<Vec<Insn>> for Instructions {
    fn from(list: Vec<Insn>) -> Self {
        Self(Arc::new(SharedInstructions { list, ..Default::default() }))
    }
}

impl<'a> IntoIterator for &'a Instructions {
    type Item = &'a Insn;
    type IntoIter = std::slice::Iter<'a, Insn>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Instructions {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.list == other.0.list
    }
}

impl Eq for Instructions {}

impl fmt::Debug for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.list.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::Reg;

    #[test]
    fn a_change_has_its_own_encoding_and_leaves_copies_alone() {
        let load = |value| Insn::LoadImm64 { dst: Reg::R1, value };
        let first = Instructions::from(vec![load(Imm64::MapFd(7)), Insn::Exit]);
        let mut second = first.clone();
        let zeros = [0x18, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((first.unlinked(), second.unlinked()), (&zeros[..], &zeros[..]));
        let digest = |of: &Instructions| {
            of.digest(|bytes| {
                bytes.first_chunk().map_or([0; 32], |it: &[u8; 24]| {
                    let mut digest = [0; 32];
                    digest[..24].copy_from_slice(it);
                    digest
                })
            })
        };
        assert_eq!(digest(&first)[..24], zeros);
        second.make_mut()[0] = load(Imm64::MapValue { fd: 7, offset: 3 });
        let mut three = zeros;
        three[4] = 3;
        assert_eq!((first.unlinked(), second.unlinked()), (&zeros[..], &three[..]));
        assert_eq!((&digest(&first)[..24], &digest(&second)[..24]), (&zeros[..], &three[..]));
        assert_ne!(first, second);
        second.make_mut()[0] = load(Imm64::MapFd(7));
        assert_eq!(first, second);
    }
}
