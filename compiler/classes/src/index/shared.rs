//! Values that many objects have in common, kept once.
//!
//! Problem: the pods of a Deployment have equal labels and ports, and thousands of pods have the same namespace. Each
//! object is read by itself, so the index of a large cluster would keep a copy of them for each pod.
//! Strategy: a table of the values. An object gets the table's value in place of its own. A value that only the
//! table refers to is of no object any more.
//! Invariant: a table has at most a quarter more values than were in use at its last sweep, and [`FEW`]. Over time,
//! many different values occur, and a tenant can make any number of them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use weir_objects::k8s::{Body, Labels, NamedPort, Object};
use weir_objects::name::Name;

/// Values that are kept for no object before the first sweep.
const FEW: usize = 64;

/// The values that objects share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    labels: Table<Arc<Labels>>,
    names: Table<Name>,
    ports: Table<Arc<[NamedPort]>>,
    node_addresses: Table<Arc<[IpAddr]>>,
}

impl Shared {
    /// Makes the object share its values with the objects before it.
    pub(super) fn share(&mut self, object: &mut Object) {
        self.labels.share(&mut object.meta.labels);
        let mut share = |name: &mut Name| self.names.share(name);
        share(&mut object.meta.namespace);
        match &mut object.body {
            Body::Pod(pod) => {
                pod.node.iter_mut().chain(&mut pod.owner).for_each(share);
                self.ports.share(&mut pod.ports);
                self.node_addresses.share(&mut pod.node_addresses);
            }
            Body::EndpointSlice(slice) => {
                for endpoint in &mut slice.endpoints {
                    endpoint.node.iter_mut().for_each(&mut share);
                    endpoint.pod.iter_mut().for_each(|(namespace, _)| share(namespace));
                }
            }
            _ => {}
        }
    }

    /// Forgets the values that no object has any more.
    pub(super) fn sweep(&mut self) {
        self.labels.sweep();
        self.names.sweep();
        self.ports.sweep();
        self.node_addresses.sweep();
    }
}

/// A value whose copies share one allocation.
trait Counted: Ord + Clone {
    /// The number of copies.
    fn uses(&self) -> usize;
}

impl Counted for Name {
    fn uses(&self) -> usize {
        self.uses()
    }
}

impl<T: ?Sized + Ord> Counted for Arc<T> {
    fn uses(&self) -> usize {
        Arc::strong_count(self)
    }
}

#[derive(Debug)]
struct Table<T> {
    known: BTreeSet<T>,
    /// The number of values from which on the table is swept.
    most: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { known: BTreeSet::new(), most: FEW }
    }
}

impl<T: Counted> Table<T> {
    fn share(&mut self, value: &mut T) {
        if let Some(known) = self.known.get(value) {
            value.clone_from(known);
            return;
        }
        // Not at each change of an object: whether its old state was the last one with a value is known only when the
        // state is dropped, and a generation in the making keeps it for longer.
        if self.known.len() >= self.most {
            self.sweep();
        }
        self.known.insert(value.clone());
    }

    fn sweep(&mut self) {
        // One use is the table's own.
        self.known.retain(|value| value.uses() > 1);
        self.most = self.known.len() + self.known.len() / 4 + FEW;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_objects::k8s::{Meta, Pod, Protocol};
    use weir_objects::origin::ObjectId;

    fn pod(namespace: &str, node: &str, app: &str) -> Object {
        let labels = Labels::from([("app", app)]).into();
        let meta = Meta { namespace: namespace.into(), labels, ..Meta::default() };
        let body = Body::Pod(Pod { node: Some(node.into()), owner: Some("ReplicaSet/a".into()), ..Pod::default() });
        Object { id: ObjectId(0), meta, body }
    }

    fn shared(shared: &mut Shared, mut object: Object) -> Object {
        shared.share(&mut object);
        object
    }

    #[test]
    fn equal_values_of_objects_are_kept_once() {
        let mut table = Shared::default();
        let objects = ["near", "near", "far"].map(|node| shared(&mut table, pod("shop", node, "web")));
        assert_eq!(objects[2], pod("shop", "far", "web"));
        let nodes = objects.iter().filter_map(|object| match &object.body {
            Body::Pod(pod) => Some((pod.node.as_ref()?.uses(), pod.owner.as_ref()?.uses())),
            _ => None,
        });
        // Each count has the table's own use.
        assert_eq!(nodes.collect::<Vec<_>>(), [(3, 4), (3, 4), (2, 4)]);
        assert_eq!((objects[0].meta.namespace.uses(), Arc::strong_count(&objects[0].meta.labels)), (4, 4));
    }

    #[test]
    fn pods_share_ports_and_the_addresses_of_their_node() {
        let mut table = Shared::default();
        let with = |number, address: &str| {
            let mut object = pod("shop", "near", "web");
            if let Body::Pod(pod) = &mut object.body {
                pod.ports = [NamedPort { name: "http".to_owned(), number, protocol: Protocol::Tcp }].into();
                pod.node_addresses = [address.parse().expect("an address")].into();
            }
            object
        };
        let numbered = [(80, "172.16.0.1"), (80, "172.16.0.2"), (81, "172.16.0.2")];
        let objects = numbered.map(|(number, address)| shared(&mut table, with(number, address)));
        let uses = objects.each_ref().map(|object| match &object.body {
            Body::Pod(pod) => (pod.ports.uses(), pod.node_addresses.uses()),
            _ => (0, 0),
        });
        // Each count has the table's own use.
        assert_eq!(uses, [(3, 2), (3, 3), (2, 3)]);
        drop(objects);
        table.sweep();
        assert!(table.ports.known.is_empty() && table.node_addresses.known.is_empty());
    }

    #[test]
    fn values_of_no_object_are_forgotten() {
        let mut table = Shared::default();
        let kept = shared(&mut table, pod("kept", "kept", "kept"));
        for number in 0..10_000 {
            let name = format!("n{number}");
            drop(shared(&mut table, pod(&name, &name, &name)));
            assert!(table.names.known.len() <= 2 * FEW && table.labels.known.len() <= 2 * FEW, "after {number}");
        }
        table.sweep();
        let names: Vec<&str> = table.names.known.iter().map(Name::as_str).collect();
        assert_eq!((names, table.labels.known.len()), (vec!["ReplicaSet/a", "kept"], 1));
        drop(kept);
        table.sweep();
        assert!(table.names.known.is_empty() && table.labels.known.is_empty());
    }

    #[test]
    fn values_in_use_are_kept_by_a_sweep() {
        let mut table = Shared::default();
        let objects: Vec<Object> =
            (0..1_000).map(|number| shared(&mut table, pod(&format!("n{number}"), "near", "web"))).collect();
        assert_eq!(table.names.known.len(), 1_002);
        let again = shared(&mut table, pod("n7", "near", "web"));
        assert_eq!((again.meta.namespace.uses(), objects[7].meta.namespace.uses()), (3, 3));
    }
}
