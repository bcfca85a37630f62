//! Measures the time of attaching and switching. The times are printed and not asserted, because a machine may be busy.

use std::time::Instant;

use super::{QUIET, asked, generation, policy};
use crate::enforce::{attach, weir};
use crate::namespace::run;
use crate::place::Place;
use crate::topology::{Layout, Net, NodePlan, Plan};

#[test]
fn many_endpoints_are_attached_and_switched_together() {
    weir_runtime::skip!(unless crate::privilege());
    let _alone = QUIET.write().unwrap_or_else(|it| it.into_inner());
    let endpoints = asked("WEIR_LOAD_ENDPOINTS", 250) as usize;
    let node = NodePlan { name: "here".to_owned(), ..NodePlan::default() };
    let net = Net::new(Layout::Routed, Plan { nodes: vec![node], outside: Vec::new() }).unwrap();
    let place = Place::new().unwrap();
    let links =
        (0..endpoints).map(|it| format!("link add pod{it} type veth peer name peer{it}\nlink set pod{it} up\n"));
    net.nodes[0].space.ip(&links.collect::<String>()).unwrap();
    let port = |port: u16| policy(0, "Ingress", &format!("ingress: [{{ports: [{{port: {port}}}]}}]"));
    let [first, second] = [80, 81].map(|it| generation(&net, &place, &it.to_string(), endpoints, &port(it)));
    let begun = Instant::now();
    // No pod uses the other ends of the interfaces.
    let named: Vec<String> =
        (0..endpoints).flat_map(|it| ["--endpoint".to_owned(), format!("default/p{it}=pod{it}")]).collect();
    attach(&net.nodes[0], &place, &first, &named.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let attached = begun.elapsed();
    let begun = Instant::now();
    run(
        net.nodes[0]
            .space
            .command(weir())
            .arg("attach")
            .arg(&second)
            .arg("--bpffs")
            .arg(crate::enforce::pins(&place, &net.nodes[0])),
        "",
    )
    .unwrap();
    println!(
        "{endpoints} endpoints: attached in {} ms, switched in {} ms",
        attached.as_millis(),
        begun.elapsed().as_millis()
    );
    let status = crate::enforce::ask(&net.nodes[0], &place, &["status", "-o", "json"]).unwrap();
    assert_eq!(status.matches("default/p").count(), endpoints, "{status}");
}
