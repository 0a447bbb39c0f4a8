//! The slots of a backchannel, on which the server numbers its requests (RFC 8881, section 2.10.6).
//!
//! Without I/O: [`BackSlots`] gives out slots, and [`Taken`] decides what to send next in its slot. A request
//! may be lost, executed without an answer, or answered late. The answer to one request must never be taken
//! for the answer to another.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::nfs4::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots of a session.
#[derive(Debug)]
pub(super) struct BackSlots {
    free: Arc<Semaphore>,
    slots: Mutex<Vec<BackSlot>>,
}

/// One slot, idle or with a request running.
#[derive(Clone, Copy, Debug)]
struct BackSlot {
    /// The next sequence id.
    sequence: u32,
    busy: bool,
    /// A request with this sequence id was abandoned without an answer: the client may have executed it.
    in_doubt: bool,
}

/// A slot with a request running.
#[derive(Debug)]
pub(super) struct Taken {
    slots: Arc<BackSlots>,
    number: u32,
    sequence: u32,
    /// An earlier request may have used the sequence id already.
    in_doubt: bool,
    /// A request was sent at this sequence id, and no answer says whether the client has executed it.
    asked: bool,
    _permit: OwnedSemaphorePermit,
}

/// The place of a request in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u32,
    pub(super) sequence: u32,
    pub(super) highest_slot: u32,
    /// CB_SEQUENCE must be sent alone. Otherwise the answer to an earlier request could be taken for the
    /// answer to this one.
    pub(super) alone: bool,
}

/// What follows an answer to CB_SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The answer belongs to the request.
    Done,
    /// Send again, at the place that [`Taken::ask`] gives.
    Again,
    /// The same, after a pause.
    AgainLater,
    /// This session cannot carry the request.
    Down,
}

impl BackSlots {
    /// `count` unused slots.
    pub(super) fn new(count: u32) -> BackSlots {
        let free = Arc::new(Semaphore::new(count as usize));
        let unused = BackSlot { sequence: 1, busy: false, in_doubt: false };
        BackSlots { free, slots: Mutex::new(vec![unused; count as usize]) }
    }

    /// Takes a slot. Waits until one is free.
    pub(super) async fn take(self: Arc<BackSlots>) -> Option<Taken> {
        let permit = self.free.clone().acquire_owned().await.ok()?;
        let (number, BackSlot { sequence, in_doubt, .. }) = {
            let mut slots = self.slots.lock();
            let (number, slot) = slots.iter_mut().enumerate().find(|(_, slot)| !slot.busy)?;
            slot.busy = true;
            (number as u32, *slot)
        };
        Some(Taken { slots: self, number, sequence, in_doubt, asked: false, _permit: permit })
    }
}

impl Taken {
    /// The request is about to be sent, or sent again.
    pub(super) fn ask(&mut self) -> Place {
        self.asked = true;
        let highest_slot = self.slots.slots.lock().len().saturating_sub(1) as u32;
        Place { slot: self.number, sequence: self.sequence, highest_slot, alone: self.in_doubt }
    }

    /// The client has answered CB_SEQUENCE: success, or a status if the answer has one.
    pub(super) fn answered(&mut self, sequence: Result<(), Option<Status>>) -> Next {
        match sequence {
            // Only CB_SEQUENCE was sent.
            Ok(()) if self.in_doubt => self.advance(),
            Ok(()) => {
                self.advance();
                return Next::Done;
            }
            // The client may be executing it from another connection.
            Err(Some(Status::Delay)) => return Next::AgainLater,
            // Server and client disagree about the sequence id. The client's count decides, so start at 1
            // again.
            Err(Some(Status::SeqMisordered)) if self.sequence != 1 => self.set(1),
            Err(Some(Status::RetryUncachedRep | Status::SeqFalseRetry)) => self.advance(),
            // The same request may have been executed before, with an answer that was lost.
            Err(_) => return Next::Down,
        }
        Next::Again
    }

    /// The client has seen the request: moves to the next sequence id.
    fn advance(&mut self) {
        self.set(self.sequence.wrapping_add(1));
    }

    fn set(&mut self, sequence: u32) {
        (self.sequence, self.in_doubt, self.asked) = (sequence, false, false);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(slot) = self.slots.slots.lock().get_mut(self.number as usize) {
            let in_doubt = self.in_doubt || self.asked;
            *slot = BackSlot { sequence: self.sequence, busy: false, in_doubt };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sequence_id_of_a_callback_that_was_given_up_is_in_doubt_until_the_client_has_answered() {
        let slots = Arc::new(BackSlots::new(1));
        let mut first = slots.clone().take().await.unwrap();
        assert_eq!((first.sequence, first.in_doubt), (1, false));
        first.ask();
        drop(first);
        let second = slots.clone().take().await.unwrap();
        assert_eq!((second.sequence, second.in_doubt), (1, true));
        drop(second);
        let mut third = slots.clone().take().await.unwrap();
        assert!(third.in_doubt, "nothing was asked");
        assert_eq!((third.ask().alone, third.answered(Ok(()))), (true, Next::Again));
        drop(third);
        let fourth = slots.take().await.unwrap();
        assert_eq!((fourth.sequence, fourth.in_doubt), (2, false));
    }

    #[tokio::test]
    async fn a_refusal_does_not_tell_what_became_of_an_earlier_request() {
        let slots = Arc::new(BackSlots::new(1));
        let mut first = slots.clone().take().await.unwrap();
        first.ask(); // on one connection, without an answer
        first.ask(); // on another one
        assert_eq!(first.answered(Err(Some(Status::BadSession))), Next::Down);
        drop(first);
        assert!(slots.take().await.unwrap().ask().alone);
    }
}
