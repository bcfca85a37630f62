//! The host of the agent: interfaces, the evidence about their pods, and a kernel that outlives the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use weir_artifact::Artifact;
use weir_classes::PeerId;
use weir_classes::departed::EndedService;
use weir_artifact::layout::{MapName, address_bytes};
use weir_runtime::sys::links::{NamespaceInterface, NetworkNamespace};

use crate::watch::discover::{Cached, Depth, Inventory};
use crate::watch::enforce::{Enforce, HookCheck, Installed, Left, Survey, Trouble, Wanted};

/// An endpoint in the kernel's record.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    pub(super) ifindex: u32,
    pub(super) name: String,
    pub(super) closed: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) inventory: Inventory,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) artifact: Option<Artifact>,
    pub(super) epoch: u32,
    last_ifindex: u32,
    clock: u64,
    /// How many of the next installations fail, and how many single pods fail in them.
    pub(super) refuse: usize,
    pub(super) refuse_pod: usize,
}

#[derive(Clone, Default)]
pub(super) struct Host(pub(super) Arc<Mutex<State>>);

impl Host {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics while it holds it")
    }

    pub(super) fn look(&self, depth: Depth) -> Inventory {
        let all = self.lock().inventory.clone();
        match depth {
            Depth::Interfaces => Inventory { interfaces: all.interfaces, ..Inventory::default() },
            Depth::Cache => Inventory { namespaces: Vec::new(), ..all },
            Depth::Everything => all,
        }
    }
}

impl State {
    /// Attaches a pod as a CNI plug-in does, with or without a CNI result.
    pub(super) fn plug(&mut self, veth: &str, pod: (&str, &str, &str), address: IpAddr, is_cached: bool) -> u32 {
        self.last_ifindex += 1;
        self.clock += 1;
        let ifindex = 10 + self.last_ifindex;
        let kind = || "veth".to_owned();
        self.inventory.interfaces.retain(|it| it.name != veth);
        self.inventory.interfaces.push(NamespaceInterface {
            ifindex,
            name: veth.to_owned(),
            kind: kind(),
            peer: Some(2),
        });
        let inside = NamespaceInterface { ifindex: 2, name: "eth0".to_owned(), kind: kind(), peer: Some(ifindex) };
        let namespace = NetworkNamespace { interfaces: vec![inside], addresses: vec![(2, address)] };
        self.inventory.namespaces.push((format!("cni-{ifindex}"), namespace));
        if is_cached {
            self.inventory.cached.push(Cached {
                namespace: pod.0.to_owned(),
                name: pod.1.to_owned(),
                uid: Some(pod.2.to_owned()),
                host_interfaces: vec![veth.to_owned()],
                addresses: vec![address],
                made: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(self.clock)),
            });
        }
        ifindex
    }

    /// Removes the interface; the CNI result may be left behind.
    pub(super) fn unplug(&mut self, ifindex: u32, uid: &str, forgets: bool) {
        self.inventory.interfaces.retain(|it| it.ifindex != ifindex);
        self.inventory.namespaces.retain(|(name, _)| *name != format!("cni-{ifindex}"));
        if forgets {
            self.inventory.cached.retain(|it| it.uid.as_deref() != Some(uid));
        }
    }

    /// A pod gives its own interface another address.
    pub(super) fn add_address(&mut self, ifindex: u32, address: IpAddr) {
        let name = format!("cni-{ifindex}");
        let own = self.inventory.namespaces.iter_mut().filter(|(it, _)| *it == name);
        own.for_each(|(_, namespace)| namespace.addresses.push((2, address)));
    }

    fn interface(&self, name: &str) -> Option<u32> {
        self.inventory.interfaces.iter().find(|it| it.name == name).map(|it| it.ifindex)
    }

    pub(super) fn is_there(&self, ifindex: u32) -> bool {
        self.inventory.interfaces.iter().any(|it| it.ifindex == ifindex)
    }
}

