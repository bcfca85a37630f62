//! Verification by parts finds the same as all combinations do, for all structures of the sets and all kinds of damage.

use std::net::IpAddr;

use weir_artifact::entries::EditedEntries;
use weir_artifact::layout::{MapName, endpoint};
use weir_artifact::map_image::MapImage;
use weir_artifact::structure::{LookupSet, Structure};
use weir_artifact::{Artifact, ArtifactParts};
use weir_classes::{Scope, classify};
use weir_codegen::describe::lines::{line_of_object, line_table};
use weir_codegen::describe::provenance::Positions;
use weir_codegen::describe::{describe, named_endpoint};
use weir_codegen::map_images;
use weir_codegen::structures::{Room, StructureOptions};
use weir_ebpf::asm::Tag;
use weir_ebpf::insn::{Insn, Operand};
use weir_ebpf::limits;
use weir_ebpf::target::Target;
use weir_fuzz::generators::cluster::enforceable;
use weir_fuzz::generators::{Random, for_each};
use weir_fuzz::oracles::engines::Compiled;
use weir_model::{Cluster, Established, resolve};
use weir_objects::origin::FieldOrigin;
use weir_testing::yaml;
use weir_verify::{Difference, VerifyPart, VerifyReport, verify_within};

/// The packet limit for verification by parts.
const PARTS: u64 = 0;
/// The packet limit for verification of every combination.
const PRODUCT: u64 = 60_000;
/// The packet limit for the comparison with verification by parts. It must be large enough for many clusters.
const COMPARED: u64 = 150_000;
/// The number of damages for one cluster, and the number of each kind that is enough: both ways of verification have to
/// run for each one that is found.
const DAMAGES: usize = 8;
const ENOUGH: usize = 11;

/// The structures of one round; in four rounds every structure is used.
fn forced(round: usize) -> StructureOptions {
    let of = |place: &LookupSet| (*place, place.structures()[round % place.structures().len()]);
    let room = if round.is_multiple_of(2) { Room::Rounded } else { Room::Exact };
    StructureOptions { forced: LookupSet::ALL.iter().map(of).collect(), room, ..StructureOptions::default() }
}

fn artifact(cluster: &Cluster, scope: Scope, options: &StructureOptions) -> Artifact {
    let compiled = Compiled::with(cluster, scope, options).expect("compiled");
    let endpoints = map_images::endpoints(cluster, &compiled.classes, &compiled.tables);
    let mut programs = compiled.programs().expect("emitted");
    let mut line = |origin: &FieldOrigin| line_of_object(cluster, origin);
    let lines = line_table(&mut programs, &compiled.tables.sources, &mut line);
    let parts = ArtifactParts {
        reports: programs.iter().map(|program| limits::check(&program.insns)).collect(),
        programs,
        edge: None,
        lines,
        maps: compiled.maps(),
        endpoints: endpoints.iter().map(|entry| named_endpoint(cluster, entry)).collect(),
        description: describe(cluster, &compiled.classes, Target::BASE, &mut Positions::Of(&mut |_| None)),
        memory: String::new(),
    };
    Artifact::link(parts).expect("linked")
}

/// Tests clusters. The second argument of `test` makes its random choices.
#[track_caller]
fn for_each_cluster(cases: u32, mut test: impl FnMut(Cluster, Random)) {
    for_each(cases, &enforceable(), |case| {
        test(resolve::resolve(&case.objects, case.assume).0, case.random());
    });
}

#[test]
fn compiled_programs_are_verified_by_parts_in_every_structure() {
    let (mut exhaustive, mut entries) = (0, 0);
    for_each_cluster(50, |cluster, mut random| {
        let first = random.below(4);
        for round in [first, (first + 1) % 4] {
            let artifact = artifact(&cluster, Scope::everything(&cluster), &forced(round));
            let (all, parts) = (verify_within(&artifact, &cluster, PRODUCT), verify_within(&artifact, &cluster, PARTS));
            assert!(all.is_verified(), "round {round}: {all:#?}");
            assert!(parts.is_verified(), "round {round}: {parts:#?}");
            exhaustive += u64::from(all.exhaustive);
            entries += parts.parts[VerifyPart::Entries as usize].0;
        }
    });
    assert!(exhaustive > 10 && entries > 2_000, "{exhaustive} exhaustive, {entries} entries");
}

