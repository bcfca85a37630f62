//! Services with other addresses, ports or backends.
//!
//! The address of a service has a class of its own: its key names an element of [`Peers::vips`], which lists the claims
//! on the ports of the address. If the claims change, the element changes, and the address keeps its class where no
//! other address shares the element. A change of backends changes no peer class. If a service has other claims or is
//! judged by other backends, the entries of its addresses are made again in all egress rows, and the subject classes of
//! local pods that are backends themselves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::peers::Keyed;
use super::{Effect, Maintained, NeedsWhole};
use crate::ports::PortSpec;
use crate::vips::{self, OtherPorts, ServiceVip};
use crate::{PeerClass, PeerId};
use weir_model::resolve::{AddressUse, frontends};
use weir_model::{EndpointId, NamespaceId, Service, ServiceAddress, ServiceId};
use weir_objects::address::Family;
use weir_objects::origin::{FieldOrigin, FieldPath};

/// The most addresses of changed services. Each is compared with all others, which costs a compile from scratch less.
const MOST_VIPS: usize = 1_024;

/// A service as it is now, with its backends' addresses.
#[derive(Clone, Debug)]
pub(crate) struct ServiceChange {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` if it is gone. Its namespace's number and the endpoints of its backends are found here.
    pub(crate) now: Option<Service>,
    /// Whether only backends have moved, none of them local, and each port was judged as before at that time, also for
    /// local pods that are backends themselves. If a backend's class changes later, the facts of rows notice it.
    pub(crate) keeps_verdicts: bool,
}

/// The services that have changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceChanges {
    pub(crate) list: Vec<ServiceChange>,
    /// The addresses of these services, before or after the change, that pods have.
    pub(crate) of_pods: BTreeSet<IpAddr>,
    /// Those that nodes have.
    pub(crate) of_nodes: BTreeSet<IpAddr>,
}

/// The effect of replaced services.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    /// The new number of each service, by its old one; `None` for those that are gone.
    numbers: Vec<Option<ServiceId>>,
    /// The services that are new or have changed, sorted.
    pub(crate) changed: Vec<ServiceId>,
    /// Ranges whose position was in a service that has changed.
    stale: BTreeSet<PortSpec>,
    /// Their addresses, before or after the change.
    addresses: BTreeSet<IpAddr>,
    of_pods: BTreeSet<IpAddr>,
    of_nodes: BTreeSet<IpAddr>,
    /// The local endpoints that are backends of these services, before or after the change, where that can change their
    /// class: indices into the draft.
    pub(super) local: BTreeSet<usize>,
    /// Whether a service or one of its ports is new, other or gone.
    pub(crate) changes_ports: bool,
}

/// A service, with its number before the changes.
struct Slot {
    service: Service,
    before: Option<ServiceId>,
    is_new: bool,
}

/// The local pods, by each of their addresses.
type LocalByAddress = HashMap<IpAddr, EndpointId>;

impl Maintained {
    /// The addresses and backends that a service has in the generation.
    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<&Service> {
        let namespace = self.names.find(namespace)?;
        self.cluster.services.iter().find(|it| it.namespace == namespace && it.name == name)
    }

    /// Whether the address of a service is claimed by no other service and no hostPort, and is not the own node's.
    pub(crate) fn is_of_one_service(&self, address: IpAddr) -> bool {
        let PeerClass { vip, nodes, host_ports, .. } = self.key_at(address);
        let claimants = self.cluster.services.iter().filter(|it| it.addresses.contains(&address));
        vip.is_some() && nodes.is_empty() && host_ports.is_empty() && claimants.count() == 1
    }

    /// Replaces services, and the ranges that their ports need.
    pub(super) fn replace_services(&mut self, changes: ServiceChanges, effect: &mut Effect) -> Replaced {
        let ServiceChanges { list, of_pods, of_nodes } = changes;
        let mut replaced = Replaced { of_pods, of_nodes, ..Replaced::default() };
        if list.is_empty() {
            return replaced;
        }
        let services = std::mem::take(&mut Arc::make_mut(&mut self.cluster).services);
        replaced.numbers = vec![None; services.len()];
        let local = self.local_by_address();
        let numbered = (0..).map(ServiceId).zip(services);
        let mut slots: Vec<Slot> =
            numbered.map(|(id, service)| Slot { service, before: Some(id), is_new: false }).collect();
        for change in list {
            if let Some(namespace) = self.names.find(&change.namespace) {
                self.replace_service(change, (namespace, &local), &mut slots, &mut replaced, effect);
            }
        }
        for (id, slot) in (0..).map(ServiceId).zip(&slots) {
            slot.before.into_iter().for_each(|before| replaced.numbers[before.index()] = Some(id));
            replaced.changed.extend(slot.is_new.then_some(id));
        }
        Arc::make_mut(&mut self.cluster).services = slots.into_iter().map(|slot| slot.service).collect();
        self.renumber_services(&replaced.numbers);
        self.refresh_origins(std::mem::take(&mut replaced.stale), effect);
        effect.changes_addresses = true;
        replaced
    }

    fn replace_service(
        &mut self,
        change: ServiceChange,
        (namespace, local): (NamespaceId, &LocalByAddress),
        slots: &mut Vec<Slot>,
        replaced: &mut Replaced,
        effect: &mut Effect,
    ) {
        let is_it = |slot: &Slot| slot.service.namespace == namespace && slot.service.name == change.name;
        let old = slots.iter().position(is_it).map(|index| slots.remove(index));
        let new = change.now.map(|service| with_endpoints(Service { namespace, ..service }, local));
        let [was, is] = [old.as_ref().map(|slot| &slot.service), new.as_ref()];
        replaced.addresses.extend([was, is].into_iter().flatten().flat_map(|it| &it.addresses));
        if !change.keeps_verdicts {
            replaced.local.extend([was, is].into_iter().flatten().flat_map(|it| self.local_backends(it)));
        }
        if !is_alike(was, is) || is.is_some_and(|it| self.lacks_class(it)) {
            replaced.changes_ports = true;
            // First the new ranges: one that stays is not taken away in between.
            is.into_iter().flat_map(specs_of).for_each(|(spec, origin)| self.add_spec(spec, origin, effect));
            for (spec, origin) in was.into_iter().flat_map(specs_of) {
                self.drop_spec(spec, effect);
                let is_stale = self.specs.get(&spec).is_some_and(|used| used.origin.object == origin.object);
                replaced.stale.extend(is_stale.then_some(spec));
            }
        }
        let Some(service) = new else { return };
        let namespaces = &self.cluster.namespaces;
        let key = |it: &Service| (namespaces[it.namespace.index()].name.as_str(), it.name.clone());
        let at = slots.partition_point(|slot| key(&slot.service) < key(&service));
        slots.insert(at, Slot { service, before: old.and_then(|slot| slot.before), is_new: true });
    }

    /// Whether an address of the service may lack the class of a service's address: since the service was deleted,
    /// which needs no generation, and created again.
    fn lacks_class(&self, service: &Service) -> bool {
        if self.cluster.assume.service_address == ServiceAddress::Address {
            return false;
        }
        let class = |address: &IpAddr| &self.peers.list[self.peers.addresses.find(*address).index()];
        service.addresses.iter().any(|address| class(address).vip.is_none())
    }

    /// The local endpoints that are backends of a service: by name, or because they have a backend's address.
    fn local_backends(&self, service: &Service) -> Vec<usize> {
        let backends = || service.ports.iter().flat_map(|port| &port.backends);
        let named: BTreeSet<EndpointId> = backends().filter_map(|it| it.endpoint).collect();
        let addresses: BTreeSet<IpAddr> = backends().filter_map(|it| it.address).collect();
        let is_backend = |id: EndpointId| {
            let own = &self.cluster.endpoints[id.index()].addresses;
            named.contains(&id) || own.iter().any(|address| addresses.contains(address))
        };
        let local = self.draft.local.iter().enumerate();
        local.filter(|(_, local)| is_backend(local.endpoint)).map(|(index, _)| index).collect()
    }

    fn local_by_address(&self) -> LocalByAddress {
        let local = self.draft.local.iter().map(|local| local.endpoint);
        let addresses = |id: EndpointId| self.cluster.endpoints[id.index()].addresses.iter().map(move |at| (*at, id));
        // An address is one pod's: changes of disputed addresses need a compile from scratch.
        local.flat_map(addresses).collect()
    }

    /// Gives the addresses of changed services the claims on them.
    pub(super) fn change_vips(&mut self, replaced: &Replaced, effect: &mut Effect) -> Result<(), NeedsWhole> {
        if !replaced.changes_ports {
            return Ok(());
        }
        if replaced.addresses.len() > MOST_VIPS {
            return Err(NeedsWhole::Unused);
        }
        let mut uses = self.vip_uses(replaced);
        let cluster = &self.cluster;
        let is_pod = |address: IpAddr| replaced.of_pods.contains(&address);
        // Not `cluster.nodes`: other nodes change without a generation.
        let use_of = |at| AddressUse { is_pod: is_pod(at), is_node: replaced.of_nodes.contains(&at) };
        let frontends = frontends(&cluster.services, |address| replaced.addresses.contains(&address), use_of);
        let mut claimed = vips::by_address(&frontends, cluster.assume, &self.classes.atoms, is_pod);
        let old: BTreeMap<IpAddr, PeerClass> = replaced.addresses.iter().map(|it| (*it, self.key_at(*it))).collect();
        for vip in old.values().filter_map(|key| key.vip) {
            uses[vip as usize] -= 1;
        }
        let mut keyed = Keyed::default();
        for (address, key) in old {
            let vip = claimed.remove(&address).map(|vip| self.number_vip(vip, key.vip, &mut uses, effect));
            keyed.keys.push((address, PeerClass { vip, ..key }));
        }
        self.clear_unused_vips(&uses);
        let entries = self.number_keys(keyed, effect);
        self.take_entries(&entries, effect);
        self.classes.vips = Arc::clone(&self.peers.vips);
        if uses.len() > self.most_peers { Err(NeedsWhole::Unused) } else { Ok(()) }
    }

    /// How many addresses each element of [`Peers::vips`] is for.
    ///
    /// [`Peers::vips`]: crate::peers::Peers::vips
    fn vip_uses(&self, replaced: &Replaced) -> Vec<u32> {
        let peers = &self.peers;
        let vip = |peer: PeerId| peers.list[peer.index()].vip;
        // Only addresses of services have one, before or after the change.
        let mut addresses: Vec<IpAddr> = self.cluster.services.iter().flat_map(|it| &it.addresses).copied().collect();
        addresses.extend(&replaced.addresses);
        addresses.sort_unstable();
        addresses.dedup();
        debug_assert!(
            peers.addresses.exact().all(|(it, peer)| vip(peer).is_none() || addresses.binary_search(&it).is_ok()),
            "an address that no service has is in the class of a service's address"
        );
        let mut uses = vec![0; peers.vips.len()];
        addresses.iter().filter_map(|it| vip(peers.addresses.find(*it))).for_each(|it| uses[it as usize] += 1);
        uses
    }

    fn key_at(&self, address: IpAddr) -> PeerClass {
        let PeerId(peer) = self.peers.addresses.find(address);
        self.peers.list[peer as usize].clone()
    }

    /// Gives services their new numbers wherever they are named by number.
    fn renumber_services(&mut self, numbers: &[Option<ServiceId>]) {
        let is_same = numbers.iter().enumerate().all(|(old, new)| *new == Some(ServiceId(old as u32)));
        if is_same && numbers.len() == self.cluster.services.len() {
            return;
        }
        let vips = Arc::make_mut(&mut self.peers.vips);
        // The claims at addresses of services that are gone are found again.
        vips.iter_mut().flat_map(|vip| &mut vip.ports).for_each(|port| port.renumber(numbers));
        self.facts.renumber_services(numbers, self.cluster.services.len());
        for subject in &mut self.classes.subjects {
            let of_audit = subject.audit.iter_mut().map(|audit| &mut audit.own_services);
            for own in of_audit.chain([&mut subject.own_services]) {
                own.retain_mut(|it| {
                    let now = numbers[it.service as usize];
                    // The classes of local backends of a service that is gone are made again.
                    now.into_iter().for_each(|ServiceId(number)| it.service = number);
                    now.is_some()
                });
            }
        }
    }

    /// The element for these claims: an equal one, the one that the address had, or an unused one.
    fn number_vip(&mut self, vip: ServiceVip, old: Option<u32>, uses: &mut Vec<u32>, effect: &mut Effect) -> u32 {
        let vips = Arc::make_mut(&mut self.peers.vips);
        let is_used = |index: usize| uses[index] > 0;
        let equal = (0..vips.len()).find(|index| is_used(*index) && vips[*index] == vip);
        let unused = old.map(|old| old as usize).into_iter().chain(0..vips.len()).find(|index| !is_used(*index));
        let index = equal.or(unused).unwrap_or(vips.len());
        if index == vips.len() {
            vips.push(vip);
            uses.push(0);
        } else if vips[index] != vip {
            // Rows may have entries for the earlier claims. Equal claims have the same entries, unless their service's
            // backends have changed, which is known by itself.
            effect.vips.insert(index as u32);
            vips[index] = vip;
        }
        uses[index] += 1;
        index as u32
    }

    /// Classes that no address has any more can name these elements, and rows are made for every class.
    fn clear_unused_vips(&mut self, uses: &[u32]) {
        let unused = ServiceVip { family: Family::V4, ports: Vec::new(), rest: OtherPorts::Address };
        let vips = Arc::make_mut(&mut self.peers.vips);
        for (vip, _) in vips.iter_mut().zip(uses).filter(|(_, uses)| **uses == 0) {
            vip.clone_from(&unused);
        }
    }
}

/// The service with the local pods that have its backends' addresses.
fn with_endpoints(mut service: Service, local: &LocalByAddress) -> Service {
    for backend in service.ports.iter_mut().flat_map(|port| &mut port.backends) {
        backend.endpoint = backend.address.and_then(|address| local.get(&address).copied());
    }
    service
}

/// Whether two states of a service differ at most in their backends.
pub(crate) fn is_alike(was: Option<&Service>, is: Option<&Service>) -> bool {
    let (Some(was), Some(is)) = (was, is) else { return was.is_none() && is.is_none() };
    let ports = |it: &Service| -> Vec<_> {
        it.ports.iter().map(|port| (port.name.clone(), port.protocol, port.port, port.node_port)).collect()
    };
    (&was.addresses, &was.cluster_addresses, was.object) == (&is.addresses, &is.cluster_addresses, is.object)
        && ports(was) == ports(is)
}

/// The ranges that the ports of a service need.
pub(super) fn specs_of(service: &Service) -> Vec<(PortSpec, FieldOrigin)> {
    let mut found = Vec::new();
    for (index, port) in service.ports.iter().enumerate() {
        let path = FieldPath::root().field("spec").field("ports").index(index);
        // A headless service is reached at its pods' own ports.
        let at_address = Some(port.port).filter(|_| !service.addresses.is_empty());
        for number in [at_address, port.node_port].into_iter().flatten() {
            let spec = PortSpec { protocol: port.protocol, first: number, last: number };
            found.push((spec, FieldOrigin::new(service.object, path.clone())));
        }
    }
    found
}
