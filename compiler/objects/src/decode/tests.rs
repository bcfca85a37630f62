//! The results for whole inputs: documents, lists, list files, names, and the fields of the kinds read for context.

use super::{DecodeOptions, Decoded, Input, InputKind, decode};
use crate::diagnostic::{Diagnostics, FindingPlace, Severity};
use crate::k8s::{Body, Object, TargetPort};

fn input(name: &str, text: &str, kind: InputKind) -> Input {
    Input { name: name.to_owned(), bytes: text.as_bytes().to_vec(), kind }
}

fn read(inputs: Vec<Input>) -> (Decoded, Diagnostics) {
    decode(inputs, &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false })
}

fn manifest(text: &str) -> (Decoded, Diagnostics) {
    read(vec![input("a.yaml", text, InputKind::Manifest)])
}

/// Objects, skipped documents and findings, a line each.
fn print((decoded, diagnostics): &(Decoded, Diagnostics)) -> String {
    let objects = decoded.objects.iter().map(|object| {
        let kind = object.body.kind();
        format!("{} {kind} {}/{}", object.id, object.meta.namespace, object.meta.name)
    });
    let skipped = decoded.skipped.iter().map(|(kind, count)| format!("skipped {count} {kind}"));
    let findings = diagnostics.iter().map(|found| {
        let place = match &found.primary.place {
            FindingPlace::Field(origin) | FindingPlace::FieldName(origin) | FindingPlace::FirstFieldName(origin) => {
                format!("{} {}", origin.object, origin.path)
            }
            FindingPlace::Text(place) => format!("text {}..{}", place.span.start, place.span.end),
        };
        format!("{} {place}", found.code.name)
    });
    objects.chain(skipped).chain(findings).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(print(&manifest(text)), expected, "{text}");
}

#[track_caller]
fn single(text: &str) -> Object {
    let (decoded, diagnostics) = manifest(text);
    assert_eq!(print(&(Decoded::default(), diagnostics)), "");
    decoded.objects.into_iter().next().expect("one object")
}

#[test]
fn items_of_a_typed_list_get_its_kind() {
    let expected = "o0 Pod default/a\no1 Pod b/b";
    check(
        r#"{"items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "namespace": "b"}}], "kind": "PodList", "apiVersion": "v1"}"#,
        expected,
    );
    check(
        "kind: PodList\napiVersion: v1\nitems:\n- metadata: {name: a}\n- metadata: {name: b, namespace: b}\n",
        expected,
    );
}

#[test]
fn lists_may_hold_lists() {
    let item = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}"#;
    let list = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item}]}}"#);
    check(&format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{list}]}}"#), "o0 Namespace /a");
}

#[test]
fn a_plain_list_does_not_guess_what_its_items_are() {
    check("apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n  metadata: {name: a}\n", "missing-kind o0 ");
}

#[test]
fn lists_without_items_are_empty() {
    check("apiVersion: v1\nkind: List\nitems: null\n---\napiVersion: v1\nkind: PodList\n", "");
    check("apiVersion: v1\nkind: List\nitems: {}\n", "wrong-type o0 items");
    // No list has this version, but its items are read all the same.
    check("apiVersion: v2\nkind: List\nitems: [{apiVersion: v1, kind: Node, metadata: {name: a}}]\n", "o0 Node /a");
}

#[test]
fn other_kinds_are_counted_and_near_misses_are_not() {
    check(
        "apiVersion: v1\nkind: Secret\n---\napiVersion: v1\nkind: Secret\n---\napiVersion: crd.projectcalico.org/v1\nkind: NetworkPolicy\n",
        "skipped 1 crd.projectcalico.org/v1 NetworkPolicy\nskipped 2 v1 Secret\nunread-policy o0 kind",
    );
    check("apiVersion: networking.k8s.io/v1beta1\nkind: NetworkPolicy\n", "unserved-version o0 apiVersion");
}

