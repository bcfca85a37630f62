//! Random straight-line programs with forward branches, calls and tail calls.

use crate::bench::{DATA, KEY, alu, asm, compare, data_map, data_spec, ids, kernel, link, must_load, packet, supports};
use crate::random::{Random, Values as _};
use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use std::os::fd::AsFd;
use weir_ebpf::asm::{Asm, Label, MapRef};
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Extend, Insn, Narrow, Operand, Reg, Size, Swap, SwapBits, Width};
use weir_ebpf::target::Feature;
use weir_ebpf::vm::{MapFlags, MapId, MapKind, MapSpec, Skb, Vm, VmInputs};
use weir_runtime::skip;
use weir_runtime::sys::{BpfKernel, KernelMap, MapDefinition, MapType};

const PROGRAMS: u64 = 2_500;
/// Registers that hold numbers; `R6` holds the address of the data.
const NUMBERS: [Reg; 9] = [R0, R1, R2, R3, R4, R5, R7, R8, R9];
const DATA_WORDS: usize = 32;
const STACK_WORDS: usize = 4;

struct Generator {
    asm: Asm,
    random: Random,
    v4: bool,
    /// Labels to bind, and after how many more instructions.
    open: Vec<(Label, usize)>,
    branches: usize,
}

impl Generator {
    fn new(seed: u64, v4: bool) -> Self {
        Self { asm: asm(), random: Random::new(seed), v4, open: Vec::new(), branches: 0 }
    }

    fn reg(&mut self) -> Reg {
        self.random.pick(&NUMBERS)
    }

    fn width(&mut self) -> Width {
        self.random.pick(&[Width::W32, Width::W64])
    }

    fn operand(&mut self) -> Operand {
        if self.random.below(2) == 0 { self.reg().into() } else { (self.random.value() as i32).into() }
    }

