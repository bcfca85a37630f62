//! Verification accepts compiled artifacts, and finds every later change in them.

use weir_artifact::Artifact;
use weir_artifact::entries::{EditedEntries, EntryRef};
use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapBytes;
use weir_classes::Scope;
use weir_codegen::compile::{Budget, Budgets, CompileError, CompileOptions, compile};
use weir_codegen::structures;
use weir_ebpf::insn::Insn;
use weir_fuzz::generators::cluster::clusters;
use weir_fuzz::generators::for_each;
use weir_model::{Assumptions, Cluster, resolve};
use weir_testing::yaml;
use weir_verify::{Difference, verify};

const SHOP: &str = r#"
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: db, namespace: shop}, spec: {
  podSelector: {matchLabels: {app: db}},
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}, {ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.64/26]}}], ports: [{port: 5432}]}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.1}}
---
{kind: Pod, apiVersion: v1, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.2}}
---
{kind: Pod, apiVersion: v1, metadata: {name: other, namespace: shop, labels: {app: other}}, spec: {containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.3}}
"#;

/// The same policy for `other` in audit mode, and one that would allow `other` to reach `db`.
const AUDIT: &str = r#"
---
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: other, namespace: shop, annotations: {weir.dev/mode: audit}}, spec: {
  podSelector: {matchLabels: {app: other}}, policyTypes: [Ingress, Egress],
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]}}
---
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: more, namespace: shop, annotations: {weir.dev/mode: audit}}, spec: {
  podSelector: {matchLabels: {app: db}},
  ingress: [{from: [{podSelector: {matchLabels: {app: other}}}], ports: [{port: 5432}]}]}}
"#;

fn shop() -> Cluster {
    yaml::cluster(SHOP)
}

fn artifact(cluster: &Cluster) -> Artifact {
    let forced = structures::StructureOptions::kernel_maps().forced;
    let options = CompileOptions { forced, ..CompileOptions::default() };
    let compiled = compile(cluster, &Scope::everything(cluster), &options).expect("compiled");
    compiled.artifact(cluster, &options, |_| ()).expect("linked")
}

/// Damages the shop's artifact; the verification must report a difference.
#[track_caller]
fn check_found(damage: impl FnOnce(&mut Artifact)) -> Vec<Difference> {
    check_found_in(&shop(), damage)
}

#[track_caller]
fn check_found_in(cluster: &Cluster, damage: impl FnOnce(&mut Artifact)) -> Vec<Difference> {
    let mut artifact = artifact(cluster);
    assert!(verify(&artifact, cluster).is_verified());
    let before = artifact.clone();
    damage(&mut artifact);
    assert_ne!(artifact, before, "nothing was damaged");
    let report = verify(&artifact, cluster);
    assert!(!report.is_verified(), "{report:?}");
    report.differences
}

fn entries(artifact: &mut Artifact, name: MapName) -> EditedEntries<'_> {
    let map = artifact.maps.iter_mut().find(|map| map.name == name).expect("the map");
    map.entries.edit()
}

/// A host-network pod without an address is its node, even if the node has no address.
#[test]
fn a_service_of_a_host_network_pod_without_address_is_verified() {
    let of_shop = r#"
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: closed, namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: near, namespace: shop}, spec: {nodeName: n1, containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.1}}
---
{kind: Pod, apiVersion: v1, metadata: {name: far, namespace: shop}, spec: {nodeName: n2, containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.2}}
---
{kind: Pod, apiVersion: v1, metadata: {name: host, namespace: shop, labels: {app: host}}, spec: {nodeName: n1, hostNetwork: true, containers: [{name: c}]}, status: {phase: Running}}
---
{kind: Service, apiVersion: v1, metadata: {name: host, namespace: shop}, spec: {clusterIP: 10.96.0.1, selector: {app: host}, ports: [{port: 80}]}}
"#;
    let cluster = yaml::cluster(of_shop);
    let report = verify(&artifact(&cluster), &cluster);
    assert!(report.is_verified(), "{report:?}");
}

