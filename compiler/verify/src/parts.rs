//! Verification by parts: the product is too large, so each factor is checked alone, and then the way they combine.
//!
//! 1. Every address: its class ([`super::survey`]) and its oracle class. One address represents all with the same pair.
//! 2. Every port: the bit of a set that it reads ([`ports`]) and its slot. One port represents all with the same pair.
//! 3. Every entry: for each pair of subject class and kind of endpoint and each pair of class and oracle class, the set
//!    that the programs find must be the one that the oracle expects. If bits decide, the members of a set are read
//!    from its bytes and confirmed by packets through the whole program, for each distinct set ([`sets`]).
//! 4. The whole: each endpoint, with packets to and from others, itself and its node, compared with the oracle itself.

mod ports;
mod sets;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::asker::{Asker, instances};
use super::endpoints::ArtifactEndpoint;
use super::expected::ExpectedVerdicts;
use super::prober::{Instance, ProbeStop, Prober};
use super::slots::SlotPort;
use super::survey::{AddressSurvey, Remote};
use super::{Difference, VerifyPart, VerifyProgress, VerifyReport, bits};
use sets::MeasuredSets;
use weir_artifact::layout::{FILTERS_EGRESS, FILTERS_INGRESS, direction_number};
use weir_machine::Broken;
use weir_model::{Cluster, Direction};

/// Addresses with the same class and the same oracle class; only the first two are kept.
struct ClassPair {
    class: u32,
    oracle_class: u32,
    addresses: Vec<IpAddr>,
}

/// The state of one verification by parts.
pub(super) struct PartsVerifier<'a, 'c> {
    pub(super) prober: &'a mut Prober,
    pub(super) expected: &'a mut ExpectedVerdicts<'c>,
    pub(super) asker: &'a mut Asker<'c>,
    pub(super) survey: &'a AddressSurvey,
    pub(super) locals: &'a [ArtifactEndpoint],
    pub(super) ports: &'a [SlotPort],
    pub(super) report: &'a mut VerifyReport,
    pub(super) watch: &'a dyn Fn(VerifyProgress),
}

/// The run could not be followed from a state that was cut down to its class: learn from this probe and start over.
pub(super) struct Unlearned {
    pub(super) instance: Instance,
    pub(super) address: IpAddr,
    pub(super) subject: u32,
}

/// Why verification by parts stopped.
pub(super) enum Stopped {
    Unlearned(Unlearned),
    Difference(Difference),
}

impl From<Broken> for Stopped {
    fn from(broken: Broken) -> Self {
        Self::Difference(broken.into())
    }
}

/// The progress of one direction and family.
struct DirectionProgress {
    instance: Instance,
    sorts: Vec<ClassPair>,
    measured: MeasuredSets,
    /// Finished comparisons, by expected set and found set: the index of a port that differs, if any.
    compared: HashMap<(u32, u32), Option<usize>>,
}

impl PartsVerifier<'_, '_> {
    pub(super) fn run(&mut self, cluster: &Cluster) -> Result<(), Stopped> {
        let mut tables = Vec::new();
        let instances: Vec<Instance> = instances(true).into_iter().chain(instances(false)).collect();
        for instance in instances.into_iter().filter(|it| self.survey.classes.contains_key(it)) {
            // Before the first row: it changes the probe endpoint's subject class and, for a moment, the bytes of a
            // set.
            let ports = ports::classify(self, instance)?;
            let sorts = sorts(&self.survey.remotes, instance);
            tables.push(DirectionProgress {
                instance,
                sorts,
                measured: MeasuredSets::new(&ports),
                compared: HashMap::new(),
            });
        }
        self.report.count(VerifyPart::Addresses, self.survey.asked, self.survey.asked);
        let holders = self.expected.holders();
        // By kind and subject class together. Endpoints of one kind with two classes, or of one class with two kinds,
        // are how a wrong class of an endpoint looks.
        let pairs = pairs(self.expected, self.locals);
        let total = 2 * pairs.len() as u64;
        for (done, ((kind, subject), locals)) in pairs.into_iter().enumerate() {
            (self.watch)(VerifyProgress { done: done as u64, total });
            let rows = Direction::ALL.map(|direction| self.expected.row(&holders, kind, direction));
            check_flags(self.expected, self.asker.cluster, kind, &rows, &locals, self.report);
            // Outside of the loop over tables, because it is an update of a map.
            self.prober.set_subject(subject)?;
            for table in &mut tables {
                let row = &rows[direction_number(table.instance.direction) as usize];
                self.check_row(table, subject, row, &locals)?;
            }
        }
        self.whole(cluster).map_err(Stopped::Difference)
    }

