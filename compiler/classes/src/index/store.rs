//! The objects of the index, by kind, namespace and name.
//!
//! Problem: an agent has every pod of the cluster. A map from keys to objects would keep a second copy of each object's
//! kind, namespace and name.
//! Strategy: an ordered set that compares the objects by these three texts. A set can be searched only for a value that
//! its elements can lend, and they cannot lend a key that they do not have. So a search passes its key as a trait
//! object, and the elements lend themselves as the same trait object.
//! Invariant: at most one object has a given kind, namespace and name.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::Key;
use weir_objects::k8s::{Body, NamedPort, Object};

/// The identity of an object, as in [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyRef<'k> {
    pub(super) kind: &'k str,
    pub(super) namespace: &'k str,
    pub(super) name: &'k str,
}

impl<'k> KeyRef<'k> {
    pub(super) fn of(object: &'k Object) -> Self {
        Self { kind: object.body.kind(), namespace: &object.meta.namespace, name: &object.meta.name }
    }
}

/// A value with the identity of an object.
pub(super) trait Keyed {
    fn key(&self) -> KeyRef<'_>;
}

impl Keyed for KeyRef<'_> {
    fn key(&self) -> KeyRef<'_> {
        *self
    }
}

impl Keyed for Key {
    fn key(&self) -> KeyRef<'_> {
        KeyRef { kind: &self.kind, namespace: &self.namespace, name: &self.name }
    }
}

impl Keyed for Stored {
    fn key(&self) -> KeyRef<'_> {
        KeyRef::of(&self.0)
    }
}

impl Ord for dyn Keyed + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for dyn Keyed + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for dyn Keyed + '_ {}

impl PartialEq for dyn Keyed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

/// An object of the set. In a box, because about a third of the places in the nodes of a B-tree are empty.
#[derive(Debug)]
struct Stored(Box<Object>);

impl<'k> Borrow<dyn Keyed + 'k> for Stored {
    fn borrow(&self) -> &(dyn Keyed + 'k) {
        self
    }
}

impl Ord for Stored {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Stored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Stored {}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

/// Objects, ordered by kind, namespace and name.
#[derive(Debug, Default)]
pub(super) struct Objects {
    all: BTreeSet<Stored>,
    /// The number of objects of each kind: to count them would be a visit to each.
    counts: BTreeMap<String, usize>,
    /// The number of pods that name the UID of a static pod.
    mirrors: usize,
    /// How many ports of pods have each name.
    port_names: HashMap<String, usize>,
}

/// The named ports of a pod; none for other kinds.
fn named_ports(object: &Object) -> &[NamedPort] {
    match &object.body {
        Body::Pod(pod) => &pod.ports,
        _ => &[],
    }
}

fn is_mirror(object: &Object) -> bool {
    matches!(&object.body, Body::Pod(pod) if pod.static_uid.is_some())
}

impl Objects {
    pub(super) fn get(&self, key: &dyn Keyed) -> Option<&Object> {
        self.all.get(key).map(|it| &*it.0)
    }

    /// Stores an object. Returns the object with the same key that was stored before.
    pub(super) fn replace(&mut self, object: Object) -> Option<Object> {
        // Not `insert`, which keeps the old one of two elements that are equal: here, of two objects with the same key.
        self.mirrors += usize::from(is_mirror(&object));
        match self.counts.get_mut(object.body.kind()) {
            Some(count) => *count += 1,
            None => _ = self.counts.insert(object.body.kind().to_owned(), 1),
        }
        for NamedPort { name, .. } in named_ports(&object) {
            match self.port_names.get_mut(name.as_str()) {
                Some(count) => *count += 1,
                None => _ = self.port_names.insert(name.as_str().to_owned(), 1),
            }
        }
        let before = self.all.replace(Stored(object.into())).map(|it| *it.0);
        self.count_removed(before.as_ref());
        before
    }

    pub(super) fn remove(&mut self, key: &dyn Keyed) -> Option<Object> {
        let removed = self.all.take(key).map(|it| *it.0);
        self.count_removed(removed.as_ref());
        removed
    }

    /// Whether any pod names the UID of a static pod. Most nodes have no static pods, and each of their pods would be
    /// looked up for each generation.
    pub(super) fn has_mirrors(&self) -> bool {
        self.mirrors > 0
    }

    /// Whether any pod has a port of this name. Counted, because a search through all pods takes as long as the cluster
    /// is large.
    pub(super) fn has_port_name(&self, name: &str) -> bool {
        self.port_names.contains_key(name)
    }

    fn count_removed(&mut self, object: Option<&Object>) {
        for NamedPort { name, .. } in object.map_or(&[][..], named_ports) {
            if let Some(count) = self.port_names.get_mut(name.as_str()) {
                *count -= 1;
                if *count == 0 {
                    self.port_names.remove(name.as_str());
                }
            }
        }
        self.mirrors -= usize::from(object.is_some_and(is_mirror));
        let count = object.and_then(|it| self.counts.get_mut(it.body.kind()));
        count.into_iter().for_each(|count| *count -= 1);
    }

    /// The number of objects of a kind.
    pub(super) fn count(&self, kind: &str) -> usize {
        self.counts.get(kind).copied().unwrap_or(0)
    }

    /// All objects.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.all.iter().map(|it| &*it.0)
    }

    /// The objects of a kind, found without a visit to the others.
    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Object> {
        self.from(KeyRef { kind, namespace: "", name: "" }).take_while(move |object| object.body.kind() == kind)
    }

