//! The interpreter: one run of one program, including tail calls.

use super::memory::{CallFrame, FRAMES, Memory, RegionId};
use super::op::{DecodedOp, DecodedProgram, SourceOperand};
use super::skb::{self, Pointers};
use super::trap::{AccessFault, AccessKind};
use super::xdp;
use super::{Cause, POISON, ProgramId, RunOutcome, Skb, Trap, Vm, VmInputs, alu};
use crate::helper::Helper;
use crate::insn::{AtomicOp, Reg, Size};
use crate::vm::map::VmMap;

/// The state of a run that can be resumed.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    pub(super) program: ProgramId,
    pub(super) registers: [u64; 16],
    pub(super) slot: usize,
    pub(super) stack: CallFrame,
}

/// The state that a called function returns to.
#[derive(Clone, Copy, Default)]
struct Caller {
    program: u32,
    slot: usize,
    /// `R6` to `R9`.
    saved: [u64; 4],
}

/// An observer of a run. The interpreter is compiled once for each type, so unobserved runs pay nothing.
pub(super) trait MapWatch {
    /// Called before a program reads from this address; returning true stops the run before the read.
    fn reads(&mut self, address: u64) -> bool;
    /// Called before a program calls a helper with `argument` in `R1`; returning true stops the run before the call.
    fn calls(&mut self, helper: Helper, memory: &Memory, argument: u64) -> bool;
}

/// The observer of ordinary runs, which does nothing.
pub(super) struct Unwatched;

impl MapWatch for Unwatched {
    #[inline(always)]
    fn reads(&mut self, _: u64) -> bool {
        false
    }

    #[inline(always)]
    fn calls(&mut self, _: Helper, _: &Memory, _: u64) -> bool {
        false
    }
}

/// How a run that did not trap ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// With the outermost `exit`.
    Exit,
    /// The observer stopped it.
    Stopped,
}

/// The state of one run.
pub(super) struct Execution<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) maps: &'a mut [VmMap],
    pub(super) skb: &'a mut Skb,
    pub(super) host: &'a mut VmInputs,
    pub(super) tail_calls: u32,
    /// The reserved records: their region, ring and position.
    pub(super) records: Vec<super::helpers::Reserved>,
    pub(super) program: ProgramId,
    /// Whether the program is for XDP. A tail call stays within programs of one kind.
    pub(super) is_xdp: bool,
    programs: &'a [DecodedProgram],
    /// Sixteen registers, so that a masked index needs no bounds check. 0 to 10 are real and 11 is zero.
    registers: [u64; 16],
    slot: usize,
    callers: [Caller; FRAMES],
    /// The number of frames in use.
    frames: usize,
}

/// Runs a program on a packet.
pub(super) fn run(
    vm: &mut Vm,
    program: ProgramId,
    skb: &mut Skb,
    host: &mut VmInputs,
) -> Result<RunOutcome, Box<Trap>> {
    let budget = vm.budget;
    let mut machine = Execution::new(vm, program, skb, host);
    machine.enter_frame();
    machine.enter_program(program);
    let result = machine.start(budget, &mut Unwatched);
    machine.finish();
    result.map(|(outcome, _)| outcome)
}

impl<'a> Execution<'a> {
    /// Creates a machine that has taken the packet but has entered no frame and no program.
    pub(super) fn new(vm: &'a mut Vm, program: ProgramId, skb: &'a mut Skb, host: &'a mut VmInputs) -> Self {
        let Vm { memory, maps, programs, .. } = vm;
        let is_xdp = programs.get(program.0 as usize).is_some_and(|program| program.is_xdp);
        // XDP programs without support for fragments get packets in one piece. A tc program sees the linear part alone
        // and must pull the rest (https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c, `bpf_skb_pull_data`).
        let linear = if is_xdp { skb.packet.len() } else { skb.linear };
        // Moved, not copied: verification runs hundreds of thousands of packets. `finish` gives it back, also after a
        // trap.
        memory.set_packet(std::mem::take(&mut skb.packet), linear);
        let mut registers = [POISON; 16];
        // All others are poison: no program reads a register before it writes it, or the verifier would reject it ("R%d
        // !read_ok").
        registers[usize::from(super::op::ZERO)] = 0;
        Self {
            memory,
            maps,
            skb,
            host,
            tail_calls: 0,
            records: Vec::new(),
            program,
            is_xdp,
            programs,
            registers,
            slot: 0,
            callers: [Caller::default(); FRAMES],
            frames: 0,
        }
    }
}

