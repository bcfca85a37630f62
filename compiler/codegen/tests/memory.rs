//! The memory that the compiler allocates for hostile namespaces. The allocator counts it, so the result depends
//! neither on time nor on the machine.
//!
//! There is only one test function, so that no other test allocates at the same time.

#![expect(unsafe_code, reason = "an allocator has no safe form")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_classes::fit::fit;
use weir_classes::{Limits, Scope};
use weir_codegen::compile::{Budget, Budgets, CompileOptions, compile};
use weir_fuzz::generators::Random;
use weir_fuzz::generators::hostile::{NODE, Shape, cluster};
use weir_model::Assumptions;
use weir_model::resolve::resolve;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator, and counting does not change their results.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `dealloc`, and `at` is from `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` has allocated at any time.
fn most<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = work();
    (result, MOST.load(Ordering::Relaxed) - before)
}

/// Bytes that the compiler needs for a fitted cluster, from the objects to the bytes of the artifact.
fn bytes_under(shape: Shape, size: usize, limits: Limits) -> usize {
    let objects = cluster(shape, size, 5, &mut Random::new(1));
    let made = || {
        let (mut cluster, _) = resolve(&objects, Assumptions::default());
        let scope = Scope::node(&cluster, NODE).expect("it is there");
        fit(&mut cluster, &scope, limits, None);
        let budgets = Budgets(vec![(Budget::Memory, limits.bytes), (Budget::Steps, limits.steps)]);
        let options = CompileOptions { budgets, ..CompileOptions::default() };
        // Exceeding the budget in spite of the estimate is a valid result too.
        let compiled = compile(&cluster, &scope, &options).ok()?;
        compiled.artifact(&cluster, &options, |_| ()).ok()?.to_bytes().ok().map(|bytes| bytes.len())
    };
    most(made).1
}

/// Twice the limit, in addition to the input's own share, is enough for every shape.
const PER_LIMIT: usize = 2;
/// Bytes that an item of a policy may take as an object of the cluster, in the estimate, and as a name in the artifact.
const PER_ITEM: usize = 2_000;
const ITEMS: usize = 200;

#[test]
fn memory_is_bounded_by_the_limit_and_the_size_of_the_input() {
    let limits = Limits { bytes: 8 << 20, steps: 50_000_000 };
    let quiet = bytes_under(Shape::Scattered, 0, limits);
    for shape in Shape::ALL.into_iter().filter(|shape| *shape != Shape::Services) {
        for size in [5, 10, 20] {
            let bytes = bytes_under(shape, size, limits);
            let bound = quiet + PER_LIMIT * limits.bytes as usize + PER_ITEM * ITEMS * size;
            println!("{shape:?} {size}: {} KB of at most {} KB", bytes >> 10, bound >> 10);
            assert!(bytes < bound, "{shape:?} {size}: {bytes} bytes, the bound is {bound}");
        }
    }
    // Control: without a limit, the bound is exceeded.
    let unlimited = bytes_under(Shape::Excepts, 20, Limits::NONE);
    let bound = quiet + PER_LIMIT * limits.bytes as usize + PER_ITEM * ITEMS * 20;
    println!("Excepts 20 without limits: {} KB", unlimited >> 10);
    assert!(unlimited > bound, "{unlimited} bytes, the bound is {bound}");
}
