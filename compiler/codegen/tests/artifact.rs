//! The artifact: the same parts give the same bytes, a file reads back as it was written, and damage is found.

use proptest::prelude::*;
use weir_artifact::layout::MapName;
use weir_artifact::*;
use weir_classes::{Scope, classify};
use weir_codegen::describe::lines::{line_of_object, line_table};
use weir_codegen::describe::provenance::Positions;
use weir_codegen::describe::{describe, named_endpoint};
use weir_codegen::emit::shapes::TableShapes;
use weir_codegen::emit::{self, Plan};
use weir_codegen::{lower, map_images, passes};
use weir_ebpf::asm::{MapRef, Tag};
use weir_ebpf::insn::{Imm64, Insn, Reg};
use weir_ebpf::limits;
use weir_ebpf::target::Target;
use weir_model::Direction;
use weir_objects::address::Family;
use weir_testing::yaml::{self, SHOP};

fn parts() -> ArtifactParts {
    let cluster = yaml::cluster(SHOP);
    let scope = Scope::everything(&cluster);
    let classes = classify(&cluster, &scope).unwrap();
    // Kernel maps, because this test looks at their entries and names.
    let tables = lower::tables_with(&classes, &weir_codegen::structures::StructureOptions::kernel_maps());
    let decisions = Direction::ALL.map(|direction| {
        let mut decision = lower::lower(direction, &tables);
        passes::optimize(&mut decision, &tables).unwrap();
        decision
    });
    let plan = Plan {
        target: Target::BASE,
        decisions: [&decisions[0], &decisions[1]],
        shapes: TableShapes::of(&tables),
        families: vec![Family::V4, Family::V6],
    };
    let mut programs = Direction::ALL.map(|hook| emit::emit(&plan, hook).unwrap());
    let lines = line_table(&mut programs, &tables.sources, &mut |origin| line_of_object(&cluster, origin));
    let mut place = |origin: &weir_objects::origin::FieldOrigin| Some(format!("shop.yaml:{}", origin.path));
    let mut description = describe(&cluster, &classes, Target::BASE, &mut Positions::Of(&mut place));
    description.inputs.push(InputFile { name: "shop.yaml".to_owned(), digest: Digest::of(SHOP.as_bytes()) });
    let endpoints = map_images::endpoints(&cluster, &classes, &tables);
    let reports = programs.iter().map(|program| limits::check(&program.insns)).collect();
    ArtifactParts {
        programs,
        edge: None,
        reports,
        lines,
        maps: map_images::maps(
            &cluster,
            &scope,
            &tables,
            map_images::Sizes::default(),
            weir_ebpf::target::Target::BASE,
        ),
        endpoints: endpoints.iter().map(|entry| named_endpoint(&cluster, entry)).collect(),
        description,
        memory: "replaced".to_owned(),
    }
}

/// The parts, with instructions of a policy line.
fn marked() -> ArtifactParts {
    let mut parts = parts();
    let tag = parts.lines.tag(SourceLine::new("shop.yaml", "  - from: [{podSelector: …", 22));
    parts.programs[0].tags[10..15].fill(tag);
    parts
}

fn file() -> Vec<u8> {
    Artifact::link(marked()).unwrap().to_bytes().unwrap()
}

#[test]
fn written_artifact_is_read_back() {
    let artifact = Artifact::link(marked()).unwrap();
    assert_eq!(Artifact::read(&artifact.to_bytes().unwrap()), Ok(artifact));
}

#[test]
fn the_same_parts_give_the_same_bytes() {
    assert!(file() == file());
}

#[test]
fn the_order_of_maps_does_not_show() {
    let mut parts = marked();
    parts.maps.reverse();
    assert!(Artifact::link(parts).unwrap().to_bytes().unwrap() == file());
}

#[test]
fn the_generation_is_what_is_enforced_and_nothing_else() {
    let generation = |parts| Artifact::link(parts).unwrap().generation().unwrap();
    let mut other_input = parts();
    other_input.description.inputs.clear();
    assert_eq!(generation(marked()), generation(other_input), "lines and inputs do not count");
    let mut other_map = parts();
    other_map.maps.iter_mut().for_each(|map| map.entries.edit_values(|_, value| value[0] ^= 1));
    assert_ne!(generation(parts()), generation(other_map));
    let mut other_endpoint = parts();
    other_endpoint.endpoints[0].value[0] ^= 1;
    assert_ne!(generation(parts()), generation(other_endpoint));
}

/// The code without its maps is the same in all of these.
#[test]
fn the_code_digest_covers_instructions_uses_of_maps_and_lines() {
    let digest = |change: &dyn Fn(&mut Artifact)| {
        let mut artifact = Artifact::link(parts()).unwrap();
        change(&mut artifact);
        artifact.code_digest()
    };
    let same = digest(&|_| ());
    assert_eq!(same, digest(&|artifact| artifact.endpoints.clear()), "endpoints are no code");
    assert_ne!(same, digest(&|artifact| artifact.programs[0].code.insns.make_mut()[0] = Insn::Exit));
    assert_ne!(same, digest(&|artifact| artifact.programs[0].code.maps[0].map.0 ^= 1));
    assert_ne!(same, Artifact::link(marked()).unwrap().code_digest());
    let by_value = |artifact: &mut Artifact| {
        let code = &mut artifact.programs[1].code;
        let is_looked_up = |insn: &&mut Insn| matches!(insn, Insn::LoadImm64 { value: Imm64::MapFd(_), .. });
        let load = code.insns.make_mut().iter_mut().find(is_looked_up).expect("a map that is looked up");
        if let Insn::LoadImm64 { value, .. } = load {
            *value = Imm64::MapValue { fd: 0, offset: 0 };
        }
    };
    assert_ne!(same, digest(&by_value));
    assert_ne!(same, digest(&|artifact| artifact.edge = Some(artifact.programs[0].code.clone())));
}