#[test]
fn policies_of_other_projects_are_reported() {
    let finds = |version: &str, kind: &str, rest: &str, expected: usize| {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n{rest}\n");
        let (decoded, diagnostics) = manifest(&text);
        let found = diagnostics.iter().filter(|found| found.code.name == "unread-policy").count();
        assert_eq!((found, decoded.foreign.len(), diagnostics.len()), (expected, expected, expected), "{text}");
    };
    for (version, kind) in [
        ("cilium.io/v2", "CiliumNetworkPolicy"),
        ("projectcalico.org/v3", "GlobalNetworkPolicy"),
        ("crd.antrea.io/v1beta1", "ClusterNetworkPolicy"),
        ("networking.k8s.aws/v1alpha1", "ClusterNetworkPolicy"),
        ("v1", "EgressNetworkPolicy"),
    ] {
        finds(version, kind, "", 1);
    }
    for (version, kind) in [
        ("projectcalico.org/v3", "StagedNetworkPolicy"),
        ("networking.k8s.aws/v1alpha1", "PolicyEndpoint"),
        ("security.istio.io/v1", "AuthorizationPolicy"),
        ("kubeovn.io/v1", "Subnet"),
    ] {
        finds(version, kind, "", 0);
    }
    finds("kubeovn.io/v1", "Subnet", "spec: {private: false, acls: []}", 0);
    finds("kubeovn.io/v1", "Subnet", "spec: {private: true}", 1);
    finds("kubeovn.io/v1", "Subnet", "spec: {acls: [{action: drop}]}", 1);
}

#[test]
fn copies_of_policies_that_calico_lists_are_not_reported() {
    check(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: knp.default.web}\n",
        "skipped 1 projectcalico.org/v3 NetworkPolicy",
    );
}

#[test]
fn policies_of_other_projects_are_found_in_lists() {
    check(
        r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy"}]}"#,
        "skipped 1 cilium.io/v2 CiliumNetworkPolicy\nunread-policy o0 kind",
    );
}

#[test]
fn yaml_that_is_no_object_is_passed_over_with_a_warning() {
    check("apiVersion: v2\nname: chart\nversion: 1.0.0\n", "skipped 1 not a Kubernetes object\nnot-an-object o0 ");
    check("- a\n", "missing-kind o0 ");
    check("metadata: {name: a}\nkind: Pod\n", "missing-kind o0 ");
    check("", "");
}

#[test]
fn a_bad_item_hides_no_other() {
    check(
        r#"{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": 5}}, {"metadata": {"name": "b"}}, {"metadata": {"name": "c""#,
        "o1 Pod default/b\nwrong-type o0 metadata.name\nsyntax-error text 131..131",
    );
}

#[test]
fn the_same_name_twice_is_an_error_that_points_at_both() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
    let (decoded, diagnostics) =
        read(vec![input("a.yaml", pod, InputKind::Manifest), input("b.yaml", pod, InputKind::Manifest)]);
    let found = diagnostics.iter().next().expect("a finding");
    assert_eq!(print(&(decoded, diagnostics.clone())), "o0 Pod default/a\nduplicate-object o1 ");
    assert!(
        matches!(&found.secondary[..], [label] if matches!(&label.place, FindingPlace::Field(origin) if origin.object.0 == 0))
    );
}

#[track_caller]
fn check_policy_findings(spec: &str, expected: &[&str]) {
    let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: ";
    let (_, diagnostics) = manifest(&format!("{head}{spec}\n"));
    let found: Vec<String> = print(&(Decoded::default(), diagnostics)).lines().map(str::to_owned).collect();
    assert_eq!(found, expected, "{spec}");
}

#[test]
fn echoes_of_a_misspelt_field_are_left_out_and_independent_mistakes_are_not() {
    check_policy_findings(
        "{podSelector: {}, ingress: [{from: [{podselector: {}}]}]}",
        &["unknown-field o0 spec.ingress[0].from[0].podselector"],
    );
    check_policy_findings(
        "{podSelector: {}, ingress: [{from: [{ipBlock: {CIDR: 10.0.0.0/8}}]}]}",
        &["unknown-field o0 spec.ingress[0].from[0].ipBlock.CIDR"],
    );
    check_policy_findings(
        "{podSelector: {}, ingress: [{ports: [{Protocol: UDP, port: 0}]}]}",
        &["unknown-field o0 spec.ingress[0].ports[0].Protocol", "port-out-of-range o0 spec.ingress[0].ports[0].port"],
    );
}

#[test]
fn generated_names_are_never_the_same() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\n";
    check(&format!("{pod}---\n{pod}"), "o0 Pod default/a-\no1 Pod default/a-");
}