    fn check_row(
        &mut self,
        table: &mut DirectionProgress,
        subject: u32,
        row: &[u32],
        locals: &[ArtifactEndpoint],
    ) -> Result<(), Stopped> {
        let classes = self.survey.classes.get(&table.instance).map_or(&[][..], Vec::as_slice);
        let mut found = Vec::with_capacity(classes.len());
        for (number, class) in classes.iter().enumerate() {
            let spot = match &class.reach {
                ProbeStop::Settled(_) => None,
                // A trap: the row look-up read a part that was removed from the state. For another subject class it may
                // take a way on which it needs more.
                ProbeStop::Row(state) => self.prober.set(state).map_err(|_| {
                    let (instance, address) = (table.instance, class.address);
                    Stopped::Unlearned(Unlearned { instance, address, subject })
                })?,
            };
            let at = (number as u32, subject);
            found.push(table.measured.number(self.prober, self.report, table.instance, spot, class.address, at)?);
        }
        let mut differs = Vec::new();
        for (index, sort) in table.sorts.iter().enumerate() {
            // The heart of the proof by parts: the oracle's set depends on the oracle class alone and the programs' set
            // on the class alone, so comparing one entry for each pair of oracle class and class covers all addresses.
            let (expected, emitted) = (row[sort.oracle_class as usize], found[sort.class as usize]);
            let measured = &table.measured;
            let (slots, sets) = (&self.expected.slots, &self.expected.sets);
            // Both sides number their distinct sets. A large cluster has millions of entries but few distinct pairs of
            // sets, and each pair is compared once.
            let port = *table.compared.entry((expected, emitted)).or_insert_with(|| {
                measured.ports.iter().enumerate().position(|(number, port)| {
                    let set = sets.list.get(expected as usize).map_or(&[][..], |set| set);
                    bits::contains(set, slots.of(*port)) != bits::contains(measured.set(emitted), number)
                })
            });
            if let Some(port) = port {
                differs.push((index, measured.ports[port]));
            }
        }
        // Entries that differ are counted by `witness`, once it is known whether a packet shows the difference.
        let agreed = (table.sorts.len() - differs.len()) as u64;
        self.report.count(VerifyPart::Entries, agreed, agreed);
        for (sort, port) in differs {
            self.witness(table.instance, &table.sorts[sort], locals, port)?;
        }
        Ok(())
    }

    /// An entry differs. Finds an endpoint and an address whose packet shows it, unless the only address is the
    /// endpoint's own.
    fn witness(
        &mut self,
        instance: Instance,
        sort: &ClassPair,
        locals: &[ArtifactEndpoint],
        port: SlotPort,
    ) -> Result<(), Stopped> {
        let mut shown = None;
        // Two endpoints and two addresses: one of them may be the endpoint's own, and a packet to itself passes with
        // any entry.
        for local in locals.iter().take(2) {
            for remote in &sort.addresses {
                let is_itself = self.asker.cluster.endpoints[local.id.index()].addresses.contains(remote);
                if is_itself || shown == Some(true) {
                    continue;
                }
                if let Some(agreed) =
                    self.asker.ask(&mut self.prober.loaded, self.report, local, instance, *remote, port)?
                {
                    shown = Some(!agreed);
                }
            }
        }
        // If the entry's only address is that of its only endpoint, no packet can ever use the entry.
        self.report.count(VerifyPart::Entries, 1, u64::from(shown.is_none()));
        match shown {
            // The entry differs and the packet does not: then this verification has misunderstood the programs. It says
            // so instead of trusting either result.
            Some(false) => Err(Stopped::Difference(Difference::Unconfirmed {
                direction: instance.direction,
                endpoint: locals.first().map(|it| self.asker.cluster.endpoint_name(it.id)).unwrap_or_default(),
                remote: sort.address(),
            })),
            _ => Ok(()),
        }
    }

