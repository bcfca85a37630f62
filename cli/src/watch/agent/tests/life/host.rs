//! The host of the agent: interfaces, the evidence about their pods, and a kernel that outlives the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use weir_artifact::layout::{MapName, address_bytes, endpoint};
use weir_artifact::{Artifact, Digest, NamedEndpoint};
use weir_classes::departed::EndedService;
use weir_runtime::sys::ChangedInterfaces;
use weir_runtime::sys::links::{NamespaceInterface, NetworkNamespace};

use super::verdicts::changed_by_rows;
use crate::watch::discover::{Attachment, Depth, Inventory, MountedNamespace};
use crate::watch::enforce::{
    AddressChange, CheckedHooks, Enforce, EnforceError, GonePod, InstallRequest, Installed, KernelSnapshot, NewPod,
    PodAtInterface, PodFailure, RecordedPod,
};

/// An endpoint in the kernel's record.
#[derive(Clone, Debug)]
pub(super) struct FakeEndpoint {
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    pub(super) ifindex: u32,
    pub(super) name: String,
    pub(super) closed: bool,
}

#[derive(Default)]
pub(super) struct FakeHostState {
    pub(super) inventory: Inventory,
    pub(super) endpoints: Vec<FakeEndpoint>,
    pub(super) artifact: Option<Artifact>,
    pub(super) epoch: u32,
    last_ifindex: u32,
    clock: u64,
    /// How many of the next installations fail, and how many single pods fail in them.
    pub(super) refuse: usize,
    pub(super) refuse_pod: usize,
    /// How many pods came or left without an installation.
    pub(super) singles: u64,
    /// How many generations could have extended the one before.
    pub(super) extended: u64,
    /// The generation for which the next one is not prepared.
    unprepared: Option<Digest>,
    /// How often the next one was prepared.
    pub(super) prepared: u64,
}

#[derive(Clone, Default)]
pub(super) struct FakeHost(pub(super) Arc<Mutex<FakeHostState>>);

impl FakeHost {
    pub(super) fn lock(&self) -> MutexGuard<'_, FakeHostState> {
        self.0.lock().expect("no test panics while it holds it")
    }

    pub(super) fn inventory(&self, depth: Depth) -> Inventory {
        let all = self.lock().inventory.clone();
        match depth {
            Depth::Interfaces => Inventory { interfaces: all.interfaces, ..Inventory::default() },
            Depth::Cache => Inventory { namespaces: Vec::new(), ..all },
            Depth::Everything => all,
        }
    }
}

/// A pod that a CNI plug-in attaches.
pub(super) struct PluggedPod<'p> {
    pub(super) namespace: &'p str,
    pub(super) name: &'p str,
    pub(super) uid: &'p str,
    pub(super) address: IpAddr,
}

impl FakeHostState {
    /// Attaches a pod as a CNI plug-in does, with or without a CNI result.
    pub(super) fn plug(&mut self, veth: &str, pod: &PluggedPod<'_>, is_cached: bool) -> u32 {
        self.last_ifindex += 1;
        self.clock += 1;
        let ifindex = 10 + self.last_ifindex;
        let kind = || "veth".to_owned();
        self.inventory.change_interfaces(|all| {
            all.retain(|it| it.name != veth);
            all.push(NamespaceInterface { ifindex, name: veth.to_owned(), kind: kind(), peer: Some(2) });
        });
        let inside = NamespaceInterface { ifindex: 2, name: "eth0".to_owned(), kind: kind(), peer: Some(ifindex) };
        let namespace = NetworkNamespace { interfaces: vec![inside], addresses: vec![(2, pod.address)] };
        self.inventory.namespaces.push(MountedNamespace { name: format!("cni-{ifindex}"), content: namespace });
        if is_cached {
            self.inventory.cached.push(Arc::new(Attachment {
                namespace: pod.namespace.to_owned(),
                name: pod.name.to_owned(),
                uid: Some(pod.uid.to_owned()),
                host_interfaces: vec![veth.to_owned()],
                addresses: vec![pod.address],
                attached_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(self.clock)),
            }));
        }
        ifindex
    }

    /// Removes the interface; the CNI result may be left behind.
    pub(super) fn unplug(&mut self, ifindex: u32, uid: &str, forgets: bool) {
        self.inventory.change_interfaces(|all| all.retain(|it| it.ifindex != ifindex));
        self.inventory.namespaces.retain(|it| it.name != format!("cni-{ifindex}"));
        if forgets {
            self.inventory.cached.retain(|it| it.uid.as_deref() != Some(uid));
        }
    }

    /// A pod gives its own interface another address.
    pub(super) fn add_address(&mut self, ifindex: u32, address: IpAddr) {
        let name = format!("cni-{ifindex}");
        let own = self.inventory.namespaces.iter_mut().filter(|it| it.name == name);
        own.for_each(|it| it.content.addresses.push((2, address)));
    }

    fn interface(&self, name: &str) -> Option<u32> {
        self.inventory.interfaces.named(name).map(|it| it.ifindex)
    }

    pub(super) fn is_there(&self, ifindex: u32) -> bool {
        self.inventory.interfaces.numbered(ifindex).is_some()
    }
}

