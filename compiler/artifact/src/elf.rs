//! ELF64, little-endian, relocatable, for the eBPF machine: only the features that loaders read.
//!
//! Written by hand: the writer is short, and its bytes depend only on its input. (`object` would write a non-zero
//! addend of a REL relocation into the instruction and give symbols the visibility that its idea of linkage implies;
//! both had to be worked around.)

mod read;

use std::borrow::Cow;

pub(super) use read::Elf;

use super::bytes::Sink;

/// Bytes of the file header.
const HEADER: usize = 64;
/// Bytes of a section header.
const SECTION_HEADER: usize = 64;
/// Bytes of a symbol.
const SYMBOL: usize = 24;
/// Bytes of a relocation without addend.
const RELOCATION: usize = 16;
/// The first bytes of the file: magic, 64 bits, little-endian, version 1.
const IDENT: [u8; 16] = [0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// `ET_REL`, `EM_BPF`, version 1.
const KIND: (u16, u16, u32) = (1, 247, 1);
/// `STV_DEFAULT` symbols with `STB_GLOBAL`.
const GLOBAL: u8 = 1 << 4;
/// The section of section and symbol names.
const STRINGS: &str = ".strtab";
const SYMBOLS: &str = ".symtab";

/// Section types.
pub(super) mod kind {
    pub(crate) const PROGBITS: u32 = 1;
    pub(super) const SYMTAB: u32 = 2;
    pub(super) const STRTAB: u32 = 3;
    pub(crate) const NOBITS: u32 = 8;
    pub(crate) const REL: u32 = 9;
}

/// Section flags.
pub(super) mod flag {
    pub(crate) const WRITE: u64 = 1;
    pub(crate) const ALLOC: u64 = 2;
    pub(crate) const EXEC: u64 = 4;
}

/// The one relocation that we use: a 64-bit load of an address.
const R_BPF_64_64: u32 = 1;

/// A section and its content.
#[derive(Clone, Debug)]
struct ElfSection<'a> {
    name: String,
    kind: u32,
    flags: u64,
    /// For relocations: the number of the section that they change.
    info: u32,
    /// In pieces, one after the other.
    data: Vec<Cow<'a, [u8]>>,
    /// The size of a section whose bytes are zeros and not in the file.
    zeros: u64,
}

impl ElfSection<'_> {
    /// The number of its bytes in the file.
    fn length(&self) -> usize {
        self.data.iter().map(|piece| piece.len()).sum()
    }
}

/// The kind of object that a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SymbolKind {
    Object = 1,
    Function = 2,
}

/// A global symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) name: String,
    pub(super) kind: SymbolKind,
    /// The number of its section.
    pub(super) section: u16,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// A file under construction. Sections and symbols are numbered from 1.
#[derive(Clone, Debug, Default)]
pub(super) struct ElfWriter<'a> {
    sections: Vec<ElfSection<'a>>,
    symbols: Vec<Symbol>,
}

impl<'a> ElfWriter<'a> {
    /// Adds a section and returns its number.
    pub(super) fn section(&mut self, name: &str, kind: u32, flags: u64, data: impl Into<Cow<'a, [u8]>>) -> u16 {
        self.pieces(name, kind, flags, vec![data.into()])
    }

    fn pieces(&mut self, name: &str, kind: u32, flags: u64, data: Vec<Cow<'a, [u8]>>) -> u16 {
        self.sections.push(ElfSection { name: name.to_owned(), kind, flags, info: 0, data, zeros: 0 });
        self.sections.len() as u16
    }

    /// Adds a section of `zeros` zero bytes, which are not in the file.
    pub(super) fn zeros(&mut self, name: &str, flags: u64, zeros: u64) -> u16 {
        let (name, data) = (name.to_owned(), Vec::new());
        self.sections.push(ElfSection { name, kind: kind::NOBITS, flags, info: 0, data, zeros });
        self.sections.len() as u16
    }

    /// Adds a section that loaders ignore.
    pub(super) fn note(&mut self, name: &str, data: impl Into<Cow<'a, [u8]>>) -> u16 {
        self.section(name, kind::PROGBITS, 0, data)
    }

    /// The same, of several pieces.
    pub(super) fn note_of(&mut self, name: &str, data: Vec<Cow<'a, [u8]>>) -> u16 {
        self.pieces(name, kind::PROGBITS, 0, data)
    }

    /// Adds a symbol of `size` bytes at an offset in a section. Returns its number.
    pub(super) fn symbol(&mut self, kind: SymbolKind, name: &str, [offset, size]: [u64; 2], section: u16) -> u32 {
        self.symbols.push(Symbol { name: name.to_owned(), kind, section, offset, size });
        self.symbols.len() as u32
    }

