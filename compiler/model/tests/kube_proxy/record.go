// Asks kube-proxy's own packages which addresses of random Services it translates, and to which endpoints.
//
// Its output is compiler/model/tests/kube_proxy/recorded.txt, which compiler/model/tests/kube_proxy.rs compares with the model.
// It needs a module that requires k8s.io/kubernetes and replaces the staging modules by published ones, which
// `cargo xtask apiserver build` makes: put this file beside its go.mod, and run
// `go run -mod=mod record.go 300 7 > recorded.txt` (cases, seed).
package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis"
)

// The translations of the proxies on all nodes: by `address port`, and then by service, every endpoint that some node
// uses.
type translations map[string]map[string][]string

var (
	nodes = []string{"n1", "n2", "n3"}
	zones = map[string]string{"n1": "z1", "n2": "z2", "n3": ""}
)

func main() {
	cases, _ := strconv.Atoi(os.Args[1])
	seed, _ := strconv.ParseInt(os.Args[2], 10, 64)
	random := rand.New(rand.NewSource(seed))
	for range cases {
		writeCase(random)
	}
}

// Writes the objects as `O {json}`, the translations as `T address port service endpoint…`, and an empty line.
func writeCase(random *rand.Rand) {
	var services []*v1.Service
	var slices []*discovery.EndpointSlice
	for index := range 1 + random.Intn(2) {
		service := makeService(random, index)
		services = append(services, service)
		write(service)
		for number := range random.Intn(4) {
			slice := makeSlice(random, service, number)
			slices = append(slices, slice)
			write(slice)
		}
	}
	found := translations{}
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		for _, node := range nodes {
			ask(family, node, services, slices, found)
		}
	}
	for _, front := range sorted(found) {
		for _, service := range sorted(found[front]) {
			fmt.Println("T", front, service, strings.Join(found[front][service], " "))
		}
	}
	fmt.Println()
}

func write(object any) {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	fmt.Println("O", string(text))
}

func sorted[V any](of map[string]V) []string {
	keys := []string{}
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// Whether kube-proxy lists an object: the selector of its informers.
func isListed(meta metav1.ObjectMeta) bool {
	noProxyName, _ := labels.NewRequirement(apis.LabelServiceProxyName, selection.DoesNotExist, nil)
	noHeadless, _ := labels.NewRequirement(v1.IsHeadlessService, selection.DoesNotExist, nil)
	return labels.NewSelector().Add(*noProxyName, *noHeadless).Matches(labels.Set(meta.Labels))
}

func ask(family v1.IPFamily, node string, services []*v1.Service, slices []*discovery.EndpointSlice, into translations) {
	serviceTracker := proxy.NewServiceChangeTracker(family, nil, nil)
	endpointsTracker := proxy.NewEndpointsChangeTracker(family, node, nil, nil)
	for _, service := range services {
		if isListed(service.ObjectMeta) {
			serviceTracker.Update(nil, service)
		}
	}
	for _, slice := range slices {
		if isListed(slice.ObjectMeta) {
			endpointsTracker.EndpointSliceUpdate(slice, false)
		}
	}
	portMap, endpointsMap := proxy.ServicePortMap{}, proxy.EndpointsMap{}
	portMap.Update(serviceTracker)
	endpointsMap.Update(endpointsTracker)
	topology := map[string]string{v1.LabelTopologyZone: zones[node], v1.LabelHostname: node}
	for name, port := range portMap {
		cluster, local, _, _ := proxy.CategorizeEndpoints(endpointsMap[name], port, node, topology)
		internal := cluster
		if port.InternalPolicyLocal() {
			internal = local
		}
		// Packets of pods to external addresses go to the cluster's endpoints. If kube-proxy does not know the range of
		// the pods' addresses, they go to the local endpoints if the policy says so.
		external := cluster
		if port.ExternalPolicyLocal() {
			external = append(append([]proxy.Endpoint{}, cluster...), local...)
		}
		add(into, name, port, port.ClusterIP(), internal)
		for _, address := range append(append([]net.IP{}, port.ExternalIPs()...), port.LoadBalancerVIPs()...) {
			add(into, name, port, address, external)
		}
	}
}

func add(into translations, name proxy.ServicePortName, port proxy.ServicePort, address net.IP, endpoints []proxy.Endpoint) {
	front := fmt.Sprintf("%s %d", address, port.Port())
	if into[front] == nil {
		into[front] = map[string][]string{}
	}
	service := name.NamespacedName.String()
	known := map[string]bool{}
	for _, endpoint := range into[front][service] {
		known[endpoint] = true
	}
	for _, endpoint := range endpoints {
		known[endpoint.String()] = true
	}
	all := []string{}
	for endpoint := range known {
		all = append(all, endpoint)
	}
	sort.Strings(all)
	into[front][service] = all
}

func once(random *rand.Rand, in int) bool { return random.Intn(in) == 0 }

func makeMeta(random *rand.Rand, name string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{}}
	if once(random, 8) {
		meta.Labels[apis.LabelServiceProxyName] = "other"
	}
	if once(random, 8) {
		meta.Labels[v1.IsHeadlessService] = ""
	}
	return meta
}

