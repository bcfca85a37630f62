//! PREVAIL as a judge: takes instructions and maps, and says whether the program is safe.

use std::fmt;

use prevail::crab::ebpf_domain::DomainContext;
use prevail::crab::var_registry::VariableRegistry;
use prevail::fwd_analyzer;
use prevail::ir::program::Program;
use prevail::ir::unmarshal::unmarshal;
use prevail::linux::linux_platform::{LinuxPlatform, conformance_groups};
use prevail::platform::EbpfPlatform;
use prevail::spec::config::EbpfVerifierOptions;
use prevail::spec::type_descriptors::{EbpfMapDescriptor, ProgramInfo};
use prevail::spec::vm_isa::EbpfInst;
use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapImage;
use weir_artifact::map_type;
use weir_ebpf::code::{ByteOrder, InsnFields, SLOT_BYTES, encode};
use weir_ebpf::insn::Insn;

use crate::translation::declared_bytes;

/// PREVAIL's verdict on a program.
pub(crate) enum Opinion {
    /// Safe.
    Accepted {
        /// The share of the program's instructions that its analysis reaches, in percent.
        reached: usize,
    },
    /// The first error.
    Refused(String),
    /// It does not know an instruction, a helper or a shape of the program.
    NotRead(String),
}

impl fmt::Display for Opinion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted { reached } => write!(f, "accepted; {reached} % of its instructions are reached"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::NotRead(why) => write!(f, "not read: {why}"),
        }
    }
}

/// The descriptor of a map in linked programs.
pub(crate) fn descriptor(map: MapName) -> i32 {
    map as i32 + 1
}

/// Judges a program. PREVAIL takes the program's hook from the name of its ELF section.
pub(crate) fn judge(insns: &[Insn], section: &str, maps: &[MapImage]) -> Opinion {
    let mut platform = LinuxPlatform::new();
    // Without the legacy packet loads (`LD_ABS`), which Weir never emits.
    platform.conformance_groups = conformance_groups::DEFAULT_GROUPS;
    platform.map_descriptors = maps.iter().map(map_descriptor).collect();
    let program_type = platform.get_program_type(section, "");
    platform.set_program_type(&program_type);
    let map_descriptors = platform.map_descriptors.clone();
    let mut info = ProgramInfo { map_descriptors, program_type, ..ProgramInfo::default() };
    let options = EbpfVerifierOptions::default();
    let mut notes = Vec::new();
    let instructions = match unmarshal(&slots(insns), &mut notes, &info, &platform, &options) {
        Ok(instructions) => instructions,
        Err(error) => return Opinion::NotRead(error.to_string()),
    };
    if let Some(note) = notes.into_iter().flatten().next() {
        return Opinion::NotRead(note);
    }
    let program = match Program::from_sequence(&instructions, &mut info, &platform, &options) {
        Ok(program) => program,
        Err(error) => return Opinion::NotRead(error.to_string()),
    };
    let runtime = &options.runtime;
    let context =
        DomainContext { program_info: &info, program: &program, runtime, options: &options, platform: &platform };
    let result = fwd_analyzer::analyze(&program, &context, &mut VariableRegistry::new());
    match result.find_first_error() {
        Some(error) => Opinion::Refused(error.to_string()),
        None => {
            let reached = result.invariants.values().filter(|it| !it.pre.is_bottom()).count();
            Opinion::Accepted { reached: 100 * reached / result.invariants.len() }
        }
    }
}

fn map_descriptor(map: &MapImage) -> EbpfMapDescriptor {
    EbpfMapDescriptor {
        original_fd: descriptor(map.name),
        map_type: map_type(map.spec.kind),
        key_size: map.spec.key_size,
        value_size: declared_bytes(map),
        max_entries: map.spec.max_entries,
        name: map.name.name().to_owned(),
        ..EbpfMapDescriptor::default()
    }
}

fn slots(insns: &[Insn]) -> Vec<EbpfInst> {
    let bytes = encode(insns, ByteOrder::Little);
    let slot = |bytes: &[u8; SLOT_BYTES]| {
        let InsnFields { opcode, dst, src, offset, imm } = InsnFields::from_bytes(*bytes, ByteOrder::Little);
        EbpfInst { opcode, dst_src: src << 4 | dst, offset, imm }
    };
    bytes.as_chunks().0.iter().map(slot).collect()
}
