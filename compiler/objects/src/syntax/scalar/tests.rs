//! Every expectation here was compared with `sigs.k8s.io/yaml` 1.6.

use super::*;

#[track_caller]
fn check(expected: Scalar, texts: &str) {
    for text in texts.split(' ') {
        assert_eq!(plain(text), expected, "{text:?}");
    }
}

#[test]
fn words_of_yaml_1_1_are_truth_values_and_null() {
    check(Scalar::Bool(true), "y Y yes Yes YES true True TRUE on On ON");
    check(Scalar::Bool(false), "n N no No NO false False FALSE off Off OFF");
    check(Scalar::Null, "~ null Null NULL");
    assert_eq!(plain(""), Scalar::Null);
    check(Scalar::Str, "yEs nULL tRue oN Y. nul <<");
}

#[test]
fn integers_are_written_as_in_go() {
    check(Scalar::Int(8), "8 +8 010 0o10 0O10 0x8 0X8 0b1000 0B1000 8_ 0_1_0");
    check(Scalar::Int(-8), "-8 -010 -0x8 -0b1000");
    check(Scalar::Int(8080), "8_080 8080");
    check(Scalar::Int(0), "0 00 -0 +0");
    check(Scalar::Int(i64::MAX), "9223372036854775807");
    check(Scalar::Uint(u64::MAX), "18446744073709551615 0xffffffffffffffff");
    check(Scalar::Str, "_8 0x 0b 0b2 0o8 + - +-8 1:30 190:20:30 1,000 12a 0x_");
}

#[test]
fn floats_have_the_forms_of_yaml_1_1() {
    check(Scalar::Float(8.0), "08 8.0 8. 8.00 0.8e1 80e-1 +8.0");
    check(Scalar::Float(1000.0), "1e3 1E3 1e+3 1_0e2");
    check(Scalar::Float(0.5), ".5 0.5 .5_0 .50 0_.5");
    check(Scalar::Float(f64::INFINITY), ".inf .Inf .INF +.inf");
    check(Scalar::Float(f64::NEG_INFINITY), "-.inf -.INF");
    check(Scalar::Str, ". .. .e3 ._5 .5_ 1e 1e+ 1e999 -1e999 inf nan infinity 0x1p4 1.2.3 10.0.0.0/8 .iNf");
}

#[test]
fn dates_are_strings() {
    check(Scalar::Str, "2001-12-14 2001-12-14T21:59:43.10-05:00 12:30:45");
}

#[test]
fn tags_ask_for_a_kind() {
    let yaml = |tag: &str, text: &str| tagged(&format!("{YAML}{tag}"), text);
    assert_eq!(yaml("str", "12"), Ok(Scalar::Str));
    assert_eq!(yaml("int", "0x10"), Ok(Scalar::Int(16)));
    assert_eq!(yaml("int", "08"), Err("a number"));
    assert_eq!(yaml("int", ""), Err("null"));
    assert_eq!(yaml("float", "1"), Ok(Scalar::Float(1.0)));
    assert_eq!(yaml("bool", "yes"), Ok(Scalar::Bool(true)));
    assert_eq!(yaml("bool", "1"), Err("an integer"));
    assert_eq!(yaml("null", "x"), Err("a string"));
    assert_eq!(yaml("binary", "12"), Ok(Scalar::Str));
    assert_eq!(tagged("!", "12"), Ok(Scalar::Str));
    assert_eq!(tagged("!mine", "yes"), Ok(Scalar::Str));
}

#[test]
fn float_keys_are_gos_shortest_form_of_32_bits() {
    let cases = [
        (0.1, "0.1"),
        (1.0, "1"),
        (100_000.0, "100000"),
        (1e6, "1e+06"),
        (1_234_567.5, "1.2345675e+06"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (16_777_217.0, "1.6777216e+07"),
        (1e39, ".inf"),
        (-1e39, "-.inf"),
        (f64::NAN, ".nan"),
    ];
    for (number, key) in cases {
        assert_eq!(float_key(number), key);
    }
}
