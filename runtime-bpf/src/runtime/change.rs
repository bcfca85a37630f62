//! The switch from one generation to the next: every point, one after the other, and back again if one of them fails.

use std::collections::BTreeSet;

use super::settle::{Seen, Settled};
use super::{Runtime, uptime};
use crate::error::{Error, Failure, Now};
use crate::generation::{self, Loaded};
use crate::pins::Age;
use crate::point::Side;
use crate::record::{Endpoint, Record};

impl Runtime {
    /// Continues the switch that the record names.
    pub(crate) fn go_forward(&self, record: &mut Record, settled: &mut Settled) -> Result<(), Error> {
        let Some(generation) = record.next.clone() else { return Ok(()) };
        let current = self.current(record)?;
        match generation::open(&self.system, &self.pins, record, &generation, Age::Next)? {
            Some(next) => self.switch(record, current.as_ref(), &next, settled),
            None => {
                record.next = None;
                record.write(&self.system, &self.pins)
            }
        }
    }

    /// Puts the record's next generation in force everywhere, or keeps the present one.
    pub(crate) fn switch(
        &self,
        record: &mut Record,
        current: Option<&Loaded>,
        next: &Loaded,
        settled: &mut Settled,
    ) -> Result<(), Error> {
        if let Some(current) = current
            && let Err(error) = self.pair(current, next)
        {
            self.go_back(record, Some(current), &[])?;
            return Err(error);
        }
        self.place_edge(record, next, settled);
        let mut replaced = Vec::new();
        let mut gone = Vec::new();
        for local in record.endpoints.clone() {
            match self.replace(&local, next, &mut replaced) {
                Ok(()) => {}
                Err(why) if self.is_gone(&local, &mut Seen::new())? => {
                    settled.failures.push(failure(&local, Now::Gone, &why));
                    gone.push(local);
                }
                // An endpoint that was not in force before has no previous program to restore.
                Err(why) if !self.was_enforced(&local, current, &replaced) => {
                    let half = replaced.iter().any(|(it, _)| *it == local);
                    settled.failures.push(failure(&local, if half { Now::Closed } else { Now::Open }, &why));
                    if !half {
                        record.endpoints.retain(|it| *it != local);
                    }
                }
                Err(why) if self.apart && self.shut(&local, current, next).is_ok() => {
                    settled.failures.push(failure(&local, Now::Closed, &why));
                }
                Err(error) => {
                    self.go_back(record, current, &replaced)?;
                    return Err(Error::Kernel {
                        doing: format!("put the new generation in force at {} ({})", local.interface, local.pod),
                        error,
                    });
                }
            }
        }
        record.endpoints.retain(|it| !gone.contains(it));
        record.leaving.extend(gone.iter().cloned());
        settled.gone.extend(gone);
        record.retired = record.current.take().map(|generation| (generation, uptime()));
        record.current = record.next.take();
        record.write(&self.system, &self.pins)
    }

    /// Drops all packets at an endpoint, in the current generation and in the next one.
    fn shut(&self, local: &Endpoint, current: Option<&Loaded>, next: &Loaded) -> Result<(), Error> {
        let interface = BTreeSet::from([local.ifindex]);
        current.into_iter().chain([next]).try_for_each(|loaded| self.close(loaded, &interface))
    }

    fn replace(&self, local: &Endpoint, next: &Loaded, replaced: &mut Vec<(Endpoint, Side)>) -> std::io::Result<()> {
        for side in Side::BOTH {
            self.point(local, side).place(next.program(side))?;
            replaced.push((local.clone(), side));
        }
        Ok(())
    }

    /// Whether the previous generation is, or was until now, in force at this endpoint. If the query fails, it counts
    /// as in force.
    fn was_enforced(&self, local: &Endpoint, current: Option<&Loaded>, replaced: &[(Endpoint, Side)]) -> bool {
        let Some(current) = current else { return false };
        Side::BOTH.into_iter().zip(current.generation.programs).any(|(side, number)| {
            let was_replaced = replaced.iter().any(|(it, at)| it == local && *at == side);
            !was_replaced && self.point(local, side).program().map_or(true, |there| there == Some(number))
        })
    }

    /// Puts the present generation in force again where the next one has replaced it.
    fn go_back(
        &self,
        record: &mut Record,
        current: Option<&Loaded>,
        replaced: &[(Endpoint, Side)],
    ) -> Result<(), Error> {
        let Some(current) = current else { return Ok(()) };
        // If this fails, the next command tries it again.
        self.place_edge(record, current, &mut Settled::default());
        let mut failed = Vec::new();
        for (local, side) in replaced {
            if let Err(why) = self.point(local, *side).place(current.program(*side)) {
                failed.push(failure(local, Now::Other, &why));
            }
        }
        if !failed.is_empty() {
            // Both generations stay. The next operation continues the switch.
            return Err(Error::Partial(failed));
        }
        record.next = None;
        record.write(&self.system, &self.pins)?;
        self.unpair(current)?;
        self.place_pins(record).map(|_| ())
    }
}

fn failure(local: &Endpoint, now: Now, why: &std::io::Error) -> Failure {
    Failure { pod: local.pod.clone(), interface: local.interface.clone(), now, why: why.to_string() }
}