    /// The objects of a kind in a namespace, found without a visit to the others.
    pub(super) fn of_namespace(&self, kind: &str, namespace: &str) -> impl Iterator<Item = &Object> {
        let from = self.from(KeyRef { kind, namespace, name: "" });
        from.take_while(move |object| object.body.kind() == kind && object.meta.namespace == namespace)
    }

    /// The object with this key, and all objects with greater keys.
    fn from(&self, first: KeyRef<'_>) -> impl Iterator<Item = &Object> + use<'_> {
        let range: (Bound<&dyn Keyed>, Bound<&dyn Keyed>) = (Bound::Included(&first), Bound::Unbounded);
        self.all.range::<dyn Keyed, _>(range).map(|it| &*it.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_objects::k8s::{Meta, Node, Pod, Protocol};
    use weir_objects::origin::ObjectId;

    fn object(body: Body, namespace: &str, name: &str, uid: &str) -> Object {
        let meta = Meta { name: name.into(), namespace: namespace.into(), uid: Some(uid.into()), ..Meta::default() };
        Object { id: ObjectId(0), meta, body }
    }

    fn pod(namespace: &str, name: &str, uid: &str) -> Object {
        object(Body::Pod(Pod::default()), namespace, name, uid)
    }

    fn uids<'o>(objects: impl Iterator<Item = &'o Object>) -> Vec<&'o str> {
        objects.filter_map(|object| object.meta.uid.as_deref()).collect()
    }

    #[test]
    fn mirror_pods_are_counted() {
        let mirror = || {
            let pod = Pod { static_uid: Some("0a1b".into()), ..Pod::default() };
            object(Body::Pod(pod), "kube-system", "etcd", "m1")
        };
        let key = Key::of(&mirror());
        let mut objects = Objects::default();
        _ = objects.replace(pod("shop", "web", "u1"));
        assert!(!objects.has_mirrors());
        for _ in 0..2 {
            _ = objects.replace(mirror());
            assert!(objects.has_mirrors());
        }
        assert!(objects.remove(&key).is_some() && !objects.has_mirrors());
        _ = objects.replace(mirror());
        _ = objects.replace(pod("kube-system", "etcd", "u2"));
        assert!(!objects.has_mirrors(), "the pod is no mirror any more");
        assert!(objects.remove(&key).is_some() && objects.remove(&key).is_none() && !objects.has_mirrors());
    }

    #[test]
    fn names_of_ports_are_known_as_long_as_a_pod_has_them() {
        let with = |pod_name: &str, ports: &[&str]| {
            let port = |name: &&str| NamedPort { name: (*name).into(), number: 80, protocol: Protocol::Tcp };
            let pod = Pod { ports: ports.iter().map(port).collect(), ..Pod::default() };
            object(Body::Pod(pod), "shop", pod_name, "u")
        };
        let mut objects = Objects::default();
        let known = |objects: &Objects| ["web", "db"].map(|name| objects.has_port_name(name));
        _ = objects.replace(with("a", &["web", "web"]));
        _ = objects.replace(with("b", &["web", "db"]));
        assert_eq!(known(&objects), [true, true]);
        _ = objects.replace(with("b", &["db"]));
        assert_eq!(known(&objects), [true, true]);
        assert!(objects.remove(&Key::of(&with("a", &[]))).is_some());
        assert_eq!(known(&objects), [false, true]);
        _ = objects.replace(with("b", &[]));
        assert_eq!((known(&objects), objects.port_names.len()), ([false, false], 0));
    }

    #[test]
    fn the_new_state_of_an_object_replaces_the_old_one() {
        let mut objects = Objects::default();
        assert_eq!(objects.replace(pod("shop", "web", "old")), None);
        assert_eq!(objects.replace(pod("shop", "web", "new")), Some(pod("shop", "web", "old")));
        let key = Key::of(&pod("shop", "web", ""));
        assert_eq!(objects.get(&key), Some(&pod("shop", "web", "new")));
        assert_eq!(uids(objects.iter()), ["new"]);
        assert_eq!(objects.remove(&key), Some(pod("shop", "web", "new")));
        assert_eq!(objects.remove(&key), None);
        assert_eq!((objects.get(&key), objects.iter().count()), (None, 0));
        assert_eq!(objects.count("Pod"), 0);
    }

    #[test]
    fn objects_are_found_by_kind_and_namespace() {
        let mut objects = Objects::default();
        let names = [("shop", "web", "4"), ("shop", "db", "3"), ("a", "z", "1"), ("shop-2", "a", "5"), ("b", "a", "2")];
        names.into_iter().for_each(|(namespace, name, uid)| _ = objects.replace(pod(namespace, name, uid)));
        _ = objects.replace(object(Body::Node(Node::default()), "", "web", "node"));
        _ = objects.replace(object(Body::Namespace, "", "shop", "namespace"));
        assert_eq!(uids(objects.iter()), ["namespace", "node", "1", "2", "3", "4", "5"]);
        assert_eq!(uids(objects.of_kind("Pod")), ["1", "2", "3", "4", "5"]);
        assert_eq!(uids(objects.of_kind("Node")), ["node"]);
        assert_eq!(["Pod", "Node", "Service"].map(|kind| objects.count(kind)), [5, 1, 0]);
        assert_eq!(uids(objects.of_kind("P")), [""; 0]);
        assert_eq!(uids(objects.of_namespace("Pod", "shop")), ["3", "4"]);
        assert_eq!(uids(objects.of_namespace("Pod", "sho")), [""; 0]);
        let found = objects.get(&KeyRef { kind: "Node", namespace: "", name: "web" });
        assert_eq!(uids(found.into_iter()), ["node"]);
    }
}