#[test]
fn list_files_are_lists_named_after_the_file() {
    let text = "# drop\r\n192.0.2.1 ; one\r\n\r\n  192.0.2.0/24# net\n2001:db8::1-2001:db8::9";
    let (decoded, diagnostics) = read(vec![input("lists/drop.txt", text, InputKind::DenyList)]);
    assert!(diagnostics.has_errors() || diagnostics.is_empty());
    let [Object { meta, body: Body::CidrList(list), .. }] = &decoded.objects[..] else { panic!("one list") };
    let entries: Vec<String> =
        list.entries.iter().map(|entry| format!("{} {}-{}", entry.position, entry.first, entry.last)).collect();
    assert_eq!(meta.name, "drop.txt");
    assert_eq!((list.order, list.ingress, list.egress), (100, true, true));
    assert_eq!(entries, ["2 192.0.2.1-192.0.2.1", "4 192.0.2.0-192.0.2.255", "5 2001:db8::1-2001:db8::9"]);
}

#[test]
fn list_files_are_taken_as_they_are_published() {
    let text = "\u{feff}; Spamhaus DROP List\r\n\
        1.10.16.0/20 ; SBL256894\r\n\
        # a header, then plain addresses with Windows line ends\r\n\
        \t192.0.2.7  \r\n\
        192.0.2.9\t# why\r\n\
        \r\n\
        198.51.100.1 - 198.51.100.9\r\n\
        2001:db8::/48\r\n\
        2001:DB8::7";
    let (decoded, diagnostics) = read(vec![input("drop.netset", text, InputKind::DenyList)]);
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    let Body::CidrList(list) = &decoded.objects[0].body else { panic!("{decoded:?}") };
    let entries: Vec<String> =
        list.entries.iter().map(|it| format!("{}: {}-{}", it.position, it.first, it.last)).collect();
    assert_eq!(
        entries,
        [
            "2: 1.10.16.0-1.10.31.255",
            "4: 192.0.2.7-192.0.2.7",
            "5: 192.0.2.9-192.0.2.9",
            "7: 198.51.100.1-198.51.100.9",
            "8: 2001:db8::-2001:db8:0:ffff:ffff:ffff:ffff:ffff",
            "9: 2001:db8::7-2001:db8::7",
        ]
    );
}

#[test]
fn other_kinds_of_files_are_no_lists_and_the_error_names_their_kind() {
    let text =
        "192.0.2.1\ncreate bad hash:ip\nadd bad 192.0.2.7 timeout 9\n0.0.0.0 ads.example.com\nexample.com\n192.0.2.1,7";
    let (decoded, diagnostics) = read(vec![input("bad.txt", text, InputKind::DenyList)]);
    assert!(decoded.objects.is_empty(), "a list that is not all there is no list");
    let found: Vec<(String, &str)> = diagnostics
        .iter()
        .map(|it| match &it.primary.place {
            FindingPlace::Field(origin) => (origin.path.to_string(), it.help.as_deref().unwrap_or_default()),
            other => panic!("{other:?}"),
        })
        .collect();
    let [ipset, one, write] = ["this is the output of `ipset save`", "write one entry per line", "write an address"];
    let expected = [(2, ipset), (3, ipset), (4, one), (5, write), (6, write)];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((path, help), (line, begins)) in found.iter().zip(expected) {
        assert_eq!(*path, format!("spec.cidrs[{line}]"));
        assert!(help.starts_with(begins), "{help}");
    }
}

#[test]
fn list_files_report_twenty_errors_and_count_the_rest() {
    let found = read(vec![input("drop.txt", &"x\n".repeat(1000), InputKind::AllowList)]);
    let printed = print(&found);
    assert_eq!(printed.lines().count(), 21);
    assert!(printed.starts_with("bad-list-entry o0 spec.cidrs[1]\nbad-list-entry o0 spec.cidrs[2]\n"));
    let last = found.1.iter().last().map(|found| found.message.clone());
    assert_eq!(last.as_deref(), Some("980 more findings in this object are not shown"));
}

#[test]
fn hidden_warnings_do_not_refuse_a_list() {
    let (decoded, diagnostics) = read(vec![input("drop.txt", &"192.0.2.1/24\n".repeat(30), InputKind::DenyList)]);
    assert_eq!((decoded.objects.len(), diagnostics.len()), (1, 21));
    assert!(diagnostics.iter().all(|found| found.severity == Severity::Warning));
}

