//! Sends packets of many flows in one run: a driver program rewrites the packet for the next flow and tail-calls the
//! measured program.
//!
//! Problem: a test run repeats one packet, and runs of a single packet mostly measure the clock. Strategy: a counter,
//! spread by a multiplication, picks one of a power of two flows. The driver writes the client's port and one of up to
//! [`MOST_OTHERS`] addresses into the packet. Then it tail-calls a constant index, which the kernel patches into a
//! jump. The same driver is also run with an empty program; the difference is the cost of the measured program.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::Instant;

use weir_artifact::packet;
use weir_ebpf::asm::{Asm, AsmError, Assembled, MapRef};
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::context as field;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_ebpf::target::Target;
use weir_objects::address::Family;
use weir_objects::k8s::{Direction, FlowProtocol, Protocol};

use super::{CONTEXT_BYTES, ELSEWHERE, INTERFACE};
use crate::error::{Doing as _, Error};
use crate::sys::{BpfKernel, KernelMap, KernelProgram, MapDefinition, MapType};

/// The largest number of addresses of the other end that take turns.
pub const MOST_OTHERS: usize = 8;
const STATE: MapRef = MapRef(0);
const ADDRESSES: MapRef = MapRef(1);
const NEXT: MapRef = MapRef(2);
/// Layout of the state: the counter, its factor, the shift of the product, and the mask whose bits are the flow's
/// number.
const COUNTER: i16 = 0;
const FACTOR: i16 = 8;
const SHIFT: i16 = 16;
const MASK: i16 = 24;
const STATE_BYTES: u32 = 32;
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

const SYN: u8 = 2;
const ACK: u8 = 16;

/// The packets that are sent: TCP, between the pod and others, of one family.
#[derive(Clone, Debug)]
pub struct DriverTraffic {
    /// Whether they come to the pod or from it.
    pub hook: Direction,
    /// The pod's address.
    pub own: IpAddr,
    /// The addresses of the other end. The largest power of two of them, up to [`MOST_OTHERS`], take turns.
    pub others: Vec<IpAddr>,
    /// The server's port: the pod's if packets come to it.
    pub port: u16,
}

impl DriverTraffic {
    /// The binary logarithm of the number of other addresses that take turns; `None` without other addresses.
    fn turns(&self) -> Option<u32> {
        self.others.len().min(MOST_OTHERS).checked_ilog2()
    }
}

/// Sends [`DriverTraffic`] to a program.
#[derive(Debug)]
pub struct Driver {
    program: KernelProgram,
    state: KernelMap,
    traffic: DriverTraffic,
    /// One of the other addresses.
    other: IpAddr,
    context: [u8; CONTEXT_BYTES],
    _maps: [KernelMap; 2],
}

impl Driver {
    /// Drives this program.
    pub fn new(kernel: &BpfKernel, traffic: &DriverTraffic, target: &KernelProgram) -> Result<Self, Error> {
        let doing = "make a program that sends packets";
        let no_addresses = || std::io::Error::other("the traffic has no addresses for the other end");
        let (turns, other) =
            traffic.turns().zip(traffic.others.first().copied()).ok_or_else(no_addresses).doing(doing)?;
        let make = |map_type, value_size| {
            let definition = MapDefinition { map_type, key_size: 4, value_size, max_entries: 1, flags: 0 };
            kernel.create_map(&definition, None).doing(doing)
        };
        let state = make(MapType::Array, STATE_BYTES)?;
        let addresses = make(MapType::Array, 16 * MOST_OTHERS as u32)?;
        let next = make(MapType::ProgArray, 4)?;
        addresses.update(&[0; 4], &table(&traffic.others), 0).doing(doing)?;
        next.update_descriptor(&[0; 4], target.as_fd()).doing(doing)?;
        let descriptors = [&state, &addresses, &next].map(KernelMap::descriptor);
        let code = assemble(traffic, turns).map_err(std::io::Error::other).doing(doing)?;
        let insns = code.link(|map| descriptors.get(map.0 as usize).copied().unwrap_or(-1));
        let refused = |error| Error::Refused { program: "driver", error };
        let program = kernel.load(&encode(&insns, ByteOrder::Little)).map_err(refused)?;
        let context = super::context(if traffic.hook == Direction::Ingress { ELSEWHERE } else { INTERFACE });
        Ok(Self { program, state, traffic: traffic.clone(), other, context, _maps: [addresses, next] })
    }

    fn set(&self, [counter, factor, shift, mask]: [u64; 4]) -> Result<(), Error> {
        let bytes: Vec<u8> = [counter, factor, shift, mask].iter().flat_map(|it| it.to_le_bytes()).collect();
        self.state.update(&[0; 4], &bytes, 0).doing("configure the packets to send")
    }