#[test]
fn compiled_programs_are_verified() {
    let mut packets = 0;
    for_each(40, &clusters(), |case| {
        let (cluster, _) = resolve::resolve(&case.objects, Assumptions::default());
        let report = verify(&artifact(&cluster), &cluster);
        assert!(report.is_verified(), "{report:#?}");
        packets += report.asked();
    });
    assert!(packets > 100_000, "only {packets} packets were run");
}

/// With the audit policy enforced, no endpoint would be filtered: so none has an audit flag.
#[test]
fn audit_policy_that_opens_every_pod_is_verified() {
    let text = "
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: closed, namespace: shop}, spec: {podSelector: {}}}
---
{kind: NetworkPolicy, apiVersion: networking.k8s.io/v1, metadata: {name: open, namespace: shop, annotations: {weir.dev/mode: audit}}, spec: {
  podSelector: {}, ingress: [{}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: web, namespace: shop}, spec: {containers: [{name: c}]}, status: {phase: Running, podIP: 10.0.0.1}}
";
    let cluster = yaml::cluster(text);
    let report = verify(&artifact(&cluster), &cluster);
    assert!(report.is_verified(), "{report:?}");
}

#[test]
fn a_row_with_another_set_is_found() {
    let found = check_found(|artifact| entries(artifact, MapName::Rows)[0].1[0] ^= 2);
    assert!(matches!(found.first(), Some(Difference::Verdict { .. })), "{found:?}");
}

/// A changed bit is found in every audit verdict, and in the flags that show where there is one.
#[test]
fn a_changed_bit_of_an_audit_verdict_is_found() {
    let cluster = yaml::cluster(&(SHOP.to_owned() + AUDIT));
    let is_audit = |found: Vec<Difference>| {
        assert!(found.iter().all(|it| matches!(it, Difference::Audit(_))), "{found:?}");
    };
    // The rows of an endpoint without enforced and audit policies are never read.
    let whole = artifact(&cluster);
    let open = whole.endpoints.iter().find(|it| it.value[4] == 0).expect("`web`").value[..4].to_vec();
    let subjects = whole.map(MapName::Defaults).expect("defaults").entries.len() as u32 / 2;
    let is_read = |map: MapName, key: &[u8]| {
        let upper = u32::from_le_bytes(*key.last_chunk().unwrap());
        let subject = if map == MapName::Rows { upper & !(1 << 31) } else { upper % subjects };
        subject.to_le_bytes() != open[..]
    };
    for map in [MapName::Rows, MapName::Defaults] {
        let keys = whole.map(map).expect("the map").entries.iter().map(|(key, _)| is_read(map, key));
        let read = keys.enumerate().filter(|(_, read)| *read).map(|(index, _)| index);
        for (index, bit) in read.flat_map(|index| [1, 2, 4].map(|bit| (index, bit))) {
            is_audit(check_found_in(&cluster, |artifact| entries(artifact, map)[index].1[8] ^= bit));
        }
    }
    for index in 0..cluster.endpoints.len() {
        for bit in [4, 8] {
            is_audit(check_found_in(&cluster, |artifact| artifact.endpoints[index].value[4] ^= bit));
        }
    }
}

/// Lists are evaluated for the senders of ICMP errors by a bit that no port uses.
#[test]
fn a_wrong_bit_for_icmp_errors_is_found() {
    const LIST: &str = "\n---\n{kind: CidrList, apiVersion: weir.dev/v1alpha1, metadata: {name: bad}, spec: {action: Deny, cidrs: [198.51.100.0/24]}}\n";
    let cluster = yaml::cluster(&(SHOP.to_owned() + LIST));
    let compiled = compile(&cluster, &Scope::everything(&cluster), &CompileOptions::default()).expect("compiled");
    let bit = 1u8 << compiled.tables.icmp_errors.expect("a list denies").0;
    let whole = artifact(&cluster);
    let mut damaged = 0;
    for map in [MapName::Rows, MapName::Defaults] {
        let entries_of = &whole.map(map).expect("the map").entries;
        let is_ingress = |(at, (key, _)): &(usize, EntryRef<'_>)| match map {
            MapName::Rows => key[key.len() - 1] & 0x80 == 0,
            _ => *at < entries_of.len() / 2,
        };
        for (index, _) in entries_of.iter().enumerate().filter(is_ingress) {
            let found = check_found_in(&cluster, |artifact| entries(artifact, map)[index].1[0] ^= bit);
            let text = found.iter().map(ToString::to_string).collect::<String>();
            assert!(text.contains("an ICMP error about a live flow"), "{text}");
            damaged += 1;
        }
    }
    assert!(damaged >= 4, "only {damaged} bits were damaged");
}