#[test]
fn two_list_files_with_the_same_base_name_have_different_names() {
    let file = |name| input(name, "192.0.2.1", InputKind::DenyList);
    let found = read(vec![file("a/drop.txt"), file("b/drop.txt"), file("b/drop.txt")]);
    assert_eq!(print(&found), "o0 CidrList /drop.txt\no1 CidrList /b/drop.txt\nduplicate-object o2 ");
}

#[test]
fn bytes_that_are_no_text_are_an_error() {
    let bytes = Input { name: "a".to_owned(), bytes: vec![b'a', 0xff], kind: InputKind::Manifest };
    assert_eq!(print(&read(vec![bytes])), "not-text text 0..0");
}

#[test]
fn addresses_and_named_ports_are_read_from_pods() {
    let object = single(
        "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}, deletionTimestamp: '2026-01-31T09:30:00Z'}
spec:
  nodeName: n1
  initContainers:
  - {name: init, ports: [{name: init, containerPort: 1}]}
  - {name: sidecar, restartPolicy: Always, ports: [{name: side, containerPort: 15000, protocol: UDP}]}
  containers:
  - {name: b, ports: [{name: http, containerPort: 8080}, {containerPort: 99999}]}
  - {name: a, ports: [{name: http, containerPort: 80}]}
status:
  phase: Running
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]
  hostIP: 192.168.0.1
  conditions: [{type: Ready, status: 'False'}]
",
    );
    let Body::Pod(pod) = &object.body else { panic!("a pod") };
    let ports: Vec<String> =
        pod.ports.iter().map(|port| format!("{}={:?}/{}", port.name, port.protocol, port.number)).collect();
    assert_eq!(ports, ["http=Tcp/8080", "http=Tcp/80", "side=Udp/15000"]);
    assert_eq!(pod.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    assert_eq!(pod.node_addresses.len(), 1);
    assert!(pod.unready && object.meta.deleting && !pod.host_network);
    assert_eq!((pod.node.as_deref(), object.meta.labels.len()), (Some("n1"), 1));
}

#[test]
fn of_a_field_that_is_there_twice_the_last_counts() {
    let (decoded, diagnostics) =
        manifest("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: one, nodeName: two}\n");
    let [Object { body: Body::Pod(pod), .. }] = &decoded.objects[..] else { panic!("one pod") };
    assert_eq!((pod.node.as_deref(), diagnostics.len(), diagnostics.has_errors()), (Some("two"), 1, false));
}

#[test]
fn uid_of_a_static_pod_is_read_unless_it_can_be_another_pods() {
    let long = "a".repeat(129);
    for (written, is_read) in [
        ("0123456789abcdef0123456789abcdef", true),
        ("set-in-the-manifest", true),
        ("9b2f0c1e-7d43-4b8a-9a51-0e6d2c4f8a77", false),
        ("9B2F0C1E-7D43-4B8A-9A51-0E6D2C4F8A77", false),
        ("9b2f0c1e-7d43-4b8a-9a51-0e6d2c4f8a7", true),
        ("9b2f0c1e-7d43-4b8a-9a51-0e6d2c4f8a7z", true),
        ("", false),
        ("a b", false),
        ("ä", false),
        (long.as_str(), false),
        (&long[1..], true),
    ] {
        let object = single(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a, annotations: {{other: x, kubernetes.io/config.mirror: '{written}'}}}}}}"
        ));
        let Body::Pod(pod) = &object.body else { panic!("a pod") };
        assert_eq!(pod.static_uid.as_deref(), is_read.then_some(written), "{written}");
    }
}

#[test]
fn a_pod_without_status_has_no_phase_and_is_not_unready() {
    let object = single("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {hostNetwork: true}\n");
    let Body::Pod(pod) = &object.body else { panic!("a pod") };
    assert!(pod.phase.is_none() && !pod.unready && pod.addresses.is_empty() && pod.host_network);
}

