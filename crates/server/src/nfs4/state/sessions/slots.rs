//! The slots of a fore channel (RFC 8881, section 2.10.6.1): one request at a time in each, and its reply for whoever
//! asks again.

use protocol::nfs4::Status;
use xdr::Message;

/// What tells a retry from another request under the same sequence id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) u64);

/// What is to be done about a request in a slot.
#[derive(Clone, Debug)]
pub(crate) enum Turn {
    /// It is the next one.
    Execute,
    /// It is the last one again.
    Replay(Message),
}

#[derive(Debug)]
enum Slot {
    /// Never used: the first sequence id is 1.
    Fresh,
    /// This one is being carried out.
    Busy { sequence: u32, digest: Digest },
    /// This one was; `None` if nothing was kept of its reply.
    Done { sequence: u32, digest: Digest, reply: Option<Message> },
}

/// All slots of a session.
#[derive(Debug)]
pub(crate) struct Slots(Vec<Slot>);

impl Slots {
    /// So many, none used.
    pub(crate) fn new(count: u32) -> Slots {
        Slots((0..count).map(|_| Slot::Fresh).collect())
    }

    /// A request arrives.
    ///
    /// # Errors
    /// See [`super::Sessions::begin`].
    pub(crate) fn begin(&mut self, slot: u32, sequence: u32, digest: Digest) -> Result<Turn, Status> {
        let slot = self.0.get_mut(slot as usize).ok_or(Status::BadSlot)?;
        let is_next = match slot {
            Slot::Fresh => sequence == 1,
            Slot::Busy { sequence: running, .. } if *running == sequence => return Err(Status::Delay),
            Slot::Busy { .. } => false,
            Slot::Done { sequence: last, digest: other, reply } if *last == sequence => {
                return match reply {
                    _ if *other != digest => Err(Status::SeqFalseRetry),
                    Some(reply) => Ok(Turn::Replay(reply.clone())),
                    None => Err(Status::RetryUncachedRep),
                };
            }
            Slot::Done { sequence: last, .. } => sequence == last.wrapping_add(1),
        };
        if !is_next {
            return Err(Status::SeqMisordered);
        }
        *slot = Slot::Busy { sequence, digest };
        Ok(Turn::Execute)
    }

    /// Takes away all but so many slots, unless one of the others is busy.
    pub(crate) fn truncate(&mut self, count: u32) -> bool {
        let others = self.0.get(count as usize..).unwrap_or_default();
        let free = !others.iter().any(|slot| matches!(slot, Slot::Busy { .. }));
        if free {
            self.0.truncate(count as usize);
        }
        free
    }

    /// Is more than every second one busy? The only one of a session is, for whoever asks in it.
    pub(crate) fn is_half_busy(&self) -> bool {
        let busy = self.0.iter().filter(|slot| matches!(slot, Slot::Busy { .. })).count();
        2 * busy > self.0.len()
    }

    /// The request that was being carried out is done.
    pub(crate) fn complete(&mut self, slot: u32, reply: Option<Message>) {
        if let Some(slot) = self.0.get_mut(slot as usize)
            && let Slot::Busy { sequence, digest } = *slot
        {
            *slot = Slot::Done { sequence, digest, reply };
        }
    }
}