    /// Checks each endpoint with its real value: packets to and from other addresses, itself, and its node.
    fn whole(&mut self, cluster: &Cluster) -> Result<(), Difference> {
        let remotes = &self.survey.remotes;
        let mut turn = 0;
        let all = self.locals.len() as u64;
        for (done, local) in self.locals.iter().enumerate() {
            // The rows before were the first half.
            (self.watch)(VerifyProgress { done: done as u64 + all, total: 2 * all });
            let node = cluster.endpoints[local.id.index()].node.and_then(|node| cluster.nodes.get(node.index()));
            for instance in instances(true).into_iter().chain(instances(false)) {
                let Some(own) = self.asker.own(local.id, instance.is_v4) else { continue };
                // Itself and its node are what rows do not decide, so only packets check them.
                let mut asked = vec![own];
                asked.extend(node.map_or(&[][..], |node| &node.addresses));
                asked.retain(|it| it.is_ipv4() == instance.is_v4);
                // Two large primes as steps, so that all combinations of endpoint, address and port occur sooner or
                // later.
                for step in [7_919, 104_729] {
                    turn += step;
                    asked.extend(remotes.get(turn % remotes.len().max(1)).map(|it| it.address));
                }
                for remote in asked {
                    turn += 1;
                    let Some(port) = self.ports.get(turn % self.ports.len().max(1)) else { continue };
                    self.asker.ask(&mut self.prober.loaded, self.report, local, instance, remote, *port)?;
                }
            }
        }
        Ok(())
    }
}

impl ClassPair {
    fn address(&self) -> IpAddr {
        self.addresses.first().copied().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
    }
}

/// Checks every endpoint's filter flags without running packets.
pub(super) fn check_all_flags(
    expected: &mut ExpectedVerdicts<'_>,
    cluster: &Cluster,
    locals: &[ArtifactEndpoint],
    report: &mut VerifyReport,
) {
    let holders = expected.holders();
    for ((kind, _), locals) in pairs(expected, locals) {
        let rows = Direction::ALL.map(|direction| expected.row(&holders, kind, direction));
        check_flags(expected, cluster, kind, &rows, &locals, report);
    }
}

/// A direction in which anything can be denied must be filtered; one with nothing in force must not.
fn check_flags(
    expected: &mut ExpectedVerdicts<'_>,
    cluster: &Cluster,
    kind: u32,
    rows: &[Vec<u32>; 2],
    locals: &[ArtifactEndpoint],
    report: &mut VerifyReport,
) {
    // One number for "all slots", so that a row is compared without looking into its sets.
    let everything = expected.everything();
    for (direction, flag) in [(Direction::Ingress, FILTERS_INGRESS), (Direction::Egress, FILTERS_EGRESS)] {
        let row = &rows[direction_number(direction) as usize];
        let denies = row.iter().any(|set| *set != everything);
        let may = expected.can_deny(kind, direction);
        for local in locals {
            let filters = local.flags & flag != 0;
            // Both ways: an endpoint that is not filtered is open, and one that is filtered without need pays for every
            // packet.
            let right = (filters || !denies) && (may || !filters);
            report.count(VerifyPart::Endpoints, 1, u64::from(right));
            if !right {
                let endpoint = cluster.endpoint_name(local.id);
                report.add_difference(Difference::Filter { direction, endpoint, filters });
            }
        }
    }
}

/// Groups the addresses of a family by class and oracle class.
fn sorts(remotes: &[Remote], instance: Instance) -> Vec<ClassPair> {
    let mut known: HashMap<(u32, u32), usize> = HashMap::new();
    let mut sorts: Vec<ClassPair> = Vec::new();
    for remote in remotes.iter().filter(|it| it.address.is_ipv4() == instance.is_v4) {
        let class = remote.classes[direction_number(instance.direction) as usize];
        let number = *known.entry((class, remote.oracle_class)).or_insert(sorts.len());
        if number == sorts.len() {
            sorts.push(ClassPair { class, oracle_class: remote.oracle_class, addresses: Vec::new() });
        }
        let addresses = &mut sorts[number].addresses;
        // Two are enough for a witness, and a class may have a million addresses.
        if addresses.len() < 2 {
            addresses.push(remote.address);
        }
    }
    sorts
}

/// Groups the endpoints by kind and subject class.
fn pairs(expected: &ExpectedVerdicts<'_>, locals: &[ArtifactEndpoint]) -> BTreeMap<(u32, u32), Vec<ArtifactEndpoint>> {
    let mut pairs: BTreeMap<(u32, u32), Vec<ArtifactEndpoint>> = BTreeMap::new();
    for local in locals {
        pairs.entry((expected.kind(local.id), local.subject)).or_default().push(*local);
    }
    pairs
}
