//! Checks a cluster that costs too much: it can be made to fit, only the hostile namespace loses rules, and the result
//! allows no more than before.
//!
//! The limits are counts of the compiler's own meter, so the same seed gives the same result on every machine.

use weir_classes::{ClassifyError, Exceeded, Limits, Scope, classify_within};
use weir_classes::fit::fit;
use weir_objects::k8s::Object;
use weir_model::eval::{Oracle, Verdict};
use weir_model::{Assumptions, Cluster};
use weir_model::resolve::resolve;

use crate::generators::hostile::{NAMESPACE, NODE};
use crate::generators::{Random, flows};

/// The limit on memory of a generation, as the meter counts it.
const BYTES: u64 = 4 << 20;
/// The limit on steps of a generation.
const STEPS: u64 = 20_000_000;
/// The number of flows for which the full and the held cluster are compared.
const QUESTIONS: usize = 50;

/// Checks these objects. Returns the number of policies that were held.
pub fn keep(objects: &[Object], random: &mut Random) -> Result<usize, String> {
    let (full, _) = resolve(objects, Assumptions::default());
    let scope = Scope::node(&full, NODE).ok_or("the node is not there")?;
    let limits = Limits { bytes: BYTES, steps: STEPS };
    let mut highest = None;
    loop {
        let mut held = full.clone();
        let fit = fit(&mut held, &scope, limits, highest);
        match classify_within(&held, &scope, limits) {
            Ok(classes) => {
                if classes.spent.bytes > BYTES || classes.spent.steps > STEPS {
                    return Err(format!("it took {:?}, the limits are {limits:?}", classes.spent));
                }
                let other = fit.held.iter().find(|it| namespace(&full, it.policy.index()) != NAMESPACE);
                if let Some(other) = other {
                    return Err(format!("a policy of {} is held", namespace(&full, other.policy.index())));
                }
                allows_no_more(&full, &held, random)?;
                return Ok(fit.held.len());
            }
            Err(ClassifyError::Exceeded(Exceeded::Bytes(_) | Exceeded::Steps(_))) if fit.lower().is_some() => {
                highest = fit.lower()
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn namespace(cluster: &Cluster, policy: usize) -> &str {
    &cluster.namespaces[cluster.policies[policy].namespace.index()].name
}

fn allows_no_more(full: &Cluster, held: &Cluster, random: &mut Random) -> Result<(), String> {
    let (mut before, mut after) = (Oracle::new(full), Oracle::new(held));
    for flow in flows::flows(full, QUESTIONS, random) {
        let (full, held) = (before.judge(&flow), after.judge(&flow));
        for (full, held) in [(full.ingress, held.ingress), (full.egress, held.egress)] {
            if held.verdict == Verdict::Allow && full.verdict == Verdict::Deny {
                return Err(format!("only the held cluster allows {flow:?}"));
            }
        }
    }
    Ok(())
}