impl Enforce for FakeHost {
    fn recorded_pods(&mut self) -> Vec<RecordedPod> {
        let state = self.lock();
        let open = state.endpoints.iter().filter(|it| !it.closed);
        let recorded = |it: &FakeEndpoint| {
            let (pod, interface) = (it.pod.clone(), it.name.clone());
            Some(RecordedPod { pod, uid: it.uid.clone()?, interface, ifindex: it.ifindex })
        };
        open.filter_map(recorded).collect()
    }

    /// Follows the rules of the runtime (`runtime-bpf/src/runtime/attach.rs`).
    fn install(&mut self, request: &InstallRequest<'_>) -> Result<Installed, EnforceError> {
        let mut state = self.lock();
        if state.refuse > 0 {
            state.refuse -= 1;
            return Err(EnforceError::new("no memory"));
        }
        if let Some(rows) = request.extends {
            let before = state.artifact.as_ref().expect("there is a generation to extend");
            let its_rows = before.map(MapName::Rows).map(|map| &map.entries);
            assert_eq!(its_rows, Some(rows), "the compiler knows the rows in force");
            if before.code_digest() == request.artifact.code_digest() {
                let changed = changed_by_rows(before, request.artifact);
                assert!(changed.is_empty(), "{changed:#?}");
                state.extended += 1;
            }
        }
        let is_known =
            |pod: &str| request.artifact.endpoints.iter().any(|it| format!("{}/{}", it.namespace, it.name) == pod);
        let open = request.endpoints.iter().map(|it| (it, false));
        let mut named: BTreeMap<u32, FakeEndpoint> = BTreeMap::new();
        for (PodAtInterface { pod, interface: name }, closed) in open.chain(request.closed.iter().map(|it| (it, true)))
        {
            let Some(ifindex) = state.interface(name) else { continue };
            let (uid, name) = (request.uids.get(pod).cloned(), name.clone());
            let endpoint = FakeEndpoint { pod: pod.clone(), uid, ifindex, name, closed: closed || !is_known(pod) };
            let before = named.insert(ifindex, endpoint);
            assert!(before.is_none_or(|it| it.pod == *pod), "{ifindex} is given to two pods: {request:?}");
        }
        let mut failed = Vec::new();
        if state.refuse_pod > 0
            && let Some(it) = named.values_mut().next()
        {
            it.closed = true;
            failed.push(PodFailure { pod: it.pod.clone(), why: "busy".to_owned() });
            state.refuse_pod -= 1;
        }
        let mut endpoints: Vec<FakeEndpoint> = std::mem::take(&mut state.endpoints);
        endpoints.retain(|it| state.is_there(it.ifindex) && !named.contains_key(&it.ifindex));
        for it in &mut endpoints {
            let is_elsewhere = named.values().any(|new| new.pod == it.pod);
            let is_same = it.uid.is_some() && request.uids.get(&it.pod) == it.uid.as_ref();
            it.closed |= is_elsewhere || !is_same || !is_known(&it.pod);
        }
        endpoints.extend(named.into_values());
        state.endpoints = endpoints;
        state.artifact = Some(request.artifact.clone());
        state.epoch += 1;
        state.unprepared = Some(request.artifact.generation().expect("it can be written"));
        Ok(Installed { epoch: state.epoch, is_new: true, failed, ..Installed::default() })
    }

