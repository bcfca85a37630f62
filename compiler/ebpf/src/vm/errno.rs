//! The kernel's error numbers that maps and helpers return.

use std::fmt;

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum Errno {
    /// EPERM
    Perm = 1,
    /// ENOENT
    NoEnt = 2,
    /// E2BIG
    TooBig = 7,
    /// EAGAIN
    Again = 11,
    /// ENOMEM
    NoMem = 12,
    /// EFAULT
    Fault = 14,
    /// EEXIST
    Exist = 17,
    /// EINVAL
    Inval = 22,
    /// ENOSPC
    NoSpc = 28,
    /// ENOTSUPP, which exists only within the kernel.
    NotSupp = 524,
}

impl Errno {
    /// The number as a helper returns it.
    pub const fn negative(self) -> u64 {
        // Sign-extended to the whole register: helpers return `long`, and programs compare 64 bits with zero.
        -(self as i64) as u64
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Perm => "EPERM",
            Self::NoEnt => "ENOENT",
            Self::TooBig => "E2BIG",
            Self::Again => "EAGAIN",
            Self::NoMem => "ENOMEM",
            Self::Fault => "EFAULT",
            Self::Exist => "EEXIST",
            Self::Inval => "EINVAL",
            Self::NoSpc => "ENOSPC",
            Self::NotSupp => "ENOTSUPP",
        })
    }
}

impl std::error::Error for Errno {}

/// The return value of a helper: 0 or the negative error number.
pub(super) fn to_r0(result: Result<(), Errno>) -> u64 {
    // Not every helper answers in this form. Look-ups return NULL, and reservations too.
    result.map_or_else(Errno::negative, |()| 0)
}