#[test]
fn workloads_are_read_from_their_template() {
    let template = "{metadata: {labels: {app: a}}, spec: {containers: [{ports: [{name: http, containerPort: 80}]}]}}";
    let owners = "[{kind: Other, name: x}, {kind: Deployment, name: shop, controller: true}]";
    for (version, kind, spec) in [
        ("apps/v1", "ReplicaSet", format!("{{template: {template}}}")),
        ("batch/v1", "CronJob", format!("{{jobTemplate: {{spec: {{template: {template}}}}}}}")),
    ] {
        let object = single(&format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a, ownerReferences: {owners}}}\nspec: {spec}\n"
        ));
        let Body::Workload(workload) = &object.body else { panic!("a workload") };
        assert_eq!((&*workload.kind, workload.owner.as_deref()), (kind, Some("Deployment/shop")));
        assert_eq!((workload.pod_labels.len(), workload.ports.len()), (1, 1));
    }
}

#[test]
fn nodes_have_addresses_and_names() {
    let object = single(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus:\n  addresses:\n  - {type: InternalIP, address: 10.0.0.1}\n  - {type: Hostname, address: n1}\n  - {type: Other, address: 'fd00::1'}\n",
    );
    let Body::Node(node) = &object.body else { panic!("a node") };
    assert_eq!(node.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    check(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: n1}]}\n",
        "bad-address o0 status.addresses[0].address",
    );
}

#[test]
fn services_have_addresses_and_ports() {
    let object = single(
        "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, 'fd00::1']
  externalIPs: [192.0.2.1]
  selector: {app: web}
  ports:
  - {port: 80}
  - {name: named, port: 81, targetPort: http, protocol: UDP, nodePort: 30000}
  - {name: zero, port: 82, targetPort: 0, nodePort: 0}
status: {loadBalancer: {ingress: [{ip: 192.0.2.2}, {hostname: example.com}, {ip: 192.0.2.3, ipMode: Proxy}]}}
",
    );
    let Body::Service(service) = &object.body else { panic!("a service") };
    let targets: Vec<_> = service.ports.iter().map(|port| port.target.clone()).collect();
    assert_eq!(targets, [TargetPort::Number(80), TargetPort::Name("http".to_owned()), TargetPort::Number(82)]);
    assert_eq!(service.ports.iter().map(|port| port.node_port).collect::<Vec<_>>(), [None, Some(30000), None]);
    assert_eq!((service.cluster_addresses.len(), service.external_addresses.len()), (2, 2));
}

