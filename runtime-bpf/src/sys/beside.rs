//! Counts the kernel calls that are made beside the seam, [`crate::system::System`], where no test can make them fail.
//! Held by `seam::no_kernel_call_goes_beside_the_seam`.

use std::cell::Cell;

thread_local! {
    static OPERATIONS: Cell<u32> = const { Cell::new(0) };
    static BESIDE: Cell<u64> = const { Cell::new(0) };
}

/// While it lives, the kernel calls of this thread belong to an operation of the seam.
#[derive(Debug)]
#[must_use]
pub(crate) struct InOperation(());

impl InOperation {
    pub(crate) fn begin() -> Self {
        OPERATIONS.set(OPERATIONS.get() + 1);
        Self(())
    }
}

impl Drop for InOperation {
    fn drop(&mut self) {
        OPERATIONS.set(OPERATIONS.get() - 1);
    }
}

/// Called before each kernel call.
pub(super) fn count() {
    if OPERATIONS.get() == 0 {
        BESIDE.set(BESIDE.get() + 1);
    }
}

/// Number of kernel calls that this thread has made beside the seam.
pub fn calls() -> u64 {
    BESIDE.get()
}
