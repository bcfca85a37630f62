//! The assembler: takes labels, produces range-checked jump distances.
//!
//! Problem: a jump distance counts slots, a 64-bit load takes two of them, and 16 bits reach 32,767. Strategy: an
//! [`Asm`] collects instructions with typed [`Label`]s and symbolic maps. [`Asm::assemble`], the only fallible call,
//! lays them out. Every jump has one slot in its short and in its long form, so one pass computes all positions.
//!
//! Each instruction carries the [`Tag`] that was set when it was emitted. The tag identifies the part of the input that
//! the code serves; the line table is made from it.

use super::helper::Helper;
use super::insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, SwapBits, Width};
use super::instructions::Instructions;
use super::target::{Feature, Target};
use std::borrow::Cow;
use std::fmt;

/// A position in the code. Prints as `L3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u32);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

/// A map by number; the linker replaces it by a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapRef(pub u32);

/// A mark on an instruction: a number that the emitter chooses to identify its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

// `BPF_COMPLEXITY_LIMIT_INSNS`, since 5.2 also the maximum length of a privileged program:
// https://github.com/torvalds/linux/blob/v6.1/include/linux/bpf.h
/// The maximum number of slots in a program.
pub const MAX_SLOTS: u32 = 1_000_000;

/// Why the code cannot be assembled. Each variant that has a position names it by label and slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsmError {
    /// A label is used but never bound.
    #[error("label {label} ({name}) is used at slot {slot} and never bound")]
    Unbound {
        /// The label.
        label: Label,
        /// Its name.
        name: String,
        /// The slot where it is used first.
        slot: u32,
    },
    /// A label is bound at two positions.
    #[error("label {label} ({name}) is bound twice")]
    BoundTwice {
        /// The label.
        label: Label,
        /// Its name.
        name: String,
    },
    /// The target of a jump is too far away.
    #[error("the jump at slot {slot} to label {label} ({name}) is {distance} slots, the limit is {limit}")]
    TooFar {
        /// The label.
        label: Label,
        /// Its name.
        name: String,
        /// The slot of the jump.
        slot: u32,
        /// The distance to the target.
        distance: i64,
        /// The maximum distance of the instruction.
        limit: i64,
    },
    /// The target kernel lacks an instruction.
    #[error("slot {slot}: `{insn}` needs {feature}, the target is kernel {}.{}", target.kernel.0, target.kernel.1)]
    NotOnTarget {
        /// The instruction.
        insn: Insn,
        /// The slot of the instruction.
        slot: u32,
        /// The feature that the instruction needs.
        feature: Feature,
        /// The target kernel.
        target: Target,
    },
    /// The program has more slots than the kernel accepts.
    #[error("the program has {slots} slots, the limit is {MAX_SLOTS}")]
    TooLong {
        /// The number of slots.
        slots: u64,
    },
}

/// An instruction whose jump target or map is still symbolic.
#[derive(Clone, Copy, Debug)]
enum SymbolicOp {
    Plain(Insn),
    Goto(Label),
    If { width: Width, cond: Cond, dst: Reg, src: Operand, to: Label },
    Call(Label),
    Function { dst: Reg, label: Label },
    Map { dst: Reg, map: MapRef },
    MapValue { dst: Reg, map: MapRef, offset: i32 },
}

impl SymbolicOp {
    fn slots(&self) -> u32 {
        match self {
            Self::Plain(insn) => insn.slots(),
            Self::Function { .. } | Self::Map { .. } | Self::MapValue { .. } => 2,
            // `goto` and `gotol` are both one slot. That is why one pass is enough: no choice of a form moves any other
            // instruction.
            Self::Goto(_) | Self::If { .. } | Self::Call(_) => 1,
        }
    }
}

/// A label's name and, once it is bound, the number of the operation that follows it.
#[derive(Clone, Debug)]
struct LabelPosition {
    name: Cow<'static, str>,
    before: Option<usize>,
}

/// A use of a map in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapUse {
    /// Index of the instruction in [`Assembled::insns`].
    pub index: usize,
    /// Its slot.
    pub slot: u32,
    /// The map.
    pub map: MapRef,
}

/// A function of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name of the function's label.
    pub name: String,
    /// Its first slot.
    pub slot: u32,
}

