//! The class that the programs find for every address.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::expected::ExpectedVerdicts;
use super::prober::{ClassKey, Instance, ProbeStop, Prober};
use super::suspects;
use weir_artifact::Artifact;
use weir_artifact::layout::{MapName, direction_number};
use weir_ebpf::vm::MapByte;
use weir_machine::Broken;
use weir_model::Direction;
use weir_model::eval::Verdict;
use weir_objects::address::Family;

/// An address with its oracle class and its classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) address: IpAddr,
    /// Its oracle class: its class in the oracle.
    pub(super) oracle_class: u32,
    /// Its classes in the programs: ingress, egress.
    pub(super) classes: [u32; 2],
}

/// A class that the programs distinguish.
#[derive(Clone, Debug)]
pub(super) struct SurveyedClass {
    /// An address of the class.
    pub(super) address: IpAddr,
    /// How far the program processes its packets, from a state that contains only the class.
    pub(super) reach: ProbeStop,
}

/// The result of a survey.
#[derive(Debug, Default)]
pub(super) struct AddressSurvey {
    pub(super) remotes: Vec<Remote>,
    pub(super) classes: HashMap<Instance, Vec<SurveyedClass>>,
    /// The number of questions asked about addresses.
    pub(super) asked: u64,
}

/// For each word of a table, its neighbouring addresses are added for at most this many ranges of addresses.
const MOST_RANGES: usize = 3;
/// The number of sample addresses from which the prober learns which parts of the state the row look-up reads.
const SAMPLES: usize = 12;

/// Asks about all addresses of the families, and about further addresses that the tables read on the way point to.
pub(super) fn survey(
    artifact: &Artifact,
    prober: &mut Prober,
    expected: &mut ExpectedVerdicts<'_>,
    addresses: &BTreeSet<IpAddr>,
    families: &[Family],
) -> Result<AddressSurvey, Broken> {
    let mut survey = AddressSurvey::default();
    for family in families {
        let mut open: BTreeSet<IpAddr> = addresses.iter().copied().filter(|it| Family::of(*it) == *family).collect();
        // A wrong entry may be where the cluster has no boundary at all. Only the artifact itself can name such an
        // address.
        open.extend(suspects::addresses(artifact, *family));
        // Before the first class is numbered: a part that is learned later would split classes that were already given
        // one number.
        learn(prober, *family, &open)?;
        let mut surveyor = Surveyor { prober, known: Default::default(), survey: &mut survey };
        surveyor.all(artifact, expected, *family, open)?;
    }
    Ok(survey)
}

fn learn(prober: &mut Prober, family: Family, addresses: &BTreeSet<IpAddr>) -> Result<(), Broken> {
    // Evenly over the sorted addresses, because neighbours mostly take the same way through the program. A way that no
    // sample takes costs one more attempt (`Unlearned`), not a wrong result.
    let step = (addresses.len() / SAMPLES).max(1);
    for direction in Direction::ALL {
        let instance = Instance { direction, is_v4: family == Family::V4 };
        for address in addresses.iter().step_by(step) {
            if let ProbeStop::Row(state) = prober.reach(instance, *address, (None, 0), None, &mut Vec::new())? {
                prober.learn(instance, &state)?;
            }
        }
    }
    Ok(())
}

#[derive(PartialEq, Eq, Hash)]
enum Known {
    Class(ClassKey),
    Settled(Verdict),
}

struct Surveyor<'a> {
    prober: &'a mut Prober,
    known: [HashMap<Known, u32>; 2],
    survey: &'a mut AddressSurvey,
}

impl Surveyor<'_> {
    /// Asks about addresses until the tables that were read point to no new one.
    fn all(
        &mut self,
        artifact: &Artifact,
        expected: &mut ExpectedVerdicts<'_>,
        family: Family,
        mut open: BTreeSet<IpAddr>,
    ) -> Result<(), Broken> {
        let name = if family == Family::V4 { MapName::Prefixes4 } else { MapName::Prefixes6 };
        let table = artifact.map(name).filter(|map| suspects::is_table(map));
        // Only for compiled tables: all keys of a kernel map are among the addresses already.
        let note = table.and_then(|_| self.prober.loaded.map(name));
        let value = table.and_then(|map| map.entries.first()).map_or(&[][..], |(_, value)| value);
        let mut done: BTreeSet<IpAddr> = BTreeSet::new();
        let mut noted: Vec<MapByte> = Vec::new();
        // By word and not by address: thousands of addresses read the upper levels of a search, and each time they
        // would propose the same neighbours.
        let mut words: HashMap<u64, BTreeSet<IpAddr>> = HashMap::new();
        // Rounds, because a proposed address may read words that no address read before. They end: each word proposes
        // addresses for at most `MOST_RANGES` ranges.
        while !open.is_empty() {
            let mut next = BTreeSet::new();
            for address in &open {
                let is_v4 = family == Family::V4;
                let ask = |this: &mut Self, direction, noted: &mut Vec<MapByte>| {
                    this.class(Instance { direction, is_v4 }, *address, note, noted)
                };
                let classes = [ask(self, Direction::Ingress, &mut noted)?, ask(self, Direction::Egress, &mut noted)?];
                // Oracle class and class are kept side by side for every address, not only one address for each class.
                // A wrong table shows as two addresses of one class and two oracle classes.
                self.survey.remotes.push(Remote {
                    address: *address,
                    oracle_class: expected.oracle_class(*address),
                    classes,
                });
                self.survey.asked += 2;
                for spot in noted.drain(..) {
                    // A word of an intact table belongs to one range of addresses. A damaged table may use it for
                    // others as well.
                    let ranges = words.entry(spot.offset).or_default();
                    if ranges.len() < MOST_RANGES && ranges.insert(range_of(*address)) {
                        let word = value.get(spot.offset as usize..).and_then(<[u8]>::first_chunk);
                        next.extend(
                            word.into_iter().flat_map(|it| suspects::beside(*address, u32::from_le_bytes(*it))),
                        );
                    }
                }
            }
            done.append(&mut open);
            open = next.difference(&done).copied().collect();
        }
        Ok(())
    }

    fn class(
        &mut self,
        instance: Instance,
        address: IpAddr,
        note: Option<weir_ebpf::vm::MapId>,
        noted: &mut Vec<MapByte>,
    ) -> Result<u32, Broken> {
        let reach = self.prober.reach(instance, address, (None, 0), note, noted)?;
        let key = match &reach {
            ProbeStop::Row(state) => Known::Class(self.prober.class(instance, state)),
            // Addresses for which the program never reads a row: all with the same verdict are one class.
            ProbeStop::Settled(verdict) => Known::Settled(*verdict),
        };
        // Numbers are separate for the directions. The two programs have separate code, so equal states in both would
        // mean nothing.
        let known = &mut self.known[direction_number(instance.direction) as usize];
        let next = known.len() as u32;
        let number = *known.entry(key).or_insert(next);
        // One state for each class is enough, and it is the only large thing here (half a kilobyte of stack).
        if number == next {
            let reach = match reach {
                ProbeStop::Row(state) => ProbeStop::Row(Box::new(self.prober.cut_down(instance, &state))),
                settled => settled,
            };
            self.survey.classes.entry(instance).or_default().push(SurveyedClass { address, reach });
        }
        Ok(number)
    }
}

/// The range of addresses in which the same word of a table means the same boundary.
fn range_of(address: IpAddr) -> IpAddr {
    let (family, number) = weir_objects::address::to_number(address);
    weir_objects::address::to_address(family, number >> 16 << 16)
}
