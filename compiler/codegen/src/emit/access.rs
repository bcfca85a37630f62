//! Typed loads and stores: numbers on the stack, in the context, in the configuration and in map values.
//!
//! Problem: an instruction names a base register, an offset and a size, and the assembler cannot know whether they
//! belong together. A load of four bytes where two were stored reads bytes that were never written, which the verifier
//! reports as an offset. Strategy: a number has one definition with its size, and these functions choose the base.

use super::frame::{StackNumber, skb};
use super::{Emitter, map_ref};
use weir_artifact::layout::{MapName, endpoint};
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Operand, Reg, Size};

/// A number in the value of `endpoints`.
#[derive(Clone, Copy)]
pub(super) enum EndpointField {
    Subject,
    Flags,
    Number,
    Node,
}

impl EndpointField {
    fn place(self) -> (Size, i16) {
        match self {
            Self::Subject => (Size::W, endpoint::SUBJECT),
            Self::Flags => (Size::H, endpoint::FLAGS),
            Self::Number => (Size::H, endpoint::NUMBER),
            Self::Node => (Size::W, endpoint::NODE),
        }
    }
}

impl Emitter<'_> {
    /// `reg` = a number on the stack.
    pub(super) fn load_frame(&mut self, reg: Reg, number: impl Into<StackNumber>) {
        let StackNumber { size, at } = number.into();
        self.asm.load(size, reg, Reg::R10, at);
    }

    /// Stores a number on the stack.
    pub(super) fn store_frame(&mut self, number: impl Into<StackNumber>, value: impl Into<Operand>) {
        let StackNumber { size, at } = number.into();
        self.asm.store(size, Reg::R10, at, value);
    }

    /// Stores a constant in a number on the stack.
    pub(super) fn store_constant(&mut self, number: impl Into<StackNumber>, value: u32) {
        self.store_frame(number, value as i32);
    }

    /// `r = r10 + offset`
    pub(super) fn stack_pointer(&mut self, reg: Reg, offset: i16) {
        self.asm.mov(reg, Reg::R10);
        self.asm.alu(AluOp::Add, reg, i32::from(offset));
    }

    /// `reg` = a field of the packet's `struct __sk_buff`.
    pub(super) fn load_context(&mut self, reg: Reg, field: skb::ContextField) {
        self.asm.load(field.size, reg, Reg::R6, field.at);
    }

    /// Stores a field of the packet's `struct __sk_buff`.
    pub(super) fn store_context(&mut self, field: skb::ContextField, value: Reg) {
        self.asm.store(field.size, Reg::R6, field.at, value);
    }

    /// `reg` = a pointer into the only value of a map.
    // `ld_imm64` of an array map's value costs no call and no null check, unlike a look-up. The kernel supports it for
    // arrays with one element.
    pub(super) fn point_to(&mut self, reg: Reg, map: MapName, offset: i32) {
        self.asm.load_map_value(reg, map_ref(map), offset);
    }

    /// `reg` = a parameter of four bytes.
    pub(super) fn load_config(&mut self, reg: Reg, parameter: i32) {
        self.point_to(reg, MapName::Config, parameter);
        self.asm.load(Size::W, reg, reg, 0);
    }

    /// `reg` = a parameter of four bytes; `config` points to all of them.
    pub(super) fn load_config_at(&mut self, reg: Reg, config: Reg, parameter: i32) {
        self.asm.load(Size::W, reg, config, parameter as i16);
    }

    /// `reg` = a number of the endpoint that `endpoint` points to.
    pub(super) fn load_endpoint(&mut self, reg: Reg, endpoint: Reg, field: EndpointField) {
        let (size, at) = field.place();
        self.asm.load(size, reg, endpoint, at);
    }

    /// `r0` = pointer to the map's value for the key on the stack, or 0.
    pub(super) fn look_up(&mut self, map: MapName, key: i16) {
        self.asm.load_map(Reg::R1, map_ref(map));
        self.stack_pointer(Reg::R2, key);
        self.asm.call(Helper::MAP_LOOKUP_ELEM);
    }

    /// `r0` = pointer to the map's value for the key on the stack. Jumps to `absent` if the map has no such key.
    // Verifier: the pointer may be used only after this compare with 0, even in maps whose keys all exist.
    pub(super) fn look_up_or(&mut self, map: MapName, key: i16, absent: Label) {
        self.look_up(map, key);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, absent);
    }
}