/// Code with all distances known and all maps still symbolic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembled {
    /// The instructions; a map load holds descriptor 0 until it is linked.
    pub insns: Instructions,
    /// The tag of each instruction, parallel to `insns`.
    pub tags: Vec<Tag>,
    /// The uses of maps, in order.
    pub maps: Vec<MapUse>,
    /// The functions in order, the entry first (at slot 0).
    pub functions: Vec<Function>,
}

impl Assembled {
    /// The code with every map's descriptor (or, for the VM, its id) filled in.
    pub fn link(&self, descriptor: impl Fn(MapRef) -> i32) -> Vec<Insn> {
        let mut insns = self.insns.to_vec();
        for used in &self.maps {
            // By index and not by searching for descriptor 0, which is a valid descriptor.
            if let Some(Insn::LoadImm64 { value: Imm64::MapFd(fd) | Imm64::MapValue { fd, .. }, .. }) =
                insns.get_mut(used.index)
            {
                *fd = descriptor(used.map);
            }
        }
        insns
    }
}

/// A program under construction.
#[derive(Clone, Debug)]
pub struct Asm {
    target: Target,
    tag: Tag,
    ops: Vec<(SymbolicOp, Tag)>,
    labels: Vec<LabelPosition>,
    /// Labels of functions other than the entry, in order of position.
    functions: Vec<Label>,
    entry: String,
    bound_twice: Option<Label>,
}

impl Asm {
    /// An empty program for a target; `entry` names its first function.
    pub fn new(target: Target, entry: &str) -> Self {
        Self {
            target,
            tag: Tag::default(),
            ops: Vec::new(),
            labels: Vec::new(),
            functions: Vec::new(),
            entry: entry.to_owned(),
            bound_twice: None,
        }
    }

    /// The target that the program is assembled for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// A new label, to be bound later. The name appears in errors only.
    pub fn label(&mut self, name: impl Into<Cow<'static, str>>) -> Label {
        let label = Label(u32::try_from(self.labels.len()).unwrap_or(u32::MAX));
        self.labels.push(LabelPosition { name: name.into(), before: None });
        label
    }

    /// Binds the label to the current position.
    pub fn bind(&mut self, label: Label) {
        let here = self.ops.len();
        match self.labels.get_mut(label.0 as usize) {
            // By operation and not by slot: positions are only known when all of the code is.
            Some(place) if place.before.is_none() => place.before = Some(here),
            // Kept for `assemble` instead of returned: an emitter would have to handle an error after each of thousands
            // of calls, for a mistake that is always a bug.
            _ => self.bound_twice = self.bound_twice.or(Some(label)),
        }
    }

    /// Begins a function at the current position; calls refer to it by `label`.
    pub fn begin_function(&mut self, label: Label) {
        self.bind(label);
        // The kernel finds functions by their callers, but BTF must name each of them, in order of position.
        self.functions.push(label);
    }

    /// Sets the tag of the following instructions; returns the tag that was set before.
    pub fn set_tag(&mut self, tag: Tag) -> Tag {
        std::mem::replace(&mut self.tag, tag)
    }

    fn push(&mut self, op: SymbolicOp) {
        self.ops.push((op, self.tag));
    }

    /// Emits any instruction that has no label and no map.
    pub fn emit(&mut self, insn: Insn) {
        self.push(SymbolicOp::Plain(insn));
    }

    /// `goto label`; in the long form if it is needed and the target supports it.
    pub fn jump(&mut self, to: Label) {
        self.push(SymbolicOp::Goto(to));
    }

    /// `if dst cond src goto label`, 64 bits.
    pub fn jump_if(&mut self, cond: Cond, dst: Reg, src: impl Into<Operand>, to: Label) {
        self.push(SymbolicOp::If { width: Width::W64, cond, dst, src: src.into(), to });
    }

    /// `if dst cond src goto label`, comparing the lower halves.
    pub fn jump_if32(&mut self, cond: Cond, dst: Reg, src: impl Into<Operand>, to: Label) {
        self.push(SymbolicOp::If { width: Width::W32, cond, dst, src: src.into(), to });
    }

    /// Calls a function of this program.
    pub fn call_local(&mut self, function: Label) {
        self.push(SymbolicOp::Call(function));
    }

