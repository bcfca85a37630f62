//! A flow that an older generation allowed is judged again by the program that sees its next packet. That may be the
//! program of either direction, so each program also contains the decision of the other direction.
//!
//! Strategy: flows of the probe endpoint, for each direction and family: every combination of class, port and subject
//! class, or, if those are too many, an evenly spread selection of them. The answer to each flow goes through the other
//! direction's program, whose verdict must equal the verdict on a new flow.

use super::endpoints::ArtifactEndpoint;
use super::errors::ICMP_ERROR;
use super::prober::{Instance, Prober};
use super::slots::SlotPort;
use super::survey::{AddressSurvey, SurveyedClass};
use super::{Difference, VerifyPart, VerifyReport};
use weir_model::eval::Verdict;

/// The most flows for each direction and family.
const MOST_FLOWS: usize = 10_000;

pub(super) fn check(
    prober: &mut Prober,
    survey: &AddressSurvey,
    locals: &[ArtifactEndpoint],
    ports: &[SlotPort],
    report: &mut VerifyReport,
) -> Result<(), Difference> {
    // An ICMP echo request and its reply have no flow that is judged again, and ICMP errors begin no flow.
    let is_flow = |port: &SlotPort| *port != (None, 0) && *port != ICMP_ERROR;
    let ports: Vec<SlotPort> = ports.iter().copied().filter(is_flow).collect();
    let mut subjects: Vec<u32> = locals.iter().map(|local| local.subject).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let mut instances: Vec<(Instance, &Vec<SurveyedClass>)> =
        survey.classes.iter().map(|(at, classes)| (*at, classes)).collect();
    instances.sort_unstable_by_key(|(instance, _)| *instance);
    // Sorted, so that the first differences of a report are always the same ones: the survey keeps its classes in a
    // hash map.
    for (instance, classes) in instances {
        // Subject classes vary slowest in the index: each new one is an update of the probe endpoint's map entry.
        let all = classes.len() * ports.len() * subjects.len();
        let stride = stride(all);
        for turn in 0..all.min(MOST_FLOWS) {
            // Spread evenly and not at random: the same artifact must give the same report.
            let place = turn * stride % all;
            let (rest, class) = (place / classes.len(), classes.get(place % classes.len()));
            let (port, subject) = (ports.get(rest % ports.len()), subjects.get(rest / ports.len()));
            let (Some(class), Some(port), Some(subject)) = (class, port, subject) else { continue };
            prober.set_subject(*subject)?;
            one(prober, instance, class, *port, report)?;
        }
    }
    Ok(())
}

/// A step that visits every index (modulo `all`), with consecutive visits far apart. 1 if all of them are visited
/// anyway.
fn stride(all: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    match all <= MOST_FLOWS {
        true => 1,
        // About 0.62 of the range, close to the golden ratio, whose multiples are spread most evenly. Without a common
        // divisor with `all`, no index is visited twice before all of them were.
        false => (all / 8 * 5..all).find(|it| gcd(*it, all) == 1).unwrap_or(1),
    }
}

fn one(
    prober: &mut Prober,
    instance: Instance,
    class: &SurveyedClass,
    port: SlotPort,
    report: &mut VerifyReport,
) -> Result<(), Difference> {
    let (new, again): (Verdict, Verdict) =
        // The programs are compared with themselves, not with the oracle: that new flows are judged rightly is shown
        // elsewhere, so equality is enough here and needs no knowledge of policies.
        (prober.verdict(instance, class.address, port)?, prober.again(instance, class.address, port)?);
    report.count(VerifyPart::Again, 1, u64::from(new == again));
    if new != again {
        let (direction, remote, (protocol, port)) = (instance.direction, class.address, port);
        report.add_difference(Difference::Again { direction, remote, protocol, port, new, again });
    }
    Ok(())
}
