//! The evaluator of iptables-save text, on handwritten text: every matcher and target, and text that the kernel would
//! refuse.

use weir_iptables::{ConntrackState, Evaluator, ForwardedPacket, WalkEnd};

const SETS: &str = "\
create ips hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x847a6d70
add ips 10.0.0.1
add ips 10.0.0.2
create nets hash:net family inet
add nets 10.0.0.0/8
add nets 10.1.0.0/16 nomatch
add nets 10.1.2.0/24
add nets 10.1.2.3 nomatch
create ports hash:ip,port family inet
add ports 10.0.0.2,tcp:80
add ports 10.0.0.2,udp:53
create six hash:net family inet6
add six 2001:db8::/32
";

/// A table with the given rules, whose chains are declared on first use.
fn table(rules: &str) -> String {
    let mut chains: Vec<&str> = Vec::new();
    for rule in rules.lines() {
        let name = rule.trim().strip_prefix("-A ").and_then(|rule| rule.split(' ').next()).unwrap_or_default();
        if !chains.contains(&name) && name != "FORWARD" {
            chains.push(name);
        }
    }
    let declared: String = chains.iter().map(|name| format!(":{name} - [0:0]\n")).collect();
    let rules: String = rules.lines().map(|rule| rule.trim().to_owned() + "\n").collect();
    format!("# by hand\n*filter\n:FORWARD ACCEPT [0:0]\n{declared}{rules}COMMIT\n")
}

fn empty() -> String {
    table("-A FORWARD -j ACCEPT")
}

fn packet(source: &str, destination: &str, protocol: u8, port: u16) -> ForwardedPacket {
    let port = matches!(protocol, 6 | 17 | 132).then_some(port);
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    ForwardedPacket { source, destination, protocol, port, state: ConntrackState::New, mark: 0 }
}

fn tcp(source: &str, destination: &str, port: u16) -> ForwardedPacket {
    packet(source, destination, 6, port)
}

#[track_caller]
fn walk(rules: &str, packet: &ForwardedPacket, expected: WalkEnd, comments: &[&str]) {
    let evaluator = Evaluator::parse(&table(rules), &empty(), SETS).unwrap();
    let walk = evaluator.walk("FORWARD", packet).unwrap();
    assert_eq!((walk.ending, walk.comments.as_slice()), (expected, comments));
}

/// Whether a packet matches the conditions.
#[track_caller]
fn check(conditions: &str, packet: &ForwardedPacket, expected: bool) {
    let ending = if expected { WalkEnd::Drop } else { WalkEnd::Accept };
    walk(&format!("-A FORWARD {conditions} -j DROP"), packet, ending, &[]);
}

#[track_caller]
fn refuse(rules: &str, expected: &str) {
    refuse_text(&table(rules), SETS, expected);
}

