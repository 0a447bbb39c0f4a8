//! The machine alone, and against a model.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use vfs::Handle;

use super::*;
use crate::exports::ExportId;

fn key(host: u8, owner: u8) -> WaitKey {
    WaitKey {
        holder: HolderId(host.into()),
        file: FileKey { export: ExportId(1), handle: Handle::new(b"file").unwrap() },
        owner: Owner(Bytes::copy_from_slice(&[host, owner])),
        offset: u64::from(owner) * 10,
        length: 10,
        exclusive: true,
    }
}

fn notify(waits: &mut Waits<()>, now: Instant, key: &WaitKey) -> bool {
    waits.notified(now, key.holder, &key.file, &key.owner)
}

#[test]
fn a_request_is_attempted_granted_and_acknowledged() {
    let (mut waits, now) = (Waits::default(), Instant::now());
    let key = key(1, 1);
    waits.block(now, key.clone(), ()).unwrap();
    assert_eq!(waits.due(now), None);
    assert!(notify(&mut waits, now, &key));
    let number = waits.due(now).unwrap();
    assert_eq!(waits.due(now + Duration::from_secs(99)), None, "it is being attempted");
    waits.attempted(now, number, true);
    assert_eq!(waits.due(now), Some(number), "the client is called at once");
    assert_eq!(waits.answered(now, number, Answer::Silent), None);
    assert_eq!(waits.answered(now, number, Answer::Silent), None, "it is not being called");
    assert_eq!((waits.queue.len(), waits.next_due()), (1, Some(now + CALL_PAUSES.first)));
    assert_eq!(waits.get(number).map(|(_, stage, ())| stage), Some(Stage::Granted), "it keeps the lock");
    assert_eq!(waits.due(now + CALL_PAUSES.first), Some(number), "and is called again");
    assert_eq!(waits.answered(now, number, Answer::Accepted), Some(key));
    assert_eq!((waits.len(), waits.next_due()), (0, None));
}

#[test]
fn a_refused_lock_is_released() {
    let (mut waits, now) = (Waits::default(), Instant::now());
    let key = key(1, 1);
    waits.block(now, key.clone(), ()).unwrap();
    let number = waits.due(now + ATTEMPT_PAUSES.first).unwrap();
    waits.attempted(now, number, true);
    waits.due(now).unwrap();
    assert_eq!(waits.answered(now, number, Answer::Refused), Some(key));
    assert_eq!(waits.len(), 0);
}

#[test]
fn a_notice_during_an_attempt_causes_another() {
    let (mut waits, now) = (Waits::default(), Instant::now());
    let key = key(1, 1);
    waits.block(now, key.clone(), ()).unwrap();
    let number = waits.due(now + ATTEMPT_PAUSES.first).unwrap();
    assert!(notify(&mut waits, now, &key));
    waits.attempted(now, number, false);
    assert_eq!(waits.due(now), Some(number));
}

#[test]
fn one_host_does_not_fill_the_table() {
    let (mut waits, now) = (Waits::default(), Instant::now());
    for number in 0..=WAITS_PER_HOST_MAX as u64 {
        let key = WaitKey { offset: number, ..key(1, 1) };
        assert_eq!(waits.block(now, key, ()).is_ok(), number < WAITS_PER_HOST_MAX as u64);
    }
    waits.block(now, key(2, 1), ()).unwrap();
    waits.take_host(HolderId(1));
    assert!(waits.len() == 1 && !waits.has(HolderId(1)) && waits.has(HolderId(2)));
}

#[test]
fn a_full_table_leaves_no_trace_of_those_that_it_turns_away() {
    let (mut waits, now) = (Waits::default(), Instant::now());
    for number in 0..WAITS_MAX as u64 {
        let key = WaitKey { holder: HolderId(number), ..key(1, 1) };
        waits.block(now, key, ()).unwrap();
    }
    waits.block(now, WaitKey { holder: HolderId(WAITS_MAX as u64), ..key(1, 1) }, ()).unwrap_err();
    assert!(!waits.has(HolderId(WAITS_MAX as u64)));
}

#[derive(Clone, Debug)]
enum Step {
    Block(u8, u8),
    Take(u8, u8),
    TakeHost(u8),
    Notify(u8, u8),
    Work(bool, u8),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..2u8, 0..3u8).prop_map(|(host, owner)| Step::Block(host, owner)),
        1 => (0..2u8, 0..3u8).prop_map(|(host, owner)| Step::Take(host, owner)),
        1 => (0..2u8).prop_map(Step::TakeHost),
        2 => (0..2u8, 0..3u8).prop_map(|(host, owner)| Step::Notify(host, owner)),
        4 => (any::<bool>(), 0..3u8).prop_map(|(granted, answer)| Step::Work(granted, answer)),
        2 => (0..40u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Against a map: every request stays until an event ends it, no work is done twice at once, and a
    /// request that was notified is attempted without delay.
    #[test]
    fn no_request_is_lost_or_served_twice(steps in steps()) {
        let (mut waits, mut now) = (Waits::default(), Instant::now());
        let mut model: BTreeMap<(u8, u8), Stage> = BTreeMap::new();
        let parts = |key: &WaitKey| (key.owner.0[0], key.owner.0[1]);
        for step in steps {
            match step {
                Step::Block(host, owner) => {
                    waits.block(now, key(host, owner), ()).unwrap();
                    model.insert((host, owner), Stage::Waiting);
                }
                Step::Take(host, owner) => {
                    prop_assert_eq!(waits.take(&key(host, owner)), model.remove(&(host, owner)));
                }
                Step::TakeHost(host) => {
                    waits.take_host(HolderId(host.into()));
                    model.retain(|(of, _), _| *of != host);
                }
                Step::Notify(host, owner) => {
                    let waits_for = model.get(&(host, owner)) == Some(&Stage::Waiting);
                    prop_assert_eq!(notify(&mut waits, now, &key(host, owner)), waits_for);
                    prop_assert!(!waits_for || waits.next_due().is_some_and(|due| due <= now));
                }
                Step::Work(granted, answer) => {
                    let Some(number) = waits.due(now) else { continue };
                    let (of, stage, ()) = waits.get(number).unwrap();
                    let of = parts(of);
                    prop_assert_eq!(model.get(&of), Some(&stage));
                    match (stage, answer) {
                        (Stage::Waiting, _) => {
                            waits.attempted(now, number, granted);
                            if granted {
                                model.insert(of, Stage::Granted);
                            }
                        }
                        (Stage::Granted, 0) => {
                            prop_assert_eq!(waits.answered(now, number, Answer::Silent), None);
                        }
                        (Stage::Granted, 1) => {
                            let accepted = waits.answered(now, number, Answer::Accepted);
                            prop_assert_eq!(accepted.as_ref().map(parts), Some(of));
                            model.remove(&of);
                        }
                        (Stage::Granted, _) => {
                            let released = waits.answered(now, number, Answer::Refused);
                            prop_assert_eq!(released.as_ref().map(parts), Some(of));
                            model.remove(&of);
                        }
                    }
                }
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            prop_assert_eq!(waits.len(), model.len());
            prop_assert_eq!(waits.queue.len(), model.len(), "nothing is busy between the steps");
            for (host, owner) in model.keys() {
                prop_assert!(waits.any_on(HolderId((*host).into()), &key(*host, *owner).file));
            }
        }
        // Whatever happened, every request has a next work.
        now += Duration::from_secs(60);
        let mut worked = 0;
        while let Some(number) = waits.due(now) {
            prop_assert!(waits.get(number).is_some());
            worked += 1;
        }
        prop_assert_eq!(worked, model.len());
    }
}
