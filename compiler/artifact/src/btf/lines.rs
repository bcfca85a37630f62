//! `.BTF.ext`: the source line of each instruction.
//!
//! The kernel requires a record at the start of every function and none inside a 64-bit load; loaders count offsets in
//! bytes of the section. A record is written only where the line changes.

use super::{Btf, MAGIC, TypeId, VERSION};
use crate::bytes::{ByteReader, Sink, c_text};
use crate::line::SourceLine;

const HEADER: u32 = 24;
pub(crate) const FUNCTION_RECORD: u32 = 8;
pub(crate) const LINE_RECORD: u32 = 16;
/// A record's line number has 22 bits, above ten bits for a column.
const COLUMN_BITS: u32 = 10;

/// A byte offset in a section, and the line of the instruction there.
pub(crate) type LineAt<'a> = (u32, &'a SourceLine);

/// The section's bytes; functions as (byte offset, type).
pub(crate) fn write(btf: &mut Btf, section: &str, functions: &[(u32, TypeId)], lines: &[LineAt<'_>]) -> Vec<u8> {
    let name = btf.string(section);
    let mut function_info = info(FUNCTION_RECORD, name, functions.len());
    for (offset, id) in functions {
        function_info.u32(*offset);
        function_info.u32(id.0);
    }
    let mut line_info = info(LINE_RECORD, name, lines.len());
    for (offset, line) in lines {
        line_record(btf, &mut line_info, *offset, line);
    }
    assemble(function_info.0, line_info.0)
}

/// Writes a `struct bpf_line_info`. The unit of the offset depends on the reader: bytes in the file, instructions in
/// the kernel.
pub(crate) fn line_record(btf: &mut Btf, lines: &mut Sink, offset: u32, line: &SourceLine) {
    lines.u32(offset);
    lines.u32(btf.string(&line.file));
    lines.u32(btf.string(&line.text));
    lines.u32(line.number << COLUMN_BITS);
}

fn info(record: u32, section: u32, count: usize) -> Sink {
    let mut info = Sink::default();
    info.u32(record);
    info.u32(section);
    info.count(count);
    info
}

fn assemble(mut function_info: Vec<u8>, mut line_info: Vec<u8>) -> Vec<u8> {
    let (functions, lines) = (function_info.len() as u32, line_info.len() as u32);
    let mut out = Sink::default();
    out.u16(MAGIC);
    out.u16(VERSION);
    for number in [HEADER, 0, functions, functions, lines] {
        out.u32(number);
    }
    out.0.append(&mut function_info);
    out.0.append(&mut line_info);
    out.0
}

/// Reads the lines of the one section that has some, by byte offset.
pub(crate) fn read(btf: &[u8], ext: &[u8]) -> Option<Vec<(u32, SourceLine)>> {
    let strings = part(btf, 3)?;
    let mut lines = ByteReader(part(ext, 3)?);
    if lines.u32()? != LINE_RECORD {
        return None;
    }
    lines.u32()?;
    let count = lines.count(LINE_RECORD as usize)?;
    (0..count).map(|_| line(&mut lines, strings)).collect()
}

fn line(source: &mut ByteReader<'_>, strings: &[u8]) -> Option<(u32, SourceLine)> {
    let offset = source.u32()?;
    let (file, text) = (c_text(strings, source.u32()?)?.to_owned(), c_text(strings, source.u32()?)?.to_owned());
    Some((offset, SourceLine { file, text, number: source.u32()? >> COLUMN_BITS }))
}

/// A part of the section: the header holds its offset and length as the numbers `at` and `at + 1` (1 and 2, or 3 and
/// 4).
fn part(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let mut header = ByteReader(bytes);
    let known = (header.u16()?, header.u16()?, header.u32()?) == (MAGIC, VERSION, HEADER);
    header.take(4 * (at - 1))?;
    let (offset, length) = (header.u32()?, header.u32()?);
    let offset = u64::from(HEADER).checked_add(u64::from(offset))?;
    if known { ByteReader::at(bytes, offset)?.take(length as usize) } else { None }
}
