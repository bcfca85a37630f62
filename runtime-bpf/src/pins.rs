//! The layout of the pins under the root directory.
//!
//! ```text
//!  DIR/record             the desired state: crate::record
//!  DIR/progs/from_pod     the programs of the generation in force
//!  DIR/progs/to_pod
//!  DIR/progs/at_edge      and the one at uplinks, where there are any
//!  DIR/maps/NAME          its maps, and those that all generations share
//!  DIR/links/from_pod_N   the place of a program at interface N (TCX)
//!  DIR/links/at_edge_N    the place of the one at uplinks
//!  DIR/next/NAME          a generation in the making, unless it reuses the spare
//!  DIR/old/NAME           the one before: at first because packets can be under way that it has seen, then as the spare,
//!                         whose programs and maps the next generation may reuse, and which stay here until its switch
//!                         is over
//! ```

use std::path::{Path, PathBuf};

use weir_artifact::layout::AT_EDGE;

use crate::point::ProgramSide;

/// The directories and files under one root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pins {
    root: PathBuf,
}

/// The generation that a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Current,
    Next,
    Old,
}

impl Age {
    /// Where the pins of the generation can be. Those of the next one can still be the spare's.
    pub(crate) fn places(self) -> &'static [Self] {
        match self {
            Self::Current => &[Self::Current],
            Self::Next => &[Self::Next, Self::Old],
            Self::Old => &[Self::Old],
        }
    }
}

impl Pins {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.root.join("record")
    }

    pub(crate) fn new_record(&self) -> PathBuf {
        self.root.join("record_next")
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    pub(crate) fn link(&self, ifindex: u32, side: ProgramSide) -> PathBuf {
        self.links().join(Self::link_name(ifindex, side))
    }

    pub(crate) fn link_name(ifindex: u32, side: ProgramSide) -> String {
        format!("{}_{ifindex}", side.program())
    }

    pub(crate) fn edge_link(&self, ifindex: u32) -> PathBuf {
        self.links().join(format!("{AT_EDGE}_{ifindex}"))
    }

    /// The uplink's number in the name of a link's pin.
    pub(crate) fn uplink_of(name: &str) -> Option<u32> {
        name.strip_prefix(AT_EDGE)?.strip_prefix('_')?.parse().ok()
    }

    pub(crate) fn edge_program(&self, age: Age) -> PathBuf {
        self.programs(age).join(AT_EDGE)
    }

    /// The interface's number in the name of a link's pin.
    pub(crate) fn link_of(name: &str) -> Option<u32> {
        let number =
            ProgramSide::BOTH.into_iter().find_map(|side| name.strip_prefix(side.program())?.strip_prefix('_'));
        number?.parse().ok()
    }

    pub(crate) fn program(&self, age: Age, side: ProgramSide) -> PathBuf {
        self.programs(age).join(side.program())
    }

    pub(crate) fn map(&self, age: Age, name: &str) -> PathBuf {
        self.maps(age).join(name)
    }

    fn programs(&self, age: Age) -> PathBuf {
        self.root.join(match age {
            Age::Current => "progs",
            Age::Next => "next",
            Age::Old => "old",
        })
    }

    fn maps(&self, age: Age) -> PathBuf {
        match age {
            Age::Current => self.root.join("maps"),
            Age::Next | Age::Old => self.programs(age),
        }
    }

    /// The directory of the previous generation: retired, or the spare.
    pub(crate) fn old(&self) -> PathBuf {
        self.programs(Age::Old)
    }

    /// The directory of a generation in the making.
    pub(crate) fn next(&self) -> PathBuf {
        self.programs(Age::Next)
    }

    /// The place of a pin while two others are exchanged. No object has this name.
    pub(crate) fn between(&self) -> PathBuf {
        self.next().join("between")
    }

    /// Every directory under the root.
    pub(crate) fn directories(&self) -> [PathBuf; 5] {
        ["progs", "maps", "links", "next", "old"].map(|name| self.root.join(name))
    }
}
