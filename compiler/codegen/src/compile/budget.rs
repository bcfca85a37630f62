//! Budgets: the maximum costs of a compile, set by the caller.

use std::fmt;

use super::Compiled;
use weir_artifact::memory;
use weir_classes::Limits;

weir_ebpf::named_enum! {
    /// A cost that can be limited.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Budget {
        /// Instructions of all programs together.
        Instructions = "instructions",
        /// Bytes of all maps together, in the kernel, without the memory that is allocated once for every CPU.
        MapBytes = "map-bytes",
        /// Entries of all maps together.
        Entries = "entries",
        /// Subject and peer classes together.
        Classes = "classes",
        /// Bytes of memory for classes and tables, without the memory that does not depend on policies.
        Memory = "memory",
        /// Elementary steps of classification.
        Steps = "steps",
    }
}

impl Budget {
    /// The amount that a compile result has used.
    pub fn spent(self, compiled: &Compiled) -> u64 {
        match self {
            Self::Instructions => {
                let edge = compiled.edge.iter().map(|(_, report)| report);
                compiled.reports.iter().chain(edge).map(|report| report.slots).sum()
            }
            Self::MapBytes => compiled.maps.iter().map(|map| memory::full(map).fixed).sum(),
            Self::Entries => compiled.maps.iter().map(|map| map.entries.len() as u64).sum(),
            Self::Memory => compiled.classes.spent.bytes,
            Self::Steps => compiled.classes.spent.steps,
            Self::Classes => (compiled.classes.subjects.len() + compiled.classes.peers.len()) as u64,
        }
    }
}

/// Limits, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets(pub Vec<(Budget, u64)>);

/// Budgets that are exceeded, all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetError {
    /// The exceeded budget, the amount used and the limit.
    pub exceeded: Vec<(Budget, u64, u64)>,
}

impl std::error::Error for BudgetError {}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (budget, spent, limit)) in self.exceeded.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            let (key, by) = (budget.name(), spent - limit);
            write!(f, "{separator}budget {key} is exceeded by {by}: {spent}, at most {limit}")?;
        }
        Ok(())
    }
}

impl Budgets {
    /// The limits that classification checks while it runs. The other budgets are checked on finished tables.
    pub fn limits(&self) -> Limits {
        let least = |budget| self.0.iter().filter(|(it, _)| *it == budget).map(|(_, limit)| *limit).min();
        let of = |budget| least(budget).unwrap_or(u64::MAX);
        Limits { bytes: of(Budget::Memory), steps: of(Budget::Steps) }
    }

    /// Checks all budgets.
    pub fn check(&self, compiled: &Compiled) -> Result<(), BudgetError> {
        let spent = self.0.iter().map(|(budget, limit)| (*budget, budget.spent(compiled), *limit));
        let exceeded: Vec<_> = spent.filter(|(_, spent, limit)| spent > limit).collect();
        if exceeded.is_empty() { Ok(()) } else { Err(BudgetError { exceeded }) }
    }
}