/// A policy in audit mode that was compiled as enforced, or the other way round.
#[test]
fn a_policy_of_another_mode_is_found() {
    let (audit, without) = (yaml::cluster(&(SHOP.to_owned() + AUDIT)), shop());
    let enforced = audit.with_audit_enforced();
    for (compiled, asked) in [(&audit, &without), (&audit, &enforced), (&enforced, &audit), (&without, &audit)] {
        assert!(!verify(&artifact(compiled), asked).is_verified());
    }
}

#[test]
fn a_row_that_is_gone_is_found() {
    check_found(|artifact| _ = entries(artifact, MapName::Rows).pop());
}

#[test]
fn a_default_that_allows_is_found() {
    check_found(|artifact| {
        for (_, value) in entries(artifact, MapName::Defaults).iter_mut() {
            value.fill(0xff);
        }
    });
}

#[test]
fn an_address_of_another_class_is_found() {
    check_found(|artifact| entries(artifact, MapName::Exact4)[0].1 = MapBytes::from_elem(0, 4));
}

#[test]
fn a_prefix_that_is_gone_is_found() {
    check_found(|artifact| _ = entries(artifact, MapName::Prefixes4).pop());
}

#[test]
fn an_entry_for_an_address_without_a_pod_is_found() {
    check_found(|artifact| {
        let class = entries(artifact, MapName::Exact4)[0].1.clone();
        entries(artifact, MapName::Exact4).push((MapBytes::from_slice(&[203, 0, 113, 9]), class));
    });
}

#[test]
fn an_endpoint_of_another_class_is_found() {
    check_found(|artifact| {
        let value = artifact.endpoints[0].value;
        artifact.endpoints[1].value[..8].copy_from_slice(&value[..8]);
    });
}

#[test]
fn an_endpoint_of_another_cluster_is_found() {
    let found = check_found(|artifact| artifact.endpoints[0].name.push('x'));
    assert!(matches!(&found[..], [Difference::Endpoint(_), Difference::Missing(_)]), "{found:?}");
}

#[test]
fn a_program_that_ends_otherwise_is_found() {
    for program in 0..2 {
        check_found(|artifact| {
            let insns = artifact.programs[program].code.insns.make_mut();
            for insn in insns.iter_mut().filter(|insn| **insn == mov_r0([2, -1][program])) {
                *insn = mov_r0([-1, 2][program]);
            }
        });
    }
}

fn mov_r0(value: i32) -> Insn {
    use weir_ebpf::insn::{AluOp, Operand, Reg, Width};
    Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R0, src: Operand::Imm(value) }
}

#[test]
fn another_policy_is_found() {
    let (cluster, mut other) = (shop(), shop());
    other.policies.clear();
    assert!(!verify(&artifact(&cluster), &other).is_verified());
}

#[test]
fn a_budget_that_is_exceeded_says_by_how_much() {
    let cluster = shop();
    let budgets = Budgets(vec![(Budget::Classes, 2), (Budget::Entries, 1_000), (Budget::Instructions, 10)]);
    let options = CompileOptions { budgets, ..CompileOptions::default() };
    let error = compile(&cluster, &Scope::everything(&cluster), &options).expect_err("too much");
    let CompileError::Budget(exceeded) = &error else { panic!("{error}") };
    assert_eq!(exceeded.exceeded.iter().map(|it| it.0).collect::<Vec<_>>(), [Budget::Classes, Budget::Instructions]);
    assert!(error.to_string().starts_with("budget classes is exceeded by "), "{error}");
}
