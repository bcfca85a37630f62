//! A userspace eBPF machine: runs linked programs on packets and maps, and traps where the kernel's verifier would object.
//!
//! Problem: the emitted bytecode itself must be asked for verdicts, everywhere, without privilege. Strategy: pointers are numbers in a
//! synthetic address space ([`memory`]): the upper bits name a region, so that 64-bit arithmetic works as on the real machine
//! and every access is still checked against the bounds of the one object it may touch. Instructions are decoded once
//! ([`op`]) and interpreted; maps and helpers follow the kernel's rules and error numbers.
//!
//! What the machine is held to: `weir-runtime`'s test `vm_against_kernel` runs the same programs in the kernel and compares results bit for bit.
//!
//! Stricter than the hardware, as the verifier of 5.10 is: reading stack that nobody wrote, unaligned stack or atomic access, a
//! stale packet pointer after `skb_pull_data`, a ring-buffer record neither submitted nor discarded. Registers that a
//! call clobbers hold [`POISON`]. Modelled: a little-endian 64-bit machine. Not modelled: callbacks, kernel functions, spin
//! locks, and the LRU map's exact choice of victim (ours is the least recently used).
//!
//! The clock, the CPU number and the random numbers come from a [`Host`] value: the machine is pure.

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
pub use op::LoadError;
pub use probe::{Part, Spot, State, Stop};
pub use skb::Skb;
pub use trap::{Access, Cause, Place, Region, Trap};

use crate::ebpf::insn::Insn;
use map::Map;
use memory::Memory;
use op::Program;

/// What a register holds after a call that does not keep it.
pub const POISON: u64 = 0xdead_beef_dead_beef;

/// The most tail calls in one run.
pub const MAX_TAIL_CALLS: u32 = 33;

/// A loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u32);

/// What the outside world tells a program: time, place, chance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Nanoseconds since boot; the coarse clock gives the same.
    pub ktime_ns: u64,
    /// Ticks.
    pub jiffies: u64,
    /// The CPU that runs the program.
    pub cpu: u32,
    /// State of the random number generator; advances with each call.
    pub random: u64,
}

impl Host {
    /// The next random number (SplitMix64, upper half).
    fn next_random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

/// A run that ended with `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// `R0`.
    pub r0: u64,
    /// Instructions executed.
    pub executed: u64,
}

impl Outcome {
    /// What the kernel takes from a program: the lower half.
    pub fn verdict(&self) -> i32 {
        self.r0 as i32
    }
}

/// The machine: programs, maps and the memory that they share. A clone is a snapshot: ids stay good in it.
#[derive(Clone, Debug)]
pub struct Vm {
    cpus: u32,
    budget: u64,
    memory: Memory,
    maps: Vec<Map>,
    programs: Vec<Program>,
}

impl Vm {
    /// A machine with this many CPUs (at least one), for per-CPU maps.
    pub fn new(cpus: u32) -> Self {
        let cpus = cpus.max(1);
        Self { cpus, budget: 1_000_000, memory: Memory::new(), maps: Vec::new(), programs: Vec::new() }
    }

    /// The most instructions one run may execute.
    pub fn set_budget(&mut self, instructions: u64) {
        self.budget = instructions;
    }

    /// Loads a linked program for tc. Map descriptors in it are the numbers of this machine's [`MapId`]s.
    pub fn load(&mut self, insns: &[Insn]) -> Result<ProgramId, LoadError> {
        self.load_as(insns, false)
    }

    /// The same for XDP: of an [`Skb`] it sees the bytes, all of them, and the interface.
    pub fn load_xdp(&mut self, insns: &[Insn]) -> Result<ProgramId, LoadError> {
        self.load_as(insns, true)
    }

    fn load_as(&mut self, insns: &[Insn], is_xdp: bool) -> Result<ProgramId, LoadError> {
        let program = Program::new(insns, &self.maps, is_xdp)?;
        let id = ProgramId(u32::try_from(self.programs.len()).unwrap_or(u32::MAX));
        self.programs.push(program);
        Ok(id)
    }

    /// Runs a program on a packet. Maps keep what it wrote, also after a trap; so does the packet.
    pub fn run(&mut self, program: ProgramId, skb: &mut Skb, host: &mut Host) -> Result<Outcome, Box<Trap>> {
        exec::run(self, program, skb, host)
    }
}

#[cfg(test)]
mod tests;