/// Damages one byte, one entry or one instruction.
fn damage(artifact: &mut Artifact, random: &mut Random) {
    match random.below(6) {
        0 | 1 => damage_map(artifact, random),
        2 => damage_endpoint(artifact, random),
        _ => damage_code(artifact, random),
    }
}

fn damage_map(artifact: &mut Artifact, random: &mut Random) {
    let filled = |map: &&mut MapImage| !map.entries.is_empty() && map.name != MapName::Config;
    let mut maps: Vec<&mut MapImage> = artifact.maps.iter_mut().filter(filled).collect();
    if maps.is_empty() {
        return;
    }
    let map = random.below(maps.len());
    let mut entries = maps[map].entries.edit();
    let index = random.below(entries.len());
    let other = random.below(entries.len());
    match random.below(4) {
        0 if entries.len() > 1 => _ = entries.remove(index),
        1 if entries.len() > 1 => {
            let value = entries[other].1.clone();
            entries[index].1 = value;
        }
        _ => {
            let value = &mut entries[index].1;
            let at = random.below(value.len());
            value[at] ^= 1 << random.below(8);
        }
    }
}

fn damage_endpoint(artifact: &mut Artifact, random: &mut Random) {
    let count = artifact.endpoints.len();
    if count == 0 {
        return;
    }
    let (index, other) = (random.below(count), random.below(count));
    match random.below(3) {
        0 => _ = artifact.endpoints.remove(index),
        1 => {
            let subject = artifact.endpoints[other].value[..4].to_vec();
            artifact.endpoints[index].value[..4].copy_from_slice(&subject);
        }
        _ => {
            let at = random.below(endpoint::BYTES as usize);
            artifact.endpoints[index].value[at] ^= 1 << random.below(8);
        }
    }
}

fn damage_code(artifact: &mut Artifact, random: &mut Random) {
    let program = random.below(2);
    let code = &mut artifact.programs[program].code;
    // Most instructions are about flows. So every second time, an instruction of a policy object is damaged, if there
    // is one.
    let of_policy: Vec<usize> = (0..code.tags.len()).filter(|index| code.tags[*index] != Tag::default()).collect();
    let index = match of_policy.is_empty() || random.once_in(2) {
        true => random.below(code.insns.len()),
        false => random.pick(&of_policy),
    };
    let insns = code.insns.make_mut();
    let change = |number: i32, random: &mut Random| match random.below(3) {
        0 => number.wrapping_add(1),
        1 => number.wrapping_sub(1),
        _ => number ^ 1 << random.below(32),
    };
    match &mut insns[index] {
        Insn::JumpIf { src: Operand::Imm(imm), .. } | Insn::Alu { src: Operand::Imm(imm), .. } => {
            *imm = change(*imm, random);
        }
        Insn::Store { src: Operand::Imm(imm), .. } => *imm = change(*imm, random),
        Insn::Load { offset, .. } => *offset ^= 1 << random.below(5),
        _ => {}
    }
}

#[test]
fn differences_of_all_combinations_are_found_by_parts() {
    let (mut found, mut sound) = (0, 0);
    for_each_cluster(60, |cluster, mut random| {
        if found >= ENOUGH && sound >= ENOUGH {
            return;
        }
        let options = forced(random.below(4));
        let whole = artifact(&cluster, Scope::everything(&cluster), &options);
        if !verify_within(&whole, &cluster, COMPARED / 2).exhaustive {
            return;
        }
        for _ in 0..DAMAGES {
            let mut damaged = whole.clone();
            damage(&mut damaged, &mut random);
            let all = verify_within(&damaged, &cluster, COMPARED);
            if all.is_verified() || !all.exhaustive {
                sound += 1;
                continue;
            }
            found += 1;
            let parts = verify_within(&damaged, &cluster, PARTS);
            assert!(!parts.is_verified(), "only every combination finds {all:#?}");
        }
    });
    assert!(found > 10 && sound > 10, "{found} found, {sound} not");
}