    /// A place of the data or the stack, aligned to `bytes`.
    fn place(&mut self, bytes: u32) -> (Reg, i16) {
        let within = |random: &mut Random, words: usize| (random.below(words * 8) as i16) & -(bytes as i16);
        if self.random.below(2) == 0 {
            (R6, within(&mut self.random, DATA_WORDS))
        } else {
            (R10, within(&mut self.random, STACK_WORDS) - STACK_WORDS as i16 * 8)
        }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..5 => self.arithmetic(),
            5 => self.unary(),
            6 => {
                let (dst, value) = (self.reg(), self.random.value());
                self.asm.constant(dst, value);
            }
            7 => self.load(),
            8 => {
                let size = self.random.pick(&Size::ALL);
                let ((base, offset), src) = (self.place(size.bytes()), self.operand());
                self.asm.store(size, base, offset, src);
            }
            9 => self.atomic(),
            _ => self.branch(),
        }
        self.bind_due();
    }

    fn arithmetic(&mut self) {
        let ops = if self.v4 { &AluOp::ALL[..] } else { &AluOp::ALL[..12] };
        let (op, width, dst, src) = (self.random.pick(ops), self.width(), self.reg(), self.operand());
        let bits = if width == Width::W32 { 31 } else { 63 };
        let src = match (op, src) {
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(imm)) => Operand::Imm(imm & bits),
            (AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod, Operand::Imm(0)) => Operand::Imm(3),
            (_, src) => src,
        };
        self.asm.emit(alu(width, op, dst, src));
    }

    fn unary(&mut self) {
        let (dst, src, width) = (self.reg(), self.reg(), self.width());
        let (bits, extend) = (self.random.pick(&SwapBits::ALL), self.random.pick(&Extend::ALL));
        let insn = match self.random.below(if self.v4 { 5 } else { 3 }) {
            0 => Insn::Neg { width, dst },
            1 => Insn::Swap { order: Swap::ToBe, bits, dst },
            2 => Insn::Swap { order: Swap::ToLe, bits, dst },
            3 => Insn::Swap { order: Swap::Always, bits, dst },
            _ => Insn::MovSx { extend, dst, src },
        };
        self.asm.emit(insn);
    }

    fn load(&mut self) {
        let dst = self.reg();
        if self.v4 && self.random.below(2) == 0 {
            let size = self.random.pick(&Narrow::ALL);
            let (base, offset) = self.place(size.size().bytes());
            self.asm.emit(Insn::LoadSx { size, dst, base, offset });
        } else {
            let size = self.random.pick(&Size::ALL);
            let (base, offset) = self.place(size.bytes());
            self.asm.load(size, dst, base, offset);
        }
    }

    fn atomic(&mut self) {
        let ops = if self.v4 { &AtomicOp::ALL[..] } else { &AtomicOp::ALL[..1] };
        let (op, width, src) = (self.random.pick(ops), self.width(), self.reg());
        let (base, offset) = self.place(if width == Width::W32 { 4 } else { 8 });
        self.asm.atomic(op, width, base, offset, src);
    }

    fn branch(&mut self) {
        if self.branches == 8 {
            return;
        }
        self.branches += 1;
        let label = self.asm.label("forward");
        let (cond, dst, src) = (self.random.pick(&Cond::ALL), self.reg(), self.operand());
        match self.width() {
            Width::W32 => self.asm.jump_if32(cond, dst, src, label),
            Width::W64 => self.asm.jump_if(cond, dst, src, label),
        }
        let after = 1 + self.random.below(6);
        self.open.push((label, after));
    }

    fn bind_due(&mut self) {
        let (asm, open) = (&mut self.asm, &mut self.open);
        open.retain_mut(|(label, after)| {
            *after -= 1;
            if *after == 0 {
                asm.bind(*label);
            }
            *after > 0
        });
    }

    fn program(mut self) -> Asm {
        self.asm.load_map_value(R6, DATA, 0);
        for (index, reg) in NUMBERS.into_iter().enumerate() {
            self.asm.load(Size::Dw, reg, R6, index as i16 * 8);
        }
        for word in 0..STACK_WORDS as i16 {
            self.asm.store(Size::Dw, R10, -8 * (word + 1), NUMBERS[word as usize]);
        }
        (0..60).for_each(|_| self.step());
        while !self.open.is_empty() {
            self.asm.mov(R1, R1);
            self.bind_due();
        }
        for (index, reg) in NUMBERS.into_iter().enumerate() {
            self.asm.store(Size::Dw, R6, index as i16 * 8, reg);
        }
        for word in 0..STACK_WORDS as i16 {
            self.asm.load(Size::Dw, R1, R10, -8 * (word + 1));
            self.asm.store(Size::Dw, R6, (NUMBERS.len() as i16 + word) * 8, R1);
        }
        self.asm.exit();
        self.asm
    }
}

#[test]
fn random_programs_have_the_same_result_in_the_vm_and_the_kernel() {
    let kernel = kernel!();
    let v4 = supports(&kernel, Feature::V4);
    for seed in 0..PROGRAMS {
        let input = Random::new(!seed).bytes(DATA_WORDS * 8);
        compare(&kernel, &format!("seed {seed}"), &Generator::new(seed, v4).program(), &input);
    }
    if !v4 {
        skip!("the kernel lacks {}: compared without", Feature::V4);
    }
}

#[test]
fn local_calls_keep_the_callers_registers_and_frame() {
    let kernel = kernel!();
    let mut asm = asm();
    let (outer, inner) = (asm.label("outer"), asm.label("inner"));
    asm.load_map_value(R6, DATA, 0);
    asm.load(Size::Dw, R7, R6, 0);
    asm.store(Size::Dw, R10, -8, R7);
    asm.mov(R1, R7);
    asm.mov(R2, R10);
    asm.alu(AluOp::Add, R2, -8);
    asm.call_local(outer);
    asm.store(Size::Dw, R6, 8, R0);
    asm.store(Size::Dw, R6, 16, R7);
    asm.load(Size::Dw, R1, R10, -8);
    asm.store(Size::Dw, R6, 24, R1);
    asm.exit();
    asm.begin_function(outer);
    asm.mov(R6, R1);
    asm.mov(R7, 77);
    asm.store(Size::Dw, R10, -8, R7);
    asm.alu(AluOp::Mul, R6, 3);
    asm.store(Size::Dw, R2, 0, R6);
    asm.call_local(inner);
    asm.load(Size::Dw, R1, R10, -8);
    asm.alu(AluOp::Add, R0, R1);
    asm.alu(AluOp::Add, R0, R6);
    asm.exit();
    asm.begin_function(inner);
    asm.mov(R6, 5);
    asm.store(Size::Dw, R10, -8, R6);
    asm.mov(R0, R6);
    asm.exit();
    compare(&kernel, "calls", &asm, &Random::new(1).bytes(32));
}

