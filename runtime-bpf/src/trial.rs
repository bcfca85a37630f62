//! Runs compiled programs in the kernel on packets that we make, without attaching them to hooks.
//!
//! Nothing is attached or pinned: everything is freed when the value is dropped. A test run needs an existing
//! interface, so packets run as if on interface 1 (`lo`, which every network namespace has). It represents one endpoint
//! at a time. [`driver`] sends packets of many flows in one run.

pub mod driver;

use weir_artifact::layout::{MapName, direction_number};
use weir_artifact::map_image::{MapImage, bucket_family, with_few_flows};
use weir_ebpf::asm::{Asm, Assembled};
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::context as field;
use weir_ebpf::insn::Reg;
use weir_ebpf::target::Target;
use weir_objects::address::Family;
use weir_objects::k8s::Direction;

use crate::error::{Doing as _, Error};
use crate::generation::is_frozen;
use crate::point::ProgramSide;
use crate::sys::{BpfKernel, KernelMap, KernelProgram};

/// `lo`
pub const INTERFACE: u32 = 1;
/// An interface that is not an endpoint; it need not exist.
pub const ELSEWHERE: u32 = 2;
/// Bytes of `struct __sk_buff`.
pub const CONTEXT_BYTES: usize = 192;

/// Programs with their maps.
#[derive(Debug)]
pub struct Trial {
    maps: Vec<(MapName, KernelMap)>,
    /// `to_pod`, `from_pod`.
    programs: [KernelProgram; 2],
}

impl Trial {
    /// Makes and fills the maps, with room for `flows` flows in the flow tables, and loads `to_pod` and `from_pod`.
    pub fn load(kernel: &BpfKernel, maps: &[MapImage], programs: [&Assembled; 2], flows: u32) -> Result<Self, Error> {
        let fill = |image: &MapImage| Ok((image.name, fill(kernel, &with_few_flows(image, flows))?));
        let maps = maps.iter().map(fill).collect::<Result<Vec<_>, Error>>()?;
        let descriptor = |name: u32| {
            let found = maps.iter().find(|(known, _)| *known as u32 == name);
            found.map_or(-1, |(_, map)| map.descriptor())
        };
        let load = |program: &Assembled, side: ProgramSide| {
            let code = encode(program.link(|map| descriptor(map.0)), ByteOrder::Little);
            kernel.load(&code).map_err(|error| Error::Refused { program: side.program(), error })
        };
        let [to_pod, from_pod] = programs;
        let programs = [load(to_pod, ProgramSide::ToPod)?, load(from_pod, ProgramSide::FromPod)?];
        Ok(Self { maps, programs })
    }

    /// One of its maps.
    pub fn map(&self, name: MapName) -> Option<&KernelMap> {
        self.maps.iter().find(|(known, _)| *known == name).map(|(_, map)| map)
    }

    /// The program of a direction.
    pub fn program(&self, hook: Direction) -> &KernelProgram {
        let [to_pod, from_pod] = &self.programs;
        if direction_number(hook) == 0 { to_pod } else { from_pod }
    }

    /// Makes [`INTERFACE`] the interface of an endpoint, with this value in `endpoints`.
    pub fn stand_at(&self, endpoint: &[u8]) -> Result<(), Error> {
        let map = self.map(MapName::Endpoints);
        map.map_or(Ok(()), |map| map.update(&INTERFACE.to_le_bytes(), endpoint, 0)).doing("write to the map endpoints")
    }

    /// Removes the flows that allowed packets of a family have created.
    pub fn forget_flows(&self, family: Family) -> Result<(), Error> {
        let doing = "forget flows";
        for (name, map) in &self.maps {
            if bucket_family(*name).is_some_and(|(of, _)| of == family) {
                map.flow_table(family).doing(doing)?.remove(|_| true);
            }
        }
        Ok(())
    }
}

/// A program that passes every packet and does nothing else: the fixed cost of any program.
pub fn empty(kernel: &BpfKernel) -> Result<KernelProgram, Error> {
    let mut asm = Asm::new(Target::BASE, "empty");
    asm.mov(Reg::R0, -1);
    asm.exit();
    let insns = asm.assemble().map_err(std::io::Error::other).doing("make an empty program")?.insns;
    kernel.load(&encode(&insns, ByteOrder::Little)).map_err(|error| Error::Refused { program: "empty", error })
}

/// The context of a packet at [`INTERFACE`] that came in there or elsewhere; 0 is this host itself.
pub fn context(came_in: u32) -> [u8; CONTEXT_BYTES] {
    let mut context = [0; CONTEXT_BYTES];
    for (at, interface) in [(field::IFINDEX, INTERFACE), (field::INGRESS_IFINDEX, came_in)] {
        context.iter_mut().skip(at as usize).zip(interface.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
    context
}

fn fill(kernel: &BpfKernel, image: &MapImage) -> Result<KernelMap, Error> {
    let name = image.name.name();
    let map = kernel.create_map(&(&image.spec).into(), None).doing(format_args!("make the map {name}"))?;
    for (key, value) in image.entries.iter() {
        map.update(key, value, 0).doing(format_args!("write to the map {name}"))?;
    }
    if is_frozen(image.name) {
        map.freeze().doing(format_args!("freeze the map {name}"))?;
    }
    Ok(map)
}