    /// `dst = address of a function`, for helpers that take a callback.
    pub fn load_function(&mut self, dst: Reg, label: Label) {
        self.push(SymbolicOp::Function { dst, label });
    }

    /// `dst = map`
    pub fn load_map(&mut self, dst: Reg, map: MapRef) {
        self.push(SymbolicOp::Map { dst, map });
    }

    /// `dst = address of a byte of the map's only value`
    pub fn load_map_value(&mut self, dst: Reg, map: MapRef, offset: i32) {
        self.push(SymbolicOp::MapValue { dst, map, offset });
    }

    /// `dst op= src`, 64 bits; a constant is sign-extended.
    pub fn alu(&mut self, op: AluOp, dst: Reg, src: impl Into<Operand>) {
        self.emit(Insn::Alu { width: Width::W64, op, dst, src: src.into() });
    }

    /// `dst op= src`, 32 bits; the upper half becomes zero.
    pub fn alu32(&mut self, op: AluOp, dst: Reg, src: impl Into<Operand>) {
        self.emit(Insn::Alu { width: Width::W32, op, dst, src: src.into() });
    }

    /// `dst = src`
    pub fn mov(&mut self, dst: Reg, src: impl Into<Operand>) {
        self.alu(AluOp::Mov, dst, src);
    }

    /// `dst = src`, lower half; the upper half becomes zero.
    pub fn mov32(&mut self, dst: Reg, src: impl Into<Operand>) {
        self.alu32(AluOp::Mov, dst, src);
    }

    /// `dst = value`, in one slot if the value allows it.
    pub fn constant(&mut self, dst: Reg, value: u64) {
        // The 32-bit form first: it clears the upper half, so it covers all values of 32 bits, whereas the 64-bit form
        // sign-extends its constant.
        if let Ok(low) = u32::try_from(value) {
            self.mov32(dst, low as i32);
        // Then small negative numbers. Everything else takes two slots.
        } else if let Ok(signed) = i32::try_from(value as i64) {
            self.mov(dst, signed);
        } else {
            self.emit(Insn::LoadImm64 { dst, value: Imm64::Value(value) });
        }
    }

