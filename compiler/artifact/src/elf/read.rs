//! Reads the files that [`super::ElfWriter`] writes. Every offset and count in the file is checked before it is used.

use super::{HEADER, IDENT, KIND, SECTION_HEADER, SYMBOL, SYMBOLS, Symbol, SymbolKind};
use crate::bytes::{ByteReader, c_text};

/// Sections by name.
#[derive(Clone, Debug)]
pub(crate) struct Elf<'a> {
    file: &'a [u8],
    sections: Vec<SectionAt<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct SectionAt<'a> {
    name: &'a str,
    offset: usize,
    data: &'a [u8],
}

/// The fields of a section header that the reader uses.
struct SectionHeader {
    name: u32,
    kind: u32,
    offset: u64,
    size: u64,
}

impl<'a> Elf<'a> {
    /// `None` if the file does not have the form that the writer produces.
    pub(crate) fn read(file: &'a [u8]) -> Option<Self> {
        let mut header = ByteReader(file);
        let known = header.take(16)? == IDENT && (header.u16()?, header.u16()?, header.u32()?) == KIND;
        header.take(16)?;
        let at = header.u64()?;
        header.take(4)?;
        let sizes = (header.u16()?, header.u32()?, header.u16()?);
        if !known || sizes != (HEADER as u16, 0, SECTION_HEADER as u16) {
            return None;
        }
        let (count, names) = (header.u16()?, header.u16()?);
        let mut source = ByteReader::at(file, at)?;
        let headers: Vec<SectionHeader> = (0..count).map(|_| section_header(&mut source)).collect::<Option<_>>()?;
        let strings = headers.get(usize::from(names)).and_then(|header| data(file, header))?;
        let sections = headers.iter().map(|header| section(file, header, strings)).collect::<Option<_>>()?;
        Some(Self { file, sections })
    }

    fn find(&self, name: &str) -> Option<&SectionAt<'a>> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The content of a section.
    pub(crate) fn section(&self, name: &str) -> Option<&'a [u8]> {
        self.find(name).map(|section| section.data)
    }

    /// The file before and after the content of one section.
    pub(crate) fn around(&self, name: &str) -> Option<[&'a [u8]; 2]> {
        let section = self.find(name)?;
        let end = section.offset.checked_add(section.data.len())?;
        Some([self.file.get(..section.offset)?, self.file.get(end..)?])
    }

    /// The symbols, without the empty first one.
    pub(crate) fn symbols(&self) -> Option<Vec<Symbol>> {
        let strings = self.section(super::STRINGS)?;
        let (table, rest) = self.section(SYMBOLS)?.as_chunks::<SYMBOL>();
        let symbols = table.iter().skip(1).map(|bytes| symbol(bytes, strings));
        if rest.is_empty() { symbols.collect() } else { None }
    }

    /// The name of a section by its number, as symbols give it.
    pub(crate) fn section_name(&self, number: u16) -> Option<&'a str> {
        self.sections.get(usize::from(number)).map(|section| section.name)
    }

    /// The offset and symbol number (from 1) of every relocation.
    pub(crate) fn relocations(&self, name: &str) -> Option<Vec<(u64, u32)>> {
        let (table, rest) = self.section(name)?.as_chunks::<{ super::RELOCATION }>();
        let entries = table.iter().map(|bytes| {
            let mut source = ByteReader(bytes);
            let (offset, info) = (source.u64()?, source.u64()?);
            (info as u32 == super::R_BPF_64_64).then_some((offset, (info >> 32) as u32))
        });
        if rest.is_empty() { entries.collect() } else { None }
    }
}

fn section_header(source: &mut ByteReader<'_>) -> Option<SectionHeader> {
    let (name, kind, _flags, _address) = (source.u32()?, source.u32()?, source.u64()?, source.u64()?);
    let (offset, size) = (source.u64()?, source.u64()?);
    source.take(24)?;
    Some(SectionHeader { name, kind, offset, size })
}

fn data<'a>(file: &'a [u8], header: &SectionHeader) -> Option<&'a [u8]> {
    let size = if header.kind == super::kind::NOBITS { 0 } else { header.size };
    ByteReader::at(file, header.offset)?.take(usize::try_from(size).ok()?)
}

fn section<'a>(file: &'a [u8], header: &SectionHeader, strings: &'a [u8]) -> Option<SectionAt<'a>> {
    let offset = usize::try_from(header.offset).ok()?;
    Some(SectionAt { name: c_text(strings, header.name)?, offset, data: data(file, header)? })
}

fn symbol(bytes: &[u8], strings: &[u8]) -> Option<Symbol> {
    let mut source = ByteReader(bytes);
    let name = c_text(strings, source.u32()?)?.to_owned();
    let kind = match source.u8()? & 15 {
        1 => SymbolKind::Object,
        2 => SymbolKind::Function,
        _ => return None,
    };
    source.take(1)?;
    let section = source.u16()?;
    Some(Symbol { name, kind, section, offset: source.u64()?, size: source.u64()? })
}

#[cfg(test)]
mod tests {
    use super::super::{ElfWriter, flag, kind};
    use super::*;

    fn file() -> Vec<u8> {
        let mut writer = ElfWriter::default();
        let code = writer.section("classifier", kind::PROGBITS, flag::ALLOC | flag::EXEC, vec![1; 24]);
        let number = writer.symbol(SymbolKind::Function, "to_pod", [0, 24], code);
        writer.relocations(code, ".relclassifier", &[(8, number)]);
        writer.note(".weir.checksum", vec![7; 5]);
        let mut file = Vec::new();
        writer.finish(&mut file);
        file
    }

    #[test]
    fn written_files_are_read_back() {
        let file = file();
        let elf = Elf::read(&file).unwrap();
        assert_eq!(elf.section("classifier"), Some(&[1u8; 24][..]));
        assert_eq!(elf.relocations(".relclassifier"), Some(vec![(8, 1)]));
        let symbols = elf.symbols().unwrap();
        assert_eq!((symbols.len(), symbols[0].name.as_str()), (1, "to_pod"));
        assert_eq!(elf.section_name(symbols[0].section), Some("classifier"));
        let [before, after] = elf.around(".weir.checksum").unwrap();
        assert_eq!(before.len() + after.len() + 5, file.len());
    }

    #[test]
    fn every_cut_is_refused_or_read_without_panic() {
        let file = file();
        for end in 0..file.len() {
            assert!(Elf::read(&file[..end]).is_none(), "{end}: the section headers are last");
        }
    }
}
