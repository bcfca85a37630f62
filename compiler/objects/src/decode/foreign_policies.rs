//! Policies of other projects: kinds that are not read, although their objects decide which packets pass.
//!
//! An answer that leaves such an object out can be wrong, so the commands that answer refuse the input unless the user
//! ignores the kind by name. The list has the kinds whose own rules allow or drop packets of pods. It does not have
//!
//! * kinds that a controller computes from policies: AWS's `PolicyEndpoint` and `ClusterPolicyEndpoint`, and Calico's
//!   copies of NetworkPolicy objects (their names begin with `knp.default.`);
//! * kinds that preview and enforce nothing: Calico's `StagedNetworkPolicy`, `StagedGlobalNetworkPolicy` and
//!   `StagedKubernetesNetworkPolicy`;
//! * sets and orders, which decide nothing without a policy: `GlobalNetworkSet`, `NetworkSet`, `CiliumCIDRGroup`,
//!   `ClusterGroup`, `Tier`;
//! * routes, translations and priorities: `AdminPolicyBasedExternalRoute`, `EgressIP`, `EgressQoS`, `Egress`,
//!   `CiliumEgressGatewayPolicy`, `CiliumLocalRedirectPolicy`;
//! * policies of proxies and service meshes (Istio's and Linkerd's `AuthorizationPolicy`, Kuma's
//!   `MeshTrafficPermission`): a proxy decides about requests that the packets have already brought to it;
//! * policies of interfaces that are no pod's first one: `MultiNetworkPolicy`, `HostEndpoint`.

use super::view::ValueView;

/// A kind of another project whose objects decide which packets pass.
#[derive(Debug, PartialEq, Eq)]
pub struct ForeignPolicyKind {
    /// The API group, without the version.
    pub group: &'static str,
    /// The `kind`.
    pub kind: &'static str,
    /// The project that enforces it.
    pub project: &'static str,
    /// The fields of `spec` that decide; empty if every object of the kind decides.
    deciding: &'static [&'static str],
}

const fn kind(group: &'static str, kind: &'static str, project: &'static str) -> ForeignPolicyKind {
    ForeignPolicyKind { group, kind, project, deciding: &[] }
}

/// The name prefix of Calico's copies of NetworkPolicy objects, which Calico does not let users write.
const CALICO_COPY: &str = "knp.default.";

static KINDS: [ForeignPolicyKind; 30] = [
    kind("aci.dnsnetpol", "DnsNetworkPolicy", "Cisco ACI"),
    kind("aci.netpol", "NetworkPolicy", "Cisco ACI"),
    kind("cilium.io", "CiliumClusterwideNetworkPolicy", "Cilium"),
    kind("cilium.io", "CiliumNetworkPolicy", "Cilium"),
    kind("crd.antrea.io", "ClusterNetworkPolicy", "Antrea"),
    kind("crd.antrea.io", "NetworkPolicy", "Antrea"),
    kind("crd.nsx.vmware.com", "SecurityPolicy", "NSX"),
    kind("crd.projectcalico.org", "GlobalNetworkPolicy", "Calico"),
    kind("crd.projectcalico.org", "NetworkPolicy", "Calico"),
    kind("crd.yangtse.cni", "SecurityGroup", "Huawei Cloud CCE"),
    kind("ingressnodefirewall.openshift.io", "IngressNodeFirewall", "OpenShift"),
    kind("isovalent.com", "IsovalentClusterwideNetworkPolicy", "Isovalent"),
    kind("isovalent.com", "IsovalentNetworkPolicy", "Isovalent"),
    kind("k8s.ovn.org", "EgressFirewall", "OVN-Kubernetes"),
    kind("kubeovn.io", "SecurityGroup", "Kube-OVN"),
    ForeignPolicyKind { deciding: &["acls", "private"], ..kind("kubeovn.io", "Subnet", "Kube-OVN") },
    kind("metal-stack.io", "ClusterwideNetworkPolicy", "metal-stack"),
    kind("network.openshift.io", "EgressNetworkPolicy", "OpenShift SDN"),
    kind("networking.aviatrix.com", "FirewallPolicy", "Aviatrix"),
    kind("networking.gke.io", "FQDNNetworkPolicy", "GKE"),
    kind("networking.k8s.aws", "ApplicationNetworkPolicy", "Amazon EKS"),
    kind("networking.k8s.aws", "ClusterNetworkPolicy", "Amazon EKS"),
    kind("neuvector.com", "NvClusterSecurityRule", "NeuVector"),
    kind("neuvector.com", "NvSecurityRule", "NeuVector"),
    kind("nsx.vmware.com", "SecurityPolicy", "NSX"),
    kind("projectcalico.org", "GlobalNetworkPolicy", "Calico"),
    kind("projectcalico.org", "NetworkPolicy", "Calico"),
    kind("security.antrea.tanzu.vmware.com", "ClusterNetworkPolicy", "Antrea"),
    kind("security.antrea.tanzu.vmware.com", "NetworkPolicy", "Antrea"),
    kind("vpcresources.k8s.aws", "SecurityGroupPolicy", "Amazon EKS"),
];