    /// `dst = *(base + offset)`
    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, offset: i16) {
        self.emit(Insn::Load { size, dst, base, offset });
    }

    /// `*(base + offset) = src`
    pub fn store(&mut self, size: Size, base: Reg, offset: i16, src: impl Into<Operand>) {
        self.emit(Insn::Store { size, base, offset, src: src.into() });
    }

    /// Converts from host to big-endian order or back, which is the same operation.
    pub fn swap_be(&mut self, bits: SwapBits, dst: Reg) {
        self.emit(Insn::Swap { order: Swap::ToBe, bits, dst });
    }

    /// `atomic *(base + offset) op= src`
    pub fn atomic(&mut self, op: AtomicOp, width: Width, base: Reg, offset: i16, src: Reg) {
        self.emit(Insn::Atomic { op, width, base, offset, src });
    }

    /// Calls a kernel helper.
    pub fn call(&mut self, helper: Helper) {
        self.emit(Insn::CallHelper(helper));
    }

    /// `exit`
    pub fn exit(&mut self) {
        self.emit(Insn::Exit);
    }

    /// Resolves every label and returns the code.
    pub fn assemble(&self) -> Result<Assembled, AsmError> {
        if let Some(label) = self.bound_twice {
            return Err(AsmError::BoundTwice { label, name: self.name(label) });
        }
        // Two steps: all positions, then all distances. A jump forward needs the position of code that has not been
        // visited yet.
        let layout = self.layout()?;
        let functions = self.functions(&layout)?;
        let (mut insns, mut tags) = (Vec::with_capacity(self.ops.len()), Vec::with_capacity(self.ops.len()));
        let mut maps = Vec::new();
        for (&(op, tag), &slot) in self.ops.iter().zip(&layout) {
            let insn = self.resolve(op, slot, &layout)?;
            // After the long form was chosen: `gotol` is an instruction of version 4, and it appears only here.
            if let Some(feature) = insn.feature().filter(|&feature| !self.target.has(feature)) {
                return Err(AsmError::NotOnTarget { insn, slot, feature, target: self.target });
            }
            if let SymbolicOp::Map { map, .. } | SymbolicOp::MapValue { map, .. } = op {
                maps.push(MapUse { index: insns.len(), slot, map });
            }
            insns.push(insn);
            tags.push(tag);
        }
        Ok(Assembled { insns: insns.into(), tags, maps, functions })
    }

    /// The slot of every operation and, at the end, the slot after the last one.
    fn layout(&self) -> Result<Vec<u32>, AsmError> {
        let slots: u64 = self.ops.iter().map(|(op, _)| u64::from(op.slots())).sum();
        // Before positions are computed: they have 32 bits, and distances to code beyond the limit would mean nothing.
        if slots > u64::from(MAX_SLOTS) {
            return Err(AsmError::TooLong { slots });
        }
        let mut layout = vec![0];
        layout.extend(self.ops.iter().scan(0, |end, (op, _)| {
            *end += op.slots();
            Some(*end)
        }));
        Ok(layout)
    }

    fn functions(&self, layout: &[u32]) -> Result<Vec<Function>, AsmError> {
        // The kernel begins every program at slot 0, so the entry needs no label.
        let mut functions = vec![Function { name: self.entry.clone(), slot: 0 }];
        for &label in &self.functions {
            functions.push(Function { name: self.name(label), slot: self.position(label, 0, layout)? });
        }
        Ok(functions)
    }

    fn name(&self, label: Label) -> String {
        self.labels.get(label.0 as usize).map_or_else(String::new, |place| place.name.clone().into_owned())
    }

    fn position(&self, label: Label, slot: u32, layout: &[u32]) -> Result<u32, AsmError> {
        let before = self.labels.get(label.0 as usize).and_then(|place| place.before);
        let position = before.and_then(|before| layout.get(before)).copied();
        position.ok_or_else(|| AsmError::Unbound { label, name: self.name(label), slot })
    }

    /// The distance as the kernel counts it: from the slot after the instruction's first slot.
    fn distance(&self, label: Label, slot: u32, layout: &[u32]) -> Result<i64, AsmError> {
        // In 64 bits, so that a distance that does not fit is an error of the conversion. An unchecked `as i16` would
        // jump into other code.
        Ok(i64::from(self.position(label, slot, layout)?) - i64::from(slot) - 1)
    }

    fn too_far(&self, label: Label, slot: u32, distance: i64, limit: i64) -> AsmError {
        AsmError::TooFar { label, name: self.name(label), slot, distance, limit }
    }

    fn resolve(&self, op: SymbolicOp, slot: u32, layout: &[u32]) -> Result<Insn, AsmError> {
        let short = |label| {
            let distance = self.distance(label, slot, layout)?;
            i16::try_from(distance).map_err(|_| self.too_far(label, slot, distance, i64::from(i16::MAX)))
        };
        let long = |label| {
            let distance = self.distance(label, slot, layout)?;
            i32::try_from(distance).map_err(|_| self.too_far(label, slot, distance, i64::from(i32::MAX)))
        };
        Ok(match op {
            SymbolicOp::Plain(insn) => insn,
            SymbolicOp::Goto(to) => match short(to) {
                // Only where it is needed: kernels before 6.6 do not know it, and programs that do without stay the
                // same for all targets.
                Err(AsmError::TooFar { .. }) if self.target.has(Feature::V4) => Insn::JumpLong { offset: long(to)? },
                offset => Insn::Jump { offset: offset? },
            },
            // Conditional jumps have no long form. The emitter must place code so that they reach, or jump over a
            // `goto`.
            SymbolicOp::If { width, cond, dst, src, to } => Insn::JumpIf { width, cond, dst, src, offset: short(to)? },
            SymbolicOp::Call(to) => Insn::CallLocal { offset: long(to)? },
            SymbolicOp::Function { dst, label } => Insn::LoadImm64 { dst, value: Imm64::Func(long(label)?) },
            // 0 until it is linked. An object file needs exactly this, with a relocation to the map.
            SymbolicOp::Map { dst, .. } => Insn::LoadImm64 { dst, value: Imm64::MapFd(0) },
            SymbolicOp::MapValue { dst, offset, .. } => {
                Insn::LoadImm64 { dst, value: Imm64::MapValue { fd: 0, offset } }
            }
        })
    }
}

#[cfg(test)]
mod tests;