const SHOP: &str = r#"
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: db, namespace: shop}, spec: {
  podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress],
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}, {ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.64/26]}}, {ipBlock: {cidr: "2001:db8::/48"}}],
             ports: [{port: 5432}, {port: 6000, endPort: 6010}]}],
  egress: [{to: [{ipBlock: {cidr: 10.1.0.0/16}}], ports: [{port: 443}]}, {ports: [{port: 53, protocol: UDP}]}]}}
---
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: web, namespace: shop}, spec: {
  podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress],
  ingress: [{from: [{podSelector: {matchLabels: {app: other}}}], ports: [{port: 80}, {port: 443}]}]}}
---
{kind: Node, apiVersion: v1, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
---
{kind: Node, apiVersion: v1, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 172.16.0.2}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}, {ip: "fd00::2"}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: db-2, namespace: shop, labels: {app: db}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.4, podIPs: [{ip: 10.0.0.4}, {ip: "fd00::4"}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: other, namespace: shop, labels: {app: other}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.3}}
"#;

fn shop() -> Cluster {
    yaml::cluster(SHOP)
}

/// Damages the shop's artifact with every structure; both ways must find it. If `damage` returns false, there was
/// nothing of the kind to damage, and the round does not count.
#[track_caller]
fn check_found(least: usize, damage: impl Fn(&mut Artifact) -> bool) -> Vec<VerifyReport> {
    let cluster = shop();
    let (mut reports, mut damaged) = (Vec::new(), 0);
    for round in 0..4 {
        let mut artifact = artifact(&cluster, Scope::everything(&cluster), &forced(round));
        if !damage(&mut artifact) {
            continue;
        }
        damaged += 1;
        for most in [u64::MAX, PARTS] {
            let report = verify_within(&artifact, &cluster, most);
            assert!(!report.is_verified(), "round {round}, up to {most} packets: {report:#?}");
            reports.push(report);
        }
    }
    assert!(damaged >= least, "only {damaged} rounds had something to be damaged");
    reports
}

fn entries(artifact: &mut Artifact, name: MapName) -> Option<EditedEntries<'_>> {
    artifact.maps.iter_mut().find(|map| map.name == name).map(|map| map.entries.edit())
}

/// Moves the compares with a constant in both programs by one; returns their number.
fn compares(artifact: &mut Artifact, constant: i32) -> usize {
    let mut changed = 0;
    for insn in artifact.programs.iter_mut().flat_map(|program| program.code.insns.make_mut()) {
        if let Insn::JumpIf { src: Operand::Imm(imm), .. } = insn
            && *imm == constant
        {
            *imm += 1;
            changed += 1;
        }
    }
    changed
}

#[test]
fn the_shop_is_verified_both_ways_in_every_structure() {
    let cluster = shop();
    for round in 0..4 {
        let artifact = artifact(&cluster, Scope::everything(&cluster), &forced(round));
        let all = verify_within(&artifact, &cluster, u64::MAX);
        assert!(all.is_verified() && all.exhaustive, "round {round}: {all:#?}");
        let parts = verify_within(&artifact, &cluster, PARTS);
        assert!(parts.is_verified() && !parts.exhaustive, "round {round}: {parts:#?}");
        // These artifacts have no edge program.
        let at_pods = parts.parts.iter().zip(VerifyPart::ALL).filter(|(_, part)| *part != VerifyPart::Edge);
        assert!(at_pods.map(|(it, _)| it).all(|(asked, agreed)| *asked > 0 && asked == agreed), "{parts:#?}");
    }
}