impl Enforce for Host {
    fn left(&mut self) -> Vec<Left> {
        let state = self.lock();
        let open = state.endpoints.iter().filter(|it| !it.closed);
        let left = |it: &Endpoint| {
            let (pod, interface) = (it.pod.clone(), it.name.clone());
            Some(Left { pod, uid: it.uid.clone()?, interface, ifindex: it.ifindex })
        };
        open.filter_map(left).collect()
    }

    /// Follows the rules of the runtime (`runtime-bpf/src/runtime/attach.rs`).
    fn install(&mut self, wanted: &Wanted<'_>) -> Result<Installed, Trouble> {
        let mut state = self.lock();
        if state.refuse > 0 {
            state.refuse -= 1;
            return Err(Trouble("no memory".to_owned()));
        }
        let is_known =
            |pod: &str| wanted.artifact.endpoints.iter().any(|it| format!("{}/{}", it.namespace, it.name) == pod);
        let open = wanted.endpoints.iter().map(|it| (it, false));
        let mut named: BTreeMap<u32, Endpoint> = BTreeMap::new();
        for ((pod, name), closed) in open.chain(wanted.closed.iter().map(|it| (it, true))) {
            let Some(ifindex) = state.interface(name) else { continue };
            let (uid, name) = (wanted.uids.get(pod).cloned(), name.clone());
            let endpoint = Endpoint { pod: pod.clone(), uid, ifindex, name, closed: closed || !is_known(pod) };
            let before = named.insert(ifindex, endpoint);
            assert!(before.is_none_or(|it| it.pod == *pod), "{ifindex} is given to two pods: {wanted:?}");
        }
        let mut failed = Vec::new();
        if state.refuse_pod > 0
            && let Some(it) = named.values_mut().next()
        {
            it.closed = true;
            failed.push((it.pod.clone(), "busy".to_owned()));
            state.refuse_pod -= 1;
        }
        let mut endpoints: Vec<Endpoint> = std::mem::take(&mut state.endpoints);
        endpoints.retain(|it| state.is_there(it.ifindex) && !named.contains_key(&it.ifindex));
        for it in &mut endpoints {
            let is_elsewhere = named.values().any(|new| new.pod == it.pod);
            let is_same = it.uid.is_some() && wanted.uids.get(&it.pod) == it.uid.as_ref();
            it.closed |= is_elsewhere || !is_same || !is_known(&it.pod);
        }
        endpoints.extend(named.into_values());
        state.endpoints = endpoints;
        state.artifact = Some(wanted.artifact.clone());
        state.epoch += 1;
        Ok(Installed { epoch: state.epoch, is_new: true, failed })
    }

    fn write(&mut self, changes: &[(IpAddr, Option<PeerId>)], _: bool) -> Result<(), Trouble> {
        let mut state = self.lock();
        let maps = state.artifact.as_mut().map(|it| &mut it.maps);
        let Some(map) = maps.and_then(|maps| maps.iter_mut().find(|it| it.name == MapName::Exact4)) else {
            return Ok(());
        };
        for (address, peer) in changes.iter().filter(|(address, _)| address.is_ipv4()) {
            let key = address_bytes(*address);
            map.entries.retain(|(it, _)| *it != key);
            map.entries.extend(peer.map(|peer| (key, peer.0.to_le_bytes().to_vec())));
        }
        map.entries.sort();
        if map.entries.len() > map.spec.max_entries as usize { Err(Trouble("full".to_owned())) } else { Ok(()) }
    }

    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, Trouble> {
        Ok(ended.len())
    }

    fn rest(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn look(&mut self) -> Result<HookCheck, Trouble> {
        Ok(HookCheck::default())
    }

    /// Adds a closed endpoint. It has no pod until a generation names one for the interface.
    fn close(&mut self, interface: &str) -> Result<(), Trouble> {
        let mut state = self.lock();
        let ifindex = state.interface(interface).ok_or_else(|| Trouble("it is gone".to_owned()))?;
        if state.endpoints.iter().all(|it| it.ifindex != ifindex) {
            let (pod, name) = (String::new(), interface.to_owned());
            state.endpoints.push(Endpoint { pod, uid: None, ifindex, name, closed: true });
        }
        Ok(())
    }

    fn survey(&mut self) -> Result<Survey, Trouble> {
        Ok(Survey::default())
    }
}