/// Kubernetes' own cluster-wide policies. Weir reads them, but only in the versions that it knows: see
/// [`ForeignPolicyKind::in_unknown_versions`].
static CLUSTER_POLICIES: [ForeignPolicyKind; 3] = [
    kind("policy.networking.k8s.io", "AdminNetworkPolicy", "Kubernetes"),
    kind("policy.networking.k8s.io", "BaselineAdminNetworkPolicy", "Kubernetes"),
    kind("policy.networking.k8s.io", "ClusterNetworkPolicy", "Kubernetes"),
];

impl ForeignPolicyKind {
    /// Kinds that Weir reads in some versions. A server that has such a kind only in other versions has policies that
    /// Weir cannot read. They are not in [`Self::all`], since no user may ignore them.
    pub fn in_unknown_versions() -> &'static [Self] {
        &CLUSTER_POLICIES
    }

    /// All kinds, sorted by group and kind.
    pub fn all() -> &'static [Self] {
        &KINDS
    }

    /// The kind's full name: `cilium.io/CiliumNetworkPolicy`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.group, self.kind)
    }

    /// The kind with this full name.
    pub fn named(name: &str) -> Option<&'static Self> {
        let (group, kind) = name.split_once('/')?;
        Self::find(group, kind)
    }

    /// The kind with this name in a group.
    pub fn find(group: &str, kind: &str) -> Option<&'static Self> {
        KINDS.iter().find(|known| known.group == group && known.kind == kind)
    }

    /// The kind of an object, if the object decides which packets pass.
    pub(super) fn of(version: &str, kind: &str, object: ValueView<'_, '_>) -> Option<&'static Self> {
        let group = match (version, kind) {
            // OpenShift 3 served it without a group.
            ("v1", "EgressNetworkPolicy") => "network.openshift.io",
            _ => version.split_once('/').map_or("", |(group, _)| group),
        };
        let found = Self::find(group, kind)?;
        let name = object.get("metadata").get("name").str().unwrap_or_default();
        let is_copy = group.ends_with("projectcalico.org") && name.starts_with(CALICO_COPY);
        let spec = object.get("spec");
        let decides = found.deciding.is_empty() || found.deciding.iter().any(|field| is_set(spec.get(field)));
        (decides && !is_copy).then_some(found)
    }
}

/// Whether a field has a value other than the default of its type.
fn is_set(field: ValueView<'_, '_>) -> bool {
    field.bool().unwrap_or_else(|| field.items().len() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_sorted_and_found_by_name() {
        assert!(KINDS.is_sorted_by(|a, b| (a.group, a.kind) < (b.group, b.kind)));
        for kind in &KINDS {
            assert_eq!(ForeignPolicyKind::named(&kind.name()), Some(kind));
        }
        assert_eq!(ForeignPolicyKind::named("networking.k8s.io/NetworkPolicy"), None);
    }
}