    fn write_addresses(&mut self, changes: &[AddressChange], _: bool) -> Result<(), EnforceError> {
        let mut state = self.lock();
        let maps = state.artifact.as_mut().map(|it| &mut it.maps);
        let Some(map) = maps.and_then(|maps| maps.iter_mut().find(|it| it.name == MapName::Exact4)) else {
            return Ok(());
        };
        for change in changes.iter().filter(|it| it.address.is_ipv4()) {
            let key = address_bytes(change.address);
            map.entries.set(&key, change.class.map(|class| class.0.to_le_bytes()).as_ref().map(|it| &it[..]));
        }
        if map.entries.len() > map.spec.max_entries as usize { Err(EnforceError::new("full")) } else { Ok(()) }
    }

    /// Follows the rules of the runtime (`runtime-bpf/src/runtime/pods.rs`).
    fn add_pod(&mut self, new: &NewPod) -> Result<u32, EnforceError> {
        let mut state = self.lock();
        if state.refuse > 0 {
            state.refuse -= 1;
            return Err(EnforceError::new("no memory"));
        }
        let PodAtInterface { pod, interface: name } = new.at.clone();
        if state.interface(&name) != Some(new.ifindex) {
            return Err(EnforceError::new("the interface is gone"));
        }
        // An interface that `close` has closed is in no record of the runtime.
        state.endpoints.retain(|it| it.ifindex != new.ifindex || !it.pod.is_empty());
        if state.endpoints.iter().any(|it| it.pod == pod || it.ifindex == new.ifindex) {
            return Err(EnforceError::new("it is enforced already"));
        }
        let endpoints = state.artifact.as_mut().map(|it| &mut it.endpoints).ok_or_else(|| EnforceError::new("none"))?;
        let like = endpoints.iter().find(|it| it.pod() == new.like).cloned();
        let mut value = like.ok_or_else(|| EnforceError::new("there is no pod like it"))?.value;
        value[endpoint::V4 as usize..endpoint::MAC as usize].fill(0);
        for address in &new.addresses {
            let (at, bytes) = (if address.is_ipv4() { endpoint::V4 } else { endpoint::V6 }, address_bytes(*address));
            value[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        let (namespace, short) = pod.split_once('/').expect("it has a namespace");
        endpoints.retain(|it| it.pod() != pod);
        endpoints.push(NamedEndpoint { namespace: namespace.to_owned(), name: short.to_owned(), value });
        let (uid, ifindex) = (new.uid.clone(), new.ifindex);
        state.endpoints.push(FakeEndpoint { pod, uid, ifindex, name, closed: false });
        state.singles += 1;
        Ok(state.epoch)
    }

    fn remove_pods(&mut self, pods: &[GonePod]) -> Result<(), EnforceError> {
        let mut state = self.lock();
        for gone in pods {
            if state.endpoints.iter().any(|it| it.pod == gone.pod && state.is_there(it.ifindex)) {
                return Err(EnforceError::new("its interface is still there"));
            }
            state.endpoints.retain(|it| it.pod != gone.pod);
            state.singles += 1;
        }
        Ok(())
    }

    fn end_flows(&mut self, ended: &[EndedService]) -> Result<usize, EnforceError> {
        Ok(ended.len())
    }

    fn remove_replaced(&mut self) -> Result<(), EnforceError> {
        Ok(())
    }

    fn prepare_spare(&mut self, artifact: &Artifact) -> Result<(), EnforceError> {
        let mut state = self.lock();
        let of = artifact.generation().expect("it can be written");
        assert_eq!(state.unprepared.take(), Some(of), "the generation in force, and once");
        state.prepared += 1;
        if state.epoch.is_multiple_of(2) { Err(EnforceError::new("no memory")) } else { Ok(()) }
    }

    fn check_hooks(&mut self, _: &ChangedInterfaces) -> Result<CheckedHooks, EnforceError> {
        Ok(CheckedHooks::default())
    }

    /// Adds a closed endpoint. It has no pod until a generation names one for the interface.
    fn close(&mut self, interface: &str) -> Result<(), EnforceError> {
        let mut state = self.lock();
        let ifindex = state.interface(interface).ok_or_else(|| EnforceError::new("it is gone"))?;
        if state.endpoints.iter().all(|it| it.ifindex != ifindex) {
            let (pod, name) = (String::new(), interface.to_owned());
            state.endpoints.push(FakeEndpoint { pod, uid: None, ifindex, name, closed: true });
        }
        Ok(())
    }

    fn reconcile(&mut self) -> Result<KernelSnapshot, EnforceError> {
        Ok(KernelSnapshot::default())
    }
}
