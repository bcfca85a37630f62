//! Changes that arrive while a generation is compiled, in its tables.

use std::net::IpAddr;

use weir_artifact::layout::{MapName, address_bytes};
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::PeerId;
use weir_classes::index::Index;
use weir_codegen::compile::{self, Compiled, compile_classes};
use weir_model::Assumptions;
use weir_testing::yaml::objects;

use crate::objects::fixed;

/// The value of an address in the exact table.
fn written(compiled: &Compiled, address: IpAddr) -> Option<Vec<u8>> {
    let map = compiled.maps.iter().find(|map| map.name == MapName::Exact4).expect("there are pods");
    let key = address_bytes(address);
    assert!(map.entries.iter().is_sorted(), "whoever reads them relies on it");
    map.entries.get(&key).map(<[u8]>::to_vec)
}

#[test]
fn late_changes_are_written_into_compiled_tables_while_there_is_room() {
    let near = "
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}},
  spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}},
  spec: {nodeName: far}, status: {phase: Running, podIP: 10.0.0.2}}
";
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().chain(objects(near)).for_each(|object| _ = index.apply(object));
    let generation = index.compile().expect("classes");
    let options =
        compile::CompileOptions { forced: vec![(LookupSet::Exact4, Structure::Layered)], ..Default::default() };
    let compiled = compile_classes(&generation.cluster, &generation.scope, generation.classes.clone(), &options);
    let mut compiled = compiled.expect("it compiles");
    let at = |host: u32| -> IpAddr { std::net::Ipv4Addr::from_bits(0x0a01_0000 + host).into() };
    let db: IpAddr = "10.0.0.2".parse().expect("an address");
    let class = |number: u32| Some(number.to_le_bytes().to_vec());
    assert_ne!(written(&compiled, db), class(7));
    assert!(compiled.write_addresses(&[(db, Some(PeerId(7))), (at(1), Some(PeerId(8))), (at(2), None)].into()));
    assert_eq!([db, at(1), at(2)].map(|it| written(&compiled, it)), [class(7), class(8), None]);
    assert!(compiled.write_addresses(&[(db, None)].into()));
    assert_eq!(written(&compiled, db), None);
    // No endpoint has an address of that family, so there is no table for it.
    let maps = compiled.maps.clone();
    assert!(compiled.write_addresses(&[("2001:db8::1".parse().expect("an address"), Some(PeerId(1)))].into()));
    assert_eq!(compiled.maps, maps);
    // If there are more entries than room, the call says so, and writes as many as fit.
    let room = maps.iter().find(|map| map.name == MapName::Exact4).expect("it is there").spec.max_entries;
    assert!(!compiled.write_addresses(&(0..=room).map(|host| (at(host), Some(PeerId(9)))).collect()));
    assert_eq!([at(0), at(1)].map(|it| written(&compiled, it)), [class(9), class(9)]);
    assert_eq!(written(&compiled, at(room)), None);
}
