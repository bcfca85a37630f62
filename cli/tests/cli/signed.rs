//! `weir attach --key` and `--verify` without a kernel: both checks come before the kernel is asked for anything.
//!
//! `signed/` was made with minisign 0.11: `minisign -G -W`, then `minisign -S` (`signed.bin`, hashed first) and
//! `minisign -S -l` (`legacy.bin`). Its secret keys were deleted, so new signatures need new keys.

use std::path::Path;

use weir_artifact::Artifact;
use weir_ebpf::insn::{AluOp, Cond, Insn, Operand, Reg, Size, Width};

use crate::support::{Place, Ran, SHOP};

const ATTACH: &str = "--endpoint shop/web=eth0 --bpffs nowhere";

/// A place with copies of the fixtures.
fn place() -> Place {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/signed");
    let names = ["signed.bin", "signed.bin.minisig", "legacy.bin", "legacy.bin.minisig", "key.pub", "other.pub"];
    names.into_iter().fold(Place::new(), |place, name| place.file(name, std::fs::read(from.join(name)).expect(name)))
}

/// The signature is accepted. The signed file is not an artifact, so the next step fails.
#[track_caller]
fn passes(ran: Ran, comment: &str) {
    ran.exits(2).says(&format!("signed: {comment}\n")).complains("is not a usable artifact");
}

#[track_caller]
fn is_refused(ran: Ran, why: &str) {
    let ran = ran.exits(2).complains(why).complains("nothing was attached");
    assert!(ran.out.is_empty() && !ran.err.contains("is not a usable artifact"), "{ran:#?}");
}

#[test]
fn a_valid_signature_is_accepted() {
    let place = place();
    passes(place.run(&format!("attach signed.bin --key key.pub {ATTACH}")), "weir test fixture, prehashed");
    passes(place.run(&format!("attach legacy.bin --key key.pub {ATTACH}")), "weir test fixture, legacy");
}

#[test]
fn a_key_without_its_comment_line_is_accepted() {
    let place = place();
    let key = std::fs::read_to_string(place.path().join("key.pub")).expect("the key");
    let place = place.file("bare.pub", key.lines().nth(1).expect("two lines"));
    passes(place.run(&format!("attach signed.bin --key bare.pub {ATTACH}")), "weir test fixture, prehashed");
}

#[test]
fn other_signatures_and_changed_artifacts_are_refused() {
    let place = place();
    is_refused(
        place.run(&format!("attach signed.bin --key other.pub {ATTACH}")),
        "is not signed by the key in other.pub",
    );
    for name in ["signed.bin", "legacy.bin"] {
        let good = std::fs::read(place.path().join(name)).expect(name);
        let changed = format!("changed-{name}");
        let signature = std::fs::read_to_string(place.path().join(format!("{name}.minisig"))).expect(name);
        for bytes in [[&good[..], b"x"].concat(), good[1..].to_vec(), good.iter().map(|it| it ^ 1).collect()] {
            std::fs::write(place.path().join(&changed), bytes).expect("written");
            std::fs::write(place.path().join(format!("{changed}.minisig")), &signature).expect("written");
            is_refused(
                place.run(&format!("attach {changed} --key key.pub {ATTACH}")),
                "is not signed by the key in key.pub",
            );
        }
        // The comment is signed too.
        std::fs::write(place.path().join(&changed), &good).expect("written");
        let other = signature.replace("trusted comment: weir", "trusted comment: rear");
        std::fs::write(place.path().join(format!("{changed}.minisig")), other).expect("written");
        is_refused(
            place.run(&format!("attach {changed} --key key.pub {ATTACH}")),
            "is not signed by the key in key.pub",
        );
    }
}

