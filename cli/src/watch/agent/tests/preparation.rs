//! The preparation of the next generation, when there is nothing else to do.

use super::super::preparation::{QUIET_AFTER_WHOLE, QUIET_BEFORE};
use super::*;

const INSTALL: &str = "install shop/web@veth7 isolated";

/// An agent whose kernel is not prepared after an installation.
fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.seen().lacks_spare = true;
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), [INSTALL]);
    rig
}

#[test]
fn the_kernel_is_prepared_once_when_the_agent_is_quiet() {
    let mut rig = rig();
    assert_eq!(rig.after(QUIET_AFTER_WHOLE - 2 * GATHER), NONE);
    // It is due a second after the end of the generation, which has taken real time.
    assert_eq!(rig.after(QUIET_AFTER_WHOLE), ["prepare"]);
    assert_eq!(rig.after(Duration::from_secs(60)), NONE);
    rig.seen().lacks_spare = false;
    rig.apply(NARROW);
    assert_eq!(rig.after(Duration::from_secs(60)), [INSTALL], "the kernel finds that it is prepared");
    // Later generations are not from scratch.
    rig.seen().lacks_spare = true;
    rig.apply(OPEN);
    assert_eq!(rig.after(QUIET_BEFORE / 2).len(), 1);
    assert_eq!(rig.after(QUIET_BEFORE), ["prepare"]);
}

/// At a start, the lists of further kinds come one after the other.
#[test]
fn nothing_is_prepared_just_after_a_generation_from_scratch() {
    let mut rig = rig();
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), [INSTALL], "not from scratch");
    assert_eq!(rig.after(2 * QUIET_BEFORE), NONE);
    assert_eq!(rig.after(QUIET_AFTER_WHOLE), ["prepare"]);
}

#[test]
fn a_generation_comes_before_the_preparation() {
    let mut rig = rig();
    rig.after(QUIET_AFTER_WHOLE - 2 * GATHER);
    rig.apply(NARROW);
    assert_eq!(rig.after(QUIET_BEFORE), [INSTALL]);
    assert_eq!(rig.after(QUIET_BEFORE), ["prepare"]);
    rig.apply(OPEN);
    rig.seen().refuse_install = true;
    assert_eq!(rig.after(Duration::from_millis(100)).len(), 1);
    rig.apply(NARROW);
    rig.seen().refuse_install = false;
    let done = rig.after(Duration::from_secs(60));
    assert_eq!(done, [INSTALL, "prepare"], "nothing is prepared while a generation waits for its retry");
}

/// To look at the budget costs CPU time, too. An agent that looked whenever the budget could be half full would spend
/// all of it on looking.
#[test]
fn the_preparation_waits_until_half_of_the_budget_is_left() {
    let mut rig = rig();
    // Of the bucket of one second, 0.3 are left. A tenth of a core fills it to 0.5 in two seconds.
    rig.seen().cpu += Duration::from_millis(700);
    assert_eq!(rig.after(Duration::from_millis(1_900)), NONE);
    assert_eq!(rig.after(2 * QUIET_AFTER_WHOLE), ["prepare"]);
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), [INSTALL]);
    rig.seen().cpu += Duration::from_secs(1);
    let mut looks = 0;
    let end = rig.now + Duration::from_secs(4);
    while let Some(due) = rig.agent.due().filter(|due| *due <= end) {
        rig.now = due;
        // Each look costs as much as the budget of two milliseconds.
        rig.seen().cpu += Duration::from_micros(200);
        rig.agent.act(rig.now, &mut || None);
        looks += 1;
    }
    assert!(looks < 50, "{looks}");
}

/// The change arrives each time that the agent asks for messages, in turn.
#[test]
fn a_change_that_has_arrived_comes_before_the_preparation() {
    let mut arrived = 0;
    for call in 0..20 {
        let mut rig = rig();
        assert_eq!(rig.after(QUIET_AFTER_WHOLE - 2 * GATHER), NONE);
        rig.now = rig.agent.preparation_due().expect("it is due");
        let change = objects(NARROW).into_iter().map(|it| (ApiEvent::Applied(it), rig.now)).collect();
        let (mut change, mut calls) = (Some(AgentMessage::Api(change)), 0);
        rig.agent.act(rig.now, &mut || {
            calls += 1;
            change.take_if(|_| calls > call)
        });
        let done = std::mem::take(&mut rig.seen().done);
        assert_eq!(done.is_empty(), change.is_none(), "call {call}: {done:?}");
        arrived += usize::from(change.is_none());
        if change.is_none() {
            assert_eq!(rig.after(GATHER), [INSTALL]);
            assert_eq!(rig.after(2 * QUIET_AFTER_WHOLE), ["prepare"]);
        }
    }
    assert!((3..20).contains(&arrived), "{arrived}");
}

/// Connections are judged again ten times a second at most. The preparation does not delay that.
#[test]
fn writes_that_wait_come_before_the_preparation() {
    let mut rig = rig();
    let before = rig.agent.preparation_due().expect("it is due") - rig.now - PAUSE / 2;
    assert_eq!(rig.after(before), NONE);
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["write 10.0.1.6, again"]);
    rig.apply(&far_pod("db-3", "db", "10.0.1.7"));
    assert_eq!(rig.after(PAUSE / 2), ["write 10.0.1.7"]);
    assert_eq!(rig.after(PAUSE), ["again", "prepare"]);
}

#[test]
fn nothing_is_prepared_while_a_pod_is_refused() {
    let mut rig = rig();
    rig.seen().refuse_pod = true;
    rig.apply(NARROW);
    assert!(!rig.after(2 * RETRY.first).contains(&"prepare".to_owned()));
    assert!(!rig.after(Duration::from_secs(60)).contains(&"prepare".to_owned()));
    rig.seen().refuse_pod = false;
    let done = rig.after(Duration::from_secs(60));
    assert_eq!(done.last().map(String::as_str), Some("prepare"), "{done:?}");
}

#[test]
fn a_preparation_that_fails_is_reported_and_tried_again_after_the_next_generation() {
    let mut rig = rig();
    rig.seen().refuse_prepare = true;
    let messages = messages_during(|| {
        assert_eq!(rig.after(Duration::from_secs(60)), ["prepare"]);
    });
    let about = |it: &&String| it.contains("the kernel is not prepared for the next change");
    assert_eq!(messages.iter().filter(about).count(), 1, "{messages:?}");
    assert!(rig.metrics.text().contains("weir_failures_total{stage=\"prepare\"} 1"));
    assert!(rig.metrics.unready().is_none(), "what is in force stays in force");
    rig.apply(NARROW);
    assert_eq!(rig.after(Duration::from_secs(60)), [INSTALL, "prepare"]);
}
