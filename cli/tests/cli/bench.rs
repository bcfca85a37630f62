//! `weir bench`: measures packets on this machine. The figures are not asserted, because a machine may be busy.

use std::process::Command;

use serde_json::{Value, json};
use weir_runtime::skip;
use weir_runtime::sys::BpfKernel;

use crate::support::{Place, Ran};
use weir_testing::schema::check_schema;

/// Both programs, with figures that are numbers.
#[track_caller]
fn is_measured(ran: &Ran, programs: usize) -> Value {
    let document = ran.json();
    check_schema("bench", &document);
    let all = document["programs"].as_array().expect("programs");
    assert_eq!(all.len(), programs, "{document}");
    document
}

#[test]
fn the_programs_of_an_artifact_are_measured() {
    if let Err(error) = BpfKernel::open() {
        skip!("no bpf system call: {error}");
    }
    let place = Place::shop();
    place.run("-q compile shop.yaml -o shop.o").exits(0);
    let document = is_measured(&place.run("bench shop.o -o json").exits(0), 2);
    for program in document["programs"].as_array().expect("programs") {
        assert_eq!(program["family"], 4);
        let of_db = program["program"] == "to_pod";
        // Only `shop/db` is isolated, and only for ingress.
        assert_eq!(program["ns"]["denied"].is_number(), of_db, "{program}");
        for figure in ["established", "established_1024", "new"] {
            assert!(program["ns"][figure].is_number(), "{figure}: {program}");
        }
        if of_db {
            assert_eq!(program["pod"], "shop/db");
            assert_eq!(program["allowed"], json!({"remote": "10.0.0.1", "port": 5432}));
        }
    }
    place.run("bench shop.o").exits(0).says("to_pod").says("shop/db");
}

#[test]
fn policies_are_generated_without_an_artifact() {
    if let Err(error) = BpfKernel::open() {
        skip!("no bpf system call: {error}");
    }
    let document = is_measured(&Place::new().run("bench --policies 20 -o json").exits(0), 4);
    assert_eq!(document["policies"], 20);
    for program in document["programs"].as_array().expect("programs") {
        assert!(program["ns"].as_object().expect("figures").values().all(Value::is_number), "{program}");
    }
}

#[test]
fn an_artifact_that_cannot_be_measured_exits_with_2() {
    if let Err(error) = BpfKernel::open() {
        skip!("no bpf system call: {error}");
    }
    let place = Place::new().file("none.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: a}}");
    place.run("bench none.o").exits(2).complains("cannot read none.o");
    place.run("-q compile none.yaml -o none.o").exits(0);
    place.run("bench none.o").exits(2).complains("there is nothing to measure: no pod").complains("hint: ");
    place.run("bench none.o --policies 3").exits(2).complains("cannot be used with");
    place.run("bench --policies 0").exits(2).complains("0 is not in 1..=100000");
}

#[test]
fn missing_capabilities_are_named() {
    let place = Place::new();
    let ran = match BpfKernel::open() {
        // Root without any capability.
        Ok(_) => {
            let weir = place.command("bench");
            let mut command = Command::new("setpriv");
            command.arg("--bounding-set=-all").arg(weir.get_program()).args(weir.get_args()).current_dir(place.path());
            Ran::from(command.output().expect("setpriv runs"))
        }
        Err(_) => place.run("bench"),
    };
    ran.exits(2).complains("error: ").complains("hint: it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN");
}