/// If a program tests bytes of the address too early, verification sees a new class for each value of these bytes. It
/// still finds no difference, but compares eight times the entries.
#[test]
fn programs_distinguish_no_more_classes_than_the_compiler() {
    let (mut entries, mut most) = (0, 0);
    for_each_cluster(20, |cluster, _| {
        let scope = Scope::everything(&cluster);
        let classes = classify(&cluster, &scope).expect("classes");
        let report = verify_within(&artifact(&cluster, scope, &forced(0)), &cluster, PARTS);
        entries += report.parts[VerifyPart::Entries as usize].0;
        // Two directions and two families.
        most += 4 * classes.subjects.len() * classes.peers.len();
    });
    assert!(entries as usize <= most, "{entries} entries were compared, the tables have {most}");
}

#[test]
fn a_port_boundary_off_by_one_is_found() {
    // In two of the rounds ports are compared by instructions, in the others they are in a table.
    for port in [6_000, 6_011, 443] {
        check_found(2, |artifact| compares(artifact, port) > 0);
    }
}

#[test]
fn a_prefix_off_by_one_is_found() {
    // A bit in the last byte of an address, or of the start of a range.
    for place in 0..64 {
        check_found(0, |artifact| {
            let Some(mut prefixes) = entries(artifact, MapName::Prefixes4) else { return false };
            let Some((key, _)) = prefixes.get_mut(place) else { return false };
            let is_prefix = key.len() == 8 && key[0] > 8;
            if is_prefix {
                key[0] -= 1;
            }
            is_prefix
        });
    }
}

#[test]
fn a_set_with_one_bit_more_or_less_is_found() {
    check_found(4, |artifact| {
        let mut rows = entries(artifact, MapName::Rows).expect("rows");
        rows[0].1[0] ^= 2;
        true
    });
}

#[test]
fn an_address_of_no_class_is_found() {
    check_found(2, |artifact| {
        let Some(mut exact) = entries(artifact, MapName::Exact4) else { return false };
        match exact.len() {
            0 => false,
            // The key of 10.0.0.1, wherever it is in a table: free slots may hold it too.
            1 => {
                let value = &mut exact[0].1;
                for at in (0..value.len() - 3).step_by(4) {
                    value[at + 1] ^= u8::from(value[at..at + 4] == [10, 0, 0, 1]);
                }
                true
            }
            _ => {
                exact.retain(|(key, _)| key[..] != [10, 0, 0, 1]);
                true
            }
        }
    });
}

#[test]
fn an_endpoint_that_is_missing_is_found() {
    for report in check_found(4, |artifact| artifact.endpoints.pop().is_some()) {
        assert!(report.differences.iter().any(|it| matches!(it, Difference::Missing(_))), "{report:#?}");
    }
}

#[test]
fn an_endpoint_too_many_is_found() {
    for report in check_found(4, |artifact| {
        let twice = artifact.endpoints[0].clone();
        artifact.endpoints.push(twice);
        true
    }) {
        assert!(report.differences.iter().any(|it| matches!(it, Difference::Endpoint(_))), "{report:#?}");
    }
}

#[test]
fn endpoints_with_their_classes_exchanged_are_found() {
    check_found(4, |artifact| {
        let [a, b] = [0, 3].map(|index: usize| artifact.endpoints[index].value[..4].to_vec());
        artifact.endpoints[0].value[..4].copy_from_slice(&b);
        artifact.endpoints[3].value[..4].copy_from_slice(&a);
        a != b
    });
}

#[test]
fn a_filter_that_is_off_or_on_where_it_should_not_be_is_found() {
    for bit in [1, 2] {
        for index in 0..4 {
            for report in check_found(4, |artifact| {
                artifact.endpoints[index].value[endpoint::FLAGS as usize] ^= bit;
                true
            }) {
                let says = |it: &Difference| matches!(it, Difference::Filter { .. } | Difference::Verdict { .. });
                assert!(report.differences.iter().any(says), "{report:#?}");
            }
        }
    }
}

