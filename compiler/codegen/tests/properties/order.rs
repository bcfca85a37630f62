//! The order of the objects does not change the output.

use weir_classes::Scope;
use weir_fuzz::generators::cluster::number;
use weir_fuzz::oracles::engines::Compiled;
use weir_model::Assumptions;
use weir_objects::k8s::Object;

use crate::{for_each_cluster, resolved};

/// All bytes that are loaded: maps, endpoints, both programs.
fn bytes(objects: &[Object], assume: Assumptions) -> String {
    let cluster = resolved(objects, assume);
    let compiled = Compiled::new(&cluster, Scope::everything(&cluster)).unwrap();
    let endpoints = weir_codegen::map_images::endpoints(&cluster, &compiled.classes, &compiled.tables);
    let programs = compiled.programs().unwrap().map(|it| it.link(|map| map.0 as i32));
    format!("{:?}\n{endpoints:?}\n{programs:?}", compiled.maps())
}

#[test]
fn the_order_of_objects_changes_no_byte() {
    for_each_cluster(60, |mut objects, assume, mut random| {
        let expected = bytes(&objects, assume);
        for _ in 0..2 {
            random.shuffle(&mut objects);
            number(&mut objects);
            assert!(bytes(&objects, assume) == expected, "another order gives other bytes");
        }
    });
}