func makeService(random *rand.Rand, index int) *v1.Service {
	service := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: makeMeta(random, fmt.Sprintf("s%d", index)),
	}
	spec := &service.Spec
	spec.Type = v1.ServiceTypeLoadBalancer
	v4, v6 := fmt.Sprintf("10.96.0.%d", index+1), fmt.Sprintf("fd00:96::%d", index+1)
	switch random.Intn(6) {
	case 0:
		spec.ClusterIPs, spec.IPFamilies = []string{v6}, []v1.IPFamily{v1.IPv6Protocol}
	case 1, 2:
		spec.ClusterIPs, spec.IPFamilies = []string{v4, v6}, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	case 3:
		spec.Type = v1.ServiceTypeClusterIP
		spec.ClusterIPs, spec.IPFamilies = []string{"None"}, []v1.IPFamily{v1.IPv4Protocol}
	default:
		spec.ClusterIPs, spec.IPFamilies = []string{v4}, []v1.IPFamily{v1.IPv4Protocol}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	if once(random, 10) {
		*spec = v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "example.com"}
	}
	for _, address := range []string{"198.51.100.1", "198.51.100.2", "2001:db8::1"} {
		if once(random, 2) {
			spec.ExternalIPs = append(spec.ExternalIPs, address)
		}
	}
	local, cluster := v1.ServiceInternalTrafficPolicyLocal, v1.ServiceInternalTrafficPolicyCluster
	spec.InternalTrafficPolicy = &cluster
	if once(random, 3) {
		spec.InternalTrafficPolicy = &local
	}
	spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
	if once(random, 3) {
		spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		spec.HealthCheckNodePort = 30999
	}
	for number := range 1 + random.Intn(2) {
		spec.Ports = append(spec.Ports, v1.ServicePort{
			Name: fmt.Sprintf("p%d", number), Protocol: v1.ProtocolTCP, Port: int32(80 + number),
		})
	}
	vip, byProxy := v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy
	modes := []*v1.LoadBalancerIPMode{nil, &vip, &byProxy}
	for _, address := range []string{"203.0.113.1", "203.0.113.2", "2001:db8::2"} {
		if once(random, 2) {
			ingress := v1.LoadBalancerIngress{IP: address, IPMode: modes[random.Intn(3)]}
			service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, ingress)
		}
	}
	return service
}

func makeSlice(random *rand.Rand, service *v1.Service, number int) *discovery.EndpointSlice {
	slice := &discovery.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: makeMeta(random, fmt.Sprintf("%s-%d", service.Name, number)),
	}
	slice.Labels[discovery.LabelServiceName] = service.Name
	slice.AddressType = discovery.AddressTypeIPv4
	prefix := "10.0.0."
	if once(random, 4) {
		slice.AddressType, prefix = discovery.AddressTypeIPv6, "fd00::"
	}
	for index := range 2 {
		name, protocol, port := fmt.Sprintf("p%d", index), v1.ProtocolTCP, int32(8080+random.Intn(2))
		of := discovery.EndpointPort{Name: &name, Protocol: &protocol, Port: &port}
		if once(random, 12) {
			of.Port = nil
		}
		if !once(random, 6) {
			slice.Ports = append(slice.Ports, of)
		}
	}
	hinted := once(random, 3)
	for range random.Intn(4) {
		endpoint := discovery.Endpoint{Addresses: []string{fmt.Sprintf("%s%d", prefix, 1+random.Intn(5))}}
		condition := func() *bool {
			values := []*bool{nil, new(bool), new(bool)}
			*values[1] = true
			return values[random.Intn(3)]
		}
		endpoint.Conditions = discovery.EndpointConditions{
			Ready: condition(), Serving: condition(), Terminating: condition(),
		}
		if !once(random, 4) {
			node := nodes[random.Intn(len(nodes))]
			endpoint.NodeName = &node
		}
		if hinted {
			zone := zones[nodes[random.Intn(2)]]
			endpoint.Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: zone}}}
			if once(random, 2) {
				node := nodes[random.Intn(len(nodes))]
				endpoint.Hints.ForNodes = []discovery.ForNode{{Name: node}}
			}
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}