/// In another process, the number means another map.
#[test]
fn code_with_a_descriptor_of_a_map_is_refused() {
    let mut artifact = Artifact::link(parts()).unwrap();
    let code = &mut artifact.programs[0].code;
    code.insns.make_mut().push(Insn::LoadImm64 { dst: Reg::R1, value: Imm64::Value(0x7654_3210) });
    code.tags.push(code.tags[0]);
    let mut file = artifact.to_bytes().unwrap();
    let load = [0x18, 1, 0, 0, 0x10, 0x32, 0x54, 0x76];
    let at = file.windows(load.len()).position(|it| it == load).expect("the load");
    assert!(Artifact::read(&with_checksum(file.clone())).is_ok());
    // BPF_PSEUDO_MAP_FD
    file[at + 1] |= 1 << 4;
    assert_eq!(Artifact::read(&with_checksum(file)), Err(ArtifactError::Malformed("classifier")));
}

#[test]
fn a_sealed_file_of_garbage_sections_is_refused() {
    let artifact = Artifact::link(parts()).unwrap();
    let whole = Artifact { manifest: "\u{1}".to_owned(), ..artifact }.to_bytes().unwrap();
    assert!(Artifact::read(&whole).is_ok(), "the manifest is text to the reader");
    assert_eq!(Artifact::read(b""), Err(ArtifactError::NotAnObject));
    assert_eq!(Artifact::read(&whole[..whole.len() - 1]), Err(ArtifactError::NotAnObject));
}

#[test]
fn a_changed_byte_anywhere_is_found() {
    let file = file();
    // Every byte of the header, the section headers and the small sections; of the rest every seventh.
    let headers = file.len() - 64 * 24;
    for at in (0..file.len()).filter(|at| *at < 64 || *at > headers || at % 7 == 0) {
        let mut changed = file.clone();
        changed[at] ^= 0x10;
        assert!(Artifact::read(&changed).is_err(), "byte {at} of {}", file.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_files_are_errors(changes in prop::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..8)) {
        let mut file = file();
        let whole = file.clone();
        for (at, bits) in changes {
            let at = at.index(file.len());
            file[at] ^= bits;
        }
        prop_assume!(file != whole);
        prop_assert!(Artifact::read(&file).is_err());
    }

    #[test]
    fn garbage_behind_a_right_checksum_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = file();
        for (at, bits) in changes {
            let at = at.index(file.len());
            file[at] ^= bits;
        }
        let _ = Artifact::read(&with_checksum(file));
    }

    #[test]
    fn noise_is_no_artifact(noise in prop::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(Artifact::read(&noise).is_err());
    }
}

#[track_caller]
fn check_link_error(change: impl FnOnce(&mut ArtifactParts), expected: LinkError) {
    let mut parts = parts();
    change(&mut parts);
    let linked = Artifact::link(parts).and_then(|artifact| artifact.to_bytes());
    assert_eq!(linked, Err(expected));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let config = MapRef(MapName::Config as u32);
    check_link_error(|parts| parts.maps.retain(|map| map.name != MapName::Config), LinkError::NoMap(config));
    check_link_error(|parts| parts.programs[1].tags[3] = Tag(9), LinkError::NoLine(9));
    check_link_error(
        |parts| parts.programs[0].functions.push(parts.programs[0].functions[0].clone()),
        LinkError::Functions,
    );
    let entry_of = |parts: &mut ArtifactParts, name| {
        let map = parts.maps.iter_mut().find(|map| map.name == name).unwrap();
        map.entries.edit().iter_mut().for_each(|(_, value)| value.push(0));
    };
    check_link_error(|parts| entry_of(parts, MapName::Defaults), LinkError::EntrySize(MapName::Defaults));
    check_link_error(
        |parts| {
            parts.maps.iter_mut().filter(|map| map.name == MapName::Config).for_each(|map| map.spec.max_entries = 2)
        },
        LinkError::NotOneValue(MapName::Config),
    );
}

#[test]
fn the_manifest_is_json_and_names_rules() {
    let manifest = Artifact::link(parts()).unwrap().manifest;
    assert!(weir_objects::syntax::json::parse(&manifest, weir_objects::syntax::Span::of(&manifest)).is_ok());
    for text in [
        "\"place\": \"shop.yaml:spec.ingress[0]\"",
        "\"name\": \"shop.yaml\"",
        "\"longest_path\": ",
        "\"name\": \"shop/job\"",
    ] {
        assert!(manifest.contains(text), "{text} in {manifest}");
    }
}

#[test]
fn views_name_lines_and_maps() {
    let artifact = Artifact::read(&file()).unwrap();
    let code = view::disassembly(&artifact, &artifact.program(Direction::Ingress).code);
    assert!(code.starts_with("; weir/datapath:1: datapath\n"), "{code}");
    assert!(code.contains("; shop.yaml:22: - from: [{podSelector: ?\n"), "{code}");
    assert!(code.contains("map[fd:0]  ; rows\n"), "{code}");
    assert!(code.contains("map[fd:0][0]+0  ; config\n"), "{code}");
    let maps = view::maps(&artifact, 4);
    assert_eq!(maps.lines().count(), artifact.maps.len() + 1, "{maps}");
    assert!(view::summary(&artifact, 4).contains("to_pod      "));
}
