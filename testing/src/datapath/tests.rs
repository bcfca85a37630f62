//! Macros that turn facts into tests of another crate.
//!
//! `facts!` and `tests!` know the facts' names, and each exports a macro that defines the `#[test]` functions. So no
//! second list of names exists that could lack one.

/// Defines facts: functions of a rig and a family. The exported macro makes two tests of each, `v4` and `v6`.
macro_rules! facts {
    (
        $file:ident => $tests:ident;
        $($(#[$doc:meta])* $name:ident($rig:ident, $family:ident) $body:block)*
    ) => {
        $($(#[$doc])* pub fn $name($rig: &mut $crate::datapath::rig::Rig, $family: weir_objects::address::Family) $body)*

        #[doc(hidden)]
        #[macro_export]
        macro_rules! $tests {
            () => {
                $(mod $name {
                    use $crate::datapath::{Machines as _, $file::$name as fact, rig::FAMILIES};
                    #[test]
                    fn v4() {
                        crate::MACHINES.on_machine(&mut |rig| fact(rig, FAMILIES[0]));
                    }
                    #[test]
                    fn v6() {
                        crate::MACHINES.on_machine(&mut |rig| fact(rig, FAMILIES[1]));
                    }
                })*
            };
        }
    };
}

/// Lists the module's private functions of [`Machines`](super::Machines) that are whole tests. The exported macro makes
/// one test of each. A function that is missing in the list is dead code, which the compiler reports.
macro_rules! tests {
    ($($file:ident)::+ => $tests:ident; $($name:ident,)*) => {
        /// The tests of this module, for other crates.
        pub mod whole {
            use $crate::datapath::Machines;
            $(
                #[doc = concat!("The test `", stringify!($name), "`.")]
                pub fn $name(machines: &dyn Machines) {
                    super::$name(machines);
                }
            )*
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! $tests {
            () => {
                use $crate::datapath::$($file::)+whole;
                $(
                    #[test]
                    fn $name() {
                        whole::$name(&crate::MACHINES);
                    }
                )*
            };
        }
    };
}

/// Defines a test for every fact.
#[macro_export]
macro_rules! datapath_tests {
    () => {
        mod flows {
            $crate::flows_facts!();
        }
        mod fragments {
            $crate::fragments_facts!();
            $crate::fragments_tests!();
        }
        mod icmp {
            $crate::icmp_facts!();
            $crate::icmp_tests!();
            mod v4_only {
                $crate::icmp_v4_tests!();
            }
        }
        mod mutations {
            $crate::mutations_tests!();
        }
        mod neighbours {
            $crate::neighbours_tests!();
        }
        mod node {
            $crate::node_facts!();
        }
        mod parse {
            $crate::parse_facts!();
            mod v4_only {
                $crate::parse_v4_tests!();
            }
            mod v6_only {
                $crate::parse_v6_tests!();
            }
        }
        mod room {
            $crate::room_tests!();
        }
        mod source {
            $crate::source_facts!();
            $crate::source_tests!();
        }
        mod audit {
            $crate::audit_tests!();
        }
    };
}
