//! The cases for the kernel: handwritten rules, handwritten policies, and generated clusters.

use weir_fuzz::generators::{Random, cluster as generate};
use weir_iptables::{Rendering, render};
use weir_model::resolve::resolve;

/// The texts to restore.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) v4: String,
    pub(crate) v6: String,
    pub(crate) sets: String,
}

/// The number of generated clusters.
const GENERATED: u64 = 6;

pub(crate) fn all() -> Vec<Case> {
    let mut cases = vec![by_hand(), case("policies".to_owned(), render_yaml(POLICIES))];
    cases.extend((0..GENERATED).map(|seed| {
        let mut random = Random::new(seed);
        let objects = generate::objects(&mut random);
        let cluster = resolve(&objects, generate::assumptions(&mut random)).0;
        case(format!("generated {seed}"), render(&cluster))
    }));
    cases
}

fn case(name: String, Rendering { v4, v6, sets, .. }: Rendering) -> Case {
    Case { name, v4, v6, sets }
}

fn render_yaml(text: &str) -> Rendering {
    render(&weir_testing::yaml::cluster(text))
}

/// Rules that the renderer never writes, but the evaluator supports.
fn by_hand() -> Case {
    let v4 = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:A - [0:0]
:B - [0:0]
:C - [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD ! -s 10.0.0.0/8 -m comment --comment outside -j A
-A FORWARD -p tcp -m tcp --dport 80:81 -m comment --comment web -g B
-A FORWARD -p icmp -m comment --comment icmp -j MARK --set-xmark 0x6/0x6
-A FORWARD -m mark --mark 0x2/0x3 -m comment --comment marked -j ACCEPT
-A FORWARD -p udp -m udp ! --dport 53 -m comment --comment udp -j C
-A FORWARD -m set --match-set ports dst,dst -m comment --comment ports -j ACCEPT
-A FORWARD -m comment --comment \"only counts\"
-A A -d 10.0.1.1/32 -m comment --comment back -j RETURN
-A A -p tcp -m multiport ! --dports 80,443 -m comment --comment other -j DROP
-A A -m set ! --match-set addresses dst -m comment --comment unknown -j DROP
-A B -m set --match-set nets src -m comment --comment nets -j ACCEPT
-A B -m comment --comment leave -j RETURN
-A C -p udp -m multiport --dports 8080,80:81 -m comment --comment c -j ACCEPT
COMMIT
";
    let sets = "\
create addresses hash:ip family inet maxelem 65536
add addresses 10.0.1.1
add addresses 10.0.1.3
create nets hash:net family inet maxelem 65536
add nets 10.0.0.0/16
add nets 10.0.1.0/24 nomatch
add nets 10.0.1.3
create ports hash:ip,port family inet maxelem 65536
add ports 10.0.0.2,tcp:8080
add ports 10.0.0.2,tcp:81
add ports 10.0.1.1,udp:53
create six hash:net family inet6 maxelem 65536
add six fd00::/64
add six fd00::1:0:0:0/80 nomatch
";
    let v6 = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type 129 -m comment --comment \"echo reply\" -j DROP
-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type 128 -m set --match-set six src -m comment --comment icmp -j DROP
-A FORWARD -p tcp -m set ! --match-set six dst -m comment --comment tcp -j DROP
COMMIT
";
    Case { name: "by hand".to_owned(), v4: v4.to_owned(), v6: v6.to_owned(), sets: sets.to_owned() }
}

/// Policies for the hosts of the test.
const POLICIES: &str = "
apiVersion: v1
kind: Node
metadata: {name: node}
status: {addresses: [{type: InternalIP, address: 172.16.0.1}, {type: InternalIP, address: 'fd00:1::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: node
  containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]}]
status: {phase: Running, podIP: 10.0.1.1, podIPs: [{ip: 10.0.1.1}, {ip: 'fd00:0:0:1::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, labels: {app: db}}
spec:
  nodeName: other
  containers: [{name: c, image: i, ports: [{name: http, containerPort: 81}]}]
status: {phase: Running, podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec: {nodeName: other, containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.1.3, podIPs: [{ip: 10.0.1.3}, {ip: 'fd00:0:0:1::3'}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: named-ports}
spec:
  podSelector: {matchExpressions: [{key: app, operator: In, values: [web, db]}]}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: http}, {port: dns, protocol: UDP}]
  - from:
    - ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/16]}
    - ipBlock: {cidr: 'fd00:1::/32'}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: egress}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {}}, {ipBlock: {cidr: 172.16.0.0/16}}]
    ports: [{port: http}, {port: 443, endPort: 8081}, {port: 53, protocol: UDP}]
  - to: [{ipBlock: {cidr: '2001:db8::/64'}}]
---
apiVersion: weir.dev/v1alpha1
kind: CidrList
metadata: {name: exempt}
spec: {action: Allow, order: 1, directions: [Egress], cidrs: [198.51.100.0/28]}
---
apiVersion: weir.dev/v1alpha1
kind: CidrList
metadata: {name: denied}
spec: {action: Deny, cidrs: [198.51.100.0/24, '2001:db8::/32']}
";
