//! Recorded flows in the formats of several programs → names and addresses of ends.
//!
//! A file is JSON (`weir flows -o json`), JSON lines (`weir monitor -o jsonl`, `hubble observe -o jsonpb`, the questions
//! of `weir query`), or a table with a header (CSV, or words separated by spaces, as VPC flow logs are). Only accepted
//! connections are used, in the direction in which they were opened.

use anyhow::{Result, anyhow};
use serde_json::Value;

use crate::failure::with_hint;

/// One end, as it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordedEnd {
    pub(super) pod: Option<String>,
    pub(super) ip: Option<String>,
}

/// One flow, as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) from: RecordedEnd,
    pub(super) to: RecordedEnd,
    pub(super) protocol: String,
    pub(super) port: u64,
}

/// The records of a file. Lines that are no accepted new connection are left out.
pub(super) fn parse(name: &str, text: &str) -> Result<Vec<Record>> {
    let start = text.trim_start();
    if !start.starts_with('{') {
        return table(text).map_err(|reason| unreadable(name, &reason));
    }
    if let Ok(document) = serde_json::from_str::<Value>(start)
        && let Some(flows) = document["flows"].as_array()
    {
        return Ok(flows.iter().filter_map(of_table_of_flows).collect());
    }
    let mut records = Vec::new();
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
        let value = serde_json::from_str(line);
        let value: Value = value.map_err(|_| unreadable(name, &format!("line {number} is not JSON")))?;
        records.extend(of_line(&value));
    }
    Ok(records)
}

fn unreadable(name: &str, reason: &str) -> anyhow::Error {
    let hint = "recorded flows are the output of `weir flows -o json`, `weir monitor -o jsonl` or `hubble observe -o \
                jsonpb`, or a table with the columns src, dst, dport and proto";
    with_hint(anyhow!("{name} is not a record of flows: {reason}").to_string(), hint)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|it| !it.is_empty()).map(str::to_owned)
}

/// A flow of `weir flows -o json`.
fn of_table_of_flows(flow: &Value) -> Option<Record> {
    let end = |value: &Value| RecordedEnd { pod: text(&value["pod"]), ip: text(&value["ip"]) };
    let local = RecordedEnd { pod: text(&flow["pod"]), ..end(&flow["local"]) };
    let remote = end(&flow["remote"]);
    let is_ingress = flow["direction"] == "ingress";
    let (from, to) = if is_ingress { (remote, local) } else { (local, remote) };
    let port = flow[if is_ingress { "local" } else { "remote" }]["port"].as_u64().unwrap_or(0);
    // Some programs that send UDP expect no answer. A TCP connection without an answer is a try.
    let is_try =
        flow["answered"] == false && flow["protocol"].as_str().is_some_and(|it| !it.eq_ignore_ascii_case("udp"));
    (flow["state"] != "cut" && !is_try).then_some(Record { from, to, protocol: text(&flow["protocol"])?, port })
}

fn of_line(line: &Value) -> Option<Record> {
    if line.get("src").is_some() {
        return of_question(line);
    }
    if line.get("local").is_some() { of_event(line) } else { of_hubble(line.get("flow").unwrap_or(line)) }
}

/// A line of `weir query`.
fn of_question(line: &Value) -> Option<Record> {
    let end = |value: &Value| RecordedEnd { pod: text(&value["pod"]), ip: text(&value["ip"]) };
    let port = line["port"].as_u64().unwrap_or(0);
    Some(Record { from: end(&line["src"]), to: end(&line["dst"]), protocol: text(&line["proto"])?, port })
}

/// A line of `weir monitor -o jsonl`.
fn of_event(line: &Value) -> Option<Record> {
    if line["verdict"] != "allow" {
        return None;
    }
    let local = RecordedEnd { pod: text(&line["pod"]), ip: text(&line["local"]["ip"]) };
    let peer = RecordedEnd { pod: text(&line["peer"]["pod"]), ip: text(&line["peer"]["ip"]) };
    let (from, to, at) = match line["direction"].as_str()? {
        "ingress" => (peer, local, "local"),
        _ => (local, peer, "peer"),
    };
    Some(Record { from, to, protocol: text(&line["proto"])?, port: line[at]["port"].as_u64().unwrap_or(0) })
}

/// A flow of `hubble observe -o jsonpb`: a forwarded packet that is no reply.
fn of_hubble(flow: &Value) -> Option<Record> {
    let is_reply = flow["is_reply"].as_bool().or_else(|| flow["isReply"].as_bool()).unwrap_or(false);
    if flow["verdict"] != "FORWARDED" || is_reply {
        return None;
    }
    let (protocol, ports) = flow["l4"].as_object()?.iter().next()?;
    let end = |which: &str| {
        let (namespace, pod) = (text(&flow[which]["namespace"]), text(&flow[which]["pod_name"]));
        RecordedEnd {
            pod: namespace.zip(pod).map(|(namespace, pod)| format!("{namespace}/{pod}")),
            ip: text(&flow["IP"][which]),
        }
    };
    let protocol = if protocol.starts_with("ICMP") { "icmp".to_owned() } else { protocol.clone() };
    let port = ports["destination_port"].as_u64().unwrap_or(0);
    Some(Record { from: end("source"), to: end("destination"), protocol, port })
}

/// The names of a column in the tables of several programs.
const COLUMNS: [(&str, &[&str]); 5] = [
    ("src", &["src", "srcaddr", "source", "src_ip", "sourceaddress"]),
    ("dst", &["dst", "dstaddr", "destination", "dst_ip", "destinationaddress"]),
    ("dport", &["dport", "dstport", "port", "dst_port", "destinationport"]),
    ("proto", &["proto", "protocol"]),
    ("action", &["action", "verdict"]),
];