impl Execution<'_> {
    /// Runs from the machine's current state.
    pub(super) fn start(&mut self, budget: u64, watch: &mut impl MapWatch) -> Result<(RunOutcome, RunEnd), Box<Trap>> {
        let mut executed = 0;
        match self.go(budget, &mut executed, watch) {
            Ok(end) => Ok((RunOutcome { r0: self.get(Reg::R0 as u8), executed }, end)),
            Err(cause) => Err(Box::new(self.trap(cause))),
        }
    }

    /// Saves registers, slot and stack. `None` unless the run is in its outermost function.
    pub(super) fn save(&self) -> Option<Saved> {
        // Only the outermost frame. A state inside a called function would need all callers' frames, and no emitted
        // program has its decision in one.
        let stack = self.memory.frame(0)?;
        (self.frames == 1).then_some(Saved { program: self.program, registers: self.registers, slot: self.slot, stack })
    }

    /// Restores a saved state.
    pub(super) fn restore(&mut self, saved: &Saved) {
        (self.program, self.registers, self.slot, self.frames) = (saved.program, saved.registers, saved.slot, 1);
        // Before the frame is filled, because entering marks all of it as unwritten.
        self.memory.enter_frame(1);
        self.memory.set_frame(0, &saved.stack);
    }

    /// Gives the packet back to the [`Skb`] and discards the records that the program has left reserved.
    pub(super) fn finish(&mut self) {
        // `skb_pull_data` may have made more of it linear. The kernel's packet stays that way after the program, and so
        // does this one.
        let (_, linear) = self.memory.packet();
        self.skb.linear = linear;
        self.skb.packet = self.memory.take_packet();
        // After a trap, records may still be reserved. A ring whose first record stays busy would never give another
        // one to its reader.
        while let Some(record) = self.records.pop() {
            self.finish_record(record, false);
        }
        self.memory.end_run();
    }

    fn trap(&self, cause: Cause) -> Trap {
        let program = self.programs.get(self.program.0 as usize);
        // `None` if the slot is beyond the end: then there is no instruction to blame.
        let insn = program.and_then(|program| program.insns.get(self.slot).copied().flatten());
        Trap { program: self.program, slot: self.slot, insn, cause }
    }

    #[inline]
    fn get(&self, reg: u8) -> u64 {
        // The mask makes every index valid for the compiler, so the hot loop has no bounds check here.
        self.registers[usize::from(reg & 15)]
    }

    #[inline]
    fn set(&mut self, reg: u8, value: u64) {
        self.registers[usize::from(reg & 15)] = value;
    }

    /// The value of an operand; a constant is sign-extended.
    #[inline]
    fn value(&self, source: SourceOperand) -> u64 {
        // Either the register is the one that is always zero or the constant is, so one addition serves both kinds of
        // operands.
        self.get(source.reg).wrapping_add(i64::from(source.imm) as u64)
    }

    /// An argument of a helper, 1 to 5.
    pub(super) fn argument(&self, number: u8) -> u64 {
        self.get(number)
    }

    /// Enters a function with a new frame.
    pub(super) fn enter_frame(&mut self) {
        self.frames += 1;
        self.memory.enter_frame(self.frames);
        self.set(Reg::R10 as u8, self.memory.frame_pointer(self.frames - 1));
    }

    /// Enters a program in the current frame.
    pub(super) fn enter_program(&mut self, program: ProgramId) {
        self.program = program;
        self.slot = 0;
        self.memory.enter_frame(self.frames);
        // A tail call passes on the context and nothing else:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/core.c (`___bpf_prog_run`, `JMP_TAIL_CALL`). A JIT may
        // leave values in the others, so only poison shows that a program reads one.
        self.registers[..10].fill(POISON);
        self.set(Reg::R1 as u8, RegionId::CONTEXT.base());
    }

    fn call(&mut self, to: u32, next: usize) -> Result<(), Cause> {
        // As in the verifier, which counts frames and not calls:
        // https://github.com/torvalds/linux/blob/v6.1/include/linux/bpf_verifier.h (`MAX_CALL_FRAMES`).
        if self.frames >= FRAMES {
            return Err(Cause::CallDepth);
        }
        let mut saved = [0; 4];
        // The callee preserves R6 to R9 by the calling convention, in the kernel by pushing them. Here the caller's
        // copy does it, so a callee cannot forget.
        saved.copy_from_slice(&self.registers[6..10]);
        if let Some(caller) = self.callers.get_mut(self.frames) {
            *caller = Caller { program: self.program.0, slot: next, saved };
        }
        // To the callee they are unknown: the verifier rejects a function that reads them before writing.
        self.registers[6..10].fill(POISON);
        self.enter_frame();
        self.slot = to as usize;
        Ok(())
    }

    /// Leaves a function. Returns true if it was the outermost.
    fn leave(&mut self) -> bool {
        self.frames -= 1;
        if self.frames == 0 {
            return true;
        }
        self.memory.leave_frame(self.frames);
        // The program as well as the slot: a function may have made a tail call, and then `exit` of the other program
        // returns to this function's caller.
        let caller = self.callers.get(self.frames).copied().unwrap_or_default();
        (self.program, self.slot) = (ProgramId(caller.program), caller.slot);
        // R0 holds the result, R1 to R5 are clobbered:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`caller_saved`).
        self.registers[1..6].fill(POISON);
        self.registers[6..10].copy_from_slice(&caller.saved);
        self.set(Reg::R10 as u8, self.memory.frame_pointer(self.frames - 1));
        false
    }

    /// Runs until the outermost `exit`.
    fn go(&mut self, budget: u64, executed: &mut u64, watch: &mut impl MapWatch) -> Result<RunEnd, Cause> {
        let programs = self.programs;
        let mut ops = ops_of(programs, self.program);
        loop {
            // The only bounds check of the loop. Targets of jumps were checked when the program was loaded, so only
            // falling off the end gets here.
            let op = *ops.get(self.slot).ok_or(Cause::OffTheEnd)?;
            if *executed >= budget {
                return Err(Cause::Budget(budget));
            }
            *executed += 1;
            let mut next = self.slot + 1;
            match op {
                DecodedOp::Alu64 { op, dst, src } => self.set(dst, alu::alu64(op, self.get(dst), self.value(src))),
                DecodedOp::Alu32 { op, dst, src } => {
                    // The conversion to 64 bits is the zero extension that the instruction set demands of each 32-bit
                    // result.
                    let result = alu::alu32(op, self.get(dst) as u32, self.value(src) as u32);
                    self.set(dst, u64::from(result));
                }
                DecodedOp::Neg64 { dst } => self.set(dst, self.get(dst).wrapping_neg()),
                DecodedOp::Neg32 { dst } => self.set(dst, u64::from((self.get(dst) as u32).wrapping_neg())),
                // For results of 32 bits the upper half is zero, not sign:
                // https://github.com/torvalds/linux/blob/v6.12/Documentation/bpf/standardization/instruction-set.rst
                // (`MOVSX`).
                DecodedOp::MovSx { extend, dst, src } => self.set(dst, alu::extend(extend, self.get(src))),
                DecodedOp::Swap { order, bits, dst } => self.set(dst, alu::swap(order, bits, self.get(dst))),
                DecodedOp::Constant { dst, value } => {
                    self.set(dst, value);
                    // Behind it is the second slot of the load, which is no instruction.
                    next += 1;
                }
                DecodedOp::Load { size, dst, base, offset } => {
                    let address = self.address(base, offset);
                    // Before the load, so a state that is resumed does the read itself, with the content that the map
                    // has then. Stores are not observed: a decision only reads.
                    if watch.reads(address) {
                        return Ok(RunEnd::Stopped);
                    }
                    let value = self.load(size, address)?;
                    self.set(dst, value);
                }
                DecodedOp::LoadSx { size, dst, base, offset } => {
                    let address = self.address(base, offset);
                    // The kernel rewrites loads from the context into loads of its own structures, with widths of its
                    // own. Whether sign extension survives that differs between kernels, and no emitted program needs
                    // it.
                    if RegionId::of(address) == RegionId::CONTEXT {
                        return Err(self.refuse(AccessFault::NotAllowed, AccessKind::Read, address, size));
                    }
                    let value = self.load(size, address)?;
                    self.set(dst, sign_extend(size, value));
                }
                DecodedOp::Store { size, base, offset, src } => {
                    self.store(size, self.address(base, offset), self.value(src))?;
                }
                DecodedOp::Atomic32 { op, base, offset, src } => {
                    self.atomic(op, Size::W, self.address(base, offset), src)?;
                }
                DecodedOp::Atomic64 { op, base, offset, src } => {
                    self.atomic(op, Size::Dw, self.address(base, offset), src)?;
                }
                DecodedOp::Jump { to } => next = to as usize,
                DecodedOp::JumpIf64 { cond, dst, src, to } => {
                    if alu::holds64(cond, self.get(dst), self.value(src)) {
                        next = to as usize;
                    }
                }
                DecodedOp::JumpIf32 { cond, dst, src, to } => {
                    if alu::holds32(cond, self.get(dst) as u32, self.value(src) as u32) {
                        next = to as usize;
                    }
                }
                DecodedOp::Call { helper } => {
                    // R1 is the map in all look-ups, so the observer need not know a helper's other arguments.
                    if watch.calls(helper, self.memory, self.get(Reg::R1 as u8)) {
                        return Ok(RunEnd::Stopped);
                    }
                    match self.helper(helper)? {
                        Some(r0) => {
                            // Helpers clobber these registers too. A JIT may leave them unchanged, so only poison finds
                            // a program that reads one.
                            self.registers[1..6].fill(POISON);
                            self.set(Reg::R0 as u8, r0);
                        }
                        None => {
                            // A tail call has replaced the program, and `enter_program` has set the slot.
                            ops = ops_of(programs, self.program);
                            next = self.slot;
                        }
                    }
                }
                DecodedOp::CallLocal { to } => {
                    self.call(to, next)?;
                    next = self.slot;
                }
                DecodedOp::Exit => {
                    // The verifier demands it only of the outermost function ("Unreleased reference"):
                    // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`check_reference_leak`).
                    if self.frames == 1 && !self.records.is_empty() {
                        return Err(Cause::LeakedRecords(self.records.len()));
                    }
                    if self.leave() {
                        return Ok(RunEnd::Exit);
                    }
                    // The caller may be in another program than the callee: a called function can end in a tail call.
                    ops = ops_of(programs, self.program);
                    next = self.slot;
                }
                DecodedOp::Kfunc { id } => return Err(Cause::KernelFunction(id)),
                DecodedOp::WritesFramePointer => return Err(Cause::FramePointer),
                // Decoding lets no jump target it, and the load before it skips it. A trap and not a panic, in case
                // that is ever wrong.
                DecodedOp::Hole => return Err(Cause::OffTheEnd),
            }
            self.slot = next;
        }
    }

    #[inline]
    fn address(&self, base: u8, offset: i16) -> u64 {
        self.get(base).wrapping_add(i64::from(offset) as u64)
    }

    fn pointers(&self) -> Pointers {
        let (data, data_end) = self.memory.packet_pointers();
        // `len` counts fragments too, `data_end` does not: `skb->len` and the end of the linear part differ in the
        // kernel as well.
        Pointers { len: self.memory.packet().0.len() as u32, data, data_end }
    }

    #[cold]
    fn refuse(&self, fault: AccessFault, access: AccessKind, address: u64, size: Size) -> Cause {
        self.refuse_bytes(fault, access, address, u64::from(size.bytes()))
    }

    #[cold]
    pub(super) fn refuse_bytes(&self, fault: AccessFault, access: AccessKind, address: u64, bytes: u64) -> Cause {
        // Only for traps, so it may be slow: it finds out which object the program probably meant.
        let place = self.memory.describe(address);
        Cause::memory(fault, access, bytes, place)
    }

    #[inline]
    fn load(&self, size: Size, address: u64) -> Result<u64, Cause> {
        let memory = &*self.memory;
        // The context has no bytes. Each field is computed when it is read, as the verifier replaces each read by
        // instructions: https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c (`bpf_convert_ctx_access`).
        let value = if RegionId::of(address) == RegionId::CONTEXT {
            let offset = address - RegionId::CONTEXT.base();
            let bytes = u64::from(size.bytes());
            match self.is_xdp {
                true => xdp::read(self.skb, self.pointers(), offset, bytes),
                false => skb::read(self.skb, self.pointers(), offset, bytes),
            }
        } else {
            match size {
                Size::B => memory.load(address).map(|bytes| u64::from(u8::from_le_bytes(bytes))),
                Size::H => memory.load(address).map(|bytes| u64::from(u16::from_le_bytes(bytes))),
                Size::W => memory.load(address).map(|bytes| u64::from(u32::from_le_bytes(bytes))),
                Size::Dw => memory.load(address).map(u64::from_le_bytes),
            }
        };
        value.map_err(|fault| self.refuse(fault, AccessKind::Read, address, size))
    }

    #[inline]
    fn store(&mut self, size: Size, address: u64, value: u64) -> Result<(), Cause> {
        // Every field of `struct xdp_md` is read-only to ordinary programs:
        // https://github.com/torvalds/linux/blob/v6.1/net/core/filter.c (`xdp_is_valid_access`).
        let stored = if RegionId::of(address) == RegionId::CONTEXT && self.is_xdp {
            Err(AccessFault::NotAllowed)
        } else if RegionId::of(address) == RegionId::CONTEXT {
            skb::write(self.skb, address - RegionId::CONTEXT.base(), u64::from(size.bytes()), value)
        } else {
            match size {
                Size::B => self.memory.store(address, (value as u8).to_le_bytes()),
                Size::H => self.memory.store(address, (value as u16).to_le_bytes()),
                Size::W => self.memory.store(address, (value as u32).to_le_bytes()),
                Size::Dw => self.memory.store(address, value.to_le_bytes()),
            }
        };
        stored.map_err(|fault| self.refuse(fault, AccessKind::Write, address, size))
    }

    fn atomic(&mut self, op: AtomicOp, size: Size, address: u64, src: u8) -> Result<(), Cause> {
        let checked = self.memory.check_atomic(address, u64::from(size.bytes()));
        checked.map_err(|fault| self.refuse(fault, AccessKind::Write, address, size))?;
        // The comparison of a 32-bit compare-and-exchange must ignore the upper half of R0, which may hold anything.
        let mask = if size == Size::W { u64::from(u32::MAX) } else { u64::MAX };
        let (operand, expected) = (self.get(src) & mask, self.get(Reg::R0 as u8) & mask);
        // Load and store are two steps, which is enough here: one program runs at a time. Races between CPUs are tried
        // in `compiler/codegen/tests/buckets`.
        let old = self.load(size, address)?;
        self.store(size, address, alu::atomic(op, old, operand, expected))?;
        match op {
            AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor => {}
            // Always, also if nothing was exchanged, and zero-extended for 32 bits:
            // https://github.com/torvalds/linux/blob/v6.12/Documentation/bpf/standardization/instruction-set.rst
            // (`CMPXCHG`).
            AtomicOp::Cmpxchg => self.set(Reg::R0 as u8, old),
            _ => self.set(src, old),
        }
        Ok(())
    }
}

fn ops_of(programs: &[DecodedProgram], program: ProgramId) -> &[DecodedOp] {
    programs.get(program.0 as usize).map_or(&[], |program| program.ops.as_slice())
}

fn sign_extend(size: Size, value: u64) -> u64 {
    // Up and down again: the arithmetic shift brings copies of the sign bit.
    let unused = 64 - size.bytes() * 8;
    ((value << unused) as i64 >> unused) as u64
}
