//! Compares our estimate of the memory of maps with the kernel's figures.

use weir_artifact::map_image::MapImage;
use weir_artifact::memory;
use weir_runtime::skip;
use weir_runtime::sys::{BpfKernel, KernelMap};

use crate::cluster;

fn create(kernel: &BpfKernel, image: &MapImage) -> KernelMap {
    let map = kernel.create_map(&(&image.spec).into(), None).unwrap();
    image.entries.iter().for_each(|(key, value)| map.update(key, value, 0).unwrap());
    map
}

/// `memlock` of the map's descriptor.
fn charged(map: &KernelMap) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.descriptor())).unwrap();
    let value = info.lines().find_map(|line| line.strip_prefix("memlock:"));
    value.unwrap().trim().parse().unwrap()
}

/// Kernels before 6.4 guess: key and value of every entry that there may be, in whole pages.
fn guesses() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) < (Some(6), Some(4))
}

/// Within 5 %, or the size of the structures that depend on how a kernel was built.
fn close(predicted: u64, actual: u64) -> bool {
    const STRUCTURES: u64 = 256;
    predicted.abs_diff(actual) <= (actual / 20).max(STRUCTURES)
}

#[test]
fn the_kernel_charges_the_predicted_bytes() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    if guesses() {
        skip!("before 6.4 the kernel does not know what a map costs");
    }
    let cpus = kernel.possible_cpus() as u64;
    for listed in [0, 3_000] {
        let images = cluster::TARGETS.into_iter().flat_map(|target| cluster::artifact(target, listed).maps);
        for image in images {
            let image = &image;
            let (predicted, actual) = (memory::charged(image).on(cpus), charged(&create(&kernel, image)));
            let name = image.name.name();
            assert!(close(predicted, actual), "{name} with {listed}: predicted {predicted}, charged {actual}");
        }
    }
}