fn table(text: &str) -> Result<Vec<Record>, String> {
    let mut lines = text.lines().filter(|it| !it.trim().is_empty() && !it.starts_with('#'));
    let header = lines.next().ok_or("it is empty")?;
    let cells = |line: &str| -> Vec<String> {
        match header.contains(',') {
            true => line.split(',').map(|it| it.trim().trim_matches('"').to_owned()).collect(),
            false => line.split_whitespace().map(str::to_owned).collect(),
        }
    };
    let names = cells(&header.to_lowercase());
    let column = |wanted: &str| {
        let known = COLUMNS.iter().find(|(name, _)| *name == wanted).map_or(&[][..], |(_, known)| known);
        names.iter().position(|it| known.contains(&it.replace('-', "_").as_str()))
    };
    let needed = |wanted: &str| column(wanted).ok_or(format!("its first line has no column `{wanted}`"));
    let (src, dst, port, proto) = (needed("src")?, needed("dst")?, needed("dport")?, needed("proto")?);
    let action = column("action");
    let record = |line: &str| {
        let cells = cells(line);
        let is_accepted =
            |word: &String| ["accept", "allow", "allowed", "forwarded"].contains(&word.to_lowercase().as_str());
        let accepted = action.and_then(|it| cells.get(it)).is_none_or(is_accepted);
        let end = |column: usize| {
            let cell = cells.get(column)?.clone();
            let is_address = cell.parse::<std::net::IpAddr>().is_ok();
            Some(if is_address {
                RecordedEnd { pod: None, ip: Some(cell) }
            } else {
                RecordedEnd { pod: Some(cell), ip: None }
            })
        };
        let (from, to) = (end(src)?, end(dst)?);
        let port = cells.get(port)?.parse().ok()?;
        accepted.then_some(Record { from, to, protocol: protocol_name(cells.get(proto)?), port })
    };
    Ok(lines.filter_map(record).collect())
}

/// A protocol by name or by number.
fn protocol_name(word: &str) -> String {
    match word {
        "6" => "tcp",
        "17" => "udp",
        "132" => "sctp",
        "1" | "58" => "icmp",
        other => other,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(from: (Option<&str>, Option<&str>), to: (Option<&str>, Option<&str>), port: u64) -> Record {
        let end = |(pod, ip): (Option<&str>, Option<&str>)| RecordedEnd {
            pod: pod.map(str::to_owned),
            ip: ip.map(str::to_owned),
        };
        Record { from: end(from), to: end(to), protocol: "tcp".to_owned(), port }
    }

    #[test]
    fn every_format_is_read() {
        let (web, db) = ((Some("shop/web"), Some("10.0.0.1")), (Some("shop/db"), Some("10.0.0.2")));
        let (web_ip, db_ip) = ((None, Some("10.0.0.1")), (None, Some("10.0.0.2")));
        let flows = r#"{"flows": [
            {"pod": "shop/db", "protocol": "tcp", "direction": "ingress", "state": "open",
             "local": {"ip": "10.0.0.2", "pod": "shop/db", "port": 5432},
             "remote": {"ip": "10.0.0.1", "pod": "shop/web", "port": 40000}},
            {"pod": "shop/web", "protocol": "TCP", "direction": "egress", "state": "opening", "answered": false,
             "local": {"ip": "10.0.0.1"}, "remote": {"ip": "10.0.0.3", "port": 22}},
            {"pod": "shop/db", "protocol": "tcp", "direction": "ingress", "state": "cut",
             "local": {"ip": "10.0.0.2"}, "remote": {"ip": "10.0.0.9"}}]}"#;
        let event = r#"{"verdict":"allow","direction":"egress","pod":"shop/web","proto":"tcp","local":{"ip":"10.0.0.1","port":40000},"peer":{"ip":"10.0.0.2","pod":"shop/db","port":5432}}
{"verdict":"deny","direction":"egress","pod":"shop/web","proto":"tcp","local":{"ip":"10.0.0.1"},"peer":{"ip":"10.0.0.3","port":1}}"#;
        let hubble = r#"{"flow":{"verdict":"FORWARDED","IP":{"source":"10.0.0.1","destination":"10.0.0.2"},"l4":{"tcp":{"source_port":40000,"destination_port":5432}},"source":{"namespace":"shop","pod_name":"web"},"destination":{"namespace":"shop","pod_name":"db"},"is_reply":false}}
{"flow":{"verdict":"FORWARDED","is_reply":true,"l4":{"tcp":{"destination_port":40000}}}}
{"flow":{"verdict":"DROPPED","l4":{"tcp":{"destination_port":1}}}}"#;
        for text in [flows, event, hubble] {
            assert_eq!(parse("x", text).expect("records"), [record(web, db, 5432)], "{text}");
        }
        let csv = "src,dst,dport,proto,action\n10.0.0.1,10.0.0.2,5432,6,ACCEPT\n10.0.0.1,10.0.0.2,22,6,REJECT\n";
        let vpc = "version srcaddr dstaddr srcport dstport protocol action\n2 10.0.0.1 10.0.0.2 40000 5432 6 ACCEPT\n";
        for text in [csv, vpc] {
            assert_eq!(parse("x", text).expect("records"), [record(web_ip, db_ip, 5432)], "{text}");
        }
        assert!(parse("x", "a,b\n1,2\n").is_err() && parse("x", "{\n").is_err());
    }
}