#[track_caller]
fn refuse_text(v4: &str, sets: &str, expected: &str) {
    let error = Evaluator::parse(v4, &empty(), sets).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn addresses_match_by_prefix() {
    check("-s 10.0.0.0/8", &tcp("10.9.9.9", "1.1.1.1", 1), true);
    check("-s 10.0.0.0/8", &tcp("11.0.0.0", "10.0.0.0", 1), false);
    check("-d 10.0.0.1/32", &tcp("1.1.1.1", "10.0.0.1", 1), true);
    check("-d 10.0.0.1", &tcp("10.0.0.1", "10.0.0.2", 1), false);
    check("! -s 10.0.0.0/8", &tcp("10.9.9.9", "1.1.1.1", 1), false);
    check("! -s 10.0.0.0/8 -d 1.1.1.1", &tcp("11.9.9.9", "1.1.1.1", 1), true);
}

#[test]
fn protocols_match_by_number() {
    for (name, number) in [("icmp", 1), ("tcp", 6), ("udp", 17), ("sctp", 132), ("47", 47)] {
        check(&format!("-p {name}"), &packet("10.0.0.1", "10.0.0.2", number, 1), true);
        check(&format!("-p {name}"), &packet("10.0.0.1", "10.0.0.2", number + 1, 1), false);
        check(&format!("! -p {name}"), &packet("10.0.0.1", "10.0.0.2", number, 1), false);
    }
}

#[test]
fn ports_are_ranges_of_the_destination() {
    let at = |port| tcp("10.0.0.1", "10.0.0.2", port);
    for (port, expected) in [(79, false), (80, true), (90, true), (91, false), (443, true)] {
        check("-p tcp -m multiport --dports 80:90,443", &at(port), expected);
        check("-p tcp -m multiport ! --dports 80:90,443", &at(port), !expected);
    }
    check("-p tcp -m tcp --dport 80:90", &at(90), true);
    check("-p tcp -m tcp ! --dport 80", &at(80), false);
    check("-p tcp -m multiport --dports 80", &packet("10.0.0.1", "10.0.0.2", 17, 80), false);
}

#[test]
fn sets_of_addresses_match_exactly() {
    check("-m set --match-set ips src", &tcp("10.0.0.1", "10.0.0.9", 1), true);
    check("-m set --match-set ips dst", &tcp("10.0.0.1", "10.0.0.9", 1), false);
    check("-m set ! --match-set ips dst", &tcp("10.0.0.1", "10.0.0.9", 1), true);
    check("-m set --match-set ips src -m set --match-set ips dst", &tcp("10.0.0.1", "10.0.0.2", 1), true);
}

#[test]
fn the_longest_prefix_of_a_set_decides() {
    for (address, expected) in
        [("10.0.0.1", true), ("10.1.0.1", false), ("10.1.2.1", true), ("10.1.2.3", false), ("11.0.0.0", false)]
    {
        check("-m set --match-set nets src", &tcp(address, "1.1.1.1", 1), expected);
        check("-m set ! --match-set nets src", &tcp(address, "1.1.1.1", 1), !expected);
    }
}

#[test]
fn sets_of_ports_match_address_protocol_and_port() {
    let named = "-m set --match-set ports dst,dst";
    check(named, &tcp("10.0.0.9", "10.0.0.2", 80), true);
    check(named, &tcp("10.0.0.9", "10.0.0.2", 53), false);
    check(named, &packet("10.0.0.9", "10.0.0.2", 17, 53), true);
    check(named, &tcp("10.0.0.2", "10.0.0.9", 80), false);
    check(named, &packet("10.0.0.9", "10.0.0.2", 1, 0), false);
}

#[test]
fn states_and_marks() {
    let new = tcp("10.0.0.1", "10.0.0.2", 80);
    let reply = ForwardedPacket { state: ConntrackState::Established, ..new };
    check("-m conntrack --ctstate RELATED,ESTABLISHED", &new, false);
    check("-m conntrack --ctstate RELATED,ESTABLISHED", &reply, true);
    check("-m conntrack ! --ctstate NEW", &ForwardedPacket { state: ConntrackState::Related, ..new }, true);
    let marked = ForwardedPacket { mark: 0x5, ..new };
    check("-m mark --mark 0x1/0x3", &marked, true);
    check("-m mark --mark 0x1", &marked, false);
    check("-m mark ! --mark 0x5", &marked, false);
    check("-m mark --mark 0x5/0x1", &marked, false);
}

#[test]
fn marks_are_set_bit_by_bit() {
    let marked = ForwardedPacket { mark: 0b1100, ..tcp("10.0.0.1", "10.0.0.2", 80) };
    for (option, expected) in [
        ("--set-xmark 0x3/0x5", 0b1011),
        ("--set-mark 0x3/0x5", 0b1011),
        ("--set-mark 0x4/0x1", 0b1100),
        ("--set-mark 0x3", 0b0011),
        ("--or-mark 0x3", 0b1111),
        ("--and-mark 0x4", 0b0100),
        ("--xor-mark 0x6", 0b1010),
    ] {
        let rules =
            format!("-A FORWARD -j MARK {option}\n-A FORWARD -m mark --mark {expected} -j DROP\n-A FORWARD -j ACCEPT");
        walk(&rules, &marked, WalkEnd::Drop, &[]);
    }
}

#[test]
fn a_jump_comes_back_and_a_goto_does_not() {
    let rules = |how: &str| {
        format!(
            "-A FORWARD -m comment --comment first {how} A
             -A FORWARD -m comment --comment behind -j DROP
             -A A -m comment --comment inside -j B
             -A A -m comment --comment \"after B\" -j RETURN
             -A A -j DROP
             -A B -p udp -j DROP"
        )
    };
    let packet = tcp("10.0.0.1", "10.0.0.2", 80);
    walk(&rules("-j"), &packet, WalkEnd::Drop, &["first", "inside", "after B", "behind"]);
    walk(&rules("-g"), &packet, WalkEnd::Accept, &["first", "inside", "after B"]);
}

#[test]
fn after_a_goto_the_way_back_is_to_the_last_jump() {
    let rules = "-A FORWARD -j A
                 -A FORWARD -m comment --comment back -j DROP
                 -A A -g B
                 -A A -m comment --comment never -j ACCEPT
                 -A B -m comment --comment b -j RETURN";
    walk(rules, &tcp("10.0.0.1", "10.0.0.2", 80), WalkEnd::Drop, &["b", "back"]);
}

#[test]
fn the_end_of_the_kernels_chain_is_its_policy() {
    let text = empty().replace("FORWARD ACCEPT", "FORWARD DROP").replace("-j ACCEPT", "-j RETURN");
    let evaluator = Evaluator::parse(&text, &empty(), "").unwrap();
    let walk = evaluator.walk("FORWARD", &tcp("10.0.0.1", "10.0.0.2", 80)).unwrap();
    assert_eq!(walk.ending, WalkEnd::Drop);
}

#[test]
fn rules_without_a_target_and_with_other_conditions_are_passed_over() {
    let rules = "-A FORWARD -s 10.0.0.1 -m comment --comment counts
                 -A FORWARD -s 10.0.0.2 -j ACCEPT
                 -A FORWARD -s 10.0.0.1 -m comment --comment \"with \\\"quotes\\\"\" -j DROP";
    walk(rules, &tcp("10.0.0.1", "10.0.0.2", 80), WalkEnd::Drop, &["counts", "with \"quotes\""]);
}

#[test]
fn runs_of_addresses_are_left_and_entered_again_in_order() {
    let rules = "-A FORWARD -s 10.0.0.1 -m comment --comment a1 -j A
                 -A FORWARD -s 10.0.0.2 -m comment --comment a2 -j A
                 -A FORWARD -s 10.0.0.1 -m comment --comment a3 -j A
                 -A FORWARD -d 10.0.0.9 -m comment --comment b1 -j A
                 -A FORWARD -d 10.0.0.8 -m comment --comment b2 -j A
                 -A FORWARD -d 10.0.0.9 -p udp -j A
                 -A FORWARD -s 10.0.0.1 -m comment --comment c1 -j DROP
                 -A A -p udp -j ACCEPT";
    walk(rules, &tcp("10.0.0.1", "10.0.0.9", 80), WalkEnd::Drop, &["a1", "a3", "b1", "c1"]);
    walk(rules, &tcp("10.0.0.2", "10.0.0.8", 80), WalkEnd::Accept, &["a2", "b2"]);
    walk(rules, &tcp("10.0.0.3", "10.0.0.3", 80), WalkEnd::Accept, &[]);
}

#[test]
fn each_family_has_its_table() {
    let v6 = table("-A FORWARD -p ipv6-icmp -m set --match-set six src -j DROP");
    let evaluator = Evaluator::parse(&empty(), &v6, SETS).unwrap();
    let ending = |packet| evaluator.walk("FORWARD", &packet).unwrap().ending;
    assert_eq!(ending(packet("2001:db8::1", "::1", 58, 0)), WalkEnd::Drop);
    assert_eq!(ending(packet("2001:db9::1", "::1", 58, 0)), WalkEnd::Accept);
    assert_eq!(ending(packet("10.0.0.1", "10.0.0.1", 58, 0)), WalkEnd::Accept);
}

#[test]
fn text_that_is_not_understood_is_an_error() {
    for (rule, said) in [
        ("-i eth0 -j DROP", "-i"),
        ("-m limit --limit 5/min -j DROP", "limit"),
        ("-p tcp -m tcp --sport 80 -j DROP", "--sport"),
        ("-p tcp -m tcp --tcp-flags SYN SYN -j DROP", "--tcp-flags"),
        ("--dport 80 -j DROP", "--dport"),
        ("-m conntrack --ctstate INVALID -j DROP", "INVALID"),
        ("-p gre -j DROP", "gre"),
        ("-p ipv6-icmp -m icmp6 --icmpv6-type 129/0 -j DROP", "129/0"),
        ("-s 10.0.0.0/33 -j DROP", "10.0.0.0/33"),
        ("-s 2001:db8::1 -j DROP", "2001:db8::1"),
        ("-s 10.0.0.1 -j DROP extra", "extra"),
        ("-g FORWARD", "FORWARD"),
        ("! -j DROP", "! -j"),
        ("-p tcp -m multiport --dports 90:80 -j DROP", "90:80"),
    ] {
        refuse(&format!("-A FORWARD {rule}"), &format!("v4 line 4: not understood: `{said}`"));
    }
    refuse_text("*nat\nCOMMIT\n", "", "v4 line 1: not understood: `*nat`");
    refuse_text("*filter\n:FORWARD ACCEPT\nCOMMIT\n", "", "v4 line 2: not understood: `FORWARD ACCEPT`");
    refuse_text("*filter\n-D FORWARD\nCOMMIT\n", "", "v4 line 2: not understood: `-D FORWARD`");
}

#[test]
fn rules_that_the_kernel_refuses_are_an_error() {
    refuse("-A FORWARD -j NOWHERE", "v4 line 4: `NOWHERE` is not defined");
    refuse("-A FORWARD -j REJECT", "v4 line 4: `REJECT` is not defined");
    refuse("-A FORWARD -j A\n-A A -j B\n-A B -g A", "v4 line 9: chain `A` reaches itself");
    refuse("-A FORWARD -m set --match-set none src -j DROP", "v4 line 4: `none` is not defined");
    refuse("-A FORWARD -m set --match-set six src -j DROP", "v4 line 4: set `six` does not fit here");
    refuse("-A FORWARD -m set --match-set ports dst -j DROP", "v4 line 4: set `ports` does not fit here");
    refuse("-A FORWARD -m set --match-set ips dst,dst -j DROP", "v4 line 4: set `ips` does not fit here");
    refuse("-A FORWARD -s 10.0.0.1 -s 10.0.0.2 -j DROP", "v4 line 4: `-s` occurs twice");
    refuse("-A FORWARD -j DROP -j DROP", "v4 line 4: `-j` occurs twice");
    refuse("-A FORWARD -j", "v4 line 4: `-j` needs a value");
    refuse("-A FORWARD -j DROP !", "v4 line 4: `!` needs a value");
    let needs = "v4 line 4: ports need `-p tcp`, `-p udp` or `-p sctp`";
    refuse("-A FORWARD -m multiport --dports 80 -j DROP", needs);
    refuse("-A FORWARD ! -p tcp -m multiport --dports 80 -j DROP", needs);
    let needs = "v4 line 4: types of ICMPv6 need `-p ipv6-icmp`";
    refuse("-A FORWARD -m icmp6 --icmpv6-type 135 -j DROP", needs);
    refuse("-A FORWARD -p tcp -m icmp6 --icmpv6-type 135 -j DROP", needs);
    let many = "-A FORWARD -p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14:15,16 -j DROP";
    refuse(many, "v4 line 4: more than 15 ports in one match");
    let long = "A".repeat(29);
    refuse(&format!("-A {long} -j DROP"), &format!("v4 line 4: `{long}` is longer than 28 characters"));
    refuse_text("*filter\n:FORWARD ACCEPT [0:0]\n", "", "v4 line 2: the table is not committed");
    refuse_text("*filter\n:A - [0:0]\n:A - [0:0]\nCOMMIT\n", "", "v4 line 3: `A` occurs twice");
}

#[test]
fn text_that_ipset_refuses_is_an_error() {
    for (sets, said) in [
        ("create s hash:mac", "line 1: not understood: `hash:mac`"),
        ("create s hash:ip timeout 5", "line 1: not understood: `timeout 5`"),
        ("create s hash:ip\nadd s 10.0.0.0/24", "line 2: not understood: `10.0.0.0/24`"),
        ("create s hash:ip family inet6\nadd s 10.0.0.1", "line 2: not understood: `10.0.0.1`"),
        ("create s hash:ip\nadd s 10.0.0.1 nomatch", "line 2: not understood: `nomatch`"),
        ("create s hash:net\nadd s 0.0.0.0/0", "line 2: not understood: `0.0.0.0/0`"),
        ("create s hash:net\nadd s 10.0.0.1/8\nadd s 10.0.0.2/8", "line 3: `10.0.0.2/8` occurs twice"),
        ("create s hash:ip,port\nadd s 10.0.0.1,80", "line 2: not understood: `10.0.0.1,80`"),
        ("create s hash:ip,port\nadd s 10.0.0.1,icmp:8", "line 2: not understood: `10.0.0.1,icmp:8`"),
        ("create s hash:ip maxelem 1\nadd s 10.0.0.1\nadd s 10.0.0.2", "line 3: set `s` takes 1 elements and no more"),
        ("create s hash:ip\ncreate s hash:ip", "line 2: `s` occurs twice"),
        ("add s 10.0.0.1", "line 1: `s` is not defined"),
        ("flush s", "line 1: not understood: `flush s`"),
    ] {
        refuse_text(&empty(), sets, &format!("sets {said}"));
    }
    let long = "s".repeat(32);
    let said = format!("sets line 1: `{long}` is longer than 31 characters");
    refuse_text(&empty(), &format!("create {long} hash:ip"), &said);
}
