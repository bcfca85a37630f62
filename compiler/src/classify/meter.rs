//! Limits on what classification may cost, checked inside its loops.
//!
//! Problem: classes are sets of predicates, so their total size is the product of what two tenants write, and no bound
//! on the input bounds it well enough. Strategy: every loop that multiplies says what it takes before it takes it.
//! Counts and not the process's memory: the same input is refused on every machine.
//! Invariant: once a limit is exceeded, [`Meter::take`] answers `false` for good, so a stage that gave up early cannot
//! return its incomplete result: its caller asks [`Meter::check`] first.

use std::cell::Cell;

/// Bytes that a predicate of a peer class costs: in the class, in the provenance of the artifact, and in its text.
pub(crate) const PAIR_BYTES: u64 = 20;
/// Bytes that a class costs by itself: in the lists and maps of classes.
pub(crate) const CLASS_BYTES: u64 = 400;
/// Bytes that an entry of a row costs: rows, tables and maps each have it.
pub(crate) const ENTRY_BYTES: u64 = 48;
/// How many copies of a set of atoms there are: in classes, tables and maps.
pub(crate) const SET_COPIES: u64 = 6;

/// What classification may take at most for policies, and again for Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, as counted by [`Meter`]: the artifact's share is included.
    pub bytes: u64,
    /// Elementary steps, of some nanoseconds each.
    pub steps: u64,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self { bytes: u64::MAX, steps: u64::MAX };
}

/// What classification took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Bytes, as [`Limits::bytes`] counts them, when there were most.
    pub bytes: u64,
    /// Steps, as [`Limits::steps`] counts them.
    pub steps: u64,
}

/// A limit is exceeded, and there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// Of memory, by policies.
    #[error("budget memory is exceeded: the classes need more than {0} bytes")]
    Bytes(u64),
    /// Of work, by policies.
    #[error("budget steps is exceeded: the classes take more than {0} steps")]
    Steps(u64),
    /// Of either, by Services. Policies with fewer rules would not help.
    #[error("budgets memory and steps: Services need more than {} bytes or {} steps", .0.bytes, .0.steps)]
    Services(Limits),
}

/// Counts what is taken, for policies and for Services apart: a tenant's Services must not cost another tenant its
/// policies.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    policies: Account,
    services: Account,
    exceeded: Cell<Option<Exceeded>>,
}

#[derive(Debug, Default)]
struct Account {
    bytes: Cell<u64>,
    most_bytes: Cell<u64>,
    steps: Cell<u64>,
}

impl Account {
    fn add(&self, bytes: u64, steps: u64) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        self.most_bytes.set(self.most_bytes.get().max(self.bytes.get()));
        self.steps.set(self.steps.get().saturating_add(steps));
    }
}

impl Meter {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, policies: Account::default(), services: Account::default(), exceeded: Cell::new(None) }
    }

    /// Takes so much; `false` if there is not so much left. The caller's loop has to end then.
    #[must_use]
    pub(crate) fn take(&self, bytes: u64, steps: u64) -> bool {
        self.policies.add(bytes, steps);
        if self.policies.bytes.get() > self.limits.bytes {
            self.exceed(Exceeded::Bytes(self.limits.bytes));
        }
        if self.policies.steps.get() > self.limits.steps {
            self.exceed(Exceeded::Steps(self.limits.steps));
        }
        self.exceeded.get().is_none()
    }

    /// The same for what Services make necessary. They may take as much again.
    #[must_use]
    pub(crate) fn take_for_services(&self, bytes: u64, steps: u64) -> bool {
        self.services.add(bytes, steps);
        if self.services.bytes.get() > self.limits.bytes || self.services.steps.get() > self.limits.steps {
            self.exceed(Exceeded::Services(self.limits));
        }
        self.exceeded.get().is_none()
    }

    /// The first reason stays.
    fn exceed(&self, why: Exceeded) {
        self.exceeded.set(self.exceeded.get().or(Some(why)));
    }

    /// Memory that was taken for policies has been freed.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.policies.bytes.set(self.policies.bytes.get().saturating_sub(bytes));
    }

    /// Refuses what was made if a limit was exceeded in the making.
    pub(crate) fn check(&self) -> Result<(), Exceeded> {
        self.exceeded.get().map_or(Ok(()), Err)
    }

    /// What policies took.
    pub(crate) fn spent(&self) -> Spent {
        Spent { bytes: self.policies.most_bytes.get(), steps: self.policies.steps.get() }
    }
}
