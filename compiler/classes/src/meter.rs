//! Limits on what classification may cost, checked inside its loops.
//!
//! Problem: classes are sets of predicates, so their total size is the product of the lists that two tenants write. No
//! limit on the input bounds it well enough.
//! Strategy: every loop whose cost is such a product reports the cost to the meter before the cost arises. The meter
//! counts and does not measure the process's memory, so the same input is refused on every machine.
//! Invariant: once a limit is exceeded, [`Meter::take`] always returns `false`. A stage that stopped early cannot
//! return its incomplete result, because its caller calls [`Meter::check`] first.

use std::cell::Cell;

/// Bytes that a predicate of a peer class costs: in the class, in the provenance of the artifact, and in its text.
pub(crate) const PAIR_BYTES: u64 = 20;
/// Bytes that a class costs by itself: in the lists and maps of classes.
pub(crate) const CLASS_BYTES: u64 = 400;
/// Bytes that an entry of a row costs: rows, tables and maps each contain it.
pub(crate) const ENTRY_BYTES: u64 = 48;
/// The number of copies of a set of atoms: in classes, tables and maps.
pub(crate) const SET_COPIES: u64 = 6;

/// The most that classification may cost for policies. The same limits apply to Services separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, as counted by [`Meter`], including the artifact's share.
    pub bytes: u64,
    /// Elementary steps, of some nanoseconds each.
    pub steps: u64,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self { bytes: u64::MAX, steps: u64::MAX };
}

/// The cost of classification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// The highest number of bytes at any time, as [`Limits::bytes`] counts them.
    pub bytes: u64,
    /// Steps, as [`Limits::steps`] counts them.
    pub steps: u64,
}

impl Spent {
    /// The sum of two costs.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), steps: self.steps.saturating_add(other.steps) }
    }
}

/// A limit is exceeded, and there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// Policies exceed the limit on memory.
    #[error("budget memory is exceeded: the classes need more than {0} bytes")]
    Bytes(u64),
    /// Policies exceed the limit on steps.
    #[error("budget steps is exceeded: the classes take more than {0} steps")]
    Steps(u64),
    /// Services exceed one of the limits. Removing rules of policies would not help.
    #[error("budgets memory and steps: Services need more than {} bytes or {} steps", .0.bytes, .0.steps)]
    Services(Limits),
}

/// Counts the cost of policies and of Services separately: a tenant's Services must not cost another tenant its
/// policies.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    policies: MeterState,
    services: MeterState,
    exceeded: Cell<Option<Exceeded>>,
}

#[derive(Debug, Default)]
struct MeterState {
    bytes: Cell<u64>,
    most_bytes: Cell<u64>,
    steps: Cell<u64>,
}

impl MeterState {
    fn add(&self, bytes: u64, steps: u64) {
        // Cells, because nested loops that share the meter charge it at the same time. Saturating, because a product of
        // two tenants' lists can exceed 64 bits, and an overflow would look cheap.
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        self.most_bytes.set(self.most_bytes.get().max(self.bytes.get()));
        self.steps.set(self.steps.get().saturating_add(steps));
    }

    fn spent(&self) -> Spent {
        Spent { bytes: self.most_bytes.get(), steps: self.steps.get() }
    }
}

impl Meter {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, policies: MeterState::default(), services: MeterState::default(), exceeded: Cell::new(None) }
    }

    /// Adds a cost of policies. Returns `false` if a limit is exceeded: the caller's loop must end then.
    #[must_use]
    pub(crate) fn take(&self, bytes: u64, steps: u64) -> bool {
        self.policies.add(bytes, steps);
        if self.policies.bytes.get() > self.limits.bytes {
            self.exceed(Exceeded::Bytes(self.limits.bytes));
        }
        if self.policies.steps.get() > self.limits.steps {
            self.exceed(Exceeded::Steps(self.limits.steps));
        }
        // Not only this call's limits: after any excess every call fails, so outer loops end without tests of their
        // own.
        self.exceeded.get().is_none()
    }

    /// Adds a cost of Services, which have limits of the same size.
    #[must_use]
    pub(crate) fn take_for_services(&self, bytes: u64, steps: u64) -> bool {
        self.services.add(bytes, steps);
        if self.services.bytes.get() > self.limits.bytes || self.services.steps.get() > self.limits.steps {
            self.exceed(Exceeded::Services(self.limits));
        }
        self.exceeded.get().is_none()
    }

    /// Records the reason, unless there is an earlier one.
    fn exceed(&self, why: Exceeded) {
        // The first reason is the true one. Stages that end early charge the costs of incomplete data.
        self.exceeded.set(self.exceeded.get().or(Some(why)));
    }

    /// Subtracts memory of policies that has been freed.
    pub(crate) fn give_back(&self, bytes: u64) {
        // Only the present value sinks. `most_bytes` is the peak, and the limit applies to the peak. Steps are never
        // given back.
        self.policies.bytes.set(self.policies.bytes.get().saturating_sub(bytes));
    }

    /// Returns an error if a limit was exceeded.
    pub(crate) fn check(&self) -> Result<(), Exceeded> {
        self.exceeded.get().map_or(Ok(()), Err)
    }

    /// The cost of policies.
    pub(crate) fn spent(&self) -> Spent {
        self.policies.spent()
    }

    /// The cost of Services.
    pub(crate) fn spent_for_services(&self) -> Spent {
        self.services.spent()
    }
}
