//! A userspace eBPF machine: runs linked programs on packets and maps, and traps where the kernel's verifier would
//! reject the access.
//!
//! Problem: verdicts must come from the emitted bytecode itself, on every machine and without privilege. Strategy:
//! pointers are numbers in a synthetic address space ([`memory`]). Their upper bits name a region, so that 64-bit
//! arithmetic works as on the real machine and every access is still checked against the bounds of the one object it
//! may touch. Instructions are decoded once ([`op`]) and interpreted; maps and helpers follow the kernel's rules and
//! error numbers.
//!
//! The test `vm_against_kernel` of `weir-runtime` runs the same programs in the kernel and compares the results bit for
//! bit.
//!
//! Stricter than the hardware, as the verifier of 5.10 is: it traps on reads of stack that was never written, on
//! unaligned stack or atomic accesses, on stale packet pointers after `skb_pull_data`, and on ring-buffer records that
//! are neither submitted nor discarded. Registers that a call clobbers hold [`POISON`]. Modelled: a little-endian
//! 64-bit machine. Not modelled: callbacks, kernel functions, spin locks, and the LRU map's exact choice of victim
//! (here it is the least recently used entry).
//!
//! The clock, the CPU number and the random numbers come from a [`VmInputs`] value, so a run depends on its arguments
//! alone.

mod alu;
mod errno;
mod exec;
mod helpers;
mod map;
mod memory;
mod op;
mod probe;
mod ring;
mod skb;
mod trap;
mod xdp;

pub use errno::Errno;
pub use map::{ANY, EXIST, MapFlags, MapId, MapKind, MapSpec, NOEXIST};
pub use op::VmLoadError;
pub use probe::{MapByte, RunPart, Stop, StoppedRun};
pub use skb::Skb;
pub use trap::{AccessKind, AccessSite, Cause, MemoryRegion, Trap};

use crate::insn::Insn;
use map::VmMap;
use memory::Memory;
use op::DecodedProgram;

/// The value of a register after a call that does not preserve it.
pub const POISON: u64 = 0xdead_beef_dead_beef;

// Also on kernels that define 32: they compared with `>`, so that 33 calls were made. Since 5.17 the constant says so:
// https://github.com/torvalds/linux/commit/ebf7f6f0a6cdcc17a3da52b81e4b3a98c4005028
/// The maximum number of tail calls in one run.
pub const MAX_TAIL_CALLS: u32 = 33;

/// The id of a loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u32);

/// Inputs of a program from outside of the machine: time, CPU and random numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmInputs {
    /// Nanoseconds since boot. The coarse clock has the same value.
    pub ktime_ns: u64,
    /// The time in ticks.
    pub jiffies: u64,
    /// The CPU that runs the program.
    pub cpu: u32,
    /// State of the random number generator; advances with each call.
    pub random: u64,
}

impl VmInputs {
    /// The next random number (SplitMix64, upper half).
    fn next_random(&mut self) -> u32 {
        // A generator with its whole state in the host: a run that is repeated with the same host draws the same
        // numbers, and a difference that a fuzzer finds can be reproduced.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

/// A run that ended with `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// The value of `R0` at exit.
    pub r0: u64,
    /// Instructions executed.
    pub executed: u64,
}

impl RunOutcome {
    /// The program's verdict: the lower half of `R0`, as the kernel takes it.
    pub fn verdict(&self) -> i32 {
        self.r0 as i32
    }
}

/// The machine: programs, maps and the memory that they share. A clone is a snapshot; ids stay valid in it.
#[derive(Clone, Debug)]
pub struct Vm {
    cpus: u32,
    budget: u64,
    memory: Memory,
    maps: Vec<VmMap>,
    programs: Vec<DecodedProgram>,
}

impl Vm {
    /// A machine with this many CPUs (at least one), for per-CPU maps.
    pub fn new(cpus: u32) -> Self {
        // Per-CPU elements are numbered modulo the CPUs, and a remainder by zero is a panic.
        let cpus = cpus.max(1);
        // The kernel's verifier follows at most a million instructions (`BPF_COMPLEXITY_LIMIT_INSNS`), so a program
        // that exceeds this has a loop without end.
        Self { cpus, budget: 1_000_000, memory: Memory::new(), maps: Vec::new(), programs: Vec::new() }
    }

    /// Sets the maximum number of instructions in one run.
    pub fn set_budget(&mut self, instructions: u64) {
        self.budget = instructions;
    }

    /// Loads a linked program for tc. Map descriptors in it are the numbers of this machine's [`MapId`]s.
    pub fn load(&mut self, insns: &[Insn]) -> Result<ProgramId, VmLoadError> {
        self.load_as(insns, false)
    }

    /// Loads a linked program for XDP. It sees the bytes of an [`Skb`], all as linear, and the interface.
    pub fn load_xdp(&mut self, insns: &[Insn]) -> Result<ProgramId, VmLoadError> {
        self.load_as(insns, true)
    }

    fn load_as(&mut self, insns: &[Insn], is_xdp: bool) -> Result<ProgramId, VmLoadError> {
        // Maps first: an instruction that names a map is decoded into the map's address, so a map that is created later
        // cannot be meant.
        let program = DecodedProgram::new(insns, &self.maps, is_xdp)?;
        let id = ProgramId(u32::try_from(self.programs.len()).unwrap_or(u32::MAX));
        self.programs.push(program);
        Ok(id)
    }

    /// Runs a program on a packet. Its writes to maps and to the packet remain, also after a trap.
    pub fn run(&mut self, program: ProgramId, skb: &mut Skb, host: &mut VmInputs) -> Result<RunOutcome, Box<Trap>> {
        exec::run(self, program, skb, host)
    }
}

#[cfg(test)]
mod tests;