#[test]
fn a_missing_or_invalid_signature_is_refused() {
    let place =
        place().file("plain.bin", "x").file("odd.bin", "x").file("odd.bin.minisig", "x\n").file("odd.pub", "x\n");
    let place = place.file("empty.bin", "x").file("empty.bin.minisig", "").file("empty.pub", "");
    is_refused(place.run(&format!("attach plain.bin --key key.pub {ATTACH}")), "there is no signature");
    for (arguments, why) in [
        ("odd.bin --key key.pub", "odd.bin.minisig is not a minisign signature"),
        ("empty.bin --key key.pub", "empty.bin.minisig is not a minisign signature"),
        ("signed.bin --key odd.pub", "odd.pub is not a minisign public key"),
        ("signed.bin --key empty.pub", "empty.pub is not a minisign public key"),
        ("signed.bin --key none.pub", "cannot read none.pub"),
    ] {
        let ran = place.run(&format!("attach {arguments} {ATTACH}")).exits(2).complains(why);
        assert!(ran.out.is_empty(), "{ran:#?}");
    }
}

#[test]
fn an_artifact_that_enforces_something_else_is_refused_with_its_witness() {
    let place = Place::shop().file("open.yaml", SHOP.replace("5432", "5433"));
    place.run("compile shop.yaml -o shop.o").exits(0);
    let ran = place.run(&format!("attach shop.o --verify open.yaml {ATTACH}")).exits(1);
    let ran = ran.complains("differs: ").complains("  packet: ").complains("nothing was attached");
    assert!(ran.out.is_empty(), "{ran:#?}");
    place.run(&format!("attach shop.o --verify none.yaml {ATTACH}")).exits(2).complains("cannot read none.yaml");
}

/// An artifact whose `to_pod` lets every packet of one odd length pass, with a right checksum.
fn with_back_door(bytes: &[u8]) -> Vec<u8> {
    const LEN: i16 = 0;
    let mut artifact = Artifact::read(bytes).expect("an artifact");
    let code = &mut artifact.programs[0].code;
    let door = [
        Insn::Load { size: Size::W, dst: Reg::R0, base: Reg::R1, offset: LEN },
        Insn::JumpIf { width: Width::W32, cond: Cond::Ne, dst: Reg::R0, src: Operand::Imm(1_337), offset: 2 },
        Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R0, src: Operand::Imm(0) },
        Insn::Exit,
    ];
    code.tags.splice(0..0, [code.tags[0]; 4]);
    code.insns.make_mut().splice(0..0, door);
    code.maps.iter_mut().for_each(|used| (used.index, used.slot) = (used.index + 4, used.slot + 4));
    artifact.to_bytes().expect("it links")
}

#[test]
fn a_back_door_that_no_verification_packet_opens_is_refused() {
    let place = Place::shop();
    place.run("compile shop.yaml -o shop.o").exits(0);
    let bytes = std::fs::read(place.path().join("shop.o")).expect("an artifact");
    let place = place.file("forged.o", with_back_door(&bytes));
    let ran = place.run("verify forged.o shop.yaml").exits(0).says("verified ");
    ran.complains("not those that this version of weir compiles");
    let ran = place.run(&format!("attach forged.o --verify shop.yaml {ATTACH}")).exits(1);
    let ran = ran
        .complains("programs or maps are not those that this version of weir compiles")
        .complains("nothing was attached");
    assert!(ran.out.is_empty(), "{ran:#?}");
    assert_eq!(place.run("verify shop.o shop.yaml").exits(0).err, "");
    assert!(place.run("inspect forged.o").exits(0).says("no signature").err.is_empty());
}

#[test]
fn artifacts_compiled_with_any_options_are_recognized() {
    let place = Place::shop();
    let structures = ["exact4=hash", "exact4=perfect", "prefixes4=lpm", "prefixes4=dxr", "rows=hash", "rows=matrix"];
    let structures = structures.map(|it| format!("--structure {it}"));
    for options in ["", "--target 6.1", "--target 6.12"].map(str::to_owned).into_iter().chain(structures) {
        place.run(&format!("compile shop.yaml -o shop.o {options}")).exits(0);
        assert_eq!(place.run("verify shop.o shop.yaml").exits(0).err, "", "{options}");
        // Both checks pass. Attaching then fails, because there is no bpf file system.
        let ran = place.run(&format!("attach shop.o --verify shop.yaml {ATTACH}"));
        assert!(!ran.err.contains("this version of weir compiles"), "{options}: {ran:#?}");
    }
}