#[test]
fn long_jumps_and_loops_are_the_kernels() {
    let kernel = kernel!();
    if !supports(&kernel, Feature::V4) {
        skip!("the kernel lacks {}", Feature::V4);
    }
    let mut asm = asm();
    let (top, done) = (asm.label("top"), asm.label("done"));
    asm.load_map_value(R6, DATA, 0);
    asm.mov(R1, 0);
    asm.mov(R2, 0);
    asm.bind(top);
    asm.jump_if(Cond::Ge, R1, 100, done);
    asm.alu(AluOp::Add, R2, R1);
    asm.alu(AluOp::Add, R1, 1);
    let back = asm.assemble().map(|_| ()).is_err();
    assert!(back, "`done` is not bound yet");
    asm.emit(Insn::JumpLong { offset: -4 });
    asm.bind(done);
    asm.store(Size::Dw, R6, 0, R2);
    asm.mov(R0, R2);
    asm.exit();
    compare(&kernel, "loop", &asm, &[0; 8]);
}

/// A program array of two entries, twice.
struct Tails {
    kernel: BpfKernel,
    data: KernelMap,
    programs: KernelMap,
    vm: Vm,
    maps: [MapId; 2],
}

impl Tails {
    fn new(kernel: BpfKernel) -> Self {
        let definition =
            MapDefinition { map_type: MapType::ProgArray, key_size: 4, value_size: 4, max_entries: 2, flags: 0 };
        let (data, programs) = (data_map(&kernel, 8), kernel.create_map(&definition, None).unwrap());
        let mut vm = Vm::new(1);
        let flags = MapFlags::default();
        let spec = MapSpec { kind: MapKind::ProgArray, key_size: 4, value_size: 4, max_entries: 2, flags };
        let maps = [vm.create_map(data_spec(8)).unwrap(), vm.create_map(spec).unwrap()];
        Self { kernel, data, programs, vm, maps }
    }

    /// Runs `entry` with `first` as the array's first program.
    #[track_caller]
    fn check(mut self, entry: &Asm, first: &Asm, verdict: u32) {
        let load = |asm| must_load(&self.kernel, &link(asm, &[self.data.descriptor(), self.programs.descriptor()]));
        let (program, tail) = (load(entry), load(first));
        self.programs.update_descriptor(&KEY, tail.as_fd()).unwrap();
        assert_eq!(program.test_run(&packet(), &[], 1).unwrap().verdict, verdict, "kernel");
        let maps = ids(&self.maps);
        let [program, tail] = [entry, first].map(|asm| self.vm.load(&link(asm, &maps)).unwrap());
        self.vm.set_program(self.maps[1], 0, Some(tail)).unwrap();
        let actual = self.vm.run(program, &mut Skb::new(packet()), &mut VmInputs::default()).unwrap();
        assert_eq!(actual.verdict() as u32, verdict, "machine");
        assert_eq!(self.vm.map_lookup(self.maps[0], &KEY).unwrap(), self.data.lookup(&KEY).unwrap());
    }
}

/// Counts its runs and tail-calls itself; continues after the call when the kernel refuses it.
fn tail_caller(index: i32) -> Asm {
    let mut asm = asm();
    asm.load_map_value(R6, MapRef(0), 0);
    asm.load(Size::Dw, R7, R6, 0);
    asm.alu(AluOp::Add, R7, 1);
    asm.store(Size::Dw, R6, 0, R7);
    asm.load_map(R2, MapRef(1));
    asm.mov(R3, index);
    asm.call(Helper::TAIL_CALL);
    asm.mov(R0, R7);
    asm.exit();
    asm
}

#[test]
fn a_program_tail_calls_33_times() {
    let program = tail_caller(0);
    Tails::new(kernel!()).check(&program, &program, 34);
}

#[test]
fn a_tail_call_to_nothing_falls_through() {
    for index in [1, 7] {
        let program = tail_caller(index);
        Tails::new(kernel!()).check(&program, &program, 1);
    }
}