#[test]
fn headless_and_external_services_have_no_addresses() {
    for spec in ["{clusterIP: None, clusterIPs: [None]}", "{clusterIP: None}", "{type: ExternalName, externalName: x}"]
    {
        let object = single(&format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {spec}\n"));
        let Body::Service(service) = &object.body else { panic!("a service") };
        assert!(service.cluster_addresses.is_empty());
        assert_eq!(service.external_name, spec.contains("ExternalName"));
        assert_eq!(service.headless, spec.contains("None"));
    }
}

#[test]
fn slices_count_endpoints_as_ready_unless_they_say_otherwise() {
    let slice = |address_type: &str, address: &str| {
        single(&format!(
            "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: {address_type}
endpoints:
- {{addresses: [{address}], conditions: {{ready: null}}, targetRef: {{kind: Pod, name: web-0}}}}
- {{addresses: [{address}], conditions: {{ready: false, serving: false, terminating: true}}, nodeName: n1,
   targetRef: {{kind: Node, name: n1}}}}
ports: [{{name: http, port: 8080}}, {{name: all}}]
"
        ))
    };
    let object = slice("IPv4", "10.0.0.1");
    let Body::EndpointSlice(read) = &object.body else { panic!("a slice") };
    assert_eq!(read.service.as_deref(), Some("web"));
    assert_eq!(read.endpoints.iter().map(|endpoint| endpoint.ready).collect::<Vec<_>>(), [true, false]);
    let conditions = read.endpoints.iter().map(|endpoint| (endpoint.serving, endpoint.terminating));
    assert_eq!(conditions.collect::<Vec<_>>(), [(true, false), (false, true)]);
    assert_eq!(read.endpoints.iter().map(|endpoint| endpoint.node.as_deref()).collect::<Vec<_>>(), [None, Some("n1")]);
    assert_eq!(read.endpoints.iter().map(|endpoint| endpoint.pod.is_some()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(read.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [Some(8080), None]);
    let object = slice("FQDN", "example.com");
    assert!(matches!(&object.body, Body::EndpointSlice(slice) if slice.endpoints.is_empty()));
}

/// An object as the server sends it, and as it is in a file.
#[track_caller]
fn with_and_without_skipping(text: &str) -> [String; 2] {
    let is_of = |kind: &&str| text.contains(&format!(r#""kind": "{kind}", "#));
    let kind = ["Pod", "Node", "NetworkPolicy", "Service"].into_iter().find(is_of).expect("one of these kinds");
    [InputKind::Sent(kind), InputKind::Manifest].map(|how| {
        let options =
            DecodeOptions { default_namespace: "default".to_owned(), is_from_server: how != InputKind::Manifest };
        let (decoded, diagnostics) = decode(vec![input("a.json", text, how)], &options);
        let errors = diagnostics.iter().filter(|it| it.severity == Severity::Error);
        let errors: Vec<String> = errors.map(|it| format!("{} {:?}", it.code.name, it.primary.place)).collect();
        format!("{:?} {errors:?}", decoded.objects)
    })
}

#[test]
fn objects_of_a_server_have_the_same_content_although_fields_are_skipped() {
    let ignored = r#""env": [{"name": "A", "value": "}]\"{["}], "volumes": [{"a": {"b": [1, null, true, 1.5e3]}}]"#;
    let managed = r#""managedFields": [{"fieldsV1": {"f:labels": {".": {}}}}]"#;
    for text in [
        format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", {ignored}, "metadata": {{{managed}, "name": "a", "labels": {{"app": "a", "env": "b"}},
            "annotations": {{"a": "b", "kubernetes.io/config.mirror": "0a1b", "c": "{{"}}, "ownerReferences": [{{"kind": "ReplicaSet", "name": "r", "controller": true, "uid": "u"}}]}},
            "spec": {{{ignored}, "nodeName": "n", "containers": [{{{ignored}, "ports": [{{"name": "http", "containerPort": 80,
            "hostPort": 8080, "x": {{}}}}]}}], "initContainers": [{{"restartPolicy": "Always", "ports": [{{"name": "i", "containerPort": 1}}]}}]}},
            "status": {{"phase": "Running", {ignored}, "podIPs": [{{"ip": "10.0.0.1", "x": [{{}}]}}], "hostIPs": [{{"ip": "10.0.0.2"}}],
            "conditions": [{{"type": "Ready", "status": "False", "message": "no"}}]}}}}"#
        ),
        format!(
            r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "n", {managed}}}, "status": {{"images": [{{"names": ["a"]}}],
            "addresses": [{{"type": "InternalIP", "address": "10.0.0.1", "x": 1}}]}}}}"#
        ),
        // An address that cannot be read is an error, with the same place.
        r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "x": [], "status": {"podIPs": [{"x": 1, "ip": "nowhere"}]}}"#
            .to_owned(),
        // Fields of policies are never skipped: an unknown one is an error.
        r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"},
            "spec": {"podSelector": {}, "x": {"y": []}, "ingress": [{"from": [{"z": 1}]}]}}"#
            .to_owned(),
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"clusterIP": "10.96.0.1", "x": "y",
            "selector": {"x": "y"}, "ports": [{"port": 80, "targetPort": "http", "x": {}}]}}"#
            .to_owned(),
    ] {
        let [skipping, whole] = with_and_without_skipping(&text);
        assert_eq!(skipping, whole, "{text}");
    }
}

#[test]
fn objects_of_a_server_need_no_kind_and_other_kinds_are_left_out() {
    let sent = |text: &str, kind| {
        let options = DecodeOptions { default_namespace: String::new(), is_from_server: true };
        print(&decode(vec![input("/api/v1/pods", text, InputKind::Sent(kind))], &options))
    };
    let head = r#""metadata": {"name": "web", "namespace": "shop", "managedFields": [{}]}"#;
    let with = |more: &str| format!("{{{head}{more}}}");
    for more in ["", r#", "kind": "Pod", "apiVersion": "v1""#, r#", "spec": {"nodeName": "a", "volumes": [1, {}]}"#] {
        assert_eq!(sent(&with(more), "Pod"), "o0 Pod shop/web", "{more}");
    }
    assert_eq!(sent(&with(r#", "kind": "Service", "apiVersion": "v1""#), "Pod"), "");
    assert_eq!(sent(&with(""), "Unknown"), "");
    assert_eq!(sent(&with(r#", "status": {"podIP": 7}"#), "Pod"), "wrong-type o0 status.podIP");
    assert!(sent(&with(r#", "status": [}"#), "Pod").starts_with("syntax-error text"), "{}", sent("[}", "Pod"));
}