    /// Runs the program and returns nanoseconds per packet and the last verdict. The kernel reports whole nanoseconds
    /// and excludes the time that other tasks had the CPU; our own clock supplies the fraction.
    fn run(&self, flags: u8, repeat: u32) -> Result<(f64, u32), Error> {
        let DriverTraffic { hook, own, port, .. } = &self.traffic;
        let ends = if *hook == Direction::Ingress { (self.other, *own) } else { (*own, self.other) };
        let packet = packet::build(ends.0, ends.1, FlowProtocol::Transport(Protocol::Tcp), *port);
        let families = || std::io::Error::other("both ends must have addresses of one family");
        let mut packet = packet.ok_or_else(families).doing("make a packet")?;
        packet.iter_mut().skip(transport(own) as usize + 13).take(1).for_each(|it| *it = flags);
        let begun = Instant::now();
        let run = self.program.test_run(&packet, &self.context, repeat).doing("run a program on a packet")?;
        let ours = begun.elapsed().as_secs_f64() * 1e9 / f64::from(repeat);
        let whole = f64::from(run.nanoseconds);
        Ok((ours.clamp(whole, whole + 0.99), run.verdict))
    }

    /// Mean nanoseconds for the first packets of `flows` new flows, after `skipped` others.
    pub fn begin(&self, skipped: u32, flows: u32) -> Result<f64, Error> {
        // The program increments the counter before it uses it.
        self.set([u64::from(skipped).wrapping_sub(1), 1, 0, u64::from(u32::MAX >> 1)])?;
        Ok(self.run(SYN, flows)?.0)
    }

    /// The verdict for a first packet.
    pub fn verdict(&self) -> Result<u32, Error> {
        self.set([0, 1, 0, 0])?;
        Ok(self.run(SYN, 1)?.1)
    }

    /// Mean nanoseconds for packets of `flows` (a power of two) existing flows, in an order that the CPU cannot
    /// predict.
    pub fn go_on(&self, flows: u32, repeat: u32) -> Result<f64, Error> {
        self.set([12_345, SPREAD, 32, u64::from(flows.saturating_sub(1))])?;
        Ok(self.run(ACK, repeat)?.0)
    }
}

/// The addresses in the layout that the program reads.
fn table(others: &[IpAddr]) -> Vec<u8> {
    let mut bytes = vec![0; 16 * MOST_OTHERS];
    for (slot, other) in bytes.chunks_mut(16).zip(others) {
        match other {
            IpAddr::V4(it) => slot[..4].copy_from_slice(&it.octets()),
            IpAddr::V6(it) => slot.copy_from_slice(&it.octets()),
        }
    }
    bytes
}

fn transport(own: &IpAddr) -> i16 {
    if own.is_ipv4() { 34 } else { 54 }
}

fn assemble(traffic: &DriverTraffic, turns: u32) -> Result<Assembled, AsmError> {
    let family = Family::of(traffic.own);
    let mut asm = Asm::new(Target::BASE, "driver");
    let out = asm.label("short packet");
    asm.mov(Reg::R6, Reg::R1);
    asm.load_map_value(Reg::R7, STATE, 0);
    asm.load(Size::Dw, Reg::R8, Reg::R7, COUNTER);
    asm.alu(AluOp::Add, Reg::R8, 1);
    asm.store(Size::Dw, Reg::R7, COUNTER, Reg::R8);
    asm.load(Size::Dw, Reg::R1, Reg::R7, FACTOR);
    asm.alu(AluOp::Mul, Reg::R8, Reg::R1);
    asm.load(Size::Dw, Reg::R1, Reg::R7, SHIFT);
    asm.alu(AluOp::Rsh, Reg::R8, Reg::R1);
    asm.load(Size::Dw, Reg::R1, Reg::R7, MASK);
    asm.alu(AluOp::And, Reg::R8, Reg::R1);
    asm.load(Size::W, Reg::R2, Reg::R6, field::DATA);
    asm.load(Size::W, Reg::R3, Reg::R6, field::DATA_END);
    asm.mov(Reg::R4, Reg::R2);
    asm.alu(AluOp::Add, Reg::R4, i32::from(transport(&traffic.own)) + 20);
    asm.jump_if(Cond::Gt, Reg::R4, Reg::R3, out);
    asm.mov(Reg::R9, Reg::R8);
    asm.alu(AluOp::And, Reg::R9, (1 << turns) - 1);
    asm.alu(AluOp::Lsh, Reg::R9, 4);
    asm.alu(AluOp::Rsh, Reg::R8, turns as i32);
    // Packets always go from the client to the server, so the client's port is the source port: the header's first
    // field.
    asm.store(Size::H, Reg::R2, transport(&traffic.own), Reg::R8);
    asm.load_map_value(Reg::R5, ADDRESSES, 0);
    asm.alu(AluOp::Add, Reg::R5, Reg::R9);
    let (size, step, bytes, source) = match family {
        Family::V4 => (Size::W, 4, 4, 26),
        Family::V6 => (Size::Dw, 8, 16, 22),
    };
    let other = if traffic.hook == Direction::Ingress { source } else { source + bytes };
    for at in (0..bytes).step_by(step) {
        asm.load(size, Reg::R1, Reg::R5, at);
        asm.store(size, Reg::R2, other + at, Reg::R1);
    }
    asm.mov(Reg::R1, Reg::R6);
    asm.load_map(Reg::R2, NEXT);
    asm.mov(Reg::R3, 0);
    asm.call(Helper::TAIL_CALL);
    asm.bind(out);
    asm.mov(Reg::R0, 0);
    asm.exit();
    asm.assemble()
}