    /// Adds relocations: byte offsets in `section`, and the symbols whose addresses belong there.
    pub(super) fn relocations(&mut self, section: u16, name: &str, relocations: &[(u64, u32)]) {
        let mut data = Sink::default();
        for (offset, symbol) in relocations {
            data.u64(*offset);
            data.u64(u64::from(*symbol) << 32 | u64::from(R_BPF_64_64));
        }
        self.section(name, kind::REL, 0, data.0);
        if let Some(added) = self.sections.last_mut() {
            added.info = u32::from(section);
        }
    }

    /// Writes the finished file in place of the content of `file`.
    pub(super) fn finish(mut self, file: &mut Vec<u8>) {
        let mut strings = Strings::default();
        let symbols = self.symbol_table(&mut strings);
        self.section(SYMBOLS, kind::SYMTAB, 0, symbols);
        self.section(STRINGS, kind::STRTAB, 0, Vec::new());
        let names: Vec<u32> = self.sections.iter().map(|section| strings.add(&section.name)).collect();
        if let Some(last) = self.sections.last_mut() {
            last.data = vec![strings.0.into()];
        }
        self.layout(&names, file);
    }

    fn symbol_table(&self, strings: &mut Strings) -> Vec<u8> {
        let mut table = Sink(vec![0; SYMBOL]);
        for symbol in &self.symbols {
            table.u32(strings.add(&symbol.name));
            table.0.extend([GLOBAL | symbol.kind as u8, 0]);
            table.u16(symbol.section);
            table.u64(symbol.offset);
            table.u64(symbol.size);
        }
        table.0
    }

    /// Header, sections, section headers.
    fn layout(&self, names: &[u32], out: &mut Vec<u8>) {
        const ALIGNED: usize = 8;
        let room = |section: &ElfSection<'_>| section.length() + ALIGNED + SECTION_HEADER;
        // In one piece: to grow a file of megabytes step by step copies it several times.
        let all: usize = self.sections.iter().map(room).sum();
        let mut file = Sink(std::mem::take(out));
        file.0.clear();
        file.0.reserve(HEADER + SECTION_HEADER + ALIGNED + all);
        file.0.resize(HEADER, 0);
        let mut headers = Sink(vec![0; SECTION_HEADER]);
        for (section, name) in self.sections.iter().zip(names) {
            file.align(8);
            self.section_header(&mut headers, section, *name, file.0.len() as u64);
            section.data.iter().for_each(|piece| file.0.extend(&**piece));
        }
        file.align(8);
        let header = self.header(file.0.len() as u64);
        file.0.extend(headers.0);
        file.0.splice(..HEADER, header);
        // After a much larger file, its memory is not kept.
        file.0.shrink_to(2 * file.0.len());
        *out = file.0;
    }

    fn section_header(&self, headers: &mut Sink, section: &ElfSection<'_>, name: u32, offset: u64) {
        let strings = self.sections.len() as u32;
        let (link, info, entry) = match section.kind {
            // The index of the first global symbol: the one after the empty symbol.
            kind::SYMTAB => (strings, 1, SYMBOL),
            kind::REL => (strings - 1, section.info, RELOCATION),
            _ => (0, 0, 0),
        };
        headers.u32(name);
        headers.u32(section.kind);
        headers.u64(section.flags);
        headers.u64(0);
        headers.u64(offset);
        headers.u64(section.length() as u64 + section.zeros);
        headers.u32(link);
        headers.u32(info);
        headers.u64(8);
        headers.u64(entry as u64);
    }

    fn header(&self, section_headers: u64) -> Vec<u8> {
        let mut header = Sink(IDENT.to_vec());
        header.u16(KIND.0);
        header.u16(KIND.1);
        header.u32(KIND.2);
        header.u64(0);
        header.u64(0);
        header.u64(section_headers);
        header.u32(0);
        header.u16(HEADER as u16);
        header.u32(0);
        header.u16(SECTION_HEADER as u16);
        header.u16(self.sections.len() as u16 + 1);
        header.u16(self.sections.len() as u16);
        header.0
    }
}

/// Names, each terminated by a zero; the first is empty.
#[derive(Clone, Debug)]
struct Strings(Vec<u8>);

impl Default for Strings {
    fn default() -> Self {
        Self(vec![0])
    }
}

impl Strings {
    fn add(&mut self, name: &str) -> u32 {
        let offset = self.0.len() as u32;
        self.0.extend(name.as_bytes());
        self.0.push(0);
        offset
    }
}
