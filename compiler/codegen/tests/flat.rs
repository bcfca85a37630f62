//! The size of programs does not depend on the number of policies.

use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, Compiled, compile};
use weir_codegen::structures::StructureOptions as Structures;
use weir_testing::shape;

fn compiled(policies: usize, forced: &[(LookupSet, Structure)]) -> Compiled {
    let cluster = shape::cluster(policies);
    let options = CompileOptions { forced: forced.to_vec(), ..CompileOptions::default() };
    compile(&cluster, &Scope::everything(&cluster), &options).expect("it compiles")
}

#[track_caller]
fn check_flat(forced: &[(LookupSet, Structure)]) {
    let measures = |policies| {
        let compiled = compiled(policies, forced);
        let of = |report: &weir_ebpf::limits::LimitsReport| [report.slots, report.longest_path.expect("it ends")];
        compiled.reports.each_ref().map(of)
    };
    let few = measures(10);
    for policies in [100, 1_000, 10_000] {
        let many = measures(policies);
        for (few, many) in few.iter().flatten().zip(many.iter().flatten()) {
            assert!(few.abs_diff(*many) * 10 <= *few, "10 policies: {few}, {policies}: {many}, {forced:?}");
        }
    }
}

#[test]
fn a_thousand_times_the_policies_are_as_many_instructions() {
    check_flat(&[]);
}

#[test]
fn the_same_holds_with_everything_in_kernel_maps() {
    check_flat(&Structures::kernel_maps().forced);
}

/// If only ranges of ports are added, the tree of compares grows, and the table search does not.
#[test]
fn only_compares_grow_with_the_ranges_of_ports() {
    let slots = |policies, ports| compiled(policies, &[(LookupSet::Ports, ports)]).reports[0].slots;
    assert!(slots(100, Structure::Compares) > slots(10, Structure::Compares) + 100);
    assert!(slots(100, Structure::Search) < slots(10, Structure::Search) + 100);
}
