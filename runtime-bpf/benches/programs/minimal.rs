//! What cannot be left out, by hand: the least that a program must do that lets packets of known flows pass and judges new
//! ones by class. No fragments, no options, no other family, no generations, no source check, nobody else on another CPU.

use weir_compiler::ebpf::asm::{Asm, Label, MapRef};
use weir_compiler::ebpf::context as field;
use weir_compiler::ebpf::helper::Helper;
use weir_compiler::ebpf::insn::{AluOp, Cond, Insn, Reg, Size};
use weir_compiler::ebpf::target::Target;

/// The maps, by number: flows, endpoints, classes and rows, counters.
pub(super) const FLOWS: MapRef = MapRef(0);
pub(super) const ENDPOINTS: MapRef = MapRef(1);
pub(super) const TABLES: MapRef = MapRef(2);
pub(super) const COUNTERS: MapRef = MapRef(3);
/// Bytes of the flow table.
pub(super) const FLOW_BYTES: u32 = 1 << 19;
/// Bytes of the table of addresses, after which comes that of rows.
pub(super) const ADDRESS_BYTES: i32 = 1 << 17;
pub(super) const TABLE_BYTES: u32 = (ADDRESS_BYTES + (1 << 16)) as u32;

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A program that does nothing at all.
pub(super) fn empty() -> Vec<Insn> {
    let mut asm = Asm::new(Target::BASE, "empty");
    asm.mov(Reg::R0, -1);
    asm.exit();
    asm.assemble().expect("a program").insns
}

/// The least program for packets to a pod.
pub(super) fn minimal(descriptor: impl Fn(MapRef) -> i32) -> Vec<Insn> {
    let mut asm = Asm::new(Target::BASE, "minimal");
    let [drop, pass, miss] = ["drop", "pass", "miss"].map(|name| asm.label(name));
    parse(&mut asm, drop);
    look_up(&mut asm, miss);
    asm.jump(pass);
    asm.bind(miss);
    judge(&mut asm, drop);
    asm.bind(pass);
    count(&mut asm);
    asm.mov(Reg::R0, -1);
    asm.exit();
    asm.bind(drop);
    asm.mov(Reg::R0, 2);
    asm.exit();
    asm.assemble().expect("a program").link(descriptor)
}

/// r7 = interface and ports, r8 = the other end's address, r9 = a hash of both.
fn parse(asm: &mut Asm, drop: Label) {
    asm.mov(Reg::R6, Reg::R1);
    asm.load(Size::W, Reg::R1, Reg::R6, field::DATA);
    asm.load(Size::W, Reg::R2, Reg::R6, field::DATA_END);
    asm.mov(Reg::R3, Reg::R1);
    asm.alu(AluOp::Add, Reg::R3, 54);
    asm.jump_if(Cond::Gt, Reg::R3, Reg::R2, drop);
    for (size, at, is) in [(Size::H, 12, 0x0008), (Size::B, 14, 0x45), (Size::B, 23, 6)] {
        asm.load(size, Reg::R2, Reg::R1, at);
        asm.jump_if(Cond::Ne, Reg::R2, is, drop);
    }
    asm.load(Size::W, Reg::R8, Reg::R1, 26);
    asm.load(Size::W, Reg::R7, Reg::R1, 34);
    asm.alu(AluOp::Lsh, Reg::R7, 32);
    asm.load(Size::W, Reg::R2, Reg::R6, field::IFINDEX);
    asm.alu(AluOp::Or, Reg::R7, Reg::R2);
    asm.constant(Reg::R2, MIX);
    asm.mov(Reg::R9, Reg::R7);
    asm.alu(AluOp::Mul, Reg::R9, Reg::R2);
    asm.alu(AluOp::Xor, Reg::R9, Reg::R8);
    asm.alu(AluOp::Mul, Reg::R9, Reg::R2);
    asm.alu(AluOp::Rsh, Reg::R9, 32);
    asm.alu(AluOp::And, Reg::R9, (FLOW_BYTES - 32) as i32);
}