#[test]
fn another_address_or_node_is_found() {
    check_found(4, |artifact| {
        artifact.endpoints[1].value[endpoint::V4 as usize + 3] ^= 1;
        true
    });
    check_found(4, |artifact| {
        artifact.endpoints[1].value[endpoint::V6 as usize + 15] ^= 1;
        true
    });
    check_found(4, |artifact| {
        artifact.endpoints[1].value[endpoint::NODE as usize] ^= 1;
        true
    });
    check_found(4, |artifact| entries(artifact, MapName::Nodes4).is_some_and(|mut nodes| nodes.pop().is_some()));
}

/// The shop, with a pod on `n1` that the shop's database may not reach.
fn shop_with_ports(port: &str) -> Cluster {
    yaml::cluster(&format!(
        "{SHOP}---\n{{kind: Pod, apiVersion: v1, metadata: {{name: proxy, namespace: shop}}, spec: {{nodeName: n1, \
         containers: [{{name: c, ports: [{port}]}}]}}, status: {{phase: Running, podIP: 10.0.0.5}}}}\n"
    ))
}

#[test]
fn an_open_host_port_of_a_forbidden_pod_is_found() {
    let claimed = shop_with_ports("{containerPort: 8080, hostPort: 9000}");
    let unclaimed = shop_with_ports("{containerPort: 8080}");
    let node = IpAddr::from([172, 16, 0, 1]);
    for round in 0..4 {
        let of = |cluster: &Cluster| artifact(cluster, Scope::everything(cluster), &forced(round));
        let sound = verify_within(&of(&claimed), &claimed, PARTS);
        assert!(sound.is_verified(), "round {round}: {sound:#?}");
        let open = verify_within(&of(&unclaimed), &claimed, PARTS);
        let says = |it: &Difference| matches!(it, Difference::Verdict { remote, port: 9000, .. } if *remote == node);
        assert!(open.differences.iter().any(says), "round {round}: {open:#?}");
    }
}

#[test]
fn flows_that_are_kept_where_they_should_be_cut_are_found() {
    let (mut cluster, artifact) = (shop(), artifact(&shop(), Scope::everything(&shop()), &forced(0)));
    cluster.assume.established = Established::Keep;
    let report = verify_within(&artifact, &cluster, PARTS);
    assert_eq!(report.differences, [Difference::Established]);
}

#[test]
fn the_node_of_the_manifest_says_who_has_to_be_there() {
    let cluster = shop();
    let mut artifact = artifact(&cluster, Scope::node(&cluster, "n1").expect("n1"), &forced(0));
    let report = verify_within(&artifact, &cluster, PARTS);
    assert!(report.differences.iter().all(|it| matches!(it, Difference::Missing(_))), "{report:#?}");
    assert_eq!(report.differences.len(), 2);
    artifact.manifest = artifact.manifest.replacen('{', "{\"node\": \"n1\",", 1);
    let report = verify_within(&artifact, &cluster, PARTS);
    assert!(report.is_verified(), "{report:#?}");
}

#[test]
fn the_decision_for_flows_of_older_generations_is_checked_too() {
    // A compare with a port that occurs twice in each program: once for new flows, once for flows that are judged
    // again. Only the second one is moved: it belongs to the other direction.
    for (program, port) in [(0, 53), (1, 6_000)] {
        for report in check_found(2, |artifact| {
            let insns = artifact.programs[program].code.insns.make_mut();
            let mut changed = false;
            for insn in insns.iter_mut() {
                if let Insn::JumpIf { src: Operand::Imm(imm), .. } = insn
                    && *imm == port
                {
                    *imm += 1;
                    changed = true;
                }
            }
            changed
        }) {
            assert!(report.differences.iter().any(|it| matches!(it, Difference::Again { .. })), "{report:#?}");
        }
    }
}

#[test]
fn every_structure_had_its_turn() {
    let seen: std::collections::BTreeSet<(LookupSet, Structure)> =
        (0..4).flat_map(|round| forced(round).forced).collect();
    assert_eq!(seen.len(), LookupSet::ALL.iter().map(|place| place.structures().len()).sum::<usize>());
}
