//! The debug information that the kernel accepts with a program, so that tools can name the policy lines of loaded
//! code.
//!
//! `.BTF` and `.BTF.ext` hold the same facts for loaders of the file. This form covers a single program, without maps,
//! and counts offsets in instructions, as the kernel does.

use super::btf::Btf;
use super::btf::lines::{FUNCTION_RECORD, LINE_RECORD, line_record};
use super::bytes::Sink;
use super::{Artifact, object};
use weir_ebpf::code::SLOT_BYTES;
use crate::layout::program_name;
use weir_model::Direction;

/// The debug information of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugInfo {
    /// BTF: the program's type, and the strings of the lines.
    pub types: Vec<u8>,
    /// `struct bpf_func_info`, one for the program.
    pub functions: Vec<u8>,
    /// `struct bpf_line_info`, one for each place where the line changes.
    pub lines: Vec<u8>,
}

impl DebugInfo {
    /// Bytes of one function's record.
    pub const FUNCTION_BYTES: u32 = FUNCTION_RECORD;
    /// Bytes of one line's record.
    pub const LINE_BYTES: u32 = LINE_RECORD;
}

impl Artifact {
    /// The debug information of a hook's program.
    pub fn debug_info(&self, hook: Direction) -> DebugInfo {
        let mut types = Btf::new();
        let function = types.functions(&[program_name(hook)]);
        let (mut functions, mut lines) = (Sink::default(), Sink::default());
        for id in function {
            functions.u32(0);
            functions.u32(id.0);
        }
        for (offset, line) in object::changes(self, self.program(hook), 0) {
            line_record(&mut types, &mut lines, offset / SLOT_BYTES as u32, line);
        }
        DebugInfo { types: types.finish(), functions: functions.0, lines: lines.0 }
    }
}