/// r9 = the slot, r0 = the time.
fn look_up(asm: &mut Asm, miss: Label) {
    let seen = asm.label("seen");
    asm.load_map_value(Reg::R1, FLOWS, 0);
    asm.alu(AluOp::Add, Reg::R9, Reg::R1);
    asm.call(Helper::JIFFIES64);
    asm.load(Size::Dw, Reg::R1, Reg::R9, 8);
    asm.jump_if(Cond::Ne, Reg::R1, Reg::R7, miss);
    asm.load(Size::W, Reg::R1, Reg::R9, 16);
    asm.jump_if(Cond::Ne, Reg::R1, Reg::R8, miss);
    asm.load(Size::Dw, Reg::R1, Reg::R9, 24);
    asm.mov(Reg::R2, Reg::R0);
    asm.alu(AluOp::Sub, Reg::R2, Reg::R1);
    asm.jump_if(Cond::Gt, Reg::R2, 1_000_000, miss);
    asm.jump_if(Cond::Eq, Reg::R2, 0, seen);
    asm.store(Size::Dw, Reg::R9, 24, Reg::R0);
    asm.bind(seen);
}

/// Endpoint, class, row, bit; and the flow is remembered.
fn judge(asm: &mut Asm, drop: Label) {
    asm.store(Size::Dw, Reg::R9, 24, Reg::R0);
    asm.store(Size::W, Reg::R10, -4, Reg::R7);
    asm.load_map(Reg::R1, ENDPOINTS);
    asm.mov(Reg::R2, Reg::R10);
    asm.alu(AluOp::Add, Reg::R2, -4);
    asm.call(Helper::MAP_LOOKUP_ELEM);
    asm.jump_if(Cond::Eq, Reg::R0, 0, drop);
    asm.load(Size::W, Reg::R3, Reg::R0, 0);
    // The address, by a hash of one step.
    asm.constant(Reg::R2, MIX);
    asm.mov(Reg::R1, Reg::R8);
    asm.alu(AluOp::Mul, Reg::R1, Reg::R2);
    asm.alu(AluOp::Rsh, Reg::R1, 32);
    asm.alu(AluOp::And, Reg::R1, ADDRESS_BYTES - 8);
    asm.load_map_value(Reg::R2, TABLES, 0);
    asm.alu(AluOp::Add, Reg::R1, Reg::R2);
    asm.load(Size::W, Reg::R2, Reg::R1, 0);
    asm.jump_if(Cond::Ne, Reg::R2, Reg::R8, drop);
    asm.load(Size::W, Reg::R1, Reg::R1, 4);
    asm.alu(AluOp::Add, Reg::R1, Reg::R3);
    asm.alu(AluOp::And, Reg::R1, (1 << 16) - 8);
    asm.load_map_value(Reg::R2, TABLES, ADDRESS_BYTES);
    asm.alu(AluOp::Add, Reg::R1, Reg::R2);
    asm.load(Size::Dw, Reg::R1, Reg::R1, 0);
    asm.jump_if(Cond::Eq, Reg::R1, 0, drop);
    asm.store(Size::Dw, Reg::R9, 8, Reg::R7);
    asm.store(Size::Dw, Reg::R9, 16, Reg::R8);
}

fn count(asm: &mut Asm) {
    let done = asm.label("counted");
    asm.store(Size::W, Reg::R10, -4, 0);
    asm.load_map(Reg::R1, COUNTERS);
    asm.mov(Reg::R2, Reg::R10);
    asm.alu(AluOp::Add, Reg::R2, -4);
    asm.call(Helper::MAP_LOOKUP_ELEM);
    asm.jump_if(Cond::Eq, Reg::R0, 0, done);
    for at in [0, 8] {
        asm.load(Size::Dw, Reg::R1, Reg::R0, at);
        asm.alu(AluOp::Add, Reg::R1, 1);
        asm.store(Size::Dw, Reg::R0, at, Reg::R1);
    }
    asm.bind(done);
}

/// The tables, for one address (as on the wire) that may begin.
pub(super) fn tables(remote: u32) -> Vec<u8> {
    const CLASS: u32 = 64;
    let mut bytes = vec![0; TABLE_BYTES as usize];
    let place = (u64::from(remote).wrapping_mul(MIX) >> 32) as usize & (ADDRESS_BYTES - 8) as usize;
    bytes[place..place + 4].copy_from_slice(&remote.to_le_bytes());
    bytes[place + 4..place + 8].copy_from_slice(&CLASS.to_le_bytes());
    bytes[ADDRESS_BYTES as usize + CLASS as usize] = 1;
    bytes
}
